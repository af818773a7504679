"""Noticing that a client has left while nothing is being written to it.

A write after the client's departure still succeeds once, and a page that waits for its backend writes nothing: so
somebody must look at the socket. A READ watcher wakes when the client sends something or closes; `poll` with POLLRDHUP
tells which, without taking bytes away. Bytes of a next request keep a socket readable, so then the watcher is replaced
by a look every quarter of a second.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.monkey import get_original

POLL_INTERVAL = 0.25  # seconds
# gevent's `select.poll` cooperates; this one answers at once.
_poll = get_original("select", "poll")
_LEFT = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL
#: Our handler puts the client's socket here; gunicorn's own workers have it under the other names.
SOCKET_KEY = "streaming.socket"
#: Our handler puts an object here: what a view sets as its `connection` gets the client's socket (`handler.py`).
TAKEOVER_KEY = "streaming.takeover"
_SOCKET_KEYS = (SOCKET_KEY, "gunicorn.sock", "gunicorn.socket")


def client_socket(environ: Mapping[str, Any]) -> Any:
    """The socket of the request's client; None where the server does not tell, as in Flask's test client."""
    return next((environ[key] for key in _SOCKET_KEYS if key in environ), None)


class DepartureWatch:
    """Calls back when a client closes its connection, or the sending half of it, or resets it.

    Args:
        sock: the client's socket; None watches nothing.
        callback: called once, on the hub; it must not wait. It may call `stop`.
    """

    def __init__(self, sock: Any, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._watcher: Any = None
        self._descriptor = -1 if sock is None else sock.fileno()

    def start(self) -> None:
        """Begin to watch. A client that has left already is noticed at the hub's next turn."""
        if self._descriptor >= 0:
            self._watcher = gevent.get_hub().loop.io(self._descriptor, 1)
            self._watcher.start(self._look)

    def stop(self) -> None:
        """Watch no more; must come before the descriptor is closed. Idempotent."""
        self._callback = None
        self._close_watcher()

    def _close_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _look(self) -> None:
        poll = _poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        events = poll.poll(0)
        callback = self._callback
        if callback is not None and events and events[0][1] & _LEFT:
            self.stop()
            callback()
        else:
            self._close_watcher()
            self._watcher = gevent.get_hub().loop.timer(POLL_INTERVAL)
            self._watcher.start(self._look)
