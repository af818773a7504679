"""The server: gevent's pywsgi with what streaming needs, for `python app.py` and as a gunicorn worker.

`handler.py` has what handles the requests of a connection.

Drain. On SIGTERM the server stops accepting, closes connections that wait for a next request, and lets responses in
flight finish within the drain timeout; those that are left then lose their socket, which ends them like a client's
departure does. Live connections are told to come back (`live/drain.py`).
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import closing
from typing import Any

import gevent
from gevent import pywsgi
from gevent.monkey import is_module_patched
from gevent.pool import Pool
from gunicorn.workers.ggevent import GeventPyWSGIWorker

from .handler import HEAD_TIMEOUT, ClientTooSlow, GunicornHandler, StreamingHandler
from .live.drain import drain
from .live.hub import Hub
from .metrics import IS_SHARED
from .state import EXTENSION, AppState

log = logging.getLogger("streaming.server")

DRAIN_TIMEOUT = 5.0  # seconds, for an app without Streaming
# Seconds that the end of the drain may take after its timeout: goodbyes, and clients that close.
AFTER_DRAIN = 3.0
MAX_CONNECTIONS = 10_000  # of `serve`; gunicorn has worker_connections


#: The drains of live paths that have begun; each ends by itself.
_drains: list[gevent.Greenlet] = []


class StreamingServer(pywsgi.WSGIServer):
    """Accepts connections, and drains when it is closed.

    Attributes:
        is_draining: it accepts no more, and closes each connection after its response.
    """

    handler_class = StreamingHandler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handlers: set[StreamingHandler] = set()
        self.is_draining = False
        if self._state is not None:
            self._state.is_draining = self._state.is_over = False  # those of a server before this one

    @property
    def drain_timeout(self) -> float:
        """Seconds that responses have after `close`."""
        return DRAIN_TIMEOUT if self._state is None else float(self._state.settings.drain_timeout)

    @property
    def _state(self) -> AppState | None:
        state: AppState | None = getattr(self.application, "extensions", {}).get(EXTENSION)
        return state

    def init_socket(self) -> None:
        """Open the listener. Small answers go out at once; accepted sockets inherit that."""
        super().init_socket()
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> Any:
        """Make a TLS connection, in limited time, and handle its requests."""
        try:
            with gevent.Timeout(HEAD_TIMEOUT, ClientTooSlow):
                sock = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError as error:
            log.debug("no TLS connection came about: %s", error)
            return None
        with closing(sock):
            return self.handle(sock, address)

    def close(self) -> None:
        """Stop accepting and begin to drain; does not wait. Idempotent."""
        super().close()
        if not self.is_draining:
            self.is_draining = True
            if self._state is not None:
                self._state.is_draining = True
            self._shut_down(only_idle=True)
            gevent.spawn_later(self.drain_timeout, self._shut_down, only_idle=False)
            hub = None if self._state is None else self._state.made(Hub)
            if hub is not None:
                _drains.append(gevent.spawn(drain, hub, self.drain_timeout))

    def _shut_down(self, *, only_idle: bool) -> None:
        if self._state is not None and not only_idle:
            self._state.is_over = True
        cut = [handler for handler in self.handlers if not (handler.has_handed_over or (only_idle and handler.is_busy))]
        for handler in cut:
            try:
                handler.socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                log.debug("a connection ended by itself while draining: %s", error)
        if cut and not only_idle:
            log.warning("drain: %d responses were cut after %g s", len(cut), self.drain_timeout)


class StreamingWorker(GeventPyWSGIWorker):
    """The gunicorn worker: `worker_class = "streaming.server.StreamingWorker"`."""

    server_class = StreamingServer
    wsgi_handler = GunicornHandler

    def run(self) -> None:
        """Serve until gunicorn ends this worker."""
        raise_descriptor_limit()
        tune_garbage_collection()
        if self.cfg.workers > 1 and self.age == 1:  # said once, not by each worker
            if not IS_SHARED:
                self.log.warning(
                    "/metrics answers for one worker: set WEB_CONCURRENCY, not -w, so that they share them"
                )
            self.log.warning(
                "%d workers: a stream lives in the worker whose producer writes it, and clients that reach another do "
                "not see it; for live streams run one worker",
                self.cfg.workers,
            )
        super().run()
        while not all(draining.dead for draining in _drains):
            self.notify()
            gevent.sleep(0.05)


def tune_garbage_collection() -> None:
    """Collect garbage more rarely, and never look again at what exists now: the app, its modules, its templates.

    A collection stops every thread for as long as it takes to look at all objects, and parsing a large record makes so
    many that Python would start one again and again. Finished pages leave few cycles, so there is little to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets us: a page has two, and the usual soft limit is 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(app: Any, host: str, port: int) -> None:
    """Serve an app until SIGTERM or SIGINT, then drain. Blocks the main greenlet.

    Raises:
        SystemExit: the address can't be bound, or `socket` is not gevent's; the text says what to do.
    """
    if not is_module_patched("socket"):
        sys.exit("gevent must patch the standard library first: from gevent import monkey; monkey.patch_all()")
    server = StreamingServer((host, port), app, spawn=Pool(MAX_CONNECTIONS))
    try:
        server.start()
    except OSError as error:
        # gevent adds the address to the error's own text.
        sys.exit(
            f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}); set HOST and PORT to a free address"
        )
    raise_descriptor_limit()
    tune_garbage_collection()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, server.close)
    print(f"Serving on http://{host}:{server.server_port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    server.serve_forever(stop_timeout=server.drain_timeout + AFTER_DRAIN)
    gevent.joinall(_drains)
