"""A stream: its epoch and numbers, how a cursor is judged, what is let go of, and its snapshot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.protocol import stream as stream_module
from streaming.protocol.cursor import MAX_TOKEN, parse_token
from streaming.protocol.frames import message_start
from streaming.protocol.stream import MAX_MIDS, MAX_SHARED, SNAPSHOT_RUN, Event, Stream, Text
from tests.folding import Fold, Writer, read_snapshot

EPOCH = "q7Gk2mZx"
SMILE = "\U0001f600"
PLENTY = 10**9


def new_stream(max_events: int = 1_000, max_bytes: int = PLENTY, max_text: int = PLENTY) -> tuple[Stream, Writer]:
    stream = Stream("s", EPOCH, max_events, max_bytes, max_text)
    return stream, Writer(stream)


def opening(stream: Stream, token: str | None) -> dict[str, Any]:
    """The first frame that a subscriber with this token gets."""
    found: dict[str, Any] = json.loads(stream.cut(stream.start(token)).frames[0].json)
    return found


def judged(stream: Stream, token: str) -> str:
    """The reason of the reset, or `resumed`."""
    frame = opening(stream, token)
    return frame["reason"] if frame["t"] == "reset" else "resumed"


def resumed(stream: Stream, token: str) -> list[dict[str, Any]]:
    """What a subscriber gets that resumes with this token, behind `subscribed`."""
    first, *rest = [json.loads(frame.json) for frame in stream.cut(stream.start(token)).frames]
    assert first["t"] == "subscribed"
    return rest


# -- in


def test_applying_returns_the_head_after_it() -> None:
    stream = Stream("s", EPOCH, 9, PLENTY, PLENTY)
    assert stream.apply(Event("note", b"1")) == 1
    assert stream.apply(Event("message.start", message_start("m", "user", b"{}"))) == 2
    assert stream.apply(Event("part.start", b'{"mid":"m","part":0,"kind":"text","meta":{}}')) == 3
    assert stream.apply(Text(3, "abc")) == 3


def test_a_part_is_named_by_the_seq_of_its_start() -> None:
    stream, writer = new_stream()
    writer.event()
    p = writer.part(writer.message())
    assert p == 3
    assert stream.parts[p].p == 3


def test_state_follows_the_messages_that_are_open() -> None:
    stream, writer = new_stream()
    assert (stream.state, stream.is_finished) == ("idle", False)
    writer.event()
    assert (stream.state, stream.is_finished) == ("idle", False)
    one, other = writer.message(), writer.message()
    writer.end(one)
    assert (stream.state, stream.is_finished) == ("streaming", False)
    writer.end(other, "aborted")
    assert (stream.state, stream.is_finished) == ("idle", True)


def test_chars_count_code_points_of_text_in_this_epoch_and_never_fall() -> None:
    stream, writer = new_stream(max_events=2)
    mid = writer.message()
    p = writer.part(mid)
    writer.text(p, "a" + SMILE)
    writer.end_part(p, replacement="")
    writer.end(mid)
    writer.event()
    assert stream.chars == 2


def test_a_mid_counts_as_used_also_after_its_message_has_left_the_log() -> None:
    stream, writer = new_stream(max_events=1)
    writer.end(writer.message("once"))
    writer.event()
    assert "once" not in stream.messages
    assert stream.has_used("once")
    assert not stream.has_used("twice")


def test_ten_thousand_mids_are_remembered_the_oldest_is_forgotten() -> None:
    stream, writer = new_stream(max_events=4)
    assert MAX_MIDS == 10_000
    for number in range(MAX_MIDS):
        writer.end(writer.message(f"m{number}"))
    assert stream.has_used("m0")
    writer.end(writer.message("one-more"))
    assert not stream.has_used("m0")
    assert stream.has_used("m1")
    assert len(stream._mids) == MAX_MIDS
    assert len(stream.messages) <= 4


def test_the_mid_of_an_open_message_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_MIDS", 2)
    stream, writer = new_stream(max_events=1)
    writer.message("open")
    for number in range(5):
        writer.end(writer.message(f"m{number}"))
    assert "open" not in stream._mids
    assert stream.has_used("open")


def test_urgent_events_are_found_from_where_the_log_still_has_them() -> None:
    stream, writer = new_stream(max_events=3)
    for number in range(6):
        writer.event("note", b"%d" % number, urgent=number % 2 == 1)  # 2, 4 and 6
    assert [entry.seq for entry in stream.urgent_after(0)] == [4, 6]
    assert [entry.seq for entry in stream.urgent_after(4)] == [6]
    assert stream.urgent_after(6) == []


# -- what is let go of


def test_an_ended_parts_text_stays_until_its_end_has_left_the_log() -> None:
    stream, writer = new_stream(max_events=2)
    mid = writer.message()
    p = writer.part(mid)
    writer.text(p, "Hello")
    end = writer.end_part(p)
    writer.event()
    assert stream.floor == end - 1
    assert p in stream.parts
    assert stream.messages[mid].parts == [stream.parts[p]]
    writer.event()
    assert p not in stream.parts
    assert stream.messages[mid].parts == []


def test_a_message_stays_until_its_end_has_left_the_log() -> None:
    stream, writer = new_stream(max_events=2)
    mid = writer.message()
    end = writer.end(mid)
    writer.event()
    assert stream.floor == end - 1
    assert mid in stream.messages
    writer.event()
    assert mid not in stream.messages


def test_an_open_part_keeps_its_text_however_much_leaves_the_log() -> None:
    stream, writer = new_stream(max_events=1, max_text=1)
    p = writer.part(writer.message())
    for _ in range(10):
        writer.text(p, "abc")
        writer.event()
    assert read_snapshot(stream)["messages"][0]["parts"][0]["s"] == "abc" * 10


def test_deltas_never_evict_events() -> None:
    stream, writer = new_stream(max_events=5, max_bytes=2_000)
    p = writer.part(writer.message())
    for _ in range(5_000):
        writer.text(p, "token")
    assert stream.floor == 0


def test_a_stream_that_lives_long_holds_no_more_than_its_log() -> None:
    stream, writer = new_stream(max_events=20)
    for number in range(300):
        mid = writer.message()
        for _ in range(3):
            writer.text(writer.part(mid), "text")
        stream.cut(stream.start(f"{EPOCH}.{stream.head}"))
        writer.end(mid)
        if number > 20:
            assert len(stream.log.entries) == 20
            assert len(stream.parts) <= 20
            assert len(stream.messages) <= 20
    assert stream.open_parts == {}
    assert stream.open_messages == {}


# -- the judge


def talking() -> tuple[Stream, Writer, int]:
    """Events 1 to 3 dropped (a message and a part of it among them), 4 to 6 in the log, a part with ten code points."""
    stream, writer = new_stream(max_events=3)
    p = writer.part(writer.message())
    writer.text(p, "a" + SMILE * 4)
    writer.event()
    writer.text(p, "12345")
    writer.event()
    writer.event()
    writer.event()
    assert (stream.floor, stream.head, p) == (3, 6, 2)
    return stream, writer, p


def test_without_a_cursor_the_whole_retained_log_follows_from_the_floor() -> None:
    stream, _, p = talking()
    first = opening(stream, None)
    assert first == {
        "t": "subscribed",
        "sid": "s",
        "epoch": EPOCH,
        "floor": 3,
        "head": 6,
        "open": [
            {
                "mid": "m1",
                "role": "assistant",
                "meta": {},
                "parts": [{"p": p, "part": 0, "kind": "text", "meta": {}}],
            }
        ],
    }


@pytest.mark.parametrize(
    ("token", "verdict"),
    [
        ("", "invalid"),
        ("nonsense", "invalid"),
        ("fresh", "invalid"),  # no word of ours means anything
        ("resumed", "invalid"),
        (f"{EPOCH}.-1", "invalid"),
        (f"{EPOCH}.9007199254740992", "invalid"),
        (f"{EPOCH}.6.2~9007199254740992", "invalid"),
        (f"{EPOCH}.6" + ".2~1" * 600, "invalid"),
        ("otherepoch.6", "epoch"),
        (f"{EPOCH.lower()}.6", "epoch"),
        (f"{EPOCH}.7", "ahead"),
        (f"{EPOCH}.9007199254740991", "ahead"),
        (f"{EPOCH}.6.2~11", "ahead"),
        (f"{EPOCH}.2", "trimmed"),
        (f"{EPOCH}.0", "trimmed"),
        (f"{EPOCH}.3", "resumed"),
        (f"{EPOCH}.6.2~10", "resumed"),
        (f"{EPOCH}.6", "resumed"),
    ],
)
def test_a_cursor_is_judged(token: str, verdict: str) -> None:
    stream, _, _ = talking()
    assert judged(stream, token) == verdict


@pytest.mark.parametrize(
    ("token", "verdict"),
    [
        ("otherepoch.99.2~99.2~99", "invalid"),  # before epoch and ahead
        ("otherepoch.7.2~99", "epoch"),  # before ahead
        ("otherepoch.0", "epoch"),  # before trimmed
        (f"{EPOCH}.0.2~11", "ahead"),  # before trimmed
    ],
)
def test_the_first_verdict_counts(token: str, verdict: str) -> None:
    stream, _, _ = talking()
    assert judged(stream, token) == verdict


def test_a_reset_says_where_the_client_stands_and_what_is_open() -> None:
    stream, _, _ = talking()
    frame = opening(stream, "otherepoch.6")
    assert frame == {**opening(stream, None), "t": "reset", "reason": "epoch"}


def test_text_goes_on_from_the_offset_that_was_given() -> None:
    stream, _, p = talking()
    assert resumed(stream, f"{EPOCH}.6.{p}~5") == [{"t": "delta", "sid": "s", "p": p, "off": 5, "s": "12345"}]


def test_text_goes_on_from_zero_where_no_offset_was_given() -> None:
    stream, _, p = talking()
    for token in (f"{EPOCH}.6", f"{EPOCH}.6.{p}~0"):
        (frame,) = resumed(stream, token)
        assert (frame["off"], len(frame["s"])) == (0, 10)


def test_a_part_that_is_not_known_any_more_is_ignored() -> None:
    stream, _, p = talking()
    assert resumed(stream, f"{EPOCH}.6.1~77.{p}~10.99~5") == []


def test_an_offset_of_a_part_that_ended_before_the_cursor_is_ignored() -> None:
    stream, writer, p = talking()
    end = writer.end_part(p)
    writer.event()
    token = f"{EPOCH}.{end}.{p}~4"
    assert [frame["t"] for frame in resumed(stream, token)] == ["event"]
    assert stream.token(stream.start(token)) == f"{EPOCH}.{end}"


def test_an_offset_of_a_part_that_starts_behind_the_cursor_is_ignored() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    p = writer.part(mid)
    writer.text(p, "abc")
    frames = resumed(stream, f"{EPOCH}.{p - 1}.{p}~2")
    assert [(frame["t"], frame.get("off")) for frame in frames] == [("event", None), ("delta", 0)]
    assert stream.token(stream.start(f"{EPOCH}.{p}.{p}~0")) == f"{EPOCH}.{p}"


def test_a_resumed_client_is_told_what_was_open_where_it_stands() -> None:
    stream, writer = new_stream()
    mid, other = writer.message("a"), writer.message("b")
    first, second = writer.part(mid), writer.part(mid)
    writer.end_part(first)
    writer.end(other)
    late = writer.part(mid)

    def open_at(seq: int) -> dict[str, list[int]]:
        return {
            item["mid"]: [each["p"] for each in item["parts"]] for item in opening(stream, f"{EPOCH}.{seq}")["open"]
        }

    assert open_at(0) == {}
    assert open_at(1) == {"a": []}
    assert open_at(3) == {"a": [first], "b": []}
    assert open_at(4) == {"a": [first, second], "b": []}
    assert open_at(5) == {"a": [second], "b": []}
    assert open_at(6) == {"a": [second]}
    assert open_at(late) == {"a": [second, late]}


def test_a_cursor_at_the_floor_is_good_and_one_before_it_is_not() -> None:
    stream, _, _ = talking()
    assert [frame["seq"] for frame in resumed(stream, f"{EPOCH}.3.2~10")] == [4, 5, 6]
    assert judged(stream, f"{EPOCH}.2.2~10") == "trimmed"


def test_an_empty_stream_greets_and_has_nothing_more() -> None:
    stream, _ = new_stream()
    cut = stream.cut(stream.start(None))
    assert [json.loads(frame.json) for frame in cut.frames] == [
        {"t": "subscribed", "sid": "s", "epoch": EPOCH, "floor": 0, "head": 0, "open": []}
    ]
    assert cut.after is stream.tip()
    assert stream.token(cut.after) == f"{EPOCH}.0"
    assert judged(stream, f"{EPOCH}.0") == "resumed"
    assert judged(stream, f"{EPOCH}.1") == "ahead"


def test_whoever_brings_the_same_cursor_gets_the_same_place() -> None:
    stream, writer, _ = talking()
    for token in (None, f"{EPOCH}.4", f"{EPOCH}.1", "otherepoch.1"):
        assert stream.start(token) is stream.start(token)
    assert stream.start("otherepoch.1") is stream.start("otherepoch.2")  # both begin at the floor
    assert stream.start("otherepoch.1") is not stream.start(None)
    before = stream.start(None)
    writer.event()
    assert stream.start(None) is not before


def test_starting_places_are_bounded_and_bad_tokens_are_not_kept() -> None:
    stream, writer = new_stream()
    for _ in range(3 * MAX_SHARED):
        writer.event()
    for seq in range(3 * MAX_SHARED):
        stream.start(f"{EPOCH}.{seq}")
        stream.start("?" * 60_000 + str(seq))
        assert len(stream._starts) <= MAX_SHARED
    assert sum(len(token) for _, token in stream._starts) < MAX_SHARED * MAX_TOKEN


# -- tokens


def test_the_token_of_the_tip_resumes_with_nothing_to_send() -> None:
    stream, _, p = talking()
    assert stream.token(stream.tip()) == f"{EPOCH}.6.{p}~10"
    assert resumed(stream, stream.token(stream.tip())) == []


def test_hundreds_of_open_parts_make_a_token_that_is_good_and_only_repeats_what_it_left_out() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    parts = [writer.part(mid) for _ in range(600)]
    for number, p in enumerate(parts):
        writer.text(p, f"text of {number}")
    fold = Fold("s")
    stream_to(stream, fold)
    token = fold.token()
    assert token is not None
    assert len(token) <= MAX_TOKEN
    assert token == stream.token(stream.tip())
    found = parse_token(token)
    assert found is not None
    writer.text(parts[0], "!")
    writer.text(parts[-1], "!")
    cut = stream.cut(stream.start(fold.subscribe()))
    sent = [json.loads(frame.json) for frame in cut.frames[1:]]
    assert {frame["p"] for frame in sent} == {p for p in parts if p not in found.offsets} | {parts[0]}
    fold.read_message(b"[%b]" % cut.joined)
    fold.assert_holds(read_snapshot(stream))


def stream_to(stream: Stream, fold: Fold) -> None:
    """Subscribe and catch up."""
    cursor = stream.start(fold.subscribe())
    while (cut := stream.cut(cursor)).frames:
        fold.read_message(b"[%b]" % cut.joined)
        cursor = cut.after
    assert cursor is stream.tip()


# -- snapshot


def test_a_snapshot_has_the_members_of_the_contract() -> None:
    stream, writer = new_stream()
    mid = writer.message("a", "user", b'{"x":"\\u00e9"}')
    ended = writer.part(mid, "thinking", b'{"y":[]}')
    still_open = writer.part(mid)
    replaced = writer.part(mid, "tool_output")
    writer.text(ended, "hm\n")
    writer.text(still_open, SMILE)
    writer.text(replaced, "draft")
    writer.end_part(ended)
    writer.end_part(replaced, "final")
    writer.event("tool.result", b'{"ok":true}')
    writer.end(writer.message("b"), "cancelled")
    assert read_snapshot(stream) == {
        "sid": "s",
        "epoch": EPOCH,
        "seq": 9,
        "floor": 0,
        "cursor": f"{EPOCH}.9.{still_open}~1",
        "messages": [
            {
                "mid": "a",
                "role": "user",
                "meta": {"x": "é"},
                "status": "open",
                "parts": [
                    {"p": ended, "kind": "thinking", "meta": {"y": []}, "s": "hm\n", "open": False},
                    {"p": still_open, "kind": "text", "meta": {}, "s": SMILE, "open": True},
                    {"p": replaced, "kind": "tool_output", "meta": {}, "s": "final", "open": False},
                ],
            },
            {"mid": "b", "role": "assistant", "meta": {}, "status": "cancelled", "parts": []},
        ],
        "events": [{"seq": 7, "k": "tool.result", "d": {"ok": True}}],
    }


def test_the_snapshot_of_an_empty_stream() -> None:
    stream, _ = new_stream()
    assert read_snapshot(stream) == {
        "sid": "s",
        "epoch": EPOCH,
        "seq": 0,
        "floor": 0,
        "cursor": f"{EPOCH}.0",
        "messages": [],
        "events": [],
    }


def test_a_snapshot_stays_what_it_was_while_the_stream_grows_and_trims() -> None:
    """At every place between two of its pieces."""

    def fill() -> tuple[Stream, Writer, str, list[int]]:
        stream, writer = new_stream(max_events=8)
        mid = writer.message()
        parts = [writer.part(mid) for _ in range(3)]
        for p in parts:
            writer.text(p, f"text of {p}")
        writer.end_part(parts[0])
        writer.event("note", b'{"n":1}')
        return stream, writer, mid, parts

    stream, *_ = fill()
    expected = b"".join(stream.snapshot())
    count = len([*stream.snapshot()])
    for place in range(count + 1):
        stream, writer, mid, parts = fill()
        pieces = stream.snapshot()
        read = [next(pieces) for _ in range(place)]
        writer.text(parts[1], " and more")
        writer.end_part(parts[1], "replaced")
        writer.end(mid, "error")
        for _ in range(20):
            writer.event()
        assert stream.parts == {}
        assert b"".join([*read, *pieces]) == expected


def test_a_long_text_is_encoded_a_piece_at_a_time() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    streamed, replaced = writer.part(mid), writer.part(mid)
    text = SMILE * (2 * SNAPSHOT_RUN + 5)
    writer.text(streamed, text)
    writer.end_part(replaced, text)
    assert max(map(len, stream.snapshot())) <= 4 * SNAPSHOT_RUN
    assert [part["s"] for part in read_snapshot(stream)["messages"][0]["parts"]] == [text, text]
