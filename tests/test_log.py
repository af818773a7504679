"""A stream's log: numbers without holes, bounds, and the runs of text between events."""

from __future__ import annotations

from random import Random

import pytest

from streaming.protocol.log import MAX_RUNS, RUN_BYTES, EventLog, Gap
from streaming.protocol.text import Part

PLENTY = 10**9


def part(p: int = 1) -> Part:
    return Part(p, "m1", 0, "text", b"{}")


def grow(gap: Gap, part: Part, text: str = "a") -> None:
    part.append(text)
    gap.add(part)


def runs(gap: Gap) -> list[tuple[int, int]]:
    return [(run.part.p, run.end) for run in gap.runs]


# -- events


def test_events_are_numbered_from_one_without_holes() -> None:
    log = EventLog(3, PLENTY, PLENTY)
    for expected in range(1, 8):
        assert log.add("note", b"1").seq == expected
        log.trim()
        assert [*log.entries] == [*range(log.floor + 1, log.head + 1)]
    assert (log.floor, log.head) == (4, 7)


def test_the_floor_is_the_newest_event_that_was_dropped() -> None:
    log = EventLog(2, PLENTY, PLENTY)
    log.add("note", b"1")
    log.add("note", b"2")
    assert log.trim() == []
    assert log.floor == 0
    log.add("note", b"3")
    assert [entry.seq for entry in log.trim()] == [1]
    assert log.floor == 1


def test_the_log_holds_exactly_its_bytes_and_not_one_more() -> None:
    log = EventLog(100, 10, PLENTY)
    log.add("note", b"12345")
    log.add("note", b"12345")
    assert log.trim() == []
    log.add("note", b"6")
    assert [entry.seq for entry in log.trim()] == [1]
    log.add("note", b"1234")
    assert log.trim() == []


def test_runs_count_against_the_bytes_of_the_log() -> None:
    log = EventLog(100, 2 * RUN_BYTES, PLENTY)
    one, other = part(1), part(2)
    grow(log.gap, one)
    grow(log.gap, other)
    log.add("note", b"")
    assert log.trim() == []
    log.add("note", b"1")
    assert [entry.seq for entry in log.trim()] == [1]
    log.add("note", b"2" * (2 * RUN_BYTES - 1))
    assert log.trim() == []


def test_text_of_ended_parts_is_bounded_one_code_point_past_it_goes() -> None:
    log = EventLog(100, PLENTY, 10)
    one, other, third = part(1), part(2), part(3)
    one.append("\U0001f600" * 5)
    other.append("12345")
    third.append("6")
    log.add("part.end", b"", ends=one)
    log.add("part.end", b"", ends=other)
    assert log.trim() == []
    log.add("part.end", b"", ends=third)
    assert [entry.part for entry in log.trim()] == [one]
    one.append("4567")
    log.add("part.end", b"", ends=one)
    assert [entry.part for entry in log.trim()] == [other]


def test_the_newest_event_stays_whatever_it_takes() -> None:
    log = EventLog(1, 1, 0)
    huge = part()
    huge.append("x" * 100)
    log.add("note", b"1")
    log.add("part.end", b"x" * 100, ends=huge)
    assert [entry.seq for entry in log.trim()] == [1]
    assert [*log.entries] == [2]
    log.add("note", b"")
    log.trim()
    assert [*log.entries] == [3]


# -- runs


def test_an_event_takes_the_runs_that_came_before_it_with_it() -> None:
    log = EventLog(9, PLENTY, PLENTY)
    one = part()
    grow(log.gap, one, "ab")
    entry = log.add("note", b"1")
    grow(log.gap, one, "c")
    assert runs(entry.gap) == [(1, 2)]
    assert runs(log.gap) == [(1, 3)]


def test_consecutive_runs_of_one_part_are_one_run_that_grows() -> None:
    gap, one, other = Gap(), part(1), part(2)
    for _ in range(10_000):
        grow(gap, one)
    grow(gap, other)
    grow(gap, one)
    assert runs(gap) == [(1, 10_000), (2, 1), (1, 10_001)]
    assert gap.tip == 2


def test_an_empty_gap_has_a_tip_to_go_on_with() -> None:
    gap = Gap()
    assert gap.tip == 0
    grow(gap, part())
    assert gap.tip == 0


def test_parts_that_alternate_without_end_are_merged_beyond_the_bound() -> None:
    gap, parts = Gap(), [part(1), part(2)]
    for number in range(MAX_RUNS):
        grow(gap, parts[number % 2])
    assert len(gap.runs) == MAX_RUNS
    assert gap.merged == 0
    grow(gap, parts[0])
    assert len(gap.runs) == MAX_RUNS // 2 + 3
    assert gap.tip == MAX_RUNS
    for number in range(10 * MAX_RUNS):
        grow(gap, parts[number % 2])
        assert len(gap.runs) <= MAX_RUNS


@pytest.mark.parametrize("many", [2, 3, 700, 3_000])
def test_a_reader_at_any_old_run_still_gets_everything_of_each_part(many: int) -> None:
    """Wherever it was before the merging; what it has already it skips by offset, and it never meets a hole."""
    random = Random(many)
    gap, parts = Gap(), [part(p) for p in range(1, many + 1)]
    readers: list[tuple[int, dict[int, int]]] = []
    for number in range(4 * MAX_RUNS):
        grow(gap, random.choice(parts) if many < 1_000 else parts[number % many])
        if number % 61 == 0 or abs(number % MAX_RUNS) < 2:
            readers.append((gap.tip, {each.p: each.length for each in parts if each.length}))
        if gap.merged and number % MAX_RUNS == 17:
            for run, offsets in readers:
                reached = dict(offsets)
                for item in gap.runs[gap.index(run) :]:
                    reached[item.part.p] = max(reached.get(item.part.p, 0), item.end)
                assert reached == {each.p: each.length for each in parts if each.length}
    assert many > 2_048 or len(gap.runs) <= MAX_RUNS


@pytest.mark.parametrize("many", [2_047, 6_000])
def test_merging_costs_little_for_each_run_however_many_parts_there_are(many: int) -> None:
    """More parts than the older half has room for: nothing can be merged, and it is not tried at each run."""

    class Counted(Part):
        hashed = 0

        def __hash__(self) -> int:
            Counted.hashed += 1
            return id(self)

    gap, parts = Gap(), [Counted(p, "m1", 0, "text", b"{}") for p in range(many)]
    for number in range(3 * len(parts)):
        grow(gap, parts[number % len(parts)])
    assert Counted.hashed < 20 * 3 * len(parts)
    assert len(gap.runs) < 3 * len(parts)
