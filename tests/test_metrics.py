"""What `GET /metrics` says is what has happened, on real sockets; and what `/readyz` and `/healthz` say.

Limits are in `test_limits.py`, several worker processes in `test_metrics_processes.py`.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import gevent
import pytest
import ujson
from flask import Blueprint, Response
from gevent.event import Event
from gevent.monkey import get_original
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from app import create_app, streaming
from streaming import metrics, turns
from streaming.departure import DepartureWatch
from streaming.live import producer
from streaming.live.brokers.memory import MemoryBroker
from streaming.live.channel import Channel
from streaming.live.producer import Message
from streaming.metrics import Reporter
from streaming.turns import KEPT, Pulse, pulse
from tests.folding import Fold
from tests.live import UPGRADE, LiveSite, WebSocket, masked, texts
from tests.parts import LIMIT, Backend, Client, Peer, Site, boundary, record, until
from tests.scrape import Growth, declared, families, values
from tests.test_faults import blocking_blueprint
from tests.test_ingest import END, TOKEN, Producer, delta, line, send

CONNECTIONS, SUBSCRIBERS, STREAMS = "headrace_connections", "headrace_subscribers", "headrace_streams"
DELAYS, FIRST_TEXTS = "headrace_append_to_send_seconds", "headrace_first_text_seconds"
GAPS, LONGEST = "headrace_hub_gap_seconds", "headrace_hub_gap_longest_seconds"


# -- the answer


def test_metrics_are_prometheus_text(live_site: LiveSite) -> None:
    client = live_site.connect().ask("/metrics")
    body = client.body()
    status, headers = client.head()
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    assert headers["cache-control"] == "no-store"
    assert body.is_complete


def test_metrics_are_openmetrics_for_who_asks_for_it(live_site: LiveSite) -> None:
    accept = "Accept: application/openmetrics-text; version=1.0.0\r\n"
    client = live_site.connect().ask("/metrics", headers=accept)
    body = client.body()
    assert client.head()[1]["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    found = parse_openmetrics(body.text.decode())  # type: ignore[no-untyped-call]
    assert {"headrace_tokens", "headrace_streams"} <= {each.name for each in found}


def test_each_metric_is_there_with_its_labels(live_site: LiveSite, backend: Backend) -> None:
    shown: dict[str, set[str]] = {}
    for family in families(live_site):
        for sample in family.samples:
            name = sample.name.removesuffix("_bucket") if family.type == "histogram" else sample.name
            shown.setdefault(name, set()).update(set(sample.labels) - {"le"})
    assert declared().items() <= {name: tuple(labels) for name, labels in shown.items()}.items()
    assert len(declared()) > 25


def test_the_process_is_described_too(live_site: LiveSite) -> None:
    names = {family.name for family in families(live_site)}
    assert {"process_open_fds", "process_resident_memory_bytes", "python_gc_collections"} <= names


# -- what is open: it goes up, and down again


def test_connections_by_carrier(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    for _ in range(3):
        live_site.websocket()
    for _ in range(2):
        live_site.follow("events", "chat")
    live_site.follow("records", "chat")
    assert growth.by(CONNECTIONS) == {"websocket": 3, "sse": 2, "ndjson": 1}
    live_site.leave()
    until(live_site.is_idle)
    assert growth.by(CONNECTIONS) == {}


def test_subscribers_by_mode(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    websocket = live_site.websocket()
    for sid in ("a", "b", "c"):
        websocket.subscribed(sid)
    assert growth.by(SUBSCRIBERS) == {"full": 3}
    websocket.say({"t": "focus", "sids": ["a"]})
    websocket.settle()
    assert growth.by(SUBSCRIBERS) == {"full": 1, "background": 2}
    websocket.say({"t": "visibility", "hidden": True})
    websocket.settle()
    assert growth.by(SUBSCRIBERS) == {"background": 3}
    live_site.ask("/streams/activity?sid=a&sid=b")
    assert growth.by(SUBSCRIBERS) == {"background": 5}
    live_site.leave()
    until(live_site.is_idle)
    assert growth.by(SUBSCRIBERS) == {}


def test_streams_by_state(live_site: LiveSite) -> None:
    live_site.configure(idle_ttl=0.1)
    growth = Growth(live_site)
    one, two = live_site.message("one"), live_site.message("two")
    more = live_site.message("one")
    live_site.websocket().subscribed("three")
    assert growth.by(STREAMS) == {"streaming": 2, "idle": 1}
    one.end()
    two.end()
    live_site.websocket().subscribed("two")
    assert growth.by(STREAMS) == {"streaming": 1, "idle": 2}
    more.end()
    live_site.leave()
    until(lambda: not live_site.hub.channels)
    assert growth.by(STREAMS) == {}
    assert growth.of("headrace_streams_forgotten_total") == 3


def test_producers_of_both_kinds(live_site: LiveSite) -> None:
    live_site.configure(ingest_token=TOKEN)
    growth = Growth(live_site)
    stop = Event()
    inside = live_site.spawn(stop.wait)
    outside = Producer(live_site, sid="chat").send(line("message.start"))
    until(lambda: live_site.hub.ingests)
    assert growth.of("headrace_producers") == 2
    stop.set()
    outside.send(END).end().answer()
    inside.join()
    assert growth.of("headrace_producers") == 0


def test_render_slots_and_open_pages(site: Site, backend: Backend) -> None:
    """Two workers; four pages whose first step computes until the gate opens."""
    gate = Event()
    site.configure(render_workers=2, render_wait=60, blueprints=[blocking_blueprint(gate)])
    site.template("{{ block() }}{% boundary 'x' %}{% endboundary %}")
    go_on = Event()

    def script(peer: Peer) -> None:
        peer.answer(record("start"))
        if go_on.wait(LIMIT):
            peer.chunk(record("resume", boundary=boundary("x")))
            peer.wait()

    backend.script = script
    growth = Growth(site)
    assert growth.by("headrace_render_slots") == {}  # nothing is busy; those that are free were reported before
    clients = [site.get() for _ in range(4)]
    pool = site.state.shared.pool
    until(lambda: pool.waiting == 2)
    assert growth.by("headrace_render_slots") == {"busy": 2, "free": -2}
    assert growth.of("headrace_render_waiting") == 2
    assert growth.of("headrace_open_pages") == 4
    gate.set()
    until(lambda: pool.busy == pool.waiting == 0, "the first steps")
    assert growth.by("headrace_render_slots") == {}
    assert growth.of("headrace_render_waiting") == 0
    assert growth.of("headrace_open_pages") == 4  # they wait for the backend, and hold no slot
    go_on.set()
    assert all(client.body().is_complete for client in clients)
    until(site.is_idle)
    assert growth.of("headrace_open_pages") == 0


# -- what is sent


class Raw:
    """A live client that keeps each byte, and looks at nothing."""

    def __init__(self, site: LiveSite, path: str) -> None:
        self.client = site.connect().ask(path, headers=UPGRADE if path.endswith("ws") else "")
        assert self.client.head()[0] in (101, 200)

    @property
    def data(self) -> bytes:
        """What came behind the head of the response."""
        return self.client.received.split(b"\r\n\r\n", 1)[1]

    @property
    def messages(self) -> int:
        """Text frames of a WebSocket."""
        data, count = self.data, 0
        while data:
            length, start = data[1], 2
            if length >= 126:
                start = 4 if length == 126 else 10
                length = int.from_bytes(data[2:start], "big")
            count += data[0] == 0x81
            data = data[start + length :]
        return count

    @property
    def chunks(self) -> int:
        """HTTP chunks."""
        data, count = self.data, 0
        while data:
            size, _, rest = data.partition(b"\r\n")
            data = rest[int(size, 16) + 2 :]
            count += 1
        return count


def test_messages_and_bytes_are_what_clients_receive(live_site: LiveSite) -> None:
    """Of readers at one place and alone, behind and up to date, on all carriers: to the byte, with HTTP's chunks."""
    growth = Growth(live_site)
    sockets = [Raw(live_site, "/streams/ws") for _ in range(3)]
    for raw in sockets[:2]:
        raw.client.send(masked(1, b'{"t":"subscribe","sid":"chat"}'))
        raw.client.until(b"subscribed")
    message = live_site.message("chat")
    for number in range(5):
        message.append(f"text {number} ")
        for raw in sockets[:2]:
            raw.client.until(b"text %d" % number)
    bodies = [Raw(live_site, f"/streams/chat/{form}") for form in ("events", "records", "events")]
    sockets[2].client.send(masked(1, b'{"t":"subscribe","sid":"chat"},'[:-1]))
    sockets[2].client.until(b"text 4")
    for raw in sockets[1:]:
        raw.client.send(masked(1, b'{"t":"subscribe","sid":"other","mode":"activity"}'))
        raw.client.until(b'"activity"')
    message.append("ä" * 70_000)  # two messages, since a message has an end
    message.end()
    live_site.stream("chat").publish("last")
    for raw in [*sockets, *bodies]:
        raw.client.until(b'"k":"last"')
        raw.client.until(b"}]" if raw in sockets else b"\n\r\n")
    assert growth.of("headrace_sent_bytes_total") == sum(len(raw.data) for raw in [*sockets, *bodies])
    messages = sum(raw.messages for raw in sockets) + sum(raw.chunks for raw in bodies)
    assert growth.of("headrace_messages_sent_total") == messages


def test_heartbeats_and_goodbyes_are_bytes_too(live_site: LiveSite) -> None:
    live_site.configure(ping_interval=0.1)
    growth = Growth(live_site)
    websocket, events, records = (Raw(live_site, f"/streams/{path}") for path in ("ws", "chat/events", "chat/records"))
    websocket.client.until(b"\x89\x00")  # PING
    events.client.until(b"\r\n:")
    records.client.until(b'{"t":"ping"}')
    live_site.server.close()
    for raw in (websocket, events, records):
        while raw.client.receive():
            pass
        assert b"bye" in raw.data
    received = sum(len(raw.data) for raw in (websocket, events, records))
    assert growth.go_on_without_a_socket(live_site.app).of("headrace_sent_bytes_total") == received


def test_bytes_of_a_response_that_is_pulled(live_site: LiveSite) -> None:
    """Under a server that is not ours the body is HTTP's, so the chunks do not count."""
    live_site.configure("iterable", ping_interval=0.1)
    growth = Growth(live_site)
    answer = live_site.follow("events", "chat")
    message = live_site.message("chat")
    message.append("text")
    answer.wait(lambda: answer.named("delta"))
    answer.wait(lambda: b": \n\n" in answer.body, "a heartbeat")
    message.end()
    answer.wait(lambda: len(answer.named("event")) == 4)
    assert growth.of("headrace_sent_bytes_total") == len(answer.body)


def test_tails(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    websocket = live_site.websocket(receive_buffer=4_096)
    websocket.subscribed("chat")
    assert growth.of("headrace_tails_total") == 0
    message = live_site.message("chat")

    def is_full() -> bool:
        message.append("x" * 50_000)
        return live_site.connection.is_blocked

    until(is_full)
    assert growth.of("headrace_tails_total") == 1


# -- text


@pytest.fixture
def unbroken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`append` does not give way, however late the hub is: what is appended in one go stays together."""
    monkeypatch.setattr(producer, "PATIENCE", inf)


def test_tokens_that_come_together_are_one_run(live_site: LiveSite, unbroken: None) -> None:
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    message = live_site.message("chat")
    message.part().start()
    for number in range(100):
        message.append(f"{number:02}ä")
    websocket.wait(lambda: "".join(texts(websocket.frames)).endswith("99ä"))
    assert growth.of("headrace_tokens_total") == 100
    assert growth.of("headrace_runs_total") == 1
    assert growth.of("headrace_text_chars_total") == 300


def test_parts_that_take_turns_are_runs_of_their_own(live_site: LiveSite, unbroken: None) -> None:
    growth = Growth(live_site)
    message = live_site.message("chat")
    one, two = message.part(), message.part("thinking")
    one.start()
    two.start()
    for _ in range(10):
        one.append("ab")
        two.append("c")
        two.append("d")
    message.end()
    assert growth.of("headrace_tokens_total") == 30
    assert growth.of("headrace_runs_total") == 20
    assert growth.of("headrace_text_chars_total") == 40


def test_events_and_flushes(live_site: LiveSite, unbroken: None) -> None:
    growth = Growth(live_site)
    live_site.stream("chat").publish("note", 1)
    flushed(live_site, growth, 1)
    with live_site.message("chat") as message:
        message.append("text")
    flushed(live_site, growth, 2)  # all that came in one go
    assert growth.of("headrace_events_total") == 5


def flushed(site: LiveSite, growth: Growth, count: int) -> None:
    """Wait for so many flushes."""
    until(lambda: growth.of("headrace_flushes_total") == count, f"{count} flushes")


def appended(message: Message, websocket: WebSocket, text: str) -> None:
    """Append text, and wait until it is there."""
    message.append(text)
    websocket.wait(lambda: "".join(texts(websocket.frames)).endswith(text), text)


def has_nothing_to_flush(channel: Channel) -> bool:
    return not channel.outbox


def test_append_to_send_counts_flushes_that_somebody_follows(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    websocket.subscribed("aside", mode="activity")
    message = live_site.message("chat")
    for number in range(4):
        appended(message, websocket, f"<{number}>")
    assert growth.of(f"{DELAYS}_count") == 4
    before = growth.of("headrace_flushes_total")
    for sid in ("unwatched", "aside"):
        other, channel = live_site.message(sid), live_site.channel(sid)
        for _ in range(3):
            other.append("text")
            until(partial(has_nothing_to_flush, channel), "the flush")
    assert growth.of("headrace_flushes_total") - before >= 6
    assert growth.of(f"{DELAYS}_count") == 4
    assert growth.of(f"{DELAYS}_sum") > 0


def test_append_to_send_is_the_time_that_text_waits(live_site: LiveSite) -> None:
    """Up to the tick of the clock that flushes; what a bucket holds is in all that are larger."""
    interval = 0.2
    live_site.configure(flush_interval=interval, background_interval=interval)
    growth = Growth(live_site)
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    message = live_site.message("chat")
    count, least = 0, 0.0
    while least < interval / 2:
        appended(message, websocket, "at once, or soon. ")
        began = time.monotonic() // interval
        message.append("first. ")
        now = time.monotonic()
        if now // interval == began:  # so it waits for the next tick, for all that is left to it
            least += interval - now % interval
        appended(message, websocket, "second. ")
        count += 2
    grown = growth.all()
    assert grown[f"{DELAYS}_count", ()] == count
    assert grown[f"{DELAYS}_sum", ()] >= least
    buckets = {dict(labels)["le"]: value for (name, labels), value in grown.items() if name == f"{DELAYS}_bucket"}
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == count


def test_the_first_text_of_a_message_is_timed_once(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    silent = live_site.message("chat")
    message = live_site.message("chat")
    assert growth.of(f"{FIRST_TEXTS}_count") == 0
    gevent.sleep(0.06)  # what a model thinks
    message.part("thinking").append("hm")
    assert growth.of(f"{FIRST_TEXTS}_count") == 1
    message.append("text")
    message.append("more")
    assert growth.of(f"{FIRST_TEXTS}_count") == 1
    assert growth.of(f"{FIRST_TEXTS}_sum") >= 0.06
    assert growth.of(f"{FIRST_TEXTS}_bucket", le="0.05") == 0
    silent.end()
    message.end()
    assert growth.of(f"{FIRST_TEXTS}_count") == 1


def has_got(websocket: WebSocket, text: str) -> bool:
    return texts(websocket.frames)[-1:] == [text]


def replayed(growth: Growth) -> float:
    return growth.of("headrace_text_replayed_chars_total")


@pytest.mark.parametrize("form", ["websocket", "events", "records"])
def test_replayed_is_what_those_get_who_come_late(live_site: LiveSite, form: Any) -> None:
    growth = Growth(live_site)
    first, alone = live_site.websocket(), live_site.websocket()
    first.subscribed("other")
    for each in (first, alone):
        each.subscribed("chat")
    message = live_site.message("chat")
    for number in range(5):
        appended(message, first, f"{number}" * 100)
        alone.wait(partial(has_got, alone, f"{number}" * 100))
    assert replayed(growth) == 0  # both were there from the start
    if form == "websocket":
        late: Any = live_site.websocket()
        fold = late.subscribe("chat")
    else:
        late = live_site.follow(form, "chat")
        fold = late.fold
    late.wait(lambda: fold.parts and fold.text(2) and len(fold.text(2)) == 500)
    assert replayed(growth) == 500
    appended(message, first, "live")
    late.wait(lambda: fold.text(2).endswith("live"))
    assert replayed(growth) == 500
    late.leave()
    until(lambda: len(live_site.hub.connections) == 2)
    appended(message, first, "while it is away")
    again = live_site.websocket()
    again.subscribe("chat", fold)
    again.wait(lambda: fold.text(2).endswith("while it is away"))
    assert replayed(growth) == 500 + len("while it is away")


def test_what_was_not_on_screen_is_replayed_when_it_comes_back(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    websocket, other = live_site.websocket(), live_site.websocket()
    other.subscribed("chat")
    websocket.subscribed("chat", mode="activity")
    message = live_site.message("chat")
    appended(message, other, "x" * 50)
    assert replayed(growth) == 0
    websocket.say({"t": "focus", "sids": ["chat"]})
    websocket.wait(lambda: texts(websocket.frames))
    assert replayed(growth) == 50


# -- how things end


@pytest.mark.parametrize("by", ["websocket", "events", "records"])
@pytest.mark.parametrize("reason", ["ahead", "epoch", "invalid", "trimmed"])
def test_resets_by_reason(live_site: LiveSite, reason: str, by: Any) -> None:
    live_site.configure(log_events=2)
    for number in range(3):
        live_site.stream("chat").publish("note", number)
    epoch = live_site.channel("chat").stream.epoch
    token = {"ahead": f"{epoch}.4", "epoch": "another1.1", "invalid": "no cursor", "trimmed": f"{epoch}.0"}[reason]
    growth = Growth(live_site)
    if by == "websocket":
        websocket = live_site.websocket()
        websocket.say({"t": "subscribe", "sid": "chat", "cursor": token})
        assert websocket.answer("reset")["reason"] == reason
    else:
        client = live_site.connect().ask(f"/streams/chat/{by}?cursor={token.replace(' ', '%20')}")
        client.until(b'"reason":"%b"' % reason.encode())
    assert growth.by("headrace_resets_total") == {reason: 1}


def test_messages_by_status(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    live_site.message("chat").end()
    live_site.message("chat").end("error", "out of order")
    live_site.message("chat").cancel()
    killed = live_site.spawn(leaves_it_open, live_site)
    until(lambda: live_site.channel("chat").producers)
    killed.kill()
    assert growth.by("headrace_messages_ended_total") == {"complete": 1, "error": 1, "cancelled": 1, "aborted": 1}


def leaves_it_open(site: LiveSite) -> None:
    """A producer that waits for ever."""
    with site.streaming.stream("chat").message():
        Event().wait()


def test_a_message_that_nobody_watches(live_site: LiveSite) -> None:
    live_site.configure(idle_ttl=0.1)  # then the sweeper looks often
    growth = Growth(live_site)
    message = live_site.message("chat", cancel_unwatched_after=0.05)
    until(lambda: message.cancelled)
    assert growth.of("headrace_cancelled_unwatched_total") == 1
    assert growth.by("headrace_messages_ended_total") == {"cancelled": 1}


def test_records_of_ingest_are_those_that_were_applied(live_site: LiveSite) -> None:
    live_site.configure(ingest_token=TOKEN, producer_grace=0)
    growth = Growth(live_site)
    body = [line("message.start", n=1), b"\n", delta("x", n=2), line("message.end", n=3)]
    assert send(live_site, *body, name="p", sid="chat")[0] == 200
    assert growth.of("headrace_ingested_records_total") == 3
    assert send(live_site, *body, line("event", k="note", n=4), name="p", sid="chat")[1]["accepted"] == 4
    assert growth.of("headrace_ingested_records_total") == 4
    assert send(live_site, line("message.start"), b"no JSON\n", sid="chat")[0] == 400
    assert growth.of("headrace_ingested_records_total") == 5
    live_site.hub.remote["chat"]["p"].stop()


def test_clients_that_want_whole_texts(live_site: LiveSite) -> None:
    growth = Growth(live_site)
    live_site.websocket("?deltas=0")
    live_site.follow("records", "chat", Fold("chat", cumulative=True), deltas="0")
    live_site.websocket()
    assert growth.of("headrace_whole_text_connections_total") == 2


# -- how pages end

TEMPLATE = '<h1>{{ title }}</h1>{% boundary "rows" %}{{ 1 / rows }}{% endboundary %}'
START = record("start", state={"title": "Inbox"})


def rows(value: int) -> bytes:
    """What the page waits for."""
    return record("resume", boundary=boundary("rows"), state={"rows": value})


def own_blueprint() -> Blueprint:
    """A view that makes a page and answers with something else."""
    blueprint = Blueprint("own", __name__)

    @blueprint.get("/thrown")
    def thrown() -> Response:
        response = streaming.stream_template("thrown.html", iter([b'{"type":"start","version":2,"state":{}}\n']))
        assert response.status_code == 200
        return Response("something else")

    return blueprint


class Ending:
    """Brings about the end of one page."""

    def __init__(self, site: Site, backend: Backend) -> None:
        self.site = site
        self.backend = backend

    def answered(self, status: int, *lines: bytes) -> None:
        """The backend's answer, and what comes of it."""
        self.backend.answers(*lines)
        assert self.site.get().head()[0] == status

    def paused(self, *lines: bytes) -> Client:
        """A page whose backend says no more than this."""

        def script(peer: Peer) -> None:
            peer.answer(*lines)
            peer.wait()

        self.backend.script = script
        client = self.site.get()
        until(lambda: self.site.state.shared.pool.open_pages == 1 and self.backend.peers)
        return client

    def complete(self) -> None:
        self.backend.answers(START, rows(1))
        assert self.site.get().body().is_complete

    def cut(self) -> None:
        self.backend.answers(START, rows(0))
        assert not self.site.get().body().is_complete

    def backend_failed(self) -> None:
        self.answered(502, b"no JSON\n")

    def backend_timeout(self) -> None:
        self.site.configure(backend_timeout=0.1)
        assert self.paused().head()[0] == 504

    def busy(self) -> None:
        self.site.configure(max_pages=1)
        self.site.state.shared.pool.admit()
        assert self.site.get().head()[0] == 503
        self.site.state.shared.pool.leave()

    def no_template(self) -> None:
        assert self.site.get("/pages/none").head()[0] == 404

    def render_failed(self) -> None:
        self.site.template("{{ 1 / 0 }}")
        self.answered(500, START)

    def client_left(self) -> None:
        self.paused(START).until(b"Inbox").leave()

    def client_left_before_the_commit(self) -> None:
        self.paused().leave(reset=True)

    def client_slow(self) -> None:
        self.site.configure(flush_timeout=0.2).template('{{ "x" * 20000000 }}{% boundary "rows" %}{% endboundary %}')
        self.paused(START)

    def abandoned(self) -> None:
        self.site.configure(blueprints=[own_blueprint()])
        self.site.app.jinja_loader = None
        (self.site.folder / "thrown.html").write_text("never sent")
        assert self.site.get("/thrown").body().text == b"something else"


@pytest.mark.parametrize(
    "ending", [name for name in vars(Ending) if name[0] != "_" and name not in ("answered", "paused")]
)
def test_pages_by_outcome(site: Site, backend: Backend, ending: str) -> None:
    site.template(TEMPLATE)
    growth = Growth(site)
    getattr(Ending(site, backend), ending)()
    until(site.is_idle)
    assert growth.outcomes() == {ending.partition("_before")[0]: 1}


def test_a_client_whose_departure_only_a_send_tells_has_left(
    site: Site, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DepartureWatch, "start", lambda self: None)
    site.template('{{ "x" * 20000000 }}{% boundary "rows" %}{% endboundary %}')
    growth = Growth(site)
    Ending(site, backend).paused(START).until(b"xxx").leave(reset=True)
    until(site.is_idle)
    assert growth.outcomes() == {"client_left": 1}


def test_a_head_is_no_page(site: Site, backend: Backend) -> None:
    growth = Growth(site.template(TEMPLATE))
    assert site.get(method="HEAD").head()[0] == 200
    assert growth.outcomes() == {}


def test_the_apps_of_a_process_add_up(site: Site, backend: Backend) -> None:
    growth = Growth(site)
    backend.answers(record("start"))
    assert site.template("text").get().body().is_complete
    settings = {"STREAMING_BACKEND_URL": backend.url, "STREAMING_TEMPLATE_FOLDER": str(site.folder)}
    other = create_app(settings).test_client()
    assert other.get("/pages/page").data.endswith(b"complete-->")
    assert other.get("/metrics").status_code == 200  # an app reports what it has counted when it is asked
    assert growth.outcomes() == {"complete": 2}


# -- standstills of the hub


@pytest.fixture
def calm() -> Pulse:
    """The pulse, which has forgotten the standstills of other tests."""
    beat = pulse()
    beat._longest = [(0, 0.0)] * KEPT
    return beat


def longer_than(growth: Growth, bound: float) -> float:
    """Standstills that were longer than a bound of the histogram."""
    grown = growth.all()
    return grown[f"{GAPS}_count", ()] - grown[f"{GAPS}_bucket", (("le", str(bound)),)]


def test_a_greenlet_that_computes_is_a_standstill(live_site: LiveSite, calm: Pulse) -> None:
    growth = Growth(live_site)

    def compute() -> None:
        end = time.monotonic() + 0.03
        while time.monotonic() < end:
            pass

    gevent.sleep(0.001)
    calm._longest = [(0, 0.0)] * KEPT  # reading the metrics was a standstill too
    before = sum(calm.gaps.counts[4:])
    gevent.spawn(compute).join()
    gevent.sleep(0.001)
    assert calm.longest() >= 0.03
    assert sum(calm.gaps.counts[4:]) > before
    assert longer_than(growth, 0.02) >= 1
    assert growth.of(f"{GAPS}_sum") >= 0.03
    assert values(families(live_site))[LONGEST, ()] >= 0.03


def test_a_thread_that_keeps_the_interpreter_lock_is_a_standstill(live_site: LiveSite, calm: Pulse) -> None:
    """Though the hub itself computes nothing: it has woken, and can't go on.

    The system may wake it late, so that it is not kept for as long; then once more.
    """
    growth = Growth(live_site)
    data = json.dumps([{"number": number, "text": "some text"} for number in range(60_000)])
    took = [0.0]

    def parse() -> None:
        get_original("time", "sleep")(0.02)  # so that the hub sleeps, and wakes while it can't go on
        gc.disable()  # a collection calls hypothesis, in Python, which lets go of the lock
        began = time.monotonic()
        ujson.loads(data)
        took[0] = time.monotonic() - began
        gc.enable()

    def is_noted() -> bool:
        gevent.sleep(0.001)
        calm._longest = [(0, 0.0)] * KEPT  # what came before, such as making the data, was a standstill too
        parsing = gevent.get_hub().threadpool.spawn(parse)
        while not parsing.ready():
            gevent.sleep(0.001)  # somebody has to want to run
        parsing.get()
        return calm.longest() > took[0] / 2

    until(is_noted, "a standstill as long as the parsing")
    longest = calm.longest()
    assert took[0] > 0.005, "this machine needs more data"
    assert values(families(live_site))[LONGEST, ()] >= longest
    assert growth.of(f"{GAPS}_sum") >= longest


def iterations(*, watched: bool) -> int:
    """How often a loop turns that has five timers and nothing else to do."""
    loop = type(gevent.get_hub().loop)(default=False)
    beat = Pulse(loop) if watched else None
    turns_made = [0]
    left = [5]
    counter = loop.prepare(ref=False)
    counter.start(lambda: turns_made.append(1))
    timer = loop.timer(0.005, 0.005)

    def tick() -> None:
        left.append(left.pop() - 1)
        if not left[0]:
            timer.stop()

    timer.start(tick)
    loop.run()
    for watcher in (counter, timer, *(() if beat is None else beat._watchers)):
        watcher.close()
    loop.destroy()
    return len(turns_made)


def test_a_hub_with_nothing_to_do_is_not_woken_to_look_at_it() -> None:
    assert iterations(watched=True) == iterations(watched=False)


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float, float], Pulse]]:
    """A pulse by a clock of the test's: it is told when the hub wakes, and when it waits again."""
    now = [0.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns, "time", lambda: now[0])
    loop = type(gevent.get_hub().loop)(default=False)
    made = Pulse(loop)

    def turn(wakes: float, waits: float) -> Pulse:
        now[0] = wakes
        made._wake()
        now[0] = waits
        made._wait()
        return made

    yield turn
    for watcher in made._watchers:
        watcher.close()
    loop.destroy()


def test_the_longest_standstill_is_that_of_the_last_seconds(beat: Callable[[float, float], Pulse]) -> None:
    beat(100.0, 100.5)
    made = beat(101.0, 103.0)
    assert (made.longest(10), made.longest()) == (2.0, 2.0)
    beat(112.0, 112.0)
    assert (made.longest(10), made.longest()) == (2.0, 2.0)
    beat(113.0, 113.0)
    assert (made.longest(10), made.longest()) == (0.0, 2.0)
    beat(163.0, 163.0)
    assert made.longest() == 0.0
    counts, total = made.take()
    assert (sum(counts), total) == (2, 2.5)
    assert made.take() == ([0] * len(counts), 0.0)


# -- alive, and ready


def checks(site: Any, status: int) -> dict[str, str]:
    """What `/readyz` says; `/healthz` says that all is well, whatever that is."""
    healthz = site.connect().ask("/healthz")
    assert json.loads(healthz.body().text) == {"status": "ok"}
    assert healthz.head()[0] == 200
    client = site.connect().ask("/readyz")
    answer = json.loads(client.body().text)
    assert client.head()[0] == status
    assert answer["status"] == ("ready" if status == 200 else "not ready")
    found: dict[str, str] = answer["checks"]
    return found


ALL_WELL = {"hub": "ok", "drain": "ok", "broker": "ok"}


@pytest.fixture
def awake(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """No standstill is in the way of other checks; or one of so many seconds in the last ten."""

    def stood_still(seconds: float) -> None:
        monkeypatch.setattr(Pulse, "longest", lambda self, window=KEPT: seconds if window >= 10 else 0.0)

    stood_still(0.0)
    return stood_still


def test_a_process_that_has_served_nobody_is_ready(site: Site, awake: Callable[[float], None]) -> None:
    assert checks(site, 200) == ALL_WELL


def test_a_process_that_serves_streams_is_ready(live_site: LiveSite, awake: Callable[[float], None]) -> None:
    live_site.websocket().subscribed("chat")
    assert checks(live_site, 200) == ALL_WELL


@pytest.mark.parametrize("what", ["hub", "state"])
def test_a_server_that_drains_is_not_ready(live_site: LiveSite, awake: Callable[[float], None], what: str) -> None:
    drained: Any = getattr(live_site, what)
    drained.is_draining = True
    assert checks(live_site, 503) == ALL_WELL | {"drain": "the server is restarting"}
    drained.is_draining = False
    assert checks(live_site, 200) == ALL_WELL


@pytest.mark.parametrize("which", ["flusher", "sweeper"])
def test_a_process_whose_greenlets_have_died_is_not_ready(
    live_site: LiveSite, awake: Callable[[float], None], which: str
) -> None:
    getattr(live_site.hub, which)._greenlet.kill()
    assert checks(live_site, 503) == ALL_WELL | {"hub": "a greenlet has died"}


def test_a_process_that_cannot_reach_its_broker_is_not_ready(
    live_site: LiveSite, awake: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBroker, "is_reachable", False)
    assert checks(live_site, 503) == ALL_WELL | {"broker": "can't be reached"}


def test_a_process_that_stood_still_is_not_ready(live_site: LiveSite, awake: Callable[[float], None]) -> None:
    awake(1.99)
    assert checks(live_site, 200) == ALL_WELL
    awake(2.0)
    assert checks(live_site, 503) == ALL_WELL | {"hub": "stood still for 2.0 s"}


def test_a_report_that_fails_is_not_the_last(live_site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter(live_site.app.extensions["streaming"])
    reports: list[int] = []

    def fail(*, is_gentle: bool = True) -> None:
        reports.append(1)
        raise OSError("no space left")

    monkeypatch.setattr(reporter, "report", fail)
    monkeypatch.setattr(metrics, "REPORT_INTERVAL", 0.001)
    monkeypatch.setattr(metrics.atexit, "register", lambda *args, **how: None)
    reporter.start()
    until(lambda: len(reports) >= 3, "more reports")
    assert reporter._greenlet is not None
    reporter._greenlet.kill()


def test_metrics_do_not_wait_for_the_apps_threads(live_site: LiveSite) -> None:
    """gevent's own pool may be full of what the app waits for."""
    pool = gevent.get_hub().threadpool
    release = get_original("_thread", "allocate_lock")()
    release.acquire()

    def wait() -> None:
        release.acquire()
        release.release()

    tasks = [pool.spawn(wait) for _ in range(pool.maxsize)]
    try:
        assert live_site.get("/metrics").status == 200
        assert not any(task.ready() for task in tasks)
    finally:
        release.release()
        gevent.joinall(tasks)


def test_a_server_with_threads_of_its_own_says_what_it_can_not_do(live_site: LiveSite) -> None:
    """Nothing is made there only to count: refusals stay what they are."""
    client = live_site.app.test_client()
    found: list[int] = []

    def ask() -> None:
        for path, headers in [
            ("/metrics", {}),
            ("/readyz", {}),
            ("/streams/chat", {"Origin": "http://elsewhere.example"}),
        ]:
            found.append(client.get(path, headers=headers).status_code)

    gevent.get_hub().threadpool.apply(ask)
    assert found == [501, 200, 403]
