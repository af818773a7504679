"""What a subscriber gets next: the walk from its cursor through a stream (docs/live-protocol.md, "Order").

Theory of operation. There is one walk, for live flushes, slow readers, late joiners, a change of focus and resuming:

* *Live* (the cursor has no target): the runs of the gap behind the cursor's event from its run on, then the next event,
  and so on to the end. So all text produced before an event goes before it, and parts that alternate keep their order.
* *Catching up* (it has one): the events up to the target's; before each `part.end` what is missing of that part's text;
  then the open parts' text up to where the target stands. That is the target's own place, so the walk goes on live, and
  a subscriber that caught up holds the same cursor as those who were there all the time.

A walk stops before the frame that would pass the limit; the cursor after it says where. What an event's own place or a
part's offset says is there already is skipped, never sent twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import frames
from .cursor import Cursor
from .frames import MAX_DELTA, Frame
from .log import LogEntry
from .text import Part

if TYPE_CHECKING:
    from .stream import Stream


class Cut:
    """What comes next at a cursor, shared by all subscribers there.

    Attributes:
        frames: in order; none when there is nothing.
        start: the cursor it was made for.
        after: the cursor that has applied them.
        seq, offsets: the place that the first frame finds, behind a greeting the one that it sets.
        reset: the reason, if it begins with a reset; else empty.
        encoded: its wire form by carrier, filled in by those who send it.
    """

    __slots__ = ("after", "encoded", "frames", "offsets", "reset", "seq", "start")

    def __init__(self, start: Cursor, found: list[Frame], after: Cursor, reset: str) -> None:
        self.start = start
        self.frames = found
        self.after = after
        self.seq = start.seq
        self.offsets = start.offsets
        self.reset = reset
        self.encoded: dict[object, bytes] = {}

    @property
    def text_size(self) -> int:
        """Code points of text in its deltas."""
        size, offsets = 0, dict(self.offsets)
        for frame in self.frames:
            if frame.t == "delta":
                size += frame.end - offsets.get(frame.p, 0)
                offsets[frame.p] = frame.end
        return size

    @property
    def joined(self) -> bytes:
        """The frames as the inside of a JSON array."""
        return b",".join([frame.json for frame in self.frames])


class Walk:
    """One walk, for clients that fold deltas. Used once."""

    def __init__(self, stream: Stream, start: Cursor, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._start = start
        self._seq = start.seq
        self._run = start.run
        self._target = start.target
        self._offsets = dict(start.offsets)
        self._frames: list[Frame] = []
        self._size = 0

    def cut(self) -> Cut:
        """Walk as far as the limit allows."""
        start, reset = self._start, ""
        if start.greeting:
            reset = "" if start.greeting in ("fresh", "resumed") else start.greeting
            self._add(self._stream.greeting(start, reset))
        after = self._stream.tip() if self._walk() else self._here()
        return Cut(start, self._frames, after, reset)

    def _here(self) -> Cursor:
        return Cursor(self._seq, self._offsets, self._run, self._target)

    def _walk(self) -> bool:
        """False if the limit was reached."""
        return (self._target is None or self._catch_up(self._target)) and self._follow()

    def _catch_up(self, target: Cursor) -> bool:
        log = self._stream.log
        while self._seq < target.seq:
            entry = log.entries[self._seq + 1]
            part = entry.part
            if part is not None and part.replacement is None and not self._text(part, part.length):
                return False
            if not self._event(entry):
                return False
        for p, end in target.offsets.items():
            if not self._text(self._stream.parts[p], end):
                return False
        self._run, self._target = target.run, None
        return True

    def _follow(self) -> bool:
        log = self._stream.log
        while True:
            entry = log.entries.get(self._seq + 1)
            gap = log.gap if entry is None else entry.gap
            for index in range(gap.index(self._run), len(gap.runs)):
                run = gap.runs[index]
                if not self._text(run.part, run.end):
                    self._run = index + gap.merged
                    return False
            if entry is None:
                return True
            self._run = gap.tip  # all its runs are done, should the event not fit
            if not self._event(entry):
                return False
            self._run = 0

    def _text(self, part: Part, stop: int) -> bool:
        """Send the part's text from where the cursor is to an offset."""
        start = self._offsets.get(part.p, 0)
        while start < stop:
            end = min(stop, start + MAX_DELTA)
            if not self._add(frames.delta_frame(self._stream.sid, part, start, end)):
                return False
            self._offsets[part.p] = start = end
        return True

    def _event(self, entry: LogEntry) -> bool:
        if not self._add(self._frame_of(entry)):
            return False
        self._seq = entry.seq
        if entry.part is not None:
            self._offsets.pop(entry.part.p, None)
        return True

    def _frame_of(self, entry: LogEntry) -> Frame:
        return frames.event_frame(self._stream.sid, entry)

    def _add(self, frame: Frame) -> bool:
        size = len(frame.json) + 1
        if self._frames and self._size + size >= self._limit:
            return False
        self._frames.append(frame)
        self._size += size
        return True


class CumulativeWalk(Walk):
    """One walk, for clients that can't fold deltas: the whole text of open parts, at most once each.

    Args:
        with_text: False: events only; the text's turn comes later.
    """

    def __init__(self, stream: Stream, start: Cursor, limit: int, *, with_text: bool) -> None:
        super().__init__(stream, start, limit)
        self._with_text = with_text

    def _follow(self) -> bool:
        # Whole texts have no runs: before the next event goes the text of all parts that are known by then.
        stream = self._stream
        parts = [part for part in stream.open_parts.values() if part.p <= self._seq]
        while all(self._text(part, part.length) for part in parts):
            entry = stream.log.entries.get(self._seq + 1)
            if entry is None:
                return True
            if not self._event(entry):
                return False
            parts = [stream.parts[entry.seq]] if entry.seq in stream.parts else []
        return False

    def _here(self) -> Cursor:
        return Cursor(self._seq, self._offsets, 0, self._target)

    def cut(self) -> Cut:
        """Walk; the cursor after it is the tip only if the text went too."""
        cut = super().cut()
        if cut.after.offsets != self._offsets:
            cut.after = self._here()
        return cut

    def _text(self, part: Part, stop: int) -> bool:
        if not self._with_text or part.ended is not None or self._offsets.get(part.p, 0) >= stop:
            return True
        if not self._add(frames.cumulative_frame(self._stream.sid, part)):
            return False
        self._offsets[part.p] = part.length
        return True

    def _frame_of(self, entry: LogEntry) -> Frame:
        part = entry.part
        if part is None or part.replacement is not None:
            return super()._frame_of(entry)
        data = frames.part_end(part.mid, part.p, part.length, part.cut(0, part.length))
        return frames.event_frame(self._stream.sid, entry, data)
