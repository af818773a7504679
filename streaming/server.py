"""The server: gevent's pywsgi with what streaming needs, for `python app.py` and as a gunicorn worker.

One greenlet per connection runs `StreamingHandler.handle`: it reads a request, calls the app and writes what the app's
iterable yields. A live connection (`live/`) is no greenlet: after the head of its response the handler hands it the
socket, and ends.

Drain. On SIGTERM the server stops accepting, closes connections that wait for a next request, and lets responses in
flight finish within the drain timeout; those that are left then lose their socket, which ends them like a client's
departure does. Live connections are told to come back (`live/drain.py`).
"""

from __future__ import annotations

import gc
import logging
import os
import re
import resource
import signal
import socket
import sys
from ssl import SSLSocket, SSLWantReadError
from typing import Any
from urllib.parse import urlsplit

import gevent
from gevent import pywsgi
from gevent.event import Event
from gevent.monkey import is_module_patched
from gevent.pool import Pool
from gunicorn.workers.ggevent import GeventPyWSGIWorker, PyWSGIHandler

from .departure import SOCKET_KEY, TAKEOVER_KEY
from .live.bodies import BODY_KEY, abandon, is_abandoned, linger
from .live.drain import drain
from .live.hub import Hub
from .pages.response import PAGE_KEY
from .state import EXTENSION, AppState

log = logging.getLogger("streaming.server")

DRAIN_TIMEOUT = 5.0  # seconds, for an app without Streaming
# Seconds that a client may take for a request's head, or wait before its next request.
HEAD_TIMEOUT = 75.0
# Seconds for the rest of a body that the app did not read; the connection can serve no other request before.
BODY_TIMEOUT = 5.0
# Seconds that the end of the drain may take after its timeout: goodbyes, and clients that close.
AFTER_DRAIN = 3.0
MAX_CONNECTIONS = 10_000  # of `serve`; gunicorn has worker_connections


class ClientTooSlow(OSError):
    """A client took too long to send a request; pywsgi ends the connection without a word."""


class Takeover:
    """Where a view puts the live connection that is to get the client's socket."""

    connection: Any = None


class StreamingHandler(pywsgi.WSGIHandler):
    """Handles the requests of one connection."""

    #: Between the first byte of a request and the end of its response.
    is_busy = False
    path: str

    def handle(self) -> None:
        """Handle requests until the connection ends."""
        self.server.handlers.add(self)
        try:
            super().handle()
        finally:
            self.server.handlers.discard(self)

    def handle_one_request(self) -> Any:
        """Read a request, in limited time, and answer it."""
        self._head_timer = gevent.Timeout.start_new(HEAD_TIMEOUT, ClientTooSlow)
        try:
            return super().handle_one_request()
        finally:
            self._head_timer.close()

    def read_request(self, raw_requestline: str) -> Any:
        """Note that a request has begun, then read its headers."""
        self.is_busy = True
        result = super().read_request(raw_requestline)
        self._head_timer.close()
        if not self.path.startswith("/"):  # a whole URL, as a proxy is asked for it (RFC 9112, 3.2.2)
            parts = urlsplit(self.path)
            self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return result

    def _check_http_version(self) -> bool:
        return re.fullmatch(r"HTTP/\d\.\d", self.request_version) is not None and super()._check_http_version()

    def _handle_client_error(self, ex: Exception) -> Any:
        """Answer a request that can't be read; not at all if the client has left, or took too long."""
        if isinstance(ex, OSError):
            log.debug("a client ended in the middle of its request: %s", ex)
            return None
        # Whatever else a head can make the parser raise is a client's fault, and no reason for a traceback.
        return super()._handle_client_error(ex if isinstance(ex, ValueError) else ValueError(str(ex)))

    def format_request(self) -> str:
        """A line of the access log of `python app.py`, without the control characters of a hostile request."""
        return str(super().format_request()).encode("unicode_escape").decode("ascii")

    def handle_one_response(self) -> None:
        """Run the app; afterwards close the connection if the server is draining."""
        self._body_timer: gevent.Timeout | None = None
        try:
            super().handle_one_response()
        finally:
            self.is_busy = False
            if self._body_timer is not None:
                self.close_connection |= not self._body_timer.pending
                self._body_timer.close()
            self.close_connection |= self.server.is_draining or is_abandoned(self.wsgi_input)
            # A connection that waits keeps nothing of its last request.
            self.environ: dict[str, Any] = {}
        if is_abandoned(self.wsgi_input):
            linger(self.socket)

    def run_application(self) -> None:
        """Run the app. pywsgi then reads what the app left of the request's body, here for a limited time."""
        try:
            super().run_application()
        finally:
            if self._takeover.connection is not None:  # the answer became another one, or none
                self._takeover.connection.cut()
            abandon(self.environ)  # a body that the app left unread, if it is long
            self._body_timer = gevent.Timeout.start_new(BODY_TIMEOUT, ClientTooSlow)

    def get_environ(self) -> dict[str, Any]:
        """The WSGI environ, with the request's target as it came and the client's socket."""
        environ: dict[str, Any] = super().get_environ()
        environ["REQUEST_URI"] = self.path
        environ[SOCKET_KEY] = self.socket
        environ[TAKEOVER_KEY] = self._takeover = Takeover()
        environ[BODY_KEY] = self.wsgi_input
        return environ

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        """Begin a response; the last one of its connection, if the rest of the request's body is left unread.

        HTTP/1.0 has no chunks: without a length the connection's end is the body's.
        """
        if self.request_version != "HTTP/1.1" and not any(name.lower() == "content-length" for name, _ in headers):
            self.close_connection = True
        if is_abandoned(self.wsgi_input):
            headers = [*headers, ("Connection", "close")]
        return super().start_response(status, headers, exc_info)

    def finalize_headers(self) -> None:
        """Add what the headers lack. A HEAD is answered without a body, so without a last chunk too."""
        super().finalize_headers()
        if self.command == "HEAD":
            self.response_use_chunked = False
        if self._takeover.connection is not None and self.code == 200 and self.response_use_chunked:
            self.response_headers.append((b"Connection", b"close"))

    def process_result(self) -> None:
        """Send what the app yields; a page's headers with its first chunk, even when that is empty."""
        connection = self._takeover.connection
        if connection is not None and self.code in (101, 200):
            self._hand_over(connection)
            return
        for data in self.result:
            if data or (not self.headers_sent and PAGE_KEY in self.environ):
                self.write(data)
        if self.status and not self.headers_sent:
            self.write(b"")
        if self.response_use_chunked:
            self._sendall(b"0\r\n\r\n")

    def _hand_over(self, connection: Any) -> None:
        """Send the head, and give the socket to a live connection.

        A TLS socket can't be taken from its owner: there this greenlet waits until the connection has ended.
        """
        self.write(b"")
        self.close_connection = True
        self.socket.settimeout(0.0)
        try:
            data = self.rfile.peek()  # what the client has sent already; the next byte is not waited for
        except SSLWantReadError:
            data = b""
        self._takeover.connection = None
        if isinstance(self.socket, SSLSocket):
            ended = Event()
            connection.take(self.socket, data, ended.set)
            ended.wait()
        else:
            connection.take(self.socket, data, None)

    def _write(self, data: bytes) -> None:
        if self.command != "HEAD":
            super()._write(data)


class GunicornHandler(StreamingHandler, PyWSGIHandler):
    """The same under gunicorn, whose access log it writes."""

    def log_request(self) -> None:
        """Write a line of the access log; a request that could not be read has none, but an error in the log."""
        if self.environ:
            super().log_request()


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

    def close(self) -> None:
        """Stop accepting and begin to drain; does not wait. Idempotent."""
        super().close()
        if not self.is_draining:
            self.is_draining = True
            self._shut_down(only_idle=True)
            gevent.spawn_later(self.drain_timeout, self._shut_down, only_idle=False)
            hub = None if self._state is None else self._state.made(Hub)
            if hub is not None:
                draining = gevent.spawn(drain, hub, self.drain_timeout)
                if self.pool is not None:  # the handlers: who waits for them to end waits for the drain too
                    self.pool.add(draining, blocking=False)

    def _shut_down(self, *, only_idle: bool) -> None:
        cut = [handler for handler in self.handlers if not (only_idle and handler.is_busy)]
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
        super().run()


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
