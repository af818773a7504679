"""The documentation agrees with the code: settings, routes, links, references from docstrings, and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from app import create_app
from streaming import metrics
from streaming.config import PREFIX, Settings
from streaming.counts import CLOSURES, PAGE_LIMITS, REFUSALS
from streaming.errors import Aborted
from streaming.protocol.commands import parse_command
from tests.scrape import declared

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    path
    for folder in ("pool", "streaming", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".js") and path != Path(__file__)
] + sorted(ROOT.glob("*.py"))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SETTING = re.compile(r"^### (STREAMING_\w+)$\n+Type: .*? Default: `([^`]*)`\.$", re.MULTILINE)
#: A file of the documentation as code names it: docs/NAME.md, perhaps with headings: , "One" and "Two". May be wrapped.
REFERENCE = re.compile(r"""docs/([\w-]+\.md)((?:,?\s+(?:and\s+)?"[^"\n]+")*)""")


#: A metric at the start of a row: `NAME`, or with its label `NAME{LABEL}`.
METRIC = re.compile(r"^\| `(headrace_\w+)(?:\{(\w+)\})?` \|", re.MULTILINE)


def name(path: Path) -> str:
    """A file as messages show it."""
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text())


def headings(path: Path) -> list[str]:
    """The headings of a page, without marks of code."""
    return [heading.replace("`", "") for heading in HEADING.findall(prose(path))]


def anchors(path: Path) -> set[str]:
    """What a link to a page can name behind the number sign."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(path)}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Blocks of code in a language, each with its place."""
    for path in PAGES:
        text = path.read_text()
        for block in FENCE.finditer(text):
            if block[1] == language:
                yield f"{name(path)}:{text.count(chr(10), 0, block.start()) + 1}", block[2]


def links() -> Iterator[tuple[Path, str]]:
    """Links to files of the repository, with the page they stand in."""
    for path in PAGES:
        for target in LINK.findall(prose(path)):
            if not re.match(r"[a-z]+:", target):
                yield path, target


def references() -> Iterator[tuple[str, str, str]]:
    """The places in code that name a page of the documentation, the page, and a heading or nothing."""
    for path in SOURCES:
        for found in REFERENCE.finditer(path.read_text()):
            for heading in re.findall(r'"([^"]+)"', found[2]) or [""]:
                yield name(path), found[1], heading


def test_the_settings_are_documented_and_no_others() -> None:
    documented = [key for key, _ in SETTING.findall(prose(ROOT / "docs/configuration.md"))]
    assert sorted(documented) == sorted(PREFIX + field.name.upper() for field in fields(Settings))


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_each_setting_has_the_default_that_is_documented(field: object) -> None:
    """Read as the environment would be, the documented text is the default."""
    field_name: str = field.name  # type: ignore[attr-defined]
    key = PREFIX + field_name.upper()
    documented = dict(SETTING.findall(prose(ROOT / "docs/configuration.md")))
    text = "" if documented[key] == "none" else documented[key]
    assert getattr(Settings.from_mapping({key: text}), field_name) == getattr(Settings(), field_name)


def section(path: Path, heading: str) -> str:
    """What stands below a heading of the second level."""
    return prose(path).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_the_metrics_are_documented_and_no_others() -> None:
    documented = METRIC.findall(section(ROOT / "docs/operations.md", "Metrics"))
    assert sorted(documented) == sorted((name, "".join(labels)) for name, labels in declared().items())


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("`limit`", REFUSALS),
        ("`limit` of a page", PAGE_LIMITS),
        ("`outcome`", metrics.OUTCOMES),
        ("`reason` of a close", CLOSURES),
        ("`reason` of a reset", ("ahead", "epoch", "invalid", "trimmed")),
    ],
)
def test_the_values_of_a_label_are_documented_and_no_others(head: str, values: tuple[str, ...]) -> None:
    """Those of a table's first column; a row may be of several."""
    text = section(ROOT / "docs/operations.md", "Metrics")
    rows = text.split(f"\n| {head} | ", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    documented = [value for row in rows for value in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert sorted(documented) == sorted(values)


def test_each_route_is_named_in_the_documentation(tmp_path: Path) -> None:
    app = create_app(
        {"STREAMING_BACKEND_URL": "http://127.0.0.1:3001", "STREAMING_TEMPLATE_FOLDER": str(tmp_path)},
    )
    text = "".join(path.read_text() for path in PAGES)
    routes = {re.sub(r"<\w+:", "<", rule.rule) for rule in app.url_map.iter_rules()}
    assert routes >= {"/pages/<path>", "/healthz"}
    assert [route for route in sorted(routes) if f"GET {route}`" not in text] == []


@pytest.mark.parametrize(
    ("path", "target"), [*links()], ids=lambda value: name(value) if isinstance(value, Path) else value
)
def test_each_link_leads_somewhere(path: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    found = (path.parent / file).resolve() if file else path
    assert found.exists()
    assert found.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(found)


@pytest.mark.parametrize(("source", "page", "heading"), [*references()])
def test_each_reference_from_code_names_a_page_and_its_heading(source: str, page: str, heading: str) -> None:
    assert (ROOT / "docs" / page).is_file()
    if heading:
        assert heading in headings(ROOT / "docs" / page)


def test_references_are_found_at_all() -> None:
    """The pattern knows the forms that docstrings use."""
    found = set(references())
    assert ("streaming/pages/renderer.py", "pages.md", "Output") in found
    assert ("streaming/pages/renderer.py", "pages.md", "Failures") in found
    assert ("streaming/config.py", "configuration.md", "") in found


@pytest.mark.parametrize(("place", "code"), [*blocks("python")])
def test_each_python_example_compiles(place: str, code: str) -> None:
    compile(code, place, "exec", dont_inherit=True)


@pytest.mark.parametrize(("place", "lines"), [*blocks("ndjson")])
def test_each_record_shown_is_a_record(place: str, lines: str) -> None:
    for number, line in enumerate(lines.splitlines()):
        try:
            parse_command(line.encode(), number)
        except Aborted:
            continue
