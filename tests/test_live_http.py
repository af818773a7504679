"""SSE, NDJSON, snapshots, activity, the stop button (docs/live-protocol.md, "HTTP routes", "Cursor token", "Clients
that can't fold deltas"). Most run three times: on our server, which hands over the socket; on another server, which
pulls the response and tells the client's socket; and in Flask's test client."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import gevent
import pytest

from streaming.live.drain import drain
from streaming.live.producer import Message
from streaming.live.sockets import MAX_IDLE_CHATTER
from tests.folding import Fold
from tests.live import Answer, Form, LiveSite, SocketAnswer, kinds, texts
from tests.parts import LIMIT, until

NEVER = 2**53
CLIENT = Path(__file__).parents[1] / "streaming/static/client.js"


def served(request: pytest.FixtureRequest) -> Iterator[LiveSite]:
    site = LiveSite(request.param)
    yield site
    site.close()


#: On all ways; on those that have a socket; without gevent's plain pywsgi, which ends a HEAD as a chunked body.
site = pytest.fixture(params=["socket", "iterable", "flask"], name="site")(served)
socket_site = pytest.fixture(params=["socket", "iterable"], name="socket_site")(served)
headed_site = pytest.fixture(params=["socket", "flask"], name="headed_site")(served)


@pytest.fixture(params=["events", "records"])
def form(request: pytest.FixtureRequest) -> Form:
    """SSE or NDJSON."""
    found: Form = request.param
    return found


def answer(site: LiveSite, sid: str, text: str = "") -> tuple[Message, int]:
    """A message whose part of text has begun; and the part's name."""
    message = site.message(sid)
    message.append(text or "x")
    return message, message.parts[0].p


def finished(site: LiveSite, sid: str, *runs: str) -> Message:
    """A message that is complete, each run of it flushed by itself."""
    message = site.message(sid)
    for run in runs:
        message.append(run)
        site.hub.seal(site.channel(sid))
    message.end()
    return message


def fold_of(response: Answer) -> Fold:
    """Who applies the frames."""
    assert response.fold is not None
    return response.fold


# -- the responses


def test_streamed_responses_say_that_they_are_not_to_be_kept_or_changed(site: LiveSite, form: Form) -> None:
    response = site.follow(form, "chat")
    assert response.status == 200
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"].lower() == "no"
    kind = {"events": "text/event-stream; charset=utf-8", "records": "application/x-ndjson"}[form]
    assert response.headers["content-type"] == kind
    assert "content-length" not in response.headers


def test_the_first_bytes_of_sse_come_at_once_retry_and_subscribed(site: LiveSite) -> None:
    response = site.follow("events", "chat")
    response.wait(lambda: response.frames)
    epoch = site.channel("chat").stream.epoch
    assert response.body.replace(b"retry: 1000\n\n", b"retry: 1000\n").decode() == (
        f"retry: 1000\nevent: subscribed\nid: {epoch}.0\n"
        f'data: {{"t":"subscribed","sid":"chat","epoch":"{epoch}","floor":0,"head":0,"open":[]}}\n\n'
    )


def test_the_first_line_of_ndjson_comes_at_once(site: LiveSite) -> None:
    response = site.follow("records", "chat")
    response.wait(lambda: response.frames)
    epoch = site.channel("chat").stream.epoch
    assert response.body.decode() == (
        f'{{"t":"subscribed","sid":"chat","epoch":"{epoch}","floor":0,"head":0,"open":[]}}\n'
    )


def test_a_message_comes_as_it_grows_each_frame_with_the_cursor_after_it(site: LiveSite, form: Form) -> None:
    response = site.follow(form, "chat")
    fold = fold_of(response)
    message, p = answer(site, "chat", "one 😀\r\n")
    response.wait(lambda: p in fold.parts and fold.text(p) == "one 😀\r\n")
    thinking = message.part("thinking")
    thinking.append("hm")
    message.append("two\u2028")
    site.stream("chat").publish("note", {"x": "\r\n\r\ndata: no"}, urgent=True)
    response.wait(lambda: len(fold.events) == 1)
    message.end()
    response.wait(lambda: fold.seq == 7)
    assert (fold.text(p), fold.text(thinking.p)) == ("one 😀\r\ntwo\u2028", "hm")
    assert fold.heard == [1, p, (p, "one 😀\r\n"), 3, (3, "hm"), (p, "two\u2028"), 4, 5, 6, 7]
    if form == "events":  # the fold compared each with its own cursor
        assert len(response.ids) == len(response.frames)
        assert None not in response.ids


def test_all_that_is_due_in_one_flush_is_one_message(site: LiveSite, form: Form) -> None:
    response = site.follow(form, "chat")
    fold = fold_of(response)
    message, p = answer(site, "chat")
    response.wait(lambda: p in fold.parts and fold.text(p))
    count = len(response.chunks)
    message.append("a")
    site.stream("chat").publish("note")
    message.append("b")
    site.stream("chat").publish("note")
    response.wait(lambda: fold.seq == 4)
    assert len(response.chunks) == count + 1
    assert kinds(response.messages[-1]) == ["delta", "note", "delta", "note"]


def test_http_1_0_gets_the_same_without_chunks_to_the_connections_end(live_site: LiveSite, form: Form) -> None:
    finished(live_site, "chat", "text")
    fold = Fold("chat")
    fold.subscribe()
    client = live_site.connect().ask(f"/streams/chat/{form}?until=idle", version="1.0")
    status, headers = client.head()
    body = client.body().text
    assert status == 200
    assert "transfer-encoding" not in headers
    assert client.is_closed
    if form == "events":
        fold.read_sse(body)
    else:
        fold.read_lines(body)
    assert fold.is_done
    assert fold.text(2) == "text"


def test_a_stream_that_does_not_exist_is_created_empty(site: LiveSite, form: Form) -> None:
    site.follow(form, "new").wait(lambda: "new" in site.hub.channels)
    assert site.channel("new").stream.head == 0


@pytest.mark.parametrize("path", ["chat/events", "chat/records", "activity?sid=chat", "chat/events?until=idle"])
def test_head_gets_headers_only_and_starts_nothing(headed_site: LiveSite, path: str) -> None:
    response = headed_site.ask(f"/streams/{path}", "HEAD").read()
    assert response.status == 200
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.body == b""
    assert headed_site.hub.channels == {}
    assert headed_site.hub.connections == {}


def test_after_a_head_the_connection_serves_the_next_request(live_site: LiveSite) -> None:
    client = live_site.connect()
    for path in ("/streams/chat/events", "/streams/chat/records", "/streams/activity?sid=a"):
        client.ask(path, method="HEAD").until(b"\r\n\r\n")
        assert client.received.startswith(b"HTTP/1.1 200 ")
        client.received = b""
    client.ask("/healthz").until(b'{"status":"ok"}')


def test_a_client_that_sends_more_is_not_listened_to_and_a_flood_is_cut(live_site: LiveSite, form: Form) -> None:
    response = live_site.follow(form, "chat")
    assert isinstance(response, SocketAnswer)
    response.client.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
    live_site.stream("chat").publish("note")
    response.wait(lambda: fold_of(response).seq == 1)
    response.client.send(b"x" * MAX_IDLE_CHATTER)
    until(live_site.is_idle, "the flood to be cut")


# -- cursors


@pytest.mark.parametrize("by", ["query", "header"])
def test_a_dropped_client_resumes_in_mid_message_and_gets_nothing_twice(site: LiveSite, form: Form, by: str) -> None:
    message, p = answer(site, "chat", "one ")
    fold = Fold("chat")
    for text in ("two ", "three ", "four "):
        response = site.follow(form, "chat", fold, by=by)
        message.append(text)
        response.wait(lambda text=text: p in fold.parts and fold.text(p).endswith(text))
        response.leave()
        message.append("unseen, ")
        site.stream("chat").publish("note")
    message.end()
    response = site.follow(form, "chat", fold, by=by)
    response.wait(lambda: fold.messages[message.mid].status == "complete")
    assert fold.text(p) == "one two unseen, three unseen, four unseen, "
    assert len(fold.events) == 3
    assert fold.resets == []


def test_carriers_may_change_in_mid_message(live_site: LiveSite) -> None:
    message, p = answer(live_site, "chat", "socket, ")
    fold = Fold("chat")
    websocket = live_site.websocket()
    websocket.subscribed("chat", fold)
    websocket.wait(lambda: p in fold.parts and fold.text(p).endswith("socket, "))
    websocket.leave()
    message.append("then events, ")
    events = live_site.follow("events", "chat", fold, by="header")
    events.wait(lambda: fold.text(p).endswith("events, "))
    events.leave()
    message.part("thinking").append("hm")
    message.append("then records, ")
    records = live_site.follow("records", "chat", fold, by="query")
    records.wait(lambda: fold.text(p).endswith("records, "))
    records.leave(reset=True)
    live_site.stream("chat").publish("note")
    message.append("then socket")
    websocket = live_site.websocket()
    websocket.subscribed("chat", fold)
    message.end()
    websocket.wait(lambda: fold.messages[message.mid].status == "complete")
    assert fold.text(p) == "socket, then events, then records, then socket"
    assert (fold.resets, fold.greetings) == ([], 4)
    fold.assert_holds(live_site.get("/streams/chat").json)


def test_a_client_that_left_with_frames_unread_resumes_where_it_read_to(live_site: LiveSite) -> None:
    """The server's cursor had moved on; the client's own counts."""
    message, p = answer(live_site, "chat", "read ")
    fold = Fold("chat")
    websocket = live_site.websocket()
    websocket.subscribed("chat", fold)
    websocket.wait(lambda: p in fold.parts and fold.text(p))
    message.append("on its way ")
    live_site.stream("chat").publish("note")
    until(lambda: live_site.subscribers[0].cursor.seq == 3)
    websocket.leave(reset=True)
    response = live_site.follow("records", "chat", fold)
    message.end()
    response.wait(lambda: fold.seq == 5)
    assert fold.text(p) == "read on its way "


def test_joining_dropping_and_resuming_at_any_moment_leaves_no_hole_and_no_repeat(live_site: LiveSite) -> None:
    """Many clients come and go on all carriers while much is written; each fold judges every frame it gets."""
    live_site.configure(flush_interval=0.005)
    chance = random.Random(7)
    folds = [Fold("chat") for _ in range(9)]
    is_over = False

    def produce() -> None:
        nonlocal is_over
        for number in range(40):
            with live_site.message("chat", mid=f"m{number}") as message:
                parts = [message.part(kind) for kind in ("text", "thinking", "tool_args")]
                for _ in range(12):
                    chance.choice(parts).append(chance.choice(["word ", "\ud83d", "\ude00", "ä" * 300]))
                    if chance.random() < 0.1:
                        live_site.stream("chat").publish("note", number, urgent=chance.random() < 0.5)
                    if chance.random() < 0.4:
                        gevent.sleep(0.001)
        is_over = True

    def read(number: int, fold: Fold) -> None:
        while not (is_over and fold.seq == live_site.channel("chat").stream.head):
            form = ["events", "records", "socket"][(number + fold.greetings) % 3]
            client: Any = live_site.websocket() if form == "socket" else live_site.follow(form, "chat", fold)  # type: ignore[arg-type]
            if form == "socket":
                client.subscribed("chat", fold)
            for _ in range(chance.randrange(8)):
                if form == "socket" and chance.random() < 0.3:
                    client.say({"t": "focus", "sids": chance.choice([[], ["chat"]])})
                if is_over:
                    break
                client.pull()
            if is_over:
                if form == "socket":
                    client.say({"t": "focus", "sids": ["chat"]})
                client.wait(lambda: fold.seq == live_site.channel("chat").stream.head)
            client.leave()

    live_site.stream("chat").publish("begin")
    reading = [gevent.spawn(read, number, fold) for number, fold in enumerate(folds)]
    producing = gevent.spawn(produce)
    gevent.joinall([producing, *reading], timeout=4 * LIMIT, raise_error=True)
    assert all(greenlet.ready() for greenlet in reading)
    snapshot = live_site.get("/streams/chat").json
    for fold in folds:
        fold.assert_holds(snapshot)
        assert fold.resets == []
    assert sum(fold.greetings for fold in folds) > 30


def test_offsets_that_do_not_fit_into_the_token_are_left_out_and_their_text_comes_again(
    site: LiveSite, form: Form
) -> None:
    message = site.message("chat")
    parts = [message.part() for _ in range(400)]
    for part in parts:
        part.append("seen ")
    fold = Fold("chat")
    response = site.follow(form, "chat", fold)
    response.wait(lambda: fold.seq == 401 and all(fold.text(part.p) for part in parts))
    response.leave()
    token = fold.token()
    assert token is not None
    assert len(token) <= 2_048
    for part in parts:
        part.append("new")
    response = site.follow(form, "chat", fold)
    response.wait(lambda: all(fold.text(part.p) == "seen new" for part in parts))
    again = sum(text == "seen new" for text in texts(response.frames))
    assert 0 < again < 400
    assert token.count("~") + again == 400


def test_every_id_resumes_at_its_frame(site: LiveSite) -> None:
    finished(site, "chat", "one ", "two ")
    site.stream("chat").publish("note")
    finished(site, "chat", "three 😀", "four")
    whole = site.follow("events", "chat", until="idle").read()
    snapshot = site.get("/streams/chat").json
    *frames, done = whole.frames
    assert done["t"] == "done"
    for number in range(len(frames)):
        fold = Fold("chat")
        fold.subscribe()
        for frame in frames[: number + 1]:
            fold.apply(frame)
        token = whole.ids[number]
        assert token is not None
        fold.subscribe()
        rest = site.ask(f"/streams/chat/records?until=idle&cursor={token}", fold=fold).read()
        if rest.status == 204:
            assert number == len(frames) - 1
        else:
            assert fold.is_done
        fold.assert_holds(snapshot)


def test_the_query_wins_over_last_event_id_and_an_empty_one_is_none(site: LiveSite, form: Form) -> None:
    finished(site, "chat", "text")
    token = site.get("/streams/chat").json["cursor"]
    for headers, query, count in (
        ({"Last-Event-ID": token}, "", 0),
        ({"Last-Event-ID": "nonsense"}, f"&cursor={token}", 0),
        ({"Last-Event-ID": ""}, "", 4),
        ({}, "", 4),
    ):
        response = site.ask(f"/streams/chat/{form}?x=1{query}", headers=headers)
        site.stream("chat").publish("note", "last")
        response.wait(lambda response=response: "note" in kinds(response.frames[-1:]))
        assert response.frames[0]["t"] == "subscribed"
        token = site.get("/streams/chat").json["cursor"]
        assert len(response.named("event")) >= 1
        assert (len(response.named("event")) == 1) == (count == 0)


BAD = [
    "", "x", "nonsense.", "short.1", "{epoch}", "{epoch}.", "{epoch}.-1", "{epoch}.01", "{epoch}.1.", "{epoch}.1.2",
    "{epoch}.1.2~", "{epoch}.1.2~-1", "{epoch}.2.2~01", "{epoch}.2.2~1.2~1", f"{{epoch}}.{NEVER}",
    f"{{epoch}}.2.2~{NEVER}", "{epoch}.1\n", "{epoch}.1\r\nX: y", " {epoch}.1", "{epoch}.1 ", "{epoch}.\u0661",
    "{epoch}.1\0", "{epoch}.2" + ".3~1" * 600, "{epoch}.0x1", "{epoch}.1e0", "'; drop table", "\ud7ff", "é" * 8 + ".1",
]  # fmt: skip


def test_a_bad_cursor_is_reset_invalid_and_never_an_http_error(site: LiveSite, form: Form) -> None:
    answer(site, "chat", "text")
    for token in BAD:
        token = token.replace("{epoch}", site.channel("chat").stream.epoch)
        response = site.ask(f"/streams/chat/{form}?{urlencode({'cursor': token})}")
        assert response.status == 200, token
        response.wait(lambda response=response: texts(response.frames) == ["text"])
        assert (response.frames[0]["t"], response.frames[0]["reason"]) == ("reset", "invalid"), token
        response.leave()


REASONS = [
    ("{other}.1", "epoch"),
    ("{epoch}.0", "trimmed"),
    ("{epoch}.3", "trimmed"),
    ("{epoch}.99", "ahead"),
    (f"{{epoch}}.{NEVER - 1}", "ahead"),
    ("{epoch}.7.7~5", "ahead"),
    (f"{{epoch}}.7.7~{NEVER - 1}", "ahead"),
    ("{epoch}.1.7~5", "ahead"),  # judged before the floor
    ("{epoch}.7.7~4", ""),
    ("{epoch}.7", ""),
    ("{epoch}.7.3~100", ""),  # a part that is not known any more
    (f"{{epoch}}.{NEVER}", "invalid"),
    ("{epoch}.7.7~4.7~4", "invalid"),
]


def trimmed_stream(site: LiveSite) -> str:
    """A stream with floor 4 and head 8, whose part 7 has four code points. Returns its epoch."""
    finished(site, "chat", "gone")
    site.stream("chat").publish("note")
    message = site.message("chat")
    message.append("text")
    site.stream("chat").publish("note")
    assert (site.channel("chat").stream.floor, site.channel("chat").stream.head) == (4, 8)
    return site.channel("chat").stream.epoch


@pytest.mark.parametrize("by", ["query", "header", "frame"])
def test_a_cursor_is_judged_the_same_wherever_it_comes_from(live_site: LiveSite, by: str) -> None:
    live_site.configure(log_events=4)
    epoch = trimmed_stream(live_site)
    for form, reason in REASONS:
        token = form.format(epoch=epoch, other="0" * 12)
        greeting = greeting_of(live_site, token, by)
        found = greeting["t"], greeting.get("reason", ""), greeting["floor"], greeting["head"]
        assert found == ("reset" if reason else "subscribed", reason, 4, 8), form
    counted = live_site.hub.counts.resets
    assert counted == {"epoch": 1, "trimmed": 2, "ahead": 5, "invalid": 2}


def greeting_of(site: LiveSite, token: str, by: str) -> dict[str, Any]:
    """What a client that brings this cursor is told first."""
    if by == "frame":
        websocket = site.websocket()
        websocket.say({"t": "subscribe", "sid": "chat", "cursor": token})
        websocket.wait(lambda: len(websocket.frames) > 1)
        return websocket.frames[1]
    query, headers = (f"?cursor={quote(token)}", {}) if by == "query" else ("", {"Last-Event-ID": token})
    response = site.ask(f"/streams/chat/events{query}", headers=headers)
    assert response.status == 200, token
    response.wait(lambda: response.frames)
    return response.frames[0]


def test_a_stream_that_was_forgotten_is_another_epoch(site: LiveSite, form: Form) -> None:
    site.configure(idle_ttl=0.06)
    finished(site, "chat", "text")
    fold = Fold("chat")
    response = site.follow(form, "chat", fold)
    response.wait(lambda: fold.seq == 4)
    gevent.sleep(0.13)  # longer than the TTL, and watched
    assert "chat" in site.hub.channels
    response.leave()
    until(lambda: "chat" not in site.hub.channels, "the stream to be forgotten")
    assert site.get("/streams/chat").status == 404
    response = site.follow(form, "chat", fold)
    response.wait(lambda: fold.resets == ["epoch"])
    assert (fold.seq, fold.messages) == (0, {})
    assert site.hub.counts.forgotten == 1


def test_a_stream_with_an_open_message_is_not_forgotten(live_site: LiveSite) -> None:
    live_site.configure(idle_ttl=0.05)
    message, _ = answer(live_site, "chat")
    live_site.stream("other").publish("note")
    until(lambda: "other" not in live_site.hub.channels)
    until(lambda: time.monotonic() - live_site.channel("chat").used_at > 0.15)
    assert "chat" in live_site.hub.channels
    message.end()
    until(lambda: "chat" not in live_site.hub.channels)


def test_a_reader_whose_next_event_has_left_the_log_gets_reset_in_place(site: LiveSite, form: Form) -> None:
    site.configure(log_events=20)
    fold = Fold("chat")
    message, p = answer(site, "chat")
    response = site.follow(form, "chat", fold) if site.way == "flask" else narrow(site, form, fold)
    response.wait(lambda: p in fold.parts and fold.text(p))
    if site.way != "flask":  # which takes only what is pulled
        fill(site, message)
    for number in range(100):
        site.stream("chat").publish("note", number)
    message.append("the end")
    message.end()
    response.wait(lambda: fold.seq == 104)
    assert fold.resets == ["trimmed"]
    fold.assert_holds(site.get("/streams/chat").json)


def narrow(site: LiveSite, form: Form, fold: Fold) -> Answer:
    """A client whose kernel takes little."""
    fold.subscribe()
    return site.ask(f"/streams/chat/{form}", fold=fold, receive_buffer=4_096)


def fill(site: LiveSite, message: Message) -> None:
    """Append until the client's socket takes no more."""
    connection = site.connection
    stood = 0
    sent = site.hub.counts.messages

    def more() -> bool:
        nonlocal stood, sent
        message.append("x" * 30_000)
        gevent.sleep(0.002)
        stood = stood + 1 if site.hub.counts.messages == sent else 0
        sent = site.hub.counts.messages
        return stood > 15 and bool(connection.due)

    until(more, "the socket to be full")


# -- until=idle


def test_until_idle_ends_with_done_when_no_message_is_open(site: LiveSite, form: Form) -> None:
    response = site.follow(form, "chat", until="idle")
    fold = fold_of(response)
    response.wait(lambda: fold.greetings)
    site.stream("chat").publish("note")
    response.wait(lambda: fold.seq == 1)
    first, _ = answer(site, "chat", "one")
    second, p = answer(site, "chat", "two")
    first.end()
    response.wait(lambda: fold.messages and fold.messages[first.mid].status == "complete")
    assert not fold.is_done
    second.append("!")
    second.end("error", "it broke")
    response.read()
    assert response.is_whole
    assert fold.is_done
    assert fold.text(p) == "two!"
    assert response.frames[-1] == {"t": "done", "sid": "chat", "seq": site.channel("chat").stream.head}
    if form == "events":
        assert response.ids[-1] == site.get("/streams/chat").json["cursor"]
    response.leave()
    until(site.is_idle)


def test_until_idle_of_what_is_over_gives_all_of_it_and_done(site: LiveSite, form: Form) -> None:
    finished(site, "chat", "x" * 400_000, "text")
    response = site.follow(form, "chat", until="idle").read()
    assert response.is_whole
    assert fold_of(response).is_done
    assert len(fold_of(response).text(2)) == 400_004


def test_until_idle_with_a_cursor_that_is_there_already_answers_204(site: LiveSite, form: Form) -> None:
    finished(site, "chat", "text")
    cursor = site.get("/streams/chat").json["cursor"]
    for headers, query in (({}, f"&cursor={cursor}"), ({"Last-Event-ID": cursor}, "")):
        response = site.get(f"/streams/chat/{form}?until=idle{query}", headers=headers)
        assert (response.status, response.body) == (204, b"")
    assert site.hub.connections == {}


@pytest.mark.parametrize("token", [None, "nonsense", "{epoch}.3", "{epoch}.9", "000000000000.4"])
def test_until_idle_with_another_cursor_does_not_answer_204(site: LiveSite, form: Form, token: str | None) -> None:
    finished(site, "chat", "text")
    epoch = site.channel("chat").stream.epoch
    query = {} if token is None else {"cursor": token.format(epoch=epoch)}
    response = site.get(f"/streams/chat/{form}?{urlencode({'until': 'idle', **query})}")
    assert response.status == 200
    assert response.frames[-1]["t"] == "done"


def test_until_idle_with_a_current_cursor_waits_while_a_message_is_open(site: LiveSite, form: Form) -> None:
    message, p = answer(site, "chat", "text")
    fold = Fold("chat")
    response = site.follow(form, "chat", fold)
    response.wait(lambda: p in fold.parts and fold.text(p) == "text")
    response.leave()
    response = site.follow(form, "chat", fold, until="idle")
    response.wait(lambda: fold.greetings == 2)
    message.end()
    response.read()
    assert fold.is_done
    assert response.is_whole


def test_text_that_was_appended_last_comes_before_done(site: LiveSite, form: Form) -> None:
    """A message that begins and ends between two flushes, while another has ended: all of it is there before `done`."""
    response = site.follow(form, "chat", until="idle")
    response.wait(lambda: fold_of(response).greetings)
    message = site.message("chat")
    message.append("all ")
    message.append("of it")
    message.end()
    response.read()
    assert fold_of(response).is_done
    assert texts(response.frames) == ["all of it"]


# -- heartbeats, departures, slow readers


def test_a_silent_response_gets_a_heartbeat_and_a_busy_one_none(site: LiveSite) -> None:
    for form in ("events", "records") if site.way == "socket" else ("events",):
        check_heartbeats(site, form)


def check_heartbeats(site: LiveSite, form: Form) -> None:
    site.configure(ping_interval=0.15)
    response = site.follow(form, "chat")
    response.wait(lambda: response.frames)
    began = time.monotonic()
    while time.monotonic() < began + 0.35:
        site.stream("chat").publish("note")
        count = fold_of(response).seq
        response.wait(lambda count=count: fold_of(response).seq > count)
        gevent.sleep(0.02)
    beat = b": \n\n" if form == "events" else b'{"t":"ping"}\n'
    assert beat not in response.body
    response.wait(lambda: response.body.count(beat) == 2)
    assert response.body.endswith(beat * 2)


@pytest.mark.parametrize("how", ["leave", "reset", "half close"])
def test_a_client_that_leaves_while_idle_is_noticed_without_any_write(
    socket_site: LiveSite, form: Form, how: str
) -> None:
    response = socket_site.follow(form, "chat")
    assert isinstance(response, SocketAnswer)
    response.wait(lambda: response.frames)
    written = socket_site.hub.counts.bytes
    if how == "half close":
        response.client.half_close()
    else:
        response.leave(reset=how == "reset")
    until(socket_site.is_idle, "the departure to be noticed")
    assert socket_site.hub.counts.bytes == written


def test_closing_a_response_in_the_middle_ends_its_connection(live_site: LiveSite, form: Form) -> None:
    live_site.configure("flask")
    response = live_site.follow(form, "chat")
    response.leave()
    assert live_site.is_idle()
    live_site.stream("chat").publish("note")
    assert response.read().named("event") == []


def test_a_slow_client_is_cut(socket_site: LiveSite, form: Form, capfd: pytest.CaptureFixture[str]) -> None:
    socket_site.configure(send_timeout=0.3)
    response = narrow(socket_site, form, Fold("chat"))
    message, _ = answer(socket_site, "chat")
    response.wait(lambda: response.frames)
    until(lambda: message.append("x" * 30_000) or not socket_site.hub.connections, "the slow client to be cut")
    assert socket_site.subscribers == []
    assert socket_site.hub.counts.closed == {"slow": 1}
    assert capfd.readouterr().err == ""


def test_a_stalled_reader_gets_fewer_larger_deltas_and_its_text_whole(socket_site: LiveSite, form: Form) -> None:
    fold = Fold("chat")
    response = narrow(socket_site, form, fold)
    message, p = answer(socket_site, "chat", "begin ")
    response.wait(lambda: p in fold.parts)
    fill(socket_site, message)
    appended = 0
    while appended < 40:
        message.append("x" * 1_000)
        socket_site.hub.flusher.hurry(socket_site.channel("chat"))
        gevent.sleep(0.001)
        appended += 1
    message.append(" end")
    count = len(texts(response.frames))
    message.end()
    response.wait(lambda: fold.seq == 4)
    assert fold.text(p).startswith("begin x")
    assert fold.text(p).endswith("x end")
    assert fold.resets == []
    assert len(fold.text(p)) > 40_000
    assert max(map(len, texts(response.frames)[count:])) > 8_192


def test_a_restart_says_bye_and_ends_the_response(site: LiveSite, form: Form) -> None:
    response = site.follow(form, "chat")
    response.wait(lambda: response.frames)
    site.stream("chat").publish("note")
    draining = gevent.spawn(drain, site.hub, 1)
    response.read().leave()
    draining.join(LIMIT)
    bye = response.frames[-1]
    assert bye == {"t": "bye", "reason": "restart", "retry_ms": bye["retry_ms"]}
    assert fold_of(response).seq == 1
    assert response.is_whole
    if form == "events":
        assert b"retry: %d\nevent: bye\n" % bye["retry_ms"] in response.body
    assert site.is_idle()


def test_an_end_that_the_flusher_has_not_come_to_goes_before_the_bye(site: LiveSite, form: Form) -> None:
    """The flusher gives way in the middle of a turn, for another stream; then the answer ends and the drain begins."""
    response = site.follow(form, "chat")
    message, _ = answer(site, "chat", "all of it")
    response.wait(lambda: texts(response.frames) == ["all of it"])
    flusher = site.hub.flusher

    def meanwhile() -> None:
        del flusher._breathe
        message.end()
        spawned.append(gevent.spawn(drain, site.hub, 1))
        gevent.sleep(0)

    spawned: list[gevent.Greenlet] = []
    flusher._breathe = meanwhile
    site.stream("other").publish("note")
    response.read().leave()
    gevent.joinall(spawned, LIMIT)
    assert response.frames[-1]["t"] == "bye"
    assert fold_of(response).messages[message.mid].status == "complete"


def test_while_draining_nothing_new_begins(site: LiveSite, form: Form) -> None:
    site.hub.is_draining = True
    response = site.get(f"/streams/chat/{form}")
    assert response.status == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json["error"] == "draining"
    assert site.hub.channels == {}
    site.hub.is_draining = False


def test_300_connections_that_come_and_go_leave_nothing(site: LiveSite, form: Form) -> None:
    message, _ = answer(site, "chat", "text")
    for number in range(300):
        fold = Fold("chat")
        response = site.follow(form, "chat", fold)
        if number % 2:
            response.wait(lambda fold=fold: 2 in fold.parts and fold.text(2))
        response.leave(reset=number % 3 == 0)
    site.leave()
    message.end()
    site.check_idle()
    assert list(site.hub.channels) == ["chat"]


# -- clients that can't fold deltas


def cumulative(response: Answer) -> list[str]:
    """The texts of the cumulative frames."""
    return [frame["s"] for frame in response.named("cumulative")]


def test_deltas_0_gets_whole_texts_at_most_each_250_ms_and_the_end_with_the_text(site: LiveSite) -> None:
    form: Form = "records" if site.way == "iterable" else "events"
    response = site.follow(form, "chat", deltas="0")
    fold = fold_of(response)
    response.wait(lambda: fold.greetings)
    message = site.message("chat")
    began = time.monotonic()

    def produce() -> None:
        while time.monotonic() < began + 0.7:
            message.append("some ")
            gevent.sleep(0.005)
        message.end()

    producing = gevent.spawn(produce)
    response.wait(lambda: fold.seq == 4)
    producing.join()
    found = cumulative(response)
    assert 2 <= len(found) <= (time.monotonic() - began) / 0.25 + 1
    assert fold.text(2) == "some " * (len(fold.text(2)) // 5)
    assert response.named("delta") == []
    (end,) = [frame["d"] for frame in response.named("event") if frame["k"] == "part.end"]
    assert end == {"mid": message.mid, "p": 2, "len": len(fold.text(2)), "s": fold.text(2)}


def test_deltas_0_gets_the_last_text_though_nothing_follows(site: LiveSite) -> None:
    form: Form = "records" if site.way == "iterable" else "events"
    response = site.follow(form, "chat", deltas="0")
    response.wait(lambda: fold_of(response).greetings)
    message, _ = answer(site, "chat", "one")
    response.wait(lambda: cumulative(response) == ["one"])
    message.append(" two")
    site.hub.flusher.hurry(site.channel("chat"))
    gevent.sleep(0)
    message.append(" three")
    response.wait(lambda: cumulative(response) == ["one", "one two three"])
    site.stream("chat").publish("note")
    response.wait(lambda: fold_of(response).seq == 3)
    assert len(cumulative(response)) == 2


def test_deltas_0_until_idle_and_late(site: LiveSite, form: Form) -> None:
    finished(site, "chat", "one", " two")
    response = site.follow(form, "chat", deltas="0", until="idle").read()
    assert fold_of(response).is_done
    assert fold_of(response).text(2) == "one two"
    assert cumulative(response) == []


def test_deltas_0_on_a_websocket(live_site: LiveSite) -> None:
    websocket = live_site.websocket("?deltas=0")
    fold = websocket.subscribed("chat", Fold("chat", cumulative=True))
    message, p = answer(live_site, "chat", "one")
    other = message.part("thinking")
    other.append("hm")
    websocket.wait(lambda: other.p in fold.parts and fold.text(p) == "one" and fold.text(other.p) == "hm")
    message.append(" two")
    message.end()
    websocket.wait(lambda: fold.seq == 6)
    assert fold.text(p) == "one two"


def test_deltas_0_is_logged_once_per_connection_and_counted(
    site: LiveSite, form: Form, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streaming.live")
    response = site.follow(form, "chat", deltas="0")
    finished(site, "chat", "one", "two")
    response.wait(lambda: fold_of(response).seq == 4)
    assert len([record for record in caplog.records if "deltas=0" in record.getMessage()]) == 1
    assert site.hub.counts.unfolding == 1
    site.follow(form, "chat")
    assert site.hub.counts.unfolding == 1


# -- the snapshot


def test_a_snapshot_tells_all_that_the_stream_holds(site: LiveSite) -> None:
    message = site.message("chat", role="assistant", meta={"model": "m"}, mid="m1")
    thinking = message.part("thinking", {"n": 1})
    thinking.append("hm")
    thinking.end()
    message.append('text "😀"\n')  # not flushed yet
    site.stream("chat").publish("note", {"x": [1]}, urgent=True)
    message.append("more")
    response = site.get("/streams/chat")
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-cache"
    epoch = site.channel("chat").stream.epoch
    snapshot = response.json
    for part in snapshot["messages"][0]["parts"]:
        part.pop("part", None)
    assert snapshot == {
        "sid": "chat",
        "epoch": epoch,
        "seq": 5,
        "floor": 0,
        "cursor": f"{epoch}.5.4~13",
        "messages": [
            {
                "mid": "m1",
                "role": "assistant",
                "meta": {"model": "m"},
                "status": "open",
                "parts": [
                    {"p": 2, "kind": "thinking", "meta": {"n": 1}, "s": "hm", "open": False},
                    {"p": 4, "kind": "text", "meta": {}, "s": 'text "😀"\nmore', "open": True},
                ],
            }
        ],
        "events": [{"seq": 5, "k": "note", "d": {"x": [1]}}],
    }
    message.end("cancelled")
    snapshot = site.get("/streams/chat").json
    assert snapshot["messages"][0]["status"] == "cancelled"
    assert [part["open"] for part in snapshot["messages"][0]["parts"]] == [False, False]


def test_a_snapshots_cursor_resumes_behind_it(site: LiveSite, form: Form) -> None:
    message, p = answer(site, "chat", "seen ")
    cursor = site.get("/streams/chat").json["cursor"]
    message.append("new")
    message.end()
    response = site.get(f"/streams/chat/{form}?until=idle&cursor={cursor}")
    assert response.frames[0]["open"][0]["parts"][0]["p"] == p
    assert texts(response.frames) == ["new"]
    assert kinds(response.frames) == ["subscribed", "delta", "part.end", "message.end", "done"]


def test_a_snapshot_of_a_stream_that_does_not_exist_is_404_and_creates_none(site: LiveSite) -> None:
    response = site.get("/streams/chat")
    assert response.status == 404
    assert response.json["error"] == "not_found"
    assert site.hub.channels == {}


def test_head_of_a_snapshot_has_headers_only(headed_site: LiveSite) -> None:
    finished(headed_site, "chat", "text")
    response = headed_site.ask("/streams/chat", "HEAD").read()
    assert (response.status, response.body) == (200, b"")
    assert headed_site.ask("/streams/none", "HEAD").read().status == 404


def test_a_large_snapshot_is_consistent_though_the_stream_grows_while_it_is_sent(site: LiveSite) -> None:
    message, p = answer(site, "chat", "x" * 1_000_000)
    response = site.ask("/streams/chat")
    message.append("later")
    site.stream("chat").publish("note")
    response.read()
    snapshot = response.json
    assert snapshot["seq"] == 2
    assert snapshot["cursor"].endswith(f".2.{p}~1000000")
    assert len(snapshot["messages"][0]["parts"][0]["s"]) == 1_000_000
    assert snapshot["events"] == []


# -- the stop button


def test_cancel_ends_what_is_open_and_names_it(site: LiveSite) -> None:
    messages = [answer(site, "chat")[0] for _ in range(3)]
    response = site.post("/streams/chat/cancel", {"mid": messages[1].mid})
    assert (response.status, response.json) == (202, {"cancelled": [messages[1].mid]})
    assert [message.status for message in messages] == [None, "cancelled", None]
    response = site.post("/streams/chat/cancel")
    assert (response.status, response.json) == (202, {"cancelled": [messages[0].mid, messages[2].mid]})
    response = site.post("/streams/chat/cancel", {})
    assert (response.status, response.json) == (202, {"cancelled": []})


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("none", None, 404), ("chat", {"mid": "unknown"}, 404), ("chat", {"mid": "a b"}, 400),
        ("chat", {"mid": 1}, 400), ("chat", [], 400), ("chat", "x", 400), ("chat", {"mid": "x" * 65_536}, 413),
        ("a b", None, 400),
    ],
)  # fmt: skip
def test_a_cancel_that_is_refused_changes_nothing(site: LiveSite, path: str, body: Any, status: int) -> None:
    message, _ = answer(site, "chat")
    response = site.post(f"/streams/{quote(path)}/cancel", body)
    assert response.status == status
    assert set(response.json) == {"error", "message"}
    assert message.status is None
    assert list(site.hub.channels) == ["chat"]


def test_a_cancel_whose_body_is_not_json_is_refused(site: LiveSite) -> None:
    message, _ = answer(site, "chat")
    body = json.dumps({"mid": message.mid}).encode()
    assert site.ask("/streams/chat/cancel", "POST", {"Content-Type": "text/plain"}, body).read().status == 415
    assert (
        site.ask("/streams/chat/cancel", "POST", {"Content-Type": "application/json"}, body[:-1]).read().status == 400
    )
    assert message.status is None


# -- the activity of many streams


def test_activity_tells_all_at_first_then_the_ones_that_changed_and_urgent_events(site: LiveSite) -> None:
    finished(site, "old", "four")
    response = site.ask("/streams/activity?sid=old&sid=new&sid=still&sid=old")
    response.wait(lambda: len(told(response)) == 3)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert told(response)["old"] == {"sid": "old", "state": "idle", "head": 4, "chars": 4}
    count = len(response.frames)
    message, _ = answer(site, "new", "text")
    response.wait(lambda: told(response)["new"] == {"sid": "new", "state": "streaming", "head": 2, "chars": 4})
    site.stream("new").publish("approval", {"x": 1}, urgent=True)
    response.wait(lambda: response.named("notify"))
    assert response.named("notify") == [{"t": "notify", "sid": "new", "seq": 3, "k": "approval", "d": {"x": 1}}]
    message.end()
    response.wait(lambda: told(response)["new"]["state"] == "idle")
    later = [frame for frame in response.frames[count:] if frame["t"] == "activity"]
    assert {item["sid"] for frame in later for item in frame["items"]} == {"new"}
    assert {frame["t"] for frame in response.frames} == {"activity", "notify"}


def told(response: Answer) -> dict[str, Any]:
    """The latest summary of each stream."""
    return {item["sid"]: item for frame in response.named("activity") for item in frame["items"]}


def test_an_activity_frame_comes_at_most_each_background_interval(site: LiveSite) -> None:
    site.configure(background_interval=0.15)
    sids = [f"s{number}" for number in range(64)]
    response = site.ask("/streams/activity?" + "&".join(f"sid={sid}" for sid in sids))
    response.wait(lambda: len(told(response)) == 64)
    count = len(response.frames)
    began = time.monotonic()

    def produce() -> None:
        messages = [answer(site, sid)[0] for sid in sids]
        while time.monotonic() < began + 0.6:
            for message in messages:
                message.append("x")
            gevent.sleep(0.01)
        for sid in sids:
            site.stream(sid).publish("last")

    producing = gevent.spawn(produce)
    response.wait(lambda: all(item["head"] == 3 for item in told(response).values()))
    assert producing.ready()
    assert 3 <= len(response.frames) - count <= (time.monotonic() - began) / 0.15 + 1


@pytest.mark.parametrize("query", ["", "?sid=", "?sid=a&sid=b%20c", "?sid=ws", "?other=a"])
def test_activity_of_no_stream_or_a_bad_one_is_400(site: LiveSite, query: str) -> None:
    response = site.get(f"/streams/activity{query}")
    assert response.status == 400
    assert set(response.json) == {"error", "message"}
    assert site.hub.channels == {}


def test_activity_of_too_many_streams_is_400_and_leaves_no_connection(site: LiveSite) -> None:
    site.configure(max_subscriptions=2)
    response = site.get("/streams/activity?sid=a&sid=b&sid=c")
    assert response.status == 400
    assert site.is_idle()
    assert site.hub.channels == {}


# -- errors


SIDS = ["a b", "-a", ".a", "a\r\nX: y", "a\n", "é", "a" * 129, "x.js", 'a"b', "a%41", "a\0"]


@pytest.mark.parametrize("path", ["", "/events", "/records", "/cancel"])
def test_a_bad_sid_is_400_and_creates_nothing(site: LiveSite, path: str) -> None:
    names = {"": [], "/events": ["ws", "activity"]}.get(path, ["ws", "activity", "inspect"])
    for sid in [*SIDS, *names]:
        response = site.ask(f"/streams/{quote(sid, safe='')}{path}", "POST" if path == "/cancel" else "GET").read()
        assert response.status == 400, sid
        assert set(response.json) == {"error", "message"}
        assert response.headers["content-type"] == "application/json"
        assert "x" not in response.headers
        response.leave()
    assert site.hub.channels == {}


def test_one_stream_over_the_limit_is_503_with_retry_after(site: LiveSite, form: Form) -> None:
    site.configure(max_streams=1)
    site.stream("one").publish("note")
    response = site.get(f"/streams/two/{form}")
    assert response.status == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json["error"] == "too_many"
    assert site.is_idle()
    site.follow(form, "one").wait(lambda: site.subscribers)


def test_the_websocket_route_without_an_upgrade_is_426(site: LiveSite) -> None:
    response = site.get("/streams/ws")
    assert response.status == 426
    assert response.headers["upgrade"] == "websocket"
    assert response.json["error"] == "upgrade_required"


def test_a_server_that_is_not_ours_says_what_a_websocket_needs(live_site: LiveSite) -> None:
    live_site.configure("iterable")
    key = {"Sec-WebSocket-Key": "c2l4dGVlbiBieXRlcy4uLg==", "Sec-WebSocket-Version": "13"}
    response = live_site.get("/streams/ws", headers={"Upgrade": "websocket", "Connection": "Upgrade", **key})
    assert response.status == 501
    assert response.json["error"] == "not_supported"
    assert "streaming.server.StreamingWorker" in response.json["message"]


@pytest.mark.parametrize(
    ("asked", "given"), [("headrace.v1", "headrace.v1"), ("x, headrace.v1", "headrace.v1"), ("x", None)]
)
def test_the_subprotocol_is_named_if_it_was_asked_for(live_site: LiveSite, asked: str, given: str | None) -> None:
    websocket = live_site.websocket(headers=f"Sec-WebSocket-Protocol: {asked}\r\n")
    assert websocket.head.get("sec-websocket-protocol") == given


def test_the_browser_client_is_served_and_asked_for_anew_each_time(headed_site: LiveSite) -> None:
    """As a module, to pages of allowed sites only; a browser that has it is told so."""
    response = headed_site.get("/streams/client.js")
    assert (response.status, response.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "no-cache" in response.headers["cache-control"]
    assert response.body == CLIENT.read_bytes()
    again = {"If-None-Match": response.headers["etag"]}
    assert headed_site.get("/streams/client.js", headers=again).status == 304
    assert headed_site.get("/streams/client.js", headers={"Origin": "http://elsewhere.example"}).status == 403


def test_a_response_that_the_app_replaces_leaves_no_connection(site: LiveSite, form: Form) -> None:
    site.app.after_request(lambda response: site.app.make_response(("other", 404)))
    response = site.get(f"/streams/chat/{form}")
    assert (response.status, response.body) == (404, b"other")
    assert site.is_idle()


def test_an_after_request_that_fails_leaves_no_connection(site: LiveSite, form: Form) -> None:
    def fail(response: Any) -> Any:
        raise RuntimeError("no answer")

    site.app.after_request(fail)
    response = site.get(f"/streams/chat/{form}")
    assert response.status == 500
    assert site.is_idle()
