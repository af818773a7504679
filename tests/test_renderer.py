"""One page, record by record, without a pool or a server: what each step sends, to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import DictLoader, Environment

from streaming.errors import Aborted, PageError, RecordError, RenderError
from streaming.pages.boundary import BoundaryTag
from streaming.pages.environment import page_environment
from streaming.pages.renderer import COMPLETE_COMMENT, PageRenderer, PageState, Record, Step, WholeState
from streaming.protocol.commands import Defaults, Resume, Start, Update

COMPLETE = COMPLETE_COMMENT.encode()
STEP = 65_536
NAME = "page.html"

TWO = '<h1>{{ title }}</h1>{% boundary "a" %}[{{ a }}]{% endboundary %}-{% boundary "b" %}({{ b }}){% endboundary %}!'
ONE = '<p>{% boundary "a" %}[{{ a }}]{% endboundary %}</p>tail'
ITEMS = "{% for item in items %}"
ITEMS += "{% boundary 'item' key=item.id %}<i>{{ item.name }}:{{ more }}</i>{% endboundary %}{% endfor %}"


def environment(templates: dict[str, str]) -> Environment:
    app = Flask("page")
    app.jinja_env.add_extension(BoundaryTag)
    return page_environment(app, DictLoader(templates))


class Driver:
    """A page renderer, driven as a response drives it: it asks for more steps until a record is needed."""

    def __init__(
        self,
        template: str,
        *,
        defaults: Defaults | None = None,
        chunk_size: int = 4_096,
        scope: dict[str, Any] | None = None,
        **others: str,
    ) -> None:
        templates = {NAME: template, **{f"{name}.html": source for name, source in others.items()}}
        self.renderer = PageRenderer(environment(templates), NAME, scope or {}, defaults or Defaults(), chunk_size)
        self.steps: list[Step] = []

    def send(self, *records: Record, ended: bool = False) -> bytes:
        """All output until the page needs a record, is complete, or has failed."""
        output = self.step(*records, ended=ended)
        while self.last.state is PageState.MORE:
            output += self.step(ended=ended)
        return output

    def step(self, *records: Record, ended: bool = False) -> bytes:
        self.steps.append(self.renderer.step(list(records), ended))
        return self.last.output

    def end(self) -> bytes:
        """All output after the records have ended."""
        return self.send(ended=True)

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def is_complete(self) -> bool:
        return self.last.state is PageState.COMPLETE and self.last.failure is None

    def failure(self, kind: type[PageError]) -> Any:
        assert type(self.last.failure) is kind
        assert self.last.state is PageState.COMPLETE
        message = str(self.last.failure)
        assert message.isprintable()
        assert len(message) < 600
        return self.last.failure


def resume(name: str, key: Any = None, mode: str = "final", number: int | None = None, **state: Any) -> Resume:
    return Resume(NAME, name, state, key, mode, number)


def updatable(name: str, key: Any = None, **state: Any) -> Resume:
    return resume(name, key, "updatable", **state)


def update(name: str, key: Any = None, number: int | None = None, **state: Any) -> Update:
    return Update(NAME, name, state, key, number)


def patch(number: int, body: str) -> bytes:
    return f'<template data-boundary="{number}">{body}</template>'.encode()


# -- the order of output


def test_start_renders_up_to_the_first_boundary_and_that_is_the_commit() -> None:
    page = Driver(TWO)
    assert page.send(Start({"title": "A < B"})) == b"<h1>A &lt; B</h1>"
    assert page.last.is_committed
    assert page.last.state is PageState.RECORD


def test_a_resume_renders_the_body_and_on_to_the_next_boundary() -> None:
    """What is behind the boundary does not wait for the next record."""
    page = Driver(TWO)
    page.send(Start({"title": "T"}))
    assert page.send(resume("a", a=1)) == b"[1]-"
    assert page.send(resume("b", b=2)) == b"(2)!" + COMPLETE
    assert page.is_complete


def test_a_page_without_boundaries_is_complete_with_its_start() -> None:
    page = Driver("<p>{{ x }}</p>")
    assert page.send(Start({"x": 1})) == b"<p>1</p>" + COMPLETE
    assert page.is_complete
    assert page.last.is_committed


def test_an_empty_template_is_a_page() -> None:
    page = Driver("")
    assert page.send(Start()) == COMPLETE
    assert page.is_complete


def test_an_empty_shell_is_committed_without_output() -> None:
    page = Driver("{% boundary 'a' %}{% endboundary %}{% boundary 'b' %}{% endboundary %}")
    assert page.send(Start()) == b""
    assert page.last.is_committed
    assert page.send(resume("a")) == b""
    assert page.send(resume("b")) == COMPLETE


def test_nothing_is_committed_before_the_first_record() -> None:
    page = Driver(TWO)
    assert page.step() == b""
    assert (page.last.is_committed, page.last.state) == (False, PageState.RECORD)


def test_several_records_go_into_one_step() -> None:
    page = Driver(TWO)
    output = page.send(Start({"title": "T"}), resume("a", a=1), resume("b", b=2), ended=True)
    assert output == b"<h1>T</h1>[1]-(2)!" + COMPLETE
    assert len(page.steps) == 1


def test_raw_records_are_parsed_with_their_number() -> None:
    page = Driver(ONE)
    page.send(b'{"type":"start","version":2,"state":{}}')
    assert page.send(b'{"type":"resume","boundary":{"owner":"page.html","name":"a"},"state":{"a":1}}').startswith(
        b"[1]"
    )
    page = Driver(ONE)
    page.send(b'{"type":"start","version":2,"state":{}}', b"{")
    assert page.failure(RecordError).record == 1


def test_an_updatable_body_stands_between_comments_with_its_number() -> None:
    """Occurrences are numbered from 0 as they are reached; a final one is bare and counts."""
    page = Driver(TWO)
    page.send(Start({"title": ""}))
    assert page.send(resume("a", a=1)) == b"[1]-"
    assert page.send(updatable("b", b=2)) == b"<!--b:1-->(2)<!--/b:1-->"
    assert page.end() == b"!" + COMPLETE


def test_a_resume_is_seen_inside_the_boundary_and_behind_it() -> None:
    page = Driver("{{ x }}{% boundary 'a' %}{{ x }}{% endboundary %}{{ x }}{{ y }}")
    assert page.send(Start({"x": 1, "y": 2})) == b"1"
    assert page.send(resume("a", x=3)) == b"332" + COMPLETE


def test_a_resume_overlays_the_state_by_top_level_key() -> None:
    page = Driver("{% boundary 'a' %}{{ x.b }}{{ x.c }}|{{ y }}{% endboundary %}")
    page.send(Start({"x": {"b": 1}, "y": 2}))
    assert page.send(resume("a", x={"c": 3})) == b"3|2" + COMPLETE


def test_a_loop_that_has_begun_goes_on_over_what_it_began_with() -> None:
    page = Driver("{% for i in items %}{% boundary 'a' key=i %}{{ i }}{{ items|length }};{% endboundary %}{% endfor %}")
    page.send(Start({"items": [1, 2]}))
    assert page.send(resume("a", 1, items=[7, 8, 9])) == b"13;"
    assert page.send(resume("a", 2)) == b"23;" + COMPLETE


def test_the_app_s_defaults_go_into_start_and_resume_and_never_into_an_update() -> None:
    defaults = Defaults({"t": 1}, {"basePath": "/x"})
    page = Driver("{% boundary 'a' %}{{ tokens.t }}{{ tokens.u }}{{ basePath }}{% endboundary %}", defaults=defaults)
    page.send(Start({"tokens": {"u": 2}, "basePath": "no"}))
    assert page.send(updatable("a", tokens={"u": 3}, basePath="no")) == b"<!--b:0-->13/x<!--/b:0-->"
    assert page.send(update("a", tokens={"u": 4})) == patch(0, "4/x")
    assert page.send(update("a", basePath="/y")) == patch(0, "4/y")


def test_a_resume_without_tokens_keeps_those_of_the_start() -> None:
    page = Driver("{% boundary 'a' %}{{ tokens.u }}{% endboundary %}", defaults=Defaults({"t": 1}))
    page.send(Start({"tokens": {"u": 2}}))
    assert page.send(resume("a")) == b"2" + COMPLETE


def test_the_state_wins_over_what_the_scope_adds_and_globals_are_below() -> None:
    page = Driver(
        "{{ x }}{{ y }}{{ dict(a=1).a }}{% boundary 'a' %}{{ y }}{% endboundary %}", scope={"x": "p", "y": "p"}
    )
    assert page.send(Start({"x": "s"})) == b"sp1"
    assert page.send(resume("a", y="s")) == b"s" + COMPLETE


# -- updates


def test_an_update_renders_the_body_again_into_a_template_element() -> None:
    page = Driver(ONE)
    page.send(Start())
    assert page.send(updatable("a", a=1)) == b"<!--b:0-->[1]<!--/b:0-->"
    assert page.send(update("a", a="<2>")) == patch(0, "[&lt;2&gt;]")
    assert page.end() == b"</p>tail" + COMPLETE
    assert page.is_complete


def test_an_update_before_the_next_boundary_stands_right_before_it() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}))
    assert page.send(updatable("a", a=1)) == b"<!--b:0-->[1]<!--/b:0-->-"
    assert page.send(update("a", a=2)) == patch(0, "[2]")
    assert page.send(resume("b", b=3)) == b"(3)"
    assert page.send(update("a", a=4)) == patch(0, "[4]")
    assert page.end() == b"!" + COMPLETE


def test_patches_add_up_over_the_latest_state() -> None:
    page = Driver("{% boundary 'a' %}{{ x }}{{ y }}{{ z }}{% endboundary %}{% boundary 'b' %}{% endboundary %}")
    page.send(Start({"x": 0, "y": 0, "z": 0}), updatable("a"))
    assert page.send(update("a", x=1)) == patch(0, "100")
    assert page.send(update("a", y=2)) == patch(0, "120")
    page.send(resume("b", z=3, x=9))
    assert page.send(update("a")) == patch(0, "123")


def test_an_update_is_for_its_boundary_only() -> None:
    page = Driver("{% for i in 'pq' %}{% boundary 'a' key=i %}{{ i }}{{ x }}{% endboundary %}{% endfor %}{{ x }}")
    page.send(Start({"x": 0}), updatable("a", "p"), updatable("a", "q"))
    assert page.send(update("a", "p", x=1)) == patch(0, "p1")
    assert page.send(update("a", "q")) == patch(1, "q0")
    assert page.end() == b"0" + COMPLETE


def test_a_patch_wins_over_loop_variables_and_what_the_template_has_set() -> None:
    page = Driver(
        "{% set s = 'set' %}{% for i in 'pq' %}{% set t = i %}"
        "{% boundary 'a' key=i %}{{ i }}{{ s }}{{ t }}{% endboundary %}{% endfor %}"
    )
    page.send(Start(), updatable("a", "p"), updatable("a", "q"))
    assert page.send(update("a", "p")) == patch(0, "psetp")
    assert page.send(update("a", "p", i="I", s="S", t="T")) == patch(0, "IST")
    assert page.send(update("a", "q", i="J")) == patch(1, "Jsetq")


def test_an_update_sees_its_own_loop_as_it_was() -> None:
    """Although the loop has gone on, and has ended."""
    body = (
        "{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}"
        "{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}"
        "{{ loop.cycle('x', 'y') }}{{ loop|length }}"
    )
    page = Driver(f"{{% for i in 'pqr' %}}{{% boundary 'a' key=i %}}{body}{{% endboundary %}}{{% endfor %}}")
    page.send(Start())
    first = page.send(updatable("a", "p"))
    assert first == b"<!--b:0-->10TrueFalse33210qx3<!--/b:0-->"
    second = page.send(updatable("a", "q"))
    assert second == b"<!--b:1-->21FalseFalse32110pry3<!--/b:1-->"
    third = page.send(updatable("a", "r"))
    assert third == b"<!--b:2-->32FalseTrue31010qx3<!--/b:2-->"
    assert page.send(update("a", "p")) == patch(0, "10TrueFalse33210qx3")
    assert page.send(update("a", "q")) == patch(1, "21FalseFalse32110pry3")
    assert page.send(update("a", "r")) == patch(2, "32FalseTrue31010qx3")


def test_an_update_sees_outer_loops_under_their_other_names_as_they_were() -> None:
    page = Driver(
        "{% for i in 'pq' %}{% set outer = loop %}{% for j in [1, 2] %}{% boundary 'a' key=i ~ j %}"
        "{{ outer.index }}{{ outer.last }}{{ loop.index }}{% endboundary %}{% endfor %}{% endfor %}"
    )
    page.send(Start(), *(updatable("a", key) for key in ("p1", "p2", "q1", "q2")))
    assert page.send(update("a", "p2")) == patch(1, "1False2")
    assert page.send(update("a", "q1")) == patch(2, "2True1")


def test_an_update_of_a_boundary_in_an_include_sees_what_the_include_saw() -> None:
    page = Driver(
        "{% for i in 'pq' %}{% include 'part.html' %}{% endfor %}",
        part="{% boundary 'a' key=i %}{{ i }}{{ x }}{% endboundary %}",
    )
    records = [Resume("part.html", "a", {}, key, "updatable") for key in "pq"]
    assert page.send(Start({"x": 0}), *records) == b"<!--b:0-->p0<!--/b:0--><!--b:1-->q0<!--/b:1-->"
    assert page.send(Update("part.html", "a", {"x": 1}, "p")) == patch(0, "p1")


def test_an_update_of_a_body_that_includes_renders_the_include_with_the_patch() -> None:
    page = Driver("{% boundary 'a' %}{% include 'part.html' %}{% endboundary %}", part="{{ x }}{{ y }}")
    page.send(Start({"x": 0, "y": 0}), updatable("a", y=1))
    assert page.send(update("a", x=2)) == patch(0, "21")


def test_an_updatable_boundary_can_be_updated_many_times() -> None:
    page = Driver(ONE)
    page.send(Start(), updatable("a", a=0))
    output = page.send(*(update("a", a=n) for n in range(3_000)), ended=True)
    assert output == b"".join(patch(0, f"[{n}]") for n in range(3_000)) + b"</p>tail" + COMPLETE


def test_a_page_without_updatable_boundaries_holds_nothing_back() -> None:
    page = Driver(ONE)
    page.send(Start())
    assert page.send(resume("a", a=1)) == b"[1]</p>tail" + COMPLETE


# -- what follows the last boundary


def test_what_follows_the_last_boundary_is_held_while_an_update_may_come() -> None:
    """So an update is never sent inside a tag of it."""
    page = Driver('{% boundary "a" %}{{ a }}{% endboundary %}<img alt="{{ alt }}">')
    page.send(Start({"alt": "x"}))
    assert page.send(updatable("a", a=1)) == b"<!--b:0-->1<!--/b:0-->"
    assert page.step() == b""
    assert page.send(update("a", a=2)) == patch(0, "2")
    assert page.end() == b'<img alt="x">' + COMPLETE


LONG = "{% boundary 'a' %}{{ a }}{% endboundary %}{% for i in range(n) %}<b>{{ '%07d'|format(i) }}</b>{% endfor %}"


@pytest.mark.parametrize("n", [1, 100, 50_000])
def test_what_is_held_is_at_most_about_a_step_and_goes_on_when_the_records_end(n: int) -> None:
    page = Driver(LONG)
    page.send(Start({"n": n}))
    assert page.send(updatable("a", a=1)) == b"<!--b:0-->1<!--/b:0-->"
    assert page.renderer._writer.held_size <= STEP + 4_096
    assert page.send(update("a", a=2)) == patch(0, "2")
    assert page.renderer._writer.held_size <= STEP + 4_096
    assert page.end() == b"".join(b"<b>%07d</b>" % i for i in range(n)) + COMPLETE
    assert max(len(step.output) for step in page.steps) <= 2 * STEP + 8_192


def test_rendering_stops_a_step_past_the_last_boundary() -> None:
    """Not only the output: what lies behind is not computed before it is wanted."""
    seen = 0

    def see() -> str:
        nonlocal seen
        seen += 1
        return "x" * 100

    page = Driver(
        "{% boundary 'a' %}{% endboundary %}{% for i in range(10000) %}{{ see() }}{% endfor %}", scope={"see": see}
    )
    page.send(Start(), updatable("a"))
    assert STEP // 100 <= seen <= (STEP + 8_192) // 100
    page.end()
    assert seen == 10_000


def test_a_boundary_beyond_what_is_held_is_reached_by_its_resume() -> None:
    page = Driver(LONG + "{% boundary 'b' %}{{ b }}{% endboundary %}.")
    page.send(Start({"n": 50_000}), updatable("a", a=1))
    output = page.send(resume("b", b=3))
    assert output == b"".join(b"<b>%07d</b>" % i for i in range(50_000)) + b"3"
    assert page.send(update("a", a=4)) == patch(0, "4")
    assert page.end() == b"." + COMPLETE


def test_a_wrong_resume_beyond_what_is_held_fails() -> None:
    page = Driver(LONG + "{% boundary 'b' %}{% endboundary %}")
    page.send(Start({"n": 50_000}), updatable("a", a=1))
    page.send(resume("c"))
    page.failure(RecordError)


def test_the_end_of_records_with_a_boundary_beyond_what_is_held_fails() -> None:
    page = Driver(LONG + "{% boundary 'b' %}{% endboundary %}")
    page.send(Start({"n": 50_000}), updatable("a", a=1))
    assert COMPLETE not in page.end()
    assert "ended" in str(page.failure(RecordError))


def test_a_second_start_behind_the_last_boundary_fails() -> None:
    page = Driver(ONE)
    page.send(Start(), updatable("a"))
    page.send(Start())
    assert "second" in str(page.failure(RecordError))


def test_a_boundary_within_what_would_be_held_lets_it_go() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}))
    assert page.send(updatable("a", a=1)).endswith(b"<!--/b:0-->-")


# -- completion


def test_a_page_is_complete_as_soon_as_nothing_legal_can_follow() -> None:
    page = Driver(ONE)
    page.send(Start())
    page.send(resume("a"))
    assert page.is_complete


def test_a_page_with_an_updatable_boundary_completes_at_the_end_of_the_records() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), updatable("a"), resume("b"))
    assert page.last.state is PageState.RECORD
    assert page.end() == b"!" + COMPLETE
    assert page.is_complete


def test_surplus_records_are_counted_and_not_looked_at() -> None:
    page = Driver(ONE)
    page.send(Start(), resume("a"), b"not json", resume("a"), Start())
    assert page.is_complete
    assert page.last.surplus == 3


def test_there_is_no_surplus_otherwise() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), resume("a"))
    page.send(resume("b"))
    assert [step.surplus for step in page.steps] == [0, 0]


def test_a_complete_page_does_nothing_more() -> None:
    page = Driver(ONE)
    page.send(Start(), resume("a"))
    assert page.step() == b""
    assert page.last.state is PageState.COMPLETE


# -- wrong records


@pytest.mark.parametrize("first", [resume("a"), update("a"), resume("nothing")], ids=repr)
def test_the_first_record_is_a_start(first: Record) -> None:
    page = Driver(TWO)
    assert page.send(first) == b""
    assert page.failure(RecordError).record == 0
    assert not page.last.is_committed


@pytest.mark.parametrize(
    "wrong",
    [
        Start(),
        resume("b"),
        resume("c"),
        resume("A"),
        Resume("other.html", "a"),
        Resume("", "a"),
        resume("a", 1),
        resume("a", ""),
        resume("a", number=1),
        resume("a", number=-1),
        update("a"),
        update("b"),
        b"{}",
        b'{"type":"start","version":2,"state":{}}',
        {"type": "resume"},
        None,
    ],
    ids=repr,
)
def test_a_record_that_is_not_the_awaited_resume_fails(wrong: Any) -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}))
    assert page.send(wrong) == b""
    assert page.failure(RecordError).record == 1
    assert page.last.is_committed


@pytest.mark.parametrize("number", [None, 0])
def test_a_declaration_id_is_checked_only_when_it_is_given(number: int | None) -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), resume("a", number=number))
    assert page.last.failure is None
    page.send(resume("b", number=None if number is None else 1))
    assert page.is_complete


def test_the_declaration_id_counts_a_template_s_tags_in_source_order() -> None:
    page = Driver(
        "{% if false %}{% boundary 'x' %}{% endboundary %}{% endif %}{% boundary 'a' %}{% endboundary %}"
        "{% include 'part.html' %}{% boundary 'b' %}{% endboundary %}",
        part="{% boundary 'a' %}{% endboundary %}",
    )
    page.send(Start(), resume("a", number=1), Resume("part.html", "a", declaration_id=0), resume("b", number=2))
    assert page.is_complete


@pytest.mark.parametrize(("key", "other"), [(7, "7"), ("7", 7), (7, 8), ("a", "A"), (7, None)])
def test_a_resume_with_another_key_fails(key: Any, other: Any) -> None:
    page = Driver("{% boundary 'a' key=key %}{% endboundary %}")
    page.send(Start({"key": key}), resume("a", other))
    page.failure(RecordError)


@pytest.mark.parametrize(("key", "other"), [(7, 7.0), (7.0, 7), ("7", "7"), (0, -0.0), (None, None)])
def test_a_resume_with_an_equal_key_is_the_one(key: Any, other: Any) -> None:
    page = Driver("{% boundary 'a' key=key %}{% endboundary %}")
    page.send(Start({"key": key}), resume("a", other))
    assert page.is_complete


@pytest.mark.parametrize(
    "wrong",
    [
        update("b"),
        update("c"),
        update("a", 1),
        update("a", number=1),
        Update("other.html", "a"),
        resume("a"),
        resume("c"),
        Start(),
    ],
    ids=repr,
)
def test_an_update_that_matches_no_updatable_boundary_fails(wrong: Record) -> None:
    """`b` is pending and not committed yet, `a` is committed."""
    page = Driver(TWO)
    page.send(Start({"title": ""}), updatable("a"))
    page.send(wrong)
    assert page.failure(RecordError).record == 2


def test_a_final_boundary_cannot_be_updated() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), resume("a"), update("a"))
    assert "not resumed as" in str(page.failure(RecordError))


def test_a_boundary_cannot_be_resumed_twice() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), updatable("a"), updatable("b"), updatable("b"))
    page.failure(RecordError)


@pytest.mark.parametrize(
    "records", [[Start({"title": ""})], [Start({"title": ""}), updatable("a")]], ids=["first", "second"]
)
def test_records_that_end_while_a_boundary_is_pending_fail_the_page(records: list[Record]) -> None:
    page = Driver(TWO)
    page.send(*records)
    assert page.end() == b""
    failure = page.failure(RecordError)
    assert "ended" in str(failure)
    assert failure.record == len(records)


def test_records_that_end_before_the_first_fail_the_page() -> None:
    page = Driver(TWO)
    assert page.end() == b""
    page.failure(RecordError)


def test_an_abort_fails_the_page() -> None:
    page = Driver(TWO)
    assert page.send(Start({"title": ""}), b'{"type":"abort","message":"down"}') == b"<h1></h1>"
    failure = page.failure(Aborted)
    assert (failure.record, failure.said) == (1, "down")


def test_a_failing_record_s_output_is_dropped_and_the_output_before_it_is_kept() -> None:
    page = Driver(
        "shell{% boundary 'a' %}[{{ a }}]{% endboundary %}between"
        "{% boundary 'b' %}lost{{ 1 // b }}{% endboundary %}rest"
    )
    output = page.send(Start(), resume("a", a=1), resume("b", b=0))
    assert output == b"shell[1]between"
    failure = page.failure(RenderError)
    assert failure.record == 2
    assert isinstance(failure.__cause__, ZeroDivisionError)


def test_what_an_update_rendered_before_it_failed_is_dropped() -> None:
    page = Driver("{% boundary 'a' %}lost{{ 1 // a }}{% endboundary %}tail")
    page.send(Start(), updatable("a", a=1))
    assert page.send(update("a", a=1), update("a", a=0)) == patch(0, "lost1")
    assert page.failure(RenderError).record == 3


def test_after_a_failure_what_was_held_is_not_sent() -> None:
    """The page is cut, not finished."""
    page = Driver(ONE)
    page.send(Start(), updatable("a", a=1))
    assert page.send(update("b")) == b""
    page.failure(RecordError)


def test_a_template_error_before_the_commit_is_a_render_error_without_output() -> None:
    page = Driver("shell{{ 1 // 0 }}{% boundary 'a' %}{% endboundary %}")
    assert page.send(Start()) == b""
    failure = page.failure(RenderError)
    assert (failure.record, failure.status, page.last.is_committed) == (0, 500, False)
    assert "shell" not in str(failure)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ x", "{% unknown %}", "{{ x|unknown }}", "{% extends 'none.html' %}"]
)
def test_a_broken_template_is_a_render_error(template: str) -> None:
    page = Driver(template)
    assert page.send(Start()) == b""
    page.failure(RenderError)


def test_a_missing_template_is_a_render_error() -> None:
    page = PageRenderer(environment({}), NAME, {}, Defaults(), 4_096)
    assert type(page.step([Start()], False).failure) is RenderError


def test_a_bad_first_record_wins_over_a_broken_template() -> None:
    page = Driver("{% if %}")
    page.send(b"{")
    assert page.failure(RecordError).status == 502


def test_a_failed_page_does_nothing_more() -> None:
    page = Driver(TWO)
    page.send(Start({"title": ""}), resume("c"))
    assert page.step(resume("a")) == b""
    assert page.last.state is PageState.COMPLETE


@pytest.mark.parametrize("text", ["x" * 100_000, "a\nb\r\nc", "\x1b[31m", "\u2028", "\ud800", "\U0001f600" * 1_000])
def test_what_is_said_of_a_wrong_record_is_one_short_line(text: str) -> None:
    """It goes into logs; names and keys come from the backend."""
    for wrong in (
        resume(text),
        Resume(text, "a"),
        resume("a", text),
        update(text),
        Update(text, "a"),
        update("a", text),
        resume("a", number=10**1_000),
    ):
        page = Driver(TWO)
        page.send(Start({"title": ""}), wrong)
        page.failure(RecordError)
    page = Driver(ONE)
    page.send(Start(), updatable("a"), resume(text))
    page.failure(RecordError)
    page = Driver("{% boundary 'a' key=key %}{% endboundary %}{% boundary 'a' key=key %}{% endboundary %}")
    page.send(Start({"key": text}), resume("b"))
    page.failure(RecordError)


# -- bounds


def outputs(page: Driver) -> list[int]:
    return [len(step.output) for step in page.steps]


# The most pieces that are taken from a template at once.
BATCH = 64
# Pieces of a template, as (how many, how long); a bound must hold however they follow each other.
PIECES = [
    [(500_000, 1)],
    [(100, 10_000)],
    [(20, 60_000)],
    [(3, 1), (100, 10_000)],
    # Large ones behind so many small ones that the renderer has learnt to expect small ones.
    *([(small, 1), (100, 10_000)] for small in range(0, 128, 8)),
    [(200, 1), (100, 1_000)],
    [(1, 10_000), (100, 1)] * 20,
    [(64, 1), (64, 60_000)],
]
SPREAD = "{% for count, size in pieces %}{% for i in range(count) %}{{ 'x' * size }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize(
    "template",
    [
        f"{SPREAD}{{% boundary 'a' %}}{{% endboundary %}}",
        f"{{% boundary 'a' %}}{SPREAD}{{% endboundary %}}",
        f"{{% boundary 'a' %}}{{% endboundary %}}{SPREAD}",
    ],
    ids=["shell", "body", "behind"],
)
def test_a_step_renders_about_64_kib(template: str, pieces: list[tuple[int, int]]) -> None:
    """However the text is spread over the template's pieces: at most a step, and less than a step more."""
    page = Driver(template)
    page.send(Start({"pieces": pieces}), resume("a"))
    assert page.is_complete
    assert sum(outputs(page)) == sum(count * size for count, size in pieces) + len(COMPLETE)
    assert max(outputs(page)) <= 2 * STEP


@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_a_step_of_an_update_renders_about_64_kib(pieces: list[tuple[int, int]]) -> None:
    page = Driver(f"{{% boundary 'a' %}}{SPREAD}{{% endboundary %}}")
    page.send(Start({"pieces": []}), updatable("a"))
    page.send(update("a", pieces=pieces))
    assert page.last.failure is None
    assert max(outputs(page)) <= 2 * STEP


@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_what_is_held_is_about_64_kib_however_it_is_spread(pieces: list[tuple[int, int]]) -> None:
    page = Driver(f"{{% boundary 'a' %}}{{% endboundary %}}{SPREAD}")
    page.send(Start({"pieces": pieces}), updatable("a"))
    # A batch of pieces is taken at once, so what is held can be as many pieces more.
    assert page.renderer._writer.held_size <= STEP + BATCH * max(size for _, size in pieces)
    page.end()
    assert page.is_complete


def test_one_write_however_large_stays_whole() -> None:
    page = Driver("a{{ big }}z{% boundary 'a' %}{% endboundary %}")
    page.send(Start({"big": "b" * 1_000_000}))
    assert any(b"b" * 1_000_000 in step.output for step in page.steps)


def test_a_long_shell_is_committed_only_at_its_boundary() -> None:
    page = Driver("{% for i in range(50000) %}<b>{{ i }}</b>{% endfor %}{% boundary 'a' %}{% endboundary %}")
    page.step(Start())
    assert (page.last.state, page.last.is_committed) == (PageState.MORE, False)
    page.send()
    assert page.last.is_committed
    assert len(page.steps) > 5


def test_outputs_that_are_no_flush_have_at_least_a_chunk() -> None:
    page = Driver("{% for i in range(50000) %}<b>{{ i }}</b>{% endfor %}", chunk_size=100_000)
    page.send(Start())
    assert page.is_complete
    assert len(page.steps) > 3
    assert all(size >= 100_000 for size in outputs(page)[:-1])


def test_a_small_output_is_flushed_where_the_page_waits() -> None:
    page = Driver(TWO, chunk_size=1_000_000)
    assert page.send(Start({"title": "T"})) == b"<h1>T</h1>"
    assert page.send(resume("a", a=1)) == b"[1]-"


def test_a_page_has_at_most_10000_boundaries() -> None:
    template = "{% for i in range(n) %}{% boundary 'a' key=i %}{% endboundary %}{% endfor %}"
    page = Driver(template)
    page.send(Start({"n": 10_000}), *(resume("a", i) for i in range(10_000)))
    assert page.is_complete
    page = Driver(template)
    page.send(Start({"n": 10_001}), *(resume("a", i) for i in range(10_000)))
    failure = page.failure(RenderError)
    assert "10000" in str(failure.__cause__)


def test_a_page_has_at_most_1000_updatable_boundaries() -> None:
    template = "{% for i in range(1002) %}{% boundary 'a' key=i %}{% endboundary %}{% endfor %}"
    page = Driver(template)
    page.send(Start(), *(updatable("a", i) for i in range(1_000)), resume("a", 1_000))
    assert page.last.failure is None
    page.send(updatable("a", 1_001))
    failure = page.failure(RecordError)
    assert "1000" in str(failure)
    assert failure.record == 1_002


def test_an_abandoned_page_renders_nothing_more_and_lets_its_state_go() -> None:
    calls = 0

    def call() -> str:
        nonlocal calls
        calls += 1
        return "x" * 1_000

    page = Driver("{% for i in range(10**9) %}{{ call() }}{% endfor %}", scope={"call": call})
    page.step(Start({"large": "state"}))
    assert page.last.state is PageState.MORE
    before = calls
    page.renderer.abandon()
    page.step()
    assert page.last.state is PageState.COMPLETE
    assert calls == before
    assert page.renderer.scope == {}


def test_a_step_that_runs_when_its_page_is_abandoned_ends_soon() -> None:
    calls = 0

    def leave() -> str:
        nonlocal calls
        calls += 1
        page.renderer.abandon()
        return ""

    page = Driver("{% for i in range(10**9) %}{{ leave() }}{% endfor %}", scope={"leave": leave})
    page.step(Start())
    assert page.last.state is PageState.COMPLETE
    assert calls <= 128
    assert COMPLETE not in page.last.output


# -- the whole state at once


def test_a_whole_state_renders_every_boundary_at_once() -> None:
    page = Driver(TWO)
    assert page.send(WholeState(b'{"title":"T","a":1,"b":2}')) == b"<h1>T</h1>[1]-(2)!" + COMPLETE
    assert page.is_complete


def test_a_whole_state_may_be_of_any_shape_that_is_an_object() -> None:
    page = Driver("{{ type }}{{ version }}")
    assert page.send(WholeState(b'{"type":"resume","version":[1]}')) == b"resume[1]" + COMPLETE


@pytest.mark.parametrize("raw", [b"[]", b"{", b"", b'{"a":NaN}'])
def test_a_whole_state_that_is_no_object_fails_before_the_commit(raw: bytes) -> None:
    page = Driver(TWO)
    assert page.send(WholeState(raw)) == b""
    assert page.failure(RecordError).record == 0
    assert not page.last.is_committed


def test_a_whole_state_gets_the_defaults_of_a_start() -> None:
    page = Driver("{{ tokens.t }}{{ basePath }}", defaults=Defaults({"t": 1}, {"basePath": "/x"}))
    assert page.send(WholeState(b"{}")) == b"1/x" + COMPLETE


@pytest.mark.parametrize("is_whole", [True, False])
def test_thousands_of_boundaries_in_one_step_need_no_recursion(is_whole: bool) -> None:
    n = 3_000
    page = Driver("{% for i in range(3000) %}{% boundary 'a' key=i %}{{ i }},{% endboundary %}{% endfor %}")
    records: Iterable[Record] = [WholeState(b"{}")] if is_whole else [Start(), *(resume("a", i) for i in range(n))]
    assert page.send(*records) == b"".join(b"%d," % i for i in range(n)) + COMPLETE
    assert page.is_complete


def test_a_failing_body_of_a_whole_state_fails_the_page() -> None:
    page = Driver("shell{% boundary 'a' %}{{ 1 // 0 }}{% endboundary %}")
    page.send(WholeState(b"{}"))
    assert page.failure(RenderError).record == 0


def test_half_a_surrogate_pair_in_the_app_s_own_state_is_replaced() -> None:
    """Records from a backend can't hold one; commands made in Python can."""
    page = Driver("{{ x }}{% boundary 'a' %}{{ x }}{% endboundary %}")
    assert page.send(Start({"x": "a\ud800b"})).decode() == "a\ufffdb"
    assert page.send(resume("a", x="\udfff\ud83d")).decode() == "\ufffd\ufffd" + COMPLETE_COMMENT


# -- steps change nothing


@st.composite
def scripts(draw: st.DrawFn) -> list[Record]:
    """A page's records: a start, a resume for each item, and updates of what may be updated by then."""
    keys = list(range(draw(st.integers(0, 6))))
    records: list[Record] = [Start({"items": [{"id": key, "name": f"n{key}"} for key in keys]})]
    can_update: list[int] = []
    for key in keys:
        is_updatable = draw(st.booleans())
        records.append((updatable if is_updatable else resume)("item", key, more=draw(st.integers(0, 9))))
        can_update += [key] if is_updatable else []
        for _ in range(draw(st.integers(0, 2)) if can_update else 0):
            records.append(update("item", draw(st.sampled_from(can_update)), more=draw(st.integers(0, 9))))
    return records


def batches(records: list[Record], sizes: list[int]) -> Iterator[list[Record]]:
    position, index = 0, 0
    while position < len(records):
        size = sizes[index % len(sizes)] if sizes else 1
        yield records[position : position + size]
        position, index = position + size, index + 1


@given(scripts(), st.lists(st.integers(1, 4)), st.integers(1, 50), st.booleans())
def test_the_page_is_the_same_however_records_come(
    records: list[Record], sizes: list[int], chunk_size: int, late_end: bool
) -> None:
    """One by one, in batches or all at once, and whether their end is known with the last or later."""
    at_once = Driver(ITEMS + "</body>")
    expected = at_once.send(*records, ended=True)
    assert at_once.is_complete
    page = Driver(ITEMS + "</body>", chunk_size=chunk_size)
    found = b""
    parts = list(batches(records, sizes))
    for index, part in enumerate(parts):
        found += page.send(*part, ended=not late_end and index == len(parts) - 1)
    if page.last.state is not PageState.COMPLETE:
        found += page.end()
    assert page.is_complete
    assert found == expected


@given(scripts(), st.integers(0, 30), st.sampled_from([Start(), resume("nothing"), update("nothing"), b"{", None]))
def test_a_page_that_fails_has_sent_the_beginning_of_the_whole_one(
    records: list[Record], place: int, wrong: Record
) -> None:
    """Up to the failing record, and never the comment that says it is complete."""
    whole = Driver(ITEMS + "</body>").send(*records, ended=True)
    place = 1 + place % len(records)
    page = Driver(ITEMS + "</body>")
    found = page.send(*records[:place], wrong)
    if page.last.failure is not None:
        assert whole.startswith(found)
        assert COMPLETE not in found
