"""Clients that lose their connection again and again: `python benchmarks/droppers.py PORT`. Raw sockets, threads.

It prints 0, reads one line of JSON from standard input, `{"sid", "groups": {name: {"carrier", "clients", "is_stale"}},
"every", "ends", "limit"}`, prints a line when every client is connected, and another with what each client has and
counted, once all have seen `ends` messages of the stream end or `limit` seconds have passed. No gevent.

Each client folds a stream as docs/live-protocol.md, "Folding", says. Every so many seconds it drops its connection, is
away for up to half a second, and comes back with its cursor: in a `subscribe` frame on WebSocket, on SSE as the
`Last-Event-ID` that the server gave, on NDJSON as a token of its own in the query. Drops take turns: closed in order or
by a reset (RST), and both of them between two messages or after the first bytes of one.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from readers import MASK, websocket_frame

AWAY = 0.5  # seconds at most between a drop and the return
FEW = 30  # bytes of a message that are read before a drop in the middle of it; every message here is longer
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
Received = tuple[str | None, dict[str, Any]]  # the token that came with a frame, if one did, and the frame


class Lost(Exception):
    """The frames do not fit together."""


class Fold:
    """One stream, as a client has it; see docs/live-protocol.md, "Folding".

    Attributes:
        text: of each part, by `p`.
        ended: messages that have.
        repeated: code points that came though the client had them, or had them before a reset.
        events: that came though the client had them.
        resets: their reasons.
    """

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.resets: Counter[str] = Counter()
        self.repeated = self.events = self.ended = self.length = 0
        self._forget(0)

    def _forget(self, seq: int) -> None:
        self.seq = seq
        self.text: dict[int, str] = {}
        self.open: set[int] = set()
        self.ended = 0
        self.repeated += self.length
        self.length = 0

    def token(self) -> str | None:
        """The cursor; None for a client that has nothing."""
        if self.epoch is None:
            return None
        return f"{self.epoch}.{self.seq}" + "".join(f".{p}~{len(self.text[p])}" for p in self.open if self.text[p])

    def apply(self, frame: dict[str, Any]) -> None:
        """Apply a frame."""
        kind = frame["t"]
        if kind == "reset" or (kind == "subscribed" and self.epoch is None):
            if kind == "reset":
                self.resets[frame["reason"]] += 1
            self._forget(frame["floor"])
            self.epoch = frame["epoch"]
            for part in (part for message in frame["open"] for part in message["parts"]):
                self.text[part["p"]] = ""
                self.open.add(part["p"])
        elif kind == "event":
            self._event(frame["seq"], frame["k"], frame["d"])
        elif kind == "delta":
            self._delta(frame["p"], frame["off"], frame["s"])

    def _event(self, seq: int, kind: str, data: dict[str, Any]) -> None:
        if seq <= self.seq:
            self.events += 1
            return
        if seq > self.seq + 1:
            raise Lost
        if kind == "part.start":
            self.text[seq] = ""
            self.open.add(seq)
        elif kind == "part.end":
            if len(self.text[data["p"]]) != data["len"] or "s" in data:
                raise Lost
            self.open.discard(data["p"])
        elif kind == "message.end":
            self.ended += 1
        self.seq = seq

    def _delta(self, p: int, offset: int, text: str) -> None:
        length = len(self.text[p])
        if offset > length:
            raise Lost
        new = text[length - offset :]
        self.repeated += len(text) - len(new)
        self.text[p] += new
        self.length += len(new)


# -- carriers: bytes to frames, however they are cut


class WebSocketFrames:
    """The frames of a WebSocket; answers PING."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Received]:
        """Take bytes; yield what they complete."""
        self.rest += data
        while len(self.rest) >= 2:
            size, start = self.rest[1], 2
            if size > 125:
                start = 4 if size == 126 else 10
                size = int.from_bytes(self.rest[2:start], "big")
            if len(self.rest) < start + size:
                return
            opcode, payload = self.rest[0] & 15, self.rest[start : start + size]
            self.rest = self.rest[start + size :]
            if opcode == PING:
                self._socket.sendall(bytes([0x80 | PONG, 0x80 | size]) + MASK + payload)
            elif opcode == TEXT:
                for frame in json.loads(payload):
                    yield None, frame


class ChunkedFrames:
    """The frames of an SSE or NDJSON response; whole events and lines are taken out of chunks that are not whole."""

    def __init__(self, is_sse: bool) -> None:
        self._end = b"\n\n" if is_sse else b"\n"
        self._raw = b""
        self._left = 0  # bytes of the chunk, with the line end behind it
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Received]:
        """Take bytes; yield what they complete."""
        self._raw += data
        while self._raw:
            if not self._left:
                line, found, rest = self._raw.partition(b"\r\n")
                if not found:
                    break
                self._left, self._raw = int(line, 16) + 2, rest
            piece, self._raw = self._raw[: self._left], self._raw[self._left :]
            self.rest += piece[: max(0, self._left - 2)]
            self._left -= len(piece)
        *items, self.rest = self.rest.split(self._end)
        for item in items:
            fields = (
                dict(line.split(b": ", 1) for line in item.split(b"\n")) if self._end == b"\n\n" else {b"data": item}
            )
            if b"data" in fields:
                identity = fields.get(b"id")
                yield None if identity is None else identity.decode(), json.loads(fields[b"data"])


# -- a client


class Dropper(threading.Thread):
    """One client.

    Args:
        name: of its group.
        is_stale: it comes back with the cursor that it came with before: what must be seen as repeated.
        plan: `sid`, `every`, `ends` and `until`, by the monotonic clock.

    Attributes:
        counts: connections, drops, those that were resets, those in the middle of a message, lost, failed.
        away: seconds without a connection.
        waits: seconds from the beginning of a return to the first frame of it.
        track: moments and lengths of text.
    """

    def __init__(self, name: str, number: int, carrier: str, is_stale: bool, plan: dict[str, Any], port: int) -> None:
        super().__init__(daemon=True)
        self.group = name
        self.fold = Fold()
        self.counts: Counter[str] = Counter()
        self.away = 0.0
        self.waits: list[float] = []
        self.track: list[tuple[float, int]] = []
        self.is_connected = threading.Event()
        self._number, self._carrier, self._is_stale, self._plan, self._port = number, carrier, is_stale, plan, port
        self._random = random.Random(f"{name} {number}")
        self._last_id: str | None = None
        self._stale: str | None = None

    def run(self) -> None:
        """Read and drop until the stream is complete."""
        # The first drops are spread, so that not all clients are away together.
        until = time.monotonic() + self._plan["every"] * (0.5 + self._random.random())
        while not self.is_done and time.monotonic() < self._plan["until"]:
            try:
                self._read(until)
            except Lost:
                self.counts["lost"] += 1
            except (OSError, ValueError):
                self.counts["failed"] += 1
            if not self.is_done:
                left = time.monotonic()
                time.sleep(self._random.uniform(0, AWAY))
                self.away += time.monotonic() - left
            until = time.monotonic() + self._plan["every"]

    @property
    def is_done(self) -> bool:
        """It has all messages."""
        return bool(self.fold.ended >= self._plan["ends"])

    def _read(self, until: float) -> None:
        """One connection, until it is time to drop it."""
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            frames, data = self._open(sock)
            self.counts["connections"] += 1
            is_first = True
            while True:
                for token, frame in frames.feed(data):
                    if is_first and frame["t"] in ("subscribed", "reset"):
                        self.waits.append(time.monotonic() - began)
                        is_first = False
                        self.is_connected.set()
                    self.fold.apply(frame)
                    self._last_id = token or self._last_id
                self.track.append((time.monotonic(), self.fold.length))
                if self.is_done:
                    return
                left = until - time.monotonic()
                if left <= 0:
                    break
                sock.settimeout(left)
                try:
                    data = sock.recv(65_536)
                except TimeoutError:
                    break
                if not data:
                    raise ConnectionError
            self._drop(sock, frames)

    def _drop(self, sock: socket.socket, frames: WebSocketFrames | ChunkedFrames) -> None:
        """Leave, in one of four ways."""
        way = (self._number + self.counts["drops"]) % 4
        self.counts["drops"] += 1
        if way >= 2:
            sock.settimeout(1)
            try:
                for token, frame in frames.feed(sock.recv(FEW)):
                    self.fold.apply(frame)
                    self._last_id = token or self._last_id
            except TimeoutError:
                pass
            self.counts["in_middle"] += bool(frames.rest)
        if way % 2:
            self.counts["resets"] += 1
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self._carrier == "websocket":
            sock.sendall(bytes([0x80 | CLOSE, 0x82]) + MASK + (1_001).to_bytes(2, "big"))
            sock.settimeout(AWAY)
            while sock.recv(65_536):  # what comes now is for nobody; the server closes
                pass

    def _open(self, sock: socket.socket) -> tuple[WebSocketFrames | ChunkedFrames, bytes]:
        """Ask for the stream from the cursor on; returns what has come behind the head of the answer."""
        cursor = self._last_id if self._carrier == "sse" else self.fold.token()
        if self._is_stale:
            before, self._stale = self._stale, cursor
            cursor = before or cursor
        sid, head = self._plan["sid"], "Host: bench\r\n"
        if self._carrier == "websocket":
            key = base64.b64encode(os.urandom(16)).decode()
            head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            head += f"Sec-WebSocket-Key: {key}\r\n"
            path = "ws"
        elif self._carrier == "sse":
            head += f"Last-Event-ID: {cursor}\r\n" if cursor else ""
            path = f"{sid}/events"
        else:
            path = f"{sid}/records" + (f"?cursor={cursor}" if cursor else "")
        sock.settimeout(30)
        sock.sendall(f"GET /streams/{path} HTTP/1.1\r\n{head}\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = sock.recv(65_536)
            if not data:
                raise ConnectionError
            answer += data
        status, _, rest = answer.partition(b"\r\n\r\n")
        if not status.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
            raise ConnectionError(status)
        if self._carrier == "websocket":
            subscribe = {"t": "subscribe", "sid": sid} | ({"cursor": cursor} if cursor else {})
            sock.sendall(websocket_frame(json.dumps(subscribe, separators=(",", ":"))))
            return WebSocketFrames(sock), rest
        return ChunkedFrames(self._carrier == "sse"), rest

    def report(self) -> dict[str, Any]:
        """What it has and counted."""
        return {
            "group": self.group,
            "is_done": self.is_done,
            "counts": self.counts,
            "resets": self.fold.resets,
            "repeated": self.fold.repeated,
            "repeated_events": self.fold.events,
            "away": self.away,
            "waits": self.waits,
            "text": self.fold.text,
            "track": self.track if self._number == 0 else [],
        }


def _end() -> None:
    """End the process when standard input does."""
    sys.stdin.read()
    os._exit(0)


def main(port: int) -> None:
    """Run the clients that standard input asks for."""
    plan = json.loads(sys.stdin.readline())
    threading.Thread(target=_end, daemon=True).start()
    began = time.monotonic()
    plan["until"] = began + plan["limit"]
    droppers = [
        Dropper(name, number, group["carrier"], group["is_stale"], plan, port)
        for name, group in plan["groups"].items()
        for number in range(group["clients"])
    ]
    for dropper in droppers:
        dropper.start()
    for dropper in droppers:
        dropper.is_connected.wait(plan["limit"])
    print(json.dumps({"connected": sum(dropper.is_connected.is_set() for dropper in droppers)}), flush=True)
    cpu, start = time.process_time(), time.monotonic()
    for dropper in droppers:
        dropper.join(max(0.0, plan["until"] + 60 - time.monotonic()))
    report = {"cpu": time.process_time() - cpu, "seconds": time.monotonic() - start, "began": start}
    print(json.dumps(report | {"clients": [dropper.report() for dropper in droppers]}), flush=True)


if __name__ == "__main__":
    print(0, flush=True)
    main(int(sys.argv[1]))
