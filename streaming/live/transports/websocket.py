"""WebSocket on the wire: frames in, frames out, and how a cut looks there. Source: RFC 6455; sections are its own.

Theory of operation. Bytes come in slices of any size. A frame that is wholly inside a slice is unmasked out of it.
Otherwise up to three things are kept: the beginning of a header, the payload of the frame being read, still masked,
and the payloads of the message's earlier fragments, joined. A control frame between two fragments uses the first two
and leaves the third alone. Between messages none of them exists.

A header is judged before its payload is touched, and a long frame's as soon as its length is known, so that what it
announces costs nothing.
What is kept is bounded by `max_message`, one header and one control frame's payload.

gevent-websocket gives the layout of headers and the opcodes. Its reader and its closing are not
used: the one has no limits and loops over bytes in Python, the other sends no code.

No socket, no greenlet and no clock is in here: bytes in, messages out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

from geventwebsocket.exceptions import ProtocolError as ControlFrameError
from geventwebsocket.websocket import Header, WebSocket

from ...protocol.cut import Cut
from ...protocol.frames import Frame
from .carrier import Carrier

MAX_HEADER = 14  # two bytes, eight of length, four of mask (5.2)
MASK_SIZE = 4  # bytes
MAX_CONTROL = 125  # bytes of a control frame's payload (5.5)
MAX_REASON = MAX_CONTROL - 2  # the code comes before it (5.5.1)

# What the length in a header's second byte says about the longer one behind it (5.2): its bytes, its smallest value.
EXTENDED = {126: 2, 127: 8}
SHORTEST = {126: 126, 127: 65_536}

# Fragments with something in them are bounded by the message's size. Empty ones are legal (5.4) and cost no memory, but
# a message that never ends is never counted as one either. Some senders end every message with an empty fragment; more
# than a few inside one message are of no use to anybody.
MAX_EMPTY_FRAGMENTS = 1_000

OPCODES = frozenset(
    {
        WebSocket.OPCODE_CONTINUATION,
        WebSocket.OPCODE_TEXT,
        WebSocket.OPCODE_BINARY,
        WebSocket.OPCODE_CLOSE,
        WebSocket.OPCODE_PING,
        WebSocket.OPCODE_PONG,
    }
)


class ProtocolError(Exception):
    """The client broke the protocol or passed a limit; the connection is to be closed.

    Attributes:
        code: for our CLOSE frame (7.4.1).
        reason: for our CLOSE frame; nothing in it came from the client.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Text:
    """A whole text message."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """To be answered with `encode_pong` of its payload (5.5.2)."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """An answer to a ping, or a heartbeat that nobody asked for (5.5.3)."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The client's last frame; unless we sent ours before, to be answered with `encode_close` of its code (5.5.1).

    Attributes:
        code: None when the frame was empty.
        reason: what the client says; empty when it says nothing.
    """

    code: int | None
    reason: str


Received = Text | Ping | Pong | Close | ProtocolError


# -- frames in


class Reader:
    """Turns a client's bytes into messages. One for each connection; who feeds it is alone with it.

    Args:
        max_message: bytes that a message may have, all its fragments together.

    Attributes:
        finished: a `Close` or a `ProtocolError` has come out; nothing comes after it, whatever is fed.
    """

    __slots__ = ("_empty_fragments", "_frame", "_head", "_max_message", "_message", "_payload", "finished")

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self.finished = False
        self._forget()

    @property
    def is_between_frames(self) -> bool:
        """Nothing of the next frame has come."""
        return self._frame is None and not self._head

    def feed(self, data: bytes | bytearray | memoryview) -> list[Received]:
        """Take the next slice and return what it completes, in order.

        A `ProtocolError` is not raised: it is the last item, and what comes before it was received all the same. `data`
        may be overwritten afterwards. Small frames cost some microseconds each, so the size of the slices is also the
        limit of the time spent in here.
        """
        received: list[Received] = []
        if self.finished:
            return received
        try:
            for frame, payload in self._frames(memoryview(data)):
                item = self._complete(frame, payload)
                if item is not None:
                    received.append(item)
                if isinstance(item, Close):
                    self.finished = True
                    break
        except ProtocolError as error:
            self.finished = True
            received.append(error.with_traceback(None))  # its frames hold `data`
        if self.finished:
            self._forget()
        return received

    def _forget(self) -> None:
        self._head = b""  # the beginning of a header
        self._frame: Any = None  # the header of the frame being read, judged
        self._payload: bytearray | None = None  # what is here of that frame's payload
        self._message: bytearray | None = None  # earlier fragments, unmasked; None outside a fragmented message
        self._empty_fragments = 0

    def _frames(self, rest: memoryview) -> Iterator[tuple[Any, bytes]]:
        """Yield header and payload of each frame that is complete with `rest`, and keep what is left of it."""
        while True:
            if self._frame is None:
                rest = self._read_head(rest)
                if self._frame is None:
                    return
            frame = self._frame
            kept = 0 if self._payload is None else len(self._payload)
            part: memoryview | bytearray = rest[: frame.length - kept]
            rest = rest[len(part) :]
            if kept or len(part) < frame.length:
                part = self._keep(part)
            if len(part) < frame.length:
                return
            self._frame = self._payload = None
            yield frame, _unmask(part, frame.mask)

    def _keep(self, part: memoryview | bytearray) -> bytearray:
        """Put the next part to what is kept of the frame's payload, and return all of it."""
        if self._payload is None:
            self._payload = bytearray()
        self._payload += part
        return self._payload

    def _read_head(self, rest: memoryview) -> memoryview:
        """Take a header off `rest`; if it is not all there, keep what is."""
        kept = len(self._head)
        head = self._head + rest[: MAX_HEADER - kept]
        size = _head_size(head)
        if len(head) < size:
            if _is_long(head) and len(head) >= size - MASK_SIZE:
                self._admit(_parse_head(head[: size - MASK_SIZE] + bytes(MASK_SIZE)))  # all but the mask is here
            self._head = head
            return rest[len(rest) :]
        self._head = b""
        frame = _parse_head(head[:size])
        self._admit(frame)
        self._frame = frame
        return rest[size - kept :]

    def _admit(self, frame: Any) -> None:
        """Judge a frame's place in the sequence (5.4), its type and its announced length (10.4)."""
        if frame.opcode >= WebSocket.OPCODE_CLOSE:
            return
        if frame.opcode == WebSocket.OPCODE_CONTINUATION and self._message is None:
            raise ProtocolError(1002, "continuation of no message")
        if frame.opcode != WebSocket.OPCODE_CONTINUATION and self._message is not None:
            raise ProtocolError(1002, "new message inside a fragmented one")
        if frame.opcode == WebSocket.OPCODE_BINARY:
            raise ProtocolError(1003, "binary message")
        kept = 0 if self._message is None else len(self._message)
        if kept + frame.length > self._max_message:
            raise ProtocolError(1009, f"message longer than {self._max_message} bytes")

    def _complete(self, frame: Any, payload: bytes) -> Received | None:
        """Return what a frame brings; None for a fragment that is not the last."""
        if frame.opcode == WebSocket.OPCODE_PING:
            return Ping(payload)
        if frame.opcode == WebSocket.OPCODE_PONG:
            return Pong(payload)
        if frame.opcode == WebSocket.OPCODE_CLOSE:
            return _parse_close(payload)
        if self._message is None:
            if frame.fin:
                return Text(_decode(payload, "message"))
            self._message = bytearray()
        self._message += payload
        if not frame.fin:
            self._count_empty(payload)
            return None
        message, self._message, self._empty_fragments = self._message, None, 0
        return Text(_decode(message, "message"))

    def _count_empty(self, fragment: bytes) -> None:
        if not fragment:
            self._empty_fragments += 1
        if self._empty_fragments > MAX_EMPTY_FRAGMENTS:
            raise ProtocolError(1008, f"more than {MAX_EMPTY_FRAGMENTS} empty fragments in a message")


def _head_size(head: bytes) -> int:
    """The bytes of a frame's header, as far as its beginning tells (5.2)."""
    if len(head) < 2:
        return 2
    length = head[1] & Header.LENGTH_MASK
    mask = MASK_SIZE if head[1] & Header.MASK_MASK else 0
    return 2 + EXTENDED.get(length, 0) + mask


def _is_long(head: bytes) -> bool:
    """Whether a header, of which the beginning is here, has a mask behind a length of its own."""
    return len(head) >= 2 and bool(head[1] & Header.MASK_MASK) and head[1] & Header.LENGTH_MASK in EXTENDED


def _parse_head(head: bytes) -> Any:
    """Return a whole header, checked for what holds of every client's frame (5.1, 5.2, 5.5)."""
    try:
        frame = Header.decode_header(BytesIO(head))
    except ControlFrameError:
        frame = None
    if frame is None:
        raise ProtocolError(1002, f"control frame in fragments or longer than {MAX_CONTROL} bytes")
    if frame.flags:
        raise ProtocolError(1002, "reserved bit set")
    if frame.opcode not in OPCODES:
        raise ProtocolError(1002, "unknown opcode")
    if not frame.mask:
        raise ProtocolError(1002, "frame not masked")
    if frame.length >> 63:
        raise ProtocolError(1002, "length of more than 63 bits")
    if frame.length < SHORTEST.get(head[1] & Header.LENGTH_MASK, 0):
        raise ProtocolError(1002, "length not in its shortest form")
    return frame


def _unmask(payload: bytearray | memoryview, mask: bytes) -> bytes:
    """Undo the mask (5.3) with one XOR of two large integers; the library's loop takes twenty times as long."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def _parse_close(payload: bytes) -> Close:
    """Read a CLOSE frame's payload (5.5.1)."""
    if not payload:
        return Close(None, "")
    if len(payload) == 1:
        raise ProtocolError(1002, "close payload of one byte")
    code = int.from_bytes(payload[:2], "big")
    if not _is_close_code(code):
        raise ProtocolError(1002, "invalid close code")
    return Close(code, _decode(payload[2:], "close reason"))


def _is_close_code(code: int) -> bool:
    """Whether a CLOSE frame may hold this code (7.4): those in use, up to 1014, and those of libraries and apps."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _decode(payload: bytes | bytearray, what: str) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        pass  # not the context of the error below: it holds the payload
    raise ProtocolError(1007, f"{what} not UTF-8")


# -- frames out


def encode_message(payload: bytes) -> bytes:
    """Return one text frame. `payload` is UTF-8 already."""
    return _message_head(len(payload)) + payload


@lru_cache(maxsize=1_024)  # most messages are short, and making a header takes 4 us
def _message_head(length: int) -> bytes:
    return bytes(Header.encode_header(True, WebSocket.OPCODE_TEXT, b"", length, 0))


def encode_ping(payload: bytes = b"") -> bytes:
    """Return a PING frame; its payload comes back in a PONG.

    Raises:
        ValueError: more than 125 bytes.
    """
    return _encode_control(WebSocket.OPCODE_PING, payload)


def encode_pong(payload: bytes) -> bytes:
    """Return a PONG frame, the answer to a PING with this payload.

    Raises:
        ValueError: more than 125 bytes; no `Ping` has as many.
    """
    return _encode_control(WebSocket.OPCODE_PONG, payload)


def encode_close(code: int | None, reason: str = "") -> bytes:
    """Return a CLOSE frame; `reason` is cut to 123 bytes of UTF-8, between two characters.

    Without a code the frame is empty and the reason is dropped: the answer to a `Close` that had no code.

    Raises:
        ValueError: the code is one that must not be sent (7.4).
    """
    if code is None:
        return _encode_control(WebSocket.OPCODE_CLOSE, b"")
    if not _is_close_code(code):
        raise ValueError(f"{code} must not be sent as a close code")
    text = reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore")
    return _encode_control(WebSocket.OPCODE_CLOSE, code.to_bytes(2, "big") + text.encode())


def _encode_control(opcode: int, payload: bytes) -> bytes:
    if len(payload) > MAX_CONTROL:
        raise ValueError(f"a control frame holds {MAX_CONTROL} bytes, not {len(payload)}")
    return bytes(Header.encode_header(True, opcode, b"", len(payload), 0)) + payload


# -- the carrier


class WebSocketCarrier(Carrier):
    """Frames of the live protocol as one text message: a JSON array."""

    form = "websocket"

    def encode(self, cut: Cut, epoch: str) -> bytes:
        """All frames of a cut, with commas between them."""
        return cut.joined

    def frame(self, frame: Frame, token: str | None = None) -> bytes:
        """One frame; the client keeps the cursor itself."""
        return frame.json

    def wrap(self, items: list[bytes]) -> bytes:
        """The items in one array, in one message."""
        return encode_message(b"[" + b",".join(items) + b"]")

    def ending(self, code: int, reason: str) -> bytes:
        """A CLOSE frame."""
        return encode_close(code, reason)


WEBSOCKET = WebSocketCarrier()
