"""What `/metrics` shows, with prometheus-client (docs/operations.md, "Metrics").

Whoever does the work counts in plain numbers (`counts.py`); a `Reporter` puts what has been added since its last report
into Prometheus' metrics. So counting costs nothing, and a report the same however much was counted.

The metrics are of the process, in the library's own registry, beside those that the app has there. Several worker
processes share theirs through files, in the library's multiprocess mode, if PROMETHEUS_MULTIPROC_DIR is set before the
library is imported, as gunicorn.conf.py does. Then each process reports once a second, and any of them can answer for
all.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import gevent
from gevent.threadpool import ThreadPool
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from pool.locks import mend_locks
from pool.threads import SWITCH_INTERVAL

from .counts import (
    CLOSURES,
    DELAY_BOUNDS,
    FIRST_TEXT_BOUNDS,
    GAP_BOUNDS,
    PAGE_LIMITS,
    REFUSALS,
    Buckets,
    Counts,
)
from .live.hub import Hub
from .live.producer import STATUSES
from .state import AppState, Shared
from .turns import breathe, pulse

log = logging.getLogger("streaming.server")

#: Seconds between two reports of a process whose metrics others show.
REPORT_INTERVAL = 1.0
#: Streams that are looked at between two chances for others.
SLICE = 200
#: Whether other processes show this one's metrics; the library looks when it is imported.
IS_SHARED = "PROMETHEUS_MULTIPROC_DIR" in os.environ


class Distribution(Histogram):
    """A histogram that takes what was counted elsewhere."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add to each bucket, the last being that of everything above the bounds; `total` is the sum of the values."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        if total:
            self._sum.inc(total)


def _known(metric: Any, values: Iterable[str]) -> Any:
    """Show these values of a metric's label from the start, so that the first count is seen as a change."""
    for value in values:
        metric.labels(value)
    return metric


def _gauge(name: str, text: str, label: str = "", known: Iterable[str] = ()) -> Gauge:
    """A number of this moment; that of several processes is their sum."""
    gauge: Gauge = _known(Gauge(name, text, [label] if label else [], multiprocess_mode="livesum"), known)
    return gauge


def _counter(name: str, text: str, label: str, known: Iterable[str] = ()) -> Counter:
    """A counter with one label."""
    counter: Counter = _known(Counter(name, text, [label]), known)
    return counter


#: How pages end; what the types of `PageError` say, and the page itself.
OUTCOMES = (
    "abandoned", "backend_failed", "backend_timeout", "busy", "client_left", "client_slow", "complete", "cut",
    "no_template", "render_failed",
)  # fmt: skip
CARRIERS = ("ndjson", "sse", "websocket")
CONNECTIONS = _gauge("headrace_connections", "Open live connections.", "carrier", CARRIERS)
SUBSCRIBERS = _gauge(
    "headrace_subscribers",
    "Readers of streams: served at each flush (full), or now and then (background).",
    "mode",
    ("background", "full"),
)
STREAMS = _gauge("headrace_streams", "Streams, by whether a message is open.", "state", ("idle", "streaming"))
PRODUCERS = _gauge("headrace_producers", "Producers at work: greenlets of spawn, and bodies of ingest.")
OPEN_PAGES = _gauge("headrace_open_pages", "Pages between their request and their last byte.")
RENDER_SLOTS = _gauge("headrace_render_slots", "Workers of the render pool, by what they do.", "state")
RENDER_WAITING = _gauge("headrace_render_waiting", "Steps of pages that wait for a render worker.")
LONGEST_GAP = Gauge(
    "headrace_hub_gap_longest_seconds",
    "The longest time in the last minute that the hub did not look at its sockets; of the worst process.",
    multiprocess_mode="livemax",
)
GAPS = Distribution("headrace_hub_gap_seconds", "Standstills of the hub of a millisecond and more.", buckets=GAP_BOUNDS)
#: By attribute of `Counts`.
PLAIN = {
    "tokens": Counter("headrace_tokens", "Pieces of text that producers appended."),
    "runs": Counter("headrace_runs", "Runs of text they were joined to: tokens / runs is the coalescing ratio."),
    "text": Counter("headrace_text_chars", "Code points of text put into streams."),
    "replayed": Counter("headrace_text_replayed_chars", "Code points of text sent to readers that catch up."),
    "events": Counter("headrace_events", "Events put into streams."),
    "dropped": Counter("headrace_events_dropped", "Events that left a log because of its bounds."),
    "flushes": Counter("headrace_flushes", "Flushes of streams."),
    "messages": Counter("headrace_messages_sent", "Messages sent to live clients, on all carriers."),
    "bytes": Counter("headrace_sent_bytes", "Bytes sent to live clients."),
    "tails": Counter("headrace_tails", "Messages that a socket did not take whole at once."),
    "ingested": Counter("headrace_ingested_records", "Records of producers outside the process that were applied."),
    "forgotten": Counter("headrace_streams_forgotten", "Streams that were forgotten, since nobody used them."),
    "unfolding": Counter("headrace_whole_text_connections", "Connections with deltas=0, which cost the square."),
    "cancelled_unwatched": Counter("headrace_cancelled_unwatched", "Messages cancelled because nobody watched."),
}
LABELLED = {
    "refused": _counter("headrace_refused", "What a limit or a rule of the live path turned away.", "limit", REFUSALS),
    "resets": _counter(
        "headrace_resets", "Cursors that could not be resumed.", "reason", ("ahead", "epoch", "invalid", "trimmed")
    ),
    "closed": _counter("headrace_closed", "Live connections that the server ended.", "reason", CLOSURES),
    "ended": _counter("headrace_messages_ended", "Messages of streams that ended.", "status", STATUSES),
}
SPREAD = {
    "delays": Distribution(
        "headrace_append_to_send_seconds",
        "From the first append since a flush to the end of its sending.",
        buckets=DELAY_BOUNDS,
    ),
    "first_texts": Distribution(
        "headrace_first_text_seconds", "From a message's start to its first text.", buckets=FIRST_TEXT_BOUNDS
    ),
}
#: By attribute of `PageCounts`.
PAGES = {
    "outcomes": _counter("headrace_pages", "Pages that have ended.", "outcome", OUTCOMES),
    "limits": _counter("headrace_page_limits", "Pages that met a limit.", "limit", PAGE_LIMITS),
}


class Reporter:
    """Reports what one app does in this process. Belongs to the hub's thread.

    What several apps of a process report adds up.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._told: dict[Any, Any] = {}
        self._greenlet: gevent.Greenlet | None = None
        mend_locks()  # those of the library are used by the hub, and by the thread that writes an answer
        # While that thread writes, for 5 ms, the hub would wait as long at each wake-up: with Python's own interval
        # nine in ten other requests take up to 6 ms, with ours 3.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))

    def start(self) -> None:
        """Report once a second, and when the process ends: what others show must be there. Idempotent."""
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)
            atexit.register(self.report, is_gentle=False)

    def _run(self) -> None:
        while True:
            try:
                self.report()
            except Exception:  # the next one may work: a full disk, say
                log.exception("what this process does could not be reported")
            gevent.sleep(REPORT_INTERVAL)

    def report(self, *, is_gentle: bool = True) -> None:
        """Report. Lets others run meanwhile if it is gentle."""
        hub, shared = self._state.made(Hub), self._state.made(Shared)
        if hub is not None:
            self._report_counts(hub.counts)
            self._report_live(hub, is_gentle=is_gentle)
        if shared is None:
            self._tell_all(RENDER_SLOTS, {"busy": 0, "free": self._state.settings.render_workers})
        else:
            self._report_pages(shared)
        beat = pulse()
        GAPS.add(*beat.take())
        LONGEST_GAP.set(beat.longest())

    def _report_counts(self, counts: Counts) -> None:
        for name, metric in PLAIN.items():
            self._tell(metric, getattr(counts, name))
        for name, metric in LABELLED.items():
            self._tell_all(metric, getattr(counts, name))
        for name, distribution in SPREAD.items():
            self._tell_times(distribution, getattr(counts, name))

    def _report_live(self, hub: Hub, *, is_gentle: bool) -> None:
        self._tell_all(CONNECTIONS, {carrier: hub.carriers[carrier] for carrier in CARRIERS})
        self._tell(PRODUCERS, len(hub.producers) + len(hub.ingests))
        streaming = full = background = 0
        channels = list(hub.channels.values())
        for number, channel in enumerate(channels):
            streaming += bool(channel.stream.open_messages)
            full += len(channel.followers)
            background += len(channel.background)
            if number % SLICE == SLICE - 1 and is_gentle:
                breathe()
        self._tell_all(STREAMS, {"streaming": streaming, "idle": len(channels) - streaming})
        self._tell_all(SUBSCRIBERS, {"full": full, "background": background})

    def _report_pages(self, shared: Shared) -> None:
        pool = shared.pool
        self._tell(OPEN_PAGES, pool.open_pages)
        self._tell(RENDER_WAITING, pool.waiting)
        self._tell_all(RENDER_SLOTS, {"busy": pool.busy, "free": pool.workers - pool.busy})
        for name, metric in PAGES.items():
            self._tell_all(metric, getattr(shared.counts, name))

    def _tell(self, metric: Any, value: float) -> None:
        """Add to a metric what has come since the last time."""
        difference = value - self._told.get(metric, 0)
        if difference:
            self._told[metric] = value
            metric.inc(difference)

    def _tell_all(self, metric: Any, values: dict[str, int]) -> None:
        for label, value in values.items():
            self._tell(metric.labels(label), value)

    def _tell_times(self, metric: Distribution, times: Buckets) -> None:
        counts, total = self._told.get(metric, ([0] * len(times.counts), 0.0))
        self._told[metric] = list(times.counts), times.total
        metric.add([now - then for now, then in zip(times.counts, counts, strict=True)], times.total - total)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Report, and write all metrics as text; with its content type. `accept` is the request's header.

        Written in a thread: the library counts descriptors and reads files, which takes milliseconds.
        """
        self.report()
        registry = REGISTRY
        if IS_SHARED:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        encode, content_type = choose_encoder(accept)
        return _writer(os.getpid()).apply(encode, (registry,)), content_type


@lru_cache(maxsize=1)
def _writer(pid: int) -> ThreadPool:
    """The thread of this process that writes answers: gevent's own are the app's too, and may all be waiting."""
    return ThreadPool(1)
