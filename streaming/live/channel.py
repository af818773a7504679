"""A stream in this process: the stream itself, its readers, its writers, and what was written since the last flush."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ..protocol.schedule import IDLE
from ..protocol.stream import Stream

if TYPE_CHECKING:
    from .producer import Message
    from .subscriber import Subscriber


class Writing(Protocol):
    """A part as its producer sees it.

    Attributes:
        p: its name on the wire.
        pending: code points appended since the last flush.
        held: half a surrogate pair that waits for the other half.
        length: code points that were flushed.
    """

    p: int
    pending: int
    held: str
    length: int


class Channel:
    """One stream of this process. Belongs to the hub's thread.

    Attributes:
        followers: subscribers that each flush serves.
        background: those that each background tick serves: in mode `activity`, or of a hidden page.
        producers: the messages that this process has open, by `mid`.
        outbox: runs appended since the last flush, in order.
        writing: the part whose run is the last in the outbox; `pieces` is that run.
        appended_at: when text first came that no flush has sent; 0 if none has.
        announced: the last event whose urgency has been seen to.
        tick, whole_tick: itself, in the schedules of background ticks and of whole texts.
        sampled: code points of its text at the last sample of `inspection.py`.
        used_at: when it was last written, or left by a subscriber.
        due, flushed_at: written by the schedule of flushes.
    """

    __slots__ = (
        "announced", "appended_at", "background", "due", "flushed_at", "followers", "outbox", "pieces", "producers",
        "sampled", "stream", "tick", "used_at", "whole_tick", "writing",
    )  # fmt: skip

    def __init__(self, stream: Stream, now: float) -> None:
        self.stream = stream
        self.followers: dict[Subscriber, None] = {}
        self.background: dict[Subscriber, None] = {}
        self.producers: dict[str, Message] = {}
        self.outbox: list[tuple[Writing, list[str]]] = []
        self.writing: Writing | None = None
        self.pieces: list[str] = []
        self.appended_at = 0.0
        self.announced = 0
        self.sampled = 0
        self.used_at = now
        self.tick = Tick(self)
        self.whole_tick: Tick | None = None
        self.due = IDLE
        self.flushed_at = float("-inf")

    @property
    def is_watched(self) -> bool:
        """It has a subscriber, whatever its mode."""
        return bool(self.followers or self.background)

    def add(self, writing: Writing, text: str) -> None:
        """Begin a run in the outbox."""
        if not self.appended_at:
            self.appended_at = monotonic()
        self.writing = writing
        self.pieces = [text]
        self.outbox.append((writing, self.pieces))

    def summary(self) -> tuple[str, int, int]:
        """State, head and code points, as `activity` frames tell them."""
        return self.stream.state, self.stream.head, self.stream.chars


class Tick:
    """A channel in another schedule than that of flushes: an item belongs to one schedule."""

    __slots__ = ("channel", "due", "flushed_at")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.due = IDLE
        self.flushed_at = 0.0
