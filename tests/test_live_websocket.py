"""WebSocket: frames of both sides, coalescing, focus, slow readers, heartbeats, close codes (docs/live-protocol.md,
"Frames", "Frames of the client" and "Coalescing"). The server is ours, on a real
socket; the client makes its frames by hand."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from streaming.live.connection import Connection
from streaming.live.conversation import WebSocketConnection
from streaming.live.producer import Message
from streaming.live.sockets import SocketConnection
from streaming.protocol import sse
from streaming.protocol import stream as streams
from tests.folding import MAX_DELTA, MAX_MESSAGE, Fold
from tests.live import (
    BINARY,
    CLOSE,
    GOING_ON,
    PING,
    TEXT,
    UPGRADE,
    Frame,
    LiveSite,
    header,
    kinds,
    masked,
    texts,
)  # fmt: skip
from tests.parts import LIMIT, until


def after_tick(interval: float) -> float:
    """Wait for the beginning of an interval of the server's grid; what waits for a tick now waits for nearly all of it.
    Returns the time."""
    until(lambda: time.monotonic() % interval < 0.2 * interval, "the grid")
    return time.monotonic()


def quiet(site: LiveSite, sid: str, interval: float) -> None:
    """Wait until a stream has not been flushed for longer than an interval."""
    until(lambda: time.monotonic() - site.channel(sid).flushed_at > 1.05 * interval, "a quiet spell")


def answer(site: LiveSite, sid: str, text: str = "") -> tuple[Message, int]:
    """A message with a part of text that has begun; and the part's name."""
    message = site.message(sid)
    part = message.part()
    part.start()
    message._text = part
    if text:
        message.append(text)
    return message, part.p


def speaking(site: LiveSite, *sids: str) -> Iterator[None]:
    """Append a little to each stream with every step."""
    messages = [answer(site, sid)[0] for sid in sids]
    while True:
        for message in messages:
            message.append("some text ")
        yield


def fill(connection: Connection, message: Message) -> None:
    """Append until the client's socket takes no more."""

    def more() -> bool:
        message.append("x" * 20_000)
        return bool(connection.is_blocked)

    until(more, "the socket to be full")


# -- frames of the server


def test_hello_is_the_first_frame_and_tells_the_settings(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.05, background_interval=0.333, ping_interval=7, max_inbound=1_234)
    websocket = live_site.websocket()
    hello = {"t": "hello", "proto": 1, "flush_ms": 50, "background_ms": 333, "ping_s": 7, "max_in": 1_234}
    assert websocket.frames[0].pop("caps")
    assert websocket.frames[0] == hello
    assert len(websocket.frames) == 1


def test_a_stream_that_does_not_exist_is_created_empty(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    (frame,) = websocket.named("subscribed")
    assert re.fullmatch("[A-Za-z0-9]{8,32}", frame.pop("epoch"))
    assert frame == {"t": "subscribed", "sid": "chat", "floor": 0, "head": 0, "open": []}
    assert live_site.channel("chat").stream.head == 0


def test_without_a_cursor_the_whole_retained_log_follows(live_site: LiveSite) -> None:
    live_site.configure(log_events=3)
    for number in range(5):
        live_site.stream("chat").publish("note", number)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.wait(lambda: fold.seq == 5)
    assert (fold.floor, fold.head) == (2, 5)
    assert [event["d"] for event in fold.events] == [2, 3, 4]


def test_an_event_has_its_seq_kind_and_data(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    live_site.stream("chat").publish("tool.result", {"ok": True, "text": "ä\n\u2028"})
    data = {"ok": True, "text": "ä\n\u2028"}
    assert websocket.answer("event") == {"t": "event", "sid": "chat", "seq": 1, "k": "tool.result", "d": data}


def test_the_protocols_own_events_say_what_the_contract_says(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message = live_site.message("chat", role="assistant", meta={"model": "m"}, mid="m1")
    message.part("thinking", {"n": 1}).append("hm")
    message.append("hello")
    message.usage = {"tokens": 2}
    message.end()
    websocket.wait(lambda: fold.seq == 6)
    assert [(frame["k"], frame["d"]) for frame in websocket.named("event")] == [
        ("message.start", {"mid": "m1", "role": "assistant", "meta": {"model": "m"}}),
        ("part.start", {"mid": "m1", "part": 0, "kind": "thinking", "meta": {"n": 1}}),
        ("part.start", {"mid": "m1", "part": 1, "kind": "text", "meta": {}}),
        ("part.end", {"mid": "m1", "p": 2, "len": 2}),
        ("part.end", {"mid": "m1", "p": 3, "len": 5}),
        (
            "message.end",
            {
                "mid": "m1",
                "status": "complete",
                "usage": {"tokens": 2},
                "parts": [{"p": 2, "kind": "thinking", "len": 2}, {"p": 3, "kind": "text", "len": 5}],
            },
        ),
    ]
    assert websocket.named("delta") == [
        {"t": "delta", "sid": "chat", "p": 2, "off": 0, "s": "hm"},
        {"t": "delta", "sid": "chat", "p": 3, "off": 0, "s": "hello"},
    ]


def test_a_late_joiner_is_told_the_open_messages_and_gets_the_text_once(live_site: LiveSite) -> None:
    early = live_site.websocket()
    first = early.subscribed("chat")
    message, p = answer(live_site, "chat", "the beginning, ")
    early.wait(lambda: p in first.parts and first.text(p) == "the beginning, ")
    early.leave()
    message.append("the middle, ")
    late, again = live_site.websocket(), live_site.websocket()
    whole, resumed = late.subscribed("chat"), again.subscribed("chat", first)
    assert late.named("subscribed")[0]["open"] == []  # all of the log follows
    opened = {"p": p, "part": 0, "kind": "text", "meta": {}}
    assert again.named("subscribed")[0]["open"] == [
        {"mid": message.mid, "role": "assistant", "meta": {}, "parts": [opened]}
    ]
    message.append("the end")
    message.end()
    late.wait(lambda: whole.seq == 4)
    again.wait(lambda: resumed.seq == 4)
    assert whole.text(p) == resumed.text(p) == "the beginning, the middle, the end"
    assert "".join(texts(again.frames)) == "the middle, the end"


def test_a_message_is_closed_before_it_would_pass_256_kib_and_a_delta_has_at_most_16384_code_points(
    live_site: LiveSite,
) -> None:
    message, p = answer(live_site, "chat", "ä" * 500_000)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.wait(lambda: p in fold.parts and len(fold.text(p)) == 500_000)
    message.end()
    websocket.wait(lambda: fold.seq == 4)
    assert max(websocket.sizes) <= MAX_MESSAGE
    assert len(websocket.messages) >= 1_000_000 // MAX_MESSAGE
    assert max(map(len, texts(websocket.frames))) == MAX_DELTA


def test_what_several_streams_have_goes_in_as_many_messages_as_the_size_asks_for(live_site: LiveSite) -> None:
    sids = ["one", "two", "three"]
    for sid in sids:
        answer(live_site, sid, "x" * 150_000)
    websocket = live_site.websocket()
    websocket.folds = {sid: Fold(sid) for sid in sids}
    websocket.say(*({"t": "subscribe", "sid": sid, "cursor": websocket.folds[sid].subscribe()} for sid in sids))
    websocket.wait(lambda: all(2 in fold.parts and len(fold.text(2)) == 150_000 for fold in websocket.folds.values()))
    assert max(websocket.sizes) <= MAX_MESSAGE


def test_a_single_larger_frame_travels_alone(live_site: LiveSite) -> None:
    stream = live_site.stream("chat")
    stream.publish("note", "before")
    stream.publish("large", "x" * 400_000)
    stream.publish("note", "after")
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.wait(lambda: fold.seq == 3)
    (large,) = [
        message for message, size in zip(websocket.messages, websocket.sizes, strict=True) if size > MAX_MESSAGE
    ]
    assert kinds(large) == ["large"]
    assert [event["seq"] for event in fold.events] == [1, 2, 3]


# -- order


def test_all_text_that_was_produced_before_an_event_goes_before_it(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat", "a")
    other = message.part("thinking")
    other.append("b")
    live_site.stream("chat").publish("note")
    message.append("c")
    live_site.stream("chat").publish("note")
    other.append("d")
    message.end()
    websocket.wait(lambda: fold.messages and fold.messages[message.mid].status == "complete")
    assert fold.heard == [1, p, (p, "a"), 3, (3, "b"), 4, (p, "c"), 5, (3, "d"), 6, 7, 8]


def test_parts_that_alternate_inside_one_flush_keep_their_order_as_separate_runs(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, _ = answer(live_site, "chat")
    other = message.part("thinking")
    other.start()
    websocket.wait(lambda: fold.seq == 3)
    count = len(websocket.messages)
    for letter in "abcdef":
        (message if letter in "abe" else other).append(letter)
    websocket.wait(lambda: fold.text(other.p) == "cdf")
    assert texts(websocket.frames) == ["ab", "cd", "e", "f"]
    assert [frame["off"] for frame in websocket.named("delta")] == [0, 0, 2, 2]
    assert len(websocket.messages) == count + 1


def test_a_busy_stream_does_not_delay_a_quiet_one(live_site: LiveSite) -> None:
    """The backlog of one is megabytes; what the other has goes with one of the first messages, not behind it."""
    answer(live_site, "busy", "x" * 3_000_000)
    live_site.stream("quiet").publish("note")
    websocket = live_site.websocket()
    busy, calm = Fold("busy"), Fold("quiet")
    websocket.folds = {"busy": busy, "quiet": calm}
    websocket.say(
        *({"t": "subscribe", "sid": sid, "cursor": websocket.folds[sid].subscribe()} for sid in websocket.folds)
    )
    websocket.wait(lambda: 2 in busy.parts and len(busy.text(2)) == 3_000_000)
    place = [number for number, frames in enumerate(websocket.messages) if any(f.get("sid") == "quiet" for f in frames)]
    assert calm.seq == 1
    assert place
    assert place[-1] <= 4 < len(websocket.messages) - 4


# -- frames of the client


def test_a_message_is_one_frame_or_an_array_of_frames(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.say({"t": "ping", "id": "one"})
    websocket.send(masked(TEXT, b'[{"t":"ping","id":2},{"t":"ping"}]'))
    websocket.send(masked(TEXT, b"[]"))
    websocket.settle()
    assert [pong.get("id") for pong in websocket.named("pong")[:3]] == ["one", 2, None]
    assert websocket.named("error") == []


def test_a_message_may_come_in_fragments_with_a_ping_between_and_in_any_slices(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    text = json.dumps({"t": "ping", "id": "ä😀"}, ensure_ascii=False).encode()
    data = masked(TEXT, text[:17], fin=False) + masked(PING, b"now") + masked(GOING_ON, text[17:])
    for start in range(0, len(data), 3):
        websocket.send(data[start : start + 3])
        gevent.sleep(0)
    assert websocket.answer("pong")["id"] == "ä😀"
    assert websocket.pongs == [b"now"]


def test_unknown_members_are_ignored_and_a_null_cursor_is_none(live_site: LiveSite) -> None:
    live_site.stream("chat").publish("note")
    websocket = live_site.websocket()
    websocket.folds["chat"] = Fold("chat")
    websocket.folds["chat"].subscribe()
    websocket.say({"t": "subscribe", "sid": "chat", "cursor": None, "future": [1]})
    websocket.wait(lambda: websocket.folds["chat"].seq == 1)
    assert websocket.named("reset") == websocket.named("error") == []


BAD = [
    "nonsense", "", "1", '"ping"', "null", "[1]", "[[]]", "{}", '{"t":1}', '{"t":"nothing"}', '{"t":"hello"}',
    '{"t":"subscribe"}', '{"t":"subscribe","sid":1}', '{"t":"subscribe","sid":""}', '{"t":"subscribe","sid":"a/b"}',
    '{"t":"subscribe","sid":"ws"}', '{"t":"subscribe","sid":"client.js"}', '{"t":"subscribe","sid":"chat\\n"}',
    '{"t":"subscribe","sid":"chat","cursor":1}', '{"t":"subscribe","sid":"chat","mode":"half"}',
    '{"t":"subscribe","sid":"chat","mode":null}', '{"t":"unsubscribe"}', '{"t":"focus"}', '{"t":"focus","sids":"chat"}',
    '{"t":"focus","sids":[1]}', '{"t":"visibility"}', '{"t":"visibility","hidden":1}', '{"t":"cancel"}',
    '{"t":"cancel","sid":"chat","mid":"a b"}', '{"t":"cancel","sid":"chat","mid":1}', '{"t":"publish","sid":"chat"}',
    '{"t":"publish","sid":"chat","k":"x"}', '{"t":"publish","sid":"chat","k":"message.start","d":1}',
    '{"t":"publish","sid":"chat","k":"X","d":1}', '{"t":"publish","sid":"chat","k":"x","d":1,"id":[]}',
    '{"t":"ping","id":{}}', '{"t":"ping","id":true}', '{"t":"ping","id":1.5}', '{"t":"ping"} {"t":"ping"}',
]  # fmt: skip


def test_a_frame_that_is_not_understood_gets_an_error_frame_and_the_connection_lives_on(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    for number, text in enumerate(BAD):
        websocket.send(masked(TEXT, text.encode()))
        error = websocket.answer("error")
        assert error["code"] == "bad_frame", text
        assert isinstance(error["msg"], str)
        assert error["msg"]
        websocket.settle()
        assert len(websocket.named("error")) == number + 1, text
    assert live_site.hub.channels == {}


def test_one_bad_frame_of_an_array_leaves_the_others_alone(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.say({"t": "ping", "id": 1}, {"t": "nothing"}, {"t": "ping", "id": 2})
    websocket.wait(lambda: len(websocket.named("pong")) == 2)
    assert kinds(websocket.frames) == ["hello", "pong", "error", "pong"]


def test_subscribing_again_starts_over_from_the_cursor_given(live_site: LiveSite) -> None:
    message, p = answer(live_site, "chat", "text")
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.wait(lambda: p in fold.parts and fold.text(p) == "text")
    anew = websocket.subscribed("chat", Fold("chat"))
    websocket.wait(lambda: p in anew.parts and anew.text(p) == "text")
    resumed = websocket.subscribed("chat", fold)
    message.append(" more")
    message.end()
    websocket.wait(lambda: resumed.seq == 4)
    assert resumed.text(p) == "text more"
    assert len(websocket.named("delta")) == 3
    assert len(live_site.subscribers) == 1


def test_after_unsubscribe_nothing_more_comes_of_the_stream(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("one")
    websocket.subscribed("two")
    websocket.say({"t": "unsubscribe", "sid": "one"})
    websocket.settle()
    live_site.stream("one").publish("note")
    live_site.stream("two").publish("note")
    websocket.answer("event")
    websocket.settle()
    assert [frame["sid"] for frame in websocket.named("event")] == ["two"]
    websocket.say({"t": "unsubscribe", "sid": "one"})
    assert websocket.answer("error").items() >= {"code": "unknown_stream", "sid": "one"}.items()


def test_focus_is_applied_to_the_streams_that_one_has_and_unknown_ones_are_named(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    for sid in ("one", "two", "three"):
        websocket.subscribed(sid)
    websocket.say({"t": "focus", "sids": ["two", "nowhere"]})
    assert websocket.answer("error").items() >= {"code": "unknown_stream", "sid": "nowhere"}.items()
    websocket.settle()
    modes = {subscriber.channel.stream.sid: subscriber.follows for subscriber in live_site.subscribers}
    assert modes == {"one": False, "two": True, "three": False}
    assert "nowhere" not in live_site.hub.channels
    for sid in ("one", "two", "three"):
        live_site.stream(sid).publish("note")
    websocket.answer("event")
    websocket.wait(lambda: {item["sid"] for frame in websocket.named("activity") for item in frame["items"]} >= {"one"})
    websocket.settle()
    assert [frame["sid"] for frame in websocket.named("event")] == ["two"]


def test_cancel_ends_the_message_named_or_all_that_are_open(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    messages = [answer(live_site, "chat", f"{number}")[0] for number in range(3)]
    websocket.say({"t": "cancel", "sid": "chat", "mid": messages[1].mid})
    websocket.settle()
    assert [message.status for message in messages] == [None, "cancelled", None]
    websocket.say({"t": "cancel", "sid": "chat"})
    websocket.wait(lambda: fold.seq == 12)
    assert {message.status for message in fold.messages.values()} == {"cancelled"}
    assert [fold.text(p) for p in fold.parts] == ["0", "1", "2"]


def test_cancel_in_a_stream_that_does_not_exist_is_an_error_and_creates_none(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.say({"t": "cancel", "sid": "chat"})
    assert websocket.answer("error").items() >= {"code": "unknown_stream", "sid": "chat"}.items()
    assert live_site.hub.channels == {}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(BINARY, b"[]"), 1003),
        (masked(TEXT, b'{"t":"\xff"}'), 1007),
        (masked(TEXT, b'{"t":"ping"}', mask=None), 1002),
        (masked(TEXT, b"{}", rsv=0x40), 1002),
        (masked(3, b"{}"), 1002),
        (masked(GOING_ON, b"{}"), 1002),
        (masked(PING, b"x", fin=False), 1002),
        (masked(CLOSE, b"x"), 1002),
        (masked(CLOSE, (1005).to_bytes(2, "big")), 1002),
        (header(TEXT, 1_001), 1009),
        (header(TEXT, 1 << 40), 1009),
        (masked(TEXT, b"x" * 1_000, fin=False) + header(GOING_ON, 1), 1009),
        (masked(TEXT, fin=False) + 1_001 * masked(GOING_ON, fin=False), 1008),
    ],
)
def test_broken_framing_closes_with_its_code(live_site: LiveSite, data: bytes, code: int) -> None:
    live_site.configure(max_inbound=1_000)
    websocket = live_site.websocket()
    websocket.send(data)
    got, reason = websocket.end()
    assert got == code
    assert reason.isascii()
    assert reason


def test_a_binary_message_closes_1003(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.send(masked(BINARY, b"{}"))
    assert websocket.end()[0] == 1003


def test_text_that_is_not_utf_8_closes_1007(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.send(masked(TEXT, b'{"t":"ping","id":"\xed\xa0\x80"}'))
    assert websocket.end()[0] == 1007


def test_a_message_of_max_in_bytes_is_read_and_one_byte_more_closes_1009(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    text = b'{"t":"ping","id":1}'
    websocket.send(masked(TEXT, text + b" " * (65_536 - len(text))))
    assert websocket.answer("pong")["id"] == 1
    websocket.send(masked(TEXT, text + b" " * (65_537 - len(text))))
    assert websocket.end()[0] == 1009


def test_a_message_too_long_is_refused_from_its_announced_length(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.send(header(TEXT, 65_537))  # and not one byte of it
    assert websocket.end()[0] == 1009


def test_the_close_code_is_on_the_wire_though_the_client_goes_on_sending(live_site: LiveSite) -> None:
    """Closing with unread input would reset the connection, and the reset would eat the CLOSE frame."""
    websocket = live_site.websocket()
    websocket.send(masked(TEXT, b" " * 400_000))
    websocket.wait(lambda: websocket.closed)
    assert websocket.closed is not None
    assert websocket.closed[0] == 1009
    for _ in range(20):  # it goes on reading, and throws away: nothing is reset
        websocket.send(b" " * 8_000)
        gevent.sleep(0.002)


def test_frames_behind_a_close_are_ignored(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.send(masked(CLOSE, (1000).to_bytes(2, "big")) + masked(TEXT, b'{"t":"subscribe","sid":"chat"}'))
    assert websocket.end() == (1000, "")
    assert live_site.hub.channels == {}


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999, None])
def test_a_close_is_answered_with_its_code_and_the_connection_ends(live_site: LiveSite, code: int | None) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    websocket.close(code, "bye")
    assert websocket.end() == (code, "")
    assert live_site.subscribers == []


def test_a_failure_of_the_server_closes_1011_and_is_logged_once(
    live_site: LiveSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_site.hub, "subscribe", lambda *_, **__: 1 / 0)
    websocket = live_site.websocket()
    websocket.subscribe("chat")
    assert websocket.end() == (1011, "internal error")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_above_the_rate_a_message_is_dropped_with_error_rate(live_site: LiveSite) -> None:
    live_site.configure(inbound_rate=5)
    websocket = live_site.websocket()
    for number in range(260):
        websocket.say({"t": "ping", "id": number})
    websocket.wait(lambda: len(websocket.frames) == 261)
    pongs, errors = websocket.named("pong"), websocket.named("error")
    assert [pong["id"] for pong in pongs[:200]] == list(range(200))  # the burst
    assert {error["code"] for error in errors} == {"rate"}
    assert 50 <= len(errors) <= 60

    def speak_again() -> bool:
        gevent.sleep(0.05)
        websocket.say({"t": "ping", "id": "later"})
        websocket.pull()
        return websocket.named("pong")[-1]["id"] == "later"

    until(speak_again, "a message to be within the rate")


def test_200_dropped_in_a_row_close_4429(live_site: LiveSite) -> None:
    live_site.configure(inbound_rate=1)
    websocket = live_site.websocket()
    websocket.send(399 * masked(TEXT, b'{"t":"ping"}'))
    websocket.wait(lambda: len(websocket.frames) == 400)
    assert len(websocket.named("error")) in (198, 199)
    websocket.send(20 * masked(TEXT, b'{"t":"ping"}'))
    assert websocket.end()[0] == 4429


def test_200_dropped_but_not_in_a_row_do_not_close(live_site: LiveSite) -> None:
    live_site.configure(inbound_rate=10)
    websocket = live_site.websocket()
    for _ in range(2):
        count = len(websocket.frames)
        number = 150 + (200 if count == 1 else 0)
        websocket.send(number * masked(TEXT, b'{"t":"ping"}'))
        websocket.wait(lambda count=count, number=number: len(websocket.frames) == count + number)
        pongs = len(websocket.named("pong"))

        def is_heard(pongs: int = pongs) -> bool:
            gevent.sleep(0.05)
            websocket.say({"t": "ping"})
            websocket.pull()
            return len(websocket.named("pong")) > pongs

        until(is_heard)
    assert len(websocket.named("error")) >= 300
    assert websocket.closed is None


def test_the_server_reads_on_only_when_its_answers_are_out(live_site: LiveSite) -> None:
    """A client that asks and asks and reads nothing is not read from: no answers pile up, and none is lost."""
    websocket = live_site.websocket(receive_buffer=4_096)
    (connection,) = live_site.hub.connections
    assert isinstance(connection, WebSocketConnection)
    sent = 0

    def ask() -> None:
        nonlocal sent
        for number in range(300):
            websocket.say({"t": "ping", "id": f"{number} " + "x" * 60_000})
            sent += 1

    asking = gevent.spawn(ask)
    waited = 0

    def stands_still() -> bool:
        nonlocal waited
        before, seen = sent, connection.heard_at
        gevent.sleep(0.05)
        waited = waited + 1 if (before, seen) == (sent, connection.heard_at) else 0
        assert len(connection._replies or ()) <= 1
        assert connection.tail_size <= MAX_MESSAGE
        return waited == 3

    until(stands_still)
    assert sent < 250
    websocket.wait(lambda: len(websocket.named("pong")) == 300)
    asking.join(LIMIT)
    assert [pong["id"].split(" ")[0] for pong in websocket.named("pong")] == [str(number) for number in range(300)]


def test_a_handler_that_waits_holds_up_its_own_connection_only(live_site: LiveSite) -> None:
    live_site.streaming.authorizer(lambda action, sid: True)
    go = gevent.event.Event()
    live_site.streaming.on_publish("wait")(lambda sid, data: go.wait(LIMIT))
    slow, other = live_site.websocket(), live_site.websocket()
    slow.subscribed("chat")
    slow.say({"t": "publish", "sid": "chat", "k": "wait", "d": None, "id": 1}, {"t": "ping", "id": 2})
    other.settle()
    live_site.stream("chat").publish("note")
    slow.answer("event")  # what it gets is not held up
    assert slow.named("ack") == slow.named("pong") == []
    go.set()
    slow.answer("pong")
    assert slow.named("ack") == [{"t": "ack", "id": 1, "ok": True, "d": True}]


# -- coalescing


def test_the_first_text_after_a_quiet_spell_goes_at_once(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.8, background_interval=0.8)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat")
    websocket.wait(lambda: p in fold.parts)
    quiet(live_site, "chat", 0.8)
    began = after_tick(0.8)
    message.append("now")
    websocket.wait(lambda: fold.text(p) == "now")
    assert time.monotonic() - began < 0.4  # the next tick is at least 0.64 away


def test_text_never_waits_for_the_next_token(live_site: LiveSite) -> None:
    """What follows the leading edge waits for a tick, and goes with it though nothing comes after."""
    live_site.configure(flush_interval=0.4, background_interval=0.4)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat", "first")
    websocket.wait(lambda: p in fold.parts and fold.text(p))
    after_tick(0.4)
    message.append(" second")
    gevent.sleep(0)
    message.append(" third")
    websocket.settle()
    assert fold.text(p) == "first"
    websocket.wait(lambda: fold.text(p) == "first second third")
    assert texts(websocket.frames) == ["first", " second third"]


def test_all_that_is_due_in_one_flush_is_one_message(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    sids = ["one", "two", "three"]
    folds = [websocket.subscribed(sid) for sid in sids]
    messages = [answer(live_site, sid) for sid in sids]
    websocket.wait(lambda: all(fold.seq == 2 for fold in folds))
    count = len(websocket.messages)
    for message, _ in messages:
        message.append("text")
    websocket.wait(lambda: all(fold.text(p) == "text" for fold, (_, p) in zip(folds, messages, strict=True)))
    assert len(websocket.messages) == count + 1
    for sid, (message, _) in zip(sids, messages, strict=True):
        message.append("!")
        live_site.stream(sid).publish("note")
    websocket.wait(lambda: all(fold.seq == 3 for fold in folds))
    assert len(websocket.messages) == count + 2
    assert kinds(websocket.messages[-1]) == ["delta", "note"] * 3


def test_a_busy_connection_gets_one_message_a_tick_plus_leading_edges(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.1, background_interval=0.1)
    websocket = live_site.websocket()
    sids = [f"s{number}" for number in range(8)]
    for sid in sids:
        websocket.subscribed(sid)
    steps = speaking(live_site, *sids)
    next(steps)
    count = len(websocket.messages)
    began = time.monotonic()
    produced = 0

    def produce() -> bool:
        nonlocal produced
        next(steps)
        produced += 1
        return time.monotonic() > began + 1

    until(produce)
    websocket.settle()
    messages = sum(any(frame["t"] == "delta" for frame in frames) for frames in websocket.messages[count:])
    assert produced > 60  # each for eight streams
    assert 4 <= messages <= (time.monotonic() - began) / 0.1 + 3


def test_what_several_subscribers_at_the_same_cursor_get_is_cut_and_encoded_once(
    live_site: LiveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    websockets = [live_site.websocket() for _ in range(10)]
    for websocket in websockets:
        websocket.subscribed("chat")
    answers = [live_site.follow("events", "chat") for _ in range(10)]
    message, p = answer(live_site, "chat")
    folds = [websocket.folds["chat"] for websocket in websockets] + [each.fold for each in answers if each.fold]
    for client, fold in zip([*websockets, *answers], folds, strict=True):
        client.wait(lambda fold=fold: p in fold.parts)
    made = []
    Walk = streams.Walk

    def walk(*args: Any) -> streams.Walk:
        made.append(Walk(*args))
        return made[-1]

    encoded = []
    encode_cut = sse.encode_cut
    monkeypatch.setattr(sse, "encode_cut", lambda *args: encoded.append(args) or encode_cut(*args))
    monkeypatch.setattr(streams, "Walk", walk)
    message.append("to all")
    for client, fold in zip([*websockets, *answers], folds, strict=True):
        client.wait(lambda fold=fold: fold.text(p) == "to all")
    assert len(made) == 1
    assert len(encoded) == 1


def test_an_event_flushes_its_stream_at_once(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.8, background_interval=0.8)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat", "first")
    websocket.wait(lambda: p in fold.parts and fold.text(p))
    began = after_tick(0.8)
    message.append(" second")
    live_site.stream("chat").publish("note")
    websocket.wait(lambda: fold.seq == 3)
    assert fold.text(p) == "first second"
    assert time.monotonic() - began < 0.4


def test_8192_pending_code_points_flush_early(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.8, background_interval=0.8)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat", "x")
    websocket.wait(lambda: p in fold.parts and fold.text(p))
    began = after_tick(0.8)
    message.append("😀" * 8_191)
    websocket.settle()
    assert len(fold.text(p)) == 1
    message.append("x")
    websocket.wait(lambda: len(fold.text(p)) == 8_193)
    assert time.monotonic() - began < 0.4


def test_a_flush_interval_of_0_sends_everything_at_once(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat")
    for number in range(5):
        message.append(str(number))
        websocket.wait(lambda number=number: p in fold.parts and fold.text(p).endswith(str(number)))
    assert texts(websocket.frames) == list("01234")


# -- mode activity, hidden pages


def test_activity_tells_all_streams_at_first_then_the_ones_that_changed(live_site: LiveSite) -> None:
    live_site.stream("old").publish("note")
    websocket = live_site.websocket()
    for sid in ("old", "new", "still"):
        websocket.subscribed(sid, mode="activity")
    told: dict[str, Frame] = {}

    def hear() -> dict[str, Frame]:
        for frame in websocket.named("activity"):
            told.update({item["sid"]: item for item in frame["items"]})
        return told

    websocket.wait(lambda: len(hear()) == 3)
    assert told["old"] == {"sid": "old", "state": "idle", "head": 1, "chars": 0}
    count = len(websocket.named("activity"))
    message, _ = answer(live_site, "new", "four")
    websocket.wait(lambda: hear()["new"] == {"sid": "new", "state": "streaming", "head": 2, "chars": 4})
    message.end()
    websocket.wait(lambda: hear()["new"] == {"sid": "new", "state": "idle", "head": 4, "chars": 4})
    assert {item["sid"] for frame in websocket.named("activity")[count:] for item in frame["items"]} == {"new"}
    assert websocket.named("event") == websocket.named("delta") == []


def test_one_that_goes_back_to_activity_is_told_its_summary_anew(live_site: LiveSite) -> None:
    live_site.stream("chat").publish("note")
    websocket = live_site.websocket()
    websocket.subscribed("chat", mode="activity")
    items = [{"sid": "chat", "state": "idle", "head": 1, "chars": 0}]
    assert websocket.answer("activity")["items"] == items
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.answer("event")
    websocket.say({"t": "focus", "sids": []})
    assert websocket.answer("activity")["items"] == items


def test_an_activity_frame_comes_at_most_each_background_interval(live_site: LiveSite) -> None:
    live_site.configure(background_interval=0.25)
    websocket = live_site.websocket()
    sids = [f"s{number}" for number in range(64)]
    for sid in sids:
        websocket.subscribed(sid)
    websocket.say({"t": "focus", "sids": []})
    websocket.answer("activity")
    count = len(websocket.messages)
    steps = speaking(live_site, *sids)
    began = time.monotonic()

    def produce() -> bool:
        next(steps)
        websocket.settle()  # comes often, and changes nothing
        return time.monotonic() > began + 1.5

    until(produce)
    frames = [frame for frames in websocket.messages[count:] for frame in frames if frame["t"] != "pong"]
    assert {frame["t"] for frame in frames} == {"activity"}
    elapsed = time.monotonic() - began
    assert 3 <= len(frames) <= elapsed / 0.25 + 1
    assert {item["sid"] for item in frames[-1]["items"]} == set(sids)


def test_64_background_streams_cost_at_most_three_and_a_half_messages_a_second(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.05, background_interval=0.333)
    websocket = live_site.websocket()
    sids = [f"s{number}" for number in range(64)]
    for sid in sids:
        websocket.subscribed(sid)
    websocket.say({"t": "focus", "sids": []})
    websocket.answer("activity")
    count = len(websocket.messages)
    steps = speaking(live_site, *sids)
    began = time.monotonic()
    until(lambda: next(steps) or time.monotonic() > began + 1.5)
    websocket.settle()
    elapsed = time.monotonic() - began
    assert 3 <= len(websocket.messages) - 1 - count <= 3.5 * elapsed + 1


def test_changing_the_focus_to_and_fro_brings_no_more_activity_frames(live_site: LiveSite) -> None:
    live_site.configure(background_interval=0.25)
    websocket = live_site.websocket()
    for sid in ("one", "two"):
        websocket.subscribed(sid)
    began = time.monotonic()
    for number in range(60):
        websocket.say({"t": "focus", "sids": [["one"], ["two"], []][number % 3]})
        websocket.settle()
    websocket.answer("activity")
    assert len(websocket.named("activity")) <= (time.monotonic() - began) / 0.25 + 2


def test_going_to_full_continues_from_ones_own_cursor(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message, p = answer(live_site, "chat", "seen ")
    websocket.wait(lambda: p in fold.parts and fold.text(p) == "seen ")
    websocket.say({"t": "focus", "sids": []})
    websocket.settle()
    message.append("unseen ")
    live_site.stream("chat").publish("note")
    websocket.wait(lambda: any(item["head"] == 3 for f in websocket.named("activity") for item in f["items"]))
    assert (fold.seq, fold.text(p)) == (2, "seen ")
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.wait(lambda: fold.seq == 3 and fold.text(p) == "seen unseen ")
    message.append("live")
    message.end()
    websocket.wait(lambda: fold.seq == 5)
    assert fold.text(p) == "seen unseen live"
    assert fold.greetings == 1  # nothing was started over
    assert "".join(texts(websocket.frames)) == "seen unseen live"


def test_one_who_subscribed_in_mode_activity_gets_the_whole_log_when_it_goes_to_full(live_site: LiveSite) -> None:
    message, p = answer(live_site, "chat", "text")
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat", mode="activity")
    websocket.answer("activity")
    assert fold.seq == 0
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.wait(lambda: p in fold.parts and fold.text(p) == "text")
    message.end()
    websocket.wait(lambda: fold.seq == 4)
    assert fold.greetings == 1


def test_an_urgent_event_is_told_in_mode_activity_and_does_not_move_the_cursor(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat", mode="activity")
    live_site.stream("chat").publish("note", 1)
    live_site.stream("chat").publish("approval", {"ask": "?"}, urgent=True)
    assert websocket.answer("notify") == {"t": "notify", "sid": "chat", "seq": 2, "k": "approval", "d": {"ask": "?"}}
    assert websocket.named("event") == []
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.wait(lambda: fold.seq == 2)
    assert [event["k"] for event in fold.events] == ["note", "approval"]
    websocket.settle()
    assert len(websocket.named("notify")) == 1


def test_a_hidden_page_is_flushed_each_background_interval_events_too_unless_urgent(live_site: LiveSite) -> None:
    interval = 0.5
    live_site.configure(flush_interval=0.02, background_interval=interval)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.say({"t": "visibility", "hidden": True})
    websocket.settle()
    count = len(websocket.messages)
    began = time.monotonic()
    steps = speaking(live_site, "chat")

    def produce() -> bool:
        next(steps)
        live_site.stream("chat").publish("note")
        gevent.sleep(0.005)
        return time.monotonic() > began + 1.2

    until(produce)
    websocket.wait(lambda: fold.seq == live_site.channel("chat").stream.head)
    assert 2 <= len(websocket.messages) - count <= (time.monotonic() - began) / interval + 1
    after_tick(interval)
    live_site.stream("chat").publish("note", "not urgent")
    websocket.settle()
    assert fold.events[-1]["d"] is None
    at = after_tick(interval)
    live_site.stream("chat").publish("note", "urgent", urgent=True)
    websocket.wait(lambda: fold.events[-1]["d"] == "urgent")
    assert time.monotonic() - at < interval / 2


def test_a_page_that_is_looked_at_again_gets_what_it_lacks_at_once(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0.02, background_interval=2)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.say({"t": "visibility", "hidden": True})
    websocket.settle()
    at = after_tick(2)
    live_site.stream("chat").publish("note")
    websocket.settle()
    assert fold.seq == 0
    websocket.say({"t": "visibility", "hidden": False})
    websocket.wait(lambda: fold.seq == 1)
    assert time.monotonic() - at < 1
    live_site.stream("chat").publish("note")
    websocket.wait(lambda: fold.seq == 2)
    assert time.monotonic() - at < 1.2


def test_one_who_is_trimmed_while_it_watches_from_afar_gets_reset_in_place(live_site: LiveSite) -> None:
    live_site.configure(log_events=10)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.say({"t": "focus", "sids": []})
    websocket.settle()
    for number in range(30):
        live_site.stream("chat").publish("note", number)
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.wait(lambda: fold.seq == 30)
    assert fold.resets == ["trimmed"]
    assert (fold.greetings, fold.floor) == (2, 20)
    fold.assert_holds(live_site.get("/streams/chat").json)
    assert live_site.hub.counts.resets == {"trimmed": 1}


# -- slow readers


def test_a_stalled_reader_among_100_holds_nobody_up_and_gets_fewer_larger_deltas(live_site: LiveSite) -> None:
    others = [live_site.websocket() for _ in range(99)]
    for websocket in others:
        websocket.subscribed("chat")
    before = set(live_site.hub.connections)
    stalled = live_site.websocket(receive_buffer=4_096)
    fold = stalled.subscribed("chat")
    (connection,) = set(live_site.hub.connections) - before
    assert isinstance(connection, SocketConnection)
    reading = [gevent.spawn(each.wait, lambda each=each: each.folds["chat"].seq == 4) for each in others]
    message, p = answer(live_site, "chat")
    whole = ""
    for number in range(60):
        text = f"{number} ".ljust(2_000, "ä")
        whole += text
        message.append(text)
        gevent.sleep(0.004)
        assert connection.tail_size <= MAX_MESSAGE  # all that the server keeps for it
        assert not connection._replies
    message.end()
    gevent.joinall(reading, timeout=LIMIT, raise_error=True)
    assert all(greenlet.ready() for greenlet in reading)
    assert all(each.folds["chat"].text(p) == whole for each in others)
    assert connection.is_blocked
    assert fold.seq < 4
    stalled.wait(lambda: fold.seq == 4)
    assert fold.text(p) == whole
    assert fold.resets == []
    sizes = [[sum(map(len, texts(frames))) for frames in each.messages if texts(frames)] for each in [stalled, *others]]
    assert len(sizes[0]) < min(map(len, sizes[1:])) / 2
    assert max(sizes[0]) > 2 * max(map(max, sizes[1:]))


def test_a_stalled_reader_whose_next_event_has_left_the_log_gets_reset_in_place(live_site: LiveSite) -> None:
    live_site.configure(log_events=20)
    websocket = live_site.websocket(receive_buffer=4_096)
    fold = websocket.subscribed("chat")
    connection = live_site.connection
    message, p = answer(live_site, "chat", "begun ")
    websocket.wait(lambda: p in fold.parts and fold.text(p))
    fill(connection, message)
    for number in range(100):
        live_site.stream("chat").publish("note", number)
    message.append("and ended")
    websocket.wait(lambda: fold.seq == 102 and fold.text(p).endswith("and ended"))
    assert fold.resets == ["trimmed"]
    fold.assert_holds(live_site.get("/streams/chat").json)


def test_a_slow_client_is_closed_4409_or_cut(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.3, ping_interval=60)
    websocket = live_site.websocket(receive_buffer=4_096)
    websocket.subscribed("chat")
    message, _ = answer(live_site, "chat")
    fill(live_site.connection, message)
    until(lambda: not live_site.hub.connections, "the slow client to be cut")
    assert live_site.hub.counts.closed == {"slow": 1}
    assert live_site.subscribers == []
    while websocket.pull():
        pass
    assert websocket.closed in (None, (4409, "slow"))


def test_a_slow_client_that_reads_at_the_last_moment_is_told_bye_slow_and_4409(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.3, ping_interval=60)
    websocket = live_site.websocket(receive_buffer=4_096)
    fold = websocket.subscribed("chat")
    connection = live_site.connection
    assert isinstance(connection, SocketConnection)
    message, p = answer(live_site, "chat")
    fill(connection, message)
    connection._writing.stop()  # nobody notices that the socket takes something again
    websocket.client._socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        websocket.end()
    websocket.client._socket.settimeout(LIMIT)
    assert websocket.end() == (4409, "slow")
    assert websocket.frames[-1] == {"t": "bye", "reason": "slow", "retry_ms": websocket.frames[-1]["retry_ms"]}
    assert len(fold.text(p)) > 10_000


def test_a_client_that_reads_a_little_now_and_then_is_not_slow(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.5, ping_interval=60)
    websocket = live_site.websocket(receive_buffer=4_096)
    websocket.subscribed("chat")
    connection = live_site.connection
    message, _ = answer(live_site, "chat")
    fill(connection, message)
    message.append("x" * 200_000)
    began = time.monotonic()

    def read_a_little() -> bool:
        websocket.client._socket.recv(8_000)
        gevent.sleep(0.05)
        assert not connection.is_closed
        return time.monotonic() > began + 1.5

    until(read_a_little)
    assert connection.is_blocked  # all the time


# -- heartbeats


def test_a_client_that_reads_slowly_is_given_time_to_come_to_the_ping(live_site: LiveSite) -> None:
    """While it reads what lies before, it is alive, though it says nothing for many intervals."""
    live_site.configure(ping_interval=0.2)
    websocket = live_site.websocket(receive_buffer=4_096)
    websocket.subscribed("chat")
    connection = live_site.connection
    message, _ = answer(live_site, "chat")
    fill(connection, message)
    message.end()

    def read_a_little() -> bool:
        websocket.client.received += websocket.client._socket.recv(1_000)
        websocket._take()
        gevent.sleep(0.01)
        return "message.end" in kinds(websocket.frames)

    until(read_a_little, "the whole text", limit=20)
    websocket.wait(lambda: len(websocket.pings) > 3, "heartbeats")
    assert websocket.closed is None
    assert live_site.hub.counts.closed == {}


def test_a_silent_websocket_gets_a_ping_and_lives_as_long_as_it_answers(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.1)
    websocket = live_site.websocket()
    websocket.wait(lambda: len(websocket.pings) >= 5)
    assert websocket.closed is None
    assert live_site.hub.counts.closed == {}


def test_two_unanswered_pings_close_4408(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.1)
    websocket = live_site.websocket()
    websocket.answers_pings = False
    websocket.subscribed("chat")
    assert websocket.end() == (4408, "no heartbeat")
    assert len(websocket.pings) == 2
    assert live_site.hub.counts.closed == {"no_heartbeat": 1}


def test_being_sent_to_is_no_sign_of_life_but_speaking_is(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.15)
    mute, talker = live_site.websocket(), live_site.websocket()
    mute.answers_pings = False
    mute.subscribed("chat")
    steps = speaking(live_site, "chat")

    def talk() -> bool:
        next(steps)
        talker.settle()
        return len(live_site.hub.connections) == 1

    until(talk, "the mute one to be closed")
    assert talker.pings == []
    assert mute.end()[0] == 4408


def test_a_ping_of_the_client_is_answered_by_a_pong_with_its_payload_among_text(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    steps = speaking(live_site, "chat")
    for number in range(50):
        next(steps)
        websocket.send(masked(PING, b"%d" % number))
        websocket.wait(lambda number=number: websocket.pongs[-1:] == [b"%d" % number])
    assert websocket.named("error") == []


# -- capacity


@pytest.mark.parametrize(
    "path", ["/streams/ws", "/streams/chat/events", "/streams/chat/records", "/streams/activity?sid=a"]
)
def test_one_connection_over_the_limit_gets_503_with_retry_after_before_the_upgrade(
    live_site: LiveSite, path: str
) -> None:
    live_site.configure(max_connections=2)
    first = live_site.websocket()
    live_site.follow("events", "other")
    refused = live_site.connect().ask(path, headers=UPGRADE if path.endswith("ws") else "")
    status, headers = refused.head()
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert json.loads(refused.body().text)["error"] == "too_many"
    assert list(live_site.hub.channels) == ["other"]
    first.leave()
    until(lambda: len(live_site.hub.connections) == 1)
    assert live_site.connect().ask(path, headers=UPGRADE if path.endswith("ws") else "").head()[0] in (101, 200)


def test_one_connection_over_the_limit_of_its_address_gets_429(live_site: LiveSite) -> None:
    live_site.configure(max_connections_per_ip=2)
    first = live_site.websocket()
    live_site.follow("records", "chat")
    for path in ("/streams/ws", "/streams/chat/events"):
        refused = live_site.connect().ask(path, headers=UPGRADE if path.endswith("ws") else "")
        assert refused.head()[0] == 429
        assert int(refused.head()[1]["retry-after"]) > 0
        assert json.loads(refused.body().text)["error"] == "rate"
    first.leave()
    until(lambda: len(live_site.hub.connections) == 1)
    live_site.websocket()


def test_one_stream_over_the_limit_is_error_too_many(live_site: LiveSite) -> None:
    live_site.configure(max_streams=2)
    websocket = live_site.websocket()
    websocket.subscribed("one")
    websocket.subscribed("two")
    websocket.subscribe("three")
    assert websocket.answer("error").items() >= {"code": "too_many", "sid": "three"}.items()
    websocket.subscribed("two", Fold("two"))  # one that exists
    assert list(live_site.hub.channels) == ["one", "two"]


def test_one_subscription_over_the_limit_is_error_too_many_and_one_less_makes_room(live_site: LiveSite) -> None:
    live_site.configure(max_subscriptions=2)
    websocket = live_site.websocket()
    websocket.subscribed("one")
    websocket.subscribed("two")
    websocket.subscribe("three")
    assert websocket.answer("error").items() >= {"code": "too_many", "sid": "three"}.items()
    websocket.subscribed("one", Fold("one"))  # again
    websocket.say({"t": "unsubscribe", "sid": "one"})
    websocket.subscribed("three")
    assert "three" in live_site.hub.channels


# -- the end


def test_a_restart_says_bye_and_closes_1012(live_site: LiveSite) -> None:
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    live_site.stream("chat").publish("note")
    live_site.server.close()
    assert websocket.end() == (1012, "restart")
    assert fold.seq == 1  # what was due has gone before
    bye = websocket.frames[-1]
    assert bye == {"t": "bye", "reason": "restart", "retry_ms": bye["retry_ms"]}
    assert 0 < bye["retry_ms"] < 20_000


def test_a_restart_waits_for_producers_and_then_says_bye(live_site: LiveSite) -> None:
    live_site.configure(drain_timeout=5)
    websocket, idle = live_site.websocket(), live_site.websocket()
    fold = websocket.subscribed("chat")
    idle.subscribed("other")
    go = gevent.event.Event()

    def produce() -> None:
        with live_site.streaming.stream("chat").message() as message:
            message.append("not ")
            go.wait(LIMIT)
            message.append("lost")

    live_site.spawn(produce)
    websocket.wait(lambda: 2 in fold.parts and fold.text(2) == "not ")
    live_site.server.close()
    assert idle.end() == (1012, "restart")
    assert websocket.named("bye") == []
    go.set()
    assert websocket.end() == (1012, "restart")
    assert fold.text(2) == "not lost"
    assert fold.messages.popitem()[1].status == "complete"


@pytest.mark.parametrize("how", ["leave", "reset", "half close"])
def test_a_client_that_leaves_while_idle_is_noticed_without_any_write(live_site: LiveSite, how: str) -> None:
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    written = live_site.hub.counts.bytes
    if how == "half close":
        websocket.client.half_close()
    else:
        websocket.leave(reset=how == "reset")
    until(live_site.is_idle, "the departure to be noticed")
    assert live_site.hub.counts.bytes == written


def test_a_client_that_leaves_while_its_handler_waits_is_let_go(live_site: LiveSite) -> None:
    live_site.streaming.authorizer(lambda action, sid: True)
    go = gevent.event.Event()
    done = []
    live_site.streaming.on_publish("wait")(lambda sid, data: done.append(go.wait(LIMIT)))
    websocket = live_site.websocket()
    websocket.say({"t": "publish", "sid": "chat", "k": "wait", "d": None}, {"t": "subscribe", "sid": "chat"})
    until(lambda: live_site.connection, "the connection")
    gevent.sleep(0)
    websocket.leave()
    go.set()
    until(live_site.is_idle)


def test_300_connections_that_come_and_go_leave_nothing(live_site: LiveSite) -> None:
    live_site.stream("chat").publish("note")
    for number in range(300):
        websocket = live_site.websocket()
        fold = websocket.subscribed("chat", mode="full" if number % 3 else "activity")
        if number % 2:
            websocket.wait(lambda fold=fold: fold.seq == 1 or fold.greetings)
        if number % 5 == 0:
            websocket.close()
        else:
            websocket.leave(reset=number % 5 == 1)
    live_site.leave()
    live_site.check_idle()
    assert list(live_site.hub.channels) == ["chat"]
    channel = live_site.channel("chat")
    assert not channel.followers
    assert not channel.background
