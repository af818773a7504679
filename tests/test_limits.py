"""Each limit of docs/configuration.md, gone past by exactly one over a real socket.

What is answered is what docs/pages.md, "Limits", and docs/live-protocol.md, "Limits" and "Errors", say. What was there
before is intact, nothing is refused at the limit itself, and `GET /metrics` counts one more there and nowhere else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import gevent
import pytest
from gevent.event import Event

from streaming.config import Settings
from streaming.errors import MessageTooLong
from streaming.live import conversation
from tests.folding import Fold
from tests.live import BINARY, GOING_ON, TEXT, UPGRADE, LiveSite, WebSocket, header, kinds, masked, texts
from tests.parts import LIMIT, Backend, Client, Peer, Site, boundary, record, until
from tests.scrape import Growth
from tests.test_faults import blocking_blueprint
from tests.test_ingest import END, TOKEN, Producer, delta, line, send

SHELL = b"<h1>Inbox</h1>"
COMPLETE = b"<!--stream:complete-->"
TEMPLATE = '<h1>{{ title }}</h1>{% boundary "rows" %}<p>{{ rows }}</p>{% endboundary %}'
START = record("start", state={"title": "Inbox"})
ROWS = record("resume", boundary=boundary("rows"), state={"rows": 7})
WHOLE = SHELL + b"<p>7</p>" + COMPLETE


#: Limits that are no settings, as the documentation has them.
BURST = MAX_DROPPED = 200
MAX_OPEN = MAX_EMPTY_FRAGMENTS = 1_000
MAX_META = MAX_IDLE_CHATTER = 65_536
MAX_RECORD = 2_000_000
MAX_NAMED = 64

#: Settings that are no limits.
OTHERS = {
    "backend_url", "background_interval", "base_path", "chunk_size", "flush_interval", "inspect", "render_pool",
    "render_workers", "template_folder", "tokens",
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Settings) if field.name not in OTHERS])
def test_each_setting_that_is_a_limit_is_tested_here(name: str) -> None:
    assert [test for test in globals() if test == f"test_{name}" or test.startswith(f"test_{name}_of_")]


# -- pages


@pytest.fixture
def page(site: Site) -> Site:
    return site.template(TEMPLATE)


def expect(client: Client, text: bytes, *, is_complete: bool = True) -> None:
    """The page has these bytes and is whole, or was cut behind them."""
    body = client.body()
    assert client.head()[0] == 200
    assert body.text == text
    assert body.is_complete == is_complete


def refusal(client: Client, status: int) -> str:
    """Status and line of a page that was refused."""
    body = client.body()
    headers = client.head()[1]
    assert (client.head()[0], body.is_complete) == (status, True)
    assert ("retry-after" in headers) == (status == 503)
    assert int(headers.get("retry-after", 1)) > 0
    return body.text.decode()


def padded(line_: bytes, size: int) -> bytes:
    """A record with as many bytes, its line feed not counted."""
    return line_[:-1].ljust(size) + b"\n"


class Paused:
    """A script of the backend: the shell, and the rest when the test says so."""

    def __init__(self, backend: Backend) -> None:
        self.go_on = Event()
        backend.script = self

    def __call__(self, peer: Peer) -> None:
        peer.answer(START)
        if self.go_on.wait(LIMIT):
            peer.chunk(ROWS)
            peer.wait()


def test_max_pages(page: Site, backend: Backend) -> None:
    page.configure(max_pages=2)
    growth = Growth(page)
    paused = Paused(backend)
    open_pages = [page.get().until(SHELL) for _ in range(2)]
    assert growth.page_limits() == {}
    assert refusal(page.get(), 503) == "2 pages are open\n"
    assert len(backend.peers) == 2  # it was not asked for the third
    paused.go_on.set()
    for client in open_pages:
        expect(client, WHOLE)
    until(page.is_idle)
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {"max_pages": 1}
    assert growth.outcomes() == {"busy": 1, "complete": 3}


def test_render_wait(site: Site, backend: Backend) -> None:
    gate = Event()
    site.configure(render_workers=1, render_wait=0.5, blueprints=[blocking_blueprint(gate)])
    site.template("{{ block() }}slow").template("quick", "quick.html")
    backend.answers(START)
    growth = Growth(site)
    pool = site.state.shared.pool
    slow = site.get()
    until(lambda: pool.busy == 1)
    waits = site.get("/pages/quick")
    until(lambda: pool.waiting == 1)
    gate.set()  # in time
    expect(slow, b"slow" + COMPLETE)
    expect(waits, b"quick" + COMPLETE)
    assert growth.page_limits() == {}
    gate.clear()
    slow = site.get()
    until(lambda: pool.busy == 1)
    assert refusal(site.get("/pages/quick"), 503) == "no render slot in 0.5 s\n"
    gate.set()
    expect(slow, b"slow" + COMPLETE)
    assert growth.page_limits() == {"render_wait": 1}
    assert growth.outcomes() == {"busy": 1, "complete": 3}


def test_backend_timeout(page: Site, backend: Backend) -> None:
    page.configure(backend_timeout=0.3)
    growth = Growth(page)
    paused = Paused(backend)
    client = page.get().until(SHELL)

    def is_silent(peer: Peer) -> None:
        peer.answer(b"\n")  # a heartbeat does not put it off
        peer.wait()

    backend.script = is_silent
    assert refusal(page.get(), 504) == "record 0: none within 0.3 s\n"
    backend.peer.wait()
    paused.go_on.set()  # its first record was in time; how long the second takes is no matter
    expect(client, WHOLE)
    assert growth.page_limits() == {"backend_timeout": 1}
    assert growth.outcomes() == {"backend_timeout": 1, "complete": 1}


def test_record_timeout(page: Site, backend: Backend) -> None:
    page.configure(record_timeout=0.3)
    growth = Growth(page)
    paused = Paused(backend)
    expect(page.get(), SHELL, is_complete=False)
    backend.peer.wait()
    paused.go_on.set()
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {"record_timeout": 1}
    assert growth.outcomes() == {"complete": 1, "cut": 1}


def test_flush_timeout(site: Site, backend: Backend) -> None:
    site.configure(flush_timeout=0.4).template("{% boundary 'x' %}{{ big * 800 }}{% endboundary %}")
    backend.answers(record("start", state={"big": "x" * 10_000}), record("resume", boundary=boundary("x")))
    growth = Growth(site)
    expect(site.get(), b"x" * 8_000_000 + COMPLETE)
    assert growth.page_limits() == {}
    client = site.connect(receive_buffer=4_096).ask("/pages/page")
    until(lambda: site.state.shared.pool.open_pages == 1)
    until(site.is_idle, "the page to be cut")
    body = client.body()  # only now
    assert not body.is_complete
    text = client.received.split(b"\r\n\r\n", 1)[1].split(b"\r\n", 1)[1]  # a chunk whose end has not come
    assert text == b"x" * len(text)
    assert growth.page_limits() == {"flush_timeout": 1}
    assert growth.outcomes() == {"client_slow": 1, "complete": 1}


def test_max_record_of_the_first(page: Site, backend: Backend) -> None:
    page.configure(max_record=200)
    growth = Growth(page)
    backend.answers(padded(START, 200), ROWS)
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {}
    backend.answers(padded(START, 201), ROWS)
    assert refusal(page.get(), 502) == "record 0: longer than 200 bytes\n"
    backend.peer.wait()
    assert growth.page_limits() == {"max_record": 1}
    assert growth.outcomes() == {"backend_failed": 1, "complete": 1}


def test_max_record_of_a_later_one(page: Site, backend: Backend) -> None:
    page.configure(max_record=200)
    growth = Growth(page)
    backend.answers(START, padded(ROWS, 200))
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {}
    backend.answers(START, padded(ROWS, 201))
    expect(page.get(), SHELL, is_complete=False)
    backend.peer.wait()
    assert growth.page_limits() == {"max_record": 1}
    assert growth.outcomes() == {"complete": 1, "cut": 1}


def test_max_record_of_an_ordinary_json_answer(page: Site, backend: Backend) -> None:
    page.configure(max_record=200)
    growth = Growth(page)
    backend.answers(b'{"title":"Inbox","rows":7}'.ljust(200), kind=b"application/json")
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {}
    backend.answers(b'{"title":"Inbox","rows":7}'.ljust(201), kind=b"application/json")
    assert "longer than 200 bytes" in refusal(page.get(), 502)
    assert growth.page_limits() == {"max_record": 1}


def test_max_page_records(page: Site, backend: Backend) -> None:
    page.configure(max_record=200, max_page_records=300)
    growth = Growth(page)
    backend.answers(b"\n", padded(START, 150), b"\n" * 50, padded(ROWS, 150))  # heartbeats count nothing
    expect(page.get(), WHOLE)
    assert growth.page_limits() == {}
    backend.answers(padded(START, 150), padded(ROWS, 151))
    expect(page.get(), SHELL, is_complete=False)
    backend.peer.wait()
    assert growth.page_limits() == {"max_page_records": 1}
    assert growth.outcomes() == {"complete": 1, "cut": 1}


def test_max_precommit(site: Site, backend: Backend) -> None:
    """It refuses nothing: at so many bytes the page is committed, and a failure behind them cuts it."""
    site.configure(max_precommit=1_000, chunk_size=100)
    site.template("{% for piece in pieces %}{{ piece }}{% endfor %}{{ 1 / end }}")
    growth = Growth(site)
    backend.answers(record("start", state={"pieces": ["x" * 99] * 10 + ["x" * 9], "end": 0}))
    assert refusal(site.get(), 500).startswith("record 0: the template failed")
    assert growth.page_limits() == {}
    backend.answers(record("start", state={"pieces": ["x" * 100] * 10, "end": 0}))
    expect(site.get(), b"x" * 1_000, is_complete=False)
    assert growth.page_limits() == {"max_precommit": 1}
    assert growth.outcomes() == {"cut": 1, "render_failed": 1}


def test_drain_timeout_of_pages(page: Site, backend: Backend) -> None:
    page.configure(drain_timeout=0.3)
    growth = Growth(page)
    slow, quick = Event(), Paused(backend)
    finishes = page.get().until(SHELL)

    def is_silent(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()
        slow.set()

    backend.script = is_silent
    stays = page.get().until(SHELL)
    page.server.close()
    quick.go_on.set()
    expect(finishes, WHOLE)
    expect(stays, SHELL, is_complete=False)
    assert slow.wait(LIMIT)
    growth.go_on_without_a_socket(page.app)
    assert growth.page_limits() == {"drain_timeout": 1}
    assert growth.outcomes() == {"complete": 1, "cut": 1}


# -- connections and streams


CARRIERS = ["/streams/ws", "/streams/chat/events", "/streams/chat/records", "/streams/activity?sid=chat"]


def ask(site: LiveSite, path: str) -> Client:
    """Ask for a live connection; it is a WebSocket if the path is that of WebSockets."""
    return site.connect().ask(path, headers=UPGRADE if path.endswith("ws") else "")


def refused(client: Client, status: int, code: str) -> dict[str, Any]:
    """Check a refusal on HTTP; its JSON."""
    body, headers = client.body(), client.head()[1]
    members: dict[str, Any] = json.loads(body.text)
    assert (client.head()[0], members["error"]) == (status, code)
    assert ("retry-after" in headers) == (status in (429, 503))
    assert int(headers.get("retry-after", 1)) > 0
    return members


def speaks(site: LiveSite, websocket: WebSocket, sid: str = "chat") -> None:
    """Whether a connection that was there before a refusal still gets what is written."""
    message = site.message(sid)
    message.append("intact")
    message.end()
    websocket.wait(lambda: kinds(websocket.frames)[-1:] == ["message.end"], "the message's end")
    assert "".join(texts(websocket.frames)).endswith("intact")


@pytest.mark.parametrize("path", CARRIERS)
def test_max_connections(live_site: LiveSite, path: str) -> None:
    live_site.configure(max_connections=2)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    second = ask(live_site, path)
    assert second.head()[0] in (101, 200)
    assert growth.refused() == {}
    refused(ask(live_site, path), 503, "too_many")
    assert growth.refused() == {"max_connections": 1}
    assert len(live_site.hub.connections) == 2
    speaks(live_site, websocket)
    second.leave()
    until(lambda: len(live_site.hub.connections) == 1)
    assert ask(live_site, path).head()[0] in (101, 200)
    assert growth.refused() == {"max_connections": 1}


@pytest.mark.parametrize("path", CARRIERS)
def test_max_connections_per_ip(live_site: LiveSite, path: str) -> None:
    live_site.configure(max_connections_per_ip=2)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    assert ask(live_site, path).head()[0] in (101, 200)
    assert growth.refused() == {}
    refused(ask(live_site, path), 429, "rate")
    assert growth.refused() == {"max_connections_per_ip": 1}
    speaks(live_site, websocket)


def test_max_streams(live_site: LiveSite) -> None:
    live_site.configure(max_streams=2, ingest_token=TOKEN)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    websocket.subscribed("other")
    assert growth.refused() == {}
    websocket.subscribe("third")
    error = websocket.answer("error")
    assert (error["code"], error["sid"]) == ("too_many", "third")
    assert growth.refused() == {"max_streams": 1}
    refused(ask(live_site, "/streams/third/events"), 503, "too_many")
    assert growth.refused() == {"max_streams": 2}
    status, answer = send(live_site, line("message.start"), sid="third")
    assert (status, answer["error"], answer["accepted"]) == (503, "too_many", 0)
    assert growth.refused() == {"max_streams": 3}
    assert list(live_site.hub.channels) == ["chat", "other"]
    speaks(live_site, websocket)


def test_max_subscriptions(live_site: LiveSite) -> None:
    live_site.configure(max_subscriptions=2)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("other")
    websocket.subscribed("chat")
    websocket.subscribed("other", Fold("other"))  # again, which is not one more
    assert growth.refused() == {}
    websocket.subscribe("third")
    error = websocket.answer("error")
    assert (error["code"], error["sid"]) == ("too_many", "third")
    assert growth.refused() == {"max_subscriptions": 1}
    speaks(live_site, websocket)
    assert ask(live_site, "/streams/activity?sid=a&sid=b&sid=a").head()[0] == 200
    refused(ask(live_site, "/streams/activity?sid=a&sid=b&sid=c"), 400, "bad_request")
    assert growth.refused() == {"max_subscriptions": 2}


# -- logs


def notes(site: LiveSite, count: int, *data: Any) -> None:
    """Publish events."""
    for number in range(count):
        site.stream("chat").publish("note", *data or (number,))


def replayed(site: LiveSite, *, from_start: bool) -> WebSocket:
    """Who comes with the cursor of one who was there before the first event, or with none; it has all that is kept."""
    websocket, fold = site.websocket(), Fold("chat")
    if from_start:
        fold.epoch = site.channel("chat").stream.epoch
    websocket.subscribe("chat", fold)
    head = site.channel("chat").stream.head
    websocket.wait(lambda: fold.seq == head, "what is kept")
    return websocket


def dropped(growth: Growth) -> float:
    """Events that left a log."""
    return growth.of("headrace_events_dropped_total")


def test_log_events(live_site: LiveSite) -> None:
    live_site.configure(log_events=10)
    growth = Growth(live_site)
    notes(live_site, 10)
    assert replayed(live_site, from_start=True).frames[1]["t"] == "subscribed"
    assert dropped(growth) == 0
    notes(live_site, 1)
    assert dropped(growth) == 1
    websocket = replayed(live_site, from_start=True)
    assert [frame["reason"] for frame in websocket.named("reset")] == ["trimmed"]
    assert [frame["d"] for frame in websocket.named("event")] == [*range(1, 10), 0]
    assert growth.by("headrace_resets_total") == {"trimmed": 1}
    websocket = replayed(live_site, from_start=False)
    assert websocket.named("subscribed")[0]["floor"] == 1
    assert growth.refused() == {}


def test_log_bytes(live_site: LiveSite) -> None:
    live_site.configure(log_bytes=1_000)
    growth = Growth(live_site)
    notes(live_site, 10, "x" * 98)  # and two quotes
    assert dropped(growth) == 0
    notes(live_site, 1, 7)  # one byte
    assert dropped(growth) == 1
    websocket = replayed(live_site, from_start=True)
    assert [frame["reason"] for frame in websocket.named("reset")] == ["trimmed"]
    assert [frame["d"] for frame in websocket.named("event")] == ["x" * 98] * 9 + [7]
    assert growth.refused() == {}


def test_log_bytes_of_one_event(live_site: LiveSite) -> None:
    live_site.configure(log_bytes=1_000, ingest_token=TOKEN)
    growth = Growth(live_site)
    stream = live_site.stream("chat")
    stream.publish("note", "x" * 998)
    assert send(live_site, line("event", k="note", d="y" * 998), sid="chat")[0] == 200
    assert growth.refused() == {}
    with pytest.raises(ValueError, match="STREAMING_LOG_BYTES"):
        stream.publish("note", "x" * 999)
    assert growth.refused() == {"log_bytes": 1}
    status, answer = send(live_site, line("event", k="note", d="y" * 999), sid="chat")
    assert (status, answer["error"], answer["accepted"]) == (413, "too_large", 0)
    assert growth.refused() == {"log_bytes": 2}
    assert [frame["d"] for frame in replayed(live_site, from_start=False).named("event")] == ["y" * 998]


def test_idle_ttl(live_site: LiveSite) -> None:
    live_site.configure(idle_ttl=0.3)
    growth = Growth(live_site)
    watched = live_site.websocket()
    fold = watched.subscribed("chat")
    notes(live_site, 1)
    live_site.stream("other").publish("note")
    until(lambda: "other" not in live_site.hub.channels, "the stream that nobody reads to be forgotten")
    assert growth.of("headrace_streams_forgotten_total") == 1
    speaks(live_site, watched)
    watched.leave()
    until(lambda: "chat" not in live_site.hub.channels)
    assert growth.of("headrace_streams_forgotten_total") == 2
    websocket = live_site.websocket()
    websocket.subscribed("chat", fold)
    assert fold.resets == ["epoch"]
    assert growth.by("headrace_resets_total") == {"epoch": 1}


# -- what a WebSocket's client sends


def padded_ping(size: int) -> bytes:
    """A message with as many bytes."""
    return masked(TEXT, b'{"t":"ping","id":1}'.ljust(size))


def test_max_inbound(live_site: LiveSite) -> None:
    live_site.configure(max_inbound=1_000)
    growth = Growth(live_site)
    websocket, other = live_site.websocket(), live_site.websocket()
    other.subscribed("chat")
    assert websocket.named("hello")[0]["max_in"] == 1_000
    websocket.send(padded_ping(1_000))
    assert websocket.answer("pong")["id"] == 1
    assert growth.refused() == {}
    websocket.send(padded_ping(1_001))
    assert websocket.end()[0] == 1009
    assert growth.refused() == {"max_inbound": 1}
    speaks(live_site, other)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock for the rate of messages, which stands still until it is moved by so many seconds."""
    now = [time.monotonic()]

    def move(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(conversation, "monotonic", lambda: now[0])
    return move


def test_inbound_rate(live_site: LiveSite, clock: Callable[[float], None]) -> None:
    live_site.configure(inbound_rate=2)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    for number in range(BURST):
        websocket.say({"t": "ping", "id": number})
    websocket.wait(lambda: len(websocket.named("pong")) == BURST)
    assert growth.refused() == {}
    websocket.say({"t": "subscribe", "sid": "chat"})
    assert websocket.answer("error")["code"] == "rate"
    assert growth.refused() == {"inbound_rate": 1}
    assert live_site.hub.channels == {}  # it was dropped
    clock(1.0)
    websocket.subscribed("chat")
    websocket.say({"t": "ping", "id": "second"})
    websocket.wait(lambda: websocket.named("pong")[-1]["id"] == "second")
    assert growth.refused() == {"inbound_rate": 1}
    websocket.say({"t": "ping"})
    assert websocket.answer("error")["code"] == "rate"
    assert growth.refused() == {"inbound_rate": 2}
    speaks(live_site, websocket)


def test_as_many_dropped_in_a_row_as_end_a_connection(live_site: LiveSite, clock: Callable[[float], None]) -> None:
    live_site.configure(inbound_rate=2)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.send((BURST + MAX_DROPPED - 1) * masked(TEXT, b'{"t":"ping"}'))
    websocket.wait(lambda: len(websocket.named("error")) == MAX_DROPPED - 1)
    assert growth.by("headrace_closed_total") == {}
    websocket.send(masked(TEXT, b'{"t":"ping"}'))
    assert websocket.end() == (4429, "too many messages")
    assert growth.by("headrace_closed_total") == {"rate": 1}
    assert growth.refused() == {"inbound_rate": MAX_DROPPED}


# -- producers


def test_max_message(live_site: LiveSite) -> None:
    live_site.configure(max_message=100)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    message = live_site.message("chat", mid="m")
    message.append("ä" * 50)  # in bytes of UTF-8
    assert growth.refused() == {}
    with pytest.raises(MessageTooLong):
        message.append("x")
    assert growth.refused() == {"max_message": 1}
    websocket.wait(lambda: fold.seq == 4, "the message's end")
    assert websocket.named("event")[-1]["d"]["status"] == "error"
    assert fold.text(2) == "ä" * 50
    fold.assert_holds(live_site.get("/streams/chat").json)
    assert growth.by("headrace_messages_ended_total") == {"error": 1}


def test_max_message_of_ingest(live_site: LiveSite) -> None:
    live_site.configure(max_message=100, ingest_token=TOKEN)
    growth = Growth(live_site)
    assert send(live_site, line("message.start"), delta("x" * 99), delta("y"), END, sid="chat")[0] == 200
    assert growth.refused() == {}
    status, answer = send(live_site, line("message.start"), delta("x" * 100), delta("y"), sid="chat")
    assert (status, answer["error"], answer["record"], answer["accepted"]) == (413, "too_large", 2, 2)
    assert growth.refused() == {"max_message": 1}
    assert growth.by("headrace_messages_ended_total") == {"complete": 1, "error": 1}
    messages = live_site.get("/streams/chat").json["messages"]
    assert [(each["status"], each["parts"][0]["s"]) for each in messages] == [
        ("complete", "x" * 99 + "y"),
        ("error", "x" * 100),
    ]


def statuses(site: LiveSite) -> dict[str, str]:
    """The messages of the stream `chat`, by id."""
    return {each["mid"]: each["status"] for each in site.get("/streams/chat").json["messages"]}


def forget_producers(site: LiveSite) -> None:
    """Forget the named producers now, and not at the end of the time to live: the site must not find their timers."""
    for producer in list(site.hub.remote["chat"].values()):
        producer.stop()


def test_producer_grace(live_site: LiveSite) -> None:
    live_site.configure(producer_grace=0.3, ingest_token=TOKEN)
    growth = Growth(live_site)
    for name in ("back", "away"):
        start = line("message.start", mid=name, n=1)
        assert send(live_site, start, delta("kept", n=2), name=name, sid="chat")[0] == 200
    assert send(live_site, line("message.end", n=3), name="back", sid="chat")[0] == 200  # in time
    channel = live_site.channel("chat")
    until(lambda: not channel.producers, "the other one to be given up")
    assert statuses(live_site) == {"back": "complete", "away": "error"}
    assert growth.refused() == {"producer_grace": 1}
    assert [each["parts"][0]["s"] for each in live_site.get("/streams/chat").json["messages"]] == ["kept", "kept"]
    forget_producers(live_site)


def test_a_producer_whose_message_was_cancelled_while_it_was_away_was_not_too_long_away(live_site: LiveSite) -> None:
    live_site.configure(producer_grace=0.2, ingest_token=TOKEN)
    growth = Growth(live_site)
    send(live_site, line("message.start", mid="m", n=1), name="away", sid="chat")
    known = live_site.hub.remote["chat"]["away"]
    assert live_site.post("/streams/chat/cancel").status == 202
    assert known.is_cancelled
    until(lambda: not known.is_cancelled, "the grace period to end")
    assert growth.refused() == {}
    forget_producers(live_site)


def test_producer_timeout(live_site: LiveSite) -> None:
    live_site.configure(producer_timeout=0.3, ingest_token=TOKEN)
    growth = Growth(live_site)
    producer = Producer(live_site, sid="chat").send(line("message.start", mid="m"), delta("kept"))
    status, answer = producer.answer()
    assert (status, answer["error"], answer["accepted"]) == (408, "timeout", 2)
    assert producer.is_closed()
    assert growth.refused() == {"producer_timeout": 1}
    assert send(live_site, line("message.start"), b"\n", END, sid="chat")[0] == 200
    assert growth.refused() == {"producer_timeout": 1}
    message = live_site.get("/streams/chat").json["messages"][0]
    assert (message["status"], message["parts"][0]["s"]) == ("error", "kept")


# -- who may


@pytest.mark.parametrize("path", [*CARRIERS, "/streams/chat"])
def test_origins(live_site: LiveSite, path: str) -> None:
    live_site.configure(origins="https://app.example")
    live_site.stream("chat").publish("note")
    growth = Growth(live_site)
    more = UPGRADE if path.endswith("ws") else ""

    def ask_from(origin: str) -> Client:
        return live_site.connect().ask(path, headers=f"{more}Origin: {origin}\r\n")

    for origin in ("https://app.example", "http://localhost"):  # one that is listed, and its own
        assert ask_from(origin).head()[0] in (101, 200)
    assert growth.refused() == {}
    refused(ask_from("https://app.example.org"), 403, "forbidden")
    assert growth.refused() == {"origins": 1}


def test_a_post_of_another_site(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    growth = Growth(live_site)
    answer = live_site.post("/streams/chat/cancel", headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status, answer.json["error"]) == (403, "forbidden")
    assert growth.refused() == {"origins": 1}
    assert message.status is None


def test_ingest_token(live_site: LiveSite) -> None:
    live_site.configure(ingest_token=TOKEN)
    growth = Growth(live_site)
    assert send(live_site, line("message.start"), END, sid="chat")[0] == 200
    assert growth.refused() == {}
    answer = live_site.post("/streams/chat/records", headers={"Authorization": f"Bearer {TOKEN}x"})
    assert (answer.status, answer.json["error"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "bearer"
    assert growth.refused() == {"ingest_token": 1}
    assert live_site.get("/streams/chat").json["seq"] == 2


# -- heartbeats, slow readers, the drain


def test_ping_interval(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.2)
    growth = Growth(live_site)
    alive, mute = live_site.websocket(), live_site.websocket()
    alive.subscribed("chat")
    mute.answers_pings = False
    reading = gevent.spawn(alive.wait, lambda: len(alive.pings) > 3)  # it answers them
    assert mute.end() == (4408, "no heartbeat")
    assert len(mute.pings) == 2
    reading.get(timeout=LIMIT)
    assert growth.by("headrace_closed_total") == {"no_heartbeat": 1}
    speaks(live_site, alive)


def flooded(site: LiveSite, client: Client) -> str:
    """Write until the only connection takes no more. Returns what was written."""
    message, text = site.message("chat"), ""
    connection = site.connection
    while not connection.is_blocked:
        piece = f"{len(text)} ".ljust(16_000, "x")
        text += piece
        message.append(piece)
        gevent.sleep(0.001)
    return text


def test_send_timeout(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.4, ping_interval=60)
    growth = Growth(live_site)
    websocket = live_site.websocket(receive_buffer=4_096)
    fold = websocket.subscribed("chat")
    text = flooded(live_site, websocket.client)
    assert growth.by("headrace_closed_total") == {}
    until(lambda: not live_site.hub.connections, "the slow client to be closed")
    assert growth.by("headrace_closed_total") == {"slow": 1}
    while websocket.pull():
        pass
    assert websocket.closed in (None, (4409, "slow"))
    assert text.startswith(fold.text(2))
    again = live_site.websocket()  # what it did not read is there when it comes back
    again.subscribe("chat", fold)
    again.wait(lambda: fold.text(2) == text)
    assert fold.resets == []


def test_send_timeout_of_a_snapshot(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.4)
    message = live_site.message("chat")
    message.append("x" * 8_000_000)
    growth = Growth(live_site)
    assert len(live_site.get("/streams/chat").json["messages"][0]["parts"][0]["s"]) == 8_000_000
    assert growth.by("headrace_closed_total") == {}
    client = live_site.connect(receive_buffer=4_096).ask("/streams/chat")
    client.until(b"xxx")
    until(lambda: growth.by("headrace_closed_total") == {"slow": 1}, "the slow client to be cut")
    body = client.body()
    assert not body.is_complete


def test_drain_timeout_of_producers(live_site: LiveSite) -> None:
    live_site.configure(drain_timeout=0.3)
    growth = Growth(live_site)
    told = Event()

    def answers(mid: str, end: Event | None) -> None:
        with live_site.streaming.stream("chat").message(mid=mid) as message:
            message.append(mid)
            if end is None:
                gevent.sleep(60)
            else:
                end.wait()

    live_site.spawn(answers, "finishes", told)
    live_site.spawn(answers, "stays", None)
    websocket = live_site.websocket()
    fold = websocket.subscribed("chat")
    live_site.server.close()
    told.set()
    assert websocket.end() == (1012, "restart")
    ends = [frame["d"] for frame in websocket.named("event") if frame["k"] == "message.end"]
    assert {end["mid"]: end["status"] for end in ends} == {"finishes": "complete", "stays": "aborted"}
    assert sorted(part.text for part in fold.parts.values()) == ["finishes", "stays"]
    growth.go_on_without_a_socket(live_site.app)
    assert growth.refused() == {"drain_timeout": 1}
    assert growth.by("headrace_closed_total") == {"restart": 1}


# -- rules that are no settings: each is counted by its name


def sends(data: bytes) -> Callable[[LiveSite], None]:
    """What a WebSocket's client sends that ends its connection."""

    def provoke(site: LiveSite) -> None:
        websocket = site.websocket()
        websocket.send(data)
        websocket.end()

    return provoke


def says(**frame: Any) -> Callable[[LiveSite], None]:
    """A frame of a WebSocket's client that is refused."""

    def provoke(site: LiveSite) -> None:
        websocket = site.websocket()
        websocket.say(frame)
        websocket.answer("error")

    return provoke


def posts(*records: bytes, status: int) -> Callable[[LiveSite], None]:
    """A body of ingest that is refused."""

    def provoke(site: LiveSite) -> None:
        assert send(site, *records, sid="chat")[0] == status

    return provoke


def asks_while_draining(site: LiveSite) -> None:
    site.hub.is_draining = True
    refused(ask(site, "/streams/chat/events"), 503, "draining")
    site.hub.is_draining = False


def asks_what_the_authorizer_forbids(site: LiveSite) -> None:
    site.streaming.authorizer(lambda action, sid: sid != "secret")
    refused(ask(site, "/streams/secret/events"), 403, "forbidden")


def chatters(site: LiveSite) -> None:
    client = ask(site, "/streams/chat/events").until(b"subscribed")
    client.send(b"x" * MAX_IDLE_CHATTER)
    until(lambda: getattr(site.connection, "_chatter", 0) == MAX_IDLE_CHATTER)
    client.send(b"x")
    until(lambda: not site.hub.connections)


def names_one_producer_too_many(site: LiveSite) -> None:
    producers = [
        Producer(site, f"p{number}", sid="chat").send(line("message.start", n=1)) for number in range(MAX_NAMED)
    ]
    until(lambda: len(site.hub.channels["chat"].producers) == MAX_NAMED if site.hub.channels else False)
    assert send(site, line("message.start", n=1), name="more", sid="chat")[0] == 503
    for producer in producers:
        assert producer.send(line("message.end", n=2)).end().answer()[0] == 200
    forget_producers(site)


def opens_one_message_too_many(site: LiveSite) -> None:
    assert send(site, *[line("message.start")] * (MAX_OPEN + 1), sid="chat")[0] == 400


def opens_one_part_too_many(site: LiveSite) -> None:
    parts = [delta("x", part=number) for number in range(MAX_OPEN + 1)]
    assert send(site, line("message.start"), *parts, sid="chat")[0] == 400


PUBLISH = {"t": "publish", "sid": "chat", "k": "note", "d": None}


@pytest.mark.parametrize(
    ("name", "provoke"),
    [
        ("bad_frame", says(t="subscribe")),
        ("bad_frame", says(t="focus", sids=[f"s{number}" for number in range(257)])),
        ("forbidden", says(**PUBLISH)),
        ("forbidden", asks_what_the_authorizer_forbids),
        ("unknown_stream", says(t="unsubscribe", sid="chat")),
        ("unknown_stream", says(t="focus", sids=["chat"])),
        ("close_1002", sends(masked(TEXT, b"{}", mask=None))),
        ("close_1003", sends(masked(BINARY, b"x"))),
        ("close_1007", sends(masked(TEXT, b'"\xff"'))),
        (
            "close_1008",
            sends(masked(TEXT, b"x", fin=False) + masked(GOING_ON, fin=False) * (MAX_EMPTY_FRAGMENTS + 1)),
        ),
        ("max_inbound", sends(header(TEXT, 65_537))),
        ("bad_record", posts(line("message.start"), b"no JSON\n", status=400)),
        ("bad_record", posts(line("message.start"), END, delta("x"), status=400)),
        ("ingest_record", posts(line("message.start"), b"x" * (MAX_RECORD + 1) + b"\n", status=413)),
        ("meta", posts(line("message.start", meta={"x": "y" * MAX_META}), status=413)),
        ("meta", posts(line("message.start"), line("message.end", usage={"x": "y" * MAX_META}), status=413)),
        ("draining", asks_while_draining),
        ("chatter", chatters),
        ("named_producers", names_one_producer_too_many),
        ("open_messages", opens_one_message_too_many),
        ("open_parts", opens_one_part_too_many),
    ],
)
def test_what_a_rule_refuses_is_counted_once_by_its_name(
    live_site: LiveSite, name: str, provoke: Callable[[LiveSite], None]
) -> None:
    live_site.configure(ingest_token=TOKEN)
    growth = Growth(live_site)
    provoke(live_site)
    assert growth.refused() == {name: 1}
