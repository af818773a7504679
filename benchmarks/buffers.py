"""Shows what output and input buffers cost: memory kept after a burst, joining output, and a page against Flask's own.

Three tables.

"Retention": many pages at once read a record of 1 MiB each from a backend process. Then they wait for more, and then
they are gone. No buffer may be lent while all wait, and those kept idle are bounded by max(1, max_pool) * chunk_size.
Resident memory is read as it is, after the C library was told to return free memory ("trimmed"), and after a garbage
collection too ("collected"): what pages leave there between the last two is freed late. Growth from the first burst to
the second would be a leak. What open pages keep is their state.

"Writer": processor time to turn a page's pieces into chunks. "joined" is the product's: pieces are joined and encoded a
step at a time. "pooled" fills one reusable bytearray piece by piece, as one would in Rust or C. "held" is the memory at
the peak beyond the pieces themselves. In the paced row a client process takes 8 MiB/s: that client is the bottleneck.

"Whole page": processor time of the process for a page of 220 KB, through the pipeline and by Flask's `render_template`,
taken turn by turn. "again" is render_template once more: the distance of its ratio from 1 is the machine's noise. The
rows below it say where the difference goes. No load generator takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gevent.event import Event

from benchmarks.measure import median, p95
from benchmarks.report import Progress, command_line, grouped_bars, machine, plot, save, size
from benchmarks.retention import Retention, measure_retention, retention_table
from benchmarks.whole_page import (
    GOAL_RATIO,
    KINDS,
    REQUIRED_RATIO,
    PageSite,
    measure_page,
    page_ratios,
    page_table,
    parts_table,
    shell_state,
)
from benchmarks.writing import WORKLOADS, Writing, measure_writers, writers_table
from streaming import Resume, Start
from streaming.pages.response import stream_page


def first_byte() -> list[str]:
    """What happened while a page with a boundary was made, in order; the rest is only made once the shell was read."""
    site = PageSite("table")
    events: list[str] = []
    is_shell_read = Event()

    def records() -> Iterator[Any]:
        events.append("source: start")
        yield Start(shell_state())
        is_shell_read.wait()
        events.append("source: resume")
        yield Resume("waiting.html", "rows", site.rows)

    site.route("/first", lambda: stream_page("waiting.html", records()))
    for chunk in site.chunks("/first"):
        events.append(f"client: chunk of {len(chunk)} bytes")
        is_shell_read.set()
    site.close()
    assert [event.split(" of")[0] for event in events[:3]] == ["source: start", "client: chunk", "source: resume"]
    return events


def main() -> None:
    """Run it."""
    options = command_line(__doc__).parse_args()
    pages, writes, paced, turns = (50, 15, 4, 15) if options.quick else (200, 100, 16, 200)
    progress = Progress(2 + len(WORKLOADS) + 1 + len(KINDS))
    moments, bound, side = measure_retention(pages, progress)
    writers = measure_writers(writes, paced, progress)
    kinds = {}
    for kind, description in KINDS.items():
        progress.step(f"whole page, {description}")
        kinds[kind] = measure_page(kind, turns)
    events = first_byte()
    progress.end()
    print(f"buffers{' (quick: too few repetitions for figures to quote)' if options.quick else ''}")
    print(machine())
    print(retention_table(moments, bound))
    is_bounded = all(one.idle_bytes <= bound for one in moments)
    grown, kept = moments[4].collected - moments[2].collected, moments[4].trimmed - moments[4].collected
    print(
        f"Bound kept: {'yes' if is_bounded else 'NO'}; from the first burst to the second {size(grown)} more are kept."
    )
    print(f"In pages that are closed but wait for a garbage collection: {size(kept)}.")
    print(f"Bottleneck of the bursts: {side}.")
    print(writers_table(writers))
    for kind, (cpu, length) in kinds.items():
        print(page_table(kind, cpu, length))
        print(parts_table(kind, cpu))
    print("\nFirst byte of a page with a boundary, in order: " + "; ".join(events))
    ratios = {kind: page_ratios(cpu) for kind, (cpu, _) in kinds.items()}
    document = {
        "is_quick": options.quick,
        "retention": {"bound": bound, "bottleneck": side, "moments": [asdict(one) for one in moments]},
        "writers": {
            workload: {
                name: {"cpu_median_s": median(one.cpu), "cpu_p95_s": p95(one.cpu), "held": one.held}
                for name, one in writings.items()
            }
            for workload, writings in writers.items()
        },
        "pages": {
            kind: {
                "bytes": length,
                "ratios": ratios[kind],
                "cpu_median_s": {name: median(values) for name, values in cpu.items()},
            }
            for kind, (cpu, length) in kinds.items()
        },
        "first_byte": events,
    }
    save("buffers", document)
    draw(writers, ratios, moments, bound)


def draw(
    writers: Mapping[str, Mapping[str, Writing]],
    ratios: Mapping[str, Mapping[str, float]],
    moments: Sequence[Retention],
    bound: int,
) -> None:
    """Plot the three tables."""

    def retention(axis: Any) -> None:
        names = ["before", "1st burst\nopen", "1st burst\nclosed", "2nd burst\nopen", "2nd burst\nclosed"]
        idle = [one.idle_bytes / 1_024 for one in moments]
        grouped_bars(axis, "Receive buffers kept idle", "KiB", names, {"idle bytes": idle}, log=False)
        axis.axhline(bound / 1_024, color="tab:red", linestyle="--", label="bound")
        axis.legend(fontsize=8)

    def writing(axis: Any) -> None:
        series = {name: [median(one[name].cpu) * 1_000 for one in writers.values()] for name in ("pooled", "joined")}
        groups = [name.replace(", ", ",\n") for name in writers]
        unit = "CPU, milliseconds, median, log scale"
        grouped_bars(axis, "Making chunks of pieces (lower is better)", unit, groups, series)
        axis.tick_params(axis="x", labelsize=8)

    def page(axis: Any) -> None:
        names = list(next(iter(ratios.values())))
        series = {kind: [found[name] for name in names] for kind, found in ratios.items()}
        groups = [name.replace(" ", "\n") for name in names]
        unit = "CPU through render_template's"
        grouped_bars(axis, "A whole page of 220 KB (lower is better)", unit, groups, series, log=False)
        axis.axhline(REQUIRED_RATIO, color="tab:red", linestyle="--", label=f"required {REQUIRED_RATIO}")
        axis.axhline(GOAL_RATIO, color="tab:green", linestyle="--", label=f"goal {GOAL_RATIO}")
        axis.tick_params(axis="x", labelsize=8)
        axis.legend(fontsize=8, ncols=2)

    plot("buffers", "Buffers: memory kept, cost of output, cost of the page pipeline", [retention, writing, page])


if __name__ == "__main__":
    main()
