"""What handles the requests of one connection, on our servers.

One greenlet per connection runs `StreamingHandler.handle`: it reads a request, calls the app and writes what the app's
iterable yields. A live connection (`live/`) is no greenlet: after the head of its response the handler hands it the
socket, and ends.
"""

from __future__ import annotations

import logging
import re
from errno import EBADF
from ssl import SSLError, SSLSocket, SSLWantReadError
from typing import Any
from urllib.parse import urlsplit

import gevent
from gevent import pywsgi
from gevent.event import Event
from gunicorn.workers.ggevent import PyWSGIHandler

from .departure import SOCKET_KEY, TAKEOVER_KEY
from .live.bodies import BODY_KEY, abandon, is_abandoned, linger
from .pages.response import PAGE_KEY

log = logging.getLogger("streaming.server")

# Seconds that a client may take for a request's head, or wait before its next request.
HEAD_TIMEOUT = 75.0
# Seconds for the rest of a body that the app did not read; the connection can serve no other request before.
BODY_TIMEOUT = 5.0


class ClientTooSlow(OSError):
    """A client took too long to send a request; pywsgi ends the connection without a word."""


def parse_headers(file: Any, *rest: Any) -> Any:
    """Parse the headers of a request, and refuse a head that others may read differently.

    Who stands before us would take its end, or its body, for other requests (RFC 9112, sections 5.1, 5.2 and 6.3).

    Raises:
        ValueError: answered with 400, and the connection is closed.
    """
    headers = pywsgi.headers_factory(file, *rest)
    if headers.defects or any("\n" in value for value in headers.values()):
        raise ValueError("a header that is not of the grammar")
    lengths = headers.get_all("Content-Length", [])
    codings = headers.get_all("Transfer-Encoding", [])
    if len(lengths) > 1 or not all(re.fullmatch("[0-9]+", length.strip(" \t")) for length in lengths):
        raise ValueError("Content-Length is not one number")
    if len(codings) > 1 or (lengths and codings):
        raise ValueError("more than one way to tell where the body ends")
    return headers


class Takeover:
    """Where a view puts the live connection that is to get the client's socket.

    Attributes:
        is_answered: its response is the one that goes out; something behind the view may put another in its place.
    """

    connection: Any = None
    is_answered = False


class StreamingHandler(pywsgi.WSGIHandler):
    """Handles the requests of one connection."""

    MessageClass = staticmethod(parse_headers)
    #: Between the first byte of a request and the end of its response.
    is_busy = False
    #: A live connection uses the socket, for as long as that is open.
    has_handed_over = False
    path: str

    def handle(self) -> None:
        """Handle requests until the connection ends."""
        self.server.handlers.add(self)
        try:
            super().handle()
        except OSError as error:
            log.debug("a client's connection broke: %s", error)
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

    def handle_error(self, kind: Any, error: Any, found: Any) -> None:
        """Answer a failure with 500 and a traceback in the log; none if the client's connection broke, or we cut it."""
        is_broken = isinstance(error, SSLError | ConnectionError | ClientTooSlow)
        if is_broken or (isinstance(error, OSError) and error.errno == EBADF):
            log.debug("a client's connection broke: %s", error)
            self.close_connection = True
            return
        super().handle_error(kind, error, found)

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
        if self._takeover.is_answered and self.response_use_chunked:
            self.response_headers.append((b"Connection", b"close"))

    def process_result(self) -> None:
        """Send what the app yields; a page's headers with its first chunk, even when that is empty."""
        connection = self._takeover.connection
        if connection is not None and self._takeover.is_answered:
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
        self.has_handed_over = True
        if isinstance(self.socket, SSLSocket):
            ended = Event()
            connection.take(self.socket, data, ended.set)
            ended.wait()
        else:
            connection.take(self.socket, data, None)
            self._takeover.connection = None

    def _write(self, data: bytes) -> None:
        if self.command != "HEAD":
            super()._write(data)


class GunicornHandler(StreamingHandler, PyWSGIHandler):
    """The same under gunicorn, whose access log it writes."""

    def log_request(self) -> None:
        """Write a line of the access log; a request that could not be read has none, but an error in the log."""
        if self.environ:
            # gunicorn writes these as they came; what is no text would steer the terminal of whoever reads the log.
            self.environ.update(
                {
                    key: value.encode("unicode_escape").decode("ascii")
                    for key, value in self.environ.items()
                    if isinstance(value, str) and not value.isprintable()
                }
            )
            super().log_request()
