"""Memory kept after a burst of large records: a part of `buffers.py`, which says how to read it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import gevent

from benchmarks.measure import Process, process_cpu, resident_bytes, trim_memory
from benchmarks.report import Progress, size, table
from benchmarks.site import Site
from streaming import Backend
from streaming.pages.response import stream_page

MIB = 1_048_576


@dataclass(frozen=True)
class Retention:
    """What there was at one moment, in bytes."""

    moment: str
    lent: int
    idle_bytes: int
    resident: int
    trimmed: int
    collected: int


def measure_retention(pages: int, progress: Progress) -> tuple[list[Retention], int, str]:
    """Two bursts of `pages` pages; also the bound of idle bytes, and which side was the bottleneck."""
    site = Site({"blob.html": "{{ blob|length }}{% boundary 'rest' %}{% endboundary %}"})
    backend = Process("backend.py")
    url = f"http://127.0.0.1:{backend.port}/{MIB}"
    site.route("/blob", lambda: stream_page("blob.html", Backend(url)))
    _burst(site, 5)  # what is made once: imports, threads, the template
    moments = [_moment(site, "before")]
    start, own, other = perf_counter(), process_time(), process_cpu(backend.pid)
    for number in ("first", "second"):
        progress.step(f"retention, {number} burst of {pages} pages")
        bodies = _burst(site, pages, close=False)
        moments.append(_moment(site, f"{number} burst, {pages} pages open and waiting"))
        for body in bodies:
            body.close()
        del bodies
        gevent.sleep(0.1)
        moments.append(_moment(site, f"{number} burst, all pages closed"))
    wall = perf_counter() - start
    own, other = (process_time() - own) / wall, (process_cpu(backend.pid) - other) / wall
    backend.close()
    site.close()
    buffers = site.state.shared.buffers
    side = f"server {own:.0%} of one core, backend {other:.0%}: {'server' if own > other else 'backend'} the bottleneck"
    return moments, max(1, buffers.max_pool) * buffers.chunk_size, side


def _burst(site: Site, pages: int, *, close: bool = True) -> list[Any]:
    """Open pages at once, each up to its boundary; return their bodies."""
    jobs = [gevent.spawn(site.open, "/blob") for _ in range(pages)]
    bodies = [job.value for job in gevent.joinall(jobs, raise_error=True)]
    for body in bodies:
        assert int(next(iter(body))) > MIB - 100, "the record's text is nearly all of it"
        if close:
            body.close()
    return bodies


def _moment(site: Site, moment: str) -> Retention:
    buffers = site.state.shared.buffers
    resident = resident_bytes()
    trim_memory()
    trimmed = resident_bytes()
    gc.collect()
    trim_memory()
    return Retention(moment, buffers.lent, buffers.idle_bytes, resident, trimmed, resident_bytes())


def retention_table(moments: Sequence[Retention], bound: int) -> str:
    """The moments; resident memory as a difference to the first."""
    rows = []
    base = moments[0]
    for one in moments:
        change = [size(value - base.collected) for value in (one.resident, one.trimmed, one.collected)]
        rows.append([one.moment, str(one.lent), size(one.idle_bytes), *change])
    headers = ["moment", "buffers lent", "idle bytes", "resident, above before", "trimmed", "collected"]
    return table(f"Retention (idle bytes required: at most {size(bound)})", headers, rows)
