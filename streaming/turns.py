"""Turns: how whoever works without waiting lets others run.

gevent switches when a greenlet waits. One whose input is always there already, or that computes, never does: so it
asks from time to time for how long the hub has not looked at its sockets and timers, and if that is too long, it sleeps
for a moment. What is measured is the hub's standstill, not the asker's own time: many who work side by side share it.
"""

from __future__ import annotations

from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from gevent._hub_local import get_hub_if_exists

#: Seconds that lets the hub look at its sockets; `sleep(0)` would run other callbacks for up to 5 ms first.
MOMENT = 1e-6
#: Seconds of standstill after which those who handle input give way.
PATIENCE = 0.002


class Pulse:
    """Notes when a hub looks; `at` is the last time, by the monotonic clock.

    The loop's own time won't do: whoever starts a timer sets it.
    """

    __slots__ = ("_watcher", "at")

    def __init__(self, loop: Any) -> None:
        self.at = monotonic()
        self._watcher = loop.check(ref=False)
        self._watcher.start(self._beat)

    def _beat(self) -> None:
        self.at = monotonic()


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


def give_way() -> None:
    """Let the hub look, and others run."""
    gevent.sleep(MOMENT)


def breathe(patience: float = PATIENCE) -> None:
    """Give way if the hub is late."""
    if is_late(patience):
        give_way()
