"""The frames of the live protocol, encoded (docs/live-protocol.md, "Frames").

A `Frame` is one JSON object as bytes, with what a carrier needs to know about it: its name, and how it moves a cursor.
Ids come from outside, but only after their grammar was checked, and no grammar allows a character that JSON escapes: so
they are put in as they are. Everything else is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from .jsontext import encode_json, encode_text
from .log import LogEntry
from .text import Part

PROTO = 1
MAX_DELTA = 16_384  # code points
#: Bytes of one WebSocket message; a single larger frame travels alone.
MAX_MESSAGE = 262_144


class Frame:
    """One encoded frame.

    Attributes:
        t: its name.
        json: the object.
        seq: of a durable event, which it moves the cursor to; 0 for other frames.
        p: the part whose offset it moves, or that it ends; 0 for none.
        end: the offset moved to; -1 when the part ends.
    """

    __slots__ = ("end", "json", "p", "seq", "t")

    def __init__(self, t: str, json: bytes, seq: int = 0, p: int = 0, end: int = 0) -> None:
        self.t = t
        self.json = json
        self.seq = seq
        self.p = p
        self.end = end


def frame(t: str, **members: Any) -> Frame:
    """A frame of plain members; those that are None are left out."""
    return Frame(t, encode_json({"t": t, **{name: value for name, value in members.items() if value is not None}}))


def event_frame(sid: str, entry: LogEntry, data: bytes | None = None) -> Frame:
    """A durable event; `data` in place of the entry's own."""
    part = entry.part
    json = _event("event", sid, entry.seq, entry.kind, entry.data if data is None else data)
    return Frame("event", json, entry.seq, 0 if part is None else part.p, 0 if part is None else -1)


def notify_frame(sid: str, entry: LogEntry) -> Frame:
    """An urgent event, for those who do not follow its stream."""
    return Frame("notify", _event("notify", sid, entry.seq, entry.kind, entry.data))


def _event(t: str, sid: str, seq: int, kind: str, data: bytes) -> bytes:
    return f'{{"t":"{t}","sid":"{sid}","seq":{seq},"k":"{kind}","d":'.encode() + data + b"}"


def delta_frame(sid: str, part: Part, start: int, stop: int) -> Frame:
    """A run of a part's text."""
    text = encode_text(part.cut(start, stop))
    json = f'{{"t":"delta","sid":"{sid}","p":{part.p},"off":{start},"s":'.encode() + text + b"}"
    return Frame("delta", json, 0, part.p, stop)


def cumulative_frame(sid: str, part: Part) -> Frame:
    """The whole text of an open part so far."""
    text = encode_text(part.cut(0, part.length))
    json = f'{{"t":"cumulative","sid":"{sid}","p":{part.p},"s":'.encode() + text + b"}"
    return Frame("cumulative", json, 0, part.p, part.length)


def greeting_frame(sid: str, epoch: str, floor: int, head: int, reset: str, messages: Iterable[bytes]) -> Frame:
    """`subscribed`; or `reset`, when `reset` is its reason. `messages`: the open ones, encoded."""
    t = "reset" if reset else "subscribed"
    reason = f',"reason":"{reset}"' if reset else ""
    json = f'{{"t":"{t}","sid":"{sid}","epoch":"{epoch}","floor":{floor},"head":{head}{reason},"open":['.encode()
    return Frame(t, json + b",".join(messages) + b"]}")


def open_message(mid: str, role: str, meta: bytes, parts: Iterable[Part]) -> bytes:
    """An item of `open`."""
    items = [
        b'{"p":%d,"part":%d,"kind":"%b","meta":%b}' % (part.p, part.number, part.kind.encode(), part.meta)
        for part in parts
    ]
    return b'{"mid":"%b","role":%b,"meta":%b,"parts":[%b]}' % (mid.encode(), encode_json(role), meta, b",".join(items))


# -- the data of the protocol's own events


def message_start(mid: str, role: str, meta: bytes) -> bytes:
    """`d` of `message.start`."""
    return b'{"mid":"%b","role":%b,"meta":%b}' % (mid.encode(), encode_json(role), meta)


def part_start(mid: str, number: int, kind: str, meta: bytes) -> bytes:
    """`d` of `part.start`."""
    return b'{"mid":"%b","part":%d,"kind":"%b","meta":%b}' % (mid.encode(), number, kind.encode(), meta)


def part_end(mid: str, p: int, length: int, text: str | None = None) -> bytes:
    """`d` of `part.end`; with `text` when it replaces what was sent, or for clients that can't fold deltas."""
    rest = b"" if text is None else b',"s":' + encode_text(text)
    return b'{"mid":"%b","p":%d,"len":%d%b}' % (mid.encode(), p, length, rest)


def message_end(
    mid: str, status: str, error: str | None, usage: bytes | None, parts: Iterable[tuple[int, str, int]]
) -> bytes:
    """`d` of `message.end`; `parts` are (p, kind, length)."""
    items = ",".join(f'{{"p":{p},"kind":"{kind}","len":{length}}}' for p, kind, length in parts)
    why = b"" if error is None else b',"error":' + encode_json(error)
    cost = b"" if usage is None else b',"usage":' + usage
    return b'{"mid":"%b","status":"%b"%b%b,"parts":[%b]}' % (mid.encode(), status.encode(), why, cost, items.encode())


def activity_item(sid: str, state: str, head: int, chars: int) -> bytes:
    """An item of `activity`."""
    return f'{{"sid":"{sid}","state":"{state}","head":{head},"chars":{chars}}}'.encode()


def activity_frame(items: Iterable[bytes]) -> Frame:
    """The latest summary of streams."""
    return Frame("activity", b'{"t":"activity","items":[' + b",".join(items) + b"]}")


@lru_cache(maxsize=16)
def hello_frame(flush_ms: int, background_ms: int, ping_s: int, max_in: int) -> Frame:
    """The first frame on a WebSocket; the same for all clients of an app, so it is encoded once."""
    caps = ["activity", "focus", "visibility", "publish", "cancel"]
    return frame(
        "hello", proto=PROTO, caps=caps, flush_ms=flush_ms, background_ms=background_ms, ping_s=ping_s, max_in=max_in
    )
