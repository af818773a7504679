"""The broker of one process: an entry is applied where it is produced, at once."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.stream import Entry


class MemoryBroker:
    """Applies each entry in the call that sends it; never waits."""

    is_reachable = True

    def __init__(self, apply: Callable[[str, Entry], int]) -> None:
        self._apply = apply

    def send(self, sid: str, entry: Entry) -> int:
        """Apply an entry. Returns the stream's head behind it."""
        return self._apply(sid, entry)
