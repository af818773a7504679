"""Turns: how whoever works without waiting lets others run, and how long that took them.

gevent switches when a greenlet waits. One whose input is always there already, or that computes, never does: so it
asks from time to time for how long the hub has not looked at its sockets and timers, and if that is too long, it sleeps
for a moment. What is measured is the hub's standstill, not the asker's own time: many who work side by side share it.
"""

from __future__ import annotations

from collections import deque
from time import monotonic, time
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from gevent import getcurrent
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Waiter

from .counts import GAP_BOUNDS, Buckets

#: Seconds that lets the hub look at its sockets; `sleep(0)` would run other callbacks for up to 5 ms first.
MOMENT = 1e-6
#: Seconds of standstill after which those who handle input give way.
PATIENCE = 0.002
#: Seconds of standstill that are worth noting.
NOTABLE = 0.001
#: Seconds for which the longest standstill of each second is kept.
KEPT = 60


class Pulse:
    """Notes when a hub looks at its sockets and timers, and how long it did not: its standstills, or gaps.

    A gap is the time from the moment at which the loop has woken to the one at which it is about to wait again: what
    callbacks and greenlets took in between, and before that what other threads took that had the interpreter lock. Two
    watchers see each turn of the loop, so nothing is missed, and a hub that sleeps is not woken for it.

    Attributes:
        at: when the hub last looked, by the monotonic clock. The loop's own time won't do: whoever starts a timer sets
            it.
        gaps: those of 1 ms and more, since `take`.
    """

    __slots__ = ("_began", "_longest", "_loop", "_waits_since", "_watchers", "at", "gaps")

    def __init__(self, loop: Any) -> None:
        self.at = self._began = self._waits_since = monotonic()
        self.gaps = Buckets(GAP_BOUNDS)
        self._longest: list[tuple[int, float]] = [(0, 0.0)] * KEPT
        self._loop = loop
        # The lowest priority, since gevent runs its callbacks in such a watcher too, and those count.
        self._watchers = loop.check(ref=False), loop.prepare(ref=False, priority=loop.MINPRI)
        self._watchers[0].start(self._wake)
        self._watchers[1].start(self._wait)

    def _wake(self) -> None:
        self.at = now = monotonic()
        # The loop notes the time when it wakes, before it has the interpreter lock; a time of day, which may jump.
        self._began = now - min(max(time() - self._loop.now(), 0.0), now - self._waits_since)

    def _wait(self) -> None:
        self._waits_since = now = monotonic()
        gap = now - self._began
        if gap >= NOTABLE:
            self.gaps.add(gap)
            second = int(now)
            place = second % KEPT
            noted, longest = self._longest[place]
            if noted != second or gap > longest:
                self._longest[place] = second, gap

    def take(self) -> tuple[list[int], float]:
        """The gaps since the last call: how many in each bucket, and their sum in seconds."""
        gaps, self.gaps = self.gaps, Buckets(GAP_BOUNDS)
        return gaps.counts, gaps.total

    def longest(self, seconds: int = KEPT) -> float:
        """The longest gap of the last `seconds` (at most 60), in seconds; 0 if none was notable."""
        since = int(monotonic()) - seconds
        return max((gap for second, gap in self._longest if second > since), default=0.0)


_pulses: WeakKeyDictionary[Any, Pulse] = WeakKeyDictionary()


def pulse() -> Pulse:
    """The pulse of this thread's hub; it begins with the first call."""
    hub = gevent.get_hub()
    found = _pulses.get(hub)
    if found is None:
        found = _pulses[hub] = Pulse(hub.loop)
    return found


def is_late(patience: float = PATIENCE) -> bool:
    """Whether the hub has not looked for that many seconds."""
    # A thread without a hub, of a server that is not gevent's, must not get one.
    return get_hub_if_exists() is not None and monotonic() - pulse().at > patience


class _Line:
    """Those who gave way to others on one hub, in the order in which they did.

    They go on one after the other, until the hub is late; the rest are first in line when it has looked again. Else
    whoever works longest would have each turn, and the others one step of theirs.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._waiting: deque[Waiter] = deque()
        # The lowest priority: at the usual one the loop runs timers before sockets, so that who gives way would be the
        # first to go on.
        self._timer = loop.timer(MOMENT, priority=loop.MINPRI)

    def wait(self) -> None:
        """Wait for one's turn, in the greenlet that calls. A callback of the hub can't."""
        hub = gevent.get_hub()
        if getcurrent() is hub:
            return
        waiter = Waiter(hub)  # one whose greenlet was killed meanwhile does nothing
        self._waiting.append(waiter)
        self._start()
        waiter.get()

    def _start(self) -> None:
        if not self._timer.active:
            self._loop.update_now()
            self._timer.start(self._go_on)

    def _go_on(self) -> None:
        """Runs in the hub."""
        beat = pulse()
        for _ in range(len(self._waiting)):
            self._waiting.popleft().switch(None)
            if monotonic() - beat.at > PATIENCE:
                break
        if self._waiting:
            self._start()


_lines: WeakKeyDictionary[Any, _Line] = WeakKeyDictionary()


def give_way() -> None:
    """Let the hub look, and others run: sockets and timers first, then those who gave way before."""
    hub = gevent.get_hub()
    line = _lines.get(hub)
    if line is None:
        line = _lines[hub] = _Line(hub.loop)
    line.wait()


def breathe(patience: float = PATIENCE) -> None:
    """Give way if the hub is late."""
    if is_late(patience):
        give_way()
