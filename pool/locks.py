"""Making gevent's locks safe between native threads.

After `gevent.monkey.patch_all()` every lock of Python, those of `logging` among them, is a gevent lock: made for the
greenlets of one hub. Between native threads, or between one and the hub, gevent 26.9 loses wake-ups, so that somebody
waits for ever for a lock that is free; others it delivers to a greenlet that waits for something else by then (gevent
issue 2013). Render threads run templates, and a filter that logs is enough to meet the hub's log there. So whoever
makes native threads in a patched process mends the locks first.

How. A lock that a thread other than the hub's has touched is *shared*, for good. Nobody is woken for a shared lock:
whoever waits looks again after a moment. Taking a free lock is one step under the interpreter lock, so that is safe for
any mixture of threads and greenlets. All other locks work as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from gevent.monkey import get_original
from gevent.thread import LockType

# Seconds between two looks at a shared lock: from the first, doubling to the second. What holds such a lock is mostly
# somebody who writes a line of log.
FIRST_LOOK, LAST_LOOK = 0.0002, 0.01
# Seconds that a callback of the hub waits for a shared lock. It keeps the hub from turning meanwhile, as gevent has no
# other way for a callback to wait; it goes on without the lock rather than stop the process.
HUB_PATIENCE = 1.0

_thread_of = get_original("_thread", "get_ident")
_sleep_in_thread = get_original("time", "sleep")
_acquire, _release = LockType.acquire, LockType.release


def mend_locks() -> None:
    """Make all locks safe between this thread, whose hub serves, and others. For the whole process; idempotent."""
    hub, hub_thread = gevent.get_hub(), _thread_of()

    def acquire(lock: Any, blocking: bool = True, timeout: float | None = -1) -> bool:
        """`Lock.acquire`, which never links a waiter to a shared lock."""
        if _thread_of() != hub_thread:
            lock.is_shared = True
        elif not lock.is_shared:
            return bool(_acquire(lock, blocking, timeout))
        if BoundedSemaphore.acquire(lock, False):
            return True
        if not blocking:
            return False
        if timeout is None or timeout < 0:
            timeout = float("inf")
        if _thread_of() != hub_thread:
            return _look_again(lock, timeout, _sleep_in_thread)
        if gevent.getcurrent() is hub:
            return _look_again(lock, min(timeout, HUB_PATIENCE), _sleep_in_thread)
        return _look_again(lock, timeout, gevent.sleep)

    def release(lock: Any) -> int:
        """`Lock.release`, which never wakes a greenlet from a thread that is not its own."""
        if lock.is_shared and lock.linkcount() and _thread_of() != hub_thread:
            # Greenlets wait for it from before it was shared. Only on their own hub can they be woken.
            hub.loop.run_callback_threadsafe(_release, lock)
            return 1
        return int(_release(lock))  # gevent's compiled callers want its number

    LockType.is_shared = False
    LockType.acquire = LockType.__enter__ = acquire
    LockType.release = release


def _look_again(lock: Any, timeout: float, sleep: Callable[[float], object]) -> bool:
    """Wait for a shared lock for at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = FIRST_LOOK
    while time.monotonic() < deadline:
        sleep(min(pause, timeout))
        if BoundedSemaphore.acquire(lock, False):
            return True
        pause = min(2 * pause, LAST_LOOK)
    return False
