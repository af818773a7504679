"""Rendered text on its way to chunks: what goes out, what is held back, what is taken back.

One writer belongs to one page and is used by one render step at a time.
"""

from __future__ import annotations

import codecs


def _replace_surrogate(error: UnicodeError) -> tuple[bytes, int]:
    """Encode half a surrogate pair as U+FFFD; state that the app made itself can hold one."""
    assert isinstance(error, UnicodeEncodeError)
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error("streaming.replace", _replace_surrogate)


class PageWriter:
    """Joins text and encodes it once per step.

    Text is collected in a list and joined, since filling a buffer piece by piece is many times slower in Python. What
    is written while the writer *holds* stays here until `release`, so that something can still be written before it.

    Args:
        chunk_size: bytes below which `take` keeps the text for the next step, unless it is told to flush. A soft
            target: one text, however large, stays whole.
    """

    __slots__ = ("_chunk_size", "_held", "_is_holding", "_mark", "_ready", "held_size", "ready_size")

    def __init__(self, chunk_size: int) -> None:
        self._chunk_size = chunk_size
        self._ready: list[str] = []
        self._held: list[str] = []
        self._is_holding = False
        self._mark = 0
        self.ready_size = 0
        self.held_size = 0

    def write(self, text: str) -> None:
        """Add text at the page's end."""
        if self._is_holding:
            self._held.append(text)
            self.held_size += len(text)
        else:
            self.write_ahead(text)

    def write_ahead(self, text: str) -> None:
        """Add text before what is held."""
        self._ready.append(text)
        self.ready_size += len(text)

    def hold(self) -> None:
        """Keep what is written from now on."""
        self._is_holding = True

    def release(self) -> None:
        """Let what is held follow, and hold no more."""
        self._is_holding = False
        self._ready += self._held
        self.ready_size += self.held_size
        self._held = []
        self.held_size = 0

    def mark(self) -> None:
        """Begin what `roll_back` may take back."""
        self._mark = len(self._ready)

    def roll_back(self) -> None:
        """Forget what was written since the mark, as far as it was not taken."""
        del self._ready[self._mark :]
        self.ready_size = sum(map(len, self._ready))

    def take(self, *, flush: bool) -> bytes:
        """Return what is ready as one chunk; nothing if it is smaller than a chunk should be and `flush` is false."""
        # Characters for bytes: the text is at least as long in bytes.
        if not flush and self.ready_size < self._chunk_size:
            return b""
        chunk = "".join(self._ready).encode("utf-8", "streaming.replace")
        self._ready = []
        self._mark = self.ready_size = 0
        return chunk
