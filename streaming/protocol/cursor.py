"""What a subscriber has applied, as an object inside the process and as a token outside.

A `Cursor` is immutable and shared: all subscribers that have everything hold the same object, so "is it up to date?" is
an identity check, and what comes next for one is what comes next for all.

A token is `epoch.seq` and for each open part `.p~off` (docs/live-protocol.md, "Cursor token"). It comes back from
outside, so everything about it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .grammar import EPOCH

MAX_TOKEN = 2_048  # characters
MAX_NUMBER = 2**53 - 1  # what a browser can hold
_NUMBER = "(?:0|[1-9][0-9]*)"
_TOKEN = re.compile(rf"({EPOCH.pattern})\.({_NUMBER})((?:\.{_NUMBER}~{_NUMBER})*)", re.ASCII)


class Cursor:
    """A place in a stream. Compared by identity; never changed.

    Attributes:
        seq: the last event applied.
        offsets: for each part that is open at this place, the offset reached; a part not in it is at 0.
        run: number of the run to go on with, in the gap after `seq`.
        target: where catching up ends and live begins; None for one that is live already. It was the tip when the
            subscriber came.
        greeting: what the subscriber is told first: `fresh`, `resumed`, or the reason of a reset; empty once told.
    """

    __slots__ = ("greeting", "offsets", "run", "seq", "target")

    def __init__(
        self, seq: int, offsets: Mapping[int, int], run: int = 0, target: Cursor | None = None, greeting: str = ""
    ) -> None:
        self.seq = seq
        self.offsets = offsets
        self.run = run
        self.target = target
        self.greeting = greeting

    @property
    def reset(self) -> str:
        """The reason, if the subscriber is told to forget what it has; else empty."""
        return "" if self.greeting in ("fresh", "resumed") else self.greeting


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is of the grammar."""

    epoch: str
    seq: int
    offsets: dict[int, int]


def parse_token(text: str) -> Token | None:
    """Read a token; None if it is not of the grammar, names a part twice, or holds a number too large."""
    found = _TOKEN.fullmatch(text) if len(text) <= MAX_TOKEN else None
    if found is None:
        return None
    offsets: dict[int, int] = {}
    for pair in found[3].split(".")[1:]:
        p, off = (int(number) for number in pair.split("~"))
        if p in offsets or max(p, off) > MAX_NUMBER:
            return None
        offsets[p] = off
    seq = int(found[2])
    return None if seq > MAX_NUMBER else Token(found[1], seq, offsets)


def format_token(epoch: str, seq: int, offsets: Mapping[int, int]) -> str:
    """Write a token. Offsets that would make it too long are left out: that text is sent again, and dropped."""
    token = f"{epoch}.{seq}"
    for p, off in offsets.items():
        pair = f".{p}~{off}"
        if len(token) + len(pair) > MAX_TOKEN:
            break
        token += pair
    return token
