"""The live path's end: producers may finish, clients are told to come back, then all is closed.

Who waits for nobody is sent away at once: a client none of whose streams has a producer at work. The others are when
their producers are done, or at the drain timeout; producers that are still at work then are ended.
"""

from __future__ import annotations

import logging
import random
import signal
from time import monotonic
from typing import Any

import gevent

from ..turns import give_way
from .connection import Connection
from .hub import Hub
from .sockets import LINGER

log = logging.getLogger("streaming.live")

#: Seconds between two looks at who can be sent away.
LOOK = 0.02
#: Milliseconds before the first client comes back; and for how many of them one millisecond each is reserved, at least.
RETRY_MS = 100
MIN_SPREAD_MS, MAX_SPREAD_MS = 1_000, 10_000
RESTART = 1012  # the close code of a WebSocket
RESTARTING = "the server is restarting"


def drain(hub: Hub, timeout: float) -> None:
    """Bring the live path to its end. Waits: `timeout` seconds for producers, then a little for the sockets."""
    hub.is_draining = True
    try:
        _drain(hub, timeout)
    finally:
        hub.close()


def _drain(hub: Hub, timeout: float) -> None:
    for ingest in list(hub.ingests):
        ingest.interrupt("draining", RESTARTING)
    spread = max(MIN_SPREAD_MS, min(MAX_SPREAD_MS, len(hub.connections)))
    deadline = monotonic() + timeout
    while (_send_away(hub, spread, only_idle=True) or hub.producers) and monotonic() < deadline:
        gevent.sleep(LOOK)
    if hub.producers:
        log.warning("drain: %d producers were ended after %g s", len(hub.producers), timeout)
        hub.counts.refused["drain_timeout"] += len(hub.producers)
        producers = list(hub.producers)
        gevent.killall(producers, block=False)
        gevent.joinall(producers, timeout=1)
    for channel in list(hub.channels.values()):
        for message in list(channel.producers.values()):
            message.end("error", RESTARTING)
    _send_away(hub, spread, only_idle=False)
    deadline = monotonic() + LINGER + 0.5
    while hub.connections and monotonic() < deadline:
        gevent.sleep(LOOK)


def drain_on_sigterm(hub: Hub) -> None:
    """Drain when the process is told to end, under a server that is not ours and has its own handler for that.

    Such a server would wait for the responses, and the responses for nobody. Where SIGTERM ends the process at once,
    nothing is changed. Idempotent.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if hub.drains_on_sigterm or not callable(previous):
        return
    hub.drains_on_sigterm = True

    def handle(number: int, frame: Any) -> None:
        if not hub.is_draining:
            hub.is_draining = True
            hub.loop.run_callback(gevent.spawn, drain, hub, hub.settings.drain_timeout)
        previous(number, frame)

    signal.signal(signal.SIGTERM, handle)


def _send_away(hub: Hub, spread: int, *, only_idle: bool) -> int:
    """Say goodbye. Returns how many connections are left that nothing was said to."""
    left = 0
    for number, connection in enumerate(list(hub.connections)):
        if only_idle and _is_served(connection):
            left += 1
        elif not connection.is_ending and not connection.is_closed:
            hub.counts.closed["restart"] += 1
            _make_due(hub, connection)
            connection.end(connection.bye("restart", RETRY_MS + random.randrange(spread), RESTART))
        if number % 100 == 99:
            give_way()
    return left


def _make_due(hub: Hub, connection: Connection) -> None:
    """Let the end of an answer go before the goodbye, though the flusher has not come to it yet."""
    for subscriber in connection.subscribers.values():
        if subscriber.follows:
            hub.seal(subscriber.channel)
            hub.flusher.serve(subscriber)


def _is_served(connection: Connection) -> bool:
    """A producer of this process is at work on one of its streams, or the app on what its client asks."""
    return connection.is_asking or any(subscriber.channel.producers for subscriber in connection.subscribers.values())
