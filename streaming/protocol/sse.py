"""Server-sent events: how frames look on that carrier (docs/live-protocol.md, "HTTP routes").

Each frame is one SSE event: `event` is its name, `id` the cursor token after it, `data` the frame. The JSON of a frame
holds no raw line break, the ids no character but those of their grammar, so no field can be injected.
"""

from __future__ import annotations

from .cursor import format_token
from .cut import Cut
from .frames import Frame

RETRY_MS = 1_000
#: First bytes of a response, a field of its first event: how long a browser waits before it asks again.
OPENING = b"retry: %d\n" % RETRY_MS
#: What keeps a silent connection open.
HEARTBEAT = b": \n\n"


def encode_frame(frame: Frame, token: str | None = None) -> bytes:
    """One frame; without a token the browser keeps the one it has."""
    identity = b"" if token is None else b"id: %b\n" % token.encode()
    return b"event: %b\n%bdata: %b\n\n" % (frame.t.encode(), identity, frame.json)


def encode_bye(frame: Frame, retry_ms: int) -> bytes:
    """`bye`, with the pause that it asks for set in the browser too."""
    return b"retry: %d\n%b" % (retry_ms, encode_frame(frame))


def encode_cut(cut: Cut, epoch: str) -> bytes:
    """All frames of a cut, each with the token after it."""
    seq, offsets = cut.seq, dict(cut.offsets)
    events = []
    for frame in cut.frames:
        if frame.seq:
            seq = frame.seq
        if frame.end < 0:
            offsets.pop(frame.p, None)
        elif frame.p:
            offsets[frame.p] = frame.end
        events.append(encode_frame(frame, format_token(epoch, seq, offsets)))
    return b"".join(events)
