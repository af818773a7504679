"""Many clients of live streams, a process of its own: `python benchmarks/readers.py PORT CARRIER`. Raw sockets, epoll.

The carrier is `websocket`, `sse` or `ndjson`. Commands come as lines of JSON on standard input, and each is answered by
one: `{"do": "connect", "sids": [...], "read": n, "query": ""}` opens a connection for each id, `{"do": "report"}` tells
what has come since the last report, `{"do": "close"}` closes all. The first `read` clients are read frame by frame, so
that the delay of each token and the text are known; of the others only messages and bytes are counted. With
`"keep": true` the messages are in the report too, as they came. It ends when its standard input does.

A token's delay is taken from the moment at which it should have been produced: `live_server.py` tells in the `meta` of
each message when it began and how many tokens there are a second, and each token has five characters.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import select
import socket
import sys
import time
from typing import Any

TOKEN_SIZE = 5  # characters
MASK = bytes(4)
#: Connections that have one source address. The kernel looks for a free port by trying: slowly, when half are taken.
AN_ADDRESS = 2_500
IP_BIND_ADDRESS_NO_PORT = 24  # Linux: `connect` chooses the port, so one that has just been closed is free again


def websocket_frame(text: str) -> bytes:
    """A client's text frame of less than 126 bytes."""
    payload = text.encode()
    assert len(payload) < 126
    return bytes([0x81, 0x80 | len(payload)]) + MASK + payload


def connected(port: int, number: int) -> socket.socket:
    """A connection to the server, the `number`th of this process: from 127.0.0.1, 127.0.0.2 and so on."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((f"127.0.0.{1 + number // AN_ADDRESS}", 0))
    sock.connect(("127.0.0.1", port))
    return sock


class Client:
    """One connection.

    Attributes:
        text: all text by stream and part, if it is read frame by frame.
        keeps: its messages are kept for the report.
    """

    def __init__(self, report: Report, is_websocket: bool, reads: bool) -> None:
        self._report = report
        self._is_websocket = is_websocket
        self._reads = reads
        self._buffer = b""
        self._clocks: dict[str, tuple[float, float]] = {}
        self.keeps = False
        self.text: dict[str, str] = {}

    def subscribe(self, sock: socket.socket, sid: str, carrier: str, query: str) -> None:
        """Ask for a stream on a new connection; the head of the answer is read."""
        self.socket = sock
        if self._is_websocket:
            key = base64.b64encode(os.urandom(16)).decode()
            head = (
                f"GET /streams/ws{query} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
            )
        else:
            form = "events" if carrier == "sse" else "records"
            head = f"GET /streams/{sid}/{form}{query} HTTP/1.1\r\nHost: bench\r\n\r\n"
        self.socket.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError(f"the server closed the connection: {answer[:200]!r}")
            answer += data
        status, _, rest = answer.partition(b"\r\n\r\n")
        if not status.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
            raise ConnectionError(status.split(b"\r\n")[0].decode())
        self._report.head_bytes += len(answer) - len(rest)
        if self._is_websocket:
            self.socket.sendall(websocket_frame(json.dumps({"t": "subscribe", "sid": sid})))
        self.socket.setblocking(False)
        self.feed(rest)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._report.bytes += len(data)
        self._buffer += data
        take = self._take_websocket if self._is_websocket else self._take_chunk
        before = len(self._buffer)
        while (message := take()) is not None:
            self._report.messages += 1
            if self.keeps:
                self._report.kept.append((time.monotonic(), before - len(self._buffer), message.decode()))
            before = len(self._buffer)
            if self._reads:
                self._read(message)

    def _take_websocket(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1], 2
        if size == 126:
            size, start = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < start + size:
            return None
        self._buffer = buffer[start + size :]
        if buffer[0] == 0x89:  # PING: without an answer the server ends the connection
            self.socket.send(bytes([0x8A, 0x80 | size]) + MASK + buffer[start : start + size])
        return buffer[start : start + size] if buffer[0] == 0x81 else b"[]"

    def _take_chunk(self) -> bytes | None:
        line = self._buffer.find(b"\r\n")
        if line < 0:
            return None
        size = int(self._buffer[:line], 16)
        end = line + 2 + size
        if len(self._buffer) < end + 2:
            return None
        chunk, self._buffer = self._buffer[line + 2 : end], self._buffer[end + 2 :]
        return chunk

    def _read(self, message: bytes) -> None:
        now = time.monotonic()
        if self._is_websocket:
            frames = json.loads(message)
        else:
            lines = [line.removeprefix(b"data: ") for line in message.split(b"\n")]
            frames = [json.loads(line) for line in lines if line.startswith(b"{")]
        for frame in frames:
            kind = frame["t"]
            if kind == "event":
                self._event(frame)
            elif kind == "delta":
                key = f"{frame['sid']} {frame['p']}"
                self._report.off_by += frame["off"] != len(self.text.get(key, ""))
                self.text[key] = self.text.get(key, "") + frame["s"]
                self._delays(now, frame["sid"], frame["off"], len(frame["s"]))
            elif kind == "cumulative":
                key = f"{frame['sid']} {frame['p']}"
                before = len(self.text.get(key, ""))
                self.text[key] = frame["s"]
                self._delays(now, frame["sid"], before, len(frame["s"]) - before)

    def _event(self, frame: dict[str, Any]) -> None:
        if frame["k"] == "message.start":
            meta = frame["d"]["meta"]
            if "began" in meta:
                self._clocks[frame["sid"]] = meta["began"], meta["rate"]
        elif frame["k"] == "part.end" and "s" in frame["d"]:
            self.text[f"{frame['sid']} {frame['d']['p']}"] = frame["d"]["s"]
        elif frame["k"] == "message.end":
            self._report.ended += 1

    def _delays(self, now: float, sid: str, offset: int, length: int) -> None:
        clock = self._clocks.get(sid)
        if clock is None or length <= 0:
            return
        began, rate = clock
        first, after = offset // TOKEN_SIZE, (offset + length) // TOKEN_SIZE
        self._report.delays += [now - began - number / rate for number in range(first, after)]


class Report:
    """What has come since the last report."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.messages = self.bytes = self.head_bytes = self.ended = self.off_by = self.closed = 0
        self.kept: list[tuple[float, int, str]] = []
        self.delays: list[float] = []
        self.began = time.monotonic()
        self.cpu = time.process_time()

    def take(self, clients: list[Client]) -> dict[str, Any]:
        """The figures so far, which begin anew."""
        values = sorted(self.delays)
        found = {
            "messages": self.messages,
            "bytes": self.bytes,  # behind the heads of responses
            "head_bytes": self.head_bytes,
            "ended": self.ended,
            "wrong_offsets": self.off_by,
            "closed": self.closed,
            "seconds": time.monotonic() - self.began,
            "cpu": time.process_time() - self.cpu,
            "tokens": len(values),
            "delay_median": values[len(values) // 2] if values else None,
            "delay_p95": values[int((len(values) - 1) * 0.95)] if values else None,
            "delay_p99": values[int((len(values) - 1) * 0.99)] if values else None,
            "delay_max": values[-1] if values else None,
            "text": [{key: len(text) for key, text in client.text.items()} for client in clients if client.text],
        }
        if self.kept:
            found["kept"] = self.kept  # when, bytes with their framing, the message
        self.clear()
        return found


def run(port: int, carrier: str) -> None:
    """Serve commands and clients until standard input ends."""
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    report = Report()
    clients: dict[int, Client] = {}
    for line_or_none in iter(lambda: _wait(poll, clients, report), b""):
        command = json.loads(line_or_none)
        answer: dict[str, Any] = {}
        if command["do"] == "connect":
            for number, sid in enumerate(command["sids"]):
                client = Client(report, carrier == "websocket", number < command.get("read", 0))
                client.keeps = command.get("keep", False)
                sock = connected(port, len(clients))
                client.subscribe(sock, sid, carrier, command.get("query", ""))
                clients[sock.fileno()] = client
                poll.register(sock.fileno(), select.EPOLLIN)
            answer = {"connected": len(clients)}
        elif command["do"] == "report":
            answer = report.take(list(clients.values()))
        elif command["do"] == "close":
            for descriptor, client in clients.items():
                poll.unregister(descriptor)
                client.socket.close()
            clients.clear()
        print(json.dumps(answer), flush=True)


def _wait(poll: select.epoll, clients: dict[int, Client], report: Report) -> bytes:
    """Read what comes for the clients until there is a command; empty at the end of standard input."""
    while True:
        is_told = False
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                is_told = True  # but clients come first: a PING must not wait for many commands
                continue
            client = clients[descriptor]
            try:
                data = client.socket.recv(262_144)
                client.feed(data)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if not data:
                poll.unregister(descriptor)
                client.socket.close()
                del clients[descriptor]
                report.closed += 1
        if is_told:
            return sys.stdin.buffer.readline()


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(0, flush=True)
    run(int(sys.argv[1]), sys.argv[2])
