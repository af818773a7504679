"""Greenlets that produce, supervised; and calls from other threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from flask import Flask
from gevent.monkey import get_original

from ..errors import Cancelled
from .hub import Hub
from .producer import FAILED, Status

log = logging.getLogger("streaming.live")

Result = TypeVar("Result")
_allocate_lock = get_original("_thread", "allocate_lock")


class Producer(gevent.Greenlet):
    """A supervised greenlet: `streaming.spawn` makes it.

    It runs a function in an app context. If that fails, the failure is logged once, and the messages that it started
    and left open end with status `error`. `Cancelled` is no failure.
    """

    def __init__(self, hub: Hub, app: Flask, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__()
        self._hub = hub
        self._app = app
        self._call = function, args, kwargs
        hub.producers[self] = []
        self.rawlink(hub.producers.pop)  # also if it never runs

    def _run(self) -> Any:
        function, args, kwargs = self._call
        try:
            with self._app.app_context():
                result = function(*args, **kwargs)
            self._end_all("error", "the producer left its message open")
            return result
        except Cancelled:
            self._end_all("cancelled", None)
        except (Exception, gevent.Timeout):
            log.exception("a producer failed: %s", getattr(function, "__qualname__", function))
            self._end_all("error", FAILED)
        finally:
            self._end_all("aborted", None)  # killed

    def _end_all(self, status: Status, error: str | None) -> None:
        """End the messages that are still open."""
        for message in self._hub.producers[self]:
            message.end(status, error)


def from_thread(hub: Hub, app: Flask, function: Callable[..., Result], args: Any, kwargs: Any) -> Result:
    """Call a function in a greenlet of the hub's thread, in an app context, and wait for what it returns or raises.

    May be called in any thread; in the hub's own it is a plain call.
    """
    if hub.is_own_thread:
        return function(*args, **kwargs)
    done = _allocate_lock()
    done.acquire()
    outcome: list[Any] = []

    def call() -> None:
        try:
            with app.app_context():
                outcome.extend((function(*args, **kwargs), None))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
            outcome.extend((None, error))
        finally:
            done.release()

    hub.loop.run_callback_threadsafe(gevent.spawn, call)
    done.acquire()
    result, error = outcome
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
