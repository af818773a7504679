"""An app to measure: the real one of `app.py`, with templates in memory, called as a WSGI server calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gevent
from flask import Response
from jinja2 import DictLoader
from werkzeug.test import EnvironBuilder

from app import create_app
from pool.interface import Job, RenderPool
from pool.threads import ThreadRenderPool
from streaming.server import tune_garbage_collection
from streaming.state import AppState


class HubRenderPool(RenderPool):
    """Runs each step on the hub: what a server without a pool does, and what the pools are compared with."""

    name = "hub"

    def _start(self, job: Job) -> None:
        # Not at once: `submit` must have returned before `done` is called.
        gevent.get_hub().loop.run_callback(self._step, job)

    def _step(self, job: Job) -> None:
        try:
            result = job.work()
        except Exception as error:  # noqa: BLE001 - a pool hands on what a step raises
            result = error
        self._finish(job, result)

    def close(self) -> None:
        """Nothing to end."""


#: The pools that can be compared, by name.
POOLS: dict[str, type[RenderPool]] = {pool.name: pool for pool in (HubRenderPool, ThreadRenderPool)}


class Site:
    """The app with templates and views of a benchmark's own.

    Args:
        templates: sources by name.
        pool: a name in POOLS.
        workers: how many steps the pool runs at once.
    """

    def __init__(self, templates: Mapping[str, str], pool: str = "threads", workers: int = 2) -> None:
        tune_garbage_collection()  # as our servers do at their start
        self.app = create_app({"STREAMING_RENDER_WORKERS": workers})
        self.app.jinja_loader = DictLoader(dict(templates))
        settings = self.state.settings
        self.state.shared.pool = POOLS[pool](workers=workers, wait=settings.render_wait, max_pages=settings.max_pages)

    @property
    def state(self) -> AppState:
        """What the app's extension keeps."""
        state = self.app.extensions["streaming"]
        assert isinstance(state, AppState)
        return state

    def route(self, path: str, view: Callable[[], Response | str]) -> None:
        """Add a page."""
        self.app.add_url_rule(path, endpoint=path.strip("/"), view_func=view)

    def open(self, path: str) -> Any:
        """Ask for a page; return the WSGI iterable. Close it.

        Raises:
            RuntimeError: the answer is not 200.
        """
        statuses: list[str] = []

        def start_response(status: str, headers: object, exc_info: object = None) -> Callable[[bytes], object]:
            statuses.append(status)
            return lambda data: None

        body = self.app(EnvironBuilder(path=path).get_environ(), start_response)
        if not statuses[0].startswith("200"):
            raise RuntimeError(f"{path}: {statuses[0]}, {b''.join(body)!r}")
        return body

    def chunks(self, path: str) -> Iterator[bytes]:
        """Ask for a page and yield what a server would send."""
        body = self.open(path)
        try:
            yield from body
        finally:
            body.close()

    def get(self, path: str) -> bytes:
        """Ask for a page and read it to its end."""
        return b"".join(self.chunks(path))

    def close(self) -> None:
        """End the pool."""
        self.state.shared.pool.close()
