"""What `feel` measures: a page, its windows, a flood, the cost of one more token. It needs a browser; see feel.py."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.feel_browser import DETAILS, TASKS_ONLY, Browser, BrowserError, Page
from benchmarks.feel_trace import BEGIN, END, Trace
from benchmarks.live import Child, LiveServer

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
        Child.__init__(self, "-m", "benchmarks.feel_server", **settings)

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.port}"


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
