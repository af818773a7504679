"""What the process counts: plain numbers that only grow, or that go up and down. All on the hub."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """What the live path of one app counts in one process.

    Attributes:
        refused: what a limit or a rule turned away, by its name: `max_connections`, `inbound_rate`, `forbidden` …
        resets: cursors that could not be resumed, by reason.
        closed: connections closed by us, by why: `slow`, `no_heartbeat`, `restart` …
        messages, bytes: sent to sockets, of all carriers; WSGI iterables count what is pulled.
        tails: messages that a socket did not take whole at once.
        flushes: of streams.
        events, text: put into streams; events, and code points at the end of each message.
        usage: messages ended, by status.
        ingested: records applied that came over HTTP.
        logs_trimmed: streams forgotten after the TTL.
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
