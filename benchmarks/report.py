"""What benchmarks show: the command line, progress, tables, and files in `benchmarks/results/`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def command_line(module_doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--quick`, whose help is the module's docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}",
        description=module_doc,
        epilog=f"Writes JSON and a plot to {RESULTS.parent.name}/{RESULTS.name}/.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions, under 60 s: shows that it runs")
    return parser


def machine() -> dict[str, Any]:
    """What the figures were taken on, and how busy it was."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Progress:
    """One line on stderr that says how far a run is."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        """Say what begins now; call it `total` times."""
        self._done += 1
        self._show(f"[{self._done}/{self._total}] {time.monotonic() - self._start:4.0f} s  {text}")

    def end(self) -> None:
        """Clear the line."""
        self._show("")

    @staticmethod
    def _show(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif text:
            print(text, file=sys.stderr, flush=True)


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A titled table in plain text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join([f"\n{title}", line(headers), "  ".join("-" * width for width in widths), *map(line, rows)])


def ms(seconds: float) -> str:
    """Seconds as milliseconds, with the digits that mean something."""
    value = seconds * 1_000
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def size(count: float) -> str:
    """Bytes in the unit that suits."""
    for unit in ("B", "KiB"):
        if abs(count) < 1_024:
            return f"{count:.3g} {unit}"
        count /= 1_024
    return f"{count:.4g} MiB"


def verdict(value: float, required: float | None, goal: float) -> str:
    """How a ratio that should be small compares with its two bounds; `required` None if there is none here."""
    if value <= goal:
        return "goal reached"
    if required is None:
        return "information"
    return "required reached" if value <= required else "MISSED"


def save(name: str, document: dict[str, Any]) -> None:
    """Write a benchmark's figures, with the machine's description, as `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "machine": machine(), **document}, indent=2) + "\n")
    print(f"wrote {path.relative_to(RESULTS.parent.parent)}", file=sys.stderr)


def plot(name: str, title: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw panels beside each other, four in a square, and write them as `results/NAME.png`.

    Args:
        panels: each draws into the matplotlib `Axes` that it is given.
    """
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 2 if len(panels) == 4 else len(panels)
    rows = len(panels) // columns
    figure, axes = pyplot.subplots(rows, columns, figsize=(6.2 * columns, 5.2 * rows), squeeze=False)
    for panel, axis in zip(panels, axes.flat, strict=True):
        panel(axis)
    figure.suptitle(title)
    figure.tight_layout()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=110)
    print(f"wrote {path.relative_to(RESULTS.parent.parent)}", file=sys.stderr)


def grouped_bars(
    axis: Any, title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, log: bool = True
) -> None:
    """Draw bars: one group per entry of `groups`, one bar in each per entry of `series`, with its value on top."""
    width = 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        places = [group + (index - (len(series) - 1) / 2) * width for group in range(len(groups))]
        bars = axis.bar(places, values, width, label=label)
        axis.bar_label(
            bars, [f"{value:.3g}" if value < 1_000 else f"{value:,.0f}" for value in values], fontsize=7, padding=2
        )
    axis.set_xticks(range(len(groups)), groups)
    if log:
        axis.set_yscale("log")
    axis.margins(y=0.15)
    axis.set_ylabel(unit)
    axis.set_title(title, fontsize=10)
    if len(series) > 1:
        axis.legend(fontsize=8)
