"""What carries entries from producers to the streams of all processes."""

from __future__ import annotations

from typing import Protocol

from ...protocol.stream import Entry


class Broker(Protocol):
    """Carries entries; whoever makes one gives it `apply(sid, entry)`, to be called on the hub, in the stream's order.

    The hub puts everything that comes from a producer through `send`, and changes a stream in `apply` alone: so it does
    not matter whether the producer is in this process.
    """

    @property
    def is_reachable(self) -> bool:
        """Whether `send` can be expected to work now; never waits."""
        ...

    def send(self, sid: str, entry: Entry) -> int:
        """Put an entry into a stream: text is coalesced already, one entry for each run and flush.

        Returns:
            The stream's head behind the entry; for an event its `seq`.
        """
        ...
