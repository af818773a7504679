"""When what is due: at once after a quiet spell, then on one grid common to all (docs/live-protocol.md, "Coalescing").

The first text after a quiet spell goes at once (leading edge). What follows goes at the next tick of the grid: so text
waits at most one interval, all streams that are busy are flushed together, and a mark is never without a flush after it
(trailing edge), whatever comes or does not come next. All steps are O(1): marking appends to a list.

Time comes in as an argument: seconds of a monotonic clock.
"""

from __future__ import annotations

from math import floor
from typing import Generic, Protocol, TypeVar

IDLE, TICK, NOW = 0, 1, 2  # whether, and when, an item is due


class Schedulable(Protocol):
    """What can be due. The schedule alone writes these attributes; an item belongs to one schedule.

    Attributes:
        due: IDLE, TICK or NOW.
        flushed_at: when it was last taken.
    """

    due: int
    flushed_at: float


Item = TypeVar("Item", bound=Schedulable)


class Schedule(Generic[Item]):
    """The items that are due, and when.

    Args:
        interval: seconds between two ticks; 0: everything is due at once.
        leading: the first mark after a quiet interval is due at once, not at the next tick.
    """

    def __init__(self, interval: float, *, leading: bool = True) -> None:
        self.interval = interval
        self._leading = leading
        self._now: list[Item] = []
        self._tick: list[Item] = []
        self._tick_at = 0.0

    def mark(self, item: Item, now: float) -> None:
        """Something of the item wants to go. No effect on an item that is due already."""
        if item.due:
            return
        if self.interval == 0 or (self._leading and now - item.flushed_at >= self.interval):
            self.hurry(item)
            return
        item.due = TICK
        if not self._tick:
            self._tick_at = (floor(now / self.interval) + 1) * self.interval
        self._tick.append(item)

    def hurry(self, item: Item) -> None:
        """The item is due at once."""
        if item.due != NOW:
            item.due = NOW
            self._now.append(item)

    @property
    def next_at(self) -> float | None:
        """When something is due: 0 for at once, None for never."""
        if self._now:
            return 0.0
        return self._tick_at if self._tick else None

    def take(self, now: float) -> list[Item]:
        """The items that are due, each once; they are due no more."""
        marked, self._now = self._now, []
        if self._tick and now >= self._tick_at:
            marked, self._tick = self._tick + marked, []
        taken = []
        for item in marked:  # one that was hurried, taken and marked again stands here twice
            if item.due:
                item.due = IDLE
                item.flushed_at = now
                taken.append(item)
        return taken
