"""Producers outside the process: what they have open, what is remembered of them between their requests.

A producer is its body, and forgotten with it; unless it named itself. Then its messages stay open for
STREAMING_PRODUCER_GRACE after a body ends, and its last number is remembered for STREAMING_IDLE_TTL, so that a retry
that comes late is not applied twice. Of a stream, 64 named producers are remembered: one more, and the one that has
been away longest without an open message is forgotten; if there is none, the new one is refused. A stream that is
forgotten, or gets a new epoch, takes what was remembered with it.

All of it runs on the hub's thread, and nothing but `apply` switches: it may, behind the text that it has appended, as
every producer's `append` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import gevent

from ..errors import Refused
from ..protocol.ingest import (
    BadRecord,
    Delta,
    Event,
    IngestCommand,
    MessageEnd,
    MessageStart,
    PartEnd,
    PartStart,
)
from ..protocol.jsontext import decode_json
from .channel import Channel
from .hub import MAX_META, Hub
from .producer import Message, Part, Status, publish

if TYPE_CHECKING:
    from .ingest import Ingest

#: Named producers of one stream that are remembered.
MAX_NAMED = 64
#: What readers are told where a producer did not end its message.
LEFT = "the producer left its message open"
LOST = "the producer did not come back"
CANCELLED = "cancelled", "a message of this producer was cancelled"


class Draft:
    """A message that a producer has open, with its parts by number."""

    __slots__ = ("channel", "message", "parts")

    def __init__(self, channel: Channel, message: Message) -> None:
        self.channel = channel
        self.message = message
        self.parts: list[Part] = []


class RemoteProducer:
    """A producer outside the process.

    Attributes:
        name: what it calls itself; None for one that is forgotten with its body.
        ingest: its body that is being read.
        last: the id of the message that it started last.
        n: the number of the record applied last, if it has a name.
        epoch: of its stream, when its last body ended.
        is_cancelled: a message of it was cancelled while it was away; it is told so when it comes back.
        timer: ends its messages, and then forgets it, while it is away.
    """

    def __init__(self, hub: Hub, sid: str, name: str | None) -> None:
        self.hub = hub
        self._drafts: dict[str, Draft] = {}
        self.sid = sid
        self.name = name
        self.ingest: Ingest | None = None
        self.last: str | None = None
        self.n: int | None = None
        self.epoch = ""
        self.is_cancelled = False
        self.timer: gevent.Greenlet | None = None

    @property
    def has_open(self) -> bool:
        """It has a message open."""
        return any(draft.message.status is None for draft in self._drafts.values())

    def end_all(self, status: Status, error: str | None = None) -> None:
        """End its open messages."""
        drafts, self._drafts = self._drafts, {}
        for draft in drafts.values():
            draft.message.on_cancel = None
            draft.message.end(status, error)

    # -- records

    def apply(self, command: IngestCommand) -> bool:
        """Apply a command. False if a named producer's record was applied before.

        Raises:
            BadRecord: it does not fit to what is open.
            Refused: a limit does not allow it.
            MessageTooLong: it would pass STREAMING_MAX_MESSAGE; the message has ended.
        """
        if self.name is None:
            _APPLY[type(command)](self, command)
            return True
        if command.n is None:
            raise BadRecord('"n" is missing: a producer that names itself numbers its records')
        if self.n is not None and command.n <= self.n:
            return False
        # Before the record is applied: behind its text others get a turn, and the next body may have come with it.
        before, self.n = self.n, command.n
        try:
            _APPLY[type(command)](self, command)
        except Exception:
            self.n = before
            raise
        return True

    def _start_message(self, command: MessageStart) -> None:
        channel = self.hub.channel(self.sid)
        if command.mid is not None and channel.stream.has_used(command.mid):
            raise BadRecord(f"the message id {command.mid} was used before in this stream")
        message = Message(self.hub, self.sid, command.role, command.meta, command.mid)
        message.on_cancel = self._cancelled
        self._drafts[message.mid] = Draft(channel, message)
        self.last = message.mid

    def _draft(self, mid: str | None) -> Draft:
        if mid is None:
            mid = self.last
        if mid is None:
            raise BadRecord("no message was started before this record, and it names none")
        draft = self._drafts.get(mid)
        if draft is None or draft.message.status is not None:
            raise BadRecord(f"the message {mid} is not open here: it has ended, or this producer never started it")
        return draft

    def _start_part(self, command: PartStart) -> None:
        draft = self._draft(command.mid)
        if command.part < len(draft.parts):
            raise BadRecord(f"part {command.part} was started before")
        self._next_part(draft, command.part, command.kind, command.meta)

    def _next_part(self, draft: Draft, number: int, kind: str, meta: bytes) -> Part:
        if number != len(draft.parts):
            raise BadRecord(f"part {number} is out of order: the next one is {len(draft.parts)}")
        part = Part(self.hub, draft.channel, draft.message, kind, meta)
        part.start()
        draft.parts.append(part)
        return part

    def _append(self, command: Delta) -> None:
        draft = self._draft(command.mid)
        if command.part >= len(draft.parts):
            part = self._next_part(draft, command.part, command.kind or "text", b"{}")
        else:
            part = self._open_part(draft, command.part)
            if command.kind not in (None, part.kind):
                raise BadRecord(f'"kind" is "{command.kind}", but part {command.part} is of kind "{part.kind}"')
        part.append(command.s)

    def _end_part(self, command: PartEnd) -> None:
        draft = self._draft(command.mid)
        if command.part >= len(draft.parts):
            raise BadRecord(f"part {command.part} was never started")
        self._open_part(draft, command.part).end(command.s)

    @staticmethod
    def _open_part(draft: Draft, number: int) -> Part:
        part = draft.parts[number]
        if part.has_ended:
            raise BadRecord(f"part {number} has ended")
        return part

    def _publish(self, command: Event) -> None:
        limit = self.hub.settings.log_bytes
        if len(command.d) > limit:
            text = f"the event has {len(command.d)} bytes; a log holds {limit} (STREAMING_LOG_BYTES)"
            raise self.hub.refusal("too_large", text, "log_bytes")
        publish(self.hub, self.sid, command.k, command.d, urgent=command.urgent)

    def _end_message(self, command: MessageEnd) -> None:
        message = self._draft(command.mid).message
        if command.usage is not None and len(command.usage) > MAX_META:
            raise self.hub.refusal("too_large", f"usage has at most {MAX_META} bytes", "meta")
        message.usage = None if command.usage is None else decode_json(command.usage)
        message.on_cancel = None
        del self._drafts[message.mid]
        message.end(cast(Status, command.status), command.error)

    # -- what happens to it

    def _cancelled(self) -> None:
        """Somebody pressed stop."""
        if self.ingest is not None:
            self.ingest.interrupt(*CANCELLED)
            return
        self.is_cancelled = True
        # Not now: the others may be about to be cancelled themselves.
        gevent.spawn(self._abort)

    def _abort(self) -> None:
        if self.ingest is None:
            self.end_all("aborted")

    def leave(self, reason: str) -> None:
        """Its body has ended. A named one may come back; of others, what is open ends with status `error`."""
        self.ingest = None
        if self.name is None:
            self.end_all("error", reason)
            return
        channel = self.hub.channels.get(self.sid)
        self.epoch = "" if channel is None else channel.stream.epoch
        named = self.hub.remote[self.sid]
        named[self.name] = named.pop(self.name)  # to the end: who has been away longest comes first
        if self.has_open:
            self.timer = gevent.spawn_later(self.hub.settings.producer_grace, self._lose)
        else:
            self.timer = gevent.spawn_later(self.hub.settings.idle_ttl, _drop, self)

    def _lose(self) -> None:
        self.hub.counts.refused["producer_grace"] += self.has_open  # not if it was cancelled meanwhile
        self.end_all("error", LOST)
        self.is_cancelled = False
        self.timer = gevent.spawn_later(self.hub.settings.idle_ttl, _drop, self)

    def come_back(self, ingest: Ingest) -> None:
        """It has sent a new body. One that is being read is over at once.

        Raises:
            Refused: cancelled, it was not told so yet.
        """
        if self.is_cancelled or (self.ingest is not None and self.ingest.code == "cancelled"):
            self.is_cancelled = False
            raise Refused(*CANCELLED)
        if self.ingest is not None:
            self.ingest.interrupt("replaced", "a newer request of the same producer has taken over")
        self.stop()
        self.ingest = ingest

    def stop(self) -> None:
        """Stop its timer. Idempotent."""
        if self.timer is not None:
            self.timer.kill(block=False)
            self.timer = None


_APPLY: dict[type[Any], Callable[[RemoteProducer, Any], None]] = {
    MessageStart: RemoteProducer._start_message,
    PartStart: RemoteProducer._start_part,
    Delta: RemoteProducer._append,
    PartEnd: RemoteProducer._end_part,
    Event: RemoteProducer._publish,
    MessageEnd: RemoteProducer._end_message,
}

# -- those that are known by name


def enter(hub: Hub, sid: str, name: str | None, ingest: Ingest) -> RemoteProducer:
    """The producer that a body is of.

    Raises:
        Refused: too_many streams, or named producers of this one; cancelled.
    """
    epoch = hub.channel(sid).stream.epoch
    if name is None:
        producer = RemoteProducer(hub, sid, None)
    else:
        known = hub.remote.get(sid, {}).get(name)
        if known is not None and known.ingest is None and known.epoch != epoch:
            _drop(known)
            known = None
        producer = _add(hub, sid, name) if known is None else known
    producer.come_back(ingest)
    return producer


def _add(hub: Hub, sid: str, name: str) -> RemoteProducer:
    named = hub.remote.setdefault(sid, {})
    if len(named) >= MAX_NAMED:
        away = next((each for each in named.values() if each.ingest is None and not each.has_open), None)
        if away is None:
            raise hub.refusal("too_many", f"the stream has {MAX_NAMED} named producers at work", "named_producers")
        _drop(away)
        named = hub.remote.setdefault(sid, {})
    producer = named[name] = RemoteProducer(hub, sid, name)
    return producer


def _drop(producer: RemoteProducer) -> None:
    """Forget a producer that is away and has nothing open."""
    streams = producer.hub.remote
    named = streams.get(producer.sid, {})
    if named.get(producer.name or "") is producer:
        del named[producer.name or ""]
        if not named:
            del streams[producer.sid]
    producer.stop()
