"""A connection as a WSGI iterable, where the socket is not ours: under `gunicorn -k gevent`, in Flask's test client.

The server's greenlet pulls: each pull cuts what is due, or waits for something to be. The flusher only wakes it.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from ..departure import DepartureWatch
from ..errors import Cut
from .connection import Connection
from .transports.carrier import Carrier

if TYPE_CHECKING:
    from .hub import Hub


class PulledConnection(Connection):
    """A client whose response is pulled by a WSGI server.

    Args:
        sock: the client's socket, to see that it has left and to limit how long it may not read; None where the server
            does not tell.
    """

    __slots__ = ("_awake", "_socket", "_timer", "_watch")

    def __init__(self, hub: Hub, carrier: Carrier, address: str, sock: Any, **options: bool) -> None:
        super().__init__(hub, carrier, address, **options)
        self._awake = Event()
        self._socket = sock
        self._timer: Any = None
        self._watch = DepartureWatch(sock, self.cut)
        self._watch.start()

    def deliver(self, now: float) -> bool:
        """Wake the greenlet that pulls. What is due then is put together there."""
        self._awake.set()
        return False

    def __iter__(self) -> PulledConnection:
        return self

    def __next__(self) -> bytes:
        """The next message; waits for it, in the server's greenlet. Ends when the connection does.

        If the server can't send it within the send timeout, a `Cut` is raised where it waits.
        """
        self._stop_timer()
        data = self._next()
        if self._socket is not None:
            self._timer = gevent.Timeout(self.hub.settings.send_timeout, Cut("the client does not read"))
            self._timer.start()
        return data

    def _next(self) -> bytes:
        while not self.is_closed:
            data = self.compose(monotonic())
            if data is not None:
                self.hub.counts.messages += 1
                self.hub.counts.bytes += len(data)
                return data
            if self.is_ending and self._farewell is None and not self.has_due:
                break
            self._awake.clear()
            if not self._awake.wait(self.hub.settings.ping_interval):
                return self.carrier.heartbeat
        self.cut()
        raise StopIteration

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def cut(self) -> None:
        """End the response. Idempotent; may be called from the hub."""
        if not self.is_closed:
            self.is_closed = True
            self._watch.stop()
            self.hub.leave(self)
            self.hub.gone(self)
            self._awake.set()

    def close(self) -> None:
        """The server is done with the response, on whatever way. Idempotent."""
        if self._timer is not None and not self._timer.pending:
            self.hub.counts.closed["slow"] += 1
        self._stop_timer()
        self.cut()
        if self.hub.is_draining and self._socket is not None:
            # The server would wait for the client's next request until its graceful timeout.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
