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


class SendLimit:
    """Limits how long a WSGI server may take to send what it has pulled.

    Args:
        seconds: None for no limit, where it can't be told whether there is a client.
    """

    __slots__ = ("_seconds", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timer: Any = None

    @property
    def is_running(self) -> bool:
        """Something is being sent."""
        return self._timer is not None

    @property
    def has_run_out(self) -> bool:
        """It was not sent in time: a `Cut` was raised where the server waits."""
        return self._timer is not None and not self._timer.pending

    def start(self) -> None:
        """Something is handed to the server, by the greenlet that runs this."""
        if self._seconds is not None:
            self._timer = gevent.Timeout(self._seconds, Cut("the client does not read"))
            self._timer.start()

    def stop(self) -> None:
        """It was sent. Idempotent."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None


class PulledConnection(Connection):
    """A client whose response is pulled by a WSGI server.

    Args:
        sock: the client's socket, to see that it has left and to limit how long it may not read; None where the server
            does not tell.
    """

    __slots__ = ("_awake", "_limit", "_socket", "_watch")

    def __init__(self, hub: Hub, carrier: Carrier, address: str, sock: Any, **options: bool) -> None:
        super().__init__(hub, carrier, address, **options)
        self._awake = Event()
        self._socket = sock
        self._limit = SendLimit(None if sock is None else hub.settings.send_timeout)
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
        self._limit.stop()
        data = self._next()
        self._limit.start()
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
                self.hub.counts.bytes += len(self.carrier.heartbeat)
                return self.carrier.heartbeat
        self.cut()
        raise StopIteration

    def cut(self) -> None:
        """End the response. Idempotent; may be called from the hub."""
        if not self.is_closed:
            self.is_closed = True
            self._watch.stop()
            if self.hub.is_draining and self._limit.is_running:
                self._shut_down(socket.SHUT_RDWR)  # the server is sending, to a client that does not read
            self.hub.leave(self)
            self.hub.gone(self)
            self._awake.set()

    def close(self) -> None:
        """The server is done with the response, on whatever way. Idempotent."""
        if self._limit.has_run_out:
            self.hub.counts.closed["slow"] += 1
        self._limit.stop()
        self.cut()
        if self.hub.is_draining:
            self._shut_down(socket.SHUT_RD)  # the server would wait for a next request until its graceful timeout

    def _shut_down(self, how: int) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(how)
