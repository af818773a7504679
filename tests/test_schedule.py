"""What is due when: leading edge, one grid, a flush after every mark, events at once; all with time as an argument."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.protocol.schedule import IDLE, NOW, TICK, Schedule

INTERVAL = 0.05


class Item:
    """Something that can be due."""

    def __init__(self, flushed_at: float = -inf) -> None:
        self.due = IDLE
        self.flushed_at = flushed_at


def schedule(**options: bool) -> Schedule[Item]:
    return Schedule(INTERVAL, **options)


def test_nothing_is_due_at_first() -> None:
    due = schedule()
    assert due.next_at is None
    assert due.take(1_000.0) == []


def test_the_first_text_after_a_quiet_spell_goes_at_once() -> None:
    due, item = schedule(), Item()
    due.mark(item, 10.01)
    assert due.next_at == 0.0
    assert due.take(10.01) == [item]
    assert (item.due, item.flushed_at) == (IDLE, 10.01)
    assert due.next_at is None


def test_what_follows_goes_at_the_next_tick() -> None:
    due, item = schedule(), Item(flushed_at=10.01)
    due.mark(item, 10.02)
    assert item.due == TICK
    assert due.next_at == pytest.approx(10.05)
    assert due.take(10.04) == []
    assert due.next_at is not None
    assert due.take(due.next_at) == [item]


def test_a_quiet_spell_is_one_interval_long() -> None:
    due, early, late = schedule(), Item(1.0), Item(1.0)
    due.mark(early, 1.0 + INTERVAL - 0.001)
    due.mark(late, 1.0 + INTERVAL + 0.001)
    assert (early.due, late.due) == (TICK, NOW)


def test_streams_that_are_busy_share_one_tick() -> None:
    due = schedule()
    items = [Item(flushed_at=10.0 + number / 1_000) for number in range(40)]
    for number, item in enumerate(items):
        due.mark(item, 10.001 + number / 1_000)
    assert due.next_at == pytest.approx(10.05)
    assert due.take(10.0501) == items


def test_a_mark_is_once_however_often_it_is_set() -> None:
    due, item = schedule(), Item(flushed_at=10.0)
    for number in range(1_000):
        due.mark(item, 10.001 + number / 100_000)
    assert due._tick == [item]
    assert due.take(10.06) == [item]
    assert due.take(10.11) == []


def test_a_mark_while_flushing_gets_a_flush_after_it() -> None:
    due, item = schedule(), Item()
    due.mark(item, 10.0)
    assert due.take(10.0) == [item]
    due.mark(item, 10.0)
    assert due.next_at == pytest.approx(10.05)
    assert due.take(10.0501) == [item]


def test_an_event_makes_its_stream_due_at_once_and_once_only() -> None:
    due, item = schedule(), Item(flushed_at=10.0)
    due.mark(item, 10.01)
    due.hurry(item)
    due.hurry(item)
    assert due.next_at == 0.0
    assert due.take(10.02) == [item]
    assert due.take(10.06) == []
    assert due.next_at is None


def test_one_that_was_hurried_and_marked_again_goes_once_at_the_tick() -> None:
    due, item = schedule(), Item(flushed_at=10.0)
    due.mark(item, 10.01)
    due.hurry(item)
    assert due.take(10.02) == [item]
    due.mark(item, 10.03)
    assert due.take(10.0501) == [item]
    assert due.take(10.11) == []


def test_one_that_is_hurried_when_its_tick_comes_goes_once() -> None:
    due, item = schedule(), Item(flushed_at=10.0)
    due.mark(item, 10.01)
    due.hurry(item)
    assert due.take(10.06) == [item]


def test_without_an_interval_everything_goes_at_once() -> None:
    due: Schedule[Item] = Schedule(0.0)
    item = Item(flushed_at=10.0)
    due.mark(item, 10.0)
    assert due.next_at == 0.0
    assert due.take(10.0) == [item]


def test_without_a_leading_edge_everything_waits_for_the_tick() -> None:
    due, item = schedule(leading=False), Item()
    due.mark(item, 10.01)
    assert due.take(10.02) == []
    assert due.take(10.0501) == [item]


def test_a_mark_after_a_late_tick_goes_with_it() -> None:
    due, one, other = schedule(), Item(flushed_at=10.0), Item(flushed_at=10.0)
    due.mark(one, 10.01)
    due.mark(other, 10.049)
    assert due.take(10.2) == [one, other]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["mark", "mark", "hurry", "take", "wake"]),
        st.integers(0, 3),
        st.floats(0.0, 0.12, allow_nan=False),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0.0, 0.001, 0.05, 0.333, 1.0]), st.booleans(), st.floats(0, 1e6))
def test_every_mark_is_followed_by_a_flush_within_one_interval(
    steps: list[tuple[str, int, float]], interval: float, leading: bool, now: float
) -> None:
    """Whoever takes at `next_at` meets each mark's deadline, takes none twice, and never waits for the next token."""
    due: Schedule[Item] = Schedule(interval, leading=leading)
    items = [Item() for _ in range(4)]
    since: dict[Item, float] = {}
    hurried: set[Item] = set()

    def wake_until(end: float) -> None:
        while due.next_at is not None and due.next_at <= end:
            take(max(due.next_at, now))

    def take(at: float) -> None:
        taken = due.take(at)
        assert len(taken) == len({*taken})
        assert hurried <= {*taken}
        hurried.clear()
        for item in taken:
            assert at - since.pop(item) <= interval + 1e-9 * max(1.0, at)

    for action, number, pause in steps:
        wake_until(now + pause)
        now += pause
        item = items[number]
        if action == "mark":
            since.setdefault(item, now)
            due.mark(item, now)
        elif action == "hurry":
            since.setdefault(item, now)
            due.hurry(item)
            hurried.add(item)
        elif action == "take":
            take(now)
        assert {each for each in items if each.due} == {*since}
    wake_until(now + 2 * interval + 1)
    assert since == {}
    assert due.next_at is None
