"""Frames to the byte, and how the carriers that are not a WebSocket frame them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.protocol import frames, ndjson, sse
from streaming.protocol.cut import Cut
from streaming.protocol.log import Gap, LogEntry
from streaming.protocol.stream import Stream
from streaming.protocol.text import Part
from tests.folding import Fold, Writer, parsed, sse_events

SMILE = "\U0001f600"
EPOCH = "q7Gk2mZx"


def part(text: str = "Hello", p: int = 2) -> Part:
    part = Part(p, "m1", 0, "text", b'{"a":1}')
    part.append(text)
    return part


def entry(kind: str = "note", data: bytes = b'{"x":1}', ends: Part | None = None) -> LogEntry:
    return LogEntry(9, kind, data, Gap(), part=ends)


# -- frames


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            frames.hello_frame(flush_ms=50, background_ms=333, ping_s=15, max_in=65_536),
            b'{"t":"hello","proto":1,"caps":["activity","focus","visibility","publish","cancel"],"flush_ms":50,'
            b'"background_ms":333,"ping_s":15,"max_in":65536}',
        ),
        (
            frames.greeting_frame("s", EPOCH, 3, 8, "", []),
            b'{"t":"subscribed","sid":"s","epoch":"q7Gk2mZx","floor":3,"head":8,"open":[]}',
        ),
        (
            frames.greeting_frame("s", EPOCH, 3, 8, "trimmed", [frames.open_message("m1", "user", b"{}", [part()])]),
            b'{"t":"reset","sid":"s","epoch":"q7Gk2mZx","floor":3,"head":8,"reason":"trimmed","open":[{"mid":"m1",'
            b'"role":"user","meta":{},"parts":[{"p":2,"part":0,"kind":"text","meta":{"a":1}}]}]}',
        ),
        (frames.event_frame("s", entry()), b'{"t":"event","sid":"s","seq":9,"k":"note","d":{"x":1}}'),
        (frames.delta_frame("s", part(), 1, 4), b'{"t":"delta","sid":"s","p":2,"off":1,"s":"ell"}'),
        (frames.cumulative_frame("s", part()), b'{"t":"cumulative","sid":"s","p":2,"s":"Hello"}'),
        (
            frames.activity_frame(
                [frames.activity_item("s", "streaming", 9, 120), frames.activity_item("r", "idle", 0, 0)]
            ),
            b'{"t":"activity","items":[{"sid":"s","state":"streaming","head":9,"chars":120},'
            b'{"sid":"r","state":"idle","head":0,"chars":0}]}',
        ),
        (frames.notify_frame("s", entry()), b'{"t":"notify","sid":"s","seq":9,"k":"note","d":{"x":1}}'),
        (frames.frame("ack", id="7", ok=True, d=None), b'{"t":"ack","id":"7","ok":true}'),
        (frames.frame("pong", id=1), b'{"t":"pong","id":1}'),
        (frames.frame("error", code="rate", msg="too many"), b'{"t":"error","code":"rate","msg":"too many"}'),
        (frames.frame("bye", reason="restart", retry_ms=100), b'{"t":"bye","reason":"restart","retry_ms":100}'),
        (frames.frame("done", sid="s", seq=0), b'{"t":"done","sid":"s","seq":0}'),
    ],
    ids=lambda value: value.t if isinstance(value, frames.Frame) else "",
)
def test_a_frame_has_the_members_of_the_contract(frame: frames.Frame, expected: bytes) -> None:
    assert frame.json == expected
    assert json.loads(frame.json)["t"] == frame.t


def test_frames_know_how_they_move_a_cursor() -> None:
    def moves(frame: frames.Frame) -> tuple[int, int, int]:
        return frame.seq, frame.p, frame.end

    assert moves(frames.event_frame("s", entry())) == (9, 0, 0)
    assert moves(frames.event_frame("s", entry("part.end", ends=part()))) == (9, 2, -1)
    assert moves(frames.delta_frame("s", part(), 1, 4)) == (0, 2, 4)
    assert moves(frames.cumulative_frame("s", part())) == (0, 2, 5)
    assert moves(frames.notify_frame("s", entry())) == (0, 0, 0)  # "does not move the cursor"
    assert moves(frames.greeting_frame("s", EPOCH, 3, 8, "", [])) == (0, 0, 0)


def test_offsets_in_frames_count_code_points() -> None:
    frame = frames.delta_frame("s", part(SMILE * 3), 1, 3)
    assert json.loads(frame.json) == {"t": "delta", "sid": "s", "p": 2, "off": 1, "s": SMILE * 2}


def test_text_is_sent_as_utf_8_and_slashes_as_they_are() -> None:
    frame = frames.delta_frame("s", part(f"é/{SMILE}"), 0, 3)
    assert f'"s":"é/{SMILE}"'.encode() in frame.json


def test_an_events_data_can_be_replaced_for_clients_that_fold_nothing() -> None:
    frame = frames.event_frame("s", entry(), b"[]")
    assert frame.json == b'{"t":"event","sid":"s","seq":9,"k":"note","d":[]}'


# -- the data of built-in events


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (frames.message_start("m1", 'a "b"', b'{"x":1}'), {"mid": "m1", "role": 'a "b"', "meta": {"x": 1}}),
        (frames.part_start("m1", 3, "text", b"{}"), {"mid": "m1", "part": 3, "kind": "text", "meta": {}}),
        (frames.part_end("m1", 2, 5), {"mid": "m1", "p": 2, "len": 5}),
        (frames.part_end("m1", 2, 0, ""), {"mid": "m1", "p": 2, "len": 0, "s": ""}),
        (frames.part_end("m1", 2, 2, f"{SMILE}\n"), {"mid": "m1", "p": 2, "len": 2, "s": f"{SMILE}\n"}),
        (frames.message_end("m1", "complete", None, None, []), {"mid": "m1", "status": "complete", "parts": []}),
        (
            frames.message_end("m1", "error", 'why "?"', b'{"tokens":2}', [(2, "text", 5), (4, "thinking", 0)]),
            {
                "mid": "m1",
                "status": "error",
                "error": 'why "?"',
                "usage": {"tokens": 2},
                "parts": [{"p": 2, "kind": "text", "len": 5}, {"p": 4, "kind": "thinking", "len": 0}],
            },
        ),
    ],
)
def test_a_built_in_event_has_the_members_of_the_contract(data: bytes, expected: dict[str, Any]) -> None:
    assert json.loads(data) == expected


# -- text from outside


@given(st.text(max_size=20) | st.sampled_from(["\r\n\n", "\x00", "\u2028\u2029\x85", '"}\n\nevent: x', "\x0b\x0c\x1c"]))
def test_no_text_breaks_out_of_its_frame_its_line_or_its_sse_field(text: str) -> None:
    stream = Stream("s", EPOCH, 100, 10**6, 10**6)
    writer = Writer(stream)
    mid = writer.message(role=text or "x")
    p = writer.part(mid)
    writer.text(p, text)
    writer.end_part(p, replacement=text)
    cut = stream.cut(stream.start(None))
    assert b"\n" not in cut.joined
    assert b"\r" not in cut.joined
    for carrier in ("websocket", "sse", "ndjson"):
        fold = Fold("s")
        fold.subscribe()
        if carrier == "websocket":
            found = fold.read_message(b"[%b]" % cut.joined)
        elif carrier == "sse":
            found = fold.read_sse(sse.encode_cut(cut, EPOCH))
        else:
            found = fold.read_lines(ndjson.encode_cut(cut))
        assert len(found) == len(cut.frames)
        assert fold.text(p) == text
        assert fold.messages[mid].role == (text or "x")


# -- SSE


def conversation() -> tuple[Stream, int]:
    """A stream with a message that is open, one part ended and one open."""
    stream = Stream("s", EPOCH, 100, 10**6, 10**6)
    writer = Writer(stream)
    mid = writer.message()
    ended, still_open = writer.part(mid, "thinking"), writer.part(mid)
    writer.text(ended, "hm")
    writer.text(still_open, "Hello")
    writer.end_part(ended)
    return stream, still_open


def test_the_first_bytes_of_sse_set_the_pause_before_a_browser_comes_back() -> None:
    assert sse.OPENING == b"retry: 1000\n"


def test_an_sse_event_has_name_id_and_data() -> None:
    frame = frames.frame("done", sid="s", seq=3)
    assert sse.encode_frame(frame, "q7Gk2mZx.3") == (
        b'event: done\nid: q7Gk2mZx.3\ndata: {"t":"done","sid":"s","seq":3}\n\n'
    )


def test_without_a_token_the_browser_keeps_the_id_it_has() -> None:
    assert sse.encode_frame(frames.frame("ping")) == b'event: ping\ndata: {"t":"ping"}\n\n'


def test_bye_sets_the_pause_in_the_browser_too() -> None:
    data = sse.encode_bye(frames.frame("bye", reason="restart", retry_ms=250), 250)
    assert data.startswith(b"retry: 250\nevent: bye\n")
    assert [(name, identity) for name, identity, _ in sse_events(data)] == [("bye", None)]


def test_heartbeats_are_no_events() -> None:
    assert [*sse_events(sse.OPENING + sse.HEARTBEAT)] == []
    assert sse.HEARTBEAT.startswith(b":")
    assert json.loads(ndjson.HEARTBEAT) == {"t": "ping"}


def test_each_sse_id_is_the_cursor_after_its_frame() -> None:
    stream, _ = conversation()
    found = [
        (frame["t"], frame.get("seq"), identity)
        for _, identity, frame in sse_events(sse.encode_cut(stream.cut(stream.start(None)), EPOCH))
    ]
    assert found == [
        ("subscribed", None, f"{EPOCH}.0"),
        ("event", 1, f"{EPOCH}.1"),
        ("event", 2, f"{EPOCH}.2"),
        ("event", 3, f"{EPOCH}.3"),
        ("delta", None, f"{EPOCH}.3.2~2"),
        ("event", 4, f"{EPOCH}.4"),
        ("delta", None, f"{EPOCH}.4.3~5"),
    ]


def test_a_reset_sets_the_id_to_the_floor() -> None:
    stream, _ = conversation()
    (_, identity, frame), *_ = sse_events(sse.encode_cut(stream.cut(stream.start("otherepoch.9")), EPOCH))
    assert (frame["t"], frame["reason"], identity) == ("reset", "epoch", f"{EPOCH}.0")


def test_a_resumed_response_begins_with_the_id_that_was_sent() -> None:
    stream, p = conversation()
    token = f"{EPOCH}.4.{p}~3"
    events = [*sse_events(sse.encode_cut(stream.cut(stream.start(token)), EPOCH))]
    assert [identity for _, identity, _ in events] == [token, f"{EPOCH}.4.{p}~5"]


@pytest.mark.parametrize("limit", [1, 150, 1_000])
def test_the_last_sse_id_is_the_token_of_the_cursor_after_the_cut(limit: int) -> None:
    stream, _ = conversation()
    cursor = stream.start(None)
    while (cut := stream.cut(cursor, limit)).frames:
        *_, (_, identity, _) = sse_events(sse.encode_cut(cut, EPOCH))
        assert parsed(identity or "") == parsed(stream.token(cut.after))
        cursor = cut.after


def test_the_order_of_a_cuts_offsets_is_left_alone_by_encoding() -> None:
    """What is shared must not change."""
    stream, p = conversation()
    cut = stream.cut(stream.start(f"{EPOCH}.3.{p}~1"))
    before = dict(cut.offsets)
    first = sse.encode_cut(cut, EPOCH)
    assert cut.offsets == before
    assert sse.encode_cut(cut, EPOCH) == first


def test_a_cut_without_frames_has_no_bytes_on_any_carrier() -> None:
    stream, _ = conversation()
    cut: Cut = stream.cut(stream.tip())
    assert (cut.frames, cut.joined) == ([], b"")
    assert sse.encode_cut(cut, EPOCH) == ndjson.encode_cut(cut) == b""


# -- NDJSON


def test_ndjson_is_one_frame_a_line() -> None:
    stream, _ = conversation()
    cut = stream.cut(stream.start(None))
    assert ndjson.encode_cut(cut) == b"".join(ndjson.encode_frame(frame) for frame in cut.frames)
    assert ndjson.encode_cut(cut).count(b"\n") == len(cut.frames)
