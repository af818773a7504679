"""A client that reads slowly, as a process of its own: `python benchmarks/reader.py BYTES_PER_SECOND`.

It prints its port, takes one connection, and answers each response of a whole megabyte with one byte once it has read
it at its pace. It ends with the connection.
"""

from __future__ import annotations

import socket
import sys
import time

RESPONSE = 1_048_576
SLICE = 16_384


def read(connection: socket.socket, pace: float) -> bool:
    """Read one response, slice by slice, each at its time; False at the connection's end."""
    start = time.monotonic()
    taken = 0
    while taken < RESPONSE:
        data = connection.recv(min(SLICE, RESPONSE - taken))
        if not data:
            return False
        taken += len(data)
        time.sleep(max(0.0, start + taken / pace - time.monotonic()))
    connection.sendall(b".")
    return True


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Small, so that the pace is felt by the sender and not swallowed by the kernel.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
        with peer:
            while read(peer, float(sys.argv[1])):
                pass
