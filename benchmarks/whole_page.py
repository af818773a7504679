"""A whole page against `render_template`: a part of `buffers.py`, which says how to read it."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import process_time
from typing import Any

import ujson
from flask import render_template
from jinja2 import Environment

from benchmarks.measure import median, p95
from benchmarks.report import ms, table, verdict
from benchmarks.site import Site
from streaming import Resume, Start
from streaming.pages.renderer import PageRenderer, PageState
from streaming.pages.response import stream_page
from streaming.protocol.commands import Defaults

CHUNK_SIZE = 4_096

PAGE_BYTES = 220_000
PAGE_TEMPLATES = {
    "layout.html": """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title></head>
<body><header><h1>{{ title }}</h1></header>{% block content %}{% endblock %}<footer>{{ footer }}</footer></body></html>
""",
    "plain.html": """{% extends "layout.html" %}{% block content %}<p>{{ lead }}</p>@{% endblock %}""",
    "waiting.html": """{% extends "layout.html" %}{% block content %}<p>{{ lead }}</p>
{% boundary "rows" %}@{% endboundary %}{% endblock %}""",
}
#: What the page consists of, apart from its shell: the first is what the required ratio is about.
ROW_TEMPLATES = {
    "table": """<tr class="{{ loop.cycle('odd', 'even') }}">
<td>{{ order.id }}</td><td><a href="{{ base }}/orders/{{ order.id }}">{{ order.name }}</a></td>
<td>{{ order.city|upper }}</td><td>{{ "%.2f"|format(order.amount) }} {{ currency }}</td>
<td>{% if order.paid %}<b>{{ yes }}</b>{% else %}<i>{{ no }}</i>{% endif %}</td></tr>
""",
    "names": "<li>{{ base }} {{ currency }} {{ yes }} {{ no }} {{ lead }} {{ title }} {{ footer }} {{ base }}</li>\n",
    "prose": f"<p>{{{{ order.name }}}}: {'a paragraph of fixed text, as on most pages; ' * 10}</p>\n",
}
KINDS = {
    "table": "a table: attributes, filters, conditions",
    "names": "nothing but names of the page's state",
    "prose": "long fixed text, one attribute in 450 bytes",
}


def shell_state() -> dict[str, Any]:
    """What a page's shell shows."""
    words = {"title": "Orders", "lead": "All orders.", "footer": "Thank you.", "base": "/shop", "currency": "EUR"}
    return {**words, "yes": "paid", "no": "to be paid"}


def rows_state(count: int) -> dict[str, Any]:
    """What the rows show."""
    return {
        "orders": [
            {"id": number, "name": f"Ann & Zoë {number}", "city": "Łódź", "amount": number * 1.5, "paid": number % 3}
            for number in range(count)
        ]
    }


class PageSite(Site):
    """An app with every way to make a page of one kind."""

    def __init__(self, kind: str, pool: str = "threads") -> None:
        rows = "{% for order in orders %}" + ROW_TEMPLATES[kind] + "{% endfor %}"
        super().__init__({name: source.replace("@", rows) for name, source in PAGE_TEMPLATES.items()}, pool)
        shell = shell_state()
        self.rows = rows_state(PAGE_BYTES // self._row_bytes())
        self.whole = {**shell, **self.rows}
        start, resume = Start(self.whole), [Start(shell), Resume("waiting.html", "rows", self.rows)]
        raw = json.dumps({"type": "start", "version": 2, "state": self.whole}, ensure_ascii=False).encode()
        self.route("/render", lambda: render_template("plain.html", **self.whole))
        self.route("/render-json", lambda: render_template("plain.html", **ujson.loads(raw.decode())["state"]))
        self.route("/stream", lambda: stream_page("plain.html", [start]))
        self.route("/stream-boundary", lambda: stream_page("waiting.html", resume))
        self.route("/stream-json", lambda: stream_page("plain.html", iter([raw])))

    def _row_bytes(self) -> int:
        template = self.app.jinja_env.get_template("plain.html")
        return len(template.render(**shell_state(), **rows_state(1_000)).encode()) // 1_000


#: What is compared: a name, the pool, what it is, and what it is compared with.
PAGE_VARIANTS = (
    ("render_template", "hub", "/render", ""),
    ("render_template again", "hub", "/render", "render_template"),
    ("pipeline, threads", "threads", "/stream", "render_template"),
    ("pipeline, threads, one boundary", "threads", "/stream-boundary", "render_template"),
    ("pipeline on the hub", "hub", "/stream", "render_template"),
    ("render_template from JSON", "hub", "/render-json", ""),
    ("pipeline, threads, from JSON", "threads", "/stream-json", "render_template from JSON"),
)
REQUIRED_RATIO, GOAL_RATIO = 1.4, 1.15


def measure_page(kind: str, repeats: int) -> tuple[dict[str, list[float]], int]:
    """Processor seconds of each variant and of each part of the pipeline, turn by turn; also the page's size."""
    sites = {pool: PageSite(kind, pool) for pool in ("hub", "threads")}
    calls: dict[str, Callable[[], bytes]] = {
        name: partial(sites[pool].get, path) for name, pool, path, _ in PAGE_VARIANTS
    }
    # The template with the boundary has one line feed more, and a streamed page ends with a comment.
    pages = {call().replace(b"\n", b"").removesuffix(b"<!--stream:complete-->") for call in calls.values()}
    assert len(pages) == 1, "the pages differ"
    length = len(calls["render_template"]())
    with sites["hub"].app.test_request_context():
        cpu = _in_turn({**calls, **_parts(sites["hub"])}, repeats)
    for site in sites.values():
        site.close()
    return cpu, length


def _in_turn(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each call, `repeats` times, one after the other so that noise meets all alike.

    Lists of one length: the values at one place were taken within one turn.
    """
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls.items())
    shuffle = random.Random(1).shuffle
    for turn in range(repeats + 5):
        # Each call leaves caches and garbage to the next one, which must not always be the same.
        shuffle(order)
        for name, call in order:
            start = process_time()
            call()
            if turn >= 5:  # the first ones are warm-ups
                cpu[name].append(process_time() - start)
    return cpu


PARTS = (
    "the app's environment: join(pieces)",
    "streaming environment: join(pieces)",
    "PageRenderer: its steps, output encoded",
    "only encoding the text",
)


def _parts(site: PageSite) -> dict[str, Callable[[], object]]:
    """What the pipeline is made of, each in the caller's greenlet, without Flask and without a pool."""
    usual, streaming = site.app.jinja_env, site.state.environment(None)
    text = _join(usual, site.whole)
    calls = (
        partial(_join, usual, site.whole),
        partial(_join_late, streaming, site.whole),
        partial(_steps, streaming, site.whole),
        text.encode,
    )
    return dict(zip(PARTS, calls, strict=True))


def _join(environment: Environment, state: dict[str, Any]) -> str:
    template = environment.get_template("plain.html")
    return "".join(template.root_render_func(template.new_context(dict(state))))


def _join_late(environment: Environment, state: dict[str, Any]) -> str:
    renderer = _renderer(environment)
    renderer._begin(Start(state))
    return "".join(renderer._pieces)


def _steps(environment: Environment, state: dict[str, Any]) -> None:
    renderer = _renderer(environment)
    step = renderer.step([Start(state)], True)
    while step.state is not PageState.COMPLETE:
        step = renderer.step([], True)
    assert step.failure is None, step.failure


def _renderer(environment: Environment) -> PageRenderer:
    return PageRenderer(environment, "plain.html", {}, Defaults(), CHUNK_SIZE)


def page_table(kind: str, cpu: Mapping[str, Sequence[float]], length: int) -> str:
    """The variants against render_template."""
    rows = []
    for name, _, _, base in PAGE_VARIANTS:
        row = [name, ms(median(cpu[name])), ms(p95(cpu[name]))]
        if not base:
            row += ["1", "", "", ""]
        else:
            ratio = page_ratio(cpu, name, base)
            is_bounded = "threads" in name
            judged = verdict(ratio, REQUIRED_RATIO, GOAL_RATIO) if is_bounded else ""
            row += [f"{ratio:.3f}", *((f"<= {REQUIRED_RATIO}", f"<= {GOAL_RATIO}") if is_bounded else ("", "")), judged]
        rows.append(row)
    headers = [f"{length:,} bytes", "CPU ms", "p95", "ratio", "required", "goal", "verdict"]
    return table(f"Whole page: {KINDS[kind]} (CPU of the process, medians)", headers, rows)


def page_ratio(cpu: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """The median of the ratios of measurements that were taken one after the other."""
    return statistics.median(one / other for one, other in zip(cpu[name], cpu[base], strict=True))


def page_ratios(cpu: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The ratio of every variant that has one."""
    return {name: page_ratio(cpu, name, base) for name, _, _, base in PAGE_VARIANTS if base}


def parts_table(kind: str, cpu: Mapping[str, Sequence[float]]) -> str:
    """Where the difference to render_template goes."""
    plain, late, steps, encoding = (median(cpu[name]) for name in PARTS)
    flask, hub, threads = (
        median(cpu[name]) for name in ("render_template", "pipeline on the hub", "pipeline, threads")
    )
    rows = [[name, ms(median(cpu[name])), f"{median(cpu[name]) / plain:.3f}"] for name in PARTS]
    shares = {
        "late name look-ups (streaming environment - the app's)": late - plain,
        "driving the generator in steps, joining, encoding": steps - late,
        "   of which encoding": encoding,
        "ingest, queue, response (on the hub - steps - what Flask itself adds)": hub - steps - (flask - plain),
        "round trips to the threads (threads - on the hub)": threads - hub,
    }
    rows += [[name, ms(value), f"{value / plain:.3f}"] for name, value in shares.items()]
    return table(f"Where it goes: {KINDS[kind]}", ["part", "CPU ms", "through the template alone"], rows)
