"""Who is at work in this app: the greenlets that write into streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from flask import current_app

from app import streaming


class Crew:
    """The greenlets of one app, by stream.

    Attributes:
        is_stressed: the streams of `stress.py` go on writing.
    """

    def __init__(self) -> None:
        self._greenlets: dict[str, list[gevent.Greenlet]] = {}
        self.is_stressed = False

    def start(self, sid: str, function: Callable[..., None], *args: Any) -> None:
        """Run a function that writes into a stream, in a greenlet of its own; it gets the stream's id first."""
        running = self.running(sid)
        running.append(streaming.spawn(function, sid, *args))
        self._greenlets[sid] = running

    def knows(self, sid: str) -> bool:
        """Whether anybody was ever started there."""
        return sid in self._greenlets

    def running(self, sid: str) -> list[gevent.Greenlet]:
        """Those who write into a stream now."""
        return [greenlet for greenlet in self._greenlets.get(sid, []) if not greenlet.ready()]


def crew() -> Crew:
    """That of the current app."""
    found: Crew = current_app.extensions.setdefault("examples.demo", Crew())
    return found
