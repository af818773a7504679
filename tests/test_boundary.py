"""The boundary tag: where it works, what names mean around it, where it is refused, and what it leaves alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flask import Flask, render_template
from gevent.monkey import get_original
from gevent.threadpool import ThreadPool
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import (
    BaseLoader,
    DictLoader,
    Environment,
    TemplateNotFound,
    TemplateRuntimeError,
    TemplateSyntaxError,
    pass_context,
    pass_environment,
    pass_eval_context,
)
from markupsafe import Markup

from streaming.errors import RecordError, RenderError
from streaming.pages.boundary import BoundaryTag
from streaming.pages.environment import page_environment
from streaming.pages.renderer import COMPLETE_COMMENT, MAX_OCCURRENCES, PageRenderer, PageState
from streaming.protocol.commands import Defaults, Resume, Start, Update

NAME = "page.html"


def make_app(templates: dict[str, str]) -> Flask:
    """A plain app that renders these templates with and without streaming."""
    app = Flask("page")
    app.jinja_env.add_extension(BoundaryTag)
    app.jinja_env.loader = DictLoader(templates)
    return app


def streaming_environment(app: Flask) -> Environment:
    """Where the templates of an app are compiled for streaming."""
    return page_environment(app, app.jinja_env.loader)


class Page:
    """A streamed page of templates given by name; its output is what has come so far."""

    def __init__(self, template: str | dict[str, str], app: Flask | None = None) -> None:
        self.templates = template if isinstance(template, dict) else {NAME: template}
        self.app = app or make_app(self.templates)
        extra: dict[str, Any] = {}
        with self.app.test_request_context("/"):
            self.app.update_template_context(extra)
        self.renderer = PageRenderer(streaming_environment(self.app), NAME, extra, Defaults(), 4_096)
        self.failure: Exception | None = None
        self.is_complete = False

    def send(self, *records: Any) -> str:
        with self.app.test_request_context("/"):
            step = self.renderer.step(records, False)
            output = step.output
            while step.state is PageState.MORE:
                step = self.renderer.step([], False)
                output += step.output
        self.failure = step.failure
        self.is_complete = step.state is PageState.COMPLETE and step.failure is None
        return output.decode()

    @property
    def pending(self) -> Resume | None:
        """What resumes the boundary that the page waits at."""
        occurrence = self.renderer._pending
        return occurrence and Resume(occurrence.tag.owner, occurrence.tag.name, {}, occurrence.key)  # type: ignore[arg-type]

    def cause(self) -> Exception:
        """What the template failed with."""
        assert type(self.failure) is RenderError, self.failure
        cause = self.failure.__cause__
        assert isinstance(cause, Exception)
        return cause


def resume(name: str, key: Any = None, owner: str = NAME, **state: Any) -> Resume:
    return Resume(owner, name, state, key)


def stream(template: str | dict[str, str], **state: Any) -> str:
    """A page that has all of its state at the start, its boundaries resumed with nothing; without the last comment."""
    page = Page(template)
    output = page.send(Start(state))
    for _ in range(MAX_OCCURRENCES):
        if page.is_complete:
            break
        assert page.failure is None, (page.failure, page.failure and page.failure.__cause__)
        output += page.send(page.pending)
    return output.removesuffix(COMPLETE_COMMENT)


def ordinary(template: str | dict[str, str], **state: Any) -> str:
    """The same template rendered as usual."""
    app = make_app(template if isinstance(template, dict) else {NAME: template})
    with app.test_request_context("/"):
        return render_template(NAME, **state)


# -- where it works


def test_a_boundary_at_the_top_level() -> None:
    page = Page('a{% boundary "x" %}b{{ s }}{% endboundary %}c')
    assert [page.send(Start()), page.send(resume("x", s=1))] == ["a", "b1c" + COMPLETE_COMMENT]


@pytest.mark.parametrize(
    "tag",
    [
        '{% boundary "x" %}',
        "{% boundary 'x' %}",
        '{%- boundary "x" -%}',
        '{% boundary "x" key=none %}',
        '{% boundary "x", key=none %}',
    ],
)
def test_the_ways_to_write_a_tag(tag: str) -> None:
    page = Page(f"a {tag} b {{%- endboundary -%}} c")
    page.send(Start())
    assert page.send(resume("x")).endswith("bc" + COMPLETE_COMMENT)


@pytest.mark.parametrize(
    "source",
    [
        "{% boundary %}{% endboundary %}",
        "{% boundary x %}{% endboundary %}",
        "{% boundary 7 %}{% endboundary %}",
        "{% boundary 'x' %}",
        "{% endboundary %}",
        "{% boundary 'x' %}{% endblock %}",
        "{% boundary 'x' other=1 %}{% endboundary %}",
        "{% boundary 'x' key %}{% endboundary %}",
        "{% boundary 'x' key= %}{% endboundary %}",
        "{% boundary 'x' key=1 key=2 %}{% endboundary %}",
        "{% boundary 'x' ~ 'y' %}{% endboundary %}",
        "{% if x %}{% boundary 'x' %}{% endif %}{% endboundary %}",
    ],
)
def test_a_tag_written_wrongly_is_a_syntax_error(source: str) -> None:
    for environment in (make_app({}).jinja_env, streaming_environment(make_app({}))):
        with pytest.raises(TemplateSyntaxError):
            environment.from_string(source)


LAYOUT = (
    "<{% block head %}{% boundary 'x' %}H{{ s }}{% endboundary %}{% endblock %}"
    "|{% block body %}B{% endblock %}|{{ s }}>"
)


def test_a_boundary_in_a_block_of_an_inherited_template() -> None:
    """Its owner is the file that it stands in; the parent's, the child's, and the parent's behind the block."""
    page = Page(
        {
            NAME: "{% extends 'layout.html' %}"
            "{% block body %}[{% boundary 'x' %}{{ s }}{% endboundary %}]{% endblock %}",
            "layout.html": LAYOUT,
        }
    )
    assert page.send(Start({"s": 0})) == "<"
    assert page.pending == resume("x", owner="layout.html")
    assert page.send(resume("x", owner="layout.html", s=1)) == "H1|["
    assert page.send(resume("x", s=2)) == "2]|2>" + COMPLETE_COMMENT


def test_a_boundary_of_a_block_that_is_overridden_is_never_met() -> None:
    page = Page({NAME: "{% extends 'layout.html' %}{% block head %}{% endblock %}", "layout.html": LAYOUT})
    assert page.send(Start({"s": 0})) == "<|B|0>" + COMPLETE_COMMENT


def test_a_boundary_through_two_levels_of_inheritance() -> None:
    page = Page(
        {
            NAME: "{% extends 'middle.html' %}"
            "{% block inner %}{% boundary 'x' %}c{{ s }}{% endboundary %}{% endblock %}",
            "middle.html": "{% extends 'layout.html' %}{% block body %}m{% block inner %}{% endblock %}"
            "{% boundary 'x' %}m{{ s }}{% endboundary %}{% endblock %}",
            "layout.html": LAYOUT,
        }
    )
    output = [page.send(Start({"s": 0}))]
    for owner in ("layout.html", NAME, "middle.html"):
        output.append(page.send(resume("x", owner=owner, s=owner[0])))
    assert output == ["<", "Hl|m", "cp", "mm|m>" + COMPLETE_COMMENT]


def test_two_boundaries_on_one_line_and_on_the_same_line_of_parent_and_child_do_not_meet() -> None:
    two = "{% boundary 'x' %}1{{ s }}{% endboundary %}{% boundary 'y' %}2{{ s }}{% endboundary %}"
    page = Page(
        {
            NAME: "{% extends 'layout.html' %}{% block body %}" + two + "{% endblock %}",
            "layout.html": two + "{% block body %}{% endblock %}" + "{% include 'part.html' %}",
            "part.html": two,
        }
    )
    output = page.send(Start())
    number = 0
    for owner in ("layout.html", NAME, "part.html"):
        for name in "xy":
            output += page.send(resume(name, owner=owner, s=f"({number})"))
            number += 1
    assert output == "1(0)2(1)1(2)2(3)1(4)2(5)" + COMPLETE_COMMENT


def test_a_boundary_in_an_include() -> None:
    page = Page(
        {NAME: "a{% include 'part.html' %}b{{ s }}", "part.html": "({% boundary 'x' %}{{ s }}{% endboundary %}{{ s }})"}
    )
    assert page.send(Start({"s": 0})) == "a("
    assert page.send(resume("x", owner="part.html", s=1)) == "11)b1" + COMPLETE_COMMENT


@pytest.mark.parametrize("context", ["", " with context", " ignore missing", " ignore missing with context"])
def test_a_boundary_in_an_include_in_a_loop_sees_the_loop(context: str) -> None:
    page = Page(
        {
            NAME: f"{{% for i in items %}}{{% set n = loop.index %}}"
            f"{{% include 'part.html'{context} %}}{{% endfor %}}.",
            "part.html": "{% boundary 'x' key=i %}{{ i }}{{ n }}{{ s }},{% endboundary %}",
        }
    )
    output = page.send(Start({"items": ["p", "q"], "s": 0}))
    output += page.send(resume("x", "p", "part.html", s=1)) + page.send(resume("x", "q", "part.html"))
    assert output == "p11,q21,." + COMPLETE_COMMENT


def test_a_boundary_in_an_include_of_an_include_in_an_inherited_block() -> None:
    page = Page(
        {
            NAME: "{% extends 'layout.html' %}"
            "{% block body %}{% set v = 'V' %}{% include 'outer.html' %}{% endblock %}",
            "layout.html": LAYOUT,
            "outer.html": "o{{ v }}{% set w = 'W' %}{% include 'inner.html' %}{{ s }}",
            "inner.html": "{% boundary 'x' %}{{ v }}{{ w }}{{ s }}{% endboundary %}",
        }
    )
    output = page.send(Start({"s": 0})) + page.send(resume("x", owner="layout.html", s=1))
    output += page.send(resume("x", owner="inner.html", s=2))
    assert output == "<H1|oVVW22|2>" + COMPLETE_COMMENT


def test_a_boundary_of_an_include_without_context_is_refused_with_template_and_line() -> None:
    """Jinja renders such an include into memory."""
    page = Page(
        {NAME: "{% include 'part.html' without context %}", "part.html": "\n{% boundary 'x' %}{% endboundary %}"}
    )
    page.send(Start())
    assert str(page.cause()).startswith("part.html:2:")


def test_a_boundary_in_a_loop_with_keys() -> None:
    page = Page(
        "{% for i in items %}{% boundary 'x' key=i.id %}{{ i.n }}{{ s }};{% endboundary %}{% else %}none{% endfor %}"
    )
    output = page.send(Start({"items": [{"id": 1, "n": "a"}, {"id": "1", "n": "b"}]}))
    output += page.send(resume("x", 1, s=1)) + page.send(resume("x", "1", s=2))
    assert output == "a1;b2;" + COMPLETE_COMMENT


# -- keys


@pytest.mark.parametrize("expression", ["none", "missing", "item.missing", "missing|default(none)"])
def test_none_or_undefined_is_no_key(expression: str) -> None:
    page = Page(f"{{% boundary 'x' key={expression} %}}{{% endboundary %}}")
    page.send(Start({"item": {}}))
    assert page.pending == resume("x")
    page.send(resume("x"))
    assert page.is_complete


@pytest.mark.parametrize("key", [7, 0, -1, 7.5, "7", "", "k\u00e9y", 10**30])
def test_a_key_is_a_number_or_a_string(key: Any) -> None:
    page = Page("{% boundary 'x' key=k %}{% endboundary %}")
    page.send(Start({"k": key}))
    page.send(resume("x", key))
    assert page.is_complete


def test_marked_up_text_is_a_string_too() -> None:
    page = Page("{% boundary 'x' key=k %}{% endboundary %}{% boundary 'x' key='a'|upper|safe %}{% endboundary %}")
    page.send(Start({"k": Markup("<b>")}), resume("x", "<b>"), resume("x", "A"))
    assert page.is_complete


@pytest.mark.parametrize("key", [True, False, [], [1], {}, {"a": 1}])
def test_any_other_key_is_an_error_with_template_and_line(key: Any) -> None:
    page = Page("\n{% boundary 'x' key=k %}{% endboundary %}")
    page.send(Start({"k": key}))
    message = str(page.cause())
    assert message.startswith(f'{NAME}:2: boundary "x" has a key')


def test_a_key_may_be_any_expression_of_the_names_around_the_tag() -> None:
    page = Page(
        "{% set p = 'p' %}{% for i in [1] %}"
        "{% boundary 'x' key=p ~ loop.index ~ (s if s else '') %}{% endboundary %}{% endfor %}"
    )
    page.send(Start({"s": "s"}))
    assert page.pending == resume("x", "p1s")


@pytest.mark.parametrize(
    ("template", "state"),
    [
        ("{% for i in [1, 1] %}{% boundary 'x' key=i %}{% endboundary %}{% endfor %}", {}),
        ("{% for i in [1, 1.0] %}{% boundary 'x' key=i %}{% endboundary %}{% endfor %}", {}),
        ("{% for i in [1, 2] %}{% boundary 'x' %}{% endboundary %}{% endfor %}", {}),
        ("{% boundary 'x' %}{% endboundary %}{% boundary 'x' %}{% endboundary %}", {}),
        ("{% boundary 'x' key=k %}{% endboundary %}{% boundary 'x' key=k %}{% endboundary %}", {"k": "z"}),
    ],
)
def test_the_same_owner_name_and_key_twice_is_an_error(template: str, state: dict[str, Any]) -> None:
    page = Page(template)
    page.send(Start(state))
    page.send(page.pending)
    assert str(page.cause()).startswith(f"{NAME}:1:")


def test_the_same_include_twice_is_an_error() -> None:
    page = Page(
        {NAME: "{% include 'part.html' %}{% include 'part.html' %}", "part.html": "{% boundary 'x' %}{% endboundary %}"}
    )
    page.send(Start(), resume("x", owner="part.html"))
    assert str(page.cause()).startswith("part.html:1:")


@pytest.mark.parametrize("keys", [[1, "1"], [1, 2], ["a", "A"], [0, ""], [None, 0], [None, ""], [1, 1.5]])
def test_different_keys_are_different_boundaries(keys: list[Any]) -> None:
    page = Page("{% for k in keys %}{% boundary 'x' key=k %}{% endboundary %}{% endfor %}")
    page.send(Start({"keys": keys}), *(resume("x", key) for key in keys))
    assert page.is_complete


def test_the_same_name_in_parent_and_child_is_two_boundaries() -> None:
    page = Page(
        {
            NAME: "{% extends 'layout.html' %}{% block body %}{% boundary 'x' %}c{% endboundary %}{% endblock %}",
            "layout.html": "{% boundary 'x' %}p{% endboundary %}{% block body %}{% endblock %}",
        }
    )
    output = page.send(Start(), resume("x", owner="layout.html"), resume("x"))
    assert output == "pc" + COMPLETE_COMMENT


# -- what names mean behind a boundary

X = "{% boundary 'x' %}{% endboundary %}"

BEHIND = {
    "plainly": (f"{{{{ s }}}}{X}{{{{ s }}}}", "01"),
    "in an attribute": (f"{{{{ o.a }}}}{X}{{{{ o.a }}}}{{{{ o['a'] }}}}", "011"),
    "in a condition": (f"{{% if s %}}t{{% else %}}f{{% endif %}}{X}{{% if s %}}t{{% else %}}f{{% endif %}}", "ft"),
    "in a loop": (
        f"{{% for i in [0] %}}{{{{ s }}}}{{% endfor %}}{X}{{% for i in [0] %}}{{{{ s }}}}{{% endfor %}}",
        "01",
    ),
    "as what a loop goes over": (f"{X}{{% for i in l %}}{{{{ i }}}}{{% endfor %}}", "12"),
    "in a loop's condition": (f"{X}{{% for i in [0, 1] if i == s %}}{{{{ i }}}}{{% endfor %}}", "1"),
    "with a loop variable of its own name": (
        f"{X}{{% for l in l %}}{{{{ l }}}}{{% endfor %}}{{{{ l|length }}}}",
        "122",
    ),
    "in the loop around the boundary": (
        "{% for i in [1] %}{{ s }}{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}{% endfor %}{{ s }}",
        "0111",
    ),
    "behind two loops": (
        "{% for i in [1] %}{{ s }}"
        "{% for j in [1] %}{{ s }}{% boundary 'x' %}{% endboundary %}{{ s }}{% endfor %}{{ s }}{% endfor %}",
        "0011",
    ),
    "in what is set behind it": (f"{X}{{% set v = s %}}{{{{ v }}}}", "1"),
    "but not in what was set before it": (f"{{% set v = s %}}{X}{{{{ v }}}}{{{{ s }}}}", "01"),
    "in what is set with its own name": (f"{X}{{% set s = s ~ '!' %}}{{{{ s }}}}", "1!"),
    "but not when the name was set before": (f"{{% set s = 's' %}}{X}{{{{ s }}}}", "s"),
    "when the name is set later": (f"{{{{ s }}}}{X}{{{{ s }}}}{{% set s = 's' %}}{{{{ s }}}}", "01s"),
    "when a branch that is not taken sets it": (f"{X}{{% if false %}}{{% set s = 's' %}}{{% endif %}}{{{{ s }}}}", "1"),
    "when a branch before it is not taken": (
        f"{{% if false %}}{{% set s = 's' %}}{{% endif %}}{{{{ s }}}}{X}{{{{ s }}}}",
        "01",
    ),
    "but not when a branch that is taken sets it": (
        f"{X}{{% if true %}}{{% set s = 's' %}}{{% endif %}}{{{{ s }}}}",
        "s",
    ),
    "in one of two branches": (
        f"{X}{{% if s == 0 %}}{{% set v = 'a' %}}{{% else %}}{{% set v = s %}}{{% endif %}}{{{{ v }}}}",
        "1",
    ),
    "when the boundary is in the branch": (
        "{% if true %}{{ s }}{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}{% set s = 9 %}{% endif %}{{ s }}",
        "0119",
    ),
    "in with": (f"{X}{{% with v = s %}}{{{{ v }}}}{{{{ s }}}}{{% endwith %}}", "11"),
    "inside with": (
        "{% with v = s %}{{ v }}{% boundary 'x' %}{{ v }}{{ s }}{% endboundary %}{{ v }}{{ s }}{% endwith %}",
        "00101",
    ),
    "with a name of its own": (
        "{% with s = s %}{{ s }}{% boundary 'x' %}{{ s }}{% endboundary %}{% endwith %}{{ s }}",
        "001",
    ),
    "in a namespace": (
        f"{{% set ns = namespace(v=s) %}}{{{{ ns.v }}}}{X}{{% set ns.v = s %}}{{{{ ns.v }}}}",
        "01",
    ),
    "in a namespace that the body changes": (
        "{% set ns = namespace(v=0) %}{% boundary 'x' %}{% set ns.v = s %}{% endboundary %}{{ ns.v }}",
        "1",
    ),
    "in a namespace over a loop": (
        f"{{% set ns = namespace(v=0) %}}{X}{{% for i in l %}}{{% set ns.v = ns.v + i %}}{{% endfor %}}{{{{ ns.v }}}}",
        "3",
    ),
    "in a macro called behind it": (f"{{% macro m() %}}{{{{ s }}}}{{% endmacro %}}{{{{ m() }}}}{X}{{{{ m() }}}}", "01"),
    "in a macro's default": (f"{{% macro m(a=s) %}}{{{{ a }}}}{{% endmacro %}}{{{{ m() }}}}{X}{{{{ m() }}}}", "01"),
    "in a macro called in its body": (
        "{% macro m(a) %}{{ a }}{{ s }}{% endmacro %}{% boundary 'x' %}{{ m(s) }}{% endboundary %}",
        "11",
    ),
    "in a call block": (
        f"{{% macro m() %}}{{{{ caller() }}}}{{% endmacro %}}{X}{{% call m() %}}{{{{ s }}}}{{% endcall %}}",
        "1",
    ),
    "in a filter block": (f"{X}{{% filter upper %}}a{{{{ s }}}}{{% endfilter %}}", "A1"),
    "in a set block": (f"{X}{{% set v %}}a{{{{ s }}}}{{% endset %}}{{{{ v }}}}", "a1"),
    "in a block": (f"{X}{{% block b %}}{{{{ s }}}}{{% endblock %}}", "1"),
    "in the block around it": (
        "{% block b %}{{ s }}{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}{% endblock %}{{ s }}",
        "0111",
    ),
    "in a scoped block in a loop": (
        f"{X}{{% for i in l %}}{{% block b scoped %}}{{{{ i }}}}{{{{ s }}}}{{% endblock %}}{{% endfor %}}",
        "1121",
    ),
    "in a recursive loop": (
        f"{X}{{% for i in [[1]] recursive %}}{{{{ s }}}}{{{{ loop(i) if i is iterable }}}}{{% endfor %}}",
        "11",
    ),
    "in an include": (f"{X}{{% include 'part.html' %}}", "p1"),
    "after an include with the boundary": ("{{ s }}{% include 'bound.html' %}{{ s }}", "0111"),
    "in an imported macro with context": (
        f"{{% from 'macros.html' import m with context %}}{{{{ m() }}}}{X}{{{{ m() }}}}",
        "01",
    ),
    "in an import with context": (f"{{% import 'macros.html' as l with context %}}{X}{{{{ l.m() }}}}", "1"),
    "but not in an import without context": (f"{{% import 'macros.html' as l %}}{X}[{{{{ l.m() }}}}]", "[]"),
    "in a test and a filter": (
        f"{X}{{{{ s is defined }}}}{{{{ s|string }}}}{{{{ nothing is defined }}}}",
        "True1False",
    ),
    "where it was undefined": (f"{{{{ late }}}}{{{{ late is defined }}}}{X}{{{{ late }}}}", "FalseTrue"),
    "in a conditional expression": (f"{{{{ s if late else '-' }}}}{X}{{{{ s if late else '-' }}}}", "-1"),
    "in self": (f"{{% block b %}}{{{{ s }}}}{{% endblock %}}{X}{{{{ self.b() }}}}", "01"),
    "in do-nothing comments": (f"{X}{{# {{{{ s }}}} #}}{{% raw %}}{{{{ s }}}}{{% endraw %}}", "{{ s }}"),
    "with an unpacking loop": (f"{X}{{% for a, b in [(s, 2)] %}}{{{{ a }}}}{{{{ b }}}}{{% endfor %}}", "12"),
    "with an unpacking set": (f"{X}{{% set a, b = s, 2 %}}{{{{ a }}}}{{{{ b }}}}", "12"),
    "in a loop's else": (f"{X}{{% for i in [] %}}{{% else %}}{{{{ s }}}}{{% endfor %}}", "1"),
    "when the loop sets it": (
        f"{X}{{% for i in [1, 2] %}}{{{{ s }}}}{{% set s = 's' %}}{{{{ s }}}}{{% endfor %}}{{{{ s }}}}",
        "1s1s1",
    ),
    "in autoescape": (
        f"{X}{{% autoescape false %}}{{{{ s }}}}{{{{ '<' }}}}{{% endautoescape %}}{{{{ '<' }}}}",
        "1<&lt;",
    ),
}
PARTS = {
    "part.html": "p{{ s }}",
    "bound.html": "{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}",
    "macros.html": "{% macro m() %}{{ s }}{% endmacro %}",
}
OLD = {"s": 0, "o": {"a": 0}, "l": []}
NEW = {"s": 1, "o": {"a": 1}, "l": [1, 2], "late": True}


@pytest.mark.parametrize("case", BEHIND)
@pytest.mark.parametrize("place", ["page", "layout", "block", "include"])
def test_names_behind_a_boundary_see_the_new_state(case: str, place: str) -> None:
    """Wherever the boundary and what is behind it stand together."""
    template, expected = BEHIND[case]
    templates, owner, expected = {
        "page": ({NAME: template}, NAME, expected),
        "layout": (
            {
                NAME: "{% extends 'layout.html' %}{% block c %}C{% endblock %}",
                "layout.html": template + "{% block c %}{% endblock %}",
            },
            "layout.html",
            expected + "C",
        ),
        "block": (
            {
                NAME: "{% extends 'layout.html' %}{% block c %}" + template + "{% endblock %}",
                "layout.html": "{{ s }}<{% block c %}{% endblock %}>{{ s }}",
            },
            NAME,
            f"0<{expected}>1",
        ),
        "include": (
            {NAME: "{{ s }}{% include 'included.html' %}{{ s }}", "included.html": template},
            "included.html",
            f"0{expected}1",
        ),
    }[place]
    page = Page({**PARTS, **templates})
    output = page.send(Start(OLD))
    assert page.failure is None, page.failure.__cause__
    output += page.send(Resume("bound.html" if "bound.html" in template else owner, "x", NEW))
    assert page.is_complete, page.failure and page.failure.__cause__
    assert output == expected + COMPLETE_COMMENT


def test_a_parent_layout_behind_the_child_s_block_sees_the_new_state() -> None:
    page = Page(
        {
            NAME: "{% extends 'layout.html' %}{% set v = s %}"
            "{% block c %}{% boundary 'x' %}{{ s }}{% endboundary %}{% endblock %}",
            "layout.html": "{{ s }}{% set w = s %}{% block c %}{% endblock %}{{ s }}{{ w }}{{ v }}"
            "{% block d %}{{ s }}{{ w }}{% endblock %}",
        }
    )
    output = page.send(Start({"s": 0})) + page.send(resume("x", s=1))
    assert output == "01100" + "10" + COMPLETE_COMMENT


def test_a_boundary_body_sees_what_the_template_has_set_around_it() -> None:
    page = Page(
        "{% set v = 'V' %}{% with w = 'W' %}{% for i in 'p' %}{% set u = 'U' %}"
        "{% boundary 'x' key=i %}{{ v }}{{ w }}{{ i }}{{ u }}{{ loop.index }}"
        "{% set v = 'in' %}{{ v }}{% endboundary %}{{ v }}"
        "{% endfor %}{% endwith %}{{ v }}"
    )
    output = page.send(Start()) + page.send(resume("x", "p", v="state"))
    assert output == "VWpU1inVV" + COMPLETE_COMMENT


def test_a_state_cannot_name_what_is_the_tag_s_own() -> None:
    """Whatever names a backend sends, they are only names."""
    state = dict.fromkeys(
        ["page", "locals", "_page", "context", "environment", "self", "loop", "caller", "missing", "resolve"], 7
    )
    template = "{{ page }}{{ locals }}{{ context }}{{ missing }}{{ resolve }}"
    page = Page({NAME: template + "{% include 'part.html' %}" + X + template, "part.html": template})
    assert page.send(Start(state)) == "77777" * 2
    assert page.send(resume("x", page=8)) == "87777" + COMPLETE_COMMENT


# -- what templates use


def test_filters_tests_globals_and_context_processors_of_the_app_work() -> None:
    template = (
        "{{ 'a'|shout }}{{ 3 is odd }}{{ 3 is big }}{{ greet() }}{{ user }}{{ request.path }}"
        "{{ url_for('static', filename='x.js') }}"
        "{{ {'a': '<'}|tojson }}{{ range(3)|list }}{{ dict(a=1).a }}"
        "{{ lipsum is callable }}{{ config.DEBUG }}{{ g is defined }}"
    )
    app = make_app({NAME: template + "{% boundary 'x' %}" + template + "{% endboundary %}" + template})
    app.jinja_env.filters["shout"] = str.upper
    app.jinja_env.tests["big"] = lambda value: value > 2
    app.jinja_env.globals["greet"] = lambda: "hi"
    app.context_processor(lambda: {"user": "u", "s": "processor"})
    with app.test_request_context("/"):
        expected = render_template(NAME)
    page = Page({NAME: ""}, app)
    output = page.send(Start()) + page.send(resume("x"))
    assert output == expected + COMPLETE_COMMENT
    assert output.count("/static/x.js") == 3


def test_filters_that_take_the_context_or_environment_work() -> None:
    app = make_app({NAME: "{{ f() }}{{ 1|g }}{{ h() }}" + X + "{{ f() }}"})
    app.jinja_env.globals["f"] = pass_context(
        lambda context: f"{context['s']}{context.get('none', '-')}{'s' in context}"
    )
    app.jinja_env.filters["g"] = pass_environment(lambda environment, _: environment.autoescape)
    app.jinja_env.globals["h"] = pass_eval_context(lambda eval_context: eval_context.autoescape)
    page = Page({NAME: ""}, app)
    output = page.send(Start({"s": 0})) + page.send(resume("x", s=1))
    assert output == "0-TrueTrueTrue1-True" + COMPLETE_COMMENT


@pytest.mark.parametrize("name", [NAME, "page.txt", "page"])
def test_autoescape_is_on(name: str) -> None:
    """Whatever the template's file is called."""
    template = "{{ s }}{% boundary 'x' %}{{ s }}{{ m }}{% endboundary %}{{ s }}{{ s|safe }}"
    app = make_app({name: template})
    renderer = PageRenderer(streaming_environment(app), name, {}, Defaults(), 1)
    step = renderer.step([Start({"s": "<&>\"'", "m": Markup("<b>")}), Resume(name, "x")], False)
    escaped = "&lt;&amp;&gt;&#34;&#39;"
    assert step.output.decode() == escaped + escaped + "<b>" + escaped + "<&>\"'" + COMPLETE_COMMENT


# -- where it is refused

REFUSED = {
    "a macro": "{% macro m() %}\nTAG{% endmacro %}",
    "a macro in a block": "{% block b %}{% macro m() %}\nTAG{% endmacro %}{% endblock %}",
    "a call block": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}\nTAG{% endcall %}",
    "a filter block": "{% filter upper %}\nTAG{% endfilter %}",
    "a loop in a filter block": "{% filter upper %}{% for i in [1] %}\nTAG{% endfor %}{% endfilter %}",
    "a set block": "{% set x %}\nTAG{% endset %}",
    "a set block with a filter": "{% set x | upper %}\nTAG{% endset %}",
    "a recursive loop": "{% for i in [1] recursive %}\nTAG{% endfor %}",
    "another boundary": "{% boundary 'outer' %}\nTAG{% endboundary %}",
    "a condition in another boundary": "{% boundary 'outer' %}{% if x %}\nTAG{% endif %}{% endboundary %}",
    "a block in another boundary": "{% boundary 'outer' %}{% block b %}\nTAG{% endblock %}{% endboundary %}",
    "an extending template, outside its blocks": "{% extends 'other.html' %}\nTAG",
    "a branch of an extending template": "{% extends 'other.html' %}{% if x %}\nTAG{% endif %}",
}


@pytest.mark.parametrize("place", REFUSED)
def test_a_boundary_where_it_cannot_work_is_refused_when_the_template_is_compiled(place: str) -> None:
    """With the template and the line, whether or not the place would be reached."""
    source = REFUSED[place].replace("TAG", "{% boundary 'x' %}body{% endboundary %}")
    page = Page({NAME: source, "other.html": ""})
    assert page.send(Start()) == ""
    error = page.cause()
    assert isinstance(error, TemplateSyntaxError)
    assert (error.name, error.lineno) == (NAME, 2)


@pytest.mark.parametrize(
    "source",
    [
        "\n{% boundary 'x' %}{{ super() }}{% endboundary %}",
        "\n{% boundary 'x' %}\n{% if x %}{{ super() }}{% endif %}{% endboundary %}",
    ],
)
def test_super_in_a_boundary_is_refused_when_the_template_is_compiled(source: str) -> None:
    page = Page(
        {
            NAME: "{% extends 'other.html' %}{% block b %}" + source + "{% endblock %}",
            "other.html": "{% block b %}{% endblock %}",
        }
    )
    page.send(Start())
    error = page.cause()
    assert isinstance(error, TemplateSyntaxError)
    assert (error.name, error.lineno) == (NAME, 2)


MET = {
    "super": {
        NAME: "{% extends 'part.html' %}{% block b %}{{ super() }}{% endblock %}",
        "part.html": "{% block b %}\nTAG{% endblock %}",
    },
    "self": {
        NAME: "{% include 'part.html' %}",
        "part.html": "{% set x = self.b() %}{% block b %}\nTAG{% endblock %}",
    },
    "import without context": {NAME: "{% import 'part.html' as l %}", "part.html": "\nTAG"},
    "import with context": {NAME: "{% import 'part.html' as l with context %}", "part.html": "\nTAG"},
    "from import with context": {
        NAME: "{% from 'part.html' import m with context %}",
        "part.html": "\nTAG{% macro m() %}{% endmacro %}",
    },
    "an include in a boundary": {
        NAME: "{% boundary 'outer' %}{% include 'part.html' %}{% endboundary %}",
        "part.html": "\nTAG",
    },
    "an include in a macro": {
        NAME: "{% macro m() %}{% include 'part.html' %}{% endmacro %}{{ m() }}",
        "part.html": "\nTAG",
    },
    "an include in a filter block": {
        NAME: "{% filter upper %}{% include 'part.html' %}{% endfilter %}",
        "part.html": "\nTAG",
    },
    "an include in a set block": {NAME: "{% set x %}{% include 'part.html' %}{% endset %}", "part.html": "\nTAG"},
    "an include in a call block": {
        NAME: "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% include 'part.html' %}{% endcall %}",
        "part.html": "\nTAG",
    },
    "an include in a recursive loop": {
        NAME: "{% for i in [1] recursive %}{% include 'part.html' %}{% endfor %}",
        "part.html": "\nTAG",
    },
    "an include without context": {NAME: "{% include 'part.html' without context %}", "part.html": "\nTAG"},
    "a block in a filter block": {
        NAME: "{% extends 'other.html' %}{% block b %}{% include 'part.html' %}{% endblock %}",
        "other.html": "{% filter upper %}{% block b %}{% endblock %}{% endfilter %}",
        "part.html": "\nTAG",
    },
    "a block in a boundary": {
        NAME: "{% extends 'other.html' %}{% block b %}{% include 'part.html' %}{% endblock %}",
        "other.html": "{% boundary 'outer' %}{% block b %}{% endblock %}{% endboundary %}",
        "part.html": "\nTAG",
    },
}


@pytest.mark.parametrize("place", MET)
def test_a_boundary_where_it_cannot_work_is_refused_when_it_is_met(place: str) -> None:
    """Where only running the template shows it. Its body is not rendered, and no marker comes out."""
    templates = {
        name: source.replace("TAG", "{% boundary 'x' %}BODY{% endboundary %}") for name, source in MET[place].items()
    }
    page = Page(templates)
    output = page.send(Start())
    if page.pending is not None:
        output += page.send(page.pending)
    error = page.cause()
    assert isinstance(error, TemplateRuntimeError)
    assert str(error).startswith('part.html:2: boundary "x" ')
    assert output == ""


def test_a_child_s_boundary_in_a_block_of_its_parent_that_is_filtered_is_refused() -> None:
    page = Page(
        {
            NAME: "{% extends 'other.html' %}{% block b %}\n{% boundary 'x' %}{% endboundary %}{% endblock %}",
            "other.html": "{% filter upper %}{% block b %}{% endblock %}{% endfilter %}",
        }
    )
    page.send(Start())
    assert str(page.cause()).startswith(f"{NAME}:2:")


def test_a_boundary_that_an_update_would_open_is_refused() -> None:
    page = Page(
        {NAME: "{% boundary 'o' %}{% if more %}{% include 'part.html' %}{% endif %}{% endboundary %}", "part.html": X}
    )
    page.send(Start(), Resume(NAME, "o", {}, None, "updatable"))
    page.send(Update(NAME, "o", {"more": True}))
    assert str(page.cause()).startswith("part.html:1:")


def test_what_the_client_is_told_of_a_refusal_has_no_template_source() -> None:
    page = Page("secret{% macro m() %}{% boundary 'x' %}secret{% endboundary %}{% endmacro %}")
    page.send(Start())
    page.cause()
    assert "secret" not in str(page.failure)


# -- rendering as usual

USUAL = {
    "top": "a{% boundary 'x' %}{{ s }}{% endboundary %}b{{ s }}",
    "keys": "{% for i in l %}{% boundary 'x' key=i %}{{ i }}{{ loop.index }}{{ s }}{% endboundary %}{% endfor %}",
    "set inside": "{% set v = 1 %}{% boundary 'x' %}{{ v }}{% set v = 2 %}{{ v }}{% endboundary %}{{ v }}",
    "escaping": "{% boundary 'x' %}{{ '<' }}{{ '<'|safe }}{% endboundary %}",
    "white space": "a \n {%- boundary 'x' %}  b  {%- endboundary +%}  \n c",
}


@pytest.mark.parametrize("template", USUAL.values(), ids=USUAL)
def test_ordinary_rendering_is_what_streaming_with_empty_resumes_gives(template: str) -> None:
    state = {"s": "S<", "l": [1, 2]}
    assert stream(template, **state) == ordinary(template, **state)


@pytest.mark.parametrize("case", BEHIND)
def test_ordinary_rendering_is_what_streaming_gives_for_every_kind_of_name(case: str) -> None:
    template = {**PARTS, NAME: BEHIND[case][0]}
    assert stream(template, **NEW) == ordinary(template, **NEW)


@pytest.mark.parametrize("place", [place for place in REFUSED if "extending" not in place and "boundary" not in place])
def test_ordinary_rendering_takes_boundaries_where_streaming_does_not(place: str) -> None:
    source = REFUSED[place].replace("TAG", "{% boundary 'x' %}body{% endboundary %}")
    plain = REFUSED[place].replace("TAG", "body")
    assert ordinary(source) == ordinary(plain)


def test_ordinary_rendering_shows_no_marker() -> None:
    assert ordinary("{% boundary 'x' %}b{% endboundary %}") == "b"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a{{ b }}c",
        "{% for i in l %}{{ i }}{{ loop.index }}{% set x = i %}{{ x }}{% else %}{{ e }}{% endfor %}",
        "{% extends 'x' %}{% block a scoped %}{{ super() }}{{ self.a() }}{% endblock %}",
        "{% macro m(a, b=c) %}{{ a }}{{ caller() }}{{ varargs }}{% endmacro %}{% call m(1) %}{{ d }}{% endcall %}",
        "{% include ['a', b] ignore missing without context %}{% import 'a' as x %}",
        "{% from 'b' import c as d with context %}{{ d }}",
        "{% set ns = namespace() %}{% set ns.x = y %}{{ ns.x }}",
        "{% filter upper %}{{ z }}{% endfilter %}{% with a = b %}{{ a }}{% endwith %}",
        "{% block boundary_x scoped %}{{ x }}{% endblock %}{% set boundary = 1 %}{{ boundary }}{{ key }}",
    ],
)
def test_the_app_s_other_templates_compile_as_without_the_extension(source: str) -> None:
    with_tag = Flask("page").jinja_env
    with_tag.add_extension(BoundaryTag)
    without_tag = Flask("page").jinja_env
    assert with_tag.compile(source, NAME, raw=True) == without_tag.compile(source, NAME, raw=True)


def test_making_a_page_environment_changes_nothing_in_the_app_s_own() -> None:
    app = make_app({NAME: "{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}"})
    before = app.jinja_env.compile(app.jinja_env.loader.get_source(app.jinja_env, NAME)[0], NAME, raw=True)  # type: ignore[union-attr]
    streaming_environment(app)
    with app.test_request_context("/"):
        assert render_template(NAME, s=1) == "11"
    page = Page({NAME: ""}, app)
    assert page.send(Start({"s": 1})) == ""
    with app.test_request_context("/"):
        assert render_template(NAME, s=1) == "11"
    assert before == app.jinja_env.compile(app.jinja_env.loader.get_source(app.jinja_env, NAME)[0], NAME, raw=True)  # type: ignore[union-attr]


# -- compiling


class CountingLoader(BaseLoader):
    """Counts how often a template's source is asked for; each one takes until others ask too, or for a moment."""

    def __init__(self, source: str, together: int = 1) -> None:
        self.source = source
        self.loads = 0
        self._together = together
        self._wait = get_original("time", "sleep")

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:
        if template != NAME:
            raise TemplateNotFound(template)
        self.loads += 1
        deadline = time.monotonic() + 0.2
        while self.loads < self._together and time.monotonic() < deadline:
            self._wait(0.001)
        return self.source, None, lambda: True


def test_threads_that_want_a_template_at_the_same_time_compile_it_once() -> None:
    loader = CountingLoader("a{% boundary 'x' %}b{% endboundary %}", together=4)
    app = make_app({})
    environment = page_environment(app, loader)
    pool = ThreadPool(4)
    try:
        tasks = [pool.spawn(environment.get_template, NAME) for _ in range(4)]
        templates = [task.get(timeout=20) for task in tasks]
    finally:
        pool.kill()
    assert loader.loads == 1
    assert len({id(template) for template in templates}) == 1


def test_a_template_is_compiled_once_for_many_pages() -> None:
    loader = CountingLoader("a{% boundary 'x' %}b{% endboundary %}")
    environment = page_environment(make_app({}), loader)
    for _ in range(5):
        renderer = PageRenderer(environment, NAME, {}, Defaults(), 1)
        assert renderer.step([Start()], False).output == b"a"
    assert loader.loads == 1


def test_a_template_that_is_missing_or_broken_is_asked_for_again() -> None:
    """And the lock that compiling takes is free again."""
    environment = page_environment(make_app({}), CountingLoader("{% if %}"))
    for _ in range(2):
        with pytest.raises(TemplateNotFound):
            environment.get_template("other.html")
        with pytest.raises(TemplateSyntaxError):
            environment.get_template(NAME)


def test_pages_of_one_template_do_not_share_state() -> None:
    app = make_app({NAME: "{{ s }}{% boundary 'x' %}{{ s }}{% endboundary %}{{ s }}"})
    environment = streaming_environment(app)
    renderers = [PageRenderer(environment, NAME, {}, Defaults(), 1) for _ in range(2)]
    starts = [renderer.step([Start({"s": number})], False).output for number, renderer in enumerate(renderers)]
    ends = [renderer.step([resume("x")], False).output for renderer in reversed(renderers)]
    assert (starts, ends[0][:2], ends[1][:2]) == ([b"0", b"1"], b"11", b"00")


# -- any template

LEAVES = st.sampled_from(
    [
        "t",
        "{{ a }}",
        "{{ b }}",
        "{{ c }}",
        "{{ i }}",
        "{{ l|length }}",
        "{% set a = b %}",
        "{% set c = 's' %}",
        "{% set ns.v = a %}",
        "{{ ns.v }}",
        "{{ loop.index if loop is defined }}",
        "{% include 'part.html' %}",
        "{{ m(a) }}",
        "{{ u is defined }}{{ u }}",
    ]
)
BOUNDARY = "<BOUNDARY>"


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What a template can put around something, boundaries being possible in it."""
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        body,
        st.builds("{{% if {} %}}{}{{% else %}}{}{{% endif %}}".format, st.sampled_from("abcu"), body, body),
        st.builds("{{% for i in l %}}{}{{% endfor %}}".format, body),
        st.builds("{{% for a in l %}}{}{{% else %}}{}{{% endfor %}}".format, body, body),
        st.builds("{{% for i in l if i != a %}}{}{{% endfor %}}".format, body),
        st.builds("{{% with {} = {} %}}{}{{% endwith %}}".format, st.sampled_from("abi"), st.sampled_from("abc"), body),
        st.builds("{{% block NAME %}}{}{{% endblock %}}".format, body),
        st.builds("{{% block NAME scoped %}}{}{{% endblock %}}".format, body),
    )


def collectors(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What a template can put around something that has no boundary in it."""
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.builds("{{% filter upper %}}{}{{% endfilter %}}".format, body),
        st.builds("{{% set b %}}{}{{% endset %}}{{{{ b }}}}".format, body),
        st.builds("{{% call k() %}}{}{{% endcall %}}".format, body),
        st.builds("{{% macro n() %}}{}{{% endmacro %}}{{{{ n() }}}}".format, body),
    )


PLAIN = st.recursive(LEAVES, lambda inner: containers(inner) | collectors(inner), max_leaves=6)
BOUNDARIES = st.lists(PLAIN, max_size=2).map(lambda parts: BOUNDARY + "".join(parts) + "{% endboundary %}")
SOURCES = st.recursive(PLAIN | BOUNDARIES, containers, max_leaves=8)
STATES = st.fixed_dictionaries(
    {"a": st.integers(0, 2), "b": st.sampled_from(["<b>", "", "x"]), "l": st.lists(st.integers(0, 2), max_size=3)},
    optional={"c": st.booleans(), "i": st.just("i")},
)


def number(source: str) -> str:
    """Give every boundary and block a name of its own, and every occurrence in a loop a key."""
    for word, form in (
        (BOUNDARY, '{{% boundary "n{0}" key=count() %}}'),
        ("{% block NAME", "{{% block n{0}"),
    ):
        first, *rest = source.split(word)
        source = first + "".join(form.format(index) + part for index, part in enumerate(rest))
    return source


HEAD = (
    "{% set ns = namespace(v=0) %}{% macro m(x) %}({{ x }}{{ b }}){% endmacro %}"
    "{% macro k() %}<{{ caller() }}>{% endmacro %}"
)


def with_counter(templates: dict[str, str]) -> Flask:
    app = make_app(templates)
    app.jinja_env.globals["count"] = iter(range(10**9)).__next__
    return app


@settings(max_examples=150, deadline=None)
@given(SOURCES, STATES, st.booleans())
def test_streaming_with_the_whole_state_at_the_start_gives_what_ordinary_rendering_gives(
    source: str, state: dict[str, Any], is_inherited: bool
) -> None:
    """For any template, apart from the comment that says it is complete."""
    templates = {NAME: HEAD + number(source), "part.html": "[{{ a }}{{ i }}{{ c }}]"}
    if is_inherited:
        # Blocks of a child may hold the same; names that its top level has set are seen in them.
        templates = {
            **templates,
            NAME: "{% extends 'layout.html' %}{% set ns = namespace(v=0) %}{% block content %}"
            + templates[NAME]
            + "{% endblock %}",
            "layout.html": "{{ a }}{% block content %}{% endblock %}{{ a }}{{ b }}",
        }
    app = with_counter(templates)
    with app.test_request_context("/"):
        try:
            expected = render_template(NAME, **state)
        except Exception as error:  # noqa: BLE001 - then streaming must fail too
            expected = type(error).__name__
    page = Page(templates, with_counter(templates))
    output = page.send(Start(state))
    while not page.is_complete and page.failure is None:
        output += page.send(page.pending)
    if page.failure is not None:
        assert type(page.cause()).__name__ == expected
    else:
        assert output == expected + COMPLETE_COMMENT


def test_a_wrong_resume_is_the_backend_s_fault_and_not_the_template_s() -> None:
    page = Page("{% boundary 'x' %}{% endboundary %}")
    page.send(Start(), resume("y"))
    assert type(page.failure) is RecordError


@pytest.mark.parametrize(
    "condition",
    ["i > t", "i > t and t is defined", "t", "not hidden", "i in seen or i > t", "i > loop_free"],
)
@pytest.mark.parametrize("before", ["", "{{ t }}", "{% set t = t %}"], ids=["only there", "used before", "set before"])
def test_what_a_loop_goes_over_is_settled_when_it_begins(condition: str, before: str) -> None:
    """The names of its condition too: a resume in the loop does not change which items come."""
    body = "{% boundary 'b' key=i %}{{ i }}{% endboundary %}"
    template = f"{before}{{% for i in items if {condition} %}}{body}{{% endfor %}}"
    state = {"items": [1, 5, 2, 6], "t": 1, "seen": [1], "loop_free": 0}
    with make_app({}).app_context():
        expected = make_app({NAME: template}).jinja_env.get_template(NAME).render(**state)
    page = Page(template)
    output = page.send(Start(state))
    while not page.is_complete:
        key = page.renderer._pending.key if page.renderer._pending else None
        output += page.send(Resume(NAME, "b", {"t": 100, "hidden": True, "seen": [], "loop_free": 100}, key=key))
        assert page.failure is None
    assert output == expected + COMPLETE_COMMENT
