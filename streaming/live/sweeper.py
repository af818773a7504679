"""What happens because nothing did: heartbeats, clients that don't read or answer, idle streams, unwatched messages.

One greenlet looks at everything once in a while, in slices, so that ten thousand connections cost no timer each and
never stop the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import gevent

from ..turns import give_way
from .sockets import SocketConnection

if TYPE_CHECKING:
    from .hub import Hub

log = logging.getLogger("streaming.live")

#: Seconds between two looks, at most; a quarter of the shortest time that is looked for, if that is less.
PERIOD = 1.0
#: How often all streams are looked at within STREAMING_IDLE_TTL: 100,000 of them take 0.15 s of work.
LOOKS_PER_TTL = 10
SLICE = 200  # looked at between two chances for others
#: Limits of a whole process, at which an operator has to do something; and seconds between two warnings of one.
CAPACITY = ("max_connections", "max_connections_per_ip", "max_streams")
WARNING_INTERVAL = 60.0

Item = TypeVar("Item")


class Sweeper:
    """Looks for what is overdue.

    Attributes:
        looks: how often it has.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        settings = hub.settings
        shortest = min(settings.ping_interval, settings.send_timeout, settings.idle_ttl)
        self._period = max(0.01, min(PERIOD, shortest / 4))
        self._greenlet: gevent.Greenlet | None = None
        self._warned: dict[str, tuple[int, float]] = {}  # by limit: how many had been refused, and when that was said
        self._streams_at = 0.0  # when it is time to look at all streams again
        self.looks = 0

    def start(self) -> None:
        """Start the greenlet."""
        self._greenlet = gevent.spawn(self._run)

    @property
    def is_alive(self) -> bool:
        """Whether its greenlet is there."""
        return self._greenlet is not None and not self._greenlet.dead

    def stop(self) -> None:
        """End it. Idempotent."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self) -> None:
        while True:
            gevent.sleep(self._period)
            self.looks += 1
            try:
                self._sweep()
            except Exception:  # the next look must happen, whatever one connection or stream does
                log.exception("a look at what is overdue failed")

    def _sweep(self) -> None:
        hub, settings = self._hub, self._hub.settings
        for connection in _slices(hub.connections):
            if isinstance(connection, SocketConnection) and not connection.is_closed:
                self._check(connection)
        if monotonic() >= self._streams_at:
            self._streams_at = monotonic() + settings.idle_ttl / LOOKS_PER_TTL
            self._forget_idle()
        for message in _slices(hub.unwatched):
            message.check_watched(monotonic())
        self._warn(monotonic())
        hub.flusher.forget_cuts()  # those of pulled connections, which cut beside its turns

    def _forget_idle(self) -> None:
        """Forget the streams that nobody has used for the TTL, and up to a tenth more."""
        hub, settings = self._hub, self._hub.settings
        for channel in _slices(chain(hub.channels.values(), hub.internal.values())):
            is_busy = channel.is_watched or channel.producers or channel.outbox or channel.stream.open_messages
            is_known = hub.find(channel.stream.sid) is channel
            if is_known and not is_busy and monotonic() - channel.used_at >= settings.idle_ttl:
                hub.forget(channel)

    def _warn(self, now: float) -> None:
        """Say which limits of the process turn clients away."""
        hub = self._hub
        for limit in CAPACITY:
            refused = hub.counts.refused[limit]
            told, at = self._warned.get(limit, (0, float("-inf")))
            if refused > told and now - at >= WARNING_INTERVAL:
                self._warned[limit] = refused, now
                bound = getattr(hub.settings, limit)
                log.warning("STREAMING_%s, %d, was reached: %d refused", limit.upper(), bound, refused - told)

    @staticmethod
    def _check(connection: SocketConnection) -> None:
        try:
            connection.check(monotonic())
        except Exception:
            log.exception("a connection could not be looked after and is cut")
            connection.cut()


def _slices(items: Iterable[Item]) -> Iterator[Item]:
    """The items as they are now; others get a chance in between, so an item may have gone meanwhile."""
    for number, item in enumerate(list(items)):
        if number % SLICE == SLICE - 1:
            give_way()
        yield item
