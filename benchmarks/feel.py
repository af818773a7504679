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

from dataclasses import dataclass, field
from functools import partial

from benchmarks.feel_browser import Browser
from benchmarks.feel_report import (
    BOUNDS,
    background_table,
    bounds_table,
    draw_frames,
    draw_growth,
    flood_table,
    growth_table,
    kinds_table,
    values,
    visible_table,
)
from benchmarks.feel_runs import (
    FAST,
    NAIVE,
    OURS,
    WHOLE,
    Background,
    Flood,
    Growth,
    Visible,
    run_flood,
    run_growth,
    run_streams,
)
from benchmarks.report import Progress, command_line, machine, plot, save


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
