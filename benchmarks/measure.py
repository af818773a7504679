"""What benchmarks measure with: medians, processor clocks, memory, and a ticker that sees the hub stand still."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import gevent

__all__ = [
    "Process",
    "ProcessorClock",
    "Ticker",
    "children",
    "median",
    "p95",
    "process_cpu",
    "resident_bytes",
    "trim_memory",
]


def p95(values: Sequence[float]) -> float:
    """The 95th percentile: `sorted[floor((n - 1) * 0.95)]`, a value that was really measured."""
    return sorted(values)[math.floor((len(values) - 1) * 0.95)]


def children() -> list[int]:
    """Ids of the processes that this one has started and that live."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def process_cpu(pid: int) -> float:
    """Seconds of processor time that another process has used, in nanosecond resolution."""
    # The clock that clock_getcpuclockid(3) names; Python does not have that function.
    return time.clock_gettime(~pid << 3 | 2)


class ProcessorClock:
    """Seconds of processor time of this process and of some others, such as a pool's workers."""

    def __init__(self, others: Sequence[int] = ()) -> None:
        self._others = tuple(others)

    def __call__(self) -> float:
        """Read the clock."""
        return time.process_time() + sum(map(process_cpu, self._others))


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim_memory() -> None:
    """Make the C library return to the system what it holds and nobody uses."""
    ctypes.CDLL(None).malloc_trim(0)


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


_TFD_NONBLOCK, _TFD_ABSTIME = os.O_NONBLOCK, 1


class Ticker:
    """Measures how long the hub lets an event wait: a kernel timer of 250 µs, watched as sockets are watched.

    It knows when each tick was due, and takes the time until the hub's callback for it. So it is near zero on an idle
    hub, and as long as the gap on a hub that does not turn. A greenlet that spins would change what it measures.
    """

    INTERVAL_NS = 250_000

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due = time.monotonic_ns() + self.INTERVAL_NS
        spec = _TimerSpec(0, self.INTERVAL_NS, *divmod(self._due, 10**9))
        if libc.timerfd_settime(self._descriptor, _TFD_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._longest = 0
        self._watcher = gevent.get_hub().loop.io(self._descriptor, 1)
        self._watcher.start(self._tick)

    def longest_gap(self, action: Callable[[], object]) -> float:
        """Run `action` in this greenlet; return the longest time in seconds that a tick waited meanwhile."""
        gevent.sleep(0.001)
        self._longest = 0
        action()
        # A tick that was due during the action may not have been seen yet.
        gevent.sleep(0.0005)
        return self._longest / 1e9

    def close(self) -> None:
        """Stop the timer."""
        self._watcher.close()
        os.close(self._descriptor)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        expired = int.from_bytes(os.read(self._descriptor, 8), "little")
        self._longest = max(self._longest, now - self._due)
        self._due += expired * self.INTERVAL_NS


class Process:
    """One of the scripts beside this module, running in a process without gevent; it prints its port first.

    Attributes:
        port: where it listens on 127.0.0.1.
        pid: its id.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
