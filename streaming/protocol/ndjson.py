"""Newline-delimited JSON: how frames look on that carrier (docs/live-protocol.md, "HTTP routes"): one a line."""

from __future__ import annotations

from .cut import Cut
from .frames import Frame

#: What keeps a silent connection open.
HEARTBEAT = b'{"t":"ping"}\n'


def encode_frame(frame: Frame) -> bytes:
    """One frame."""
    return frame.json + b"\n"


def encode_cut(cut: Cut) -> bytes:
    """All frames of a cut."""
    return b"".join([frame.json + b"\n" for frame in cut.frames])
