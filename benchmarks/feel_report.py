"""The tables and plots of `feel`; see feel.py."""

from __future__ import annotations

from typing import Any

from benchmarks.feel_runs import (
    FAST,
    OURS,
    RATE,
    STREAMS,
    Background,
    Flood,
    Growth,
    Visible,
    gaps,
)
from benchmarks.measure import median, p95
from benchmarks.report import ms, table


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
