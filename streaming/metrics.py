"""What the process counts: plain numbers that only grow, or that go up and down. All on the hub."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """What the live path of one app counts in one process.

    Attributes:
        refused: what a limit or a rule turned away, by its name: `max_connections`, `inbound_rate`, `frame_forbidden` …
        resets: cursors that could not be resumed, by reason.
        closed: connections that we closed, by why: `slow`, `no_heartbeat`, `restart`.
        ended: messages, by the status they ended with.
        messages, bytes: sent, on all carriers.
        tails: messages that a socket did not take whole at once.
        flushes: of streams.
        events: put into streams.
        text: code points, counted at the end of each message.
        ingested: records that came over HTTP and were applied.
        forgotten: streams, after the TTL.
        unfolding: connections of clients that can't fold deltas.
        cancelled_unwatched: messages cancelled because nobody watched.
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
    text: int = 0
    ingested: int = 0
    forgotten: int = 0
    unfolding: int = 0
    cancelled_unwatched: int = 0
