"""One page as a response: admission, staging, commit, chunks, and every way it can end. Source: docs/pages.md.

Who runs what. `stream_page` runs in the request's greenlet, inside the view: it waits for the commit, so that a failure
before it is a real status. The WSGI server then pulls chunks from the `PageBody` in the same greenlet. Ingest has a
greenlet of its own, steps run in the render pool. `_advance` connects them: whoever makes a step possible calls it, be
it ingest with a record, the server by taking output, or the pool by finishing the last step. It never waits.

One step is prepared while the last one's output is being sent, and no more: a client that does not read stops the
steps, they stop the queue, and the queue stops the reading of the backend.
"""

from __future__ import annotations

import contextvars
import logging
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import gevent
from flask import Response, current_app, request
from gevent.event import Event

from pool.interface import Job, Overloaded

from ..config import Settings
from ..departure import DepartureWatch, client_socket
from ..errors import Busy, Cut, PageError, RenderError
from ..protocol.commands import Defaults
from ..state import AppState, current_state
from .failures import count_refused, error_response, log_failure
from .ingest import Ingest
from .renderer import PageRenderer, PageState, Step
from .sources import Backend, IterableSource, Source

log = logging.getLogger("streaming.pages")

#: A committed page, in its request's WSGI environ. Our server then sends the headers even when there is no text yet.
PAGE_KEY = "streaming.page"
CONTENT_TYPE = "text/html; charset=utf-8"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def stream_page(name: str, records: Backend | Iterable[Any], folder: str | None = None) -> Response:
    """Answer the current request with a streamed page; see `Streaming.stream_template`.

    Args:
        folder: look for templates there first, then where the app does.
    """
    if request.method == "HEAD":
        _make_source(records).close()
        # An iterator: an empty tuple would get a Content-Length of 0.
        return Response(iter(()), headers=HEADERS, content_type=CONTENT_TYPE)
    try:
        page = _make_page(name, records, folder)
    except Overloaded as error:
        busy = Busy(str(error), limit=error.limit)
        count_refused(busy)
        return _refuse(_route(), busy)
    body = PageBody(page, None if client_socket(request.environ) is None else current_state().settings.flush_timeout)
    try:
        failure = page.commit()
    except Cut as cut:
        # The client has left. The server learns it from the body; the status is for its access log.
        log.debug("%s: %s", page.route, cut.strerror)
        return Response(body, status=499)
    if failure is not None:
        return _refuse(page.route, failure)
    # Weakly: the page keeps the request's context, and so its environ.
    request.environ[PAGE_KEY] = weakref.ref(page)
    return Response(body, headers=HEADERS, content_type=CONTENT_TYPE)


def close_unsent(error: BaseException | None) -> None:
    """Close the page of a request that fails behind its view, in `after_request` for example; a teardown function."""
    if error is not None and PAGE_KEY in request.environ:
        page = request.environ[PAGE_KEY]()
        if page is not None:
            page.close()


def _refuse(route: str, failure: PageError) -> Response:
    log_failure(route, failure, is_committed=False)
    return error_response(failure)


def _route() -> str:
    """The request in the log; what came from outside is escaped."""
    return f"{request.method} {request.path!a}"


def _make_page(name: str, records: Backend | Iterable[Any], folder: str | None) -> Page:
    """Admit one more page and make it; Overloaded if there are too many."""
    state = current_state()
    pool, settings = state.shared.pool, state.settings
    extra: dict[str, Any] = {}
    current_app.update_template_context(extra)
    renderer = PageRenderer(state.environment(folder), name, extra, _defaults(settings), settings.chunk_size)
    source = _make_source(records)
    try:
        pool.admit()
    except Overloaded:
        source.close()
        raise
    return Page(
        renderer=renderer,
        source=source,
        state=state,
        route=_route(),
        sock=client_socket(request.environ),
        context=contextvars.copy_context(),
    )


def _make_source(records: Backend | Iterable[Any]) -> Source:
    if isinstance(records, Backend):
        return records.open(request.environ, current_state().shared.buffers)
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise TypeError(f"records is a {type(records).__name__}; give a Backend or an iterable of bytes or commands")
    return IterableSource(records)


def _defaults(settings: Settings) -> Defaults:
    overwrite = {name: str(value) for name, value in (request.view_args or {}).items()}
    if settings.base_path is not None:
        overwrite["basePath"] = settings.base_path
    return Defaults(settings.tokens, overwrite)


class Page:
    """A page that was admitted, to its end; on the hub.

    Args:
        state: whose pool has admitted it; it leaves when it closes, and is counted.
        route: names the page in the log.
        sock: the client's socket, to notice its departure; None where there is none.
        context: a copy of the request's context; steps run in it.

    Attributes:
        is_closed: everything has been given back.
    """

    def __init__(
        self,
        *,
        renderer: PageRenderer,
        source: Source,
        state: AppState,
        route: str,
        sock: Any,
        context: contextvars.Context,
    ) -> None:
        settings = state.settings
        self._renderer = renderer
        self._app = state
        self._pool = state.shared.pool
        self._settings = settings
        self._counts = state.shared.counts
        self._outcome = "abandoned"  # if nothing else will be known when it closes
        self.route = route
        self._context = context
        # An own copy: two greenlets can't be in one context at the same time.
        self._ingest = Ingest(source, settings, context.copy(), self._advance)
        self._watch = DepartureWatch(sock, self.lose_client)
        self._wake = Event()
        self._job: Job | None = None
        self._steps = 0  # finished ones
        self._state = PageState.RECORD
        self._prepared: Step | None = None
        self._staged: deque[bytes] = deque()
        self._room: int | None = settings.max_precommit  # bytes that may be staged yet; None behind the commit
        self._surplus = 0  # records behind the page's end
        self._cut: str | None = None  # why the body will end before the page does
        self.is_closed = False

    # -- in the request's greenlet

    def commit(self) -> PageError | None:
        """Wait until the page is committed: its first boundary, its end, or as much output as may be staged.

        Returns:
            Why it failed before; then the page is closed and nothing has been sent. None when it is committed.

        Raises:
            Cut: the client has left.
        """
        room = self._settings.max_precommit
        try:
            self._watch.start()
            self._ingest.start()
            while True:
                step = self._next_step()
                if step.failure is not None:
                    self._fail(step.failure, step.failure.outcome)
                    self.close()
                    return step.failure
                if step.output:
                    self._staged.append(step.output)
                    room -= len(step.output)
                if step.is_committed:
                    break
                if room <= 0:
                    self._counts.limits["max_precommit"] += 1
                    break
                self._room = room
        except BaseException:
            self.close()
            raise
        if not self._staged:
            self._staged.append(b"")  # headers without text
        self._room = None
        self._advance()
        return None

    def next_chunk(self) -> bytes | None:
        """Wait for the next chunk; None at the end of a page that is complete.

        Raises:
            Cut: the page failed, or the client has left.
        """
        if self._staged:
            return self._staged.popleft()
        while True:
            if self._prepared is None:
                if self._cut is not None:
                    self.close()
                    raise Cut(self._cut)
                if self._has_ended:
                    if self._surplus:
                        log.warning("%s: %d surplus records behind the end of the page", self.route, self._surplus)
                    self._outcome = "complete"
                    self.close()
                    return None
            step = self._next_step()
            self._advance()
            if step.failure is not None:
                log_failure(self.route, step.failure, is_committed=True)
                self._fail(step.failure, "cut")
                self._cut = str(step.failure)
            if step.output:
                return step.output

    def _next_step(self) -> Step:
        """Wait for the next step and take what it did."""
        while self._prepared is None:
            if self.is_closed:
                raise Cut(self._cut or "the page is closed")
            self._wake.clear()
            self._advance()
            self._wake.wait()
        step = self._prepared
        self._prepared = None
        return step

    # -- anywhere on the hub; nothing below waits

    def _fail(self, failure: PageError, outcome: str) -> None:
        """Note what to count."""
        self._outcome = outcome
        if failure.limit is not None:
            self._counts.limits[failure.limit] += 1

    def give_up(self) -> None:
        """Close a page whose client does not read."""
        self._outcome = "client_slow"
        self._counts.limits["flush_timeout"] += 1
        self.close()

    def close(self) -> None:
        """Give everything back: slot, place, backend, buffers. Idempotent; on every way out."""
        if self.is_closed:
            return
        self.is_closed = True
        self._counts.outcomes[self._outcome] += 1
        self._pool.leave()
        self._watch.stop()
        self._renderer.abandon()
        self._prepared = None
        self._staged.clear()
        if self._job is not None and self._pool.cancel(self._job):
            self._job = None
        self._free()
        self._wake.set()
        self._ingest.stop()

    def lose_client(self) -> None:
        """Close a page whose client has left, or whose connection the server has cut. Idempotent."""
        if self.is_closed:
            return
        self._cut, self._outcome = "the client has left", "client_left"
        if self._app.is_over:
            self._cut, self._outcome = "the server is restarting", "cut"
            self._counts.limits["drain_timeout"] += 1
        self.close()

    @property
    def _has_ended(self) -> bool:
        """Whether no step will follow."""
        return self._state is PageState.COMPLETE or self.is_closed

    def _advance(self) -> None:
        """Start the next step if there is something to do, and room for what it makes."""
        if self._job is not None or self._prepared is not None or self._has_ended:
            return
        records: list[Any] = []
        if self._state is PageState.RECORD:
            # The first record goes alone: what is wrong with a later one is no reason to refuse the page.
            records = self._ingest.take(only_one=not self._steps)
            if not records and not self._ingest.is_done:
                return
            if not records and self._ingest.failure is not None:
                self._stepped(Step(b"", PageState.COMPLETE, failure=self._ingest.failure))
                return
        ended = self._steps > 0 and self._ingest.is_done and self._ingest.failure is None
        step = partial(self._context.run, self._renderer.step, records, ended, self._room)
        self._job = self._pool.submit(step, self._stepped, first=not self._steps)

    def _stepped(self, result: Any) -> None:
        """Called with what a step did, or with what kept it from doing it."""
        self._job = None
        self._steps += 1
        if self.is_closed:
            self._free()
            return
        if isinstance(result, Overloaded):
            result = Step(b"", PageState.COMPLETE, failure=Busy(str(result), limit=result.limit))
        elif isinstance(result, BaseException):
            failure = RenderError(f"the page failed ({type(result).__name__})")
            failure.__cause__ = result
            failure.settle()
            result = Step(b"", PageState.COMPLETE, failure=failure)
        self._prepared = result
        self._state = result.state
        if result.state is PageState.COMPLETE:
            # Logged by the request's greenlet: a callback of the hub can't wait for the log's lock.
            self._surplus = result.surplus + self._ingest.waiting
            self._ingest.stop()
        self._wake.set()

    def _free(self) -> None:
        """Have a worker free what the page holds: a large state would keep the hub busy."""
        if self._steps and self._job is None and not self._renderer.is_done:
            self._job = self._pool.submit(partial(self._renderer.step, (), False), self._stepped, first=False)


class PageBody:
    """The WSGI iterable of a page. Yields `bytes`; ends, or raises `Cut`. The server's greenlet iterates and closes it.

    The first chunk may be empty: the page is committed and its shell has no text. Our server sends the headers then.

    Args:
        flush_timeout: seconds the client may take for a chunk; None where there is no socket.
    """

    def __init__(self, page: Page, flush_timeout: float | None) -> None:
        self._page = page
        self._flush_timeout = flush_timeout
        self._timer: gevent.Timeout | None = None
        self._loop = gevent.get_hub().loop

    def __iter__(self) -> PageBody:
        return self

    def __next__(self) -> bytes:
        self._stop_timer()
        chunk = self._page.next_chunk()
        if self._flush_timeout is not None:
            # The server sends in this greenlet, the last chunk of HTTP too; a client that takes nothing ends it there.
            late = Cut(f"the client took nothing for {self._flush_timeout:g} s")
            self._timer = gevent.Timeout.start_new(self._flush_timeout, late)
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Called by the server at the end, however it comes."""
        if self._timer is not None and not self._timer.pending:
            log.warning("%s: cut, %s", self._page.route, self._timer.exception.strerror)
            self._page.give_up()
        elif self._timer is not None:  # a chunk was on its way, and none is asked for behind it
            self._page.lose_client()
        self._stop_timer()
        self._page.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def __del__(self) -> None:
        # A view that throws its response away: nobody else closes it. Garbage is collected in render threads too.
        if not self._page.is_closed:
            self._loop.run_callback_threadsafe(self._page.close)
