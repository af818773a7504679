"""The `{% boundary %}` tag: how a Jinja template says where a page waits. Source: docs/pages.md, "Templates".

Theory of operation. The tag compiles to a scoped Jinja block::

    {% block <unique name> scoped %}
        reach(owner, name, ordinal, line, key)   tells the page where it is
        MARKER                                   the driver stops here and waits for a record
        enter()                                  fails if the driver did not stop
        … the tag's body …
        MARKER                                   the driver stops here: the body is complete
    {% endblock %}

`renderer.py` drives the template as a generator, piece by piece, and a marker comes out as a piece of its own. Where
Jinja collects output in memory (a macro, a filter, `super()`) it does not, and `enter` sees that. Being a block, a body
can be rendered again later with the context it had. Three things make that work, all in an environment of the page
path's own (`environment.py`), so that templates rendered as usual are compiled and run as usual:

* `PageContext` looks names up in the page's one state, so that every context sees a resume at once;
* `PageCodeGenerator` looks names up where they stand; Jinja does it when a block begins, which would freeze what is
  behind a boundary;
* the tag leaves out marker and calls in the app's own environment: `render_template` renders boundaries in place.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from jinja2 import Environment, Template, TemplateRuntimeError, nodes
from jinja2.compiler import find_undeclared
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.utils import missing

# A piece equal to this is a marker. No backend can guess it; it never leaves the process.
MARKER = f"<!--boundary {secrets.token_hex(16)}-->"
_BLOCK_PREFIX = "boundary_"


class _OwnName(str):
    """A name that no template and no record can spell: equal to itself alone."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


_PAGE = _OwnName("page")
_LOCALS = _OwnName("locals")


class BoundaryError(TemplateRuntimeError):
    """A boundary was met where it cannot work; the message begins with template and line."""

    def __init__(self, template: str, line: int, name: str, reason: str) -> None:
        super().__init__(f'{template}:{line}: boundary "{name}" {reason}')


class Tag:
    """One boundary tag of a template. `ordinal` counts the tags of its template in source order, from 0."""

    __slots__ = ("line", "name", "ordinal", "owner")

    def __init__(self, owner: str, name: str, ordinal: int, line: int) -> None:
        self.owner = owner
        self.name = name
        self.ordinal = ordinal
        self.line = line

    @property
    def block(self) -> str:
        """Name of the Jinja block that the tag compiles to."""
        return _block_name(self.owner, self.ordinal)

    def error(self, reason: str) -> BoundaryError:
        """An error that names this tag's template and line."""
        return BoundaryError(self.owner, self.line, self.name, reason)


class Wanted:
    """Whether anybody still wants what is being rendered; compiled loops ask at every turn.

    The hub sets `is_over` while a render thread runs the template.
    """

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False

    def stop(self) -> None:
        """End the rendering, by an error that nobody will see."""
        raise TemplateRuntimeError("nobody wants the page any more")


_ALWAYS = Wanted()


class Page(Protocol):
    """What the tag needs of the page being rendered; `renderer.PageRenderer` is one."""

    wanted: Wanted

    #: What every name that is no local of a template means: globals, context processors, state. Changed by resumes.
    scope: dict[str, Any]

    def reach(self, tag: Tag, key: object, context: PageContext) -> None:
        """Rendering has come to a boundary; its marker is the next piece."""

    def enter(self, tag: Tag) -> None:
        """Rendering goes on behind the marker; raise if the page did not stop at it."""


class BoundaryTag(Extension):
    """Jinja extension for `{% boundary "name" [key=expression] %}…{% endboundary %}`."""

    tags = {"boundary"}  # noqa: RUF012 - Jinja's own convention

    def parse(self, parser: Parser) -> nodes.Node:
        """Compile the tag; called by Jinja's parser behind the word `boundary`."""
        line = next(parser.stream).lineno
        name = parser.stream.expect("string").value
        key: nodes.Expr = nodes.Const(None)
        parser.stream.skip_if("comma")
        if parser.stream.current.test("name:key"):
            next(parser.stream)
            parser.stream.expect("assign")
            key = parser.parse_expression()
        owner = parser.name or "<template>"
        ordinal = getattr(parser, "boundaries", 0)
        parser.boundaries = ordinal + 1  # type: ignore[attr-defined]
        body = parser.parse_statements(("name:endboundary",), drop_needle=True)
        if "super" in find_undeclared(body, ("super",)):
            parser.fail(f'boundary "{name}" contains super(); put the boundary into the parent block instead', line)
        if _is_streaming(self.environment):
            body = self._wrap(body, owner, name, ordinal, line, key)
        block = nodes.Block(_block_name(owner, ordinal), body, True, False)
        return block.set_lineno(line)

    def _wrap(
        self, body: list[nodes.Node], owner: str, name: str, ordinal: int, line: int, key: nodes.Expr
    ) -> list[nodes.Node]:
        place: list[nodes.Expr] = [nodes.Const(value) for value in (owner, name, ordinal, line)]
        reach = self.call_method("_reach", [nodes.ContextReference(), *place, key])
        enter = self.call_method("_enter", [nodes.ContextReference(), *place])
        wrapped: list[nodes.Node] = [
            nodes.ExprStmt(reach),
            nodes.Output([nodes.TemplateData(MARKER)]),
            nodes.ExprStmt(enter),
            *body,
            nodes.Output([nodes.TemplateData(MARKER)]),
        ]
        return wrapped

    @staticmethod
    def _reach(context: PageContext, owner: str, name: str, ordinal: int, line: int, key: object) -> None:
        tag = Tag(owner, name, ordinal, line)
        if context.page is None:
            raise tag.error("is in a template imported or included without its page's context")
        if not context.is_committed:
            context.page.reach(tag, key, context)

    @staticmethod
    def _enter(context: PageContext, owner: str, name: str, ordinal: int, line: int) -> None:
        if context.page is not None and not context.is_committed:
            context.page.enter(Tag(owner, name, ordinal, line))


class PageContext(Context):
    """A context whose names are the template's own locals first, then the page's state as it is now.

    Jinja copies what a context holds into the contexts it derives, which is too early here: so the locals travel apart
    from the state, under names of our own that no record can spell.

    Attributes:
        page: the page being rendered; None in a template imported without context.
        is_committed: the body of this boundary is being rendered by the page itself, so its tag has nothing to tell.
    """

    def __init__(
        self,
        environment: Environment,
        parent: dict[str, Any],
        name: str | None,
        blocks: dict[str, Any],
        globals: MutableMapping[str, Any] | None = None,
    ) -> None:
        super().__init__(environment, parent, name, blocks, globals)
        self.page: Page | None = parent.get(_PAGE)
        self.wanted = _ALWAYS if self.page is None else self.page.wanted
        self.locals: dict[str, Any] = parent.get(_LOCALS, {})
        self.is_committed = False

    def resolve_or_missing(self, key: str) -> Any:
        """Look a name up; see the class."""
        if self.page is None:
            return super().resolve_or_missing(key)
        if key in self.vars:
            return self.vars[key]
        if key in self.locals:
            return self.locals[key]
        return self.page.scope.get(key, missing)

    def resolve(self, key: str) -> Any:
        """Look a name up, or return Undefined; in one call where Jinja makes two, as each name of a page does it."""
        page = self.page
        if page is None:
            return super().resolve(key)
        if key in self.vars:
            return self.vars[key]
        if key in self.locals:
            return self.locals[key]
        value = page.scope.get(key, missing)
        return self.environment.undefined(name=key) if value is missing else value

    def get_all(self) -> dict[str, Any]:
        """Everything that can be looked up now, as a dict; for the contexts of included templates too."""
        if self.page is None:
            return super().get_all()
        own = {**self.locals, **self.vars}
        return {**self.page.scope, **own, _PAGE: self.page, _LOCALS: own}

    def with_locals(self, found: dict[str, Any]) -> dict[str, Any]:
        """Called by compiled templates: `found` as Jinja hands it to a derived context, and apart from the state."""
        if self.page is None:
            return found
        given = {name: value for name, value in found.items() if value is not missing}
        return {**given, _LOCALS: {**self.locals, **self.vars, **given}}

    def derived(self, locals: dict[str, Any] | None = None) -> PageContext:
        """A context for a block, with the locals that it can see."""
        if self.page is None:
            return super().derived(locals)  # type: ignore[return-value]
        own = locals[_LOCALS] if locals and _LOCALS in locals else self.with_locals(locals or {})[_LOCALS]
        context = PageContext(self.environment, {_PAGE: self.page, _LOCALS: own}, self.name, {})
        context.eval_ctx = self.eval_ctx
        context.blocks.update((name, list(blocks)) for name, blocks in self.blocks.items())
        return context

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.resolve_or_missing(name) is not missing


def root_context(page: Page, template: Template) -> PageContext:
    """The context in which a page's template begins."""
    context = template.new_context({_PAGE: page}, shared=True)
    assert isinstance(context, PageContext)
    return context


def _is_streaming(environment: Environment) -> bool:
    """Whether an environment compiles for streaming."""
    return issubclass(environment.context_class, PageContext)


def _block_name(template: str, ordinal: int) -> str:
    """A name that no other tag has, so that tags of a parent and its child can't be taken for one block."""
    return f"{_BLOCK_PREFIX}{hashlib.sha256(template.encode()).hexdigest()[:16]}_{ordinal}"


def is_boundary(block: nodes.Block) -> bool:
    """Whether a block of a template is one that the tag made."""
    return block.name.startswith(_BLOCK_PREFIX) and bool(block.scoped)


class FrozenLoop:
    """A `loop` variable as it was when its boundary was rendered, for rendering that boundary again."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.index0 = loop.index0
        self.depth0 = loop.depth0
        self.previtem = loop.previtem
        self.nextitem = loop.nextitem
        self.last = loop.last

    index = property(lambda self: self.index0 + 1)
    first = property(lambda self: self.index0 == 0)
    depth = property(lambda self: self.depth0 + 1)
    # A loop's length does not change while it runs. It is asked for late, since for a generator it costs reading it.
    length = property(lambda self: self._loop.length)
    revindex0 = property(lambda self: self.length - self.index)
    revindex = property(lambda self: self.length - self.index0)

    def __len__(self) -> int:
        return int(self.length)

    def cycle(self, *values: Any) -> Any:
        """One of `values`, by the loop's index."""
        if not values:
            raise TypeError("no items for cycling given")
        return values[self.index0 % len(values)]

    def changed(self, *value: Any) -> bool:
        """Whether `value` is another one than at the last call."""
        return bool(self._loop.changed(*value))


def freeze_loops(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a boundary's locals in which no loop goes on."""
    return {name: FrozenLoop(value) if isinstance(value, LoopContext) else value for name, value in values.items()}
