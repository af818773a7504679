"""Newline-delimited JSON as a carrier: chunked on our own socket, as it is where a WSGI server frames it."""

from __future__ import annotations

from ...protocol import ndjson
from ...protocol.cut import Cut
from ...protocol.frames import Frame
from .carrier import Carrier, Chunked, chunk


class Ndjson(Carrier):
    """One line for each frame."""

    heartbeat = ndjson.HEARTBEAT
    form = "ndjson"

    def encode(self, cut: Cut, epoch: str) -> bytes:
        """All frames of a cut."""
        return ndjson.encode_cut(cut)

    def frame(self, frame: Frame, token: str | None = None) -> bytes:
        """One frame."""
        return ndjson.encode_frame(frame)

    def wrap(self, items: list[bytes]) -> bytes:
        """The items, one after the other."""
        return b"".join(items)

    def ending(self, code: int, reason: str) -> bytes:
        """Nothing: the server ends the response."""
        return b""


class ChunkedNdjson(Chunked, Ndjson):
    """The same, one HTTP chunk for each message."""

    heartbeat = chunk(ndjson.HEARTBEAT)


NDJSON = Ndjson()
CHUNKED_NDJSON = ChunkedNdjson()
