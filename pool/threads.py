"""Rendering in native threads: the default pool.

What threads can do: the hub goes on reading sockets while a template renders, since the interpreter lock changes hands
at every switch interval and whenever a worker waits. What they can't: a C function that does not release the lock, such
as `ujson.loads` of a record of 1 MiB, stops the hub wherever it runs. docs/performance.md has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gevent.threadpool import ThreadPool

from .interface import Job, RenderPool
from .locks import mend_locks

# Seconds a thread of pure Python keeps the interpreter lock when the hub wants it. With the default of 5 ms each
# wake-up of the hub can cost that much while a page renders.
SWITCH_INTERVAL = 0.0005


class ThreadRenderPool(RenderPool):
    """Steps run in the threads of a gevent `ThreadPool`, which belongs to the hub that made it.

    Make it in the process that uses it, on first use: a thread pool made before a fork hangs in the child.
    """

    name = "threads"

    def __init__(self, *, workers: int, wait: float, max_pages: int) -> None:
        super().__init__(workers=workers, wait=wait, max_pages=max_pages)
        mend_locks()
        # We never hand it more than `workers` jobs, so its `spawn` never waits.
        self._threads = ThreadPool(workers)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))

    def _start(self, job: Job) -> None:
        self._threads.spawn(_call, job.work).rawlink(lambda result: self._finish(job, result.value))

    def close(self) -> None:
        """End the threads once they are idle."""
        self._threads.kill()


def _call(work: Callable[[], Any]) -> Any:
    """Run in a pool thread. A failure is a value: gevent would print what is raised here."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001 - handed on
        return error
