"""Buffers to receive into, lent for the moment in which there is something to read. Pure."""

from __future__ import annotations


class BufferPool:
    """Keeps a bounded number of receive buffers between uses.

    A connection that waits holds no buffer: one is lent when its socket is readable and given back before it waits
    again. So a few buffers serve thousands of connections, and what stays allocated when all are idle is bounded.

    A buffer may grow while it is lent. One that comes back larger than `chunk_size` is dropped, since keeping it would
    let one burst hold memory for ever; one that comes back smaller is dropped too, so that a lent buffer always has at
    least `chunk_size` bytes.

    Greenlets of one thread share a pool. No method switches greenlets, so there is no lock.

    Args:
        chunk_size: bytes of a buffer.
        max_pool: buffers kept idle; at least one is.
    """

    __slots__ = ("_idle", "chunk_size", "lent", "max_pool")

    def __init__(self, chunk_size: int = 65_536, max_pool: int = 16) -> None:
        if chunk_size < 1:
            raise ValueError("chunk_size must be at least 1")
        self.chunk_size = chunk_size
        self.max_pool = max(1, max_pool)
        self.lent = 0
        self._idle: list[bytearray] = []

    @property
    def idle_bytes(self) -> int:
        """Bytes kept while nobody uses them: never more than max(1, max_pool) * chunk_size."""
        return sum(map(len, self._idle))

    def lend(self) -> bytearray:
        """Return a buffer of at least `chunk_size` bytes with arbitrary content; `give_back` it."""
        self.lent += 1
        return self._idle.pop() if self._idle else bytearray(self.chunk_size)

    def give_back(self, buffer: bytearray) -> None:
        """Take a lent buffer back. The caller must not touch it again, nor keep a view of it."""
        self.lent -= 1
        if len(buffer) == self.chunk_size and len(self._idle) < self.max_pool:
            self._idle.append(buffer)
