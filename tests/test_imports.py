"""Imports point down: layers, cycles, and what the pure parts may not touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("pool", "streaming")
PURE = ("streaming.protocol", "streaming.config", "streaming.errors", "pool.buffers")
IMPURE = {
    "asyncio", "concurrent", "datetime", "flask", "gevent", "geventwebsocket", "greenlet", "gunicorn", "http", "jinja2",
    "multiprocessing", "os", "queue", "random", "redis", "secrets", "select", "selectors", "signal", "socket", "ssl",
    "subprocess", "threading", "time", "uuid", "werkzeug",
}  # fmt: skip

# From the bottom up. A module may import its own layer's modules and those of the layers above it in this list.
# A prefix stands for a module and everything below it; the longest prefix counts.
LAYERS: list[tuple[str, ...]] = [
    ("streaming.errors",),
    ("streaming.config", "streaming.protocol", "pool"),
    (
        "streaming.departure",
        "streaming.counts",
        "streaming.turns",
        "streaming.pages.boundary",
        "streaming.pages.writer",
    ),
    ("streaming.pages.environment", "streaming.pages.renderer"),
    ("streaming.state", "streaming.pages.sources", "pool.worker"),
    ("streaming.pages", "streaming.live"),
    ("streaming.metrics",),
    ("streaming.operations",),
    ("streaming.handler", "streaming.extension"),
    ("streaming.server",),
    ("streaming", "streaming.testing"),
]


def modules() -> dict[str, Path]:
    """Every module of the product by its full name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: set[str]) -> Iterator[tuple[str, int]]:
    """What a module imports, also inside functions, with the line; what is only for type checkers is left out."""
    return imports_of(path.read_text(), name, path.name == "__init__.py", known)


def imports_of(source: str, name: str, is_package: bool, known: set[str]) -> Iterator[tuple[str, int]]:
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parents, base]).strip(".")
            for alias in node.names:
                # `from package import name` may name a module.
                full = f"{base}.{alias.name}"
                yield (full if full in known else base), node.lineno
        pending += ast.iter_child_nodes(node)


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def layer(name: str) -> int:
    """The index of a module's layer; -1 for one that no layer names."""
    fitting = [
        (len(prefix), index)
        for index, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        # `streaming` itself is the top, but says nothing about what is in it.
        if (name == prefix if prefix == "streaming" else is_under(name, prefix))
    ]
    return max(fitting)[1] if fitting else -1


def graph() -> dict[str, dict[str, int]]:
    """Module -> the product's modules it imports -> line."""
    found = modules()
    return {
        name: {target: line for target, line in imports(name, path, set(found)) if target in found and target != name}
        for name, path in found.items()
    }


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """One import cycle, or nothing."""
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        trail.append(name)
        for target in sorted(edges.get(name, ())):
            if found := visit(target):
                return found
        trail.pop()
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name))), [])


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if layer(name) < 0] == []


def test_imports_point_down() -> None:
    upward = [
        f"{name}:{line} imports {target}"
        for name, targets in graph().items()
        for target, line in targets.items()
        if layer(target) > layer(name)
    ]
    assert upward == []


def test_no_imports_form_a_cycle() -> None:
    assert cycle({name: set(targets) for name, targets in graph().items()}) == []


def test_nothing_in_the_product_imports_the_composition_root_the_tests_or_the_examples() -> None:
    outside = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        for target, line in imports(name, path, set(modules()))
        if target.split(".")[0] in ("app", "tests", "examples", "benchmarks")
    ]
    assert outside == []


def test_the_pool_knows_nothing_of_streaming() -> None:
    """Except what runs inside a worker process: it renders."""
    upward = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if is_under(name, "pool") and name != "pool.worker" and is_under(target, "streaming")
    ]
    assert upward == []


def test_pages_and_live_never_import_each_other() -> None:
    across = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        for one, other in (("streaming.pages", "streaming.live"), ("streaming.live", "streaming.pages"))
        if is_under(name, one) and is_under(target, other)
    ]
    assert across == []


def test_the_pure_modules_import_no_clock_no_network_no_framework_and_no_chance() -> None:
    impure = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        if any(is_under(name, prefix) for prefix in PURE)
        for target, line in imports(name, path, set(modules()))
        if target.split(".")[0] in IMPURE
    ]
    assert impure == []


def test_the_pure_modules_import_only_pure_ones() -> None:
    impure = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        if any(is_under(name, prefix) for prefix in PURE)
        for target in targets
        if not any(is_under(target, prefix) for prefix in PURE)
    ]
    assert impure == []


def test_the_pure_modules_exist() -> None:
    """The rules above hold for something."""
    assert all(any(is_under(name, prefix) for name in modules()) for prefix in PURE)


@pytest.mark.parametrize(
    "statement", ["import streaming", "import streaming.protocol.commands", "import streaming.config, pool.buffers"]
)
def test_importing_the_pure_parts_imports_no_framework(statement: str) -> None:
    """In a fresh interpreter, with everything that packages do on import."""
    frameworks = {"flask", "gevent", "jinja2", "werkzeug", "redis", "h11"}
    script = f"{statement}; import sys; print(sorted(set(sys.modules) & {frameworks}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# -- the walk itself


def test_the_walk_sees_every_way_to_import() -> None:
    source = """
from __future__ import annotations
import os.path
from . import sibling
from .sibling import name
from ..errors import PageError
from .. import config
if TYPE_CHECKING:
    import flask
def late():
    from gevent import event
"""
    known = {"streaming.pages.sibling", "streaming.errors", "streaming.config"}
    found = {target for target, _ in imports_of(source, "streaming.pages.module", False, known)}
    assert found == {
        "__future__", "os.path", "streaming.pages.sibling", "streaming.errors", "streaming.config", "gevent",
    }  # fmt: skip
    assert {target for target, _ in imports_of("from .sibling import x", "streaming.pages", True, known)} == {
        "streaming.pages.sibling"
    }


def test_the_walk_finds_a_cycle() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
