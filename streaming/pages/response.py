"""One page as a response: admission, staging, commit, chunks, and every way it can end. Source: docs/pages.md.

Who runs what. `open_page` runs in the request's greenlet, inside the view: it waits for the commit, so that a failure
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
from flask import Flask, Response, current_app, request
from gevent.event import Event

from pool.buffers import BufferPool
from pool.interface import Job, Overloaded, RenderPool

from ..config import Settings
from ..departure import DepartureWatch, client_socket
from ..errors import Aborted, Busy, Cut, PageError, RenderError
from ..protocol.commands import Defaults, State
from ..state import current_state
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
        # An iterator: an empty tuple would get a Content-Length of 0.
        return Response(iter(()), headers=HEADERS, content_type=CONTENT_TYPE)
    page = _make_page(name, records, folder)
    try:
        page.commit()
    except PageError as error:
        log_failure(page.route, error, is_committed=False)
        return error_response(error)
    except Cut:
        # The client has left. The server learns it from the body; the status is for its access log.
        return Response(PageBody(page), status=499)
    # Weakly: the page keeps the request's context, and so its environ.
    request.environ[PAGE_KEY] = weakref.ref(page)
    return Response(PageBody(page), headers=HEADERS, content_type=CONTENT_TYPE)


def close_unsent(error: BaseException | None) -> None:
    """Close the page of a request that fails behind its view, in `after_request` for example; a teardown function."""
    if error is not None and PAGE_KEY in request.environ:
        page = request.environ[PAGE_KEY]()
        if page is not None:
            page.close()


def error_response(error: PageError) -> Response:
    """The answer to a page that failed before its commit: one line of text."""
    response = Response(f"{error}\n", status=error.status, content_type="text/plain; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    if isinstance(error, Busy):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _make_page(name: str, records: Backend | Iterable[Any], folder: str | None) -> Page:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    state = current_state()
    settings = state.settings

    def scope(values: State) -> State:
        app.update_template_context(values)
        return values

    return Page(
        renderer=PageRenderer(state.environment(folder), name, scope, _defaults(settings), settings.chunk_size),
        source=_make_source(records, state.shared.buffers),
        pool=state.shared.pool,
        settings=settings,
        # What came from outside is escaped before it gets into a log.
        route=f"{request.method} {request.path!a}",
        sock=client_socket(request.environ),
        context=contextvars.copy_context(),
    )


def _make_source(records: Backend | Iterable[Any], buffers: BufferPool) -> Source:
    if isinstance(records, Backend):
        return records.open(request.environ, buffers)
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise TypeError(f"records is a {type(records).__name__}; give a Backend or an iterable of bytes or commands")
    return IterableSource(records)


def _defaults(settings: Settings) -> Defaults:
    overwrite = {name: str(value) for name, value in (request.view_args or {}).items()}
    if settings.base_path is not None:
        overwrite["basePath"] = settings.base_path
    return Defaults(settings.tokens, overwrite)


class Page:
    """A page from its admission to its end; on the hub.

    Args:
        route: names the page in the log.
        sock: the client's socket, to notice its departure and to limit a flush; None where there is none.
        context: a copy of the request's context; steps run in it.
    """

    def __init__(
        self,
        *,
        renderer: PageRenderer,
        source: Source,
        pool: RenderPool,
        settings: Settings,
        route: str,
        sock: Any,
        context: contextvars.Context,
    ) -> None:
        self._renderer = renderer
        self._pool = pool
        self._settings = settings
        self.route = route
        self._has_socket = sock is not None
        self._context = context
        # An own copy: two greenlets can't be in one context at the same time.
        self._ingest = Ingest(source, settings, context.copy(), self._advance)
        self._watch = DepartureWatch(sock, self._client_left)
        self._wake = Event()
        self._job: Job | None = None
        self._prepared: Step | None = None
        self._state = PageState.RECORD
        self._steps = 0  # finished ones
        self._has_ended = False  # no step will follow
        self._is_admitted = False
        self._is_closed = False
        self._has_left = False
        self._staged: deque[bytes] = deque()
        self._cut: Cut | None = None
        self._flush_timer: gevent.Timeout | None = None

    # -- in the request's greenlet

    def commit(self) -> None:
        """Wait until the page is committed: its first boundary, its end, or as much output as may be staged.

        Raises:
            PageError: it failed before; the page is closed and nothing has been sent.
        """
        try:
            self._pool.admit()
        except Overloaded as error:
            self.close()
            raise Busy(str(error)) from None
        self._is_admitted = True
        try:
            self._watch.start()
            self._ingest.start()
            staged = 0
            while True:
                step = self._next_step()
                if step.failure is not None:
                    raise step.failure
                if step.output:
                    self._staged.append(step.output)
                    staged += len(step.output)
                if step.is_committed or staged >= self._settings.max_precommit:
                    break
            if not staged:
                self._staged.append(b"")  # headers without text
        except BaseException:
            self.close()
            raise
        self._advance()

    def next_chunk(self) -> bytes | None:
        """Wait for the next chunk; None at the end of a page that is complete.

        Raises:
            Cut: the page failed, or the client has left.
        """
        self._stop_flush_timer()
        if self._staged:
            chunk = self._staged.popleft()
        else:
            chunk = self._rendered_chunk()
            if not chunk:
                return None
        if self._has_socket:
            # The server sends the chunk in this greenlet; a client that takes nothing for so long is cut off there.
            self._flush_timer = gevent.Timeout.start_new(
                self._settings.flush_timeout, Cut("the client took nothing for too long")
            )
        return chunk

    def _rendered_chunk(self) -> bytes:
        """The next output that is not empty; empty only at the end."""
        while True:
            if self._has_left:
                raise Cut("the client has left")
            if self._cut is not None:
                self.close()
                raise self._cut
            if self._has_ended and self._prepared is None:
                self.close()
                return b""
            step = self._next_step()
            self._advance()
            if step.failure is not None:
                log_failure(self.route, step.failure, is_committed=True)
                self._cut = Cut(str(step.failure))
            if step.output:
                return step.output

    def _next_step(self) -> Step:
        """Wait for the next step and take what it did."""
        while self._prepared is None:
            if self._is_closed:
                raise Cut("the client has left")
            self._wake.clear()
            self._advance()
            self._wake.wait()
        step = self._prepared
        self._prepared = None
        return step

    # -- anywhere on the hub; nothing below waits

    def close(self) -> None:
        """Give everything back: slot, place, backend, buffers. Idempotent; on every way out."""
        self._stop_flush_timer()
        if self._is_closed:
            return
        self._is_closed = True
        self._has_ended = True
        self._watch.stop()
        self._ingest.stop()
        self._renderer.abandon()
        self._prepared = None
        is_running = self._job is not None and not self._pool.cancel(self._job)
        if self._steps and not is_running and self._state is not PageState.COMPLETE:
            # One more step, to free in a worker what the page holds.
            self._pool.submit(partial(self._renderer.step, (), False), self._stepped, first=False)
        if self._is_admitted:
            self._pool.leave()
        self._staged.clear()
        self._wake.set()

    def _client_left(self) -> None:
        self._has_left = True
        self.close()
        log.debug("%s: the client has left", self.route)

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
        step = partial(self._context.run, self._renderer.step, records, ended)
        self._job = self._pool.submit(step, self._stepped, first=not self._steps)

    def _stepped(self, result: Any) -> None:
        """Called with what a step did, or with what kept it from doing it."""
        self._job = None
        self._steps += 1
        if self._is_closed:
            return
        if isinstance(result, Overloaded):
            result = Step(b"", PageState.COMPLETE, failure=Busy(str(result)))
        elif isinstance(result, BaseException):
            failure = RenderError(f"the page failed ({type(result).__name__})")
            failure.__cause__ = result
            result = Step(b"", PageState.COMPLETE, failure=failure)
        self._prepared = result
        self._state = result.state
        if result.state is PageState.COMPLETE:
            self._has_ended = True
            surplus = result.surplus + self._ingest.waiting
            if surplus and result.failure is None:
                log.warning("%s: %d records after the page was complete", self.route, surplus)
            self._ingest.stop()
        self._wake.set()

    def _stop_flush_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.close()
            self._flush_timer = None


class PageBody:
    """The WSGI iterable of a committed page. Yields `bytes`; ends, or raises `Cut`.

    The first chunk may be empty: the page is committed and its shell has no text. Our server sends the headers then.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def __iter__(self) -> PageBody:
        return self

    def __next__(self) -> bytes:
        chunk = self._page.next_chunk()
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Called by the server at the end, however it comes."""
        self._page.close()

    def __del__(self) -> None:
        # A view that throws its response away: nobody else closes it.
        self._page.close()


def log_failure(route: str, error: PageError, *, is_committed: bool) -> None:
    """Log a failed page, once, with its route, record and cause."""
    outcome = "cut" if is_committed else f"answered {error.status}"
    cause = f": {error.said}" if isinstance(error, Aborted) and error.said else ""
    if error.__cause__ is not None:
        cause += f": {error.__cause__}"
    text = "%s: %s, %s%s"
    if isinstance(error, RenderError):
        log.error(text, route, outcome, error, cause, exc_info=error.__cause__)
    else:
        log.warning(text, route, outcome, error, cause)
