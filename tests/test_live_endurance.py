"""What stays after many connections: nothing; and how many messages busy streams make that nobody looks at."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.live import UPGRADE, LiveSite
from tests.parts import Client, until

CYCLES = 3_000
PAGE = 4_096


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def visit(site: LiveSite, number: int) -> None:
    """Connect on one carrier or another, read the beginning, and leave in one way or another."""
    client = Client(site.port)
    if number % 3 == 0:
        client.ask("/streams/ws", headers=UPGRADE).until(b'"t":"hello"')
    elif number % 3 == 1:
        client.ask("/streams/chat/events").until(b'"t":"delta"')
    else:
        client.ask("/streams/chat/records").until(b'"t":"delta"')
    client.leave(reset=number % 2 == 0)


@pytest.mark.timeout(120)
def test_3000_connections_come_and_go_and_leave_nothing(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    message.append("Hello")

    def visits(first: int, last: int) -> None:
        for number in range(first, last):
            visit(live_site, number)

    def run(first: int, last: int) -> None:
        size = (last - first) // 10
        gevent.joinall(
            [gevent.spawn(visits, start, start + size) for start in range(first, last, size)], raise_error=True
        )
        until(lambda: not live_site.hub.connections, "all connections to be gone")

    run(0, 1_000)  # what is made once, and what the allocator keeps
    before = resident()
    run(1_000, CYCLES)
    assert not live_site.subscribers
    assert resident() - before < 1_000_000  # 2,000 connections: less than half a kilobyte each
    message.end()


def test_64_busy_streams_in_the_background_make_no_more_than_three_and_a_half_messages_a_second(
    live_site: LiveSite,
) -> None:
    live_site.configure(flush_interval=0.05, background_interval=0.333)
    messages = [live_site.message(f"run-{number}") for number in range(64)]
    client = live_site.websocket()
    client.say(*({"t": "subscribe", "sid": f"run-{number}", "mode": "activity"} for number in range(64)))
    client.settle()
    is_over = False

    def produce() -> None:
        while not is_over:
            for message in messages:
                message.append("word ")
            gevent.sleep(0.01)

    producer = gevent.spawn(produce)
    client.answer("activity")
    count, began = len(client.messages), time.monotonic()
    client.wait(lambda: len(client.messages) - count >= 6, "six messages")
    took = time.monotonic() - began
    is_over = True
    producer.join()
    assert 6 / took <= 3.5
    assert all(frame["t"] == "activity" for message in client.messages[count:] for frame in message)
    items: list[Any] = client.messages[-1][0]["items"]
    assert len(items) == 64
    for message in messages:
        message.end()
