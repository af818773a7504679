"""A backend of pages as a process of its own: `python benchmarks/backend.py`. Raw sockets, one thread a connection.

It prints its port. `GET /BYTES` is answered with one `start` record of so many bytes, then with silence until the page
closes the connection. It ends when its standard input does.
"""

from __future__ import annotations

import functools
import socket
import sys
import threading

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"


@functools.cache
def record(size: int) -> bytes:
    """A `start` record of `size` bytes, without its line feed."""
    before, after = b'{"type":"start","version":2,"state":{"blob":"', b'"}}'
    return before + b"x" * (size - len(before) - len(after)) + after


def answer(connection: socket.socket) -> None:
    """Answer one request and wait until the other side closes."""
    with connection:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(4_096)
        size = int(request.split(b" ", 2)[1].strip(b"/"))
        connection.sendall(HEAD + record(size) + b"\n")
        connection.recv(1)


def accept(listener: socket.socket) -> None:
    """Answer each connection in a thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=1_024) as server:
        print(server.getsockname()[1], flush=True)
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        sys.stdin.read()
