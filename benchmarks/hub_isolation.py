"""Shows what one large page costs everybody else on the hub, by where the page's steps run.

A page of two records (`start`, `resume`) with a state of 256 B, 64 KiB or 1 MiB each and about 500 bytes of output goes
through the real pipeline: ingest, pool, renderer, chunks. The records are in memory, in slices of 16 KiB.

How to read it. "gap" is the longest time that a timer of 250 us waited for the hub while one response was made; every
other connection waits as long. "hub CPU" is the processor time of the hub's thread, "CPU" that of the process and the
pool's workers. "4 at once" is the wall time for each of four responses asked for together. Medians, with the 95th
percentile where it is given. The variant "hub again" is the first one measured once more: how far its ratios are from
100 % is how far the machine's noise reaches. Variants take turns within each run; a ratio is taken inside one run.

Threads share the interpreter lock, which ujson holds for a whole record. So they are here for information; the required
figures are those of a pool of worker processes.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import gevent
from flask import Response

from benchmarks.measure import ProcessorClock, Ticker, children, median, p95
from benchmarks.report import Progress, command_line, grouped_bars, machine, ms, plot, save, table, verdict
from benchmarks.site import POOLS, Site
from streaming.pages.response import stream_page

SIZES = {"256 B": 256, "64 KiB": 65_536, "1 MiB": 1_048_576}
SLICE = 16_384
AT_ONCE = 4
ROUNDS = 6  # of each run; the machine's noise changes more slowly
AGAIN = "hub again"
# About 500 bytes with what the state fills in.
TEMPLATE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{{{ title }}}}</title></head>
<body><h1>{{{{ title }}}}</h1><p>{"Everything behind this is filled in when it is known. " * 3}</p>
{{% boundary "orders" %}}<p>{{{{ orders|length }}}} orders, the first from {{{{ orders[0].name }}}}.</p>
{{% endboundary %}}<footer>{"Prices are in euros, without tax. " * 3}</footer></body></html>"""


def state(name: str, wanted: int) -> dict[str, Any]:
    """A state of records as an API gives them, whose JSON has exactly `wanted` bytes."""
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"title": "Orders", name: rows, "pad": ""}
    used = len(json.dumps(found))
    for number in itertools.count():
        row = {"id": number, "name": f"Customer {number}", "amount": number * 0.5, "paid": True, "tags": ["a", "b"]}
        used += len(json.dumps(row)) + 2
        if used > wanted:
            break
        rows.append(row)
    found["pad"] = "x" * (wanted - len(json.dumps(found)))
    return found


def slices(wanted: int) -> list[bytes]:
    """The page's two records in slices of 16 KiB."""
    boundary = {"owner": "tiny.html", "name": "orders"}
    records = (
        {"type": "start", "version": 2, "state": state("known", wanted)},
        {"type": "resume", "boundary": boundary, "state": state("orders", wanted)},
    )
    raw = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    return [raw[at : at + SLICE] for at in range(0, len(raw), SLICE)]


@dataclass
class Samples:
    """What one variant took for one size, in seconds; in each list the responses of one run."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    hub_cpu: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    at_once: list[float] = field(default_factory=list)


MEASURES = {
    "wall": "wall",
    "cpu": "CPU",
    "hub_cpu": "hub CPU",
    "gap": "gap",
    "at_once": f"{AT_ONCE} at once",
}
Results = dict[tuple[str, str], list[Samples]]  # by variant and size; one entry per run


class Measurement:
    """Measures the variants; `run` once per rotation."""

    def __init__(self, pools: Sequence[str], workers: int, warm_ups: int, responses: int) -> None:
        self.variants = [*pools, AGAIN]
        self._warm_ups = warm_ups
        self._responses = responses
        self._sites = {pool: _site(pool, workers) for pool in pools}
        self.expected = {size: self._sites[pools[0]].get(f"/{wanted}") for size, wanted in SIZES.items()}
        self.results: Results = defaultdict(list)

    def run(self, number: int, progress: Progress) -> None:
        """Measure every size with every variant, in rounds that begin with another variant each time."""
        for size in SIZES:
            progress.step(f"run {number + 1}, {size}")
            for variant in self.variants:
                self.results[variant, size].append(Samples())
            for turn in range(number, number + ROUNDS):
                first = turn % len(self.variants)
                for variant in self.variants[first:] + self.variants[:first]:
                    self._measure(variant, size, self.results[variant, size][-1])

    def close(self) -> None:
        """End the pools."""
        for site in self._sites.values():
            site.close()

    def _measure(self, variant: str, size: str, samples: Samples) -> None:
        """Measure one round of responses, after its share of the warm-ups."""
        respond = partial(self._respond, variant, size)
        gc.collect()  # what the last variant has left is not to be paid by this one
        for _ in range(math.ceil(self._warm_ups / ROUNDS)):
            respond()
        responses = self._responses // ROUNDS
        clock = ProcessorClock(children())
        for _ in range(responses):
            wall, cpu, hub_cpu = perf_counter(), clock(), thread_time()
            respond()
            samples.hub_cpu.append(thread_time() - hub_cpu)
            samples.cpu.append(clock() - cpu)
            samples.wall.append(perf_counter() - wall)
        for _ in range(math.ceil(responses / AT_ONCE)):
            wall = perf_counter()
            gevent.joinall([gevent.spawn(respond) for _ in range(AT_ONCE)], raise_error=True)
            samples.at_once.append((perf_counter() - wall) / AT_ONCE)
        ticker = Ticker()
        samples.gap += (ticker.longest_gap(respond) for _ in range(responses))
        ticker.close()

    def _respond(self, variant: str, size: str) -> None:
        body = self._sites["hub" if variant == AGAIN else variant].get(f"/{SIZES[size]}")
        assert body == self.expected[size], f"{size}: the output is not that of the first variant"


def _site(pool: str, workers: int) -> Site:
    site = Site({"tiny.html": TEMPLATE}, pool, workers)
    for wanted in SIZES.values():
        site.route(f"/{wanted}", partial(_view, slices(wanted)))
    return site


def _view(records: list[bytes]) -> Response:
    return stream_page("tiny.html", iter(records))


# -- showing it


def pooled(results: Results, variant: str, size: str, measure: str) -> list[float]:
    """The samples of all runs."""
    return [value for run in results[variant, size] for value in getattr(run, measure)]


def ratios(results: Results, variant: str, size: str, measure: str) -> list[float]:
    """The variant's median through the hub's, for each run."""
    pairs = zip(results[variant, size], results["hub", size], strict=True)
    return [median(getattr(run, measure)) / median(getattr(base, measure)) for run, base in pairs]


def figures_table(results: Results, variants: Sequence[str]) -> str:
    """Every measure of every variant and size."""
    headers = ["state", "variant"]
    for measure, title in MEASURES.items():
        headers += [f"{title} ms", "p95"] if measure in ("wall", "gap") else [f"{title} ms"]
    rows = []
    for size in SIZES:
        for variant in variants:
            row = [size, variant]
            for measure in MEASURES:
                values = pooled(results, variant, size, measure)
                row += [ms(median(values)), ms(p95(values))] if measure in ("wall", "gap") else [ms(median(values))]
            rows.append(row)
    return table("Medians for one response", headers, rows)


def ratios_table(results: Results, variants: Sequence[str]) -> str:
    """Every variant against the hub: the median of the runs' ratios, with the least and the largest."""
    rows = []
    for size in SIZES:
        for variant in variants[1:]:
            row = [size, variant]
            for measure in MEASURES:
                found = ratios(results, variant, size, measure)
                row.append(f"{median(found):.1%} ({min(found):.1%} to {max(found):.1%})")
            rows.append(row)
    return table("In per cent of the hub's, with the range of the runs", ["state", "variant", *MEASURES.values()], rows)


@dataclass(frozen=True)
class Bound:
    """A figure that is required of a pool of processes, at 1 MiB and against the hub."""

    title: str
    measure: str
    required: float | None
    goal: float
    reference: str


BOUNDS = (
    Bound("longest hub gap", "gap", 0.10, 0.03, "6,148 to 167 us (2.7 %)"),
    Bound("hub CPU", "hub_cpu", 0.15, 0.05, "11,950 to 379 us (3.2 %)"),
    Bound("wall", "wall", 1.25, 1.0, "-45 %"),
    Bound("wall, four at once", "at_once", None, 1.0, ""),
)


def bounds_table(results: Results, pools: Sequence[str]) -> str:
    """What is required, what was found, for each pool."""
    rows = []
    for pool, bound in itertools.product(pools[1:], BOUNDS):
        before, after = (median(pooled(results, name, "1 MiB", bound.measure)) for name in ("hub", pool))
        found = median(ratios(results, pool, "1 MiB", bound.measure))
        judged = verdict(found, bound.required, bound.goal) if pool == "processes" else "not applicable: threads"
        required = "" if bound.required is None else f"<= {bound.required:.0%}"
        change = f"{ms(before)} to {ms(after)} ms"
        rows.append(
            [bound.title, pool, bound.reference, change, f"{found:.1%}", required, f"<= {bound.goal:.0%}", judged]
        )
    for pool in pools[1:]:
        tiny, large = (median(pooled(results, pool, size, "gap")) for size in ("256 B", "1 MiB"))
        judged = verdict(large / tiny, None, 2.0) if pool == "processes" else "not applicable: threads"
        change = f"{ms(tiny)} to {ms(large)} ms"
        rows.append(["gap, 1 MiB through 256 B", pool, "", change, f"{large / tiny:.1f} x", "", "<= 2 x", judged])
    headers = ["at 1 MiB, off the hub / on it", "pool", "reference", "here", "ratio", "required", "goal", "verdict"]
    return table("Required of a pool of processes", headers, rows)


def draw(results: Results, variants: Sequence[str]) -> None:
    """Plot the four measures by size and variant."""

    def panel(measure: str, title: str, axis: Any) -> None:
        series = {
            variant: [median(pooled(results, variant, size, measure)) * 1_000 for size in SIZES] for variant in variants
        }
        grouped_bars(axis, title, "milliseconds, median, log scale", list(SIZES), series)
        axis.set_xlabel("state of each of the two records")

    titles = {
        "gap": "Longest gap of the hub",
        "hub_cpu": "Processor time of the hub's thread",
        "wall": "Wall time of a response",
        "at_once": "Wall time each, four at once",
    }
    plot(
        "hub_isolation",
        "One page of two records: what it costs the hub, by where its steps run (lower is better)",
        [partial(panel, measure, title) for measure, title in titles.items()],
    )


def main() -> None:
    """Run it."""
    parser = command_line(__doc__)
    parser.add_argument("--pools", default=",".join(POOLS), help=f"which to compare, hub first (of {', '.join(POOLS)})")
    parser.add_argument("--workers", type=int, default=2, help="steps that a pool runs at once (2)")
    options = parser.parse_args()
    pools = options.pools.split(",")
    if pools[0] != "hub" or not set(pools) <= set(POOLS):
        parser.error(f"--pools must begin with hub and name pools of {', '.join(POOLS)}")
    runs, warm_ups, responses = (2, 6, 12) if options.quick else (3, 40, 180)
    measurement = Measurement(pools, options.workers, warm_ups, responses)
    progress = Progress(runs * len(SIZES))
    for number in range(runs):
        measurement.run(number, progress)
    progress.end()
    measurement.close()
    show(measurement, pools, options.quick)


def show(measurement: Measurement, pools: Sequence[str], is_quick: bool) -> None:
    """Print the tables, write the files."""
    results, variants = measurement.results, measurement.variants
    print(f"hub_isolation{' (quick: too few repetitions for figures to quote)' if is_quick else ''}")
    print(machine())
    sizes = ", ".join(str(len(body)) for body in measurement.expected.values())
    print(f"The output has {sizes} bytes; it was the same in all variants. Load generator: none, all in one process.")
    print(figures_table(results, variants))
    print(ratios_table(results, variants))
    print(bounds_table(results, pools))
    if "processes" not in pools:
        print("No pool of processes was measured: what is required does not apply to this run.")
    document = {
        f"{variant}, {size}": {
            measure: {
                "median_s": median(values := pooled(results, variant, size, measure)),
                "p95_s": p95(values),
                "ratio_to_hub_by_run": ratios(results, variant, size, measure),
            }
            for measure in MEASURES
        }
        for variant in variants
        for size in SIZES
    }
    save("hub_isolation", {"is_quick": is_quick, "figures": document})
    draw(results, variants)


if __name__ == "__main__":
    main()
