"""The streams and connections of one process.

One for each app and process, made on first use. Everything in it belongs to one thread, that of gevent's main hub, and
no method switches greenlets unless it says so: so what a method sees stays true to its end.

Entries go from a producer to the broker, and from the broker to `apply`, which alone changes a stream.
"""

from __future__ import annotations

import os
import secrets
import string
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import gevent
from gevent.monkey import get_original

from ..config import Settings
from ..counts import Counts
from ..errors import Refused
from ..protocol.cursor import Cursor
from ..protocol.stream import Entry, Event, Stream, Text
from ..protocol.text import settle
from ..turns import pulse
from .brokers.interface import Broker
from .brokers.memory import MemoryBroker
from .channel import Channel
from .connection import Connection
from .flusher import Flusher
from .subscriber import Subscriber
from .sweeper import Sweeper

if TYPE_CHECKING:
    from .ingest import Ingest
    from .producer import Message
    from .remote import RemoteProducer

_ALPHABET = string.ascii_letters + string.digits
thread_id: Callable[[], int] = get_original("_thread", "get_ident")
#: Messages and parts of one stream that may be open at a time: what is open is kept whatever the log's bounds.
MAX_OPEN = 1_000
#: The stream of what the process itself does (`inspection.py`), which the grammar lets nobody name. Its log has five
#: minutes of samples, of up to 6 KB each, or 12 with the longest ids.
INSPECT = "inspect"
MAX_SAMPLES = 300
MAX_SAMPLE_BYTES = 4_194_304
#: Bytes of `meta` of a message or a part; of all that is open in a stream; and how much is not worth counting.
MAX_META = 65_536
MAX_OPEN_META = 1_048_576
SMALL_META = 256


class Hub:
    """The live path of one app in one process.

    Attributes:
        channels: the streams, by `sid`.
        internal: those of the process itself, which are not the app's and count as none.
        blank: streams that were only ever subscribed, and are no more; the first to go where there are too many.
        connections: those open, of all carriers; the ones still lingering too.
        carriers: how many of them each carrier has.
        unwatched: open messages that are to be cancelled when nobody watches.
        ingests: bodies of producers outside the process that are being read.
        remote: the producers outside the process that named themselves, by stream and name (`remote.py`).
        producers: greenlets of `streaming.spawn` that run, with the messages that each has started.
        pulse: when the thread's event loop last looked at its sockets and timers.
        is_draining: the server goes down: nothing new begins.
        drains_on_sigterm: a handler of ours is in place, since the server is not ours.
        thread: the native thread that it belongs to; `loop` is that thread's.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.max_message = settings.max_message  # looked up for each token
        self.counts = Counts()
        self.channels: dict[str, Channel] = {}
        self.internal: dict[str, Channel] = {}
        self.blank: dict[str, None] = {}
        self.connections: dict[Connection, None] = {}
        self.unwatched: dict[Message, None] = {}
        self.ingests: set[Ingest] = set()
        self.remote: dict[str, dict[str, RemoteProducer]] = {}
        self.producers: dict[gevent.Greenlet, list[Message]] = {}
        self.is_draining = False
        self.drains_on_sigterm = False
        self._pid = os.getpid()
        self.thread = thread_id()
        self.loop = gevent.get_hub().loop
        self.pulse = pulse()
        self.carriers: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._broker: Broker = MemoryBroker(self.apply)
        self.flusher = Flusher(settings.flush_interval, settings.background_interval, self.seal, self.counts)
        self.sweeper = Sweeper(self)
        self.flusher.start()
        self.sweeper.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether this is called in the hub's thread."""
        return thread_id() == self.thread

    @property
    def is_working(self) -> bool:
        """Whether those who flush and look after everything are there."""
        return self.flusher.is_alive and self.sweeper.is_alive

    @property
    def is_broker_reachable(self) -> bool:
        """Whether entries can be put into streams."""
        return self._broker.is_reachable

    def check_thread(self) -> None:
        """Raise RuntimeError in any other thread than the hub's."""
        if self._pid != os.getpid():
            raise RuntimeError(
                "this stream belongs to the process that was forked; get it anew with streaming.stream(sid)"
            )
        if not self.is_own_thread:
            raise RuntimeError(
                "streams belong to the main thread: from another one call streaming.from_thread(function, ...)"
            )

    # -- streams

    def channel(self, sid: str) -> Channel:
        """A stream; an empty one is made if there is none.

        Raises:
            Refused: too_many, there are as many streams as is allowed.
        """
        channel = self.channels.get(sid) or self.internal.get(sid)
        if channel is None and sid == INSPECT:
            channel = self.internal[sid] = self._make(sid, MAX_SAMPLES, MAX_SAMPLE_BYTES)
        elif channel is None:
            settings = self.settings
            if len(self.channels) >= settings.max_streams and self.blank:
                self.forget(self.channels[next(iter(self.blank))])
            if len(self.channels) >= settings.max_streams:
                raise self.refusal("too_many", "there are too many streams", "max_streams")
            channel = self.channels[sid] = self._make(sid, settings.log_events, settings.log_bytes)
        return channel

    def find(self, sid: str) -> Channel | None:
        """A stream that exists, the process's own too."""
        return self.channels.get(sid) or self.internal.get(sid)

    def _make(self, sid: str, log_events: int, log_bytes: int) -> Channel:
        epoch = "".join(secrets.choice(_ALPHABET) for _ in range(12))
        max_text = self.settings.max_message + log_bytes
        return Channel(Stream(sid, epoch, log_events, log_bytes, max_text), monotonic())

    def forget(self, channel: Channel) -> None:
        """Drop a stream that nobody reads or writes."""
        sid = channel.stream.sid
        if self.internal.pop(sid, None) is None:
            del self.channels[sid]
            self.blank.pop(sid, None)
            self.counts.forgotten += 1

    def seal(self, channel: Channel) -> None:
        """Put what was appended since the last flush into the stream."""
        if not channel.outbox:
            return
        outbox, channel.outbox, channel.writing = channel.outbox, [], None
        sid = channel.stream.sid
        counts = self.counts
        for writing, pieces in outbox:
            text, writing.held = settle(writing.held + "".join(pieces))
            writing.pending = 0
            counts.tokens += len(pieces)
            if text:
                writing.length += len(text)
                counts.runs += 1
                self._broker.send(sid, Text(writing.p, text))

    def publish(self, channel: Channel, event: Event) -> int:
        """Put an event behind what was appended before it. Returns its `seq`."""
        self.seal(channel)
        return self._broker.send(channel.stream.sid, event)

    def publish_text(self, channel: Channel, text: Text) -> None:
        """Put in a last run that is not held back any more."""
        self._broker.send(channel.stream.sid, text)

    def apply(self, sid: str, entry: Entry) -> int:
        """Apply an entry to its stream, for the broker. Returns the head behind it."""
        channel = self.channel(sid)
        stream = channel.stream
        floor = stream.floor
        head = stream.apply(entry)
        if self.blank:
            self.blank.pop(sid, None)
        if isinstance(entry, Event):
            self.counts.events += 1
            self.counts.dropped += stream.floor - floor
            channel.used_at = monotonic()
            self.flusher.hurry(channel)
        else:
            self.counts.text += len(entry.s)
        return head

    def check_meta(self, stream: Stream, meta: bytes) -> None:
        """Refuse `meta` that is too large: that of what is open is told to each reader that begins.

        Raises:
            Refused: too_large.
        """
        if len(meta) <= SMALL_META:
            return
        held = sum(len(message.meta) for message in stream.open_messages.values())
        held += sum(len(part.meta) for part in stream.open_parts.values())
        if len(meta) > MAX_META or held + len(meta) > MAX_OPEN_META:
            text = f"meta has at most {MAX_META} bytes, and that of all that is open in a stream {MAX_OPEN_META}"
            raise self.refusal("too_large", text, "meta")

    def note(self, message: Message) -> None:
        """Remember that the producer that runs, if one does, has started a message: it may forget to end it."""
        messages = self.producers.get(gevent.getcurrent())
        if messages is not None:
            messages[:] = [each for each in messages if each.status is None]
            messages.append(message)

    def cancel(self, channel: Channel, mid: str | None) -> list[str]:
        """Cancel a message, or all that are open. Returns the ids of those that were."""
        chosen = [message for message in channel.producers.values() if mid in (None, message.mid)]
        for message in chosen:
            message.cancel()
        return [message.mid for message in chosen]

    # -- connections

    def join(self, connection: Connection) -> None:
        """Count a connection in.

        Raises:
            Refused: too_many, or rate for the limit of one address; or draining.
        """
        self.check_draining()
        if len(self.connections) >= self.settings.max_connections:
            raise self.refusal("too_many", "there are too many connections", "max_connections")
        limit = self.settings.max_connections_per_ip
        if limit is not None and self._addresses[connection.address] >= limit:
            raise self.refusal("rate", "there are too many connections of this address", "max_connections_per_ip")
        self.connections[connection] = None
        self.carriers[connection.carrier.form] += 1
        self._addresses[connection.address] += 1

    def check_draining(self, details: dict[str, object] | None = None) -> None:
        """Raise Refused if nothing new may begin."""
        if self.is_draining:
            raise self.refusal("draining", "the server is restarting", "draining", details)

    def gone(self, connection: Connection) -> None:
        """Count a connection out. Idempotent."""
        if connection in self.connections:
            del self.connections[connection]
            self.carriers[connection.carrier.form] -= 1
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def leave(self, connection: Connection) -> None:
        """Take a connection's subscribers out of their streams. Idempotent."""
        for subscriber in list(connection.subscribers.values()):
            self.unsubscribe(subscriber)

    def refusal(self, code: str, message: str, limit: str, details: dict[str, object] | None = None) -> Refused:
        """Count a refusal, and make the error for it."""
        self.counts.refused[limit] += 1
        return Refused(code, message, details)

    # -- subscribers

    def subscribe(
        self, connection: Connection, sid: str, token: str | None, *, follows: bool = True, greets: bool = False
    ) -> None:
        """Add a subscriber, or start it over.

        Reading the head and registering happen without a switch between: there is no hole and no repeat.

        Args:
            follows: mode `full`, else `activity`.
            greets: `subscribed` or `reset` is a reply of its own, in the order of the client's frames; else it comes
                with the first events.

        Raises:
            Refused: too_many, of streams or of this connection's subscriptions.
        """
        known = connection.subscribers.get(sid)
        if known is None and len(connection.subscribers) >= self.settings.max_subscriptions:
            raise self.refusal("too_many", "this connection has too many subscriptions", "max_subscriptions")
        channel = self.channel(sid)
        if known is not None:
            self.unsubscribe(known)
        self.seal(channel)
        stream = channel.stream
        subscriber = Subscriber(connection, channel, stream.start(token), follows=follows)
        connection.subscribers[sid] = subscriber
        self.blank.pop(sid, None)
        self.place(subscriber)
        if greets:
            self._greet(subscriber)
        self.flusher.serve(subscriber)

    def _greet(self, subscriber: Subscriber) -> None:
        """Tell it where its cursor stands."""
        cursor = subscriber.cursor
        frame, subscriber.cursor = subscriber.channel.stream.greet(cursor)
        subscriber.connection.reply(frame)
        if cursor.reset:
            self.counts.resets[cursor.reset] += 1

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Take a subscriber out."""
        connection, channel = subscriber.connection, subscriber.channel
        connection.is_direct = False
        del connection.subscribers[channel.stream.sid]
        channel.followers.pop(subscriber, None)
        channel.background.pop(subscriber, None)
        if subscriber in connection.due:
            connection.due.remove(subscriber)
        channel.used_at = monotonic()
        sid = channel.stream.sid
        if not channel.is_watched and not channel.stream.head and sid in self.channels:
            self.blank[sid] = None

    def place(self, subscriber: Subscriber) -> None:
        """Put a subscriber where it is served: at each flush, or at background ticks."""
        channel = subscriber.channel
        subscriber.connection.is_direct = False
        at_flushes = subscriber.follows and not subscriber.connection.is_hidden
        here, there = channel.followers, channel.background
        if not at_flushes:
            here, there = there, here
        there.pop(subscriber, None)
        here[subscriber] = None

    def follow(self, subscriber: Subscriber, *, follows: bool) -> None:
        """Change a subscriber's mode. One that follows again goes on from its own cursor."""
        if subscriber.follows == follows:
            return
        subscriber.follows = follows
        stream = subscriber.channel.stream
        if follows:
            self.seal(subscriber.channel)
            cursor = subscriber.cursor
            if cursor is not stream.tip():
                subscriber.cursor = Cursor(cursor.seq, cursor.offsets, 0, stream.tip(), cursor.greeting)
        else:
            subscriber.notified = stream.head
            subscriber.seen = None
        self.place(subscriber)
        self.flusher.serve(subscriber)

    def hide(self, connection: Connection, *, hidden: bool) -> None:
        """The page is hidden, or is looked at again."""
        connection.is_hidden = hidden
        for subscriber in connection.subscribers.values():
            if subscriber.follows:
                self.place(subscriber)
                if not hidden:
                    self.flusher.serve(subscriber)

    def close(self) -> None:
        """Cut all connections and stop; for tests, and at the end of the process. Idempotent."""
        for connection in list(self.connections):
            connection.cut()
        for named in self.remote.values():
            for producer in named.values():
                producer.stop()
        self.flusher.stop()
        self.sweeper.stop()
