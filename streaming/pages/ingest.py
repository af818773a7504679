"""Reading one page's records: a greenlet from a source to a small queue.

The queue is what makes a slow client slow its backend down: it takes one record, or several while they are small
together; then the greenlet waits and the source is not read any more.
"""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from gevent.event import Event

from ..config import Settings
from ..errors import BackendError, BackendTimeout, PageError, RecordError, RenderError
from ..protocol.records import BYTE_ORDER_MARK, RecordSplitter
from .renderer import Record, WholeState
from .sources import Source

# Bytes that may wait together; a single record may be larger.
QUEUE_SIZE = 65_536
# Seconds of work after which others on the hub get their turn.
TURN = 0.001
_END = object()


class Ingest:
    """Reads a source into a queue of records.

    `start`, `take` and `stop` belong to the greenlets of the response, on the same hub.

    Args:
        source: closed by this object, however it ends.
        settings: limits and timeouts.
        context: the app's iterable runs in it, so that `request` and `current_app` work there.
        on_change: called, without waiting, when there is a record or an end to take.

    Attributes:
        failure: why no record will come any more; valid for whoever has taken all there are.
    """

    def __init__(
        self, source: Source, settings: Settings, context: contextvars.Context, on_change: Callable[[], None]
    ) -> None:
        self._source = source
        self._settings = settings
        self._on_change = on_change
        self._splitter = RecordSplitter(settings.max_record, settings.max_page_records)
        self._queue: deque[tuple[Record, int]] = deque()
        self._queued = 0
        self._room = Event()
        self._count = 0
        self._is_finished = False
        self.failure: PageError | None = None
        self._is_running = False
        self._greenlet: gevent.Greenlet | None = gevent.Greenlet(context.run, self._run)

    @property
    def waiting(self) -> int:
        """Records in the queue."""
        return len(self._queue)

    @property
    def is_done(self) -> bool:
        """Whether everything has been taken and nothing will come."""
        return self._is_finished and not self._queue

    def start(self) -> None:
        """Begin to read."""
        assert self._greenlet is not None, "started after it was stopped"
        self._greenlet.start()

    def take(self, *, only_one: bool) -> list[Record]:
        """Return the waiting records, or the first one; never waits."""
        taken: list[Record] = []
        while self._queue and not (only_one and taken):
            record, size = self._queue.popleft()
            self._queued -= size
            taken.append(record)
        if taken:
            self._room.set()
        return taken

    def stop(self) -> None:
        """Stop reading and let the source go, soon and without waiting. Idempotent."""
        # Nobody is told any more. A killed greenlet keeps its frames with all they hold, so it is let go.
        self._on_change = _ignore
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill(block=False)
        if not self._is_running:
            # A greenlet that is killed before it ran never reaches its `finally`. And this may be a hub callback,
            # in which the app's `close` must not run.
            gevent.spawn(self._source.close)

    # -- in the greenlet

    def _run(self) -> None:
        self._is_running = True
        try:
            self._read()
        except PageError as error:
            self.failure = error
            if error.record is None:
                error.record = self._count
            error.settle()
        except gevent.GreenletExit:
            raise  # `stop`: nobody asks why any more
        except BaseException as error:
            self.failure = RenderError(f"the source of the records failed ({type(error).__name__})", self._count)
            self.failure.__cause__ = error
            self.failure.settle()
            # A gevent.Timeout of the app's own is no Exception, but nothing that must end the process either.
            if not isinstance(error, Exception | gevent.Timeout):
                raise
        finally:
            self._is_finished = True
            self._is_running = False
            self._source.close()
            self._on_change()

    def _read(self) -> None:
        items = iter(self._source)
        whole = bytearray()
        deadline = time.monotonic() + self._settings.backend_timeout
        turn = time.monotonic()
        while (item := self._next(items, deadline)) is not _END:
            if self._source.is_whole_state:
                whole += item
                if len(whole) > self._settings.max_record:
                    raise RecordError(f"longer than {self._settings.max_record} bytes", limit="max_record")
            elif isinstance(item, bytes | bytearray | memoryview):
                self._put_all(self._splitter.feed(item))
            else:
                self._put(item, QUEUE_SIZE)
            if time.monotonic() - turn > TURN:
                gevent.sleep(1e-6)  # not 0, which lets nobody in who waits for a socket
                turn = time.monotonic()
        self._put_all(self._splitter.finish())
        if whole:
            self._put(WholeState(bytes(whole.removeprefix(BYTE_ORDER_MARK))), QUEUE_SIZE)
        if self._count == 0:
            raise BackendError("the source ended before the first record")

    def _next(self, items: Iterator[Any], deadline: float) -> Any:
        """The source's next item. Only this waits for the source, so only this can time out."""
        limit: float | None = self._settings.record_timeout or None
        if self._count == 0:
            limit = deadline - time.monotonic()
            if limit <= 0:
                raise self._silence()
        with gevent.Timeout(limit) as silence:
            try:
                return next(items, _END)
            except gevent.Timeout as timeout:
                if timeout is not silence:
                    raise
        raise self._silence()

    def _silence(self) -> BackendTimeout:
        if self._count == 0:
            return BackendTimeout(f"none within {self._settings.backend_timeout:g} s", limit="backend_timeout")
        return BackendTimeout(f"silence for {self._settings.record_timeout:g} s", limit="record_timeout")

    def _put_all(self, records: list[bytes]) -> None:
        for record in records:
            self._put(record, len(record))
        if self._splitter.failure is not None:
            self._splitter.failure.record = self._count  # commands count too
            raise self._splitter.failure

    def _put(self, record: Record, size: int) -> None:
        """Add a record; wait while others are there that are not small together."""
        while self._queue and self._queued + size > QUEUE_SIZE:
            self._room.clear()
            self._room.wait()
        self._queue.append((record, size))
        self._queued += size
        self._count += 1
        self._on_change()


def _ignore() -> None:
    """Nobody wants to know."""
