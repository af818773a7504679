"""A stream's log: its durable events by `seq`, and which runs of text came before each.

Theory of operation. Events are numbered 1, 2, 3 … without holes. Text has no number of its own, but it has a place: the
*gap* after one event and before the next. A gap lists the runs that were produced in it, in order, each as "this part,
up to this offset". With that, a reader's place in everything that was ever produced is an event and a run behind it,
and the order of text and events can be told to a reader who comes late (docs/live-protocol.md, "Order").

Consecutive runs of one part are one run that grows, so a gap is short unless parts alternate. Should they alternate
without end, the older half of its runs is merged, to one for each part: a reader as far behind as that gets the text of
each part in one piece.

The log is bounded by count, by bytes of event data and runs, and by the text that its ended parts hold. Beyond a bound
the oldest events go; `floor` is the last one that went.
"""

from __future__ import annotations

from dataclasses import dataclass

from .text import Part

MAX_RUNS = 4_096  # of one gap
RUN_BYTES = 64  # what a run counts against the log's bytes


class Run:
    """Text of one part, up to an offset; it begins where the part's previous run ended."""

    __slots__ = ("end", "part")

    def __init__(self, part: Part, end: int) -> None:
        self.part = part
        self.end = end


class Gap:
    """The runs between two events.

    Attributes:
        runs: in order.
        merged: by how many `runs` has become shorter: a run's index plus this is its number, which never changes.
    """

    __slots__ = ("_bound", "merged", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.merged = 0
        self._bound = MAX_RUNS

    def add(self, part: Part) -> None:
        """Note that the part has grown."""
        runs = self.runs
        if runs and runs[-1].part is part:
            runs[-1].end = part.length
            return
        runs.append(Run(part, part.length))
        if len(runs) > self._bound:
            half = len(runs) // 2
            # In the order of their last runs: a reader finds what it lacks at, or behind, the place it counts to.
            last: dict[Part, Run] = {}
            for run in runs[:half]:
                last.pop(run.part, None)
                last[run.part] = run
            self.runs = [*last.values(), *runs[half:]]
            self.merged += len(runs) - len(self.runs)
            # Thousands of parts leave little to merge: not again at the very next run.
            self._bound = max(MAX_RUNS, len(self.runs) + MAX_RUNS // 4)

    def index(self, number: int) -> int:
        """Where a reader who was at a run's number goes on; what it has already it skips by offset."""
        return max(0, number - self.merged)

    @property
    def tip(self) -> int:
        """The number of the last run, which may still grow."""
        return self.merged + max(0, len(self.runs) - 1)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One durable event. `data` is its `d`, encoded; `part` the one that it ends; `gap` what came before it."""

    seq: int
    kind: str
    data: bytes
    gap: Gap
    urgent: bool = False
    part: Part | None = None

    @property
    def size(self) -> int:
        """What it counts against the log's bytes."""
        return len(self.data) + RUN_BYTES * len(self.gap.runs)


class EventLog:
    """The retained events of a stream.

    Attributes:
        head: `seq` of the newest event, 0 when there was none.
        floor: `seq` of the newest event that has been dropped, 0 when none was.
        gap: the runs since the newest event.
        entries: the events after `floor`, by `seq`.
    """

    def __init__(self, max_events: int, max_bytes: int, max_text: int) -> None:
        self.head = 0
        self.floor = 0
        self.gap = Gap()
        self.entries: dict[int, LogEntry] = {}
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_text = max_text
        self._bytes = 0
        self._text = 0  # code points of ended parts

    @property
    def size(self) -> int:
        """Bytes of its events and their runs; text does not count."""
        return self._bytes

    def add(self, kind: str, data: bytes, urgent: bool = False, ends: Part | None = None) -> LogEntry:
        """Append an event; `trim` is to be called after it."""
        self.head += 1
        entry = LogEntry(self.head, kind, data, self.gap, urgent, ends)
        self.entries[self.head] = entry
        self.gap = Gap()
        self._bytes += entry.size
        self._text += 0 if ends is None else ends.length
        return entry

    def trim(self) -> list[LogEntry]:
        """Drop the oldest events until the log is within its bounds; the newest always stays. Returns what went."""
        dropped = []
        while len(self.entries) > 1 and (
            len(self.entries) > self._max_events or self._bytes > self._max_bytes or self._text > self._max_text
        ):
            self.floor += 1
            entry = self.entries.pop(self.floor)
            self._bytes -= entry.size
            self._text -= 0 if entry.part is None else entry.part.length
            dropped.append(entry)
        return dropped
