"""Giving way: who has input is served before whoever gives way goes on."""

from __future__ import annotations

import socket
import time

import gevent

from streaming.turns import PATIENCE, breathe, give_way


def test_sockets_with_input_are_served_before_the_one_that_gives_way_goes_on() -> None:
    """At a timer's usual priority the loop would run it before the sockets, each time."""
    here, there = socket.socketpair()
    order: list[str] = []
    watcher = gevent.get_hub().loop.io(here.fileno(), 1)
    watcher.start(lambda: (order.append("socket"), watcher.stop()))
    there.send(b"x")
    give_way()
    order.append("here")
    watcher.close()
    here.close()
    there.close()
    assert order == ["socket", "here"]


def test_whoever_gives_way_goes_on_though_others_never_wait() -> None:
    """Input that is always there keeps nobody out."""
    here, there = socket.socketpair()
    there.send(b"x")
    watcher = gevent.get_hub().loop.io(here.fileno(), 1)  # nobody reads it, so it is called in each turn of the loop
    turns: list[int] = []
    watcher.start(turns.append, 1)
    for _ in range(10):
        give_way()
    watcher.close()
    here.close()
    there.close()
    assert 10 <= len(turns) <= 30


def test_those_who_give_way_take_turns() -> None:
    """Whoever works longest has no more of them than the others."""
    turns = [0] * 3
    end = 200

    def work(number: int) -> None:
        while sum(turns) < end:
            turns[number] += 1
            busy_until = time.monotonic() + PATIENCE * 1.5
            while time.monotonic() < busy_until:
                pass
            breathe()

    gevent.joinall([gevent.spawn(work, number) for number in range(len(turns))], raise_error=True)
    assert max(turns) - min(turns) <= 3


def test_one_that_is_killed_while_it_waits_for_its_turn_leaves_the_line() -> None:
    order: list[str] = []

    def wait(name: str) -> None:
        give_way()
        order.append(name)

    first, second = gevent.spawn(wait, "first"), gevent.spawn(wait, "second")
    gevent.idle()
    first.kill()
    second.join()
    give_way()
    assert order[-1] == "second"
    assert first.dead


def test_the_hub_itself_does_not_wait_for_a_turn() -> None:
    """A callback of the hub may append text."""
    ran: list[bool] = []

    def callback() -> None:
        give_way()
        ran.append(True)

    gevent.get_hub().loop.run_callback(callback)
    gevent.sleep(0.001)
    assert ran == [True]
