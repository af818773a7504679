"""The render pool: who is admitted, who waits, who is refused, and what comes back."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult, Event
from gevent.monkey import get_original

from pool.interface import Overloaded, RenderPool
from pool.threads import ThreadRenderPool
from tests.parts import until

LIMIT = 10  # seconds that anything here may take
WAIT = 0.05


class Gate:
    """Work that says when it has begun and ends when it is told to; its workers are native threads."""

    def __init__(self, result: Any = None) -> None:
        self._lock = get_original("_thread", "allocate_lock")()
        self._lock.acquire()
        self.has_begun = False
        self._result = result

    def __call__(self) -> Any:
        self.has_begun = True
        if not self._lock.acquire(True, LIMIT):
            raise AssertionError("the gate was never opened")
        return self._result

    def open(self) -> None:
        """Let the work end; as often as one likes."""
        if self._lock.locked():
            self._lock.release()


def run(pool: RenderPool, work: Callable[[], Any], *, first: bool = True) -> AsyncResult:
    """Submit work; what is handed to `done` can be waited for."""
    result = AsyncResult()
    pool.submit(work, result.set, first=first)
    return result


@pytest.fixture
def pool() -> Iterator[RenderPool]:
    """Two workers; a first step waits a moment; three pages."""
    pool = ThreadRenderPool(workers=2, wait=WAIT, max_pages=3)
    yield pool
    until(lambda: pool.busy == 0)
    pool.close()


@pytest.fixture
def gates(pool: RenderPool) -> Iterator[list[Gate]]:
    """Both workers are busy until their gates open."""
    gates = [Gate("one"), Gate("two")]
    for gate in gates:
        run(pool, gate)
    until(lambda: all(gate.has_begun for gate in gates))
    yield gates
    for gate in gates:
        gate.open()


# -- pages


def test_one_page_past_the_bound_is_refused(pool: RenderPool) -> None:
    for _ in range(3):
        pool.admit()
    with pytest.raises(Overloaded, match="3 pages"):
        pool.admit()
    assert pool.open_pages == 3


def test_a_page_that_leaves_makes_room(pool: RenderPool) -> None:
    for _ in range(3):
        pool.admit()
    pool.leave()
    pool.admit()
    with pytest.raises(Overloaded):
        pool.admit()


# -- results


def test_what_work_returns_is_handed_over(pool: RenderPool) -> None:
    assert run(pool, lambda: 7).get(timeout=LIMIT) == 7


@pytest.mark.parametrize("kind", [ValueError, OSError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_a_failure_is_a_value(pool: RenderPool, kind: type[BaseException], capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is raised on the hub and nothing is printed, and the worker goes on."""

    def fail() -> None:
        raise kind("broken")

    failure = run(pool, fail).get(timeout=LIMIT)
    assert type(failure) is kind
    assert run(pool, lambda: 8).get(timeout=LIMIT) == 8
    assert capfd.readouterr().err == ""


def test_work_runs_off_the_hub_and_done_on_it(pool: RenderPool) -> None:
    identify = get_original("_thread", "get_ident")
    result = AsyncResult()
    pool.submit(identify, lambda worker: result.set((worker, identify())), first=True)
    worker, hub = result.get(timeout=LIMIT)
    assert hub == identify()
    assert worker != hub


# -- slots


def test_as_many_steps_run_at_once_as_there_are_workers_and_no_more(pool: RenderPool, gates: list[Gate]) -> None:
    third = Gate()
    result = run(pool, third, first=False)
    assert (pool.busy, pool.waiting, third.has_begun) == (2, 1, False)
    gates[0].open()
    until(lambda: third.has_begun)
    assert (pool.busy, pool.waiting) == (2, 0)
    third.open()
    result.get(timeout=LIMIT)


def test_submitting_never_waits(pool: RenderPool, gates: list[Gate]) -> None:
    """Also when every worker is busy: the caller is a callback of the hub."""
    switched = Event()
    gevent.spawn(switched.set)
    for _ in range(100):
        run(pool, lambda: None, first=False)
    assert not switched.is_set()
    assert pool.waiting == 100


def test_the_line_is_first_come_first_served(pool: RenderPool, gates: list[Gate]) -> None:
    order: list[int] = []
    for number in range(20):
        pool.submit(lambda number=number: order.append(number), lambda _: None, first=number % 3 == 0)
    gates[0].open()  # one worker runs them all
    until(lambda: len(order) == 20)
    assert order == list(range(20))


def test_a_step_submitted_when_one_ends_does_not_overtake_the_line(pool: RenderPool, gates: list[Gate]) -> None:
    order: list[str] = []
    ends = Gate()

    def submit_again(_: Any) -> None:
        pool.submit(lambda: order.append("again"), lambda _: None, first=False)

    pool.submit(ends, submit_again, first=False)
    pool.submit(lambda: order.append("waiting"), lambda _: None, first=False)
    gates[0].open()
    until(lambda: ends.has_begun)
    ends.open()
    until(lambda: len(order) == 2)
    assert order == ["waiting", "again"]


# -- refusals


def test_a_first_step_is_refused_when_it_has_waited_too_long(pool: RenderPool, gates: list[Gate]) -> None:
    began = time.monotonic()
    work = Gate()
    refusal = run(pool, work, first=True).get(timeout=LIMIT)
    assert isinstance(refusal, Overloaded)
    assert time.monotonic() - began >= 0.8 * WAIT  # timers count from the hub's own idea of now
    assert pool.waiting == 0
    assert not work.has_begun


def test_a_refused_step_is_never_run(pool: RenderPool, gates: list[Gate]) -> None:
    ran: list[str] = []
    assert isinstance(run(pool, lambda: ran.append("refused")).get(timeout=LIMIT), Overloaded)
    gates[0].open()
    run(pool, lambda: ran.append("later"), first=False).get(timeout=LIMIT)
    assert ran == ["later"]


def test_a_later_step_is_never_refused(pool: RenderPool, gates: list[Gate]) -> None:
    """Its page has begun. It waits behind a first step that is refused meanwhile, and longer."""
    later = run(pool, lambda: "later", first=False)
    assert isinstance(run(pool, lambda: None, first=True).get(timeout=LIMIT), Overloaded)
    assert isinstance(run(pool, lambda: None, first=True).get(timeout=LIMIT), Overloaded)
    assert not later.ready()
    gates[0].open()
    assert later.get(timeout=LIMIT) == "later"


def test_a_first_step_that_got_its_slot_in_time_is_not_refused_while_it_runs(
    pool: RenderPool, gates: list[Gate]
) -> None:
    work = Gate("rendered")
    results: list[Any] = []
    job = pool.submit(work, results.append, first=True)
    assert job.timer is not None
    gates[0].open()
    until(lambda: work.has_begun)
    assert job.timer is None
    # Longer than the step might have waited: a refusal of the same moment's other step proves that timers ran.
    extra = Gate()
    run(pool, extra, first=False)
    assert isinstance(run(pool, lambda: None).get(timeout=LIMIT), Overloaded)
    work.open()
    until(lambda: results)
    assert results == ["rendered"]
    extra.open()


# -- leaving the line


@pytest.mark.parametrize("first", [True, False])
def test_a_cancelled_step_leaves_the_line_with_its_timer(pool: RenderPool, gates: list[Gate], first: bool) -> None:
    """It is neither run nor refused; nobody is told, since nobody wants to know."""
    told: list[Any] = []
    job = pool.submit(lambda: told.append("ran"), told.append, first=first)
    assert pool.cancel(job)
    assert pool.waiting == 0
    assert job.timer is None
    assert isinstance(run(pool, lambda: None).get(timeout=LIMIT), Overloaded)  # as long as its timer would have taken
    gates[0].open()
    run(pool, lambda: None, first=False).get(timeout=LIMIT)
    assert told == []


def test_cancelling_twice_or_late_does_nothing(pool: RenderPool, gates: list[Gate]) -> None:
    results: list[Any] = []
    waiting = pool.submit(lambda: None, results.append, first=True)
    assert pool.cancel(waiting)
    assert not pool.cancel(waiting)
    gates[0].open()
    ran = pool.submit(lambda: "ran", results.append, first=False)
    until(lambda: results)
    pool.cancel(ran)
    assert results == ["ran"]


def test_a_running_step_goes_on_when_it_is_cancelled(pool: RenderPool) -> None:
    """Its slot is in use until it returns, and its `done` is called as ever."""
    work, results = Gate("done"), []
    job = pool.submit(work, results.append, first=True)
    until(lambda: work.has_begun)
    assert not pool.cancel(job)
    assert pool.busy == 1
    work.open()
    until(lambda: results)
    assert (results, pool.busy) == (["done"], 0)


def test_closing_twice_is_closing_once() -> None:
    pool = ThreadRenderPool(workers=1, wait=WAIT, max_pages=1)
    run(pool, lambda: None).get(timeout=LIMIT)
    pool.close()
    pool.close()
    assert pool.busy == 0


# -- forks


def test_a_forked_process_has_a_pool_of_its_own() -> None:
    """The parent has used its pool; the child's first use makes another, which works, and the parent's still does."""
    script = """
        from gevent import monkey
        monkey.patch_all()
        import os
        import sys
        import gevent
        from flask import Flask
        from gevent.event import AsyncResult
        from streaming import Streaming

        app = Flask("forked")
        Streaming(app)
        state = app.extensions["streaming"]

        def step():
            result = AsyncResult()
            state.shared.pool.submit(lambda: "rendered", result.set, first=True)
            return result.get(timeout=10)

        assert step() == "rendered"
        parents = state.shared
        assert state.shared is parents
        child = os.fork()
        if child == 0:
            ok = False
            try:
                ok = step() == "rendered" and state.shared is not parents and state.shared.pool.open_pages == 0
            finally:
                os._exit(0 if ok else 1)
        with gevent.Timeout(20):
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert state.shared is parents
        assert step() == "rendered"
        print("both rendered")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert (done.stdout, done.returncode) == ("both rendered\n", 0), done.stderr
