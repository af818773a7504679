"""Making gevent's locks safe between native threads.

After `gevent.monkey.patch_all()` every lock of Python, those of `logging` among them, is a gevent lock. Such a lock is
made for the greenlets of one hub. Between native threads, or between one and the hub, gevent 26.9 can lose a wake-up:
the lock is free and somebody waits for it for ever (gevent issue 2013). Render threads run templates, and a filter that
logs is enough to meet the hub's log there. So whoever makes native threads in a patched process mends the locks first.
"""

from __future__ import annotations

from typing import Any

from gevent.thread import LockType

# Seconds after which a waiter looks again; what a lost wake-up costs.
LOOK_AGAIN = 0.005

_acquire = LockType.acquire


def mend_locks() -> None:
    """Let waiters of a lock look again every few milliseconds. For the whole process; calling it again does nothing.

    A lock that is free is taken as before, and a waiter is woken as before: this costs something only where a wake-up
    would have been lost.
    """
    LockType.acquire = _acquire_looking_again
    LockType.__enter__ = _acquire_looking_again


def _acquire_looking_again(lock: Any, blocking: bool = True, timeout: float | None = -1) -> bool:
    if not blocking or timeout not in (-1, None):
        return bool(_acquire(lock, blocking, timeout))
    while not _acquire(lock, True, LOOK_AGAIN):
        pass
    return True
