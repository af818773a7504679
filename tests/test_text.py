"""A part's text: halves of surrogate pairs, and cuts at any offset that cost what they yield."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streaming.protocol.text import JOINED, Part, settle

SMILE = "\U0001f600"
HIGH, LOW = "\ud83d", "\ude00"

#: Halves in every order, among what is whole.
PIECES = st.lists(
    st.sampled_from(["a", "é", HIGH, LOW, SMILE, "\ud800", "\udbff", "\udc00", "\udfff", ""]), max_size=12
)


def mended(text: str) -> str:
    """The rule as plainly as it can be put: pairs are joined, what is left of halves is U+FFFD."""
    joined = re.sub(
        "([\ud800-\udbff])([\udc00-\udfff])",
        lambda pair: chr(0x10000 + (ord(pair[1]) - 0xD800) * 0x400 + ord(pair[2]) - 0xDC00),
        text,
    )
    return re.sub("[\ud800-\udfff]", "\ufffd", joined)


def part(*runs: str) -> Part:
    """A part with these runs."""
    part = Part(7, "m1", 0, "text", b"{}")
    for run in runs:
        part.append(run)
    return part


# -- halves of pairs


def test_half_a_pair_is_held_back_until_the_other_half_comes() -> None:
    assert settle("ab" + HIGH) == ("ab", HIGH)
    assert settle(HIGH + LOW + "c") == (SMILE + "c", "")


def test_half_a_pair_alone_is_held_back_and_nothing_is_sent() -> None:
    assert settle(HIGH) == ("", HIGH)


def test_half_a_pair_becomes_a_replacement_character_at_the_end_of_the_part() -> None:
    assert settle("ab" + HIGH, final=True) == ("ab\ufffd", "")
    assert settle("", final=True) == ("", "")


def test_half_a_pair_that_can_have_no_partner_is_not_held_back() -> None:
    assert settle("a" + LOW) == ("a\ufffd", "")
    assert settle(HIGH + "a") == ("\ufffda", "")
    assert settle(HIGH + HIGH) == ("\ufffd", HIGH)


def test_whole_text_passes_as_the_same_object() -> None:
    for text in ("", "plain", "é" + SMILE):
        assert settle(text)[0] is text


@given(PIECES)
def test_settled_text_is_the_mended_text_however_it_was_cut(pieces: list[str]) -> None:
    sent, held = [], ""
    for piece in pieces:
        text, held = settle(held + piece)
        text.encode()  # each run by itself can be sent
        assert held == "" or len(held) == 1
        sent.append(text)
    text, held = settle(held, final=True)
    assert held == ""
    assert "".join([*sent, text]) == mended("".join(pieces))


# -- cuts


@given(st.lists(st.text(max_size=4), max_size=8) | st.lists(st.text(max_size=2), min_size=60, max_size=200), st.data())
def test_a_cut_is_the_slice_of_the_whole_text(runs: list[str], data: st.DataObject) -> None:
    whole = "".join(runs)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert part(*runs).cut(start, stop) == whole[start:stop]


def test_offsets_count_code_points() -> None:
    text = part("a" + SMILE, "\u0301z")
    assert text.length == 4
    assert text.cut(1, 3) == SMILE + "\u0301"


def test_a_reader_that_is_up_to_date_gets_the_very_string_that_came() -> None:
    runs = ["one ", "two ", "three"]
    text = part(*runs)
    borders = [0, 4, 8, 13]
    assert all(text.cut(*border) is run for border, run in zip(pairwise(borders), runs, strict=True))


def test_a_cut_of_the_last_run_costs_the_same_in_a_long_text() -> None:
    costs = []
    for count in (1_000, 10_000):
        text = part(*["abcd"] * count)
        text._runs = CountingList(text._runs)
        text._starts = CountingList(text._starts)
        assert text.cut(4 * count - 2, 4 * count) == "cd"
        assert text.cut(0, 8) == "abcdabcd"
        costs.append(CountingList.count(text))
    assert costs[1] <= costs[0] + 12  # bisection takes a few steps more
    assert costs[0] < 60


class CountingList(list):  # type: ignore[type-arg]
    """Counts the items that were touched."""

    touched = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        found = super().__getitem__(key)
        self.touched += len(found) if isinstance(key, slice) else 1
        return found

    @staticmethod
    def count(text: Part) -> int:
        return text._runs.touched + text._starts.touched  # type: ignore[attr-defined]


def test_a_cut_from_the_middle_joins_only_what_it_needs() -> None:
    text = part(*[f"{number:04}" for number in range(1_000)])
    text._runs = CountingList(text._runs)
    assert text.cut(2_002, 2_010) == "00" + "0501" + "05"
    assert text._runs.touched <= 8


def test_runs_that_lie_behind_are_joined() -> None:
    """A string of its own for each flush would take several times the text."""
    text = part(*[f"{number:04}" for number in range(1_000)])
    assert len(text._runs) == len(text._starts) == 1_000 // JOINED + 1_000 % JOINED
    assert text.cut(0, text.length) == "".join(f"{number:04}" for number in range(1_000))


def test_an_empty_run_leaves_no_trace_in_cuts() -> None:
    text = part("", "ab", "", "cd", "")
    assert (text.cut(0, 4), text.cut(2, 4), text.cut(0, 2), text.cut(4, 4)) == ("abcd", "cd", "ab", "")


def test_the_final_length_is_that_of_the_replacement() -> None:
    text = part("abc")
    assert text.final_length == 3
    text.replacement = ""
    assert (text.final_length, text.length) == (0, 3)
