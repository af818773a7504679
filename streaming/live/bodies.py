"""The body of a request, read as it arrives.

WSGI's `read(n)` waits until n bytes are there, and a producer sends a line and then thinks for a minute. So the servers
that we run on are read below WSGI:

* Our own handler (`handler.py`) gives us pywsgi's input and with it the buffered file of the client's socket. A body of
  known length is read with `read1`. Of a chunked one we look at what is there (`peek`), take the chunks off ourselves,
  and take away exactly what belongs to the body: what follows may be the client's next request.
* `gunicorn -k gevent` has readers of its own, which can be asked for what is there.
* Elsewhere, as in Flask's test client, the whole body is there or `read` waits for 16 KiB of it.

A body that is left unread costs the connection: nobody knows where the next request begins, and a producer may send for
ever. It is *abandoned*: the answer says `Connection: close`, and after it we read for a moment longer, since a close
with unread input would reset the connection and take the answer with it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol

import gevent
from flask import Response, after_this_request, has_request_context
from gunicorn.http.body import Body as GunicornSource
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import ParseException

from ..departure import client_socket
from ..errors import Refused

#: Our handler puts pywsgi's input here, whatever `wsgi.input` is: with `Connection: upgrade` that is the bare socket.
BODY_KEY = "streaming.body"
#: Bytes that are read at a time.
READ = 16_384
#: Seconds for the client to read an answer that it gets before it has sent its whole body, and to close.
LINGER = 1.0
#: Bytes of a body that are rather read, and the connection used again, than abandoned.
MAX_DISCARDED = 65_536

#: Bytes of one line between chunks: 16 digits, and what a signature or the like may take.
MAX_LINE = 1_024
#: Bytes of all trailers; they are ignored.
MAX_TRAILERS = 8_192
#: Lines that are taken at a time: a turn of a millisecond, should each chunk hold one byte.
TURN = 500

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*" + _TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:" + _EXTENSION + rb")*\r\n")
_TRAILER = re.compile(_TOKEN + rb":[\t -~\x80-\xff]*\r\n")


class BrokenBody(Exception):
    """The body will not come to its end: the client has gone, or it framed the body wrongly.

    Attributes:
        reason: one short line for the client and the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChunkDecoder:
    """Takes the chunks off a body (RFC 9112, section 7.1).

    Strict, since whoever stands in front of us may read differently what is not: a line ends with CRLF, a size has
    digits and nothing else, extensions are of the grammar. Extensions and trailers are ignored.

    Attributes:
        is_done: the last chunk and the trailers have come.
        failure: what is wrong, once something is; nothing comes out after it.
    """

    __slots__ = ("_left", "_line", "_take", "_trailers", "failure", "is_done")

    def __init__(self) -> None:
        self._left = 0  # bytes of the chunk
        self._line = bytearray()
        self._take: Callable[[bytes], None] = self._take_size
        self._trailers = 0
        self.is_done = False
        self.failure: str | None = None

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Take bytes, though maybe not all of them.

        Returns:
            What was in chunks, and how many bytes were taken; the others are to be fed again, if the body goes on.
        """
        pieces: list[bytes] = []
        at = lines = 0
        while at < len(data) and lines < TURN and not self.is_done and self.failure is None:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            stop = data.find(b"\n", at) + 1 or len(data)
            if len(self._line) + stop - at > MAX_LINE:
                self.failure = f"a line between chunks is longer than {MAX_LINE} bytes"
                break
            self._line += data[at:stop]
            at = stop
            lines += 1
            if self._line.endswith(b"\n"):
                line = bytes(self._line)
                self._line.clear()
                self._take(line)
            elif self._take == self._take_end and self._line != b"\r":
                self._take_end(b"")  # not what must be here, so there is no line to wait for
        return b"".join(pieces), at

    def _take_size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            self.failure = "the size of a chunk is not of the grammar"
            return
        self._left = int(found[1], 16)
        self._take = self._take_end if self._left else self._take_trailer

    def _take_end(self, line: bytes) -> None:
        if line != b"\r\n":
            self.failure = "a chunk is longer than its size says"
        self._take = self._take_size

    def _take_trailer(self, line: bytes) -> None:
        self._trailers += len(line)
        if line == b"\r\n":
            self.is_done = True
        elif self._trailers > MAX_TRAILERS:
            self.failure = f"the trailers are longer than {MAX_TRAILERS} bytes"
        elif _TRAILER.fullmatch(line) is None:
            self.failure = "a trailer is not of the grammar"


class Body(Protocol):
    """A request's body. Belongs to the request's greenlet.

    Attributes:
        is_whole: it has come to its proper end.
    """

    is_whole: bool

    def read(self) -> bytes:
        """Wait until bytes come, and return those of the body among them: none, if they belong to its frame.

        Raises:
            BrokenBody: its end will not come.
        """
        ...

    def abandon(self) -> None:
        """Leave the rest unread; the connection serves no other request. Before the answer is begun."""
        ...


def open_body(environ: Mapping[str, Any]) -> Body:
    """The body of a request.

    Raises:
        BrokenBody: nobody can tell where it ends.
    """
    source = environ.get(BODY_KEY)
    if source is not None:
        body = HandlerBody(source)
        if environ.get("HTTP_TRANSFER_ENCODING", "chunked").lower() != "chunked":
            body.abandon()
            raise BrokenBody("Transfer-Encoding can be nothing but chunked")
        return body
    stream = environ["wsgi.input"]
    if isinstance(stream, GunicornSource) and isinstance(stream.reader, LengthReader | ChunkedReader):
        return GunicornBody(stream, client_socket(environ))
    return PlainBody(stream, environ)


def read_whole(environ: Mapping[str, Any], limit: int, timeout: float) -> bytes:
    """Read a short body to its end. Waits.

    Args:
        limit: bytes that it may have.
        timeout: seconds that it may take.

    Raises:
        BrokenBody: its end does not come.
        Refused: too_large; timeout.
    """
    body, data = open_body(environ), b""
    late = Refused("timeout", f"the body did not come within {timeout:g} s")
    with gevent.Timeout(timeout, late):
        while not body.is_whole:
            data += body.read()
            if len(data) > limit:
                raise Refused("too_large", f"the body has more than {limit} bytes")
    return data


def abandon(environ: Mapping[str, Any]) -> None:
    """Refuse a request without reading its body, if what is left of that is long or has no known end.

    To be called before the answer is begun. No effect on servers that are not ours.
    """
    source = environ.get(BODY_KEY)
    if source is not None:
        body = HandlerBody(source)
        # A client that waits for `100 Continue` may send the body, or its next request instead.
        waits = source.socket is not None
        if not body.is_whole and (source.chunked_input or waits or body.left > MAX_DISCARDED):
            body.abandon()


def is_abandoned(source: Any) -> bool:
    """Whether a body was abandoned, or can't be read any more; `source` is pywsgi's input, or None."""
    return source is not None and bool(source._chunked_input_error)


def linger(sock: Any) -> None:
    """Let the client read its answer, for a second at most, before the socket is closed. Waits."""
    end = monotonic() + LINGER
    try:
        sock.shutdown(socket.SHUT_WR)
        with gevent.Timeout(LINGER, False):
            # It sleeps although there is more: a client that sends as fast as it can must find a socket that is full.
            while monotonic() < end and sock.recv(READ):
                gevent.sleep(0.001)
    except OSError:
        pass  # it has closed, which is all that was waited for


class HandlerBody:
    """The body of a request to our own handler.

    Args:
        source: pywsgi's input. It is kept in step: it reads, or discards, nothing that was read here.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._file = source.rfile
        self._decoder = ChunkDecoder() if source.chunked_input else None
        self.is_whole = source.chunk_length == 0 if source.chunked_input else self.left == 0

    @property
    def left(self) -> int:
        """Bytes that are still to come; of a body of known length."""
        return int(self._source.content_length or 0) - int(self._source.position)

    def read(self) -> bytes:
        """See `Body`. A client that expects `100 Continue` gets it with the first call."""
        if self._decoder is not None and self._decoder.failure is not None:
            raise BrokenBody(self._decoder.failure)
        try:
            self._source._send_100_continue()
            return self._read() if self._decoder is None else self._read_chunks(self._decoder)
        except OSError as error:
            raise BrokenBody("the connection broke") from error

    def _read(self) -> bytes:
        data: bytes = self._file.read1(min(READ, self.left))
        if not data:
            raise BrokenBody("the connection was closed in the middle of the body")
        self._source.position += len(data)
        self.is_whole = self.left == 0
        return data

    def _read_chunks(self, decoder: ChunkDecoder) -> bytes:
        there: bytes = self._file.peek()
        if not there:
            raise BrokenBody("the connection was closed before the last chunk")
        data, taken = decoder.feed(there)
        self._file.read(taken)
        if decoder.is_done:
            self.is_whole = True
            self._source.chunk_length = 0
        elif decoder.failure is not None and not data:
            raise BrokenBody(decoder.failure)
        return data

    def abandon(self) -> None:
        """See `Body`; the handler sees to the rest."""
        # What pywsgi notes of a body that it can't read on: it does not try to discard it.
        self._source._chunked_input_error = True


class GunicornBody:
    """The body of a request to `gunicorn -k gevent`. Its readers have no method for "what is there": this is how.

    Args:
        sock: the client's.
    """

    def __init__(self, source: GunicornSource, sock: Any) -> None:
        self._source = source
        self._reader = source.reader
        self._socket = sock
        self.is_whole = isinstance(source.reader, LengthReader) and source.reader.length == 0

    def read(self) -> bytes:
        """See `Body`."""
        try:
            return self._read() if isinstance(self._reader, LengthReader) else self._read_chunks()
        except ParseException as error:
            raise BrokenBody("the chunks are not of the grammar") from error
        except OSError as error:
            raise BrokenBody("the connection broke") from error

    def _read(self) -> bytes:
        data: bytes = self._reader.unreader.read()
        if not data:
            raise BrokenBody("the connection was closed in the middle of the body")
        left = self._reader.length
        if len(data) > left:
            self._reader.unreader.unread(data[left:])
            data = data[:left]
        self._reader.length -= len(data)
        self.is_whole = self._reader.length == 0
        return data

    def _read_chunks(self) -> bytes:
        data: bytes = self._reader.read(1)
        self.is_whole = not data
        data += self._reader.read(self._reader.buf.tell())  # it has read the rest of the piece, and keeps it
        return data

    def abandon(self) -> None:
        """See `Body`."""
        self._source.failed = True  # so gunicorn closes the connection instead of discarding the body
        if self._socket is not None and has_request_context():
            after_this_request(self._linger)

    def _linger(self, response: Response) -> Response:
        response.call_on_close(lambda: linger(self._socket))
        return response


class PlainBody:
    """The body of a request to any WSGI server; it comes in pieces of 16 KiB."""

    def __init__(self, stream: Any, environ: Mapping[str, Any]) -> None:
        self._stream = stream
        length = environ.get("CONTENT_LENGTH") or ""
        self._left: int | None = int(length) if length.isdecimal() else None
        if self._left is None and not environ.get("wsgi.input_terminated"):
            self._left = 0
        self.is_whole = self._left == 0

    def read(self) -> bytes:
        """See `Body`."""
        try:
            data: bytes = self._stream.read(READ if self._left is None else min(READ, self._left))
        except OSError as error:
            raise BrokenBody("the connection broke") from error
        if self._left is None:
            self.is_whole = not data
        elif not data:
            raise BrokenBody("the body is shorter than its Content-Length")
        else:
            self._left -= len(data)
            self.is_whole = self._left == 0
        return data

    def abandon(self) -> None:
        """See `Body`. What becomes of it is the server's business."""
