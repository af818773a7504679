"""The protocols themselves: bytes and values in, bytes and values out.

Nothing in this package imports gevent, Flask or a socket, and nothing reads a clock. Time, where a rule needs it,
comes in as an argument. So every rule can be tested in microseconds, and used by clients in Python.
"""
