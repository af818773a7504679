"""Cutting bytes into records: framing, heartbeats, limits, and work that is linear however the bytes are sliced."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import RecordError
from streaming.protocol.records import RecordSplitter

BOM = b"\xef\xbb\xbf"
MAX_RECORD = 2_000_000
PLENTY = 1_000_000

# What makes lines interesting, and a little that does not; few kinds, so that they meet often.
BYTES = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", BOM, b"\xef", b"a", b"bcd", b"\x0b", b"\x0c", b"\x85", b"\xe2\x80\xa8", b" "]
    ),
    max_size=40,
).map(b"".join)


def run(slices: list[bytes], max_record: int, max_total: int) -> tuple[list[bytes], RecordError | None]:
    """Feed a splitter these slices; like its user, stop at a failure."""
    splitter = RecordSplitter(max_record, max_total)
    records = []
    for data in slices:
        records += splitter.feed(data)
        if splitter.failure is not None:
            break
    records += splitter.finish()
    assert splitter.count == len(records)
    return records, splitter.failure


def outcome(slices: list[bytes], max_record: int = PLENTY, max_total: int = PLENTY) -> tuple[list[bytes], str | None]:
    """The records of these slices, and what the failure says."""
    records, failure = run(slices, max_record, max_total)
    return records, None if failure is None else str(failure)


def numbered(slices: list[bytes], max_record: int, max_total: int) -> tuple[list[bytes], int | None]:
    """The records of these slices, and the number of the one that is too long.

    Which of two limits is named depends on which was passed first, and so on the slices.
    """
    records, failure = run(slices, max_record, max_total)
    return records, None if failure is None else failure.record


def split(data: bytes) -> list[bytes]:
    """The records of bytes that pass no limit."""
    records, failure = outcome([data])
    assert failure is None
    return records


def reference(data: bytes, max_record: int, max_total: int) -> tuple[list[bytes], int | None]:
    """The framing rules, as plainly as they can be put: the records, and the number of the one that is too long."""
    records: list[bytes] = []
    total = 0
    for index, line in enumerate(data.split(b"\n")):
        if len(line) > max_record:
            return records, len(records)
        record = line
        if index == 0 and record.startswith(BOM):
            record = record[len(BOM) :]
        if record.endswith(b"\r"):
            record = record[:-1]
        if not record:
            continue
        total += len(line)
        if total > max_total:
            return records, len(records)
        records.append(record)
    return records, None


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in slices that begin at `places`, empty ones included."""
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


# -- framing


def test_a_line_feed_ends_a_record() -> None:
    assert split(b'{"a":1}\n{"b":2}\n') == [b'{"a":1}', b'{"b":2}']


def test_the_last_line_feed_is_optional() -> None:
    assert split(b"a\nb") == split(b"a\nb\n") == [b"a", b"b"]


def test_a_record_comes_out_with_its_line_feed_and_not_before() -> None:
    splitter = RecordSplitter(PLENTY, PLENTY)
    assert splitter.feed(b"abc") == []
    assert splitter.feed(b"d\ne") == [b"abcd"]
    assert splitter.finish() == [b"e"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e", "\r", "\0"])
def test_nothing_but_a_line_feed_separates(character: str) -> None:
    """Not even what `str.splitlines` takes for the end of a line."""
    line = f"a{character}b".encode()
    assert split(line + b"\n" + line) == [line, line]
    assert outcome([bytes([byte]) for byte in line])[0] == [line]


def test_a_lone_byte_0x85_does_not_separate() -> None:
    assert split(b"a\x85b\n") == [b"a\x85b"]


def test_one_trailing_carriage_return_is_stripped_and_only_one() -> None:
    assert split(b"a\r\nb\r\r\n\rc\n") == [b"a", b"b\r", b"\rc"]


def test_the_carriage_return_of_a_last_line_without_a_line_feed_is_stripped() -> None:
    assert split(b"a\nb\r") == [b"a", b"b"]


@pytest.mark.parametrize("sliced", [False, True])
def test_a_byte_order_mark_at_the_very_start_is_skipped(sliced: bool) -> None:
    data = BOM + b"a\n" + BOM + b"b\n"
    slices = [bytes([byte]) for byte in data] if sliced else [data]
    assert outcome(slices) == ([b"a", BOM + b"b"], None)


def test_only_one_byte_order_mark_is_skipped() -> None:
    assert split(BOM + BOM + b"a") == [BOM + b"a"]


def test_a_byte_order_mark_behind_an_empty_line_is_not_at_the_start() -> None:
    assert split(b"\n" + BOM + b"a") == [BOM + b"a"]


def test_part_of_a_byte_order_mark_is_kept() -> None:
    assert split(BOM[:2] + b"\n") == [BOM[:2]]


def test_empty_lines_are_heartbeats_and_not_numbered() -> None:
    splitter = RecordSplitter(PLENTY, PLENTY)
    assert splitter.feed(b"\n\r\n\n") == []
    assert splitter.count == 0
    assert splitter.feed(b"a\n\n\r\n") == [b"a"]
    assert splitter.count == 1
    assert splitter.feed(b"\nb\n\r") == [b"b"]
    assert splitter.finish() == []
    assert splitter.count == 2


def test_a_byte_order_mark_alone_is_a_heartbeat() -> None:
    assert split(BOM + b"\na") == split(BOM + b"\r\na") == [b"a"]
    assert split(BOM) == []


def test_a_line_of_blanks_is_no_heartbeat() -> None:
    assert split(b" \n\t\n") == [b" ", b"\t"]


def test_nothing_in_nothing_out() -> None:
    splitter = RecordSplitter(PLENTY, PLENTY)
    assert (splitter.feed(b""), splitter.finish(), splitter.count, splitter.failure) == ([], [], 0, None)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_are_bytes_of_their_own(kind: type) -> None:
    """What was fed may be overwritten at once: receive buffers are."""
    source = bytearray(b"abc\nde")
    splitter = RecordSplitter(PLENTY, PLENTY)
    records = splitter.feed(kind(source))
    source[:] = b"xxxxxx"
    records += splitter.finish()
    assert records == [b"abc", b"de"]
    assert {type(record) for record in records} == {bytes}


# -- limits


@pytest.mark.parametrize("line_feed", [b"", b"\n"])
def test_a_record_may_have_two_million_bytes(line_feed: bytes) -> None:
    records, failure = outcome([b"x" * MAX_RECORD + line_feed], MAX_RECORD, 16_000_000)
    assert (len(records[0]), failure) == (MAX_RECORD, None)


def test_a_record_one_byte_too_long_is_refused_without_waiting_for_its_line_feed() -> None:
    splitter = RecordSplitter(MAX_RECORD, 16_000_000)
    assert splitter.feed(b"x" * MAX_RECORD) == []
    assert splitter.failure is None
    assert splitter.feed(b"x") == []
    assert isinstance(splitter.failure, RecordError)
    assert str(splitter.failure) == "record 0: longer than 2000000 bytes"
    assert splitter.finish() == []


@pytest.mark.parametrize("data", [b"12345678\n", BOM + b"45678\n", b"1234567\r\n", BOM + b"4567\r\n"])
def test_byte_order_mark_and_carriage_return_count_toward_the_size(data: bytes) -> None:
    size = len(data) - 1
    for slices in ([data], [bytes([byte]) for byte in data]):
        assert outcome(slices, size)[1] is None
        assert outcome(slices, PLENTY, size)[1] is None
        assert outcome(slices, size - 1) == ([], f"record 0: longer than {size - 1} bytes")
        assert (
            outcome(slices, PLENTY, size - 1)[1] == f"record 0: all records together are longer than {size - 1} bytes"
        )


def test_the_line_feed_does_not_count_toward_the_size() -> None:
    assert outcome([b"abc\nabc\n"], 3, 6) == ([b"abc", b"abc"], None)


def test_all_records_together_are_limited() -> None:
    assert outcome([b"abc\ndef\n"], 3, 6)[1] is None
    assert outcome([b"abc\ndef\ng"], 3, 6) == (
        [b"abc", b"def"],
        "record 2: all records together are longer than 6 bytes",
    )


def test_the_total_is_refused_without_waiting_for_the_line_feed() -> None:
    splitter = RecordSplitter(5, 6)
    assert splitter.feed(b"abc\ndef") == [b"abc"]
    assert splitter.failure is None
    assert splitter.feed(b"g") == []
    assert splitter.failure is not None


def test_empty_lines_do_not_count_toward_the_total() -> None:
    assert outcome([b"\r\n" * 100 + b"abc\n" + b"\r\n\n" * 100], 3, 4) == ([b"abc"], None)


@pytest.mark.parametrize("line_feed", [b"", b"\n"])
def test_a_heartbeat_with_a_carriage_return_is_no_record_too_many(line_feed: bytes) -> None:
    """The total is used up to the last byte, and a heartbeat is not counted."""
    assert outcome([b"abcd\n\r" + line_feed], 4, 4) == ([b"abcd"], None)


def test_records_before_the_failure_come_out_of_the_same_feed() -> None:
    splitter = RecordSplitter(3, PLENTY)
    assert splitter.feed(b"\na\n\nbc\ndefg\nh\n") == [b"a", b"bc"]
    assert splitter.failure is not None
    assert splitter.failure.record == 2


def test_nothing_comes_out_after_a_failure() -> None:
    splitter = RecordSplitter(3, PLENTY)
    assert splitter.feed(b"a\nlong!") == [b"a"]
    failure = splitter.failure
    assert splitter.feed(b"\nb\n") == []
    assert splitter.feed(b"c\nmore") == []
    assert splitter.finish() == []
    assert (splitter.count, splitter.failure) == (1, failure)


# -- any slicing


@given(BYTES, st.lists(st.integers(0, 1_000), max_size=8), st.integers(1, 12), st.integers(1, 30))
def test_any_slicing_gives_what_the_whole_gives(
    data: bytes, places: list[int], max_record: int, max_total: int
) -> None:
    whole = numbered([data], max_record, max_total)
    assert numbered(cut_at(data, places), max_record, max_total) == whole
    assert numbered([bytes([byte]) for byte in data], max_record, max_total) == whole


@given(BYTES, st.integers(3, 12), st.integers(3, 30))
def test_the_splitter_does_what_a_plain_reading_of_the_rules_does(data: bytes, max_record: int, max_total: int) -> None:
    assert numbered([data], max_record, max_total) == reference(data, max_record, max_total)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_trailing_bytes_do_not_change_the_records_before_them(data: bytes, trailing: bytes) -> None:
    records = split(data + b"\n")
    assert split(data + b"\n" + trailing)[: len(records)] == records


@given(st.lists(st.binary(min_size=1, max_size=9).filter(lambda line: b"\n" not in line and line[-1:] != b"\r")))
def test_lines_joined_and_split_are_the_same_lines(lines: list[bytes]) -> None:
    joined = b"".join(line + b"\n" for line in lines)
    if not joined.startswith(BOM):
        assert split(joined) == lines


# -- linear work


def test_one_byte_slices_cost_no_more_memory_than_the_record() -> None:
    """The peak is a small multiple of the record, and nothing is kept once it is out."""
    size = 300_000
    splitter = RecordSplitter(PLENTY, PLENTY)
    tracemalloc.start()
    try:
        for _ in range(size):
            splitter.feed(b"x")
        records = splitter.feed(b"\n")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(record) for record in records] == [size]
    assert peak < 3 * size
    assert kept < 1.2 * size


def test_a_slice_is_looked_at_once() -> None:
    """The bytes that a splitter has kept are not searched again with each slice: it only appends to them."""
    appended = 0

    class CountingBuffer(bytearray):
        def __iadd__(self, data: bytes) -> CountingBuffer:
            nonlocal appended
            appended += len(data)
            self.extend(data)
            return self

        def _refuse(self, *_: object) -> None:
            raise AssertionError("what is kept was looked at again")

        find = index = split = count = partition = __contains__ = _refuse

    splitter = RecordSplitter(PLENTY, PLENTY)
    splitter.feed(b"x")
    splitter._partial = CountingBuffer(splitter._partial or b"")
    for _ in range(1_000):
        splitter.feed(b"yz")
    assert splitter.feed(b"\n") == [b"x" + b"yz" * 1_000]
    assert appended == 2_000
