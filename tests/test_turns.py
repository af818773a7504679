"""Giving way: who has input is served before whoever gives way goes on."""

from __future__ import annotations

import socket

import gevent

from streaming.turns import give_way


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
