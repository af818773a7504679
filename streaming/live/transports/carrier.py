"""What a carrier is: how frames become bytes of a connection."""

from __future__ import annotations

from ...protocol.cut import Cut
from ...protocol.frames import Frame


class Carrier:
    """Encodes for one kind of connection. Has no state; one object serves all connections of its kind.

    An *item* is one frame or several, as they stand inside a message; `wrap` makes a message of items.

    Attributes:
        opening: the first item of a connection.
        heartbeat: a message that keeps a silent connection open.
        form: carriers of the same form have the same items.
    """

    opening = b""
    heartbeat = b""
    form = ""

    def item(self, cut: Cut, epoch: str) -> bytes:
        """All frames of a cut; kept with it."""
        item = cut.encoded.get(self.form)
        if item is None:
            item = cut.encoded[self.form] = self.encode(cut, epoch)
        return item

    def message(self, cut: Cut, epoch: str) -> bytes:
        """A message of one cut; kept with it, so that a thousand connections send the same object."""
        message = cut.encoded.get(self)
        if message is None:
            message = cut.encoded[self] = self.wrap([self.item(cut, epoch)])
        return message

    def encode(self, cut: Cut, epoch: str) -> bytes:
        """All frames of a cut."""
        raise NotImplementedError

    def frame(self, frame: Frame, token: str | None = None) -> bytes:
        """A frame that is not of a cut; `token` where it has one."""
        raise NotImplementedError

    def bye(self, frame: Frame, retry_ms: int) -> bytes:
        """The frame `bye`."""
        return self.frame(frame)

    def wrap(self, items: list[bytes]) -> bytes:
        """A message of at least one item."""
        raise NotImplementedError

    def ending(self, code: int, reason: str) -> bytes:
        """The last bytes of a connection."""
        raise NotImplementedError


def chunk(data: bytes) -> bytes:
    """An HTTP chunk (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Chunked(Carrier):
    """One HTTP chunk for each message; for a carrier whose items only stand one after the other."""

    def wrap(self, items: list[bytes]) -> bytes:
        """The items in one chunk."""
        return chunk(b"".join(items))

    def ending(self, code: int, reason: str) -> bytes:
        """The last chunk."""
        return b"0\r\n\r\n"
