"""The one interface to what renders pages, and the admission that all pools share.

Two bounds. *Open pages*: a page that is one too many is refused before its backend is asked. *Slots*: as many steps run
at once as there are workers; the others wait in one line, first come first served. A page's first step may wait `wait`
seconds for its slot; a later step is never refused, since its page has begun.

All methods belong to the hub's thread: they are called from its greenlets or from its callbacks, and never wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent


class Overloaded(Exception):
    """A bound of the pool is reached; the text says which, and `limit` names it."""

    def __init__(self, text: str, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


class Job:
    """One step on its way through a pool; made by `RenderPool.submit`."""

    __slots__ = ("done", "timer", "work")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work = work
        self.done = done
        self.timer: Any = None


class RenderPool(ABC):
    """Runs steps of pages off the hub, `workers` of them at a time.

    Args:
        workers: how many steps run at once.
        wait: seconds a first step may wait for a slot.
        max_pages: pages that may be open at once.

    Attributes:
        open_pages: pages admitted that have not left.
        busy: slots in use.
    """

    #: The name in STREAMING_RENDER_POOL.
    name: str

    def __init__(self, *, workers: int, wait: float, max_pages: int) -> None:
        self.workers = workers
        self.wait = wait
        self.max_pages = max_pages
        self.open_pages = 0
        self.busy = 0
        self._line: deque[Job] = deque()

    @property
    def waiting(self) -> int:
        """Steps in the line."""
        return len(self._line)

    def admit(self) -> None:
        """Count one more open page; `leave` when it closes.

        Raises:
            Overloaded: `max_pages` are open.
        """
        if self.open_pages >= self.max_pages:
            raise Overloaded(f"{self.max_pages} pages are open", "max_pages")
        self.open_pages += 1

    def leave(self) -> None:
        """Count one open page less."""
        self.open_pages -= 1

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None], *, first: bool) -> Job:
        """Run `work` in a worker as soon as a slot is free.

        Args:
            work: called in a worker. What it raises is handed to `done` as a value.
            done: called on the hub, after `submit` has returned, with what `work` returned; with an `Overloaded` if a
                first step waited too long. It must not wait.
            first: whether this is a page's first step.
        """
        job = Job(work, done)
        if self.busy < self.workers:
            self._run(job)
            return job
        self._line.append(job)
        if first:
            job.timer = gevent.get_hub().loop.timer(self.wait)
            job.timer.start(self._refuse, job)
        return job

    def cancel(self, job: Job) -> bool:
        """Take a job out of the line; False if it runs already: it goes on, and its `done` is called as ever."""
        try:
            self._line.remove(job)
        except ValueError:
            return False
        self._stop_timer(job)
        return True

    def _refuse(self, job: Job) -> None:
        self._line.remove(job)
        self._stop_timer(job)
        job.done(Overloaded(f"no render slot in {self.wait:g} s", "render_wait"))

    def _run(self, job: Job) -> None:
        self._stop_timer(job)
        self.busy += 1
        self._start(job)

    def _finish(self, job: Job, result: Any) -> None:
        """Subclasses call this on the hub, once per started job."""
        self.busy -= 1
        # The next in line first: `done` may submit again, and must not overtake.
        if self._line:
            self._run(self._line.popleft())
        job.done(result)

    @staticmethod
    def _stop_timer(job: Job) -> None:
        if job.timer is not None:
            job.timer.close()
            job.timer = None

    @abstractmethod
    def _start(self, job: Job) -> None:
        """Begin `job.work` in a worker without waiting, and have `_finish` called on the hub with its result."""

    @abstractmethod
    def close(self) -> None:
        """End the workers. Idempotent; steps that run are not interrupted."""
