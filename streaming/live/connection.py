"""What goes to one client: its subscribers, and one message after the other made of what is due.

A message is made when the client can take it, from where its subscribers' cursors are at that moment. So nothing is
queued for a client: what is kept is frames that answer it (a few, since it is not read from while they wait), and on a
socket the tail of one message (`sockets.py`).

All of it runs on the hub's thread and never waits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..protocol import frames
from ..protocol.cut import Cut
from ..protocol.frames import MAX_MESSAGE, Frame
from .subscriber import CUMULATIVE_INTERVAL, Subscriber
from .transports.carrier import Carrier

if TYPE_CHECKING:
    from .hub import Hub

#: Share of the background interval that must lie between two `activity` frames; less than 1, since ticks jitter.
ACTIVITY_SHARE = 0.9


class Connection:
    """One client, on any carrier. `sockets.py` and `pulled.py` say how its messages leave.

    Args:
        carrier: how frames look.
        address: the client's, for the limit on connections of one.
        deltas: False: the client can't fold deltas (docs/live-protocol.md, "Clients that can't fold deltas").
        until_idle: end when the stream has had a message, none is open, and all of it was sent.

    Attributes:
        subscribers: by `sid`.
        due: those with something to send.
        is_blocked: it can't take a message now; it tells the flusher when it can.
        is_hidden: nobody looks: its subscribers are served on background ticks.
        is_direct: all that can be due is the next cut of its one stream; the flusher then sends it at once.
        is_ending: it will be closed when what is due is out.
        is_closed: nothing goes in or out any more.
        sent_at: when something was last sent.
    """

    __slots__ = (
        "_activity_at", "_farewell", "_opening", "_replies", "address", "carrier", "deltas", "due", "hub", "is_blocked",
        "is_closed", "is_direct", "is_ending", "is_hidden", "sent_at", "subscribers", "until_idle",
    )  # fmt: skip

    def __init__(
        self, hub: Hub, carrier: Carrier, address: str, *, deltas: bool = True, until_idle: bool = False
    ) -> None:
        self.hub = hub
        self.carrier = carrier
        self.address = address
        self.deltas = deltas
        self.until_idle = until_idle
        self.subscribers: dict[str, Subscriber] = {}
        self.due: list[Subscriber] = []
        self.is_blocked = False
        self.is_hidden = False
        self.is_ending = False
        self.is_closed = False
        self.is_direct = False
        self.sent_at = 0.0
        self._replies: deque[Frame] | None = None
        self._opening = carrier.opening
        self._farewell: bytes | None = None
        self._activity_at = 0.0

    # -- what carriers do differently

    @property
    def is_asking(self) -> bool:
        """The app is at work on something that its client asked for."""
        return False

    def deliver(self, now: float) -> bool:
        """Send one message of what is due. The flusher calls it. True if there is more, and the client can take it."""
        raise NotImplementedError

    def write(self, data: bytes, now: float) -> None:
        """Send a message. Only where `is_direct`, so only on sockets."""
        raise NotImplementedError

    def cut(self) -> None:
        """Close at once, without a word. Idempotent; may be called from the hub."""
        raise NotImplementedError

    # -- what is to be sent

    def reply(self, frame: Frame) -> None:
        """Send a frame that answers the client, before what its streams have."""
        if self._replies is None:
            self._replies = deque()
        self._replies.append(frame)
        self.wake()

    def wake(self) -> None:
        """Tell the flusher, if the client can take something."""
        self.is_direct = False
        if not self.is_blocked and not self.is_closed:
            self.hub.flusher.ready(self)

    def end(self, farewell: bytes, *, at_once: bool = False) -> None:
        """Close, with these last bytes.

        Args:
            at_once: before what is due; else behind it.
        """
        if self.is_ending or self.is_closed:
            return
        self.is_ending = True
        self._farewell = farewell
        if at_once:
            self._drop()
        self.wake()

    def _drop(self) -> None:
        """Send nothing more of what is due."""
        self.due.clear()
        self._replies = None
        for subscriber in self.subscribers.values():
            subscriber.is_due = True  # so that no flush puts it in the list again

    @property
    def has_more(self) -> bool:
        """Something is to be sent."""
        return bool(self.due or self._replies or self._opening or self._farewell is not None)

    def bye(self, reason: str, retry_ms: int, code: int) -> bytes:
        """The last bytes for a client that may come back after `retry_ms`; a WebSocket is closed with `code`."""
        item = self.carrier.bye(frames.frame("bye", reason=reason, retry_ms=retry_ms), retry_ms)
        return self.carrier.wrap([item]) + self.carrier.ending(code, reason)

    def compose(self, now: float) -> bytes | None:
        """The next message; None when nothing is due. The cursors of what is in it have moved."""
        data = self._compose(now)
        if not data and self._farewell is not None and not self.has_due:
            data, self._farewell = self._farewell, None
        return data or None

    @property
    def has_due(self) -> bool:
        """Frames are to be sent before the farewell."""
        return bool(self.due or self._replies)

    def _compose(self, now: float) -> bytes:
        batch = _Batch()
        if self._opening:
            batch.add(self._opening)
            self._opening = b""
        if self._take_replies(batch) and self._take_summaries(batch, now):
            self._take_cuts(batch, now)
        return self.carrier.wrap(batch.items) if batch.items else b""

    def _take_replies(self, batch: _Batch) -> bool:
        """False if the message is full; so the others."""
        while self._replies:
            if not batch.add(self.carrier.frame(self._replies[0])):
                return False
            self._replies.popleft()
        self._replies = None
        return True

    def _take_summaries(self, batch: _Batch, now: float) -> bool:
        """Urgent events, and one `activity` frame, for those who do not follow."""
        idle = [subscriber for subscriber in self.due if not subscriber.follows]
        if not idle:
            return True
        for subscriber in idle:
            stream = subscriber.channel.stream
            for entry in stream.urgent_after(subscriber.notified):
                if not batch.add(self.carrier.frame(frames.notify_frame(stream.sid, entry))):
                    return False
                subscriber.notified = entry.seq
            subscriber.notified = stream.head
        changed = {subscriber: subscriber.channel.summary() for subscriber in idle}
        changed = {subscriber: summary for subscriber, summary in changed.items() if summary != subscriber.seen}
        is_time = now >= self._activity_at
        if changed and is_time:
            items = [frames.activity_item(subscriber.channel.stream.sid, *new) for subscriber, new in changed.items()]
            if not batch.add(self.carrier.frame(frames.activity_frame(items))):
                return False
            self._activity_at = now + ACTIVITY_SHARE * self.hub.settings.background_interval
        for subscriber in idle:
            subscriber.is_due = False
            if is_time:
                subscriber.seen = changed.get(subscriber, subscriber.seen)
            elif subscriber in changed:
                self.hub.flusher.mark_background(subscriber.channel)
        self.due = [subscriber for subscriber in self.due if subscriber.follows]
        return True

    def _take_cuts(self, batch: _Batch, now: float) -> None:
        """What each stream has, as long as it fits."""
        while self.due:
            subscriber = self.due[0]
            stream = subscriber.channel.stream
            cut = stream.cut(subscriber.cursor) if self.deltas else self._cumulative(subscriber, now)
            if cut.frames and not batch.add(self.carrier.item(cut, stream.epoch)):
                return
            is_current = cut.after is stream.tip()
            if self.until_idle and is_current and stream.is_finished and not subscriber.channel.outbox:
                done = frames.frame("done", sid=stream.sid, seq=stream.head)
                is_told = batch.add(self.carrier.frame(done, stream.token(cut.after)))
                self._move(subscriber, cut, is_done=is_told)
                if is_told:  # nothing comes behind it, not even a goodbye that was on its way
                    self.is_ending, self._farewell = True, self.carrier.ending(1000, "done")
                    self._drop()
                    self.wake()
                return
            self._move(subscriber, cut, is_done=is_current or not cut.frames)
            if not self.deltas and not is_current:
                self.hub.flusher.mark_whole(subscriber.channel)  # text whose turn has not come
            elif not is_current and cut.frames and self.deltas:
                self.due.append(self.due.pop(0))  # the message is full: the others go before the rest
                return

    def _cumulative(self, subscriber: Subscriber, now: float) -> Cut:
        with_text = now >= subscriber.text_at
        cut = subscriber.channel.stream.cut_cumulative(subscriber.cursor, with_text=with_text)
        if any(frame.t == "cumulative" for frame in cut.frames):
            subscriber.text_at = now + CUMULATIVE_INTERVAL
        return cut

    def _move(self, subscriber: Subscriber, cut: Cut, *, is_done: bool) -> None:
        """The cut is on its way: the cursor is behind it."""
        if subscriber.cursor.target is not None:
            self.hub.counts.replayed += cut.text_size
        subscriber.cursor = cut.after
        self.hub.flusher.touched[subscriber.channel] = None
        if cut.reset:
            self.hub.counts.resets[cut.reset] += 1
        if is_done:
            subscriber.is_due = False
            del self.due[0]


class _Batch:
    """One message being put together."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self._size = 1

    def add(self, item: bytes) -> bool:
        """Add a frame, or several; False if the message would become too long. One alone always fits."""
        if self.items and self._size + len(item) + 1 > MAX_MESSAGE:
            return False
        self.items.append(item)
        self._size += len(item) + 1
        return True
