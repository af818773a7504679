"""A WebSocket connection: what its client says, and the answers (docs/live-protocol.md, "Frames of the client").

Who runs what: while there is input, a greenlet of the connection's own reads, parses and handles it, frame by frame; it
ends when there is no more. It may wait, for the app's authorizer or handler. It reads on only when the answers are on
their way, so a client that does not read can't make us keep answers. Sending is the flusher's, as for all connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from ..errors import Refused
from ..protocol.frames import Frame, frame, hello_frame
from ..protocol.grammar import is_kind, is_mid, is_own_kind, is_sid
from ..protocol.jsontext import decode_json
from ..turns import breathe, give_way, is_late
from .access import Visitor
from .sockets import SocketConnection
from .transports.websocket import (
    MAX_CONTROL,
    WEBSOCKET,
    Close,
    Ping,
    Pong,
    ProtocolError,
    Reader,
    Received,
    Text,
    encode_close,
    encode_ping,
    encode_pong,
)  # fmt: skip

if TYPE_CHECKING:
    from .hub import Hub

log = logging.getLogger("streaming.live")

#: Messages that a client may send at once; after that, STREAMING_INBOUND_RATE a second.
BURST = 200
#: Messages dropped in a row after which the connection is closed.
MAX_DROPPED = 200
#: Heartbeats without an answer after which the connection is closed.
MAX_PINGS = 2
#: Bytes of a control frame, with its header.
MAX_CONTROL_FRAME = MAX_CONTROL + 6
#: Codes of `error` frames that are counted when they are sent; the others were when a limit refused.
COUNTED = frozenset({"bad_frame", "forbidden", "unknown_stream"})
Members = dict[str, Any]


class BadFrame(Exception):
    """A client's frame that can't be understood; the text says why."""


class WebSocketConnection(SocketConnection):
    """One WebSocket."""

    __slots__ = (
        "_allowance", "_allowed_at", "_dropped", "_is_reading", "_out", "_ping", "_pinged_at", "_pings", "_pong",
        "_reader", "_visitor",
    )  # fmt: skip

    def __init__(self, hub: Hub, address: str, visitor: Visitor, *, deltas: bool) -> None:
        super().__init__(hub, WEBSOCKET, address, deltas=deltas)
        settings = hub.settings
        self._visitor = visitor
        self._reader = Reader(settings.max_inbound)
        self._is_reading = False
        self._out: Event | None = None
        self._ping = False
        self._pings = 0
        self._pinged_at = 0.0
        self._pong: bytes | None = None
        self._allowance = max(BURST, settings.inbound_rate)
        self._allowed_at = monotonic()
        self._dropped = 0
        self.reply(
            hello_frame(
                flush_ms=round(settings.flush_interval * 1_000),
                background_ms=round(settings.background_interval * 1_000),
                ping_s=round(settings.ping_interval),
                max_in=settings.max_inbound,
            )
        )

    @property
    def is_asking(self) -> bool:
        """What it sent is being handled; the app may take its time."""
        return self._is_reading

    # -- out

    @property
    def has_more(self) -> bool:
        """Something is to be sent."""
        return super().has_more or self._pong is not None or self._ping

    def compose(self, now: float) -> bytes | None:
        """The next message, behind the control frames that are due."""
        control = b""
        if self._pong is not None:
            control, self._pong = encode_pong(self._pong), None
        if self._ping:
            control, self._ping = control + encode_ping(), False
        data = super().compose(now)
        if self._out is not None and self._replies is None:
            self._out.set()
        return data if not control else control + (data or b"")

    def close_with(self, code: int | None, reason: str) -> None:
        """Send a CLOSE frame before anything else that is due, then close."""
        self._pong, self._ping = None, False
        self.end(encode_close(code, reason), at_once=True)

    @property
    def silent_since(self) -> float:
        """Since when a heartbeat is counted: since something came, the client read of a tail, or the last heartbeat."""
        if self._is_reading:  # nobody could see it answer
            return monotonic()
        return max(self.heard_at, self.progress_at, self._pinged_at)

    def _beat(self, now: float) -> None:
        if self._pings and self._has_moved():  # it still reads what lies before our PING
            self.progress_at = now
            return
        if self._pings >= MAX_PINGS:
            self.hub.counts.closed["no_heartbeat"] += 1
            self.close_with(4408, "no heartbeat")
            return
        self._pings += 1
        self._pinged_at = now
        self._ping = True
        self.wake()

    def cut(self) -> None:
        """Close at once. Idempotent; may be called from the hub."""
        super().cut()
        if self._out is not None:
            self._out.set()

    # -- in

    def receive(self) -> bytes | None:
        """What has come; anything that does is a sign of life."""
        data = super().receive()
        if data:
            self._pings = 0
        return data

    def received(self, data: bytes) -> None:
        """The client has sent something: read on in a greenlet. May run in the hub."""
        if self.is_ending:
            super().received(data)
            if self._is_last and any(isinstance(item, Close) for item in self._reader.feed(data)):
                self.cut()
            return
        items: Iterable[Received] = self._later(data)
        if len(data) <= MAX_CONTROL_FRAME and self._reader.is_between_frames:
            items = self._reader.feed(data)
            if all(isinstance(item, Pong) for item in items):
                return  # what an idle client sends; no greenlet is started for it
        if self._reading is not None:
            self._reading.stop()
        self._is_reading = True
        gevent.spawn(self._read, items)

    def _later(self, data: bytes) -> Iterator[Received]:
        """What the bytes complete, looked for when it is asked for: it can take milliseconds."""
        yield from self._reader.feed(data)

    def listen(self) -> None:
        """Watch for input, unless it is being handled."""
        if not self._is_reading:
            super().listen()

    def _read(self, items: Iterable[Received] | None) -> None:
        """Handle what has come until nothing more does. Runs in a greenlet of its own; the app may make it wait."""
        try:
            while items is not None and not self.is_ending and not self.is_closed:
                for item in items:
                    self._handle(item)
                    self._wait_for_replies()
                    breathe()
                breathe()
                data = None if self.is_closed else self.receive()
                items = None if data is None else self._reader.feed(data)
        except (Exception, gevent.Timeout):
            log.exception("a client's frame could not be handled; its connection is closed")
            self.close_with(1011, "internal error")
        finally:
            self._is_reading = False
            self.heard_at = monotonic()  # what it sent meanwhile was not read
            if not self.is_closed:
                self.listen()

    def _wait_for_replies(self) -> None:
        while self._replies is not None and not self.is_closed:
            if self._out is None:
                self._out = Event()
            self._out.clear()
            self._out.wait()
        self._out = None

    def _handle(self, item: Received) -> None:
        if isinstance(item, Text):
            if not self.is_ending:
                self._message(item.text)
        elif isinstance(item, Ping):
            self._pong = item.payload
            self.wake()
        elif isinstance(item, Close):
            self.close_with(item.code, "")
        elif isinstance(item, ProtocolError):
            self.hub.counts.refused["max_inbound" if item.code == 1009 else f"close_{item.code}"] += 1
            self.close_with(item.code, item.reason)

    def _message(self, text: str) -> None:
        """Handle one text message: a frame, or an array of frames."""
        if not self._is_within_rate():
            return
        try:
            message = decode_json(text.encode())
        except ValueError as error:
            self._refuse("bad_frame", str(error))
            return
        for one in message if isinstance(message, list) else [message]:
            self._frame(one)
            if is_late():
                self._wait_for_replies()
                give_way()

    def _is_within_rate(self) -> bool:
        rate = self.hub.settings.inbound_rate
        seconds = int(monotonic() - self._allowed_at)
        if seconds:
            # In steps of a second, so that a client that never slows down has 200 dropped in a row before the next.
            self._allowance = min(max(BURST, rate), self._allowance + seconds * rate)
            self._allowed_at += seconds
        if self._allowance >= 1:
            self._allowance -= 1
            self._dropped = 0
            return True
        self._dropped += 1
        self.hub.counts.refused["inbound_rate"] += 1
        if self._dropped >= MAX_DROPPED:
            self.hub.counts.closed["rate"] += 1
            self.close_with(4429, "too many messages")
        else:
            self._refuse("rate", f"more than {rate} messages a second; this one was dropped")
        return False

    def _frame(self, one: Any) -> None:
        try:
            if not isinstance(one, dict) or not isinstance(one.get("t"), str):
                raise BadFrame("a frame is an object with a name `t`")
            handler = _HANDLERS.get(one["t"])
            if handler is None:
                raise BadFrame(f"no frame is called that; there are {', '.join(_HANDLERS)}")
            handler(self, one)
        except BadFrame as error:
            self._refuse("bad_frame", str(error), one)
        except Refused as error:
            self._refuse(error.code, error.message, one)

    def _refuse(self, code: str, message: str, one: Any = None) -> None:
        """Answer with an `error` frame; it names the stream, and the `id`, of the frame that is refused."""
        if code in COUNTED:
            self.hub.counts.refused[code] += 1
        members = one if isinstance(one, dict) else {}
        sid, identity = members.get("sid"), members.get("id")
        self.reply(
            frame(
                "error",
                code=code,
                msg=message,
                sid=sid if is_sid(sid) else None,
                id=identity if _is_identity(identity) else None,
            )
        )

    def _check(self, action: str, sid: str) -> None:
        if not self._visitor.allows(action, sid):
            raise Refused("forbidden", f"{action} is not allowed for this stream")

    # -- the client's frames; each runs in the reading greenlet

    def _subscribe(self, members: Members) -> None:
        sid, token = _sid(members), members.get("cursor")
        mode = members.get("mode", "full")
        if not isinstance(token, str | None):
            raise BadFrame("`cursor` is a string, or null")
        if mode not in ("full", "activity"):
            raise BadFrame("`mode` is full or activity")
        self._check("read", sid)
        if not self.is_closed and not self.is_ending:
            self.hub.subscribe(self, sid, token, follows=mode == "full", greets=True)

    def _unsubscribe(self, members: Members) -> None:
        sid = _sid(members)
        if sid not in self.subscribers:
            raise Refused("unknown_stream", "this connection has no such stream")
        self.hub.unsubscribe(self.subscribers[sid])

    def _focus(self, members: Members) -> None:
        sids = members.get("sids")
        limit = self.hub.settings.max_subscriptions
        if not isinstance(sids, list) or len(sids) > limit or not all(is_sid(sid) for sid in sids):
            raise BadFrame(f"`sids` is a list of stream ids, at most {limit}")
        focused = dict.fromkeys(sids)
        for sid, subscriber in self.subscribers.items():
            self.hub.follow(subscriber, follows=sid in focused)
        for sid in focused:
            if sid not in self.subscribers:
                self._refuse("unknown_stream", "this connection has no such stream", {"sid": sid})

    def _visibility(self, members: Members) -> None:
        if not isinstance(members.get("hidden"), bool):
            raise BadFrame("`hidden` is true or false")
        self.hub.hide(self, hidden=members["hidden"])

    def _cancel(self, members: Members) -> None:
        sid, mid = _sid(members), members.get("mid")
        if mid is not None and not is_mid(mid):
            raise BadFrame("`mid` is a message id")
        self._check("cancel", sid)
        channel = self.hub.channels.get(sid)
        if channel is None:
            raise Refused("unknown_stream", "there is no such stream")
        self.hub.cancel(channel, mid)

    def _publish(self, members: Members) -> None:
        sid, kind, identity = _sid(members), members.get("k"), members.get("id")
        if not is_kind(kind) or is_own_kind(kind):
            raise BadFrame("`k` is a kind of the app's events")
        if "d" not in members:
            raise BadFrame("`d` is missing")
        if not _is_identity(identity):
            raise BadFrame("`id` is a string or a whole number")
        self._check("publish", sid)
        is_done, result = self._visitor.publish(kind, sid, members["d"])
        self.reply(_ack(identity, is_done, result))

    def _answer_ping(self, members: Members) -> None:
        identity = members.get("id")
        if not _is_identity(identity):
            raise BadFrame("`id` is a string or a whole number")
        self.reply(frame("pong", id=identity))


_HANDLERS: dict[str, Callable[[WebSocketConnection, Members], None]] = {
    "subscribe": WebSocketConnection._subscribe,
    "unsubscribe": WebSocketConnection._unsubscribe,
    "focus": WebSocketConnection._focus,
    "visibility": WebSocketConnection._visibility,
    "cancel": WebSocketConnection._cancel,
    "publish": WebSocketConnection._publish,
    "ping": WebSocketConnection._answer_ping,
}


def _is_identity(identity: Any) -> bool:
    """Whether this can be a client's `id` for a frame, or is none; it goes back to it as it came."""
    return not isinstance(identity, bool) and isinstance(identity, str | int | None)


def _sid(members: Members) -> str:
    sid = members.get("sid")
    if not is_sid(sid):
        raise BadFrame("`sid` is a stream id")
    return sid


def _ack(identity: str | int | None, is_done: bool, result: Any) -> Frame:
    """The answer to `publish`; what the app's handler returned goes back in it."""
    if not is_done:
        return frame("ack", id=identity, ok=False, error=result)
    try:
        return frame("ack", id=identity, ok=True, d=result)
    except ValueError as error:
        log.error("what a handler returned can't be sent: %s", error)
        return frame("ack", id=identity, ok=False, error="failed")
