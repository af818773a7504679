"""WebSocket's wire: frames made by hand in, messages out; frames out; the handshake. Sections are those of RFC 6455."""

from __future__ import annotations

import base64
import struct
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.live.transports.handshake import HandshakeError, handshake
from streaming.live.transports.websocket import (
    MAX_EMPTY_FRAGMENTS,
    Close,
    Ping,
    Pong,
    ProtocolError,
    Reader,
    Received,
    Text,
    encode_close,
    encode_message,
    encode_ping,
    encode_pong,
)

GOING_ON, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PLENTY = 1_000_000
MASK = b"\x37\xfa\x21\x3d"

Error = tuple[int, str]


# -- frames by hand, and what comes of them


def header(
    opcode: int, length: int, *, fin: bool = True, rsv: int = 0, mask: bytes | None = MASK, form: int | None = None
) -> bytes:
    """A frame's header; `form` is the number of bytes that a longer length takes: 0, 2 or 8, the shortest if None."""
    if form is None:
        form = 0 if length < 126 else 2 if length < 65_536 else 8
    second = {0: length, 2: 126, 8: 127}[form] | (0 if mask is None else 0x80)
    longer = length.to_bytes(form, "big") if form else b""
    return bytes([fin << 7 | rsv | opcode, second]) + longer + (mask or b"")


def frame(opcode: int, payload: bytes = b"", **parts: Any) -> bytes:
    """A whole frame, masked as section 5.3 says it, byte by byte."""
    mask = parts.get("mask", MASK) or bytes(4)
    return header(opcode, len(payload), **parts) + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def shown(item: Received) -> Received | Error:
    """An item as tests compare it."""
    return (item.code, item.reason) if isinstance(item, ProtocolError) else item


def read(*slices: bytes, max_message: int = PLENTY) -> list[Received | Error]:
    """What a reader makes of these slices; an error as its code and reason."""
    reader = Reader(max_message)
    return [shown(item) for data in slices for item in reader.feed(data)]


def bytewise(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in slices that begin at `places`, empty ones included."""
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


def held(reader: Reader) -> int:
    """The bytes that a reader keeps."""
    values = [getattr(reader, name) for name in Reader.__slots__]
    return sum(len(value) for value in values if isinstance(value, bytes | bytearray))


def buffers(reader: Reader) -> int:
    """How many buffers a reader has, empty ones too."""
    return sum(isinstance(getattr(reader, name), bytearray) for name in Reader.__slots__)


def reference(data: bytes, max_message: int) -> list[Received | int]:
    """The rules, as plainly as they can be put: the messages, and the code of the error that ends them."""
    received: list[Received | int] = []
    message: bytes | None = None
    empty = 0
    while len(data) >= 2:
        first, second, rest = data[0], data[1], data[2:]
        fin, rsv, opcode, length = first >= 0x80, first & 0x70, first & 0x0F, second & 0x7F
        form = {126: 2, 127: 8}.get(length, 0)
        masked = second >= 0x80
        is_whole = len(rest) >= form + 4 * masked
        if not is_whole and not (form and masked and len(rest) >= form):  # of a long frame the mask is not waited for
            return received
        long = int.from_bytes(rest[:form], "big")
        mask, rest = rest[form : form + 4], rest[form + 4 :]
        if opcode >= 8 and (not fin or length > 125):
            return [*received, 1002]
        if (form == 2 and long < 126) or (form == 8 and (long < 65_536 or long >= 1 << 63)):
            return [*received, 1002]
        length = long if form else length
        if rsv or opcode not in (0, 1, 2, 8, 9, 10) or not masked:
            return [*received, 1002]
        if opcode < 8 and (opcode == GOING_ON) != (message is not None):
            return [*received, 1002]
        if opcode == BINARY:
            return [*received, 1003]
        if opcode < 8 and len(message or b"") + length > max_message:
            return [*received, 1009]
        if not is_whole or len(rest) < length:
            return received
        payload, data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(rest[:length])), rest[length:]
        try:
            if opcode == PING:
                received.append(Ping(payload))
            elif opcode == PONG:
                received.append(Pong(payload))
            elif opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if len(payload) > 1 else None
                if len(payload) == 1 or (code is not None and code not in GOOD_CODES):
                    return [*received, 1002]
                return [*received, Close(code, payload[2:].decode())]
            else:
                message = (message or b"") + payload
                empty += not payload and not fin
                if empty > MAX_EMPTY_FRAGMENTS:
                    return [*received, 1008]
                if fin:
                    received.append(Text(message.decode()))
                    message, empty = None, 0
        except UnicodeDecodeError:
            return [*received, 1007]
    return received


GOOD_CODES = {1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)}
BAD_CODES = [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 1999, 2000, 2999, 5000, 65_535]

# What makes frames interesting: each of them legal in some place, and few enough to meet in their places.
PAYLOADS = st.sampled_from(
    [b"", b"a", b"bcd", "é".encode(), b"\xc3", b"\xa9", "😀".encode(), b"\xed\xa0\x80", b"x" * 126]
)
CLOSES = st.sampled_from([b"", b"\x03", b"\x03\xe8", b"\x03\xe9bye", b"\x03\xed", b"\x0f\xa0\xff"])
MASKS = st.binary(min_size=4, max_size=4)
FRAMES = st.one_of(
    st.builds(frame, st.sampled_from([GOING_ON, TEXT, PING, PONG]), PAYLOADS, fin=st.booleans(), mask=MASKS),
    st.builds(frame, st.sampled_from([GOING_ON, TEXT]), PAYLOADS, fin=st.booleans(), mask=MASKS),
    st.builds(frame, st.just(CLOSE), CLOSES, mask=MASKS),
)
FLAWED = st.one_of(
    FRAMES,
    st.builds(frame, st.integers(0, 15), PAYLOADS, fin=st.booleans(), rsv=st.sampled_from([0, 0, 0x10])),
    st.builds(frame, st.integers(0, 2), PAYLOADS, mask=st.one_of(st.none(), MASKS)),
    st.builds(header, st.integers(0, 10), st.sampled_from([5, 126, 65_536, 1 << 62, 1 << 63]), form=st.just(8)),
    st.binary(max_size=6),
)
TRAFFIC = st.lists(FRAMES, max_size=10).map(b"".join)
BAD_TRAFFIC = st.lists(FLAWED, max_size=10).map(b"".join)
PLACES = st.lists(st.integers(0, 2_000), max_size=12)


# -- what comes out


def test_the_frame_of_the_rfc_says_hello() -> None:
    """Section 5.7."""
    assert read(bytes.fromhex("81 85 37 fa 21 3d 7f 9f 4d 51 58")) == [Text("Hello")]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 125, 126, 127, 128, 65_535, 65_536, 65_537])
def test_a_message_of_any_size_comes_out_whole(size: int) -> None:
    """Each form of the length, and each remainder of the mask."""
    text = ("abcdefghijk" * (size // 11 + 1))[:size]
    data = frame(TEXT, text.encode())
    assert read(data) == read(data[:1], data[1:3], data[3:]) == [Text(text)]


@given(st.text(max_size=300), MASKS)
@example("zero", bytes(4))
@example("\0\0\0\0\0", b"\xff\xff\xff\xff")
def test_any_mask_is_undone(text: str, mask: bytes) -> None:
    assert read(frame(TEXT, text.encode(), mask=mask)) == [Text(text)]


def test_a_message_comes_out_with_its_last_byte_and_not_before() -> None:
    reader = Reader(PLENTY)
    data = frame(TEXT, b"abc")
    assert reader.feed(data[:-1]) == []
    assert reader.feed(data[-1:] + data[:2]) == [Text("abc")]
    assert reader.feed(data[2:]) == [Text("abc")]


def test_an_empty_frame_comes_out_with_its_header() -> None:
    reader = Reader(PLENTY)
    assert reader.feed(header(TEXT, 0)[:-1]) == []
    assert reader.feed(header(TEXT, 0)[-1:]) == [Text("")]


def test_several_frames_in_one_slice_come_out_in_order() -> None:
    data = frame(TEXT, b"1") + frame(PING, b"2") + frame(TEXT, b"3") + frame(PONG, b"4") + frame(CLOSE)
    assert read(data) == [Text("1"), Ping(b"2"), Text("3"), Pong(b"4"), Close(None, "")]


def test_nothing_in_nothing_out() -> None:
    assert Reader(PLENTY).feed(b"") == []


def test_fragments_are_one_message() -> None:
    """Section 5.4."""
    assert read(frame(TEXT, b"Hel", fin=False) + frame(GOING_ON, b"l", fin=False) + frame(GOING_ON, b"o")) == [
        Text("Hello")
    ]


def test_fragments_may_be_empty() -> None:
    data = frame(TEXT, fin=False) + frame(GOING_ON, b"a", fin=False) + frame(GOING_ON, fin=False) + frame(GOING_ON)
    assert read(data, data) == [Text("a"), Text("a")]


def test_a_character_may_be_cut_by_fragments() -> None:
    smile = "😀".encode()
    data = b"".join(frame(TEXT if not i else GOING_ON, smile[i : i + 1], fin=i == 3) for i in range(4))
    assert read(data) == [Text("😀")]


@pytest.mark.parametrize("sliced", [False, True])
def test_control_frames_between_fragments_come_out_at_once_and_leave_the_message_alone(sliced: bool) -> None:
    data = frame(TEXT, b"a", fin=False) + frame(PING, b"p") + frame(GOING_ON, b"b", fin=False) + frame(PONG, b"q")
    reader = Reader(PLENTY)
    received = [item for part in (bytewise(data) if sliced else [data]) for item in reader.feed(part)]
    assert received == [Ping(b"p"), Pong(b"q")]
    assert reader.feed(frame(GOING_ON, b"c")) == [Text("abc")]


@pytest.mark.parametrize(("opcode", "kind"), [(PING, Ping), (PONG, Pong)])
def test_a_control_frame_may_have_125_bytes(opcode: int, kind: type) -> None:
    payload = bytes(range(125))
    assert read(frame(opcode, payload)) == read(*bytewise(frame(opcode, payload))) == [kind(payload)]


def test_a_control_frame_does_not_count_toward_the_message() -> None:
    data = frame(TEXT, b"ab", fin=False) + frame(PING, b"x" * 125) + frame(GOING_ON, b"cd")
    assert read(data, max_message=4) == [Ping(b"x" * 125), Text("abcd")]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_items_are_their_own_and_what_was_fed_may_be_overwritten(kind: type) -> None:
    """Receive buffers are. Half of a frame is kept, the other half comes in other bytes."""
    source = bytearray(frame(PING, b"ping") + frame(TEXT, b"abc") + frame(PONG, b"pong")[:-2])
    reader = Reader(PLENTY)
    received = reader.feed(kind(source))
    source[:] = bytes(len(source))
    received += reader.feed(frame(PONG, b"pong")[-2:])
    assert received == [Ping(b"ping"), Text("abc"), Pong(b"pong")]
    assert [type(item.payload) for item in received if isinstance(item, Ping | Pong)] == [bytes, bytes]


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"abc")[:-1],
        header(TEXT, 5)[:3],
        header(BINARY, 5),
        frame(TEXT, b"\xff"),
        frame(CLOSE, b"\x03\xe8\xff"),
        frame(CLOSE) + b"more",
    ],
)
def test_no_reference_to_what_was_fed_is_kept(data: bytes) -> None:
    """A `bytearray` that is still looked at cannot be resized. An error's traceback would look at it."""
    source = bytearray(data)
    reader = Reader(PLENTY)
    received = reader.feed(source)
    source.clear()
    for item in received:
        if isinstance(item, ProtocolError):
            assert (item.__traceback__, item.__context__, item.__cause__) == (None, None, None)


# -- refused frames


def refused(data: bytes, code: int, reason: str, max_message: int = PLENTY) -> None:
    """Check that bytes end in this error, however they are cut, and that what stands before them comes out first."""
    before = frame(TEXT, b"before") + frame(PING, b"p")
    expected = [Text("before"), Ping(b"p"), (code, reason)]
    assert read(before + data, max_message=max_message) == expected
    assert read(*bytewise(before + data), max_message=max_message) == expected


def test_an_unmasked_frame_is_refused() -> None:
    """Section 5.1."""
    for opcode in (TEXT, PING, CLOSE):
        refused(frame(opcode, b"", mask=None), 1002, "frame not masked")
    refused(frame(TEXT, b"x" * 200, mask=None), 1002, "frame not masked")


@pytest.mark.parametrize("rsv", [0x10, 0x20, 0x40, 0x70])
@pytest.mark.parametrize("opcode", [TEXT, PING, CLOSE])
def test_a_reserved_bit_is_refused(opcode: int, rsv: int) -> None:
    """Section 5.2: no extension was agreed on."""
    refused(frame(opcode, rsv=rsv), 1002, "reserved bit set")


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_an_unknown_opcode_is_refused(opcode: int) -> None:
    """Section 5.2."""
    refused(frame(opcode, b"a"), 1002, "unknown opcode")


CONTROL = "control frame in fragments or longer than 125 bytes"


@pytest.mark.parametrize("opcode", [CLOSE, PING, PONG])
def test_a_control_frame_in_fragments_is_refused(opcode: int) -> None:
    """Section 5.5."""
    refused(frame(opcode, fin=False), 1002, CONTROL)


@pytest.mark.parametrize("opcode", [CLOSE, PING, PONG])
@pytest.mark.parametrize("size", [126, 65_536])
def test_a_control_frame_of_more_than_125_bytes_is_refused_at_its_header(opcode: int, size: int) -> None:
    """Section 5.5."""
    refused(header(opcode, size), 1002, CONTROL)


@pytest.mark.parametrize(("length", "form"), [(0, 2), (1, 2), (125, 2), (0, 8), (125, 8), (126, 8), (65_535, 8)])
def test_a_length_that_is_not_in_its_shortest_form_is_refused(length: int, form: int) -> None:
    """Section 5.2."""
    refused(header(TEXT, length, form=form), 1002, "length not in its shortest form")


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1])
def test_a_length_with_the_top_bit_set_is_refused(length: int) -> None:
    """Section 5.2. The largest length without it is only too long."""
    refused(header(TEXT, length), 1002, "length of more than 63 bits", max_message=1 << 70)
    assert read(header(TEXT, (1 << 63) - 1), max_message=10) == [(1009, "message longer than 10 bytes")]


@pytest.mark.parametrize("fin", [False, True])
def test_a_continuation_of_nothing_is_refused(fin: bool) -> None:
    """Section 5.4. Neither of nothing at all, nor of a message that has ended."""
    refused(frame(GOING_ON, b"a", fin=fin), 1002, "continuation of no message")
    ended = frame(TEXT, b"a", fin=False) + frame(GOING_ON, b"b")
    assert read(ended + frame(GOING_ON, b"c", fin=fin)) == [Text("ab"), (1002, "continuation of no message")]


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_new_message_inside_a_fragmented_one_is_refused(opcode: int) -> None:
    """Section 5.4. Also when all that came of the first is an empty fragment."""
    for begun in (b"", b"a"):
        refused(frame(TEXT, begun, fin=False) + frame(opcode, b"b"), 1002, "new message inside a fragmented one")


def test_a_binary_message_is_refused_at_its_header() -> None:
    """Section 7.4.1, code 1003."""
    for size in (0, 5, 70_000):
        refused(header(BINARY, size), 1003, "binary message")
    refused(header(BINARY, 5, fin=False), 1003, "binary message")


def test_a_message_has_its_limit_to_the_byte() -> None:
    assert read(frame(TEXT, b"x" * 300), max_message=300) == [Text("x" * 300)]
    refused(header(TEXT, 301), 1009, "message longer than 300 bytes", 300)


def test_fragments_have_their_limit_together_to_the_byte() -> None:
    begun = frame(TEXT, b"x" * 100, fin=False) + frame(GOING_ON, b"y" * 100, fin=False)
    assert read(begun + frame(GOING_ON, b"z" * 100), max_message=300) == [Text("x" * 100 + "y" * 100 + "z" * 100)]
    for fin in (False, True):
        refused(begun + header(GOING_ON, 101, fin=fin), 1009, "message longer than 300 bytes", 300)


def test_the_limit_is_of_one_message_and_not_of_all() -> None:
    data = frame(TEXT, b"ab", fin=False) + frame(GOING_ON, b"c") + frame(TEXT, b"def")
    assert read(data * 3, max_message=3) == [Text("abc"), Text("def")] * 3


def test_empty_fragments_have_their_limit_to_the_fragment() -> None:
    """A message that never ends would else be endless work that no limit of messages counts."""
    begun = frame(TEXT, fin=False) + frame(GOING_ON, fin=False) * (MAX_EMPTY_FRAGMENTS - 1)
    whole = begun + frame(GOING_ON, b"a", fin=False) * 2_000 + frame(GOING_ON)
    assert read(whole * 2) == [Text("a" * 2_000)] * 2
    refused(begun + frame(GOING_ON, fin=False), 1008, "more than 1000 empty fragments in a message")


@pytest.mark.parametrize("payload", [b"\xff", b"a\xc3", b"\xc3a", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_text_that_is_not_utf_8_is_refused(payload: bytes) -> None:
    """Section 8.1. Overlong forms, surrogates and what lies beyond Unicode are not UTF-8."""
    refused(frame(TEXT, payload), 1007, "message not UTF-8")
    refused(frame(TEXT, payload[:1], fin=False) + frame(GOING_ON, payload[1:]), 1007, "message not UTF-8")


# -- close


def test_a_close_frame_may_be_empty() -> None:
    assert read(frame(CLOSE)) == [Close(None, "")]


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 4999])
def test_a_valid_close_code_comes_out(code: int) -> None:
    """Section 7.4."""
    assert read(frame(CLOSE, struct.pack("!H", code))) == [Close(code, "")]


def test_a_close_reason_comes_out() -> None:
    assert read(frame(CLOSE, b"\x03\xe9" + "ciao…".encode())) == [Close(1001, "ciao…")]
    assert read(frame(CLOSE, b"\x03\xe9" + b"x" * 123)) == [Close(1001, "x" * 123)]


def test_a_close_payload_of_one_byte_is_refused() -> None:
    """Section 5.5.1."""
    refused(frame(CLOSE, b"\x03"), 1002, "close payload of one byte")


@pytest.mark.parametrize("code", BAD_CODES)
def test_an_invalid_close_code_is_refused(code: int) -> None:
    """Section 7.4."""
    refused(frame(CLOSE, struct.pack("!H", code) + b"why"), 1002, "invalid close code")


def test_a_close_reason_that_is_not_utf_8_is_refused() -> None:
    """Section 5.5.1."""
    refused(frame(CLOSE, b"\x03\xe8\xc3"), 1007, "close reason not UTF-8")


def test_a_close_frame_may_come_inside_a_fragmented_message() -> None:
    assert read(frame(TEXT, b"a", fin=False) + frame(CLOSE, b"\x03\xe8")) == [Close(1000, "")]


# -- the end


ENDS = [frame(CLOSE), frame(CLOSE, b"\x03"), header(BINARY, 9), frame(TEXT, b"\xff"), header(TEXT, PLENTY + 1)]


@pytest.mark.parametrize("end", ENDS)
def test_nothing_comes_out_after_the_end(end: bytes) -> None:
    """In the same slice or in later ones."""
    more = frame(TEXT, b"more")
    reader = Reader(PLENTY)
    assert len(reader.feed(end + more)) == 1
    assert reader.finished
    assert [reader.feed(data) for data in (more, b"\xff" * 99, frame(CLOSE))] == [[], [], []]
    assert held(reader) == 0


def test_a_reader_is_not_finished_before_the_end() -> None:
    reader = Reader(PLENTY)
    reader.feed(frame(TEXT, b"a") + frame(PING) + frame(CLOSE)[:-1])
    assert not reader.finished


def test_an_error_says_its_code_and_reason() -> None:
    (error,) = Reader(5).feed(header(TEXT, 6))
    assert isinstance(error, ProtocolError)
    assert str(error) == "1009: message longer than 5 bytes"


# -- memory and work


def test_a_message_is_kept_while_it_is_half_read_and_no_longer() -> None:
    half = [
        header(TEXT, 5)[:3],
        frame(TEXT, b"x" * 500)[:400],
        frame(TEXT, b"x" * 500, fin=False),
        frame(TEXT, b"x" * 500, fin=False) + frame(PING, b"y" * 100)[:60],
    ]
    rest = [frame(TEXT, b"abcde")[3:], frame(TEXT, b"x" * 500)[400:], frame(GOING_ON), frame(PING, b"y" * 100)[60:]]
    rest[3] += frame(GOING_ON)
    for begin, end in zip(half, rest, strict=True):
        reader = Reader(PLENTY)
        assert (held(reader), buffers(reader)) == (0, 0)
        reader.feed(begin)
        assert held(reader) > 0
        assert isinstance(reader.feed(end)[-1], Text)
        assert (held(reader), buffers(reader), reader._frame) == (0, 0, None)


@pytest.mark.parametrize("end", [frame(CLOSE), header(BINARY, 9), frame(GOING_ON, b"\xff")])
def test_the_end_releases_what_was_half_read(end: bytes) -> None:
    reader = Reader(PLENTY)
    reader.feed(frame(TEXT, b"x" * 500, fin=False))
    assert held(reader) == 500
    reader.feed(end)
    assert (held(reader), buffers(reader), reader._frame) == (0, 0, None)


def test_readers_at_rest_cost_next_to_nothing() -> None:
    """Two hundred bytes each, after a large message as before it."""
    data = frame(TEXT, b"x" * 50_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        readers = [Reader(PLENTY) for _ in range(100)]
        for reader in readers:
            reader.feed(data[:40_000])
            reader.feed(data[40_000:])
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 100 * 200


@pytest.mark.parametrize("max_message", [65_536, 1 << 62])
def test_an_announced_length_allocates_nothing(max_message: int) -> None:
    """Whether it is refused or waited for."""
    data = header(TEXT, 1 << 61)
    reader = Reader(max_message)
    tracemalloc.start()
    try:
        received = reader.feed(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(received), reader.finished) == ((1, True) if max_message == 65_536 else (0, False))
    assert peak < 5_000


def test_fragments_cost_no_more_memory_than_the_message() -> None:
    """Neither a list of them, nor anything for empty ones."""
    size = 10_000
    fragment = frame(GOING_ON, b"x", fin=False)
    empty = frame(GOING_ON, fin=False)
    reader = Reader(PLENTY)
    reader.feed(frame(TEXT, fin=False))
    tracemalloc.start()
    try:
        for _ in range(size):
            reader.feed(fragment)
        for _ in range(MAX_EMPTY_FRAGMENTS - 1):
            reader.feed(empty)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held(reader) == size
    assert kept < 1.2 * size + 1_000
    assert peak < 2.5 * size


def test_what_is_kept_is_appended_to_and_not_copied() -> None:
    """So the work is linear, however the bytes are sliced."""
    data = frame(TEXT, b"x" * 1_000)
    reader = Reader(PLENTY)
    reader.feed(data[:10])
    payload = reader._payload
    for byte in bytewise(data[10:-1]):
        reader.feed(byte)
    assert reader._payload is payload is not None
    assert len(reader.feed(data[-1:])) == 1
    reader.feed(frame(TEXT, b"a", fin=False))
    message = reader._message
    for _ in range(100):
        reader.feed(frame(GOING_ON, b"b", fin=False))
    assert reader._message is message is not None


def steps(work: Callable[[], object]) -> int:
    """How many steps Python's interpreter takes; what runs in C is none."""
    count = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_payload_is_unmasked_and_checked_in_bulk() -> None:
    """A megabyte takes as many steps as a tenth of it."""
    tenth, whole = (frame(TEXT, b"x" * size) for size in (100_000, 1_000_000))
    assert steps(lambda: Reader(PLENTY).feed(tenth)) == steps(lambda: Reader(PLENTY).feed(whole)) < 1_000
    assert steps(lambda: [byte for byte in tenth[:50]]) > 50  # noqa: C416 - steps are counted


@given(BAD_TRAFFIC, PLACES, st.integers(0, 300))
def test_what_is_kept_is_bounded(data: bytes, places: list[int], max_message: int) -> None:
    """By the message's limit, one header and one control frame."""
    reader = Reader(max_message)
    for part in cut_at(data, places):
        reader.feed(part)
        assert held(reader) <= max_message + 14 + 125


# -- any bytes, any slicing


@given(TRAFFIC, PLACES, st.integers(0, 300))
def test_any_slicing_of_good_frames_gives_what_the_whole_gives(
    data: bytes, places: list[int], max_message: int
) -> None:
    whole = read(data, max_message=max_message)
    assert read(*cut_at(data, places), max_message=max_message) == whole
    assert read(*bytewise(data), max_message=max_message) == whole


@given(BAD_TRAFFIC, PLACES, st.integers(0, 300))
def test_any_slicing_of_bad_frames_gives_what_the_whole_gives(data: bytes, places: list[int], max_message: int) -> None:
    whole = read(data, max_message=max_message)
    assert read(*cut_at(data, places), max_message=max_message) == whole
    assert read(*bytewise(data), max_message=max_message) == whole


@given(BAD_TRAFFIC, st.integers(0, 300))
def test_the_reader_does_what_a_plain_reading_of_the_rules_does(data: bytes, max_message: int) -> None:
    read_plainly = [item[0] if isinstance(item, tuple) else item for item in read(data, max_message=max_message)]
    assert read_plainly == reference(data, max_message)


@given(TRAFFIC, TRAFFIC)
def test_trailing_bytes_do_not_change_what_came_before_them(data: bytes, trailing: bytes) -> None:
    received = read(data)
    assert read(data + trailing)[: len(received)] == received


@given(st.lists(st.tuples(st.text(max_size=40), PLACES, st.booleans()), max_size=5), PLACES)
def test_messages_come_out_as_they_were_sent(messages: list[tuple[str, list[int], bool]], places: list[int]) -> None:
    """Fragmented anywhere, with pings between the fragments, and cut anywhere."""
    data = b""
    for text, borders, pinged in messages:
        fragments = cut_at(text.encode(), borders)
        for index, fragment in enumerate(fragments):
            data += frame(GOING_ON if index else TEXT, fragment, fin=index == len(fragments) - 1)
            data += frame(PING, b"p") * pinged
    received = read(*cut_at(data, places))
    assert [item.text for item in received if isinstance(item, Text)] == [text for text, _, _ in messages]
    assert {type(item) for item in received} <= {Text, Ping}


@given(st.one_of(st.binary(max_size=200), BAD_TRAFFIC), st.data(), st.integers(0, 100))
def test_any_bytes_give_messages_or_an_error_at_the_end(data: bytes, draw: st.DataObject, max_message: int) -> None:
    """And nothing else is raised; also with a bit turned over somewhere."""
    noisy = bytearray(data)
    for place in draw.draw(st.lists(st.integers(0, len(data) * 8 - 1), max_size=3)) if data else ():
        noisy[place // 8] ^= 1 << place % 8
    reader = Reader(max_message)
    received = [item for part in cut_at(bytes(noisy), draw.draw(PLACES)) for item in reader.feed(part)]
    assert all(isinstance(item, Text | Ping | Pong) for item in received[:-1])
    assert all(isinstance(item, Received) for item in received)
    assert reader.finished == (bool(received) and isinstance(received[-1], Close | ProtocolError))


# -- frames out


def served(opcode: int, payload: bytes) -> bytes:
    """A server's frame by hand: whole and not masked (5.1)."""
    return frame(opcode, payload, mask=None)


def test_a_message_is_encoded_as_in_the_rfc() -> None:
    """Section 5.7."""
    assert encode_message(b"Hello") == bytes.fromhex("81 05 48 65 6c 6c 6f")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 300_000])
def test_a_message_is_one_unmasked_frame_with_the_shortest_length(size: int) -> None:
    payload = b"x" * size
    assert encode_message(payload) == served(TEXT, payload)
    assert type(encode_message(payload)) is bytes


@pytest.mark.parametrize("payload", [b"", b"\xff\x00", b"x" * 125])
def test_a_ping_and_its_pong_carry_the_payload(payload: bytes) -> None:
    assert encode_ping(payload) == served(PING, payload)
    assert encode_pong(payload) == served(PONG, payload)


def test_a_ping_is_empty_by_default() -> None:
    assert encode_ping() == b"\x89\x00"


@pytest.mark.parametrize("encode", [encode_ping, encode_pong])
def test_more_than_125_bytes_are_no_control_frame(encode: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="a control frame holds 125 bytes, not 126"):
        encode(b"x" * 126)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 4408, 4409, 4429])
def test_a_close_frame_carries_code_and_reason(code: int) -> None:
    """The codes of the live protocol."""
    assert encode_close(code) == served(CLOSE, struct.pack("!H", code))
    assert encode_close(code, "ciao…") == served(CLOSE, struct.pack("!H", code) + "ciao…".encode())


def test_a_close_frame_without_a_code_is_empty() -> None:
    assert encode_close(None) == encode_close(None, "dropped") == b"\x88\x00"


@pytest.mark.parametrize("code", BAD_CODES)
def test_a_code_that_must_not_be_sent_is_not_sent(code: int) -> None:
    with pytest.raises(ValueError, match=f"{code} must not be sent"):
        encode_close(code)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 123, "x" * 123),
        ("x" * 124, "x" * 123),
        ("é" * 62, "é" * 61),
        ("x" * 120 + "…", "x" * 120 + "…"),
        ("x" * 121 + "…", "x" * 121),
        ("x" * 119 + "😀", "x" * 119 + "😀"),
        ("x" * 120 + "😀", "x" * 120),
        ("a\ud800b", "a?b"),
    ],
)
def test_a_reason_is_cut_to_123_bytes_between_two_characters(reason: str, kept: str) -> None:
    """Section 5.5.1: it is UTF-8, so half a surrogate pair is replaced."""
    assert encode_close(1000, reason) == served(CLOSE, b"\x03\xe8" + kept.encode())


@given(st.text(max_size=200))
def test_any_reason_makes_a_frame_that_a_client_can_read(reason: str) -> None:
    sent = encode_close(4409, reason)
    payload = sent[2:]
    assert sent[:2] == bytes([0x88, len(payload)])
    assert len(payload) <= 125
    assert reason.startswith(payload[2:].decode())
    assert read(frame(CLOSE, payload)) == [Close(4409, payload[2:].decode())]


# -- the handshake


KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPTED = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
]
OFFER = [("Upgrade", "websocket"), ("Connection", "Upgrade")]


def request(**changes: str | None) -> dict[str, Any]:
    """The request of section 1.3 as WSGI servers give it, with changes; None takes a header away."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_UPGRADE": "websocket",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_SEC_WEBSOCKET_KEY": KEY,
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
    }
    for name, value in changes.items():
        environ[name] = value
    return {name: value for name, value in environ.items() if value is not None}


def answer(**changes: str | None) -> tuple[int, list[tuple[str, str]]]:
    """Status and headers of a refused handshake."""
    with pytest.raises(HandshakeError) as refusal:
        handshake(request(**changes))
    assert str(refusal.value) == f"{refusal.value.status}: {refusal.value.message}"
    return refusal.value.status, refusal.value.headers


def test_the_handshake_of_the_rfc_is_answered() -> None:
    """Section 1.3."""
    assert handshake(request()) == ACCEPTED


@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "get"])
def test_a_handshake_is_a_get(method: str) -> None:
    """Section 4.1."""
    assert answer(REQUEST_METHOD=method) == (400, [])


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/0.9", "HTTP/2", "", None])
def test_a_handshake_is_of_http_1_1(protocol: str | None) -> None:
    """Section 4.1."""
    assert answer(SERVER_PROTOCOL=protocol) == (400, [])


@pytest.mark.parametrize("value", ["websocket", "WebSocket", "h2c, WEBSOCKET", "h2c,\twebsocket ,x"])
def test_upgrade_is_a_list_in_any_case(value: str) -> None:
    """Section 4.2.1."""
    assert handshake(request(HTTP_UPGRADE=value)) == ACCEPTED


@pytest.mark.parametrize("value", ["upgrade", "Upgrade", "keep-alive, Upgrade", "Keep-Alive,\tUPGRADE ,x"])
def test_connection_is_a_list_in_any_case(value: str) -> None:
    """Section 4.2.1; Firefox sends `keep-alive, Upgrade`."""
    assert handshake(request(HTTP_CONNECTION=value)) == ACCEPTED


@pytest.mark.parametrize("name", ["HTTP_UPGRADE", "HTTP_CONNECTION"])
@pytest.mark.parametrize(
    "value", [None, "", "close", "websockets", "upgraded", "web socket", "no-upgrade", "websocket/13"]
)
def test_without_an_upgrade_the_answer_is_426_and_says_to_what(name: str, value: str | None) -> None:
    """RFC 9110 section 15.5.22."""
    assert answer(**{name: value}) == (426, OFFER)


@pytest.mark.parametrize("version", [None, "", "8", "7", "14", "013", "+13", "13, 8", "13, 13", "1\xb3"])
def test_another_version_is_answered_426_with_ours(version: str | None) -> None:
    """Section 4.4."""
    assert answer(HTTP_SEC_WEBSOCKET_VERSION=version) == (426, [*OFFER, ("Sec-WebSocket-Version", "13")])


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        base64.b64encode(bytes(15)).decode(),
        base64.b64encode(bytes(17)).decode(),
        base64.b64encode(bytes(18)).decode(),
        KEY[:-1],
        KEY[:-2],
        KEY + "=",
        KEY + "AAAA",
        KEY[:10] + " " + KEY[10:],
        KEY[:10] + "\n" + KEY[10:],
        KEY[:10] + "-_" + KEY[12:],
        KEY[:10] + "=" + KEY[11:],
        "é" + KEY[1:],
        f"{KEY},{KEY}",
        "not base64",
    ],
)
def test_a_key_that_is_not_16_bytes_in_base64_is_refused(key: str | None) -> None:
    """Section 4.2.1."""
    assert answer(HTTP_SEC_WEBSOCKET_KEY=key) == (400, [])


@given(st.binary(min_size=16, max_size=16))
def test_any_16_bytes_are_a_key(key: bytes) -> None:
    assert len(handshake(request(HTTP_SEC_WEBSOCKET_KEY=base64.b64encode(key).decode()))) == 3


def test_blanks_around_values_do_not_count() -> None:
    assert handshake(request(HTTP_SEC_WEBSOCKET_KEY=f" {KEY}\t", HTTP_SEC_WEBSOCKET_VERSION=" 13 ")) == ACCEPTED


@pytest.mark.parametrize("asked", ["headrace.v1", "chat, headrace.v1", "chat,headrace.v1 ,\tother"])
def test_our_subprotocol_is_named_if_it_was_asked_for(asked: str) -> None:
    """Section 4.2.2."""
    named = ("Sec-WebSocket-Protocol", "headrace.v1")
    assert handshake(request(HTTP_SEC_WEBSOCKET_PROTOCOL=asked)) == [*ACCEPTED, named]


@pytest.mark.parametrize(
    "asked", ["", "chat", "headrace.v12", "xheadrace.v1", "Headrace.V1", "headrace.v1;x", "headrace"]
)
def test_no_subprotocol_is_named_that_was_not_asked_for(asked: str) -> None:
    """Section 4.2.2: names are compared as they are."""
    assert handshake(request(HTTP_SEC_WEBSOCKET_PROTOCOL=asked)) == ACCEPTED


def test_of_several_subprotocols_the_first_of_ours_is_named() -> None:
    environ = request(HTTP_SEC_WEBSOCKET_PROTOCOL="a, b, c")
    assert handshake(environ, ("x", "c", "a"))[-1] == ("Sec-WebSocket-Protocol", "c")
    assert handshake(environ, ()) == ACCEPTED


def test_no_extension_is_agreed_on() -> None:
    """Section 9.1: what is not named in the answer is not in use."""
    assert handshake(request(HTTP_SEC_WEBSOCKET_EXTENSIONS="permessage-deflate; client_max_window_bits")) == ACCEPTED


HEADER_VALUES = st.one_of(st.none(), st.text(st.characters(max_codepoint=255), max_size=30))


@given(HEADER_VALUES, HEADER_VALUES, HEADER_VALUES)
def test_any_headers_give_an_answer_or_a_refusal(key: str | None, version: str | None, protocol: str | None) -> None:
    """WSGI gives headers as Latin-1; none of them comes back."""
    statuses = set()
    for changes in ({"HTTP_SEC_WEBSOCKET_KEY": key}, {"HTTP_SEC_WEBSOCKET_VERSION": version}):
        try:
            headers = handshake(request(HTTP_SEC_WEBSOCKET_PROTOCOL=protocol, **changes))
        except HandshakeError as error:
            headers = error.headers
            statuses.add(error.status)
        assert all(value.isascii() and value.isprintable() for _, value in headers)
    assert statuses <= {400, 426}
