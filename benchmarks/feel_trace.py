"""What the main thread of a page did, read from a trace of Chromium. Times are seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BEGIN, END, GREW = "feel:begin", "feel:end", "feel:grew"
TASKS = ("RunTask", "ThreadControllerImpl::RunTask")  # the same tasks, by category
#: Names of events by what they are for; the rest is "other". Each counts without what is nested in it.
KINDS = {
    "scripts": (
        "FunctionCall", "EvaluateScript", "FireAnimationFrame", "TimerFire", "EventDispatch", "RunMicrotasks",
        "WebSocketReceive", "MinorGC", "MajorGC", "V8.GCIncrementalMarking",
    ),
    "style": ("UpdateLayoutTree", "ScheduleStyleRecalculation"),
    "layout": ("Layout", "HitTest"),
    "paint": ("PrePaint", "Paint", "Layerize", "Commit", "UpdateLayer", "CompositeLayers", "ScrollLayer"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the main thread.

    Attributes:
        start: by the browser's clock.
        wall, cpu: how long it took, and what of that the thread had a processor for.
    """

    start: float
    wall: float
    cpu: float


class Trace:
    """The page's main thread between the marks BEGIN and END, which the page has set, or until the trace ends.

    Attributes:
        seconds: between the two.
        tasks: those that began then.
        kinds: seconds by kind of work, see KINDS; `names` the same by the event's name.
        presented: when frames of the page came to the screen.
        grown: those of them in which the visible text had grown.
        messages: WebSocket messages.
        notes: what the probe has noted, by kind: lists of milliseconds, see `feel/probe.js`.
    """

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        mark = next(each for each in events if each["name"] == BEGIN)
        thread = (mark["pid"], mark["tid"])
        own = [each for each in events if (each["pid"], each.get("tid")) == thread]
        # A page that is busy to the end sets no mark.
        last = max(each["ts"] for each in events)
        end = next((each["ts"] for each in own if each["name"] == END), last)
        self._begin, self._end = mark["ts"], end
        self.seconds = (end - mark["ts"]) / 1e6
        within = [each for each in own if self._begin <= each.get("ts", 0) <= end]
        name = next(name for name in TASKS if any(each["name"] == name for each in within))
        self.tasks = [
            Task(each["ts"] / 1e6, each.get("dur", end - each["ts"]) / 1e6, each.get("tdur", 0) / 1e6)
            for each in within
            if each["name"] == name
        ]
        self.names = _own_times([each for each in within if "dur" in each])
        self.kinds = _kinds(self.names)
        self.messages = sum(1 for each in within if each["name"] == "WebSocketReceive")
        self.notes: dict[str, list[list[float]]] = {}
        for each in own:
            if each["name"].startswith("feel:") and " " in each["name"]:
                kind, _, values = each["name"].removeprefix("feel:").partition(" ")
                self.notes.setdefault(kind, []).append([float(value) for value in values.split(",")])
        self._find_frames(own)

    def _find_frames(self, own: Sequence[dict[str, Any]]) -> None:
        """Frames are `b` and `e` around their making, and `n` at their presentation; `b` and `n` have an id."""
        made: dict[str, int] = {}
        shown: dict[str, int] = {}
        identity = ""
        for each in sorted(own, key=lambda one: one.get("ts", 0)):
            if each["name"] == "AnimationFrame" and each["ph"] == "b":
                identity = each["args"]["id"]
            elif each["name"] == "AnimationFrame" and each["ph"] == "e":
                made[identity] = each["ts"]
            elif each["name"] == "AnimationFrame::Presentation":
                shown[each["args"]["id"]] = each["ts"]
        frames = sorted((made[one], ts) for one, ts in shown.items() if one in made)
        self.presented = [ts / 1e6 for _, ts in frames if self._begin <= ts <= self._end]
        ends = [end for end, _ in frames]
        grown = set()
        for each in own:
            if each["name"] == GREW:
                at = bisect_left(ends, each["ts"])
                if at < len(frames) and self._begin <= frames[at][1] <= self._end:
                    grown.add(frames[at][1] / 1e6)
        self.grown = sorted(grown)

    @property
    def share(self) -> float:
        """Of the time, how much the main thread worked."""
        return sum(each.wall for each in self.tasks) / self.seconds

    @property
    def cpu_share(self) -> float:
        """The same without the time that it waited for a processor."""
        return sum(each.cpu for each in self.tasks) / self.seconds

    @property
    def longest(self) -> float:
        """The longest task: so long nothing that a person does can be answered."""
        return max(each.wall for each in self.tasks)

    @property
    def longest_cpu(self) -> float:
        """The most that a task had of a processor; what is missing to `longest` the machine gave to others."""
        return max(each.cpu for each in self.tasks)


def _own_times(events: Sequence[dict[str, Any]]) -> Counter[str]:
    """Seconds by name, each event without those nested in it."""
    times: Counter[str] = Counter()
    stack: list[tuple[int, str]] = []  # ends and names
    for each in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        start, length = each["ts"], each["dur"]
        while stack and stack[-1][0] <= start:
            stack.pop()
        times[each["name"]] += length
        if stack:
            times[stack[-1][1]] -= length
        stack.append((start + length, each["name"]))
    return Counter({name: time / 1e6 for name, time in times.items()})


def _kinds(names: Counter[str]) -> dict[str, float]:
    kinds = {kind: sum(names[name] for name in members) for kind, members in KINDS.items()}
    return kinds | {"other": names.total() - sum(kinds.values())}
