"""The coalescing greenlet: it alone decides when what goes to which connection.

Producers, subscribers and sockets that became writable only say that something is due; they do not send. The flusher
wakes when the schedule says so, puts the text that was appended into the streams, and serves each connection that has
something due one message. Sending never waits: what a socket does not take stays with its connection.

It gives way to others after each millisecond of work, so a flush to thousands of connections does not stop the hub; and
a connection far behind gets one message a round, so it does not hold up those who are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic

import gevent
from gevent.event import Event

from ..counts import Counts
from ..protocol.cut import Cut
from ..protocol.schedule import Schedule
from ..turns import MOMENT, give_way
from .channel import Channel, Tick
from .connection import Connection
from .subscriber import Subscriber

log = logging.getLogger("streaming.live")

#: Seconds between two looks at clients that get whole texts, whose turn for text comes four times a second.
WHOLE_INTERVAL = 0.05
#: Seconds of work after which the flusher gives way.
BUDGET = 0.001
#: Connections that are served between two looks at the clock.
LOOK = 16


class Flusher:
    """Flushes streams and serves connections, from one greenlet.

    Args:
        flush_interval, background_interval: seconds.
        seal: puts what was appended to a channel into its stream.
        counts: where flushes are counted.

    Attributes:
        touched: channels whose streams remember cuts; they forget them at the end of a turn, when they were shared.
    """

    def __init__(
        self, flush_interval: float, background_interval: float, seal: Callable[[Channel], None], counts: Counts
    ) -> None:
        self._flushes: Schedule[Channel] = Schedule(flush_interval)
        self._background: Schedule[Tick] = Schedule(background_interval, leading=False)
        self._whole: Schedule[Tick] = Schedule(WHOLE_INTERVAL, leading=False)
        self._seal = seal
        self._ready: dict[Connection, None] = {}
        self._wake = Event()
        self._greenlet: gevent.Greenlet | None = None
        self._counts = counts
        self._looks_at = inf
        self._rest_at = 0.0  # when this turn has to let others run
        self._sending: list[float] = []  # when the text came that this turn sends
        self.touched: dict[Channel, None] = {}

    def start(self) -> None:
        """Start the greenlet."""
        self._greenlet = gevent.spawn(self._run)

    @property
    def is_alive(self) -> bool:
        """Whether its greenlet is there."""
        return self._greenlet is not None and not self._greenlet.dead

    def stop(self) -> None:
        """End it; what is due stays due. Idempotent."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    # -- what others say; none of these waits or switches

    def mark(self, channel: Channel) -> None:
        """Text was appended: the channel is due at once, or at the next tick."""
        self._flushes.mark(channel, monotonic())
        self._call()

    def hurry(self, channel: Channel) -> None:
        """The channel is due at once."""
        self._flushes.hurry(channel)
        self._call()

    def mark_background(self, channel: Channel) -> None:
        """Those in the background are due at the next background tick."""
        self._background.mark(channel.tick, monotonic())
        self._call()

    def mark_whole(self, channel: Channel) -> None:
        """Clients that get whole texts are to be looked at again soon."""
        if channel.whole_tick is None:
            channel.whole_tick = Tick(channel)
        self._whole.mark(channel.whole_tick, monotonic())
        self._call()

    def ready(self, connection: Connection) -> None:
        """The connection has something to send, and can take it."""
        self._ready[connection] = None
        self._call()

    def serve(self, subscriber: Subscriber) -> None:
        """The subscriber may lack something."""
        self._is_due(subscriber)
        self._call()

    def _call(self) -> None:
        """Wake the greenlet, if it would look only later."""
        at = self._next_at()
        if at is not None and at < self._looks_at:
            self._looks_at = at
            self._wake.set()

    def _next_at(self) -> float | None:
        """When something is due: 0 for at once, None for never."""
        if self._ready:
            return 0.0
        times = [at for at in (self._flushes.next_at, self._background.next_at, self._whole.next_at) if at is not None]
        return min(times, default=None)

    # -- the greenlet

    def _run(self) -> None:
        while True:
            at = self._next_at()
            self._looks_at = inf if at is None else at
            self._wake.clear()
            wait = None if at is None else max(at - monotonic(), MOMENT)
            self._wake.wait(wait)
            self._turn()

    def _turn(self) -> None:
        now = monotonic()
        self._rest_at = now + BUDGET
        for channel in self._flushes.take(now):
            try:
                self._flush(channel, now)
            except Exception:  # one stream's fault must not end the service of all
                log.exception("the stream %s could not be flushed", channel.stream.sid)
            self._breathe()
        for tick in self._background.take(now):
            for number, subscriber in enumerate(list(tick.channel.background)):
                self._is_due(subscriber)
                if number % LOOK == 0:
                    self._breathe()
        for tick in self._whole.take(now):
            for number, subscriber in enumerate(list(tick.channel.followers)):
                if not subscriber.connection.deltas:
                    self._is_due(subscriber)
                if number % LOOK == 0:
                    self._breathe()
        ready, self._ready = self._ready, {}
        for number, connection in enumerate(ready):
            try:
                if connection.deliver(now):
                    self._ready[connection] = None
            except Exception:
                log.exception("a connection could not be served and is cut")
                connection.cut()
            if number % LOOK == 0:
                self._breathe()
        self._note_delays()
        self.forget_cuts()

    def _note_delays(self) -> None:
        """What was flushed in this turn has been sent, to all that could take it."""
        if self._sending:
            now = monotonic()
            for appended_at in self._sending:
                self._counts.delays.add(now - appended_at)
            self._sending.clear()

    def forget_cuts(self) -> None:
        """Let go of the cuts that streams remember."""
        for channel in self.touched:
            channel.stream.forget_cuts()
        self.touched.clear()

    def _breathe(self) -> None:
        """Give way, once the time is used up."""
        if monotonic() > self._rest_at:
            give_way()
            self._rest_at = monotonic() + BUDGET

    def _flush(self, channel: Channel, now: float) -> None:
        """Put the text in and see to all who read the stream."""
        self._counts.flushes += 1
        self.touched[channel] = None
        self._seal(channel)
        if channel.appended_at:
            if channel.followers:
                self._sending.append(channel.appended_at)
            channel.appended_at = 0.0
        self._serve_followers(channel, now)
        if channel.background:
            self._background.mark(channel.tick, monotonic())
            if channel.stream.urgent_after(channel.announced):
                for subscriber in channel.background:
                    self._is_due(subscriber)
        channel.announced = channel.stream.head

    def _serve_followers(self, channel: Channel, now: float) -> None:
        """Send the next cut to those who can have it at once, usually all; the others are due.

        Whoever is up to date shares one cursor, one cut and its bytes: so a reader costs little more than its `send`.
        """
        stream = channel.stream
        cut: Cut | None = None
        start = carrier = None
        data, sent = b"", 0
        for number, subscriber in enumerate(list(channel.followers)):  # some may leave when others get their turn
            connection = subscriber.connection
            if cut is None and connection.is_direct:
                cut = stream.cut(subscriber.cursor)
                start = cut.start if cut.frames and cut.after is stream.tip() else None
            if cut is None or subscriber.cursor is not start or not connection.is_direct:
                self._is_due(subscriber)
            else:
                if connection.carrier is not carrier:
                    self._count(sent, data)
                    carrier, data, sent = connection.carrier, connection.carrier.message(cut, stream.epoch), 0
                subscriber.cursor = cut.after
                sent += 1
                try:
                    connection.write(data, now)
                except Exception:
                    log.exception("a connection could not be served and is cut")
                    connection.cut()
            if number % LOOK == 0:
                self._breathe()
        self._count(sent, data)

    def _count(self, messages: int, data: bytes) -> None:
        self._counts.messages += messages
        self._counts.bytes += messages * len(data)

    def _is_due(self, subscriber: Subscriber) -> None:
        connection = subscriber.connection
        if connection.subscribers.get(subscriber.channel.stream.sid) is not subscriber:
            return  # it has left
        if not subscriber.is_due:
            subscriber.is_due = True
            connection.due.append(subscriber)
        if not connection.is_blocked:
            self._ready[connection] = None
