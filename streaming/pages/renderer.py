"""Rendering one page, command by command. Source: docs/pages.md, "Output" and "Failures".

Theory of operation. `PageRenderer._flow` is the page from its first record to its last byte, written top to bottom as a
generator. It yields where a step ends: `MORE` when the step has rendered enough, `RECORD` when it can't go on without
another record. `step` runs it to its next yield and returns output, state and failure together, as values.

Steps run in a render thread, one at a time. They need not run in the same thread, and hold no thread between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from jinja2 import Environment, Undefined

from ..errors import PageError, RecordError, RenderError
from ..protocol.commands import (
    Command,
    Defaults,
    Resume,
    Start,
    Update,
    check_command,
    is_key,
    parse_command,
    parse_state,
)
from ..protocol.jsontext import show
from .boundary import MARKER, PageContext, Tag, Wanted, freeze_loops, root_context
from .writer import PageWriter

# Characters a step renders before it lets others have its thread; also how far rendering runs ahead of an update.
STEP_SIZE = 65_536
MAX_OCCURRENCES = 10_000
MAX_UPDATABLE = 1_000
COMPLETE_COMMENT = "<!--stream:complete-->"
# How many pieces are taken from a template at once, at most, and how much text such a batch should have. Pieces are
# seldom larger than the record they came in, so fewer are taken once a large one has come.
_BATCH_PIECES = 64
_BATCH_PIECES_LARGE = 16
_LARGE_RECORD = 65_536
_BATCH_SIZE = 8_192


@dataclass(frozen=True, slots=True)
class WholeState:
    """The body of an `application/json` answer: the state of a page whose boundaries are rendered at once."""

    raw: bytes


Record = bytes | WholeState | Command


class PageState(Enum):
    """What a page needs after a step."""

    MORE = "another step"
    RECORD = "a record, or their end"
    COMPLETE = "nothing"


class Step(NamedTuple):
    """What one step did.

    `output` is one chunk, maybe empty. `is_committed`: the first boundary or the end has been reached. A failure comes
    with the output that preceded the failed record. `surplus` counts the records that were not looked at.
    """

    output: bytes
    state: PageState
    is_committed: bool = False
    failure: PageError | None = None
    surplus: int = 0


class Occurrence:
    """A boundary as it was reached, at one place of the page."""

    __slots__ = ("context", "key", "number", "render", "tag")

    def __init__(self, number: int, tag: Tag, key: object, context: PageContext) -> None:
        self.number = number
        self.tag = tag
        self.key = key
        self.context = context
        # Only for an updatable one: renders it again. Its loops are frozen in `context`.
        self.render: Callable[[PageContext], Iterator[str]] | None = None

    @property
    def identity(self) -> tuple[str, str, object]:
        """What a record names it by. `7` and `7.0` are one key for Python too, and "7" is another."""
        return self.tag.owner, self.tag.name, self.key

    def __str__(self) -> str:
        key = "" if self.key is None else f" with key {show(self.key)}"
        return f'"{self.tag.name}" of {self.tag.owner}{key}'


class PageRenderer:
    """Renders one page.

    Args:
        environment: from `environment.page_environment`.
        template: the template's name.
        extra: what templates see beside the state, and under it: what the app's context processors give.
        defaults: what the app adds to the states.
        chunk_size: see `PageWriter`.
    """

    def __init__(
        self,
        environment: Environment,
        template: str,
        extra: dict[str, Any],
        defaults: Defaults,
        chunk_size: int,
    ) -> None:
        self.scope: dict[str, Any] = {}
        self._environment = environment
        self._template = template
        self._extra = extra
        self._defaults = defaults
        self._writer = PageWriter(chunk_size)
        self._records: deque[Record] = deque()
        self._full_size = self._step_size = max(STEP_SIZE, chunk_size)
        self._is_exact = False
        self._batch_pieces = _BATCH_PIECES
        self._has_ended = False
        self._is_whole = False
        self.wanted = Wanted()
        self._is_committed = False
        self._record = 0  # number of the next record; the one being handled is the one before
        self._seen: set[tuple[str, str, object]] = set()
        self._updatable: dict[tuple[str, str, object], Occurrence] = {}
        self._pending: Occurrence | None = None  # rendering waits at it
        self._is_inside = False  # rendering is in a boundary's body
        self._pieces: Iterator[str] = iter(())
        self._flow_states = self._flow()
        #: The state has been let go; no step is needed any more.
        self.is_done = False

    # -- what a response calls

    def step(self, records: Sequence[Record], ended: bool, room: int | None = None) -> Step:
        """Render until the step is full, a record is needed, or the page is complete. Runs in a render thread.

        Args:
            records: what has come since the last step, in order.
            ended: no record will follow these.
            room: bytes that may be staged yet; None behind the commit.
        """
        self._records.extend(records)
        self._has_ended = ended
        # Where little room is left rendering goes piece by piece, to its very end: an error behind it is no refusal.
        self._is_exact = room is not None and room < 2 * self._full_size
        self._step_size = self._full_size if room is None else min(room, self._full_size)
        state, failure = PageState.COMPLETE, None
        try:
            if not self.wanted.is_over:
                state = next(self._flow_states, PageState.COMPLETE)
        except PageError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - what a template can raise has no bound
            failure = self._explain(error)
        if failure is not None:
            failure.settle()
            self._writer.roll_back()
        output = self._writer.take(flush=state is not PageState.MORE or self._is_exact)
        step = Step(output, state, self._is_committed, failure, len(self._records))
        if state is PageState.COMPLETE or self.wanted.is_over:
            self._let_go()
        return step

    def abandon(self) -> None:
        """Make a running step end soon, and a later one do nothing but free what the page holds.

        The hub calls this when nobody wants the page any more.
        """
        self.wanted.is_over = True

    def _let_go(self) -> None:
        """Free the state, here and not on the hub: that takes milliseconds when it is large.

        It also ends the cycle between this object, the template's generator and its contexts.
        """
        self.is_done = True
        self._records.clear()
        self._updatable.clear()
        self._pending = None
        self._pieces = iter(())
        self._flow_states.close()
        self.scope = {}

    # -- what the tag calls, while the template runs

    def reach(self, tag: Tag, key: object, context: PageContext) -> None:
        """Rendering has come to a boundary; its marker is the next piece."""
        if self._is_inside:
            raise tag.error("is inside another boundary")
        if key is not None and not is_key(key):
            if not isinstance(key, Undefined):
                raise tag.error(f"has a key that is neither a string nor a number: {type(key).__name__}")
            key = None
        if len(self._seen) >= MAX_OCCURRENCES:
            raise tag.error(f"is one more than the {MAX_OCCURRENCES} a page may have")
        occurrence = Occurrence(len(self._seen), tag, key, context)
        if occurrence.identity in self._seen:
            hint = "give it a key=" if key is None else f"its key {key!r} must differ"
            raise tag.error(f"was met before in this page; {hint}")
        self._seen.add(occurrence.identity)
        self._pending = occurrence

    def enter(self, tag: Tag) -> None:
        """Rendering goes on behind the marker."""
        if self._pending is not None:
            raise tag.error(
                "stands where Jinja collects output in memory (a macro, call, filter, set, super or import)"
            )

    # -- the page, top to bottom

    def _flow(self) -> Generator[PageState, None, None]:
        start = yield from self._next_command()
        if not isinstance(start, Start):
            raise RecordError('the first record must be a "start"', self._current)
        self._begin(start)
        yield from self._render()
        self._is_committed = True
        while self._pending is not None or self._updatable:
            command = yield from self._next_command()
            if isinstance(command, Update):
                yield from self._update(command)
                continue
            if self._pending is None:
                # Rendering may have stopped short of the end, and then there may be a boundary yet.
                self._writer.release()
                yield from self._render()
                if command is None and self._pending is None:
                    break
            yield from self._resume(command)
            yield from self._render()
        self._writer.write(COMPLETE_COMMENT)

    def _next_command(self) -> Generator[PageState, None, Command | None]:
        """The next command; None when the records have ended."""
        if self._is_whole:
            return None
        # What has been written belongs to finished records: a failure from here on does not take it back.
        self._writer.mark()
        while not self._records:
            if self._has_ended:
                return None
            yield PageState.RECORD
        record = self._records.popleft()
        number = self._record
        self._record += 1
        raw = record.raw if isinstance(record, WholeState) else record
        if isinstance(raw, bytes) and len(raw) > _LARGE_RECORD:
            self._batch_pieces = _BATCH_PIECES_LARGE
        if isinstance(record, bytes):
            return parse_command(record, number)
        if isinstance(record, WholeState):
            self._is_whole = True
            return parse_state(record.raw)
        return check_command(record, number)

    def _begin(self, start: Start) -> None:
        state = self._defaults.apply(start.state, first=True)
        template = self._environment.get_template(self._template)
        self.scope = {**template.globals, **self._extra, **state}
        self._pieces = iter(template.root_render_func(root_context(self, template)))

    def _resume(self, command: Command | None) -> Generator[PageState, None, None]:
        """Handle what is not an update: commit the pending boundary and render on."""
        if command is None and not self._is_whole:
            raise RecordError(f"the records ended while boundary {self._pending} was waited for", self._record)
        if isinstance(command, Start):
            raise RecordError('a second "start"', self._current)
        occurrence = self._match(command)
        self._pending = None
        updatable = isinstance(command, Resume) and command.mode == "updatable"
        if isinstance(command, Resume):
            self.scope.update(self._defaults.apply(command.state, first=False))
        if updatable:
            self._make_updatable(occurrence)
            self._writer.write(f"<!--b:{occurrence.number}-->")
        self._is_inside = True
        yield from self._drive(self._pieces, self._writer.write)
        self._is_inside = False
        if updatable:
            self._writer.write(f"<!--/b:{occurrence.number}-->")
        if self._updatable:
            self._writer.hold()

    def _match(self, command: Command | None) -> Occurrence:
        pending = self._pending
        if isinstance(command, Resume):
            if pending is None:
                raise RecordError(
                    f"resumes {show(command.name)} of {show(command.owner)}, but no boundary is left", self._current
                )
            if pending.identity != (command.owner, command.name, command.key):
                raise RecordError(f"does not resume the boundary that is waited for, {pending}", self._current)
            self._check_declaration(command, pending)
        assert pending is not None
        return pending

    def _check_declaration(self, command: Resume | Update, occurrence: Occurrence) -> None:
        if command.declaration_id not in (None, occurrence.tag.ordinal):
            raise RecordError(
                f'"declarationId" is {show(command.declaration_id)}, not {occurrence.tag.ordinal} as of {occurrence}',
                self._current,
            )

    def _make_updatable(self, occurrence: Occurrence) -> None:
        if len(self._updatable) >= MAX_UPDATABLE:
            raise RecordError(f"one updatable boundary more than the {MAX_UPDATABLE} a page may have", self._current)
        context = occurrence.context
        context.locals = freeze_loops(context.locals)
        occurrence.render = context.blocks[occurrence.tag.block][0]
        self._updatable[occurrence.identity] = occurrence

    def _update(self, command: Update) -> Generator[PageState, None, None]:
        occurrence = self._updatable.get((command.owner, command.name, command.key))
        if occurrence is None or occurrence.render is None:
            raise RecordError(
                f'updates {show(command.name)} of {show(command.owner)}, which was not resumed as "updatable"',
                self._current,
            )
        self._check_declaration(command, occurrence)
        occurrence.context.locals.update(command.state)
        occurrence.context.is_committed = True
        pieces = occurrence.render(occurrence.context)
        self._is_inside = True
        yield from self._drive(pieces, self._writer.write_ahead)  # to the marker before the body: no text
        self._writer.write_ahead(f'<template data-boundary="{occurrence.number}">')
        yield from self._drive(pieces, self._writer.write_ahead)
        self._writer.write_ahead("</template>")
        self._is_inside = False

    # -- driving a template

    def _render(self) -> Generator[PageState, None, None]:
        """Render to the next boundary or the end; while the writer holds, at most STEP_SIZE."""
        yield from self._drive(self._pieces, self._writer.write, limit=STEP_SIZE)
        if self._pending is not None:
            # What was held lies between two boundaries: no update goes before it.
            self._writer.release()

    def _drive(
        self, pieces: Iterator[str], write: Callable[[str], None], limit: float = float("inf")
    ) -> Generator[PageState, None, None]:
        """Write pieces until a marker or their end, or until the writer has held back `limit` characters."""
        until_marker = iter(pieces.__next__, MARKER)
        count = 1
        while self._writer.held_size < limit:
            if self._is_exact:
                count = 1
            # A batch costs a third of taking pieces one by one. Its length follows the pieces' size.
            batch = list(islice(until_marker, count))
            is_last = len(batch) < count
            size = sum(map(len, batch))
            count = max(1, min(self._batch_pieces, 2 * count, count * _BATCH_SIZE // (size + 1)))
            if size <= 2 * _BATCH_SIZE:
                batch = ["".join(batch)]
            # Where pieces have become large all of a sudden, they are sent one by one, and each is let go.
            batch.reverse()
            while batch:
                write(batch.pop())
                if self._writer.ready_size >= self._step_size:
                    yield PageState.MORE
            if is_last:
                return
            if self.wanted.is_over:
                self.wanted.stop()

    # -- failures

    @property
    def _current(self) -> int:
        """Number of the record being handled."""
        return max(0, self._record - 1)

    def _explain(self, error: Exception) -> RenderError:
        """What the client is told of a template's error: one line, no source; `__cause__` has the template's line."""
        try:
            self._environment.handle_exception()
        except Exception as rewritten:  # noqa: BLE001 - the same error, with lines of the template in its traceback
            error = rewritten
        failure = RenderError(f"the template failed ({type(error).__name__})", self._current)
        failure.__cause__ = error
        return failure
