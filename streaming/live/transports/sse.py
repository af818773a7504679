"""Server-sent events as a carrier: chunked on our own socket, as they are where a WSGI server frames them."""

from __future__ import annotations

from ...protocol import sse
from ...protocol.cut import Cut
from ...protocol.frames import Frame
from .carrier import Carrier, Chunked, chunk


class Sse(Carrier):
    """One SSE event for each frame."""

    opening = sse.OPENING
    heartbeat = sse.HEARTBEAT
    form = "sse"

    def encode(self, cut: Cut, epoch: str) -> bytes:
        """All frames of a cut, each with the cursor token after it."""
        return sse.encode_cut(cut, epoch)

    def frame(self, frame: Frame, token: str | None = None) -> bytes:
        """One frame."""
        return sse.encode_frame(frame, token)

    def bye(self, frame: Frame, retry_ms: int) -> bytes:
        """`bye`; the browser is told the pause in its own way too."""
        return sse.encode_bye(frame, retry_ms)

    def wrap(self, items: list[bytes]) -> bytes:
        """The items, one after the other."""
        return b"".join(items)

    def ending(self, code: int, reason: str) -> bytes:
        """Nothing: the server ends the response."""
        return b""


class ChunkedSse(Chunked, Sse):
    """The same, one HTTP chunk for each message."""

    heartbeat = chunk(sse.HEARTBEAT)


SSE = Sse()
CHUNKED_SSE = ChunkedSse()
