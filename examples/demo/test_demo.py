"""How a user tests live streams: with the Flask test client, which reads a stream until it is idle; no server."""

from __future__ import annotations

import itertools
import json
import posixpath
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from examples.demo import agents, demo, stress, words
from examples.demo.agents import CHAT, WRITERS
from examples.demo.crew import crew
from examples.demo.routes import MAX_QUESTION, MAX_RUNNING
from examples.demo.words import ModelError, Passage
from examples.start import start

STATIC = Path(__file__).parent / "static"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    """An app with the page; nothing that is said takes time, and nothing runs on after the test."""
    monkeypatch.setattr(words, "SLOWNESS", 0)
    monkeypatch.setattr(agents, "PAUSE", 0)
    # Heartbeats that often make the server look for unwatched messages as often.
    app = create_app({"TESTING": True, "STREAMING_PING_INTERVAL": 0.1}, blueprints=[start, demo])
    yield app
    gevent.killall(at_work(app))


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A client of it."""
    return app.test_client()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked, the answer never ends."""

    class Endless(Passage):
        def speak(self, random: Random) -> Iterator[tuple[float, str]]:
            while True:
                yield 0.001, "more "

    monkeypatch.setattr(words, "answer", lambda *_: [Endless("text", "")])


def at_work(app: Flask, sids: Iterable[str] = (*WRITERS, *stress.SIDS)) -> list[gevent.Greenlet]:
    """Who writes in the background."""
    with app.app_context():
        return [greenlet for sid in sids for greenlet in crew().running(sid)]


def ask(client: FlaskClient, text: str, sid: str = CHAT) -> str:
    """Ask something; returns the answer's message id."""
    response = client.post(f"/demo/{sid}", json={"text": text})
    assert response.status_code == 202
    return str(content(response)["mid"])


def start_agents(client: FlaskClient) -> list[str]:
    """Start the agents, as the page does; returns which were not at work."""
    started: list[str] = content(client.post("/demo", json={}))["started"]
    return started


def snapshot(client: FlaskClient, sid: str = CHAT) -> dict[str, Any]:
    """What a stream holds, once it is idle."""
    assert frames(client, sid)[-1]["t"] == "done"
    found: dict[str, Any] = content(client.get(f"/streams/{sid}"))
    return found


def frames(client: FlaskClient, sid: str = CHAT) -> list[dict[str, Any]]:
    """What a reader of the stream gets until it is idle."""
    return [json.loads(line) for line in client.get(f"/streams/{sid}/records?until=idle").text.splitlines()]


def content(response: Any) -> Any:
    """The JSON of a response."""
    return json.loads(response.text)


def read(client: FlaskClient, sid: str = CHAT) -> list[dict[str, Any]]:
    """The messages of a stream, once it is idle."""
    messages: list[dict[str, Any]] = snapshot(client, sid)["messages"]
    return messages


def said(message: dict[str, Any]) -> list[tuple[str, str]]:
    """Kind and text of each part."""
    return [(part["kind"], part["s"]) for part in message["parts"]]


def test_the_page_names_the_streams_and_needs_nothing_inline(client: FlaskClient) -> None:
    """It works under a policy that allows no inline script or style, and opening it starts nothing."""
    response = client.get("/demo")
    assert response.status_code == 200
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert re.findall(r'data-sid="([\w-]+)"', response.text) == [*WRITERS, *stress.SIDS]
    assert re.findall(r"<script[^>]*>", response.text) == ['<script type="module" src="/demo/static/demo.js">']
    assert not re.search(r"<style|\sstyle=|\son\w+=", response.text)
    for path in re.findall(r'(?:src|href)="(/(?:examples|demo)/[^"]+)"', response.text):
        with client.get(path) as found:
            assert found.status_code == 200
    assert client.get("/streams/scout").status_code == 404


def test_the_scripts_put_what_they_get_into_the_page_as_text_only() -> None:
    scripts = [path.read_text() for path in STATIC.glob("*.js")]
    assert len(scripts) == 6
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|DOMParser|document\.write|eval", "".join(scripts))


def test_the_scripts_find_what_they_import(client: FlaskClient) -> None:
    """By the address in the address bar, wherever the app is mounted."""
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'^import .* from "([^"]+)";$', path.read_text(), re.MULTILINE):
            with client.get(posixpath.normpath(f"/demo/static/{name}")) as found:
                assert found.status_code == 200, name


def test_a_question_is_answered_in_its_stream(client: FlaskClient) -> None:
    """Two messages: what was asked, then the answer in parts, with the emoji that the model cut in half."""
    mid = ask(client, "Some Python <code>, please")
    question, answer = read(client)
    assert (question["role"], said(question)) == ("user", [("text", "Some Python <code>, please")])
    assert (answer["mid"], answer["role"], answer["status"]) == (mid, "assistant", "complete")
    kinds = [kind for kind, _ in said(answer)]
    assert kinds == ["thinking", "text", "code", "tool_args", "tool_output", "text"]
    ask(client, "A long answer")
    assert "🌊" in said(read(client)[-1])[3][1]


def test_a_model_that_fails_ends_its_message_with_the_reason(client: FlaskClient) -> None:
    """What it had said stays, and the next question is answered."""
    ask(client, "Show me an error")
    ask(client, "What is the water level?")
    _, failed, _, answer = read(client)
    assert (failed["status"], answer["status"]) == ("error", "complete")
    assert said(failed)[-1][1].startswith("A headrace is the canal")
    ends = [frame for frame in frames(client) if frame.get("k") == "message.end"]
    assert next(frame["d"]["error"] for frame in ends if frame["d"]["status"] == "error") in words.FAILURES


@pytest.mark.parametrize("body", [{}, {"text": " "}, {"text": 1}, {"text": "?" * (MAX_QUESTION + 1)}, ["text"], None])
def test_what_is_no_question_is_refused(client: FlaskClient, body: Any) -> None:
    response = client.post(f"/demo/{CHAT}", data=json.dumps(body), content_type="application/json")
    assert (response.status_code, list(content(response))) == (400, ["error"])


def test_only_json_and_only_the_streams_of_the_page_are_accepted(client: FlaskClient) -> None:
    """A form of another site can start nothing, and nobody can make streams."""
    assert client.post("/demo").status_code == 415
    assert client.post(f"/demo/{CHAT}", data={"text": "Hello"}).status_code == 415
    assert client.post("/demo/elsewhere", json={"text": "Hello"}).status_code == 404


@pytest.mark.usefixtures("endless")
def test_stop_ends_the_answers_and_makes_room_for_others(app: Flask, client: FlaskClient) -> None:
    """One stream answers a few questions at a time, and Stop ends all of them."""
    mids = [ask(client, "?") for _ in range(MAX_RUNNING)]
    assert client.post(f"/demo/{CHAT}", json={"text": "?"}).status_code == 429
    ask(client, "?", sid="scout")
    response = client.post(f"/streams/{CHAT}/cancel")
    assert (response.status_code, content(response)) == (202, {"cancelled": mids})
    assert [message["status"] for message in read(client) if message["mid"] in mids] == ["cancelled"] * MAX_RUNNING
    gevent.joinall(at_work(app, [CHAT]), timeout=5)
    assert len(at_work(app)) == 1
    ask(client, "?")


@pytest.mark.usefixtures("endless")
def test_an_answer_that_nobody_watches_is_given_up(
    app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "PATIENCE", 0.05)
    ask(client, "?")
    gevent.joinall(at_work(app), timeout=5)
    assert read(client)[-1]["status"] == "cancelled"


def test_agents_work_some_rounds_and_rest(app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are started once, however many pages are open, and again when they rest; the chat says welcome once."""
    monkeypatch.setattr(agents, "ROUNDS", 2)
    sids = [sid for sid in WRITERS if sid != CHAT]
    assert [start_agents(client), start_agents(client)] == [sids, []]
    gevent.joinall(at_work(app), timeout=10)
    assert not at_work(app)
    for sid in sids:
        assert [message["meta"]["title"] for message in read(client, sid)] == ["Round 1", "Round 2"]
        assert snapshot(client, sid)["events"][-1]["k"] == "agent.rests"
    assert start_agents(client) == sids
    assert [message["meta"]["title"] for message in read(client)] == ["Welcome"]


def switch_stress(client: FlaskClient, on: bool) -> None:
    """Move the switch."""
    response = client.post("/demo/stress", json={"on": on})
    assert (response.status_code, content(response)) == (202, {"stress": on})


def test_the_stress_goes_on_until_it_is_switched_off(
    app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen streams write one message after the other; a page that opens is told that they do."""
    monkeypatch.setattr(stress, "RATE", 2_000)
    monkeypatch.setattr(stress, "LENGTH", 4)
    switch_stress(client, True)
    switch_stress(client, True)
    assert len(at_work(app)) == len(stress.SIDS)
    assert content(client.post("/demo", json={}))["stress"] is True
    gevent.sleep(0.05)
    switch_stress(client, False)
    gevent.joinall(at_work(app, stress.SIDS), timeout=5)
    for sid in stress.SIDS:
        statuses = [message["status"] for message in read(client, sid)]
        assert len(statuses) > 1
        assert set(statuses[:-1]) == {"complete"}
        assert statuses[-1] == "cancelled"
    assert content(client.post("/demo", json={}))["stress"] is False


def test_the_stress_ends_when_nobody_watches(app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "PATIENCE", 0.05)
    switch_stress(client, True)
    gevent.joinall(at_work(app), timeout=5)
    assert content(client.post("/demo", json={}))["stress"] is False


@pytest.mark.parametrize("body", [{}, {"on": "yes"}, {"on": 1}, [True], None])
def test_what_is_no_position_of_the_switch_is_refused(client: FlaskClient, body: Any) -> None:
    response = client.post("/demo/stress", data=json.dumps(body), content_type="application/json")
    assert (response.status_code, list(content(response))) == (400, ["error"])


def test_the_stress_keeps_its_rate(app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was held up makes up for it, since each token has its time."""
    monkeypatch.setattr(words, "ramble", lambda _: itertools.repeat("x"))
    monkeypatch.setattr(stress, "SIDS", ["stress-1"])
    started = time.monotonic()
    switch_stress(client, True)
    gevent.sleep(0.05)
    hold_up(0.2)
    gevent.sleep(0.05)
    expected = (time.monotonic() - started) * stress.RATE
    chars = content(client.get("/streams/stress-1"))["messages"][0]["parts"][0]["s"]
    assert 0.5 * expected < len(chars) <= expected + 2


def hold_up(seconds: float) -> None:
    """Let nobody run for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_the_model_says_what_it_was_given_in_small_pieces() -> None:
    """Put together again it is the same text, and the same seed says it in the same pieces."""
    for passage in words.welcome(Random(1)) + words.write_report(Random(1)):
        pieces = list(passage.speak(Random(2)))
        text = "".join(piece for _, piece in pieces)
        assert text.encode("utf-16", "surrogatepass").decode("utf-16") == passage.text
        assert pieces == list(passage.speak(Random(2)))
        assert all(0 <= pause < 10 for pause, _ in pieces)
        halves = [piece for _, piece in pieces if "\ud800" <= piece[-1] <= "\udbff"]
        assert len(halves) == sum(letter > "\uffff" for letter in passage.text)


def test_the_critic_fails_now_and_then() -> None:
    """Some reviews break off in the middle, and some do not."""

    def fails(seed: int) -> bool:
        try:
            for passage in words.review(Random(seed)):
                list(passage.speak(Random(seed)))
        except ModelError:
            return True
        return False

    assert {fails(seed) for seed in range(20)} == {True, False}
