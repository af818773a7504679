"""A bystander as a process of its own: `python benchmarks/bystander_client.py PORT`. A raw socket, no gevent.

Each line of standard input is a number of seconds. For so long it asks for `/bench/hello` on one connection that is
kept alive; then it prints a line of JSON: `latency`, the seconds from the moment at which each request was due to its
answer, and `late`, the seconds by which each request that waited for no answer left too late, which is the fault of the
machine and not of the server. It ends when its standard input does.

The schedule is fixed beforehand. While an answer is missing the next requests can't leave, but their time runs from
when they were due: so a standstill of the server is seen by all that it would have kept waiting.

A request is due each 20.1 ms. Tokens and flushes come each 10 and 50 ms: at 20 ms sharp all requests would fall on the
same five moments between two flushes, by chance just before one or just behind it. So they pass through all of them.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import time

INTERVAL = 0.0201  # seconds
REQUEST = b"GET /bench/hello HTTP/1.1\r\nHost: bench\r\n\r\n"
WARM_UPS = 5


def ask(sock: socket.socket) -> None:
    """One request and its answer."""
    sock.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"\r\n\r\nhello\n"):
        data = sock.recv(4_096)
        if not data:
            raise ConnectionError(f"the server closed the connection: {answer[:200]!r}")
        answer += data
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(answer.split(b"\r\n")[0].decode())


def run(port: int, seconds: float) -> dict[str, list[float]]:
    """Ask for so long."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WARM_UPS):
            ask(sock)
        latency, late = [], []
        began = time.monotonic() + INTERVAL
        for number in range(int(seconds / INTERVAL)):
            due = began + number * INTERVAL
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
                late.append(time.monotonic() - due)
            ask(sock)
            latency.append(time.monotonic() - due)
    return {"latency": latency, "late": late}


if __name__ == "__main__":
    gc.disable()  # nothing here is a cycle, and a collection would look like the server's
    print(0, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(int(sys.argv[1]), float(line))), flush=True)
