"""The real parts of live tests: our server with an app of its own, and clients on raw sockets.

`WebSocket` speaks on frames made by hand; `Answer` reads SSE and NDJSON, from a socket or from Flask's test client.
Both give what comes to a `Fold` (`folding.py`), which judges it. Clients read only when a test waits for something, so
a test can stop reading too. Waiting has a limit everywhere.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import itertools
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlencode

import gevent
from flask import Flask
from gevent import pywsgi
from gevent.pool import Pool

from streaming import Streaming
from streaming.live.channel import Channel
from streaming.live.connection import Connection
from streaming.live.producer import Message, StreamHandle
from streaming.live.subscriber import Subscriber
from streaming.live.views import live_hub
from streaming.server import StreamingServer
from streaming.state import AppState
from tests.folding import MAX_MESSAGE, Fold, sse_events
from tests.parts import LIMIT, Client, until

GOING_ON, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x37\xfa\x21\x3d"
KEY = base64.b64encode(b"sixteen bytes...").decode()
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
UPGRADE = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"

Frame = dict[str, Any]
#: How a response leaves: on the socket taken from our server; as an iterable pulled by a WSGI server that tells the
#: client's socket; the same in Flask's test client, without any socket.
Way = Literal["socket", "iterable", "flask"]
Form = Literal["events", "records"]


# -- WebSocket by hand


def header(opcode: int, length: int, *, fin: bool = True, rsv: int = 0, mask: bytes | None = MASK) -> bytes:
    """The head of a client's frame."""
    form = 0 if length < 126 else 2 if length < 65_536 else 8
    second = {0: length, 2: 126, 8: 127}[form] | (0 if mask is None else 0x80)
    return bytes([fin << 7 | rsv | opcode, second]) + (length.to_bytes(form, "big") if form else b"") + (mask or b"")


def masked(opcode: int, payload: bytes = b"", **how: Any) -> bytes:
    """A whole frame of a client."""
    size = len(payload)
    key = ((how.get("mask", MASK) or bytes(4)) * (size // 4 + 1))[:size]
    hidden = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return header(opcode, size, **how) + hidden.to_bytes(size, "big")


class WebSocket:
    """A client's side of a WebSocket.

    Attributes:
        messages: the arrays that came, each a list of frames. frames: all of them.
        sizes: the bytes of each message.
        folds: by stream, who applies its frames.
        pings: payloads of the PINGs that came; they are answered if `answers_pings`.
        pongs: payloads of the PONGs that came.
        closed: code and reason of the CLOSE that came; None before it.
        is_gone: the connection has ended.
        head: the answer to the handshake.
    """

    def __init__(self, client: Client, path: str, headers: str) -> None:
        self.client = client
        self.messages: list[list[Frame]] = []
        self.frames: list[Frame] = []
        self.sizes: list[int] = []
        self.folds: dict[str, Fold] = {}
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self.answers_pings = True
        self.closed: tuple[int | None, str] | None = None
        self.is_gone = False
        self._asked: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        client.ask(path, headers=UPGRADE + headers)
        status, self.head = client.head()
        assert status == 101, client.received
        accept = base64.b64encode(hashlib.sha1((KEY + GUID).encode(), usedforsecurity=False).digest()).decode()
        assert f"\r\nSec-WebSocket-Accept: {accept}\r\n".encode() in client.received
        client.received = client.received.split(b"\r\n\r\n", 1)[1]
        self._take()

    # -- out

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.client.send(data)

    def say(self, *frames: Frame) -> None:
        """Send a message: one frame as an object, several as an array."""
        value = frames[0] if len(frames) == 1 else list(frames)
        self.send(masked(TEXT, json.dumps(value).encode()))

    def subscribe(self, sid: str, fold: Fold | None = None, **members: Any) -> Fold:
        """Subscribe with the cursor of `fold`, a new one if there is none; its frames go there from now on."""
        fold = self.folds[sid] = fold or Fold(sid)
        self.say({"t": "subscribe", "sid": sid, "cursor": fold.subscribe(), **members})
        return fold

    def subscribed(self, sid: str, fold: Fold | None = None, **members: Any) -> Fold:
        """Subscribe, and wait for the answer."""
        fold = self.subscribe(sid, fold, **members)
        count = fold.greetings
        self.wait(lambda: fold.greetings > count, "subscribed or reset")
        return fold

    def close(self, code: int | None = 1000, reason: str = "") -> None:
        """Send a CLOSE frame."""
        self.send(masked(CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason.encode()))

    def leave(self, *, reset: bool = False) -> None:
        """Go without a word."""
        self.client.leave(reset=reset)

    # -- in

    def wait(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        """Read until the condition holds; fail the test if the server closes before, or is silent for too long."""
        with gevent.Timeout(2 * LIMIT, AssertionError(f"waited {2 * LIMIT} s for {what}")):
            while not condition():
                try:
                    assert self.pull(), f"the connection ended ({self.closed}) before {what}: {self.frames[-3:]}"
                except TimeoutError:
                    raise AssertionError(f"nothing came, waiting for {what}: {self.frames[-3:]}") from None

    def pull(self) -> bool:
        """Read what is there, waiting for something; False at the end."""
        if not self.client.receive():
            self.is_gone = True
            return False
        self._take()
        return True

    def answer(self, t: str) -> Frame:
        """The next frame of this name: the first that was not asked for before. Waits for it."""
        count = self._asked[t]
        self._asked[t] += 1
        self.wait(lambda: len(self.named(t)) > count, t)
        return self.named(t)[count]

    def settle(self) -> None:
        """Wait until the server has handled all that was sent so far, and its answers are here."""
        number = f"settle {next(self._numbers)}"
        self.say({"t": "ping", "id": number})
        self.wait(lambda: any(pong.get("id") == number for pong in self.named("pong")), "pong")

    def end(self) -> tuple[int | None, str]:
        """Read to the connection's end; code and reason of the CLOSE before it."""
        with gevent.Timeout(2 * LIMIT, AssertionError("the server does not close")):
            while self.pull():
                pass
        assert self.closed is not None, "the connection ended without a CLOSE frame"
        return self.closed

    def named(self, t: str, sid: str | None = None) -> list[Frame]:
        """The frames of one name, of one stream if it is given."""
        return [frame for frame in self.frames if frame["t"] == t and sid in (None, frame.get("sid"))]

    def _take(self) -> None:
        data, start = self.client.received, 0
        while len(data) - start >= 2:
            opcode, length, begin = data[start] & 0x0F, data[start + 1], start + 2
            assert data[start] & 0xF0 == 0x80, "a fragment, or a reserved bit"
            assert length < 128, "a masked frame of a server"
            if length >= 126:
                longer = 2 if length == 126 else 8
                length, begin = int.from_bytes(data[begin : begin + longer], "big"), begin + longer
            if len(data) < begin + length:
                break
            start = begin + length
            self._frame(opcode, data[begin:start])
        self.client.received = data[start:]

    def _frame(self, opcode: int, payload: bytes) -> None:
        assert self.closed is None, "something behind the CLOSE frame"
        if opcode == TEXT:
            self._message(payload)
        elif opcode == PING:
            self.pings.append(payload)
            if self.answers_pings:
                self.send(masked(PONG, payload))
        elif opcode == PONG:
            self.pongs.append(payload)
        else:
            assert opcode == CLOSE
            self.closed = (int.from_bytes(payload[:2], "big") if payload else None, payload[2:].decode())

    def _message(self, payload: bytes) -> None:
        found = json.loads(payload)
        assert isinstance(found, list), "a message that is not an array"
        assert found, "an empty message"
        assert len(payload) <= MAX_MESSAGE or len(found) == 1, f"{len(found)} frames in {len(payload)} bytes"
        self.messages.append(found)
        self.sizes.append(len(payload))
        for frame in found:
            self.frames.append(frame)
            fold = self.folds.get(frame.get("sid", ""))
            if fold is not None:
                fold.apply(frame)


# -- SSE, NDJSON


class Answer:
    """A streamed response: what came, as messages and as frames.

    Attributes:
        status, headers: names in lower case.
        chunks: what came at a time: an HTTP chunk, or what was pulled.
        frames: all that came. messages: the same, by chunk.
        ids: of each SSE event, the cursor token.
        fold: who applies the frames; None for the activity of many streams.
        is_whole: the body came to its proper end.
        is_gone: nothing comes any more.
    """

    status: int
    headers: dict[str, str]

    def __init__(self, fold: Fold | None) -> None:
        self.chunks: list[bytes] = []
        self.messages: list[list[Frame]] = []
        self.frames: list[Frame] = []
        self.ids: list[str | None] = []
        self.fold = fold
        self._rest = b""
        self.is_whole = False
        self.is_gone = False

    @property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        """The body of a plain answer."""
        return json.loads(self.body)

    def pull(self) -> bool:
        """Wait for something; False at the end."""
        raise NotImplementedError

    def leave(self, *, reset: bool = False) -> None:
        """The client goes."""
        raise NotImplementedError

    def wait(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        """Read until the condition holds; fail the test if the response ends before, or nothing comes for too long."""
        with gevent.Timeout(2 * LIMIT, AssertionError(f"waited {2 * LIMIT} s for {what}; {self.frames[-3:]}")):
            while not condition():
                assert self.pull(), f"the response ended before {what}: {self.frames[-3:]}"

    def read(self) -> Answer:
        """Read to the end."""
        with gevent.Timeout(2 * LIMIT, AssertionError("the response does not end")):
            while self.pull():
                pass
        return self

    def named(self, t: str) -> list[Frame]:
        """The frames of one name."""
        return [frame for frame in self.frames if frame["t"] == t]

    def _add(self, data: bytes) -> None:
        self.chunks.append(data)
        kind = self.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            data, self._rest = self._rest + data, b""
            if not data.endswith(b"\n\n"):  # `retry` alone, before an event too large to go with it
                self._rest = data
                return
            self.ids += [identity for _, identity, _ in sse_events(data)]
            found = [frame for _, _, frame in sse_events(data)]
            if self.fold is not None:
                self.fold.read_sse(data)
        elif kind == "application/x-ndjson":
            found = [json.loads(line) for line in data.splitlines()]
            if self.fold is not None:
                self.fold.read_lines(data)
        else:
            return
        self.frames += found
        self.messages.append(found)


class SocketAnswer(Answer):
    """The same on a raw socket; each HTTP chunk must hold whole frames."""

    def __init__(self, client: Client, fold: Fold | None, *, has_body: bool = True) -> None:
        super().__init__(fold)
        self.client = client
        self.status, self.headers = client.head()
        self.raw_head, client.received = client.received.split(b"\r\n\r\n", 1)
        self._is_chunked = self.headers.get("transfer-encoding") == "chunked"
        self._length = int(self.headers["content-length"]) if "content-length" in self.headers else None
        if not has_body or self.status in (101, 204, 304):
            self._length = 0
        self._take()

    def pull(self) -> bool:
        """Wait for something; False at the end."""
        if self.is_whole or not self.client.receive():
            self.is_gone = True
            return False
        self._take()
        return True

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection."""
        self.client.leave(reset=reset)

    def _take(self) -> None:
        if self._length is not None:
            if len(self.client.received) >= self._length:
                self.is_whole = True
                self._add(self.client.received)
            return
        if not self._is_chunked:  # HTTP/1.0
            data, end = self.client.received, self.client.received.rfind(b"\n\n") + 2
            if end > 1:
                self.client.received = data[end:]
                self._add(data[:end])
            return
        while b"\r\n" in self.client.received:
            size, rest = self.client.received.split(b"\r\n", 1)
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            assert rest[length : length + 2] == b"\r\n"
            self.client.received = rest[length + 2 :]
            if not length:
                self.is_whole = True
                assert not self.client.received, "bytes behind the last chunk"
                return
            self._add(rest[:length])


class PulledAnswer(Answer):
    """The same from Flask's test client: pulling runs the app."""

    def __init__(self, response: Any, fold: Fold | None) -> None:
        super().__init__(fold)
        self._response = response
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers}
        self._iterator: Iterator[bytes] = iter(response.response)

    def pull(self) -> bool:
        """Pull; False at the end."""
        with gevent.Timeout(LIMIT, AssertionError(f"nothing came: {self.frames[-3:]}")):
            data = next(self._iterator, None)
        if data is None:
            self.is_whole = self.is_gone = True
            return False
        if data:
            self._add(data)
        return True

    def leave(self, *, reset: bool = False) -> None:
        """Do what a server does when its client has gone."""
        self._response.close()


# -- the server


class _PlainHandler(pywsgi.WSGIHandler):
    """A server that is not ours, and tells the client's socket as gunicorn's gevent worker does."""

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        environ["gunicorn.socket"] = self.socket
        return environ

    def handle_error(self, kind: Any, error: Any, found: Any) -> None:
        if not isinstance(error, OSError):
            super().handle_error(kind, error, found)


def _new_greenlets() -> list[gevent.Greenlet]:
    """The greenlets that are alive and younger than the last `gc.freeze`."""
    return [each for each in gc.get_objects() if issubclass(type(each), gevent.Greenlet) and not each.dead]


class LiveSite:
    """Our server with an app of its own, for live tests.

    Attributes:
        way: how `follow` and `ask` reach the app; "iterable" serves it with a server that is not ours.
        app, streaming: the app and its `Streaming`: set an authorizer, or wrap `app.wsgi_app`.
    """

    def __init__(self, way: Way = "socket") -> None:
        self.way = way
        self._server: pywsgi.WSGIServer | None = None
        self._answers: list[Answer] = []
        self._clients: list[Client] = []
        gc.freeze()  # what is found later is of this test, and looking for it is cheap
        self.configure(way)

    def configure(self, way: Way | None = None, **settings: Any) -> LiveSite:
        """Start anew with these STREAMING_* settings, named without prefix, in lower case.

        Unless it is said otherwise, intervals are short and clients may say as much as they like.
        """
        self.stop()
        self.way = way or self.way
        self.streaming = Streaming()
        self.app = Flask("tests.live")
        self.app.secret_key = "not a secret"
        config = {
            "flush_interval": 0.02,
            "background_interval": 0.1,
            "drain_timeout": 0,
            "inbound_rate": 100_000,
        } | settings
        self.app.config.update({f"STREAMING_{name.upper()}": value for name, value in config.items()})
        self.streaming.init_app(self.app)
        options = {"spawn": Pool(), "log": None}
        if self.way == "iterable":
            self._server = pywsgi.WSGIServer(("127.0.0.1", 0), self.app, handler_class=_PlainHandler, **options)
        else:
            self._server = StreamingServer(("127.0.0.1", 0), self.app, **options)
        self._server.start()
        self.port = self._server.server_port
        self.hub = live_hub(self.state)
        self._descriptors = _descriptors()
        return self

    @property
    def state(self) -> AppState:
        """What the app holds."""
        state: AppState = self.app.extensions["streaming"]
        return state

    @property
    def server(self) -> StreamingServer:
        """The server, to close."""
        assert isinstance(self._server, StreamingServer)
        return self._server

    # -- producing and looking inside

    def stream(self, sid: str) -> StreamHandle:
        """A stream, to write to."""
        with self.app.app_context():
            return self.streaming.stream(sid)

    def message(self, sid: str, **how: Any) -> Message:
        """Start a message."""
        return self.stream(sid).message(**how)

    def spawn(self, function: Callable[..., Any], *args: Any) -> gevent.Greenlet:
        """Run a producer."""
        with self.app.app_context():
            return self.streaming.spawn(function, *args)

    def channel(self, sid: str) -> Channel:
        """A stream's inside."""
        return self.hub.channels[sid]

    @property
    def connection(self) -> Connection:
        """The only connection."""
        (connection,) = self.hub.connections
        return connection

    @property
    def subscribers(self) -> list[Subscriber]:
        """Those of all streams."""
        return [
            subscriber
            for channel in self.hub.channels.values()
            for subscriber in [*channel.followers, *channel.background]
        ]

    # -- clients

    def connect(self, receive_buffer: int | None = None) -> Client:
        """A new connection; closed with the site at the latest."""
        client = Client(self.port, receive_buffer)
        client._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients.append(client)
        return client

    def websocket(self, query: str = "", headers: str = "", receive_buffer: int | None = None) -> WebSocket:
        """A new WebSocket; its `hello` has come."""
        websocket = WebSocket(self.connect(receive_buffer), f"/streams/ws{query}", headers)
        websocket.wait(lambda: websocket.messages, "hello")
        return websocket

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        fold: Fold | None = None,
        **how: Any,
    ) -> Answer:
        """Send a request; the answer's head has come, its body is to be read."""
        headers = dict(headers or {})
        if self.way == "flask":
            environ = {"REMOTE_ADDR": "127.0.0.1"}
            response = self.app.test_client(use_cookies=False).open(
                path, method=method, headers=headers, data=body, environ_base=environ, buffered=False
            )
            answer: Answer = PulledAnswer(response, fold)
        else:
            if body or method == "POST":
                headers["Content-Length"] = str(len(body))
            client = self.connect(how.pop("receive_buffer", None))
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            client.ask(path, method=method, headers=lines, **how)
            if body:
                client.send(body)
            answer = SocketAnswer(client, fold, has_body=method != "HEAD")
        self._answers.append(answer)
        return answer

    def post(self, path: str, value: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Post JSON and read the answer."""
        body = b"" if value is None else json.dumps(value).encode()
        kind = {} if value is None else {"Content-Type": "application/json"}
        return self.ask(path, "POST", {**kind, **(headers or {})}, body).read()

    def get(self, path: str, **how: Any) -> Answer:
        """Ask, and read the answer to its end."""
        return self.ask(path, **how).read()

    def follow(
        self, form: Form, sid: str, fold: Fold | None = None, *, by: str = "query", headers: Any = None, **query: Any
    ) -> Answer:
        """Follow a stream as SSE or NDJSON with the cursor of `fold`, in the query or as `Last-Event-ID`."""
        fold = fold or Fold(sid, cumulative=query.get("deltas") == "0")
        token = fold.subscribe()
        headers = dict(headers or {})
        if token is not None:
            if by == "query":
                query["cursor"] = token
            else:
                headers["Last-Event-ID"] = token
        return self.ask(f"/streams/{sid}/{form}?{urlencode(query)}", headers=headers, fold=fold)

    # -- the end

    def is_idle(self) -> bool:
        """Nobody is connected and nobody subscribed."""
        return not (self.hub.connections or self.subscribers or self.hub._addresses)

    def check_idle(self) -> None:
        """Wait until connections, subscribers, descriptors and greenlets are what they were before the first client."""
        until(self.is_idle, f"all connections to end: {len(self.hub.connections)}, {len(self.subscribers)} subscribers")
        until(lambda: _descriptors() <= self._descriptors, "descriptors to be closed")
        own = {self.hub.flusher._greenlet, self.hub.sweeper._greenlet}
        left = [each for each in _new_greenlets() if each not in own]
        until(lambda: all(each.dead for each in left), f"greenlets to end: {left}")

    def leave(self) -> None:
        """All clients go."""
        for answer in self._answers:
            answer.leave()
        for client in self._clients:
            with suppress(OSError):
                client.leave()
        self._answers, self._clients = [], []

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop(timeout=1)
            self.hub.close()
            self._server = None

    def close(self) -> None:
        """All clients go; check that nothing is left of them, and stop."""
        try:
            self.leave()
            if not self.hub.is_draining:  # a server that drains looks once more when its time is over
                self.check_idle()
        finally:
            self.stop()
            gc.unfreeze()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def texts(frames: list[Frame], p: int | None = None) -> list[str]:
    """The texts of the deltas among frames, of one part if it is given."""
    return [frame["s"] for frame in frames if frame["t"] == "delta" and p in (None, frame["p"])]


def kinds(frames: list[Frame]) -> list[str]:
    """The frames' names; of events their kinds."""
    return [frame["k"] if frame["t"] == "event" else frame["t"] for frame in frames]
