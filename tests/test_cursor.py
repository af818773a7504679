"""Cursor tokens: their grammar, whatever comes from outside, and what does not fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.protocol.cursor import MAX_NUMBER, MAX_TOKEN, Cursor, Token, format_token, parse_token

EPOCH = "q7Gk2mZx"


def test_a_token_is_the_epoch_the_seq_and_each_offset() -> None:
    assert format_token(EPOCH, 17, {16: 412}) == "q7Gk2mZx.17.16~412"
    assert parse_token("q7Gk2mZx.17.16~412") == Token(EPOCH, 17, {16: 412})
    assert parse_token("q7Gk2mZx.0") == Token(EPOCH, 0, {})


@given(
    st.from_regex(r"[A-Za-z0-9]{8,32}", fullmatch=True),
    st.integers(0, MAX_NUMBER),
    st.dictionaries(st.integers(0, MAX_NUMBER), st.integers(0, MAX_NUMBER), max_size=20),
)
def test_what_was_written_is_read_back(epoch: str, seq: int, offsets: dict[int, int]) -> None:
    assert parse_token(format_token(epoch, seq, offsets)) == Token(epoch, seq, offsets)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        EPOCH,
        f"{EPOCH}.",
        ".1",
        f"{EPOCH}.1.",
        f"{EPOCH}.1.2",
        f"{EPOCH}.1.2~",
        f"{EPOCH}.1.~2",
        f"{EPOCH}.1.2~3.",
        f"{EPOCH}.1..2~3",
        f"{EPOCH}.1.2~3~4",
        f"{EPOCH}.1,2~3",
        f"{EPOCH}..1",
        f" {EPOCH}.1",
        f"{EPOCH}.1 ",
        f"{EPOCH}.1\n",
        f"{EPOCH}.1\x00",
        f"{EPOCH}.1.2~3\n",
        f"{EPOCH}.+1",
        f"{EPOCH}.1_0",
        f"{EPOCH}.1e3",
        f"{EPOCH}.1.0x2~3",
        f"{EPOCH}.\u0661",
        f"{EPOCH}.1.\u00b2~3",
        f"{EPOCH}.\uff11",
        f"{EPOCH}é.1",
        "short12.1",
        f"{'e' * 33}.1",
        f"{EPOCH[:-1]}-.1",
        "null",
    ],
)
def test_what_is_not_of_the_grammar_is_refused(text: str) -> None:
    assert parse_token(text) is None


@pytest.mark.parametrize("number", ["01", "00", "-1", "-0"])
def test_leading_zeros_and_negative_numbers_are_refused(number: str) -> None:
    for text in (f"{EPOCH}.{number}", f"{EPOCH}.1.{number}~1", f"{EPOCH}.1.1~{number}"):
        assert parse_token(text) is None


def test_zero_is_a_number() -> None:
    assert parse_token(f"{EPOCH}.0.0~0") == Token(EPOCH, 0, {0: 0})


def test_each_part_is_named_once() -> None:
    assert parse_token(f"{EPOCH}.1.2~3.4~3") == Token(EPOCH, 1, {2: 3, 4: 3})
    assert parse_token(f"{EPOCH}.1.2~3.2~3") is None


def test_numbers_beyond_what_a_browser_holds_are_refused() -> None:
    largest, beyond = 2**53 - 1, 2**53
    assert parse_token(f"{EPOCH}.{largest}.{largest}~{largest}") is not None
    for text in (f"{EPOCH}.{beyond}", f"{EPOCH}.1.{beyond}~1", f"{EPOCH}.1.1~{beyond}", f"{EPOCH}.{'9' * 2_000}"):
        assert parse_token(text) is None


def test_epochs_of_eight_to_thirty_two_characters_are_of_the_grammar() -> None:
    assert parse_token(f"{'e' * 32}.1") is not None
    assert parse_token(f"{'e' * 8}.1") is not None
    assert parse_token(f"{'e' * 7}.1") is None


def padded(length: int) -> str:
    """A token of the grammar with exactly so many characters."""
    token, p = f"{EPOCH}.1", 1
    while len(token) + 30 < length:
        token, p = f"{token}.{p}~5", p + 1
    number = "1" * (length - len(token) - len(f".{p}~"))
    while int(number) > MAX_NUMBER:  # one number would be too large
        token, p = f"{token}.{p}~5", p + 1
        number = "1" * (length - len(token) - len(f".{p}~"))
    return f"{token}.{p}~{number}"


def test_a_token_of_the_largest_length_is_read_and_one_more_is_too_long() -> None:
    assert len(padded(MAX_TOKEN)) == 2_048
    assert parse_token(padded(MAX_TOKEN)) is not None
    assert len(padded(MAX_TOKEN + 1)) == 2_049
    assert parse_token(padded(MAX_TOKEN + 1)) is None


@given(st.text(alphabet="q7Gk2mZx.~0129-é\n ", max_size=30))
def test_anything_is_either_refused_or_is_what_would_be_written(text: str) -> None:
    token = parse_token(text)
    if token is None:
        assert not re.fullmatch(r"[A-Za-z0-9]{8,32}\.[1-9][0-9]{0,5}", text)
    else:
        assert format_token(token.epoch, token.seq, token.offsets) == text


def test_offsets_that_do_not_fit_are_left_out_and_the_token_stays_good() -> None:
    offsets = {p: 10**6 + p for p in range(1_000, 1_400)}
    token = format_token(EPOCH, 2_000, offsets)
    assert MAX_TOKEN - 20 < len(token) <= MAX_TOKEN
    found = parse_token(token)
    assert found is not None
    assert 0 < len(found.offsets) < len(offsets)
    assert found.offsets.items() <= offsets.items()


def test_a_token_may_be_exactly_as_long_as_the_bound() -> None:
    found = parse_token(padded(MAX_TOKEN))
    assert found is not None
    assert format_token(found.epoch, found.seq, found.offsets) == padded(MAX_TOKEN)


def test_cursors_are_compared_by_identity() -> None:
    assert Cursor(1, {}) != Cursor(1, {})
