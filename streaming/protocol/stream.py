"""A stream: its messages, its parts' text, its log of events; what is put in, and what each cursor gets next.

Theory of operation. Everything comes in through `apply`, one entry after the other, whoever produced it; everything
goes out through `cut`, whatever the subscriber is. In between there is one copy of the text (`Part`) and one of the
events (`EventLog`). Nothing here is kept for a subscriber.

What a cut found is remembered until the stream changes, by the identity of its cursor: the subscribers at one place,
which are usually all of them, share one cut and its encoded forms.

A part's text stays until its `part.end` leaves the log; a message, until its `message.end` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import frames
from .cursor import Cursor, format_token, parse_token
from .cut import CumulativeWalk, Cut, Walk
from .frames import Frame
from .jsontext import decode_json, encode_json
from .log import EventLog, LogEntry
from .text import Part

#: Ids of messages that are remembered after their messages, to refuse them a second time.
MAX_MIDS = 10_000
#: Cuts, and starting places, that are remembered at a time.
MAX_SHARED = 64
#: Code points of a snapshot's text that are encoded at a time.
SNAPSHOT_RUN = 65_536


@dataclass(frozen=True, slots=True)
class Text:
    """An entry: a run of a part's text, without half surrogate pairs."""

    p: int
    s: str


@dataclass(frozen=True, slots=True)
class Event:
    """An entry: a durable event.

    Attributes:
        data: its `d`, encoded.
        detail: of the protocol's own events the same decoded, but `meta` encoded; None: to be decoded from `data`.
    """

    kind: str
    data: bytes
    urgent: bool = False
    detail: Mapping[str, Any] | None = None

    @property
    def members(self) -> Mapping[str, Any]:
        """`detail`, however it comes."""
        if self.detail is not None:
            return self.detail
        members: dict[str, Any] = decode_json(self.data)
        if "meta" in members:
            members["meta"] = encode_json(members["meta"])
        return members


Entry = Text | Event


class Message:
    """One growing answer. `start` and `ended` are the `seq` of its `message.start` and `message.end`."""

    __slots__ = ("ended", "meta", "mid", "parts", "role", "start", "status")

    def __init__(self, mid: str, role: str, meta: bytes, start: int) -> None:
        self.mid = mid
        self.role = role
        self.meta = meta
        self.start = start
        self.ended: int | None = None
        self.status = "open"
        self.parts: list[Part] = []

    def was_open(self, seq: int) -> bool:
        """Whether it was open when `seq` was the newest event."""
        return self.start <= seq and (self.ended is None or self.ended > seq)


class Stream:
    """One stream. Not for several threads; no method waits.

    Args:
        sid, epoch: of the grammar.
        max_events, max_bytes: bounds of its log.
        max_text: bound of the text that ended parts hold, in code points; beyond it the oldest events go.

    Attributes:
        parts: by `p`; those that are open, or whose `part.end` is in the log.
        open_parts, open_messages: those that grow.
        messages: by `mid`; those that are open, or whose `message.end` is in the log.
        chars: code points of text in this epoch.
        has_messages: there was at least one.
    """

    def __init__(self, sid: str, epoch: str, max_events: int, max_bytes: int, max_text: int) -> None:
        self.sid = sid
        self.epoch = epoch
        self.log = EventLog(max_events, max_bytes, max_text)
        self.parts: dict[int, Part] = {}
        self.open_parts: dict[int, Part] = {}
        self.messages: dict[str, Message] = {}
        self.open_messages: dict[str, Message] = {}
        self.chars = 0
        self.has_messages = False
        self._mids: dict[str, None] = {}
        self._tip: Cursor | None = None
        self._starts: dict[tuple[str, str], Cursor] = {}
        self._greeted: dict[Cursor, tuple[Frame, Cursor]] = {}
        self._cuts: dict[tuple[Cursor, object], Cut] = {}

    # -- in

    def apply(self, entry: Entry) -> int:
        """Put in the next entry. Returns the head after it.

        The entry is believed: whoever produces it has checked that its message and its part are open.
        """
        self._tip = None
        self.forget_cuts()
        if isinstance(entry, Text):
            part = self.open_parts[entry.p]
            part.append(entry.s)
            self.chars += len(entry.s)
            self.log.gap.add(part)
        else:
            self._apply_event(entry)
        return self.log.head

    def _apply_event(self, event: Event) -> None:
        seq = self.log.head + 1
        ends: Part | None = None
        if event.kind == "message.start":
            d = event.members
            self._start(Message(d["mid"], d["role"], d["meta"], seq))
        elif event.kind == "part.start":
            d = event.members
            part = Part(seq, d["mid"], d["part"], d["kind"], d["meta"])
            self.messages[part.mid].parts.append(part)
            self.parts[seq] = self.open_parts[seq] = part
        elif event.kind == "part.end":
            d = event.members
            ends = self.open_parts.pop(d["p"])
            ends.ended = seq
            ends.replacement = d.get("s")
        elif event.kind == "message.end":
            d = event.members
            message = self.open_messages.pop(d["mid"])
            message.ended, message.status = seq, d["status"]
        self.log.add(event.kind, event.data, event.urgent, ends)
        for dropped in self.log.trim():
            self._forget(dropped)

    def _start(self, message: Message) -> None:
        self.messages[message.mid] = self.open_messages[message.mid] = message
        self.has_messages = True
        self._mids[message.mid] = None
        if len(self._mids) > MAX_MIDS:
            del self._mids[next(iter(self._mids))]

    def _forget(self, entry: LogEntry) -> None:
        """Let go of what only a dropped event gave a reason to keep."""
        if entry.part is not None:
            del self.parts[entry.part.p]
            self.messages[entry.part.mid].parts.remove(entry.part)
        elif entry.kind == "message.end":
            del self.messages[decode_json(entry.data)["mid"]]

    # -- what it is like

    @property
    def head(self) -> int:
        """`seq` of the newest event."""
        return self.log.head

    @property
    def floor(self) -> int:
        """`seq` of the newest event that has left the log."""
        return self.log.floor

    @property
    def state(self) -> str:
        """`streaming` while a message is open, else `idle`."""
        return "streaming" if self.open_messages else "idle"

    @property
    def is_finished(self) -> bool:
        """It has had a message, and none is open."""
        return self.has_messages and not self.open_messages

    def has_used(self, mid: str) -> bool:
        """Whether a message of this id was started before; the last 10,000 are remembered."""
        return mid in self._mids or mid in self.messages

    def urgent_after(self, seq: int) -> list[LogEntry]:
        """The retained urgent events after `seq`."""
        first = max(seq, self.floor) + 1
        return [entry for number in range(first, self.head + 1) if (entry := self.log.entries[number]).urgent]

    # -- out

    def tip(self) -> Cursor:
        """The cursor that has everything; the same object until the stream changes."""
        if self._tip is None:
            offsets = {p: part.length for p, part in self.open_parts.items() if part.length}
            self._tip = Cursor(self.head, offsets, self.log.gap.tip)
        return self._tip

    def start(self, token: str | None) -> Cursor:
        """Where a subscriber begins that brings this cursor token, or none.

        Whoever brings the same token while nothing changes gets the same object.
        """
        return self._anew("fresh") if token is None else self._judge(token)

    def _judge(self, text: str) -> Cursor:
        token = parse_token(text)
        if token is None:
            return self._anew("invalid")
        if token.epoch != self.epoch:
            return self._anew("epoch")
        known = {p: (part, off) for p, off in token.offsets.items() if (part := self.parts.get(p)) is not None}
        if token.seq > self.head or any(off > part.length for part, off in known.values()):
            return self._anew("ahead")
        if token.seq < self.floor:
            return self._anew("trimmed")
        # An offset counts for a part that is open at that place; about others the client can know nothing.
        offsets = {
            p: off
            for p, (part, off) in known.items()
            if off and p <= token.seq and (part.ended is None or part.ended > token.seq)
        }
        return self._begin("resumed", token.seq, offsets, text)

    def _anew(self, greeting: str) -> Cursor:
        return self._begin(greeting, self.floor, {})

    def _begin(self, greeting: str, seq: int, offsets: dict[int, int], token: str = "") -> Cursor:
        # By the token only where it is a good one: bad ones may be as many and as long as somebody likes.
        key = greeting, token
        cursor = self._starts.get(key)
        if cursor is None:
            if len(self._starts) >= MAX_SHARED:
                self._starts.clear()
            cursor = self._starts[key] = Cursor(seq, offsets, 0, self.tip(), greeting)
        return cursor

    def cut(self, cursor: Cursor, limit: int = frames.MAX_MESSAGE) -> Cut:
        """The next frames at a cursor, and the cursor after them.

        Args:
            cursor: from `start`, or from a cut before.
            limit: bytes of a message that holds them as an array; one frame goes whatever it takes.
        """
        return self._shared(cursor, limit, lambda start: Walk(self, start, limit))

    def cut_cumulative(self, cursor: Cursor, *, with_text: bool, limit: int = frames.MAX_MESSAGE) -> Cut:
        """The same for a client that can't fold deltas; without text, its events only."""
        return self._shared(
            cursor, (limit, with_text), lambda start: CumulativeWalk(self, start, limit, with_text=with_text)
        )

    def _shared(self, cursor: Cursor, kind: object, walk: Callable[[Cursor], Walk]) -> Cut:
        cut = self._cuts.get((cursor, kind))
        if cut is None:
            if len(self._cuts) >= MAX_SHARED:
                self._cuts.clear()
            start = cursor if cursor.seq >= self.floor else self._trimmed(cursor)
            cut = self._cuts[cursor, kind] = walk(start).cut()
        return cut

    def _trimmed(self, cursor: Cursor) -> Cursor:
        """The log has lost the cursor's next event. Who was told nothing yet begins at the new floor."""
        return self._anew("trimmed" if cursor.greeting in ("", "resumed") else cursor.greeting)

    def forget_cuts(self) -> None:
        """Let go of the remembered cuts and starting places: whoever shared them has them."""
        self._starts.clear()
        self._greeted.clear()
        self._cuts.clear()

    def greeting(self, start: Cursor, reset: str) -> Frame:
        """`subscribed`, or `reset` with its reason, for one that begins at a cursor."""
        assert start.target is not None
        seq = start.seq
        opened = [
            frames.open_message(
                message.mid,
                message.role,
                message.meta,
                [part for part in message.parts if part.p <= seq and (part.ended is None or part.ended > seq)],
            )
            for message in self.messages.values()
            if message.was_open(seq)
        ]
        return frames.greeting_frame(self.sid, self.epoch, self.floor, start.target.seq, reset, opened)

    def greet(self, start: Cursor) -> tuple[Frame, Cursor]:
        """The frame for one that begins at a cursor, and the cursor once that is told; shared like cuts."""
        greeted = self._greeted.get(start)
        if greeted is None:
            if len(self._greeted) >= MAX_SHARED:
                self._greeted.clear()
            told = Cursor(start.seq, start.offsets, start.run, start.target)
            greeted = self._greeted[start] = self.greeting(start, start.reset), told
        return greeted

    def token(self, cursor: Cursor) -> str:
        """A cursor as it is sent to a client."""
        return format_token(self.epoch, cursor.seq, cursor.offsets)

    def snapshot(self) -> Iterator[bytes]:
        """The stream as a JSON document, in pieces; consistent even if the stream grows while it is read."""
        token = self.token(self.tip())
        head = f'{{"sid":"{self.sid}","epoch":"{self.epoch}","seq":{self.head},"floor":{self.floor},"cursor":"{token}"'
        messages = [(message, message.status, _as_they_are(message)) for message in self.messages.values()]
        events = [entry for entry in self.log.entries.values() if not entry.kind.startswith(("message.", "part."))]
        return self._document(head.encode(), messages, events)

    @staticmethod
    def _document(
        head: bytes, messages: list[tuple[Message, str, list[tuple[Part, int, bool]]]], events: list[LogEntry]
    ) -> Iterator[bytes]:
        yield head + b',"messages":['
        for number, (message, status, parts) in enumerate(messages):
            yield b'%b{"mid":"%b","role":%b,"meta":%b,"status":"%b","parts":[' % (
                b"," if number else b"",
                message.mid.encode(),
                encode_json(message.role),
                message.meta,
                status.encode(),
            )
            for place, (part, length, is_open) in enumerate(parts):
                yield b"," if place else b""
                yield f'{{"p":{part.p},"kind":"{part.kind}","meta":'.encode() + part.meta + b',"s":"'
                text = None if is_open else part.replacement
                length = length if text is None else len(text)
                for start in range(0, length, SNAPSHOT_RUN):
                    stop = min(length, start + SNAPSHOT_RUN)
                    yield encode_json(part.cut(start, stop) if text is None else text[start:stop])[1:-1]
                yield b'","open":true}' if is_open else b'","open":false}'
            yield b"]}"
        yield b'],"events":['
        for number, entry in enumerate(events):
            yield b"," if number else b""
            yield f'{{"seq":{entry.seq},"k":"{entry.kind}","d":'.encode() + entry.data + b"}"
        yield b"]}"


def _as_they_are(message: Message) -> list[tuple[Part, int, bool]]:
    """A message's parts with their lengths, and whether they are open, at this moment."""
    return [(part, part.length, part.ended is None) for part in message.parts]
