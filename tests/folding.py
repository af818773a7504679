"""Both ends of a stream for tests: a `Writer` that produces as the hub does, and a `Fold` that reads as clients do.

`Fold` is the client of docs/live-protocol.md to the letter, for every carrier; and it is a judge: what a server
must never send it asserts. It knows nothing of the server's code. Use one for each subscription of one stream:

    fold = Fold("chat")
    send_to_server(fold.subscribe())            # the cursor token, None at first
    fold.read_message(websocket_text)           # or read_sse(bytes), read_lines(bytes), apply(frame)
    assert fold.text(p) == "…"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from streaming.protocol import frames
from streaming.protocol.stream import Event, Stream, Text
from streaming.protocol.text import settle

MAX_DELTA = 16_384
MAX_MESSAGE = 256 * 1024
MAX_TOKEN = 2_048

#: Frames that are not about what a stream holds.
ASIDE = ("hello", "activity", "notify", "ack", "pong", "ping", "error", "bye")

Heard = int | tuple[int, str]
"""An event by its `seq`, or a run of a part's text: (p, text)."""


# -- the client


@dataclass
class FoldedPart:
    """A part as a client knows it."""

    p: int
    mid: str
    number: int
    kind: str
    meta: Any
    text: str = ""
    open: bool = True


@dataclass
class FoldedMessage:
    """A message as a client knows it."""

    mid: str
    role: str
    meta: Any
    status: str = "open"
    parts: list[int] = field(default_factory=list)


class Fold:
    """What a client makes of the frames of one stream.

    Args:
        sid: the stream.
        strict: the frames come over a connection that loses and repeats nothing, and the cursor that was sent was this
            client's own, so no frame may leave a hole and none may bring what is there already.
        cumulative: the client asked for `deltas=0`.
        writer: who wrote the stream; with it, order rule 1 is judged too.

    Attributes:
        seq: the last event applied. floor, head: as `subscribed` or `reset` said.
        parts: by `p`. messages: by `mid`. events: the app's own.
        resets: reasons, in order. greetings: how often `subscribed` or `reset` came.
        heard: what was new, in order; runs of one part that follow each other are one.
        lost: why this client has to subscribe again; None while it need not. What comes until then is not applied.
        aside: frames that are not about what the stream holds.
        is_done: `done` came.
    """

    def __init__(
        self, sid: str, *, strict: bool = True, cumulative: bool = False, writer: Writer | None = None
    ) -> None:
        self.sid = sid
        self.strict = strict
        self.cumulative = cumulative
        self.epoch: str | None = None
        self.seq = self.floor = self.head = self.greetings = 0
        self.parts: dict[int, FoldedPart] = {}
        self.messages: dict[str, FoldedMessage] = {}
        self.events: list[dict[str, Any]] = []
        self.resets: list[str] = []
        self.heard: list[Heard] = []
        self.lost: str | None = "not subscribed yet"
        self.aside: list[dict[str, Any]] = []
        self.is_done = False
        self._writer = writer
        self._sent: str | None = None
        self._awaits_greeting = False
        self._may_repeat: set[int] = set()  # parts whose offset did not fit into the token
        self._filling = 0  # catching up: the part whose end comes next

    # -- subscribing

    def token(self) -> str | None:
        """The cursor; None before the first greeting."""
        return None if self.epoch is None else self._token()[0]

    def _token(self) -> tuple[str, set[int]]:
        token = f"{self.epoch}.{self.seq}"
        left_out: set[int] = set()
        for part in self.parts.values():
            if part.open and part.text:
                pair = f".{part.p}~{len(part.text)}"
                if left_out or len(token) + len(pair) > MAX_TOKEN:
                    left_out.add(part.p)
                else:
                    token += pair
        return token, left_out

    def subscribe(self) -> str | None:
        """The cursor to send; what comes next is `subscribed` or `reset`."""
        self._sent = self.token()
        self._may_repeat = set() if self.epoch is None else self._token()[1]
        self._awaits_greeting = True
        self.lost = None
        return self._sent

    # -- carriers

    def read_message(self, text: str | bytes) -> list[dict[str, Any]]:
        """A WebSocket message."""
        size = len(text.encode() if isinstance(text, str) else text)
        found = json.loads(text)
        assert isinstance(found, list), "a message that is not an array"
        assert found, "an empty message"
        assert size <= MAX_MESSAGE or len(found) == 1, f"{len(found)} frames in a message of {size} bytes"
        for frame in found:
            self.apply(frame)
        return found

    def read_sse(self, data: bytes) -> list[dict[str, Any]]:
        """Whole SSE events; each `id` must be the cursor that this client has after the frame."""
        found = []
        for name, identity, frame in sse_events(data):
            assert frame["t"] == name, f"event: {name} with a frame {frame['t']}"
            found.append(frame)
            self.apply(frame)
            if identity is not None and self.strict and not self._may_repeat:
                assert parsed(identity) == parsed(self.token() or ""), f"id {identity}, not {self.token()}"
        return found

    def read_lines(self, data: bytes) -> list[dict[str, Any]]:
        """Whole lines of NDJSON."""
        assert data.endswith(b"\n") or not data, "a line without its end"
        found = [json.loads(line) for line in data.split(b"\n")[:-1]]
        for frame in found:
            self.apply(frame)
        return found

    # -- frames

    def apply(self, frame: dict[str, Any]) -> None:
        """One frame."""
        assert isinstance(frame, dict), f"not a frame: {frame!r}"
        t = frame["t"]
        if t in ASIDE:
            self.aside.append(frame)
            return
        apply = {
            "subscribed": self._greeted,
            "reset": self._greeted,
            "event": self._event,
            "delta": self._delta,
            "cumulative": self._cumulative,
            "done": self._done,
        }.get(t)
        if apply is None:
            return  # unknown frames are ignored
        assert frame["sid"] == self.sid, f"a frame of {frame['sid']}"
        assert not self.is_done, f"{t} after done"
        if self.lost is None:
            apply(frame)

    def _greeted(self, frame: dict[str, Any]) -> None:
        is_reset = frame["t"] == "reset"
        seq = self.seq
        if is_reset:
            assert frame["reason"] in ("epoch", "trimmed", "ahead", "invalid"), frame["reason"]
            # Not asked for, it can come only because the log has lost what comes next.
            assert self._awaits_greeting or frame["reason"] == "trimmed", f"reset {frame['reason']} out of nowhere"
            assert self._sent is not None or frame["reason"] == "trimmed", "reset without a cursor"
            self.resets.append(frame["reason"])
        else:
            assert self._awaits_greeting or not self.strict, "subscribed out of nowhere"
            assert "reason" not in frame
        self.greetings += 1
        self._awaits_greeting = False
        self._filling = 0
        if is_reset or self._sent is None:
            self.parts, self.messages, self.events, self.heard = {}, {}, [], []
            self._may_repeat = set()
            seq = frame["floor"]
        else:
            assert frame["epoch"] == self.epoch, "resumed in another epoch"
            assert frame["floor"] <= int(self._sent.split(".")[1]) <= frame["head"], "resumed outside the log"
        self.epoch, self.seq, self.floor, self.head = frame["epoch"], seq, frame["floor"], frame["head"]
        assert self.floor <= self.head
        for item in frame["open"]:
            assert item.keys() == {"mid", "role", "meta", "parts"}
            self._learn(item, is_new=is_reset or self._sent is None)

    def _learn(self, item: dict[str, Any], is_new: bool) -> None:
        mid = item["mid"]
        if is_new:
            assert mid not in self.messages, f"{mid} twice in open"
            self.messages[mid] = FoldedMessage(mid, item["role"], item["meta"])
        message = self.messages[mid]
        assert (message.role, message.meta) == (item["role"], item["meta"])
        assert not self.strict or message.status == "open"
        for each in item["parts"]:
            assert each.keys() == {"p", "part", "kind", "meta"}
            part = FoldedPart(each["p"], mid, each["part"], each["kind"], each["meta"])
            if is_new:
                self._add(part)
            known = self.parts[part.p]
            assert (known.mid, known.number, known.kind, known.meta) == (mid, part.number, part.kind, part.meta)
            assert not self.strict or known.open
        if self.strict:
            here = {p for p in message.parts if self.parts[p].open}
            assert here == {each["p"] for each in item["parts"]}, f"open parts of {mid}"

    def _add(self, part: FoldedPart) -> None:
        assert part.p not in self.parts, f"part {part.p} twice"
        self.parts[part.p] = part
        self.messages[part.mid].parts.append(part.p)

    def _event(self, frame: dict[str, Any]) -> None:
        seq, kind, d = frame["seq"], frame["k"], frame["d"]
        self._expect_greeted()
        if seq <= self.seq:
            assert not self.strict, f"event {seq} again"
            return
        if seq > self.seq + 1:
            self._lose(f"event {seq} behind {self.seq}")
            return
        self._judge_order(seq, kind, d)
        self._filling = 0
        if kind == "message.start":
            assert d["mid"] not in self.messages, f"{d['mid']} again"
            self.messages[d["mid"]] = FoldedMessage(d["mid"], d["role"], d["meta"])
        elif kind == "part.start":
            assert self.messages[d["mid"]].status == "open"
            self._add(FoldedPart(seq, d["mid"], d["part"], d["kind"], d["meta"]))
        elif kind == "part.end":
            if not self._end_part(d):
                return
        elif kind == "message.end":
            self._end_message(d)
        else:
            assert not kind.startswith(("message.", "part.")), kind
            self.events.append({"seq": seq, "k": kind, "d": d})
        self.seq = seq
        self.heard.append(seq)

    def _end_part(self, d: dict[str, Any]) -> bool:
        part = self.parts[d["p"]]
        assert part.open, f"part {part.p} ends twice"
        assert part.mid == d["mid"]
        if "s" in d:
            assert len(d["s"]) == d["len"], f"part {part.p} ends with len {d['len']} and {len(d['s'])} code points"
            part.text = d["s"]
        assert "s" in d or not self.cumulative, "part.end without the text"
        if len(part.text) != d["len"]:
            length, part.text = len(part.text), ""
            self._lose(f"part {part.p} ends at {d['len']}, not at {length}")
            return False
        part.open = False
        return True

    def _end_message(self, d: dict[str, Any]) -> None:
        message = self.messages[d["mid"]]
        assert message.status == "open", f"{message.mid} ends twice"
        assert d["status"] in ("complete", "cancelled", "aborted", "error")
        message.status = d["status"]
        told = {each["p"]: each for each in d["parts"]}
        for p in message.parts:
            part = self.parts[p]
            assert not part.open, f"{message.mid} ends before its part {p}"
            assert told[p] == {"p": p, "kind": part.kind, "len": len(part.text)}

    def _judge_order(self, seq: int, kind: str, d: Any) -> None:
        if self._filling and self.strict:
            assert (kind, d.get("p")) == ("part.end", self._filling), "text that is not before its part's end"
        if self._writer is None or not self.strict or self.cumulative or seq <= self.head:
            return
        for p, length in self._writer.before[seq].items():
            part = self.parts[p]
            assert len(part.text) == length, f"before event {seq}, part {p} is at {len(part.text)}, not {length}"

    def _delta(self, frame: dict[str, Any]) -> None:
        p, off, text = frame["p"], frame["off"], frame["s"]
        self._expect_greeted()
        assert not self.cumulative, "delta for a client that asked for none"
        assert 0 < len(text) <= MAX_DELTA, f"a delta of {len(text)} code points"
        text.encode()  # half a surrogate pair can't be
        assert p in self.parts, f"a delta of part {p}, which nobody named"
        part = self.parts[p]
        if not part.open:
            assert not self.strict, f"text of part {p} after its end"
            return
        if self.seq < self.head:
            assert self._filling in (0, p) or not self.strict, "two parts before one end"
            self._filling = p
        length = len(part.text)
        if off > length:
            self._lose(f"part {p} goes on at {off}, behind {length}")
            return
        assert off == length or not self.strict or p in self._may_repeat, f"part {p} again from {off}, is at {length}"
        assert part.text[off : off + len(text)] == text[: length - off], "other text in the same place"
        if new := text[length - off :]:
            self._may_repeat.discard(p)
            part.text += new
            self._hear(p, new)

    def _cumulative(self, frame: dict[str, Any]) -> None:
        p, text = frame["p"], frame["s"]
        self._expect_greeted()
        assert self.cumulative, "cumulative text for a client that folds deltas"
        assert p in self.parts, f"text of part {p}, which nobody named"
        part = self.parts[p]
        if not part.open:
            assert not self.strict, f"text of part {p} after its end"
            return
        new = len(text) > len(part.text)
        assert new or not self.strict or p in self._may_repeat, f"part {p} again at {len(text)}"
        longer, shorter = (text, part.text) if new else (part.text, text)
        assert longer.startswith(shorter), "other text in the same place"
        if new:
            part.text = text

    def _done(self, frame: dict[str, Any]) -> None:
        assert frame["seq"] == self.seq, f"done at {frame['seq']}, not {self.seq}"
        assert self.messages or self.floor, "done before the first message"
        assert all(message.status != "open" for message in self.messages.values()), "done with a message open"
        self.is_done = True

    def _expect_greeted(self) -> None:
        assert not self._awaits_greeting, "something before subscribed or reset"

    def _hear(self, p: int, text: str) -> None:
        last = self.heard[-1] if self.heard else 0
        if isinstance(last, tuple) and last[0] == p:
            self.heard[-1] = (p, last[1] + text)
        else:
            self.heard.append((p, text))

    def _lose(self, why: str) -> None:
        assert not self.strict, why
        self.lost = why

    # -- what it holds

    def text(self, p: int) -> str:
        """A part's text."""
        return self.parts[p].text

    def assert_holds(self, snapshot: dict[str, Any]) -> None:
        """Everything in a snapshot is here, and nothing that grows is here and not in it."""
        assert (self.epoch, self.seq) == (snapshot["epoch"], snapshot["seq"])
        for message in snapshot["messages"]:
            mine = self.messages[message["mid"]]
            assert (mine.role, mine.meta, mine.status) == (message["role"], message["meta"], message["status"])
            for part in message["parts"]:
                here = self.parts[part["p"]]
                assert here.mid == mine.mid
                found = {"p": here.p, "kind": here.kind, "meta": here.meta, "s": here.text, "open": here.open}
                assert found == part
        told = {message["mid"] for message in snapshot["messages"] if message["status"] == "open"}
        assert told == {message.mid for message in self.messages.values() if message.status == "open"}
        assert snapshot["events"] == [event for event in self.events if event["seq"] > snapshot["floor"]]


def sse_events(data: bytes) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """The events in whole blocks of SSE: name, id, frame. Comments and `retry` are passed over."""
    assert b"\r" not in data, "a carriage return in SSE"
    assert data.endswith(b"\n\n") or not data, "an event without its end"
    for block in data.split(b"\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split(b"\n"):
            name, _, value = line.decode().partition(": ")
            assert name in ("", "retry", "event", "id", "data"), f"a field {name!r}"
            assert name not in fields, f"{name} twice"
            fields[name] = value
        if "data" in fields:
            yield fields["event"], fields.get("id"), json.loads(fields["data"])


def parsed(token: str) -> tuple[str, set[str]]:
    """A token with its offsets in no order."""
    epoch, seq, *pairs = token.split(".")
    return f"{epoch}.{seq}", set(pairs)


# -- the producer


class Writer:
    """Writes into a stream as the hub does: settled text, and an event at a time.

    Attributes:
        texts: by `p`, what a reader must end up with.
        before: by `seq`, the lengths of the parts that were open when this event came.
        wrote: everything, in order; runs of one part that follow each other are one.
        open: by `mid`, the open parts of messages that are open.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.texts: dict[int, str] = {}
        self.before: dict[int, dict[int, int]] = {}
        self.wrote: list[Heard] = []
        self.open: dict[str, list[int]] = {}
        self._kinds: dict[int, str] = {}
        self._all: dict[str, list[int]] = {}
        self._held: dict[int, str] = {}
        self._count = 0

    def event(self, kind: str = "note", data: bytes = b"null", urgent: bool = False) -> int:
        """An event; returns its `seq`."""
        self.before[self.stream.head + 1] = {p: len(self.texts[p]) for p in self.stream.open_parts}
        seq = self.stream.apply(Event(kind, data, urgent))
        self.wrote.append(seq)
        return seq

    def message(self, mid: str = "", role: str = "assistant", meta: bytes = b"{}") -> str:
        """Start a message; returns its `mid`."""
        self._count += 1
        mid = mid or f"m{self._count}"
        self.event("message.start", frames.message_start(mid, role, meta))
        self.open[mid], self._all[mid] = [], []
        return mid

    def part(self, mid: str, kind: str = "text", meta: bytes = b"{}") -> int:
        """Start a part; returns its `p`."""
        p = self.event("part.start", frames.part_start(mid, len(self._all[mid]), kind, meta))
        self.open[mid].append(p)
        self._all[mid].append(p)
        self._kinds[p], self.texts[p], self._held[p] = kind, "", ""
        return p

    def text(self, p: int, text: str) -> None:
        """Append text as a provider cuts it: halves of pairs are held back."""
        self._put(p, *settle(self._held[p] + text))

    def _put(self, p: int, text: str, held: str) -> None:
        self._held[p] = held
        if not text:
            return
        self.texts[p] += text
        self.stream.apply(Text(p, text))
        last = self.wrote[-1]
        if isinstance(last, tuple) and last[0] == p:
            self.wrote[-1] = (p, last[1] + text)
        else:
            self.wrote.append((p, text))

    def end_part(self, p: int, replacement: str | None = None) -> int:
        """End a part, with text in place of its own if there is any."""
        self._put(p, *settle(self._held[p], final=True))
        mid = next(mid for mid, parts in self.open.items() if p in parts)
        length = len(self.texts[p]) if replacement is None else len(replacement)
        seq = self.event("part.end", frames.part_end(mid, p, length, replacement))
        if replacement is not None:
            self.texts[p] = replacement
        self.open[mid].remove(p)
        return seq

    def end(self, mid: str, status: str = "complete", usage: bytes | None = None) -> int:
        """End a message and its open parts."""
        for p in [*self.open[mid]]:
            self.end_part(p)
        del self.open[mid]
        parts = [(p, self._kinds[p], len(self.texts[p])) for p in self._all[mid]]
        error = "it broke" if status == "error" else None
        return self.event("message.end", frames.message_end(mid, status, error, usage, parts))


def read_snapshot(stream: Stream) -> dict[str, Any]:
    """A stream's snapshot, parsed."""
    found: dict[str, Any] = json.loads(b"".join(stream.snapshot()))
    return found
