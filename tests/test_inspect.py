"""The page `/streams/inspect`: who may see it, what it tells of the process, and what it must not touch."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import gevent
import pytest
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from streaming.counts import DELAY_BOUNDS
from streaming.live import inspection
from streaming.live.drain import drain
from streaming.live.hub import INSPECT, MAX_SAMPLES
from streaming.live.inspection import BUSIEST, SLICE, Sampler, Survey, process_start, quantile
from streaming.protocol.stream import Event
from tests.folding import Fold
from tests.live import Answer, Frame, LiveSite, Way
from tests.parts import until

PAGE, DATA = "/streams/inspect", "/streams/inspect/events"


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch, live_site: LiveSite) -> LiveSite:
    """A site that lets itself be inspected, twenty times a second; to its end, so `monkeypatch` comes first."""
    monkeypatch.setattr(inspection, "PERIOD", 0.05)
    monkeypatch.setattr(inspection, "SHORTEST", 0.0)
    return live_site.configure(inspect=True)


def watch(site: LiveSite, fold: Fold | None = None) -> Answer:
    """Follow the samples."""
    return site.follow("events", INSPECT, fold, by="header")


def events(answer: Answer) -> list[Frame]:
    """The events that have come."""
    return answer.named("event")


def samples(answer: Answer) -> list[dict[str, Any]]:
    """Their samples."""
    return [event["d"] for event in events(answer)]


def see(answer: Answer, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait for a sample of which this holds."""
    answer.wait(lambda: any(map(condition, samples(answer))), "a sample")
    return next(filter(condition, samples(answer)))


def settled(site: LiveSite) -> bool:
    """The sampler, if there ever was one, is at rest."""
    made = site.state._process[1].values()
    return not any(sampler.is_running for sampler in made if isinstance(sampler, Sampler))


# -- who may


@pytest.mark.parametrize("path", [PAGE, DATA])
def test_it_is_off_unless_it_is_switched_on_and_nobody_is_asked(live_site: LiveSite, path: str) -> None:
    asked: list[Any] = []
    live_site.streaming.authorizer(lambda action, sid: asked.append(action))
    for way in ("socket", "iterable", "flask"):
        live_site.configure(way)
        answer = live_site.get(path)
        assert (answer.status, answer.json["error"]) == (404, "not_found")
        assert answer.headers["content-type"] == "application/json"
        live_site.leave()
    assert asked == []
    assert live_site.hub.internal == {}


@pytest.mark.parametrize("path", [PAGE, DATA])
def test_an_authorizer_that_names_what_it_allows_refuses_the_page_and_its_data(inspected: LiveSite, path: str) -> None:
    asked: list[tuple[str, str]] = []

    @inspected.streaming.authorizer
    def allow(action: str, sid: str) -> bool:
        asked.append((action, sid))
        return action in ("read", "publish", "cancel", "ingest")

    for method in ("GET", "HEAD"):
        assert inspected.ask(path, method).read().status == 403
    assert inspected.get(path).json["error"] == "forbidden"
    assert asked == [("inspect", "inspect")] * 3
    assert inspected.hub.internal == {}


def test_an_authorizer_may_allow_it(inspected: LiveSite) -> None:
    inspected.streaming.authorizer(lambda action, sid: action == "inspect")
    assert inspected.get(PAGE).status == 200
    answer = watch(inspected)
    answer.wait(lambda: samples(answer), "a sample")


def test_a_page_of_another_site_gets_nothing(inspected: LiveSite) -> None:
    for path in (PAGE, DATA):
        assert inspected.get(path, headers={"Origin": "https://evil.example"}).status == 403
    assert inspected.hub.internal == {}


# -- the page


class Parts(HTMLParser):
    """What a page refers to, and what is in line."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attributes:
            if name in ("src", "href"):
                self.links.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(self._tag)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def test_the_page_works_under_a_strict_policy_that_it_sets_itself(inspected: LiveSite) -> None:
    answer = inspected.get(PAGE)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    rules = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'self'" in rules
    assert not [rule for rule in rules if "unsafe" in rule or "http" in rule]
    assert Parts(answer.body.decode()).inline == []
    assert inspected.hub.internal == {}  # nothing is sampled for the page alone
    assert settled(inspected)


@pytest.mark.parametrize("prefix", ["", "/deep/down"])
def test_all_that_the_page_refers_to_is_there_wherever_the_app_is_mounted(inspected: LiveSite, prefix: str) -> None:
    if prefix:
        mounted = DispatcherMiddleware(Flask("other").wsgi_app, {prefix: inspected.app.wsgi_app})
        inspected.app.wsgi_app = mounted  # type: ignore[method-assign]
    page = inspected.get(prefix + PAGE)
    found = {urljoin(prefix + PAGE, link) for link in Parts(page.body.decode()).links}
    assert found == {f"{prefix}/streaming/inspect.css", f"{prefix}/streaming/inspect.js", prefix + DATA}
    kinds = {}
    for path in found:
        answer = inspected.ask(path)
        assert answer.status == 200
        kinds[path.rpartition(".")[2]] = answer.headers["content-type"].partition(";")[0]
    assert kinds == {"css": "text/css", "js": "text/javascript", prefix + DATA: "text/event-stream"}
    script = inspected.get(f"{prefix}/streaming/inspect.js").body.decode()
    sources = re.findall(r'new EventSource\("([^"]*)"\)', script)
    assert [urljoin(prefix + PAGE, source) for source in sources] == [prefix + DATA]


def test_the_script_puts_what_comes_into_the_page_as_text_only(inspected: LiveSite) -> None:
    script = inspected.get("/streaming/inspect.js").body.decode()
    assert "textContent" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\.style\b", script)


# -- what a sample tells


@pytest.mark.parametrize("way", ["socket", "iterable", "flask"])
def test_a_sample_tells_what_is_going_on(inspected: LiveSite, way: Way) -> None:
    inspected.configure(way, inspect=True)
    answer = watch(inspected)
    message = inspected.message("chat")
    answer.wait(lambda: samples(answer), "a first sample")
    for _ in range(100):
        message.append("0123456789")
    sample = see(answer, lambda sample: sample["busiest"] and sample["busiest"][0]["chars"] == 1_000)
    row = sample["busiest"][0]
    assert row.items() >= {"sid": "chat", "state": "streaming", "head": 2, "open": 1, "full": 0}.items()
    assert row["log"] == inspected.channel("chat").stream.log.size > 0
    assert sample["streams"] == {"all": 1, "streaming": 1}
    assert sum(sample["connections"].values()) == sample["connections"]["sse"] == 1
    message.end()
    sample = see(answer, lambda sample: sample["busiest"] and sample["busiest"][0]["state"] == "idle")
    assert sample["streams"] == {"all": 1, "streaming": 0}
    seen = samples(answer)
    assert all(sample["pid"] > 0 and 0 < sample["uptime"] < 36_000 for sample in seen)
    # Rates are rounded, so their sum is not exact.
    text = sum(row["rate"] * sample["seconds"] for sample in seen for row in sample["busiest"])
    assert text == pytest.approx(1_000, rel=0.1)
    tokens = sum(sample["rates"]["tokens"] * sample["seconds"] for sample in seen)
    assert tokens == pytest.approx(100, rel=0.1)
    assert max(sample["coalescing"] or 0 for sample in seen) > 1


def test_a_sample_tells_of_readers_and_how_long_text_takes_to_them(inspected: LiveSite) -> None:
    answer = watch(inspected)
    reader, other = inspected.websocket(), inspected.websocket()
    reader.subscribed("chat")
    other.subscribed("chat", mode="activity")
    sample = see(answer, lambda sample: sample["subscribers"] == {"full": 1, "background": 1})
    assert sample["connections"] == {"websocket": 2, "sse": 1, "ndjson": 0}
    assert sample["busiest"][0].items() >= {"sid": "chat", "full": 1, "background": 1}.items()
    assert sample["delay"] == {"p50": None, "p95": None}
    inspected.message("chat").append("text")
    sample = see(answer, lambda sample: sample["delay"]["p50"] is not None)
    assert sample["delay"]["p50"] <= sample["delay"]["p95"]
    assert {sample["delay"]["p50"], sample["delay"]["p95"]} <= set(DELAY_BOUNDS)
    answer.wait(lambda: samples(answer)[-1]["delay"]["p50"] is None, "a sample of later, when nothing was sent")
    counts = inspected.hub.counts
    counts.resets["epoch"] += 2
    counts.refused["forbidden"] += 3
    counts.closed["slow"] += 4
    see(answer, lambda sample: (sample["resets"], sample["refused"], sample["slow"]) == (2, 3, 4))


def test_a_sample_tells_of_standstills_and_of_the_render_pool_without_making_one(inspected: LiveSite) -> None:
    answer = watch(inspected)
    sample = see(answer, lambda sample: sample["pages"] == {"open": 0, "rendering": 0, "waiting": 0})
    assert [each for each in inspected.state._process[1] if each.__name__ == "Shared"] == []
    see(answer, lambda sample: sample["gap"] < 0.2)
    inspected.hub.pulse._waits_since = inspected.hub.pulse._began = inspected.hub.pulse.at - 0.3
    inspected.hub.pulse._wait()  # as after 0.3 s of work
    sample = see(answer, lambda sample: sample["gap"] >= 0.3)
    pool = inspected.state.shared.pool
    pool.admit()
    sample = see(answer, lambda sample: sample["pages"]["open"])
    assert sample["pages"] == {"open": 1, "rendering": 0, "waiting": 0}
    pool.leave()


def text_in(site: LiveSite, sid: str, size: int, *, is_open: bool = False) -> None:
    """A stream with so much text."""
    message = site.message(sid)
    message.append("x" * size)
    if not is_open:
        message.end()


def test_the_busiest_streams_are_those_that_stream_then_those_that_grew_most(live_site: LiveSite) -> None:
    hub = live_site.hub
    for number in range(BUSIEST):
        text_in(live_site, f"old{number}", 5)
    Survey(hub)
    text_in(live_site, "much", 2_000)
    text_in(live_site, "more", 3_000)
    text_in(live_site, "open", 10, is_open=True)
    text_in(live_site, "wide", 20, is_open=True)
    until(lambda: not hub.channels["wide"].outbox, "the text to be flushed")
    survey = Survey(hub)
    rows = survey.rows(0.5)
    assert [row["sid"] for row in rows[:5]] == ["wide", "open", "more", "much", "old0"]
    assert [row["rate"] for row in rows[:5]] == [40, 20, 6_000, 4_000, 0]
    assert len(rows) == BUSIEST
    assert survey.streaming == 2
    assert [row["rate"] for row in Survey(hub).rows(0.5)[:4]] == [0, 0, 0, 0]
    for number in range(BUSIEST):
        text_in(live_site, f"old{number}", 100)
    assert [row["sid"] for row in Survey(hub).rows(0.5)[:3]] == ["open", "wide", "old0"]  # though these do not grow


def test_a_walk_over_many_streams_lets_others_run(live_site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "PATIENCE", 0.0)
    for number in range(3 * SLICE):
        live_site.hub.channel(f"s{number}")
    walks = gevent.spawn(Survey, live_site.hub)
    turns = 0
    while not walks.ready():
        gevent.sleep(0)
        turns += 1
        if turns == 1:  # what is forgotten and made meanwhile does no harm
            live_site.hub.forget(live_site.hub.channels["s599"])
            live_site.hub.channel("new")
    assert turns > 3
    assert len(walks.get().rows(1.0)) == BUSIEST


@pytest.mark.parametrize(
    ("counts", "share", "bound"),
    [
        ([], 0.5, None),
        ([1], 0.5, 0.001),
        ([1], 0.95, 0.001),
        ([5, 5], 0.5, 0.001),
        ([5, 5], 0.51, 0.005),
        ([19, 0, 1], 0.95, 0.001),
        ([18, 0, 2], 0.95, 0.01),
        ([0] * len(DELAY_BOUNDS) + [1], 0.5, 5.0),
    ],
)
def test_a_quantile_is_the_bound_of_its_bucket(counts: list[int], share: float, bound: float | None) -> None:
    assert quantile(counts + [0] * (len(DELAY_BOUNDS) + 1 - len(counts)), share) == bound


def test_a_process_knows_when_it_was_started() -> None:
    with open("/proc/uptime") as file:
        assert 0 < process_start() <= float(file.read().split()[0])


# -- the stream of samples


def test_a_page_that_is_opened_later_gets_the_last_minutes_at_once(inspected: LiveSite) -> None:
    first = watch(inspected)
    first.wait(lambda: len(events(first)) >= 3, "three samples")
    late = watch(inspected)
    late.wait(lambda: len(events(late)) >= 3, "history")
    assert events(late)[:3] == events(first)[:3]
    assert late.named("subscribed")[0]["head"] >= 3  # it was there already


def test_a_page_that_comes_back_goes_on_where_it_was(inspected: LiveSite) -> None:
    fold = Fold(INSPECT)
    first = watch(inspected, fold)
    first.wait(lambda: len(events(first)) >= 2, "two samples")
    first.leave()
    seq = events(first)[-1]["seq"]
    again = watch(inspected, fold)
    again.wait(lambda: events(again), "another sample")
    assert again.named("reset") == []
    assert events(again)[0]["seq"] == seq + 1


def test_samples_are_taken_only_while_somebody_watches(inspected: LiveSite) -> None:
    assert settled(inspected)
    first, second = watch(inspected), watch(inspected)
    first.wait(lambda: events(first), "a sample")
    first.leave()
    count = len(events(second))
    second.wait(lambda: len(events(second)) > count + 2 * inspection.LINGER, "samples for the one that is left")
    second.leave()
    until(lambda: settled(inspected), "the sampler to stop")
    head = inspected.hub.internal[INSPECT].stream.head
    again = watch(inspected)
    again.wait(lambda: len(events(again)) > head, "new samples")
    assert not settled(inspected)


def test_a_sample_that_fails_does_not_end_the_next(
    inspected: LiveSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Any] = []

    def fail(counts: list[int], share: float) -> None:
        failed.append(share)
        raise ArithmeticError

    answer = watch(inspected)
    answer.wait(lambda: events(answer), "a sample")
    with monkeypatch.context() as patch:
        patch.setattr(inspection, "quantile", fail)
        until(lambda: len(failed) > 1, "samples to fail")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ArithmeticError] * len(failed)
    head = inspected.hub.internal[INSPECT].stream.head
    answer.wait(lambda: len(events(answer)) > head, "another sample")


def test_a_head_request_samples_nothing(inspected: LiveSite) -> None:
    answer = inspected.ask(DATA, "HEAD")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert inspected.hub.internal == {}
    assert settled(inspected)


def test_its_log_keeps_five_minutes(inspected: LiveSite) -> None:
    inspected.configure(inspect=True, log_events=5, log_bytes=10)  # those of the app's streams
    stream = inspected.hub.channel(INSPECT).stream
    for _ in range(MAX_SAMPLES + 50):
        stream.apply(Event("inspect.sample", b"{}"))
    assert (stream.head, stream.floor, len(stream.log.entries)) == (350, 50, 300)
    for _ in range(30):
        stream.apply(Event("inspect.sample", b" " * 1_000_000))
    assert stream.log.size <= 4_194_304


def test_it_is_forgotten_like_any_stream_that_nobody_reads(
    inspected: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    inspected.configure(inspect=True, idle_ttl=0.1)
    answer = watch(inspected)
    answer.wait(lambda: events(answer), "a sample")
    answer.leave()
    until(lambda: not inspected.hub.internal, "the stream to be forgotten")
    assert inspected.hub.counts.forgotten == 0
    again = watch(inspected)
    again.wait(lambda: events(again), "a sample of a new one")
    assert caplog.records == []


def test_who_leaves_before_the_first_sample_leaves_nothing_behind(inspected: LiveSite) -> None:
    inspected.configure(inspect=True, max_streams=1)
    watch(inspected).leave()
    until(inspected.is_idle, "the client to be gone")
    assert inspected.hub.blank == {}
    inspected.stream("one").publish("note")
    assert inspected.get("/streams/two").status == 404


# -- what it must not touch


def numbers(site: LiveSite) -> dict[str, float]:
    """What /metrics says about streams and their readers. Of all apps of this process."""
    text = site.get("/metrics").body.decode()
    lines = re.findall(r"^(headrace_(?:streams|subscribers)\{.*\}) (\S+)$", text, re.MULTILINE)
    assert len(lines) == 4
    return {name: float(value) for name, value in lines}


def test_it_is_no_stream_of_the_app(inspected: LiveSite) -> None:
    inspected.configure(inspect=True, max_streams=1)
    before = numbers(inspected)
    answer = watch(inspected)
    sample = see(answer, lambda sample: sample["connections"]["sse"] == 1)
    assert sample["streams"] == {"all": 0, "streaming": 0}
    assert sample["subscribers"] == {"full": 0, "background": 0}
    assert sample["busiest"] == []
    assert sample["rates"]["events"] == 0
    assert numbers(inspected) == before
    assert inspected.hub.channels == {}
    assert inspected.hub.counts.events == 0
    # It takes no place, and needs none.
    inspected.stream("one").publish("note")
    assert numbers(inspected) != before
    assert inspected.get("/streams/two/events").status == 503
    again = watch(inspected)
    again.wait(lambda: events(again), "samples beside the only stream")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/streams/inspect/records"),
        ("POST", "/streams/inspect/records"),
        ("POST", "/streams/inspect/cancel"),
        ("GET", "/streams/activity?sid=inspect"),
        ("POST", "/streams/inspect"),
        ("POST", "/streams/inspect/events"),
    ],
)
def test_no_other_route_reaches_it(inspected: LiveSite, method: str, path: str) -> None:
    inspected.configure(inspect=True, ingest_token="a-long-secret")
    answer = watch(inspected)
    answer.wait(lambda: events(answer), "a sample")
    headers = {"Authorization": "Bearer a-long-secret"}
    body = b'{"op":"event","k":"note"}\n' if method == "POST" else b""
    refused = inspected.ask(path, method, headers, body).read()
    assert refused.status == (405 if path in (PAGE, DATA) else 400)
    assert {event["k"] for event in events(answer)} == {"inspect.sample"}


@pytest.mark.parametrize(
    "frame",
    [
        {"t": "subscribe", "sid": "inspect"},
        {"t": "subscribe", "sid": "inspect", "mode": "activity"},
        {"t": "unsubscribe", "sid": "inspect"},
        {"t": "focus", "sids": ["inspect"]},
        {"t": "cancel", "sid": "inspect"},
        {"t": "publish", "sid": "inspect", "k": "say", "d": 1, "id": 7},
    ],
)
def test_no_frame_reaches_it(inspected: LiveSite, frame: Frame) -> None:
    called: list[Any] = []
    inspected.streaming.on_publish("say")(lambda sid, data: called.append(sid))
    inspected.streaming.authorizer(lambda action, sid: True)
    answer = watch(inspected)
    answer.wait(lambda: events(answer), "a sample")
    websocket = inspected.websocket()
    websocket.say(frame)
    assert websocket.answer("error")["code"] in ("bad_frame", "unknown_stream")
    websocket.settle()
    assert websocket.named("subscribed") == []
    assert called == []


def test_an_app_can_not_write_it(inspected: LiveSite) -> None:
    with pytest.raises(ValueError, match="can't name a stream"):
        inspected.stream(INSPECT)


def test_a_drain_sends_those_who_watch_away_at_once(inspected: LiveSite) -> None:
    answer = watch(inspected)
    answer.wait(lambda: events(answer), "a sample")
    gevent.spawn(drain, inspected.hub, 60.0)
    answer.wait(lambda: answer.named("bye"), "bye")
    until(lambda: settled(inspected), "the sampler to stop")
