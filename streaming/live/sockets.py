"""A connection on a socket of its own, taken from the server: no greenlet waits for it.

Who runs what: the flusher tries to send each message once, without waiting. What the socket did not take is the
connection's *tail*; an I/O watcher sends it on when the socket is writable, in the hub, and then tells the flusher. A
second watcher sees what the client sends, or that it has left. So an idle connection is two small objects and a
descriptor.

Watchers' callbacks run in the hub itself: they never wait and never log. Everything written to the socket goes through
`write` or is the rest of what did, in one order.

TLS: the same, on the server's TLS socket set to non-blocking; there the server's greenlet waits until the connection
has ended, since its socket can't be taken from it.
"""

from __future__ import annotations

import _socket
import socket
import sys
from collections.abc import Callable
from fcntl import ioctl
from ssl import SSLWantReadError, SSLWantWriteError
from termios import TIOCOUTQ as SIOCOUTQ  # the same number; of a socket it means unconfirmed bytes
from time import monotonic
from typing import TYPE_CHECKING, Any

import gevent

from .connection import Connection
from .transports.carrier import Carrier

if TYPE_CHECKING:
    from .hub import Hub

#: Bytes that the kernel may hold unsent: what it holds can't be coalesced any more. Linux would take megabytes.
NOTSENT_LOWAT = 32_768
TCP_NOTSENT_LOWAT = 25  # Linux; `socket` has a name for it from Python 3.12 on
#: Seconds for the client to read our last bytes and close; a close with unread input would reset the connection.
LINGER = 1.0
RECEIVE = 8_192  # bytes at a time; the smallest frames cost about 5 us each
#: Bytes that a client may send where it has nothing to say, before it is cut.
MAX_IDLE_CHATTER = 65_536
READ, WRITE = 1, 2
_WOULD_BLOCK = (BlockingIOError, InterruptedError, SSLWantReadError, SSLWantWriteError)


class SocketConnection(Connection):
    """A client on its own socket: SSE and NDJSON; `conversation.py` has WebSocket.

    Attributes:
        progress_at: when the socket last took something of the tail.
        heard_at: when the client last sent something.
    """

    __slots__ = (
        "_chatter", "_deadline", "_is_last", "_on_closed", "_queued", "_reading", "_socket", "_tail", "_writing",
        "heard_at", "progress_at",
    )  # fmt: skip

    def __init__(self, hub: Hub, carrier: Carrier, address: str, **options: bool) -> None:
        super().__init__(hub, carrier, address, **options)
        self.progress_at = 0.0
        self.heard_at = 0.0
        self.is_blocked = True  # until it has a socket
        self._socket: Any = None
        self._tail: memoryview | None = None
        self._is_last = False
        self._queued = 0  # bytes that the client's side has not confirmed, at the last look
        self._chatter = 0
        self._reading: Any = None
        self._writing: Any = None
        self._deadline: Any = None
        self._on_closed: Callable[[], None] | None = None

    def take(self, sock: Any, data: bytes, on_closed: Callable[[], None] | None) -> None:
        """Begin, on a connected socket whose response's head has been sent.

        Args:
            sock: a gevent socket, which is detached; or a TLS socket, which stays its owner's.
            data: what the client has sent already.
            on_closed: for a TLS socket: called when it is not used any more.
        """
        if on_closed is None:
            family, kind = sock.family, sock.type
            sock = _socket.socket(family, kind, 0, sock.detach())
        self._socket = sock
        self._on_closed = on_closed
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_LOWAT)
        self.heard_at = self.sent_at = monotonic()
        self.is_blocked = False
        self._reading = gevent.get_hub().loop.io(sock.fileno(), READ)
        if self.is_closed:  # the hub was closed meanwhile
            self._close()
            return
        if data:
            self.received(data)
        self.listen()
        self.wake()

    # -- out

    def deliver(self, now: float) -> bool:
        """Send one message of what is due. True if there is more, and the socket takes it."""
        if self.is_blocked or self.is_closed:
            return False
        data = self.compose(now)
        if data is None:
            if self._is_last:  # a carrier without a last word
                self._shut_down()
            return False
        counts = self.hub.counts
        counts.messages += 1
        counts.bytes += len(data)
        self.write(data, now)
        return not self.is_blocked and self.has_more

    def compose(self, now: float) -> bytes | None:
        """The next message, and a note whether it is the last."""
        data = super().compose(now)
        self._is_last = self.is_ending and self._farewell is None
        is_simple = self.deltas and not self.until_idle and not self.is_ending
        self.is_direct = is_simple and not self.has_more and len(self.subscribers) == 1
        return data

    def write(self, data: bytes, now: float) -> None:
        """Send bytes; what the socket does not take at once becomes the tail. Only while there is none."""
        self.sent_at = now
        try:
            sent = self._socket.send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError:
            self.cut()
            return
        if sent < len(data):
            self.hub.counts.tails += 1
            self._tail = memoryview(data)[sent:]
            self.is_blocked = True
            self.is_direct = False
            self.progress_at = now
            if self._writing is None:
                self._writing = gevent.get_hub().loop.io(self._socket.fileno(), WRITE)
            self._writing.start(self._send_tail)
        elif self._is_last:
            self._shut_down()

    def _send_tail(self) -> None:
        """The socket is writable. Runs in the hub."""
        assert self._tail is not None
        try:
            sent = self._socket.send(self._tail)
        except _WOULD_BLOCK:
            return
        except OSError:
            self.cut()
            return
        self.progress_at = monotonic()
        self._tail = self._tail[sent:]
        if not self._tail:
            self._tail = None
            self._writing.close()
            self._writing = None
            self._drained()

    def _drained(self) -> None:
        """The tail is out."""
        if self._is_last:
            self._shut_down()
            return
        self.is_blocked = False
        if self.has_more:
            self.wake()

    @property
    def tail_size(self) -> int:
        """Bytes that the socket has not taken."""
        return 0 if self._tail is None else len(self._tail)

    def check(self, now: float) -> None:
        """See to heartbeats, and to a client that does not read. The sweeper calls it about once a second."""
        settings = self.hub.settings
        if self._socket is None:  # the head of its response is on its way
            return
        if self._tail is not None:
            if self._has_moved():
                self.progress_at = now
            elif now - self.progress_at >= settings.send_timeout:
                self._give_up()
        elif not self.is_ending and now - self.silent_since >= settings.ping_interval:
            self._beat(now)

    def _has_moved(self) -> bool:
        """Whether the client has read something since the last look.

        The kernel calls a socket writable only when much of what it holds has gone; a slow reader's client may take
        longer than the timeout for that, byte by byte.
        """
        before = self._queued
        self._queued = int.from_bytes(ioctl(self._socket.fileno(), SIOCOUTQ, bytes(4)), sys.byteorder)
        return self._queued < before

    @property
    def silent_since(self) -> float:
        """Since when a heartbeat is counted: here, since something was sent."""
        return self.sent_at

    def _beat(self, now: float) -> None:
        self.hub.counts.bytes += len(self.carrier.heartbeat)
        self.write(self.carrier.heartbeat, now)

    def _give_up(self) -> None:
        """The client has not read for too long: say so if the socket takes it at this very moment, and close."""
        self.hub.counts.closed["slow"] += 1
        try:
            sent = self._socket.send(self._tail)
            if sent == self.tail_size:
                self._socket.send(self.bye("slow", 1_000, 4409))
        except OSError:
            pass  # as was to be expected: it is cut, that is all there is to say
        self.cut()

    # -- in

    def listen(self) -> None:
        """Watch for input, or the client's end."""
        if self._reading is not None:
            self._reading.start(self._readable)

    def _readable(self) -> None:
        """Input, or the client's end. Runs in the hub."""
        data = self.receive()
        if data:
            self.received(data)

    def receive(self) -> bytes | None:
        """What has come; None if nothing has. Closes the connection when the client has."""
        try:
            data: bytes = self._socket.recv(RECEIVE)
        except _WOULD_BLOCK:
            return None
        except OSError:
            data = b""
        if not data:
            self.cut()
            return None
        self.heard_at = monotonic()
        return data

    def received(self, data: bytes) -> None:
        """The client has sent something. Nothing is expected on SSE and NDJSON, nor behind the last message."""
        self._chatter += len(data)
        if self._chatter > MAX_IDLE_CHATTER and not self.is_ending:  # time ends it then; a reset eats our last bytes
            self.hub.counts.refused["chatter"] += 1
            self.cut()

    # -- the end

    def _shut_down(self) -> None:
        """Our last byte is out: give the client a moment to read it and to close."""
        self.is_blocked = True
        self.is_direct = False
        self.hub.leave(self)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()
            return
        self._deadline = gevent.get_hub().loop.timer(LINGER)
        self._deadline.start(self.cut)
        self.listen()

    def cut(self) -> None:
        """Close at once. Idempotent; may be called from the hub."""
        if not self.is_closed:
            self.is_closed = True
            self.is_direct = False
            self.hub.leave(self)
            self.hub.gone(self)
            self._close()

    def _close(self) -> None:
        for watcher in (self._reading, self._writing, self._deadline):
            if watcher is not None:
                watcher.close()
        self._reading = self._writing = self._deadline = self._tail = None
        sock, self._socket = self._socket, None
        if self._on_closed is not None:
            self._on_closed()
        elif sock is not None:
            sock.close()
