"""Shows what a person feels while text streams: a real browser, headless, on the demo's page; a naive page beside it.

The page is the demo's own, `examples/demo`, with its own script. The server is the real app in a process of its own.
The naive page has the same HTML and styles and another script, `feel/naive.js`, which does what is often done: it gets
all streams in full, and for each message of the socket it puts the whole text into the page, writes the number beside
the stream's name and scrolls to the end. "naive, each token" has a server with STREAMING_FLUSH_INTERVAL=0, so a message
is a token, or a few of several streams that are due at the same time. "naive, whole texts" has `deltas=0`: the server
sends whole texts, four a second for each stream.

(a) Nothing is in focus, 16 streams write 100 tokens a second each (the demo's stress switch). "share" is that of the
time in which the main thread works: the sum of its tasks in a trace of the browser. "cpu" leaves out the time in which
a task waited for a processor. "messages" are those of the WebSocket a second, counted in the same trace. "at rest" is
the page while nothing is written.

(b) One of the 16 streams is in view. "frames" are animation frames a second of a page that asks for each, by their time
stamps; the screen has 60. "gap" is the time between two frames in which the visible text grew, twice: by the clock of
the page ("gap", from a frame's time stamp to the next one's) and in another run by the trace ("gap, shown", from
presentation to presentation). "at rest" is the page while nothing is written: what this machine can do.

(c) One answer of 100,000 tokens at 8,000 a second in view, and a person types 20 letters a second into the question.
"stall" is the longest task of the main thread, "cpu" the longest by processor time. "key" is the time from a key's time
stamp to its handler, "drawn" that to the end of the next frame, "worst interaction" what the browser itself reports
(Event Timing, in steps of 8 ms). "text" says whether the page's text is the server's in the end. Keys are sent on a
fixed schedule, whether the page answers or not. The time for all of it is bounded; "not finished" says how much was
there by then.

(d) What one more token costs while an answer has so many characters already, and with so many messages before it: the
main thread's time for each token, at 100 a second. It should not depend on either.

Medians of several windows in one page; "again" is the same once more in another page: how far those two differ is how
far the machine's noise reaches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.feel_browser import DETAILS, TASKS_ONLY, Browser, BrowserError, Page
from benchmarks.feel_trace import BEGIN, END, Trace
from benchmarks.live import LiveServer, _Child
from benchmarks.measure import median, p95
from benchmarks.report import Progress, command_line, machine, ms, plot, save, table

PROBE = Path(__file__).with_name("feel") / "probe.js"
STREAMS, RATE = 16, 100  # the demo's stress
FAST = 8_000  # tokens a second, of (c)
KEYS = 20  # a second
LATE = 10.0  # seconds that a page may take to finish (c), after the last token
CHAT = "chat"
UNFINISHED = "not finished"


@dataclass(frozen=True)
class Client:
    """A page and the server that it needs."""

    title: str
    path: str
    flush: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Of the server."""
        return {} if self.flush is None else {"STREAMING_FLUSH_INTERVAL": self.flush}


OURS = Client("Headrace", "/demo")
NAIVE = Client("naive, each token", "/feel/naive", "0")
WHOLE = Client("naive, whole texts", "/feel/naive?deltas=0", "0")


@dataclass
class Background:
    """(a)"""

    share: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)  # the share by `Performance.getMetrics`
    server: list[float] = field(default_factory=list)  # its share of a core
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, trace: Trace, metrics: float, server: float) -> None:
        """One window."""
        self.share.append(trace.share)
        self.cpu.append(trace.cpu_share)
        self.messages.append(trace.messages / trace.seconds)
        self.longest.append(trace.longest)
        self.metrics.append(metrics)
        self.server.append(server)
        self.kinds.update(trace.kinds)
        self.seconds += trace.seconds


@dataclass
class Visible(Background):
    """(b); times in seconds."""

    shown: list[float] = field(default_factory=list)  # gaps, by the trace
    frames: list[list[float]] = field(default_factory=list)  # time stamps, window by window
    gaps: list[float] = field(default_factory=list)  # by the page

    @property
    def rates(self) -> list[float]:
        """Frames a second, window by window."""
        return [(len(one) - 1) / (one[-1] - one[0]) for one in self.frames]

    @property
    def frame_times(self) -> list[float]:
        """From frame to frame."""
        return [gap for one in self.frames for gap in gaps(one)]


@dataclass
class Flood:
    """(c); times in seconds, shares through the time of the production."""

    tokens: int
    share: float
    stall: float
    stall_cpu: float  # the most processor time of a task
    frames: list[float]
    grown: list[float]
    keys: list[list[float]]  # time stamp, to the handler, drawn
    interaction: float
    long_tasks: int
    end: str  # "exact", or what was wrong
    took: float  # from the first token until the page had the text, or was given up
    server: float
    rate: float

    @property
    def delays(self) -> list[float]:
        """To the handler."""
        return [key[1] for key in self.keys]

    @property
    def drawn(self) -> list[float]:
        """To the end of the frame."""
        return [key[2] for key in self.keys]


@dataclass
class Growth:
    """(d); seconds of the main thread for each token, and for each message of the socket."""

    token: list[float] = field(default_factory=list)
    message: list[float] = field(default_factory=list)
    longest: float = 0.0


def gaps(times: Sequence[float]) -> list[float]:
    """From one to the next."""
    return [after - before for before, after in pairwise(times)]


class FeelServer(LiveServer):
    """The demo, serving."""

    def __init__(self, **settings: str) -> None:
        _Child.__init__(self, "-m", "benchmarks.feel_server", **settings)

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.port}"


# -- measuring


@contextmanager
def opened(browser: Browser, client: Client, focus: str, is_stressed: bool) -> Iterator[tuple[FeelServer, Page]]:
    """A page of a server of its own, with the probe in it, at rest after loading."""
    server = FeelServer(**client.settings)
    try:
        if is_stressed:
            server.ask("POST", "/demo/stress", {"on": True})
        with browser.page(f"{server.url}{client.path}#{focus}") as page:
            page.wait("document.querySelector('#connection[data-state=live]')")
            if is_stressed:
                page.wait("document.querySelector('[data-sid=stress-16] .chars').textContent > '0'")
            page.do(PROBE.read_text())
            page.call("Performance.enable")
            time.sleep(1)
            yield server, page
    finally:
        server.close()


def window(
    browser: Browser, page: Page, server: FeelServer, seconds: float, categories: Sequence[str] = DETAILS
) -> tuple[Trace, float, float]:
    """Trace the page for so long: the trace, and the shares of the main thread by metrics and of the server."""
    with browser.tracing(categories) as found:
        page.do(f"performance.mark('{BEGIN}')")
        metrics, cpu, began = page.metrics()["TaskDuration"], server.cpu(), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        metrics, cpu = page.metrics()["TaskDuration"] - metrics, server.cpu() - cpu
        page.do(f"performance.mark('{END}')")
    return Trace(found["traceEvents"]), metrics / took, cpu / took


def run_streams(
    browser: Browser, client: Client, seconds: float, runs: int, is_stressed: bool = True
) -> tuple[Background, Visible]:
    """(a), and then (b) in the same page: windows with a trace, and such with frames."""
    away, near = Background(), Visible()
    with opened(browser, client, "none", is_stressed) as (server, page):
        for _ in range(runs):
            away.add(*window(browser, page, server, seconds))
        page.do("location.hash = 'stress-1'")
        time.sleep(1)
        page.do("feel.mark()")
        for _ in range(runs):
            trace, metrics, cpu = window(browser, page, server, seconds)
            near.add(trace, metrics, cpu)
            near.shown += gaps(trace.grown)
        page.do("feel.start()")
        for _ in range(runs):
            page.do("feel.clear()")
            time.sleep(seconds)
            found = page.do("feel.read()")
            near.frames.append([each / 1_000 for each in found["frames"]])
            near.gaps += [gap / 1_000 for gap in gaps(found["grown"])]
    return away, near


class Typist:
    """Types into the question on a fixed schedule, and does not wait for the page. Real input, by the browser."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._is_on = True
        page.do("document.getElementById('question').focus()")
        self._thread = threading.Thread(target=self._type)
        self._thread.start()

    def _type(self) -> None:
        began, number = time.monotonic(), 0
        while self._is_on:
            key = {"key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65}
            self._page.send("Input.dispatchKeyEvent", type="keyDown", text="a", **key)
            self._page.send("Input.dispatchKeyEvent", type="keyUp", **key)
            number += 1
            time.sleep(max(0.0, began + number / KEYS - time.monotonic()))

    def stop(self) -> None:
        """Type no more."""
        self._is_on = False
        self._thread.join()


def run_flood(browser: Browser, client: Client, tokens: int) -> Flood:
    """(c); with no tokens what a person feels who types into a page at rest, for 5 s."""
    with opened(browser, client, CHAT, False) as (server, page):
        server.ask("POST", "/feel/begin", {"sid": CHAT})
        page.wait("document.querySelector('#paper [data-mid]')")
        typist = Typist(page)
        with browser.tracing(TASKS_ONLY) as found:
            page.do("feel.start(true)")
            page.do(f"performance.mark('{BEGIN}')")
            cpu, began = server.cpu(), time.monotonic()
            server.ask("POST", "/feel/speak", {"sid": CHAT, "rate": FAST, "tokens": tokens})
            if not tokens:
                time.sleep(5)
            server.wait(3 * tokens / FAST + 10)
            cpu = (server.cpu() - cpu) / (time.monotonic() - began)
            rate = tokens / server.usage()["turns"][0]
            parts = server.ask("GET", f"/streams/{CHAT}")["messages"][0]["parts"]
            text = parts[0]["s"] if parts else ""
            end = _await_text(page, text, time.monotonic() + LATE)
            took = time.monotonic() - began
            typist.stop()
            with suppress(BrowserError):
                page.do(f"performance.mark('{END}')", limit=1)
    trace = Trace(found["traceEvents"])
    notes = {kind: [[value / 1_000 for value in each] for each in noted] for kind, noted in trace.notes.items()}
    if end == UNFINISHED:
        had = trace.notes.get("lengths", [[0, 0]])[-1][1] / (len(text.encode("utf-16-le")) // 2)
        end = f"{end}: {had:.0%}"
    return Flood(
        tokens, trace.share, trace.longest, trace.longest_cpu,
        [each[0] for each in notes.get("frames", [])], [each[0] for each in notes.get("grown", [])],
        notes.get("keys", []), max((each[0] for each in notes.get("events", [])), default=0),
        len(notes.get("tasks", [])), end, took, cpu, rate,
    )  # fmt: skip


def _await_text(page: Page, text: str, deadline: float) -> str:
    """Wait until the page has the text, and compare."""
    length = len(text.encode("utf-16-le")) // 2
    had = 0
    while time.monotonic() < deadline:
        with suppress(BrowserError):
            had = page.do("feel.textLength()", limit=max(0.5, deadline - time.monotonic()))
        if had >= length:
            return "exact" if page.do("feel.text()") == text else "WRONG"
        time.sleep(0.2)
    return UNFINISHED


def run_growth(browser: Browser, client: Client, seconds: float, runs: int, characters: int, history: int) -> Growth:
    """(d). A page that can't keep up leaves tokens undrawn: those are not counted."""
    result = Growth()
    with opened(browser, client, CHAT, False) as (server, page):
        server.ask("POST", "/feel/begin", {"sid": CHAT, "characters": characters, "history": history})
        page.wait(f"feel.textLength() >= {characters}")
        time.sleep(1)
        for _ in range(runs):
            sent = server.usage()["messages"]
            with browser.tracing() as found:
                page.do(f"performance.mark('{BEGIN}')")
                server.ask("POST", "/feel/speak", {"sid": CHAT, "rate": RATE, "tokens": int(seconds * RATE), "more": 1})
                time.sleep(seconds + 0.2)
                with suppress(BrowserError):
                    page.do(f"performance.mark('{END}')", limit=1)
            trace = Trace(found["traceEvents"])
            sent = server.usage()["messages"] - sent
            busy = trace.share * trace.seconds
            result.message.append(busy / max(1, trace.messages))
            result.token.append(busy / (seconds * RATE * min(1, max(1, trace.messages) / sent)))
            result.longest = max(result.longest, trace.longest)
            if trace.messages < 0.8 * sent:
                break  # what it has not drawn yet would be in the next window
    return result


# -- showing it


def percent(share: float) -> str:
    """A share of the main thread."""
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def background_table(results: dict[str, Background]) -> str:
    """(a)"""
    headers = [
        "(a)",
        "share",
        "lowest",
        "highest",
        "cpu",
        "by getMetrics",
        "messages",
        "longest task ms",
        "server's core",
    ]
    rows = []
    for title, one in results.items():
        row = [title, percent(median(one.share)), percent(min(one.share)), percent(max(one.share))]
        row += [percent(median(one.cpu)), percent(median(one.metrics)), f"{median(one.messages):,.2f}"]
        rows.append([*row, ms(max(one.longest)), percent(median(one.server))])
    return table(f"Nothing in focus, {STREAMS} streams at {RATE} tokens a second", headers, rows)


def visible_table(results: dict[str, Visible]) -> str:
    """(b)"""
    headers = ["(b)", "frames", "worst frame ms", "gap ms", "longest", "gap, shown", "longest", "share", "cpu"]
    headers += ["messages", "longest task ms", "server's core"]
    rows = []
    for title, one in results.items():
        row = [title, f"{median(one.rates):.1f}", ms(max(one.frame_times))]
        for values in (one.gaps, one.shown):
            row += [ms(median(values)), ms(max(values))] if values else ["none", "none"]
        row += [percent(median(one.share)), percent(median(one.cpu)), f"{median(one.messages):,.1f}"]
        rows.append([*row, ms(max(one.longest)), percent(median(one.server))])
    return table(f"One stream in view, {STREAMS - 1} in the background", headers, rows)


def flood_table(results: dict[str, Flood]) -> str:
    """(c)"""
    headers = ["(c)", "text", "after s", "stall ms", "cpu", "key ms", "p95", "worst", "drawn ms", "p95", "worst"]
    headers += ["worst interaction", "long tasks", "keys", "frames/s", "worst frame", "gap ms", "longest", "share"]
    headers += ["rate", "server's core"]
    rows = []
    for title, one in results.items():
        row = [title, one.end, f"{one.took:.1f}", ms(one.stall), ms(one.stall_cpu)]
        for values in (one.delays, one.drawn):
            row += [ms(median(values)), ms(p95(values)), ms(max(values))] if values else ["none"] * 3
        row += [ms(one.interaction), str(one.long_tasks), str(len(one.keys))]
        frames = gaps(one.frames)
        row += [f"{len(frames) / sum(frames):.1f}", ms(max(frames))] if frames else ["none", "none"]
        between = gaps(one.grown)
        row += [ms(median(between)), ms(max(between))] if between else ["none", "none"]
        rows.append([*row, percent(one.share), f"{one.rate:,.0f}", percent(one.server)])
    tokens = next(iter(results.values())).tokens
    return table(f"{tokens:,} tokens at {FAST:,} a second in view, while a person types", headers, rows)


def growth_table(lengths: dict[str, dict[int, Growth]], histories: dict[int, Growth]) -> str:
    """(d)"""
    first = next(iter(lengths.values()))
    headers = ["(d) main thread, us a token", *(f"{length:,}" for length in first), "last / first"]
    rows = []
    for title, results in lengths.items():
        if not results:
            continue
        values = [median(results[length].token) * 1e6 if length in results else None for length in first]
        known = [value for value in values if value is not None]
        row = [title, *("" if value is None else f"{value:,.0f}" for value in values)]
        rows.append([*row, f"{known[-1] / known[0]:.2f}"])
    text = table(f"One more token, {RATE} a second, by characters that the answer has already", headers, rows)
    if not histories:
        return text
    headers = ["messages before", "us a token", "us a message of the socket", "longest task ms"]
    rows = [
        [f"{count:,}", f"{median(one.token) * 1e6:,.0f}", f"{median(one.message) * 1e6:,.0f}", ms(one.longest)]
        for count, one in histories.items()
    ]
    return text + "\n" + table(f"{OURS.title}: the same, by messages that stand before it", headers, rows)


def kinds_table(results: dict[str, Background]) -> str:
    """Where the main thread's time goes."""
    kinds = list(next(iter(results.values())).kinds)
    rows = [
        [title, *(f"{one.kinds[kind] / one.seconds * 1_000:.2f}" for kind in kinds)] for title, one in results.items()
    ]
    return table("Where it goes: main thread, ms a second", ["", *kinds], rows)


#: What is required: name, reference, required, goal, unit. All are best when small, but frames.
BOUNDS: tuple[tuple[str, str, float, float | None, str], ...] = (
    ("(a) main-thread share", "101 -> 0.5 %", 3, 1, "%"),
    ("(a) messages a second", "", 3.5, None, ""),
    ("(b) frames a second", "", 55, None, ""),
    ("(b) longest gap in the text", "13.75 s", 250, None, "ms"),
    ("(b) median gap", "", 60, None, "ms"),
    ("(c) longest stall", "", 100, None, "ms"),
    ("(c) worst delay of a key", "", 100, None, "ms"),
    ("(c) worst, drawn", "", 100, None, "ms"),
    ("(c) texts that differ at the end", "", 0, None, ""),
)


def values(away: Background, near: Visible, flood: Flood) -> list[float]:
    """One page's, in the order and the units of BOUNDS."""
    shares, gap = [median(away.share) * 100, median(away.messages), median(near.rates)], near.gaps
    times = [max(gap), median(gap), flood.stall, max(flood.delays), max(flood.drawn)]
    return [*shares, *(each * 1_000 for each in times), float(flood.end != "exact")]


def bounds_table(pages: dict[str, list[float]]) -> str:
    """What is required, and what was found in each of the same pages."""
    rows = []
    for (name, reference, required, goal, unit), *found in zip(BOUNDS, *pages.values(), strict=True):
        is_least = "frames" in name
        held = sum(value >= required if is_least else value <= required for value in found)
        judged = (
            "required reached" if held == len(found) else f"reached by {held} of {len(found)}" if held else "MISSED"
        )
        if goal is not None and all(value <= goal for value in found):
            judged = "goal reached"
        sign = ">=" if is_least else "<="
        row = [name, reference, *(f"{value:.3g} {unit}" for value in found), f"{sign} {required:g} {unit}"]
        rows.append([*row, "" if goal is None else f"{sign} {goal:g} {unit}", judged])
    return table("Required", ["what", "reference", *pages, "required", "goal", "verdict"], rows)


def draw_frames(title: str, results: dict[str, list[float]], axis: Any) -> None:
    """Time from frame to frame, over time; the first of them in front."""
    for number, (label, frames) in enumerate(results.items()):
        if len(frames) > 1:
            times, between = [each - frames[0] for each in frames[1:]], [each * 1_000 for each in gaps(frames)]
            look = {"markersize": 3, "linewidth": 0.6, "zorder": 9 - number, "alpha": 0.5 if number else 1}
            axis.plot(times, between, ".-", label=label, **look)
    axis.axhline(1_000 / 60, color="k", linestyle=":", linewidth=1, label="60 a second")
    axis.axhline(100, color="tab:red", linestyle="--", linewidth=1, label="felt: 100 ms")
    axis.set_yscale("log")
    ticks = [10, 20, 50, 100, 200, 500, 1_000]
    axis.set_yticks(ticks, map(str, ticks))
    axis.minorticks_off()
    axis.set_ylim(12, 1_000)
    axis.set_xlabel("seconds")
    axis.set_ylabel("ms from frame to frame")
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8)


def draw_growth(lengths: dict[str, dict[int, Growth]], axis: Any) -> None:
    """Cost of a token by the answer's length."""
    for title, results in lengths.items():
        if results:
            axis.plot(list(results), [median(one.token) * 1e3 for one in results.values()], "o-", label=title)
    axis.axhline(
        1_000 / RATE, color="tab:red", linestyle="--", linewidth=1, label=f"all of the time, at {RATE} a second"
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("characters that the answer has")
    axis.set_ylabel("ms of the main thread for a token")
    axis.set_title("One more token (lower is better)", fontsize=10)
    axis.legend(fontsize=8)


# -- all of it


@dataclass(frozen=True)
class Plan:
    """How much to measure; `window` and `growth` are seconds."""

    window: float
    runs: int
    tokens: int
    naive_tokens: int
    growth: float
    growth_runs: int
    lengths: tuple[int, ...]
    naive_lengths: tuple[int, ...]
    histories: tuple[int, ...]


FULL = Plan(
    4, 3, 100_000, 100_000, 2.5, 2, (1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000, 100_000), (10, 200, 1_000)
)
QUICK = Plan(1.5, 1, 8_000, 4_000, 1.0, 1, (1_000, 100_000), (), ())
AGAIN, REST = f"{OURS.title} again", "at rest"


@dataclass
class Found:
    """What was measured, by the page's title."""

    background: dict[str, Background] = field(default_factory=dict)
    visible: dict[str, Visible] = field(default_factory=dict)
    floods: dict[str, Flood] = field(default_factory=dict)
    lengths: dict[str, dict[int, Growth]] = field(default_factory=lambda: {OURS.title: {}, NAIVE.title: {}})
    histories: dict[int, Growth] = field(default_factory=dict)

    @property
    def pages(self) -> dict[str, Background]:
        """(a) and (b)."""
        away = {f"(a) {title}": one for title, one in self.background.items()}
        return away | {f"(b) {title}": one for title, one in self.visible.items()}


def main() -> None:
    """Run it."""
    options = command_line(__doc__).parse_args()
    browser = Browser()
    try:
        show(measure(browser, QUICK if options.quick else FULL, options.quick), browser.version, options.quick)
    finally:
        browser.close()


def measure(browser: Browser, plan: Plan, is_quick: bool) -> Found:
    """All of it."""
    found = Found()
    pages = [(OURS.title, OURS, plan.runs, True), (NAIVE.title, NAIVE, 1, True)]
    floods = [(OURS.title, OURS, plan.tokens), (NAIVE.title, NAIVE, plan.naive_tokens)]
    if not is_quick:
        pages += [(AGAIN, OURS, plan.runs, True), (WHOLE.title, WHOLE, 1, True), (REST, OURS, 1, False)]
        floods += [(AGAIN, OURS, plan.tokens), (WHOLE.title, WHOLE, plan.naive_tokens), (REST, OURS, 0)]
    lengths = [(OURS, length) for length in plan.lengths] + [(NAIVE, length) for length in plan.naive_lengths]
    progress = Progress(len(pages) + len(floods) + len(lengths) + len(plan.histories))
    grow = partial(run_growth, browser, seconds=plan.growth, runs=plan.growth_runs)
    for title, client, runs, is_stressed in pages:
        progress.step(f"(a) and (b) {title}")
        found.background[title], found.visible[title] = run_streams(browser, client, plan.window, runs, is_stressed)
    for title, client, tokens in floods:
        progress.step(f"(c) {title}")
        found.floods[title] = run_flood(browser, client, tokens)
    for client, length in lengths:
        progress.step(f"(d) {client.title}, {length:,} characters")
        found.lengths[client.title][length] = grow(client, characters=length, history=0)
    for count in plan.histories:
        progress.step(f"(d) {count:,} messages")
        found.histories[count] = grow(OURS, characters=1_000, history=count)
    progress.end()
    return found


def show(found: Found, version: str, is_quick: bool) -> None:
    """Print the tables, write the files."""
    pages = {
        title: values(found.background[title], found.visible[title], found.floods[title])
        for title in (OURS.title, AGAIN)
        if title in found.floods
    }
    print(f"feel{' (quick)' if is_quick else ''}")
    print({**machine(), "browser": version})
    print(background_table(found.background))
    print(visible_table(found.visible))
    print(flood_table(found.floods))
    print(growth_table(found.lengths, found.histories))
    print(kinds_table(found.pages))
    print(bounds_table(pages))
    document = {
        "is_quick": is_quick,
        "browser": version,
        "required": {name: found for (name, *_), *found in zip(BOUNDS, *pages.values(), strict=True)},
        "background": {title: vars(one) for title, one in found.background.items()},
        "visible": {title: vars(one) for title, one in found.visible.items()},
        "flood": {title: vars(one) for title, one in found.floods.items()},
        "lengths": {
            title: {length: vars(one) for length, one in results.items()} for title, results in found.lengths.items()
        },
        "histories": {count: vars(one) for count, one in found.histories.items()},
    }
    save("feel", document)
    hidden = (AGAIN, REST)
    views = {title: one.frames[0] for title, one in found.visible.items() if title not in hidden}
    floods = {title: one.frames for title, one in found.floods.items() if title not in hidden}
    panels = [
        partial(draw_frames, "One stream in view, 15 in the background (lower is better)", views),
        partial(draw_frames, f"{FAST:,} tokens a second in view (lower is better)", floods),
        partial(draw_growth, found.lengths),
    ]
    plot("feel", "What a person feels: frames of a page while text streams", panels)


if __name__ == "__main__":
    main()
