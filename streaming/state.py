"""What one app keeps: its settings, its environments, and what its requests share in each process.

Kept under `app.extensions["streaming"]`. Pools and buffers are made on first use in a process and looked up by its pid:
`gunicorn --preload` loads the app before it forks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from flask import Flask, current_app
from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader

from pool.buffers import BufferPool
from pool.interface import RenderPool
from pool.threads import ThreadRenderPool

from .config import Settings
from .counts import PageCounts
from .pages.environment import page_environment

EXTENSION = "streaming"
Made = TypeVar("Made")
_POOLS: dict[str, type[RenderPool]] = {ThreadRenderPool.name: ThreadRenderPool}


class Shared:
    """What the pages of one app share in one process; on its hub."""

    def __init__(self, settings: Settings) -> None:
        self.counts = PageCounts()
        self.buffers = BufferPool()
        self.pool = _POOLS[settings.render_pool](
            workers=settings.render_workers, wait=settings.render_wait, max_pages=settings.max_pages
        )


class AppState:
    """What `app.extensions["streaming"]` holds.

    Attributes:
        is_draining: the server of this process goes down.
        is_over: the drain timeout has passed: what is left is being cut.
    """

    def __init__(self, app: Flask, settings: Settings) -> None:
        self.settings = settings
        self.is_draining = False
        self.is_over = False
        self._app = app
        self._process: tuple[int, dict[Callable[[Settings], Any], Any]] = (0, {})
        self._environments: dict[str | None, Environment] = {}

    @property
    def shared(self) -> Shared:
        """Pool and buffers of the pages of this process, made on first use; see `of_process` for errors."""
        return self.of_process(Shared)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is called in the process's main thread, whose hub pages and streams belong to."""
        return threading.get_native_id() == os.getpid()

    def of_process(self, make: Callable[[Settings], Made]) -> Made:
        """What the app has once in each process; `make` makes it on first use there.

        Raises:
            RuntimeError: called in another thread than the main one, so on another hub.
        """
        if not self.is_own_thread:
            raise RuntimeError(
                "pages and streams belong to the main thread's gevent hub, and this runs in a thread of its own: call "
                "gevent.monkey.patch_all() first, or serve with gunicorn's gevent worker or ours; to put something "
                "into a stream from another thread, call streaming.from_thread(function, ...)"
            )
        if self._process[0] != os.getpid():
            self._process = (os.getpid(), {})
        made = self._process[1]
        if make not in made:
            made[make] = make(self.settings)
        return made[make]  # type: ignore[no-any-return]

    def made(self, make: Callable[[Settings], Made]) -> Made | None:
        """The same, if it was made in this process."""
        return self._process[1].get(make) if self._process[0] == os.getpid() else None

    def environment(self, folder: str | None) -> Environment:
        """Where templates are compiled for streaming: those of the app, or of a folder with the app's behind it."""
        if folder not in self._environments:
            loader = self._app.jinja_env.loader or BaseLoader()
            if folder is not None:
                loader = ChoiceLoader([FileSystemLoader(folder), loader])
            self._environments[folder] = page_environment(self._app, loader)
        return self._environments[folder]


def current_state() -> AppState:
    """The state of the app that handles the current request.

    Raises:
        RuntimeError: the app has no `Streaming`.
    """
    state = current_app.extensions.get(EXTENSION)
    if state is None:
        raise RuntimeError("this app has no Streaming; call Streaming(app), or init_app(app) in its factory")
    assert isinstance(state, AppState)
    return state
