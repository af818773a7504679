"""One reader of one stream: a cursor, and how closely it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.cursor import Cursor

if TYPE_CHECKING:
    from .channel import Channel
    from .connection import Connection

#: Seconds between two `cumulative` frames of a part, for clients that can't fold deltas.
CUMULATIVE_INTERVAL = 0.25


class Subscriber:
    """A connection's place in a stream; never a queue.

    Attributes:
        cursor: what has been sent, to the socket or to the connection's tail.
        follows: mode `full`; otherwise mode `activity`: summaries only.
        is_due: it stands in its connection's list of those that have something to send.
        notified: the last urgent event told in mode `activity`.
        seen: the summary that was sent last.
        text_at: when the next `cumulative` frame may go.
    """

    __slots__ = ("channel", "connection", "cursor", "follows", "is_due", "notified", "seen", "text_at")

    def __init__(self, connection: Connection, channel: Channel, cursor: Cursor, *, follows: bool) -> None:
        self.connection = connection
        self.channel = channel
        self.cursor = cursor
        self.follows = follows
        self.is_due = False
        self.notified = channel.stream.head
        self.seen: tuple[str, int, int] | None = None
        self.text_at = 0.0
