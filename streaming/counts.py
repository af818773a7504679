"""What a process counts: plain numbers, so that counting costs next to nothing. `metrics.py` shows them to Prometheus.

They only grow. All on the hub's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

#: Upper bounds of times in seconds: of a standstill of the hub; from an `append` to its `send`; to a first text.
GAP_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DELAY_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
FIRST_TEXT_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
#: What turns something away on the live path: settings, in lower case and without their prefix, and other rules. Each
#: refusal is counted once, by whoever decides it.
REFUSALS = (
    "drain_timeout", "inbound_rate", "ingest_token", "log_bytes", "max_connections", "max_connections_per_ip",
    "max_inbound", "max_message", "max_streams", "max_subscriptions", "origins", "producer_grace", "producer_timeout",
    "bad_frame", "bad_record", "chatter", "close_1002", "close_1003", "close_1007", "close_1008", "draining",
    "forbidden", "ingest_record", "meta", "named_producers", "open_messages", "open_parts", "unknown_stream",
)  # fmt: skip
#: Settings that refuse pages, cut them or commit them early.
PAGE_LIMITS = (
    "backend_timeout", "drain_timeout", "flush_timeout", "max_page_records", "max_pages", "max_precommit", "max_record",
    "record_timeout", "render_wait",
)  # fmt: skip
#: Why we closed a live connection.
CLOSURES = ("no_heartbeat", "rate", "restart", "slow")


class Buckets:
    """How often a time fell between which bounds.

    Args:
        bounds: upper ones, rising; what is larger than the last falls into one bucket more.

    Attributes:
        counts: for each bucket.
        total: the sum of all times, in seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Counts:
    """What the live path of one app counts in one process.

    Attributes:
        refused: what a limit or a rule turned away, by its name, one of REFUSALS.
        resets: cursors that could not be resumed, by reason.
        closed: connections that we closed, by why, one of CLOSURES.
        ended: messages, by the status they ended with.
        messages, bytes: sent, on all carriers.
        tails: messages that a socket did not take whole at once.
        flushes: of streams.
        events: put into streams.
        dropped: events that left a log because of its bounds.
        tokens: pieces of text that producers appended; counted when they are flushed.
        runs: of text that the pieces were joined to.
        text: code points put into streams.
        replayed: code points of text sent to those who were catching up.
        ingested: records that came over HTTP and were applied.
        forgotten: streams, after the TTL.
        unfolding: connections of clients that can't fold deltas.
        cancelled_unwatched: messages cancelled because nobody watched.
        delays: from the first `append` since a flush to the last `send` of what was flushed.
        first_texts: from a message's start to its first text.
    """

    refused: Counter[str] = field(default_factory=Counter)
    resets: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    bytes: int = 0
    tails: int = 0
    flushes: int = 0
    events: int = 0
    dropped: int = 0
    tokens: int = 0
    runs: int = 0
    text: int = 0
    replayed: int = 0
    ingested: int = 0
    forgotten: int = 0
    unfolding: int = 0
    cancelled_unwatched: int = 0
    delays: Buckets = field(default_factory=lambda: Buckets(DELAY_BOUNDS))
    first_texts: Buckets = field(default_factory=lambda: Buckets(FIRST_TEXT_BOUNDS))


@dataclass(slots=True)
class PageCounts:
    """What the page path of one app counts in one process.

    Attributes:
        outcomes: pages, by how they ended.
        limits: pages that a limit refused, cut or committed early, by its name, one of PAGE_LIMITS.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
