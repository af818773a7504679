"""What an app calls to put text and events into a stream.

Everything here is called from greenlets of the hub's thread. `append` does no I/O, makes no JSON and waits for no
subscriber: it puts the text into a list and, for the first text since the last flush, tells the flusher. A producer
that computes without ever waiting would keep all others from running, the flusher too; so `append` gives way to them
when the hub has not looked at its sockets and timers for 2 ms. That is the only place where it switches.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Literal

from gevent import GreenletExit

from ..errors import Cancelled, MessageEnded, MessageTooLong, ProducerError
from ..protocol import frames
from ..protocol.grammar import is_kind, is_mid, is_own_kind, is_sid
from ..protocol.jsontext import decode_json, encode_json
from ..protocol.stream import Event, Text
from ..protocol.text import settle
from ..turns import PATIENCE, give_way
from .channel import Channel
from .hub import MAX_META, MAX_OPEN, Hub, thread_id

log = logging.getLogger("streaming.live")

#: Code points of one part that are flushed without waiting for the tick.
EARLY = 8_192
#: What the readers are told of a producer's failure; the log has more.
FAILED = "the producer failed"
Status = Literal["complete", "cancelled", "aborted", "error"]
STATUSES: tuple[Status, ...] = ("complete", "cancelled", "aborted", "error")


class StreamHandle:
    """One stream, for those who write to it: `streaming.stream(sid)`."""

    def __init__(self, hub: Hub, sid: str) -> None:
        if not is_sid(sid):
            raise ValueError(f'{sid!r:.80} can\'t name a stream; docs/live-protocol.md, "Names", has the grammar')
        self._hub = hub
        self.sid = sid

    def message(
        self,
        role: str = "assistant",
        meta: dict[str, Any] | None = None,
        *,
        mid: str | None = None,
        cancel_unwatched_after: float | None = None,
    ) -> Message:
        """Start a message. Use it in a `with` block, which ends it; or call its `end`.

        Args:
            role: who speaks; readers see it.
            meta: a JSON object for the readers.
            mid: its id, new in the stream; one is made if there is none.
            cancel_unwatched_after: seconds without any subscriber after which the message is cancelled.

        Raises:
            ValueError: the id is used, or not of the grammar; `meta` can't be sent as JSON.
            Refused: there are too many streams, or open messages in this one.
        """
        self._hub.check_thread()
        return Message(self._hub, self.sid, role, encode_json(meta or {}), mid, cancel_unwatched_after)

    def publish(self, kind: str, data: Any = None, *, urgent: bool = False) -> int:
        """Publish a durable event, behind all text that was appended before it.

        Args:
            kind: of the app's own, such as `tool.result`.
            data: what can be sent as JSON, at most STREAMING_LOG_BYTES of it.
            urgent: those who only watch the stream's activity get it too, and hidden pages at once.

        Returns:
            Its `seq`.

        Raises:
            ValueError: the kind belongs to the protocol or is not of the grammar, or the data can't be sent.
            Refused: there are too many streams.
        """
        self._hub.check_thread()
        if not is_kind(kind) or is_own_kind(kind):
            raise ValueError(f"{kind!r:.80} can't be the kind of an event of an app")
        return publish(self._hub, self.sid, kind, encode_json(data), urgent=urgent)


def publish(hub: Hub, sid: str, kind: str, data: bytes, *, urgent: bool) -> int:
    """Publish an event whose kind has been checked and whose data is encoded.

    Raises:
        ValueError: the data is larger than the log.
        Refused: there are too many streams.
    """
    if len(data) > hub.settings.log_bytes:
        hub.counts.refused["log_bytes"] += 1
        raise ValueError(f"the event has {len(data)} bytes; a log holds {hub.settings.log_bytes} (STREAMING_LOG_BYTES)")
    return hub.publish(hub.channel(sid), Event(kind, data, urgent))


class Message:
    """A growing answer. Made by `StreamHandle.message`, or for a producer outside the process by `ingest.py`.

    Attributes:
        mid: its id.
        status: None while it is open.
        started_at: when, by the monotonic clock.
        on_cancel: called when it is cancelled, on the hub's thread; must not wait.
    """

    def __init__(
        self, hub: Hub, sid: str, role: str, meta: bytes, mid: str | None, cancel_unwatched_after: float | None = None
    ) -> None:
        if not isinstance(role, str):
            raise ValueError(f"a role is a str, not {type(role).__name__}")
        if mid is not None and not is_mid(mid):
            raise ValueError(f'{mid!r:.80} can\'t name a message; docs/live-protocol.md, "Names", has the grammar')
        self._hub = hub
        self._channel = hub.channel(sid)
        stream = self._channel.stream
        hub.check_meta(stream, meta)
        if len(stream.open_messages) >= MAX_OPEN:
            raise hub.refusal("bad_request", f"the stream has {MAX_OPEN} open messages", "open_messages")
        self.mid = secrets.token_urlsafe(12) if mid is None else mid
        if stream.has_used(self.mid):
            raise ValueError(f"the message id {self.mid} was used before in this stream")
        self.status: Status | None = None
        self._usage: bytes | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.parts: list[Part] = []
        self.size = 0  # bytes of text, in UTF-8
        self._text: Part | None = None
        self._patience = cancel_unwatched_after
        self._watched_at = self.started_at = monotonic()
        self._channel.producers[self.mid] = self
        hub.note(self)
        if cancel_unwatched_after is not None:
            hub.unwatched[self] = None
        detail = {"mid": self.mid, "role": role, "meta": meta}
        hub.publish(self._channel, Event("message.start", frames.message_start(self.mid, role, meta), detail=detail))

    @property
    def usage(self) -> dict[str, Any] | None:
        """What the message cost, a JSON object that readers are told at its end.

        Raises:
            ValueError: what is assigned can't be sent as JSON.
        """
        return None if self._usage is None else decode_json(self._usage)

    @usage.setter
    def usage(self, usage: dict[str, Any] | None) -> None:
        encoded = None if usage is None else encode_json(usage)
        if encoded is not None and len(encoded) > MAX_META:
            raise ValueError(f"usage has {len(encoded)} bytes; at most {MAX_META}")
        self._usage = encoded

    @property
    def cancelled(self) -> bool:
        """Somebody pressed stop; the next `append` raises `Cancelled`."""
        return self.status == "cancelled"

    def append(self, text: str) -> None:
        """Append to the part of kind `text`; see `Part.append`."""
        if self._text is None:
            self._text = self.part()
        self._text.append(text)

    def part(self, kind: str = "text", meta: dict[str, Any] | None = None) -> Part:
        """Another part, for `thinking`, `tool_args`, `tool_output` or what the app likes; its first text starts it.

        Raises:
            ValueError: the kind is not of the grammar, or `meta` can't be sent as JSON.
        """
        if not is_kind(kind):
            raise ValueError(f"{kind!r:.80} can't be the kind of a part")
        return Part(self._hub, self._channel, self, kind, encode_json(meta or {}))

    def end(self, status: Status = "complete", error: str | None = None) -> None:
        """End the message: its open parts, then itself. No effect on one that has ended.

        Args:
            error: one line for the readers.

        Raises:
            ValueError: there is no such status.
            TypeError: the error is no text.
        """
        self._hub.check_thread()
        if status not in STATUSES:
            raise ValueError(f"{status!r:.80} is not one of {', '.join(STATUSES)}")
        if not isinstance(error, str | None):
            raise TypeError(f"an error is one line of text, not {type(error).__name__}")
        if self.status is not None:
            return
        for part in self.parts:
            part.end()
        self.status = status
        del self._channel.producers[self.mid]
        self._hub.unwatched.pop(self, None)
        parts = [(part.p, part.kind, part.final_length) for part in self.parts]
        self._hub.counts.ended[status] += 1
        data = frames.message_end(self.mid, status, error, self._usage, parts)
        self._hub.publish(self._channel, Event("message.end", data, detail={"mid": self.mid, "status": status}))

    def cancel(self) -> None:
        """End the message because nobody wants the rest. Idempotent."""
        if self.status is None:
            self.end("cancelled")
            if self.on_cancel is not None:
                try:
                    self.on_cancel()
                except Exception:  # whoever cancels has nothing to do with it
                    log.exception("what a cancelled message calls failed")

    def check_watched(self, now: float) -> None:
        """Cancel the message if it allows that and nobody has watched for long enough."""
        if self._channel.is_watched:
            self._watched_at = now
        elif self._patience is not None and now - self._watched_at >= self._patience and self.status is None:
            self._hub.counts.cancelled_unwatched += 1
            self.cancel()

    def refusal(self) -> ProducerError:
        """Why nothing can be appended any more."""
        if self.cancelled:
            return Cancelled(f"the message {self.mid} was cancelled")
        if self.status is None:
            return MessageEnded(f"the part has ended; its message {self.mid} is open")
        return MessageEnded(f"the message {self.mid} has ended with status {self.status}")

    def overflow(self) -> MessageTooLong:
        """End the message, whose text is longer than is allowed. Returns the error to raise."""
        limit = self._hub.max_message
        self._hub.counts.refused["max_message"] += 1
        self.end("error", f"the message is longer than {limit} bytes")
        return MessageTooLong(f"the message {self.mid} is longer than {limit} bytes (STREAMING_MAX_MESSAGE)")

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End it: `complete`, `cancelled` for `Cancelled`, `aborted` if the greenlet is killed, else `error`."""
        if error is None:
            self.end()
        elif isinstance(error, Cancelled):
            self.end("cancelled")
        elif isinstance(error, GreenletExit):
            self.end("aborted")
        else:
            self.end("error", FAILED)


class Part:
    """One run of text of a message, as its producer sees it. Made by `Message.part`.

    Attributes:
        p: the `seq` of its `part.start`; 0 before its first text.
        pending: code points since the last flush.
        held: half a surrogate pair that waits for the other half.
        length: code points that were flushed.
        final_length: the same, of what replaced them if something did.
    """

    __slots__ = (
        "_channel", "_hub", "_message", "_meta", "final_length", "has_ended", "held", "kind", "length", "p", "pending",
    )  # fmt: skip

    def __init__(self, hub: Hub, channel: Channel, message: Message, kind: str, meta: bytes) -> None:
        self._hub = hub
        self._channel = channel
        self._message = message
        self._meta = meta
        self.kind = kind
        self.p = 0
        self.pending = 0
        self.held = ""
        self.length = 0
        self.final_length = 0
        self.has_ended = False

    def append(self, text: str) -> None:
        """Append text, as a model gives it: it may end in the middle of a surrogate pair.

        Does no I/O and waits for nobody; it lets others run if none could for 2 ms.

        Raises:
            Cancelled: the message was cancelled; stop producing.
            MessageEnded: the message or this part has ended.
            MessageTooLong: the text would pass STREAMING_MAX_MESSAGE; the message has ended with `error`.
            RuntimeError: called in another thread than the hub's.
            TypeError: `text` is no string.
        """
        hub = self._hub
        message = self._message
        if thread_id() != hub.thread:
            hub.check_thread()
        if message.status is not None or self.has_ended:
            raise message.refusal()
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}")
        if not text:
            return
        length = len(text)
        if not message.size:
            hub.counts.first_texts.add(monotonic() - message.started_at)
        message.size += length if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if message.size > hub.max_message:
            raise message.overflow()
        channel = self._channel
        if channel.writing is self:
            channel.pieces.append(text)
        else:
            if not self.p:
                self.start()
            channel.add(self, text)
        self.pending += length
        flusher = hub.flusher
        if self.pending >= EARLY:
            flusher.hurry(channel)
        elif not channel.due:
            flusher.mark(channel)
        if monotonic() - hub.pulse.at > PATIENCE:  # `turns.breathe`, without a call for each token
            give_way()

    def start(self) -> None:
        """Start it without text; `append` does so by itself. No effect on one that has started.

        Raises:
            Refused: the message has too many parts.
            RuntimeError: called in another thread than the hub's.
        """
        self._hub.check_thread()
        message = self._message
        if self.p:
            return
        if message.status is not None:
            raise message.refusal()
        if len(message.parts) >= MAX_OPEN or len(self._channel.stream.open_parts) >= MAX_OPEN:
            raise self._hub.refusal("bad_request", f"more than {MAX_OPEN} parts in a message, or open", "open_parts")
        self._hub.check_meta(self._channel.stream, self._meta)
        number = len(message.parts)
        detail = {"mid": message.mid, "part": number, "kind": self.kind, "meta": self._meta}
        data = frames.part_start(message.mid, number, self.kind, self._meta)
        message.parts.append(self)
        self.p = self._hub.publish(self._channel, Event("part.start", data, detail=detail))

    def end(self, text: str | None = None) -> None:
        """End the part; a message's end does so by itself. No effect on one that has ended, or has no text.

        Args:
            text: replaces the whole text that was appended; readers who have that are told.

        Raises:
            RuntimeError: called in another thread than the hub's.
        """
        hub, channel = self._hub, self._channel
        hub.check_thread()
        if self.has_ended or self._message.status is not None:
            return
        if not isinstance(text, str | None):
            raise TypeError(f"text is a str, not {type(text).__name__}")
        if text is not None:
            self.start()
            # What it replaces is counted already, with one byte for each code point at least.
            self._message.size += max(0, len(text.encode("utf-8", "surrogatepass")) - self.length - self.pending)
            if self._message.size > hub.max_message:
                raise self._message.overflow()
        if not self.p:
            return
        hub.seal(channel)
        rest, _ = settle(self.held, final=True)
        if rest:
            self.held = ""
            self.length += len(rest)
            hub.publish_text(channel, Text(self.p, rest))
        self.has_ended = True
        whole = None if text is None else settle(text, final=True)[0]
        self.final_length = self.length if whole is None else len(whole)
        data = frames.part_end(self._message.mid, self.p, self.final_length, whole)
        hub.publish(channel, Event("part.end", data, detail={"p": self.p, "s": whole}))
