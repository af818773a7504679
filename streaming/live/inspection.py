"""What the process does right now, sampled while somebody watches (docs/operations.md, "Looking inside").

A sample is an event of a stream like any other, so whoever comes late gets the last minutes, and whoever comes back
goes on where it was. That stream is the process's own (`Hub.internal`): it is not listed in its samples, nor counted as
one of the app's, and its events go past the broker, which might tell them to other processes.

The walk over all streams gives way each millisecond. What is remembered from one sample to the next is a few totals,
and one number for each stream, in its channel (`Channel.sampled`).
"""

from __future__ import annotations

import logging
import os
from heapq import heappush, heapreplace
from math import ceil
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, time
from typing import Any

import gevent

from ..counts import DELAY_BOUNDS, Counts
from ..protocol.jsontext import encode_json
from ..protocol.stream import Event
from ..state import AppState, Shared
from ..turns import breathe
from .channel import Channel
from .hub import INSPECT, Hub

log = logging.getLogger("streaming.live")

KIND = "inspect.sample"
#: Seconds between two samples, which are taken as a second begins, since standstills are kept by the second; and what
#: the first one covers at least.
PERIOD = 1.0
SHORTEST = 0.25
#: Samples that are still taken when nobody watches any more: a page that is loaded again has no hole in its plots.
LINGER = 3
#: Streams that a sample lists.
BUSIEST = 50
#: Streams that are looked at between two looks at the clock; seconds of work after which others get a turn. Only the
#: list of 100,000 streams is made in one go, which takes 3 ms.
SLICE = 200
PATIENCE = 0.001
#: Attributes of `Counts` that are told as so many a second.
RATES = ("tokens", "runs", "messages", "bytes", "events", "flushes")
#: How a delay is told that is longer than the last bound.
BEYOND = 2 * DELAY_BOUNDS[-1]


class Sampler:
    """Samples one app in this process. Belongs to the hub's thread."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._hub = state.of_process(Hub)
        self._began = process_start()
        self._greenlet: gevent.Greenlet | None = None

    @property
    def is_running(self) -> bool:
        """Whether samples are being taken."""
        return self._greenlet is not None and not self._greenlet.ready()

    def start(self) -> None:
        """Sample for as long as the stream is watched; not at all if it is not. Idempotent."""
        if self._is_watched and not self.is_running:
            self._greenlet = gevent.spawn(self._run)

    @property
    def _is_watched(self) -> bool:
        channel = self._hub.internal.get(INSPECT)
        return channel is not None and channel.is_watched

    def _run(self) -> None:
        last: Reading | None = None
        unwatched = 0
        while unwatched <= LINGER and self._hub.is_working:
            try:
                last = self._sample(last)
            except Exception:  # the next one may work
                log.exception("a sample of what the process does could not be taken")
            rest = PERIOD - monotonic() % PERIOD
            gevent.sleep(rest if rest > SHORTEST else rest + PERIOD)
            unwatched = 0 if self._is_watched else unwatched + 1

    def _sample(self, last: Reading | None) -> Reading:
        """Publish what has happened since the last reading, if there is one. Returns the new one."""
        reading = Reading(monotonic(), self._hub.counts)
        gap = self._hub.pulse.longest(2)  # of the second that has ended, and the few milliseconds since
        survey = Survey(self._hub)
        channel = self._hub.internal.get(INSPECT)
        if last is not None and channel is not None:
            sample = {**self._now(survey), **reading.since(last), "gap": round(gap, 4)}
            sample["busiest"] = survey.rows(reading.at - last.at)
            channel.stream.apply(Event(KIND, encode_json(sample)))
            channel.used_at = monotonic()
            self._hub.flusher.hurry(channel)
        return reading

    def _now(self, survey: Survey) -> dict[str, Any]:
        """What is the case at this moment, and what was counted since the start."""
        hub, counts = self._hub, self._hub.counts
        shared = self._state.made(Shared)  # asking for `shared` would make the pool
        pages = {"open": 0, "rendering": 0, "waiting": 0}
        if shared is not None:
            pool = shared.pool
            pages = {"open": pool.open_pages, "rendering": pool.busy, "waiting": pool.waiting}
        return {
            "time": round(time(), 3),
            "pid": os.getpid(),
            "uptime": round(clock_gettime(CLOCK_BOOTTIME) - self._began, 1),
            "connections": {carrier: hub.carriers[carrier] for carrier in ("websocket", "sse", "ndjson")},
            "streams": {"all": len(hub.channels), "streaming": survey.streaming},
            "subscribers": {"full": survey.full, "background": survey.background},
            "producers": len(hub.producers) + len(hub.ingests),
            "pages": pages,
            "resets": counts.resets.total(),
            "refused": counts.refused.total(),
            "slow": counts.closed["slow"],
        }


class Reading:
    """What is remembered until the next sample.

    Attributes:
        at: when it was taken.
        totals: of what is told as a rate, by name.
        delays: the buckets of `Counts.delays`.
    """

    __slots__ = ("at", "delays", "totals")

    def __init__(self, at: float, counts: Counts) -> None:
        self.at = at
        self.totals: dict[str, int] = {name: getattr(counts, name) for name in RATES}
        self.delays = list(counts.delays.counts)

    def since(self, last: Reading) -> dict[str, Any]:
        """What has happened since the last reading, as members of a sample."""
        seconds = self.at - last.at
        new = {name: total - last.totals[name] for name, total in self.totals.items()}
        delays = [now - then for now, then in zip(self.delays, last.delays, strict=True)]
        return {
            "seconds": round(seconds, 3),
            "rates": {name: round(count / seconds, 1) for name, count in new.items()},
            "coalescing": round(new["tokens"] / new["runs"], 2) if new["runs"] else None,
            "delay": {"p50": quantile(delays, 0.5), "p95": quantile(delays, 0.95)},
        }


class Survey:
    """One walk over all streams. Lets others run meanwhile, so what it finds is not all of one moment.

    Attributes:
        streaming: how many have an open message.
        full, background: subscribers, by how they are served.
    """

    def __init__(self, hub: Hub) -> None:
        self.streaming = self.full = self.background = 0
        #: The busiest so far, the least of them first. No two are alike, because of the number; older ones win.
        self._heap: list[tuple[bool, int, int, Channel]] = []
        channels = list(hub.channels.values())
        for start in range(0, len(channels), SLICE):
            self._look(channels, start)
            breathe(PATIENCE)

    def _look(self, channels: list[Channel], start: int) -> None:
        """Look at some streams. Nearly all of 100,000 are idle: for those it asks as little as can be."""
        heap = self._heap
        for number, channel in enumerate(channels[start : start + SLICE], start):
            stream = channel.stream
            is_streaming = bool(stream.open_messages)
            grown = stream.chars - channel.sampled
            if grown:
                channel.sampled = stream.chars
            if channel.followers:
                self.full += len(channel.followers)
            if channel.background:
                self.background += len(channel.background)
            if is_streaming:
                self.streaming += 1
            if len(heap) < BUSIEST:
                heappush(heap, (is_streaming, grown, -number, channel))
            elif (grown or is_streaming) and (is_streaming, grown) > heap[0][:2]:
                heapreplace(heap, (is_streaming, grown, -number, channel))

    def rows(self, seconds: float) -> list[dict[str, Any]]:
        """The busiest streams: those that are streaming first, then by what came in so many seconds."""
        return [
            {
                "sid": channel.stream.sid,
                "state": channel.stream.state,
                "head": channel.stream.head,
                "chars": channel.stream.chars,
                "rate": round(grown / seconds, 1),
                "full": len(channel.followers),
                "background": len(channel.background),
                "open": len(channel.stream.open_messages),
                "log": channel.stream.log.size,
            }
            for _, grown, _, channel in sorted(self._heap, reverse=True)
        ]


def quantile(counts: list[int], share: float) -> float | None:
    """The upper bound of the bucket of delays in which a share of them ends; None if there are none."""
    rank = ceil(share * sum(counts))
    for bound, count in zip((*DELAY_BOUNDS, BEYOND), counts, strict=True):
        rank -= count
        if rank <= 0 and count:
            return bound
    return None


def process_start() -> float:
    """When this process was started, in seconds since the machine was."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
