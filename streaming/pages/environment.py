"""The Jinja environment in which streamed pages are compiled. Source: docs/pages.md, "Templates".

It is the app's own, with its filters, globals and options, and differs in three ways: contexts are `PageContext`, names
are looked up where they stand, and a template is compiled once however many threads want it.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from gevent.monkey import get_original
from jinja2 import BaseLoader, Environment, Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.idtracking import VAR_LOAD_ALIAS, VAR_LOAD_RESOLVE, Symbols

from .boundary import PageContext, is_boundary

if TYPE_CHECKING:
    from flask import Flask


def page_environment(app: Flask, loader: BaseLoader) -> Environment:
    """An environment for streamed pages: the app's own, with its filters, globals and options, compiled for streaming.

    Args:
        loader: where templates come from.
    """
    environment = app.jinja_env.overlay(
        loader=CompileOnce(loader),
        autoescape=True,
        # A plain dict, for as many templates as there are. Jinja's bounded cache has a lock that each look-up takes.
        cache_size=-1,
        # A cache on disk knows templates by name, and would hand out the ones compiled for render_template.
        bytecode_cache=None,
    )
    environment.code_generator_class = PageCodeGenerator
    environment.context_class = PageContext
    return environment


class PageCodeGenerator(CodeGenerator):
    """Compiles templates so that names are looked up where they stand, and refuses boundaries that can't work."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Check the boundaries that are inside others, then compile."""
        self._loop_bodies: list[list[nodes.Node]] = []
        self._frozen: dict[int, str] = {}  # ids of names in the tree, and the locals that hold their values
        # `{% set ns.x = … %}` reads the namespace without a look-up, so those names are looked up early, as in Jinja.
        self._namespaces = {reference.name for reference in node.find_all(nodes.NSRef)}
        for block in node.find_all(nodes.Block):
            if is_boundary(block):
                for inner in block.find_all(nodes.Block):
                    if is_boundary(inner):
                        self.fail("a boundary cannot stand in another boundary", inner.lineno)
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        """Begin a function of the template."""
        super().write_commons()
        self.writeline("wanted = context.wanted")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Write a loop whose every turn asks whether the page is still wanted: it may run long and yield nothing."""
        self._loop_bodies.append(node.body)
        if node.test is not None:
            self._freeze_condition(node, frame)
        super().visit_For(node, frame)

    def _freeze_condition(self, node: nodes.For, frame: Frame) -> None:
        """Look the names of `{% for … if … %}` up before the loop: what it goes over is settled when it begins."""
        assert node.test is not None
        own = {name.name for name in _names(node.target)} | {"loop"}
        for name in _names(node.test):
            ref = frame.symbols.find_ref(name.name)
            if name.name not in own and (ref is None or _is_looked_up(frame.symbols, ref)):
                self._frozen[id(name)] = local = self.temporary_identifier()
                found = f"{self.get_context_ref()}.resolve({name.name!r})"
                self.writeline(
                    f"{local} = {found}" if ref is None else f"{local} = {found} if {ref} is missing else {ref}"
                )

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        """Write statements; a loop's body begins with the question."""
        if self._loop_bodies and nodes is self._loop_bodies[-1]:
            self._loop_bodies.pop()
            self.writeline("if wanted.is_over: wanted.stop()")
        super().blockvisit(nodes, frame)

    def visit_Block(self, node: nodes.Block, frame: Frame) -> None:
        """Refuse a boundary where its output would be collected, or never rendered."""
        if is_boundary(node):
            if frame.buffer is not None:
                self.fail(
                    "a boundary cannot stand in a macro, call, filter or set block or a recursive loop: "
                    "Jinja collects their output in memory",
                    node.lineno,
                )
            if frame.block is None and self.has_known_extends:
                self.fail(
                    "a boundary outside the blocks of a template that extends another is never rendered",
                    node.lineno,
                )
        super().visit_Block(node, frame)

    def enter_frame(self, frame: Frame) -> None:
        """Begin a scope: what Jinja would look up now is left to the places that use it."""
        loads = frame.symbols.loads
        late = [
            target
            for target, (action, name) in loads.items()
            if action == VAR_LOAD_RESOLVE and name not in self._namespaces
        ]
        if late:
            self.writeline(f"{' = '.join(late)} = missing")
        frame.symbols.loads = {target: load for target, load in loads.items() if target not in late}
        super().enter_frame(frame)
        frame.symbols.loads = loads

    def visit_Name(self, node: nodes.Name, frame: Frame) -> None:
        """Write a name: a local if the template has set it, else a look-up."""
        if id(node) in self._frozen:
            self.write(self._frozen[id(node)])
            return
        if node.ctx == "load":
            ref = frame.symbols.ref(node.name)
            if _is_looked_up(frame.symbols, ref):
                resolve = f"{self.get_context_ref()}.resolve({node.name!r})"
                is_local = any(node.name in scope.stores for scope in _scopes(frame.symbols))
                self.write(f"({resolve} if {ref} is missing else {ref})" if is_local else resolve)
                return
        super().visit_Name(node, frame)

    def dump_local_context(self, frame: Frame) -> str:
        """Write the locals that a derived context gets."""
        found = super().dump_local_context(frame)
        return found if found == "{}" else f"{self.get_context_ref()}.with_locals({found})"


def _names(expression: nodes.Node) -> list[nodes.Name]:
    return [*([expression] if isinstance(expression, nodes.Name) else []), *expression.find_all(nodes.Name)]


def _scopes(symbols: Symbols | None) -> Any:
    while symbols is not None:
        yield symbols
        symbols = symbols.parent


def _is_looked_up(symbols: Symbols, ref: str) -> bool:
    load = symbols.find_load(ref)
    while load is not None and load[0] == VAR_LOAD_ALIAS:
        load = symbols.find_load(load[1])
    return load is not None and load[0] == VAR_LOAD_RESOLVE


class CompileOnce(BaseLoader):
    """Lets one thread compile a template while the others that want it wait, instead of all of them compiling it."""

    def __init__(self, loader: BaseLoader) -> None:
        self.loader = loader
        # A native lock: those who wait are native threads of the pool, never greenlets of the hub.
        self._lock = get_original("_thread", "allocate_lock")()

    def load(self, environment: Environment, name: str, globals: MutableMapping[str, Any] | None = None) -> Template:
        """Load a template; called by Jinja when its cache has no current one."""
        with self._lock:
            cache: Any = environment.cache
            key = (weakref.ref(self), name)
            template: Template | None = cache.get(key)
            if template is None or not template.is_up_to_date:
                template = cache[key] = self.loader.load(environment, name, globals)
            return template

    def list_templates(self) -> list[str]:
        """The names of all templates."""
        return self.loader.list_templates()
