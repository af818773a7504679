"""The real parts that tests put together: a scripted backend, our server, and a client, all on raw sockets.

They live in the test's process, on gevent's hub, so that a test can look at pools and buffers while bytes move. Tests
of whole processes are in `test_processes.py`.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer

from app import create_app
from streaming.server import StreamingServer
from streaming.state import AppState

LIMIT = 10.0  # seconds that a test waits for anything, on a busy machine too
NDJSON = b"application/x-ndjson"


def until(condition: Callable[[], Any], what: str = "the condition", limit: float = LIMIT) -> None:
    """Wait for a condition; fail the test if it does not come."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit} s for {what}"
        gevent.sleep(0.002)


def record(kind: str, **members: Any) -> bytes:
    """A record with its line feed; `version` and `state` are filled in."""
    if kind == "start":
        members.setdefault("version", 2)
    if kind != "abort":
        members.setdefault("state", {})
    return json.dumps({"type": kind, **members}).encode() + b"\n"


def boundary(name: str, key: Any = None, owner: str = "page.html") -> dict[str, Any]:
    """What a record names a boundary by."""
    return {"owner": owner, "name": name} | ({} if key is None else {"key": key})


class Peer:
    """One connection of our server to the backend."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.head = b""
        self.closed = Event()
        self.closed_at = 0.0

    @property
    def target(self) -> str:
        """Path and query that were asked for."""
        return self.head.split(b" ")[1].decode()

    def receive_head(self) -> None:
        """Read the request."""
        while b"\r\n\r\n" not in self.head:
            data = self._socket.recv(65_536)
            if not data:
                break
            self.head += data

    def watch(self) -> None:
        """Note when the other side closes."""
        with suppress(OSError):  # closed with a reset is closed all the same
            while self._socket.recv(65_536):
                pass
        self.closed_at = time.monotonic()
        self.closed.set()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(data)

    def answer(self, *lines: bytes, status: bytes = b"200 OK", kind: bytes = NDJSON, length: int | None = None) -> None:
        """Send a head and these bytes of the body; without a length the body is chunked."""
        framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
        self.send(b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%s\r\n\r\n" % (status, kind, framing))
        for line in lines:
            if length is None:
                self.chunk(line)
            else:
                self.send(line)

    def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        """End a chunked body properly."""
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """Close without another word."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def wait(self) -> None:
        """Send nothing more until the other side closes."""
        assert self.closed.wait(LIMIT), "our server did not close its connection to the backend"


class Backend:
    """A backend that does what `script` says with each connection."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.script: Callable[[Peer], None] = lambda peer: None
        self._server = StreamServer(("127.0.0.1", 0), self._handle)
        self._server.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _handle(self, sock: socket.socket, _: object) -> None:
        peer = Peer(sock)
        peer.receive_head()
        self.peers.append(peer)
        watcher = gevent.spawn(peer.watch)
        with suppress(OSError):  # our server closed first, as many tests want it to
            self.script(peer)
        watcher.kill()
        sock.close()
        peer.closed.set()

    def answers(self, *lines: bytes, **how: Any) -> None:
        """Answer each request with these lines, properly ended, then wait."""

        def script(peer: Peer) -> None:
            peer.answer(*lines, **how)
            if "length" not in how:
                peer.end()
            peer.wait()

        self.script = script

    @property
    def peer(self) -> Peer:
        """The only connection there was, or the last."""
        return self.peers[-1]

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()


class Client:
    """A browser's side of one connection."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(LIMIT)
        try:
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self.received = b""
        self.is_closed = False  # by the server

    def ask(self, path: str, method: str = "GET", version: str = "1.1", headers: str = "") -> Client:
        """Send a request without a body."""
        self.send(f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n".encode("latin-1"))
        return self

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(data)

    def receive(self) -> bool:
        """Receive what is there; False at the end."""
        try:
            data = self._socket.recv(1_000_000)
        except ConnectionResetError:
            data = b""
        self.received += data
        self.is_closed = not data
        return bool(data)

    def until(self, text: bytes) -> Client:
        """Receive until `text` is there."""
        while text not in self.received:
            assert self.receive(), f"the server closed before {text!r}: {self.received[-300:]!r}"
        return self

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in lower case."""
        self.until(b"\r\n\r\n")
        lines = self.received.split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split(" ")[1]), headers

    def body(self) -> Body:
        """Receive to the end of the response: its last chunk, its length, or the connection's end."""
        _, headers = self.head()
        while not self.is_closed:
            body = Body(self.received, headers)
            if body.is_complete:
                return body
            self.receive()
        return Body(self.received, headers)

    def half_close(self) -> None:
        """Send nothing any more, but go on receiving."""
        self._socket.shutdown(socket.SHUT_WR)

    def leave(self, *, reset: bool = False) -> None:
        """Close, politely or not."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class Body:
    """What has come of a response's body.

    `is_complete`: HTTP says that it is whole. `chunks`: the HTTP chunks that have come whole.
    """

    def __init__(self, received: bytes, headers: dict[str, str]) -> None:
        raw = received.split(b"\r\n\r\n", 1)[1]
        self.chunks: list[bytes] = []
        self.is_complete = False
        if headers.get("transfer-encoding") != "chunked":
            self.chunks = [raw]
            self.is_complete = "content-length" in headers and len(raw) == int(headers["content-length"])
            return
        while match := re.match(rb"([0-9a-fA-F]+)\r\n", raw):
            size = int(match[1], 16)
            chunk, end = raw[match.end() : match.end() + size], raw[match.end() + size : match.end() + size + 2]
            if end != b"\r\n":
                break
            raw = raw[match.end() + size + 2 :]
            if size == 0:
                self.is_complete = True
                assert raw == b"", f"bytes after the last chunk: {raw!r}"
                break
            self.chunks.append(chunk)

    @property
    def text(self) -> bytes:
        """All of it."""
        return b"".join(self.chunks)


class Site:
    """Our server with an app; the built-in route stands in front of a backend."""

    def __init__(self, folder: Path, backend_url: str, **settings: Any) -> None:
        self.folder = folder
        self._backend_url = backend_url
        self._server: StreamingServer | None = None
        self._clients: list[Client] = []
        self.configure(**settings)

    def configure(self, blueprints: Any = (), **settings: Any) -> Site:
        """Start anew with these STREAMING_* settings, named without prefix, in lower case."""
        self.stop()
        config = {"backend_url": self._backend_url, "template_folder": str(self.folder)} | settings
        self.app = create_app({f"STREAMING_{key.upper()}": value for key, value in config.items()}, blueprints)
        self._server = StreamingServer(("127.0.0.1", 0), self.app, spawn=Pool(), log=None)
        self._server.start()
        self.port = self._server.server_port
        return self

    def template(self, text: str, name: str = "page.html") -> Site:
        """Write a template."""
        (self.folder / name).write_text(text)
        return self

    @property
    def state(self) -> AppState:
        """What the app holds."""
        state: AppState = self.app.extensions["streaming"]
        return state

    @property
    def server(self) -> StreamingServer:
        """The server, to look at and to close."""
        assert self._server is not None
        return self._server

    def connect(self, receive_buffer: int | None = None) -> Client:
        """A new connection; closed with the site at the latest."""
        client = Client(self.port, receive_buffer)
        self._clients.append(client)
        return client

    def get(self, path: str = "/pages/page", **how: Any) -> Client:
        """Ask for a page on a new connection."""
        return self.connect().ask(path, **how)

    def is_idle(self) -> bool:
        """Whether every slot, place and buffer has been given back."""
        pool, buffers = self.state.shared.pool, self.state.shared.buffers
        return (pool.open_pages, pool.busy, pool.waiting, buffers.lent) == (0, 0, 0, 0)

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop(timeout=0.1)
            self.state.shared.pool.close()
            self._server = None

    def close(self) -> None:
        """Check that nothing is left in use, and stop."""
        for client in self._clients:
            client.leave()
        until(self.is_idle, "all slots, places and buffers to be given back")
        self.stop()
