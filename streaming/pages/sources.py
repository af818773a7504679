"""Where a page's records come from: an HTTP backend, or an iterable of the app's. Source: docs/pages.md, "Sources".

A source is iterated once, by the ingest greenlet, and yields slices of bytes of any size, or commands. It is closed on
every way out. An HTTP source holds no receive buffer while it waits.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import gevent.socket
import gevent.ssl
import h11

from pool.buffers import BufferPool

from ..config import check_backend_url
from ..errors import BackendError
from ..protocol.commands import Command

log = logging.getLogger("streaming.pages")

RECORD_TYPES = ("application/x-webui-stream", "application/x-ndjson")
STATE_TYPE = "application/json"
# Bytes of a backend's status line and headers together.
MAX_HEAD = 65_536


class Source(Protocol):
    """What ingest reads."""

    #: The bytes are one JSON object, the state of an ordinary page. Known with the first item.
    is_whole_state: bool

    def __iter__(self) -> Iterator[bytes | bytearray | Command]:
        """Yield what comes, once; PageError when it fails."""

    def close(self) -> None:
        """Let go of everything. Idempotent; not while another greenlet is in the iterator."""


class Backend:
    """An HTTP backend for `Streaming.stream_template`.

    The page's records are the answer to a GET of `url`. A URL without a path stands for the browser's own path and
    query, as they came; one with a path gets the browser's query, unless it has a query itself.

    Args:
        url: `http://` or `https://`, without user and fragment.

    Raises:
        SettingsError: the URL can't be a backend's.
    """

    def __init__(self, url: str) -> None:
        check_backend_url(url, "Backend")
        self.url = url

    def open(self, environ: Mapping[str, Any], buffers: BufferPool) -> HttpSource:
        """A source for one request; nothing is connected before it is iterated."""
        parts = urlsplit(self.url)
        path = parts.path or raw_path(environ)
        query = parts.query or environ.get("QUERY_STRING", "")
        return HttpSource(self.url, _visible(f"{path}?{query}" if query else path), buffers)


def raw_path(environ: Mapping[str, Any]) -> str:
    """The request's path with its escapes as they came, where the server tells; else quoted anew."""
    target = str(environ.get("REQUEST_URI") or environ.get("RAW_URI") or "")
    if target.startswith(("http://", "https://")):  # a request to a proxy names the whole URL
        target = urlsplit(target).path
    path = target.partition("?")[0]
    if path.startswith("/"):
        return path
    return quote(f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}".encode("latin-1"), safe=_PATH_SAFE)


def raw_suffix(environ: Mapping[str, Any], suffix: str) -> str:
    """The end of the raw path that means `suffix`: what a route's last parameter was before it was unquoted."""
    size = len(suffix.encode())
    # Each of these stands for one byte.
    units = re.findall(r"%[0-9A-Fa-f]{2}|.", raw_path(environ), re.DOTALL)
    return "".join(units[-size:]) if size else ""


_PATH_SAFE = "/:@!$&'()*+,;=~"


def _visible(target: str) -> str:
    """Escape what may not stand in a request's target; what may is left as it came."""
    return re.sub(r"[^\x21\x22\x24-\x7e]", lambda match: quote(match[0].encode("latin-1", "replace"), safe=""), target)


class HttpSource:
    """The answer of an HTTP backend, read as it comes. Nothing is retried and no redirect is followed."""

    def __init__(self, url: str, target: str, buffers: BufferPool) -> None:
        self._parts = urlsplit(url)
        self._target = target
        self._buffers = buffers
        self._socket: Any = None
        self._http = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self.is_whole_state = False

    def __iter__(self) -> Iterator[bytes | bytearray]:
        """Ask the backend and yield its body, slice by slice.

        Raises:
            BackendError: it can't be reached, answers something else than records, or breaks off.
        """
        try:
            self._connect()
            self._ask()
            self._check(self._next_answer())
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    yield event.data
                elif isinstance(event, h11.EndOfMessage):
                    return
                elif event is h11.NEED_DATA:
                    self._receive()
                    yield b""  # bytes that are no body, such as half a chunk's length, are a sign of life too
        except (OSError, UnicodeError) as error:  # the latter of a host that can't be a name
            verb = "broke off" if self._socket else "could not be reached"
            raise BackendError(f"the backend {verb} ({type(error).__name__})") from error
        except h11.RemoteProtocolError as error:
            # h11's text quotes what the backend sent, which is none of the client's business.
            raise BackendError("the backend broke off, or broke HTTP") from error

    def close(self) -> None:
        """Close the connection; the backend sees it at once."""
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> None:
        host = self._parts.hostname
        is_tls = self._parts.scheme == "https"
        connection = gevent.socket.create_connection((host, self._parts.port or (443 if is_tls else 80)))
        try:
            if is_tls:
                connection = _tls_context().wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise
        self._socket = connection

    def _ask(self) -> None:
        headers = [
            ("Host", self._parts.netloc),
            ("Accept", ", ".join((*RECORD_TYPES, STATE_TYPE))),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=self._target, headers=headers)
        self._socket.sendall((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def _next_answer(self) -> h11.Response:
        """The answer's head; 1xx answers before it are skipped."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                self._receive()

    def _check(self, answer: h11.Response) -> None:
        headers = {name: value.decode("latin-1").strip() for name, value in answer.headers}
        media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if not 200 <= answer.status_code < 300:
            raise BackendError(f"the backend answered {answer.status_code}")
        if headers.get(b"content-encoding", "identity").lower() != "identity":
            raise BackendError("the backend answered with a content encoding that was not asked for")
        if media_type == STATE_TYPE:
            self.is_whole_state = True
        elif media_type not in RECORD_TYPES:
            raise BackendError("the backend answered with a content type that is neither records nor JSON")

    def _receive(self) -> None:
        """Wait until there is something to read, and only then lend a buffer."""
        pending = getattr(self._socket, "pending", None)  # decrypted bytes that the descriptor knows nothing of
        if pending is None or not pending():
            gevent.socket.wait_read(self._socket.fileno())
        buffer = self._buffers.lend()
        try:
            with memoryview(buffer) as view:
                size = self._socket.recv_into(view)
                with view[:size] as received:
                    self._http.receive_data(received)  # type: ignore[arg-type]
        finally:
            self._buffers.give_back(buffer)


@functools.cache
def _tls_context() -> Any:
    """Made once: loading the certificates takes tens of milliseconds."""
    context = gevent.ssl.SSLContext(gevent.ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    return context


class IterableSource:
    """An iterable of the app's: of `bytes` in any slices, of commands, or of both."""

    is_whole_state = False

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        """The app's items; what the iterable raises comes through."""
        return iter(self._items)

    def close(self) -> None:
        """Close the app's iterable, if it can be."""
        items, self._items = self._items, ()
        close = getattr(items, "close", None)
        if close is None:
            return
        try:
            close()
        except Exception:
            # Others wait for what comes after this: places, slots, buffers.
            log.exception("an iterable of records could not be closed")
