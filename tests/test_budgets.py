"""How many messages and bytes an answer costs a client, counted: the real parts of the path, on a clock of the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import pytest

from streaming.live.transports.ndjson import CHUNKED_NDJSON
from streaming.live.transports.sse import CHUNKED_SSE
from streaming.live.transports.websocket import WEBSOCKET
from streaming.protocol import frames
from streaming.protocol.schedule import IDLE, Schedule
from streaming.protocol.stream import Event, Stream, Text

TOKEN = "word "
RATE = 100  # tokens a second
CARRIERS = {"websocket": WEBSOCKET, "sse": CHUNKED_SSE, "ndjson": CHUNKED_NDJSON}


@dataclass
class Item:
    """A stream in the schedule, and what was appended since its last flush."""

    due: int = IDLE
    flushed_at: float = -inf
    pending: str = ""


def cost(tokens: int, carrier: str, sid: str = "chat-1") -> tuple[list[int], float]:
    """The sizes of the messages that carry an answer of so many tokens, at 100 a second; and how long it took."""
    stream, schedule, item = Stream(sid, "epoch1234567", 2_000, 8_388_608, 25_000_000), Schedule[Item](0.05), Item()
    start = frames.message_start("m1", "assistant", b"{}")
    stream.apply(Event("message.start", start, detail={"mid": "m1", "role": "assistant", "meta": b"{}"}))
    part = frames.part_start("m1", 0, "text", b"{}")
    stream.apply(Event("part.start", part, detail={"mid": "m1", "part": 0, "kind": "text", "meta": b"{}"}))
    cursor = stream.cut(stream.start(None)).after
    sizes: list[int] = []

    def flush(now: float) -> Iterator[int]:
        nonlocal cursor
        for taken in schedule.take(now):
            stream.apply(Text(2, taken.pending))
            taken.pending = ""
            cut = stream.cut(cursor)
            cursor = cut.after
            yield len(CARRIERS[carrier].message(cut, stream.epoch))

    for number in range(tokens):
        now = 1_000.003 + number / RATE  # not on a tick
        while schedule.next_at is not None and schedule.next_at <= now:
            sizes += flush(max(schedule.next_at, 0) or now)
        item.pending += TOKEN
        schedule.mark(item, now)
    while schedule.next_at is not None:
        sizes += flush(schedule.next_at or now)
    assert sum(part.length for part in stream.parts.values()) == tokens * len(TOKEN)
    return sizes, tokens / RATE


@pytest.mark.parametrize("carrier", CARRIERS)
def test_ten_times_the_tokens_cost_about_ten_times_the_bytes(carrier: str) -> None:
    """Not a hundred times, as where each message has the text so far."""
    short, long = (sum(cost(tokens, carrier)[0]) for tokens in (1_000, 10_000))
    assert long / short <= 10.2


def test_ten_thousand_tokens_fit_their_budget_on_a_websocket() -> None:
    total = sum(cost(10_000, "websocket")[0])
    assert total <= 0.5 * 2**20
    assert total <= 3.5 * 10_000 * len(TOKEN)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_client_gets_at_most_20_messages_a_second(carrier: str) -> None:
    sizes, seconds = cost(10_000, carrier)
    assert len(sizes) <= 20 * seconds + 1


def test_a_message_costs_the_same_at_the_end_of_a_long_answer_as_at_its_beginning() -> None:
    """But for the digits of its offset."""
    sizes, _ = cost(10_000, "websocket")
    assert max(sizes[-100:]) - min(sizes[10:100]) <= 2 + len(TOKEN)
