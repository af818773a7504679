"""Those who write: messages, parts, events, spawned producers, other threads, the stop button from their side; and what
subscribers see of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from flask import current_app
from gevent.threadpool import ThreadPool

from streaming.errors import Cancelled, MessageEnded, MessageTooLong, ProducerError, Refused
from streaming.live import producer as producers
from tests.folding import Fold
from tests.live import LiveSite, WebSocket, kinds, texts
from tests.parts import LIMIT, until


@pytest.fixture
def reader(live_site: LiveSite) -> WebSocket:
    """A subscriber of `chat`; its fold is `reader.folds["chat"]`."""
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    return websocket


def read(websocket: WebSocket, seq: int) -> Fold:
    """Read up to an event."""
    fold = websocket.folds["chat"]
    websocket.wait(lambda: fold.seq >= seq, f"event {seq}")
    assert fold.seq == seq
    return fold


def ended(websocket: WebSocket) -> dict[str, Any]:
    """Read until a message ends; `d` of its end."""
    websocket.wait(lambda: "message.end" in kinds(websocket.frames), "the message's end")
    (end,) = [frame["d"] for frame in websocket.named("event") if frame["k"] == "message.end"]
    found: dict[str, Any] = end
    return found


# -- messages


def test_a_with_block_ends_its_message_complete(live_site: LiveSite, reader: WebSocket) -> None:
    with live_site.message("chat", mid="m1") as message:
        message.append("all of it")
    assert message.status == "complete"
    assert ended(reader) == {"mid": "m1", "status": "complete", "parts": [{"p": 2, "kind": "text", "len": 9}]}
    assert reader.folds["chat"].text(2) == "all of it"
    assert live_site.channel("chat").producers == {}


def test_a_message_without_text_has_no_parts(live_site: LiveSite, reader: WebSocket) -> None:
    with live_site.message("chat") as message:
        message.part("thinking")
        message.append("")
    assert ended(reader)["parts"] == []
    assert read(reader, 2).parts == {}


def test_usage_and_parts_are_told_at_the_end(live_site: LiveSite, reader: WebSocket) -> None:
    with live_site.message("chat") as message:
        message.part("thinking").append("hm 😀")
        message.append("text")
        tool = message.part("tool_args", {"name": "search"})
        tool.append("{}")
        tool.end()
        message.usage = {"tokens": 12}
    end = ended(reader)
    assert end["usage"] == {"tokens": 12}
    assert end["parts"] == [
        {"p": 2, "kind": "thinking", "len": 4},
        {"p": 3, "kind": "text", "len": 4},
        {"p": 4, "kind": "tool_args", "len": 2},
    ]
    assert [part.number for part in reader.folds["chat"].parts.values()] == [0, 1, 2]


def test_parts_are_numbered_in_order_of_first_use(live_site: LiveSite, reader: WebSocket) -> None:
    message = live_site.message("chat")
    first, second, third = message.part("a"), message.part("b"), message.part("c")
    third.append("x")
    first.append("x")
    message.append("x")
    second.start()
    message.end()
    fold = read(reader, 10)
    assert [(part.number, part.kind) for part in fold.parts.values()] == [(0, "c"), (1, "a"), (2, "text"), (3, "b")]


@pytest.mark.parametrize("status", ["complete", "cancelled", "aborted", "error"])
def test_a_message_is_ended_once_with_its_status(live_site: LiveSite, reader: WebSocket, status: Any) -> None:
    message = live_site.message("chat")
    message.append("text")
    message.end(status, "a line" if status == "error" else None)
    message.end("complete")
    message.cancel()
    live_site.stream("chat").publish("note")
    read(reader, 5)
    end = ended(reader)
    assert end["status"] == message.status == status
    assert end.get("error") == ("a line" if status == "error" else None)
    assert live_site.hub.counts.ended == {status: 1}


def test_nothing_can_be_put_into_what_has_ended(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    part, never = message.part(), message.part()
    part.append("text")
    part.end()
    part.end()
    with pytest.raises(MessageEnded, match="the part has ended"):
        part.append("more")
    message.end()
    for put in (lambda: message.append("x"), lambda: part.append("x"), lambda: never.append("x"), never.start):
        with pytest.raises(MessageEnded, match="ended with status complete"):
            put()
    never.end("replacement")
    assert live_site.channel("chat").stream.head == 4


def test_text_is_a_string(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    for text in (b"bytes", None, 1, ["x"]):
        with pytest.raises(TypeError, match="text is a str"):
            message.append(text)  # type: ignore[arg-type]


def test_a_part_may_be_replaced_at_its_end(live_site: LiveSite, reader: WebSocket) -> None:
    message = live_site.message("chat")
    part, empty = message.part(), message.part("other")
    part.append("wr0ng")
    read(reader, 2)
    reader.wait(lambda: reader.folds["chat"].text(2) == "wr0ng")
    part.end("right 😀 \ud83d")
    empty.end("all at once")
    message.end()
    fold = read(reader, 6)
    assert fold.text(2) == "right 😀 \ufffd"
    assert fold.text(4) == "all at once"
    assert [part["len"] for part in ended(reader)["parts"]] == [9, 11]
    late = live_site.websocket()
    again = late.subscribed("chat")
    late.wait(lambda: again.seq == 6)
    assert again.text(2) == fold.text(2)
    assert texts(late.frames) == []  # what was replaced is not sent first


def test_an_id_may_be_given_once(live_site: LiveSite) -> None:
    live_site.message("chat", mid="m1").end()
    with pytest.raises(ValueError, match="m1 was used before"):
        live_site.message("chat", mid="m1")
    live_site.message("other", mid="m1").end()
    ids = {live_site.message("chat").mid for _ in range(50)}
    assert len(ids) == 50


@pytest.mark.parametrize("mid", ["", "a b", "a.b", "a\n", "x" * 65, "é"])
def test_an_id_outside_the_grammar_is_refused(live_site: LiveSite, mid: str) -> None:
    with pytest.raises(ValueError, match="can't name a message"):
        live_site.message("chat", mid=mid)
    assert live_site.hub.channels == {}


@pytest.mark.parametrize("sid", ["", "a b", "-a", "ws", "x.js", "a\n", "x" * 129])
def test_a_stream_id_outside_the_grammar_is_refused(live_site: LiveSite, sid: str) -> None:
    with pytest.raises(ValueError, match="can't name a stream"):
        live_site.stream(sid)


def test_what_cannot_be_sent_is_refused_before_anything_is_changed(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    head = live_site.channel("chat").stream.head
    for bad in (float("nan"), float("inf"), {1, 2}, object(), b"x"):
        with pytest.raises(ValueError, match="JSON"):
            live_site.stream("chat").publish("note", bad)
        with pytest.raises(ValueError, match="JSON"):
            live_site.message("chat", meta={"x": bad})
        with pytest.raises(ValueError, match="JSON"):
            message.part("text", {"x": bad})
    for kind in ("", "A", "a b", "9", "x" * 65):
        with pytest.raises(ValueError, match="kind"):
            message.part(kind)
        with pytest.raises(ValueError, match="kind"):
            live_site.stream("chat").publish(kind)
    for kind in ("message.start", "part.end", "message.x"):
        with pytest.raises(ValueError, match="kind"):
            live_site.stream("chat").publish(kind)

    def end_with_usage() -> None:
        message.usage = {"x": float("nan")}
        message.end()

    with pytest.raises(ValueError, match="JSON"):
        end_with_usage()
    message.usage = None
    assert live_site.channel("chat").stream.head == head
    message.end()
    assert live_site.channel("chat").stream.head == head + 1


# -- events


def test_publish_returns_the_seq_and_goes_behind_the_text_before_it(live_site: LiveSite, reader: WebSocket) -> None:
    message = live_site.message("chat")
    message.append("before")
    assert live_site.stream("chat").publish("note", {"x": 1}) == 3
    message.append("after")
    assert live_site.stream("chat").publish("note") == 4
    fold = read(reader, 4)
    assert fold.heard[2:] == [(2, "before"), 3, (2, "after"), 4]
    assert [event["d"] for event in fold.events] == [{"x": 1}, None]


def test_an_event_larger_than_the_log_is_refused(live_site: LiveSite) -> None:
    live_site.configure(log_bytes=1_000)
    live_site.stream("chat").publish("note", "x" * 998)
    with pytest.raises(ValueError, match="STREAMING_LOG_BYTES"):
        live_site.stream("chat").publish("note", "x" * 999)
    assert live_site.channel("chat").stream.head == 1


def test_a_stream_over_the_limit_is_refused(live_site: LiveSite) -> None:
    live_site.configure(max_streams=1)
    live_site.stream("one").publish("note")
    for put in (lambda: live_site.stream("two").publish("note"), lambda: live_site.message("two")):
        with pytest.raises(Refused) as raised:
            put()
        assert raised.value.code == "too_many"
    live_site.stream("one").publish("note")


# -- surrogates


def test_a_pair_that_was_split_over_two_appends_is_one_character(live_site: LiveSite, reader: WebSocket) -> None:
    message = live_site.message("chat")
    other = message.part("thinking")
    message.append("a\ud83d")
    fold = read(reader, 2)
    reader.wait(lambda: fold.text(2) == "a")
    other.append("\ud83d")
    reader.settle()
    message.append("\ude00b")
    other.append("\ude01")
    reader.wait(lambda: fold.text(2) == "a😀b" and fold.text(other.p) == "😁")
    message.end()
    read(reader, 6)
    assert [part["len"] for part in ended(reader)["parts"]] == [3, 1]


def test_half_a_pair_that_stays_alone_becomes_a_replacement_character(live_site: LiveSite, reader: WebSocket) -> None:
    message = live_site.message("chat")
    message.append("a\ud83d")
    fold = read(reader, 2)
    reader.wait(lambda: fold.text(2) == "a")
    message.append("b\ude00c\ud83d")
    reader.wait(lambda: fold.text(2) == "a\ufffdb\ufffdc")
    message.end()
    fold = read(reader, 4)
    assert fold.text(2) == "a\ufffdb\ufffdc\ufffd"
    assert ended(reader)["parts"][0]["len"] == 6
    live_site.stream("chat").publish("note", {"\ud83d": ["\ude00\ud83d"]})
    assert read(reader, 5).events[0]["d"] == {"\ufffd": ["\ufffd\ufffd"]}


def test_text_one_code_unit_at_a_time_comes_out_whole(live_site: LiveSite, reader: WebSocket) -> None:
    whole = "naïve 😀👍🏽 \U0010ffff\u2028 end"
    raw = whole.encode("utf-16-le")
    message = live_site.message("chat")
    for start in range(0, len(raw), 2):
        message.append(raw[start : start + 2].decode("utf-16-le", "surrogatepass"))
        if start % 3 == 0:
            live_site.hub.seal(live_site.channel("chat"))
    message.end()
    assert read(reader, 4).text(2) == whole


# -- limits


def test_a_message_too_long_ends_with_error_and_keeps_what_came_before(live_site: LiveSite) -> None:
    live_site.configure(max_message=100)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message = live_site.message("chat")
    message.append("ä" * 40)
    message.part("thinking").append("x" * 20)  # 100 bytes: full
    with pytest.raises(MessageTooLong, match="STREAMING_MAX_MESSAGE"):
        message.append("x")
    assert "longer than 100 bytes" in ended(websocket)["error"]
    assert fold.messages[message.mid].status == "error"
    assert fold.text(2) == "ä" * 40
    assert fold.text(3) == "x" * 20
    with pytest.raises(MessageEnded):
        message.append("x")
    assert live_site.hub.counts.refused == {"max_message": 1}


def test_a_message_too_long_in_a_with_block_ends_once(live_site: LiveSite) -> None:
    live_site.configure(max_message=10)
    message = live_site.message("chat")
    with pytest.raises(MessageTooLong), message:
        message.append("x" * 11)
    assert message.status == "error"
    assert live_site.hub.counts.ended == {"error": 1}


def test_too_many_open_messages_or_parts_are_refused(live_site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_OPEN", 3)
    messages = [live_site.message("chat") for _ in range(3)]
    with pytest.raises(Refused, match="open messages"):
        live_site.message("chat")
    live_site.message("other").end()
    messages[0].end()
    message = live_site.message("chat")
    for _ in range(3):
        message.part().append("x")
    with pytest.raises(Refused, match="parts"):
        message.part().append("x")
    assert message.status is None
    message.end()
    assert live_site.hub.counts.refused == {"open_messages": 1, "open_parts": 1}


# -- the stop button


def test_a_cancelled_message_raises_at_the_next_append(live_site: LiveSite, reader: WebSocket) -> None:
    called = []
    message = live_site.message("chat")
    message.on_cancel = lambda: called.append(message.status)
    message.append("before")
    reader.say({"t": "cancel", "sid": "chat"})
    assert ended(reader)["status"] == "cancelled"
    assert message.cancelled
    assert called == ["cancelled"]
    assert reader.folds["chat"].text(2) == "before"
    for _ in range(2):
        with pytest.raises(Cancelled):
            message.append("after")
    with pytest.raises(Cancelled):
        message.part().append("after")
    message.cancel()
    message.end()
    assert called == ["cancelled"]


def test_a_cancelled_producer_just_ends(
    live_site: LiveSite, reader: WebSocket, caplog: pytest.LogCaptureFixture
) -> None:
    def produce() -> None:
        with live_site.streaming.stream("chat").message() as message:
            while True:
                message.append("word ")
                gevent.sleep(0.001)

    greenlet = live_site.spawn(produce)
    reader.wait(lambda: reader.named("delta"))
    assert live_site.post("/streams/chat/cancel").status == 202
    assert ended(reader)["status"] == "cancelled"
    greenlet.join(LIMIT)
    assert greenlet.successful()
    assert caplog.records == []
    until(lambda: not live_site.hub.producers)


def test_unwatched_messages_are_cancelled_after_the_time_that_they_allow(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.1)  # the sweeper looks often
    began = time.monotonic()
    kept, left = live_site.message("kept"), live_site.message("left", cancel_unwatched_after=0.3)
    until(lambda: left.cancelled)
    assert time.monotonic() - began >= 0.29
    assert kept.status is None
    assert live_site.hub.counts.cancelled_unwatched == 1
    assert live_site.hub.unwatched == {}


@pytest.mark.parametrize("mode", ["full", "activity", "hidden", "sse", "activity route"])
def test_a_message_that_anybody_watches_is_not_cancelled_until_they_leave(live_site: LiveSite, mode: str) -> None:
    live_site.configure(ping_interval=10, send_timeout=0.05)
    leave: Callable[[], None]
    if mode in ("sse", "activity route"):
        path = "/streams/chat/events" if mode == "sse" else "/streams/activity?sid=chat"
        leave = live_site.ask(path).leave
    else:
        websocket = live_site.websocket()
        websocket.subscribed("chat", mode="activity" if mode == "activity" else "full")
        if mode == "hidden":
            websocket.say({"t": "visibility", "hidden": True})
        leave = websocket.leave
    message = live_site.message("chat", cancel_unwatched_after=0.1)
    gevent.sleep(0.25)  # more than twice as long
    assert message.status is None
    left = time.monotonic()
    leave()
    until(lambda: message.cancelled)
    assert time.monotonic() - left > 0.06  # the time counts from when the last one left


# -- producers in greenlets


def test_a_failing_producer_ends_its_message_with_error_its_text_flushed_and_is_logged_once(
    live_site: LiveSite, reader: WebSocket, caplog: pytest.LogCaptureFixture
) -> None:
    def produce() -> None:
        with live_site.streaming.stream("chat").message() as message:
            message.append("so far")
            raise LookupError("secret")

    live_site.spawn(produce)
    end = ended(reader)
    assert (end["status"], end["error"]) == ("error", "the producer failed")
    assert reader.folds["chat"].text(2) == "so far"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "LookupError: secret" in caplog.text


def test_a_failure_outside_spawn_ends_the_message_and_is_the_callers(live_site: LiveSite, reader: WebSocket) -> None:
    def produce() -> None:
        with live_site.message("chat") as message:
            message.append("so far")
            raise LookupError("secret")

    with pytest.raises(LookupError, match="secret"):
        produce()
    end = ended(reader)
    assert (end["status"], end["error"]) == ("error", "the producer failed")
    assert reader.folds["chat"].text(2) == "so far"


def test_a_producer_that_fails_or_forgets_leaves_no_message_open(
    live_site: LiveSite, reader: WebSocket, caplog: pytest.LogCaptureFixture
) -> None:
    def forget(fails: bool) -> None:
        message = live_site.streaming.stream("chat").message()
        message.append("text")
        if fails:
            raise LookupError("secret")

    for fails, error in ((False, "the producer left its message open"), (True, "the producer failed")):
        reader.frames.clear()
        live_site.spawn(forget, fails)
        end = ended(reader)
        assert (end["status"], end["error"]) == ("error", error)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("has_block", [True, False])
def test_a_killed_producer_aborts_its_message_with_its_text_flushed(
    live_site: LiveSite, reader: WebSocket, caplog: pytest.LogCaptureFixture, has_block: bool
) -> None:
    def produce() -> None:
        message = live_site.streaming.stream("chat").message()
        if has_block:
            with message:
                message.append("so far")
                gevent.sleep(LIMIT)
        message.append("so far")
        gevent.sleep(LIMIT)

    greenlet = live_site.spawn(produce)
    reader.wait(lambda: reader.named("delta"))
    greenlet.kill()
    end = ended(reader)
    assert end["status"] == "aborted"
    assert "error" not in end
    assert reader.folds["chat"].text(2) == "so far"
    assert caplog.records == []
    until(lambda: not live_site.hub.producers)


def test_a_producer_killed_before_it_began_leaves_nothing(live_site: LiveSite) -> None:
    called: list[int] = []
    greenlet = live_site.spawn(called.append, 1)
    greenlet.kill()
    gevent.sleep(0)
    assert called == []
    until(lambda: not live_site.hub.producers)


def test_a_producer_has_an_app_context_and_its_arguments(live_site: LiveSite) -> None:
    def produce(one: int, *, two: int) -> Any:
        return current_app.name, one, two

    with live_site.app.app_context():
        greenlet = live_site.streaming.spawn(produce, 1, two=2)
    assert greenlet.get(timeout=LIMIT) == ("tests.live", 1, 2)


def test_without_an_app_context_there_is_no_stream(live_site: LiveSite) -> None:
    for use in (live_site.streaming.stream, live_site.streaming.spawn, live_site.streaming.from_thread):
        with pytest.raises(RuntimeError, match="context"):
            use("chat")  # type: ignore[operator]


def test_messages_of_two_producers_grow_side_by_side(live_site: LiveSite, reader: WebSocket) -> None:
    def produce(letter: str) -> None:
        with live_site.streaming.stream("chat").message(mid=letter) as message:
            for _ in range(50):
                message.append(letter)
                gevent.sleep(0.001)

    for letter in "abc":
        live_site.spawn(produce, letter)
    fold = read(reader, 12)
    assert {fold.text(p)[0] * 50 for p in fold.parts} == {fold.text(p) for p in fold.parts}
    assert len(fold.parts) == 3


def test_a_stream_that_nobody_watches_keeps_its_text(live_site: LiveSite) -> None:
    with live_site.message("chat") as message:
        for number in range(1_000):
            message.append(f"{number} ")
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    websocket.wait(lambda: fold.seq == 4)
    assert fold.text(2) == "".join(f"{number} " for number in range(1_000))


# -- producers that compute


def test_a_producer_that_never_yields_is_read_in_steps(live_site: LiveSite, reader: WebSocket) -> None:
    """It computes for 50 flush intervals without a pause; `append` gives way to the flusher and other connections."""
    other = live_site.websocket()
    messages_before = live_site.hub.counts.messages
    told: dict[str, Any] = {}

    def produce() -> None:
        with live_site.streaming.stream("chat").message() as message:
            began = time.monotonic()
            while time.monotonic() < began + 1:
                sum(range(500))
                message.append("word ")
            told["flushes"] = live_site.hub.counts.flushes
            told["messages"] = live_site.hub.counts.messages - messages_before
            told["received"] = len(texts(reader.frames))
            told["pongs"] = len(other.named("pong"))

    def talk() -> None:
        while "pongs" not in told:
            other.settle()

    reading = gevent.spawn(ended, reader)
    talking = gevent.spawn(talk)
    flushes_before = live_site.hub.counts.flushes
    gevent.sleep(0)
    producing = live_site.spawn(produce)
    producing.join(2 * LIMIT)
    reading.join(LIMIT)
    talking.join(LIMIT)
    assert told["flushes"] - flushes_before >= 10
    assert told["messages"] >= 10
    assert told["received"] >= 5  # while it was still computing
    assert told["pongs"] >= 5
    assert reading.get()["status"] == "complete"


def test_a_producer_that_never_yields_can_be_stopped(live_site: LiveSite, reader: WebSocket) -> None:
    def produce() -> str:
        began = time.monotonic()
        try:
            with live_site.streaming.stream("chat").message() as message:
                while time.monotonic() < began + LIMIT:
                    message.append("word ")
                    sum(range(500))
        except Cancelled:
            return "stopped"
        return "never stopped"

    def stop() -> None:
        reader.wait(lambda: reader.named("delta"))
        reader.say({"t": "cancel", "sid": "chat"})
        ended(reader)

    stopping = gevent.spawn(stop)
    producing = live_site.spawn(produce)
    assert producing.get(timeout=2 * LIMIT) == "stopped"
    stopping.join(LIMIT)
    assert ended(reader)["status"] == "cancelled"


def test_append_does_not_switch_but_to_give_way(live_site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "give_way", lambda: None)
    ran: list[str] = []
    gevent.spawn(ran.append, "another greenlet")
    message = live_site.message("chat")
    for _ in range(10_000):
        message.append("x")
    assert ran == []
    assert live_site.channel("chat").stream.head == 2
    gevent.sleep(0)
    message.end()


# -- other threads


@contextmanager
def native_threads() -> Iterator[ThreadPool]:
    """A pool of native threads; gone afterwards."""
    pool = ThreadPool(2)
    yield pool
    pool.join()
    pool.kill()
    gc.collect()


def test_from_thread_calls_in_the_main_thread_and_returns_or_raises(live_site: LiveSite, reader: WebSocket) -> None:
    def publish(data: int, *, urgent: bool) -> int:
        gevent.sleep(0)  # a greenlet, which may wait
        return live_site.streaming.stream("chat").publish("note", [data, current_app.name], urgent=urgent)

    def fail() -> None:
        raise LookupError("no")

    def work() -> Any:
        with live_site.app.app_context():
            seq = live_site.streaming.from_thread(publish, 5, urgent=True)
            try:
                live_site.streaming.from_thread(fail)
            except LookupError as error:
                return seq, str(error)
        return None

    with native_threads() as pool:
        assert pool.spawn(work).get(timeout=LIMIT) == (1, "no")
    assert read(reader, 1).events[0]["d"] == [5, "tests.live"]


def test_from_thread_produces_a_whole_message_from_a_blocking_thread(live_site: LiveSite, reader: WebSocket) -> None:
    def work() -> None:
        with live_site.app.app_context():
            from_thread = live_site.streaming.from_thread
            message = from_thread(lambda: live_site.streaming.stream("chat").message())
            for number in range(20):
                from_thread(message.append, f"{number} ")
            from_thread(message.end)

    with native_threads() as pool:
        pool.spawn(work).get(timeout=LIMIT)
    assert read(reader, 4).text(2) == "".join(f"{number} " for number in range(20))


def test_from_thread_in_the_main_thread_is_a_plain_call(live_site: LiveSite) -> None:
    with live_site.app.app_context():
        assert live_site.streaming.from_thread(gevent.getcurrent) is gevent.getcurrent()


def test_in_another_thread_everything_says_what_to_do_and_changes_nothing(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    part = message.part()
    part.append("text")
    handle = live_site.stream("chat")

    def tries() -> list[str]:
        said = []
        for use in (
            lambda: message.append("x"),
            lambda: part.append("x"),
            lambda: message.end(),
            lambda: part.end(),
            lambda: handle.publish("note"),
            lambda: handle.message(),
            lambda: live_site.streaming.stream("chat"),
            lambda: live_site.streaming.spawn(print),
        ):
            with live_site.app.app_context():
                try:
                    use()
                except RuntimeError as error:
                    said.append(str(error))
        return said

    with native_threads() as pool:
        said = pool.spawn(tries).get(timeout=LIMIT)
    assert len(said) == 8
    assert all("from_thread" in text for text in said)
    assert message.status is None
    assert live_site.channel("chat").stream.chars == 4
    assert live_site.channel("chat").stream.head == 2
    message.end()


def test_cancelled_and_ended_are_producer_errors() -> None:
    assert issubclass(Cancelled, ProducerError)
    assert issubclass(MessageEnded, ProducerError)
    assert issubclass(MessageTooLong, ProducerError)


def test_a_part_that_was_started_by_a_wrong_thread_is_not(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    part = message.part()

    def start() -> str:
        try:
            part.start()
        except RuntimeError as error:
            return str(error)
        return "started"

    with native_threads() as pool:
        assert "from_thread" in pool.spawn(start).get(timeout=LIMIT)
    assert live_site.channel("chat").stream.head == 1


def test_cancelling_in_a_wrong_thread_is_refused(live_site: LiveSite) -> None:
    message = live_site.message("chat")

    def cancel() -> str:
        try:
            message.cancel()
        except RuntimeError as error:
            return str(error)
        return "cancelled"

    with native_threads() as pool:
        assert "from_thread" in pool.spawn(cancel).get(timeout=LIMIT)
    assert message.status is None
