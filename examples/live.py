"""Live streams as a user of Headrace writes them: a chat to ask, and agents that work in the background.

create_app(blueprints=[live])

The streams are the same for everybody who opens the page. Nothing here runs for ever: an agent works a few rounds, and
what it writes is cancelled when nobody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import gevent
from flask import Blueprint, Response, current_app, make_response, render_template, request

from app import streaming
from examples import words
from examples.words import ModelError, Passage
from streaming import Message

live = Blueprint("live", __name__, template_folder="templates")

ROUNDS = 6  # that an agent works, each time it is started
PAUSE = 2.5  # seconds at most, between two of them
PATIENCE = 15.0  # seconds without anybody on the page, after which an answer is given up
MAX_RUNNING = 3  # answers of one stream at a time
MAX_QUESTION = 2_000  # characters
#: Scripts, styles and the WebSocket come from here, and nothing from elsewhere.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes into a stream by itself; `work` makes up what."""

    name: str
    about: str
    work: Callable[[Random], list[Passage]]


CHAT = "chat"
WRITERS = {
    CHAT: Writer("Chat", "answers what you ask", words.welcome),
    "scout": Writer("Scout", "calls a tool to read the gauges", words.read_levels),
    "coder": Writer("Coder", "writes a function and tests it", words.write_code),
    "writer": Writer("Writer", "tells a long story", words.tell_story),
    "critic": Writer("Critic", "reads it, and often breaks off", words.review),
}


@live.get("/live")
def show() -> Response:
    """The page. Its script starts the agents once it is connected."""
    response = make_response(render_template("live.html", writers=WRITERS, max_question=MAX_QUESTION))
    response.headers["Content-Security-Policy"] = POLICY
    return response


@live.post("/live")
def start_agents() -> tuple[dict[str, Any], int]:
    """Start the agents that are not at work; the chat says its welcome once."""
    request.get_json()  # as JSON, which a page of another site can't send unasked
    started = []
    for sid, writer in WRITERS.items():
        if sid == CHAT and sid not in crews():
            start(sid, write, start_message(sid, "Welcome"), writer.work(Random()))
        elif sid != CHAT and not running(sid):
            start(sid, work, writer)
            started.append(sid)
    return {"started": started}, 202


@live.post("/live/<sid>")
def ask(sid: str) -> tuple[dict[str, Any], int]:
    """Put a question into a stream, and begin to answer it there."""
    members = request.get_json()
    text = members.get("text") if isinstance(members, dict) else None
    if sid not in WRITERS:
        return {"error": "There is no such stream."}, 404
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_QUESTION:
        return {"error": f"A question has 1 to {MAX_QUESTION:,} characters."}, 400
    if len(running(sid)) >= MAX_RUNNING:
        return {"error": "It has enough to answer. Wait, or press Stop."}, 429
    with streaming.stream(sid).message(role="user") as question:
        question.append(text)
    answer = start_message(sid, "Answer")
    start(sid, write, answer, words.answer(text, Random()))
    return {"mid": answer.mid}, 202


def work(sid: str, writer: Writer) -> None:
    """Work some rounds. `Cancelled` ends them: somebody pressed Stop, or nobody watches."""
    random = Random()
    for number in range(1, ROUNDS + 1):
        time.sleep(random.uniform(0, PAUSE))
        write(sid, start_message(sid, f"Round {number}"), writer.work(random))
    # Urgent, so that those who only watch the stream's activity hear of it.
    streaming.stream(sid).publish("agent.rests", {"text": f"{ROUNDS} rounds are done"}, urgent=True)


def start_message(sid: str, title: str) -> Message:
    """Begin an answer, or a round of work."""
    return streaming.stream(sid).message(meta={"title": title}, cancel_unwatched_after=PATIENCE)


def write(sid: str, message: Message, passages: list[Passage]) -> None:
    """Put what the model says into a message, as it comes. Waiting keeps nobody else: gevent has patched `sleep`."""
    random = Random()
    letters = 0
    with message:
        try:
            for passage in passages:
                part = message.part(passage.kind, passage.meta)
                for pause, text in passage.speak(random):
                    time.sleep(pause)
                    part.append(text)
                part.end()
                letters += len(passage.text)
                if passage.kind == "tool_output":
                    result = {"mid": message.mid, "ok": True, "text": f"{passage.meta['tool']} has answered"}
                    streaming.stream(sid).publish("tool.result", result)
            message.usage = {"letters": letters}
        except ModelError as error:
            message.end("error", str(error))


def start(sid: str, function: Callable[..., None], *args: Any) -> None:
    """Run a function that writes into a stream, in a greenlet of its own."""
    running(sid).append(streaming.spawn(function, sid, *args))


def running(sid: str) -> list[gevent.Greenlet]:
    """The greenlets that write into a stream."""
    crew = crews()[sid] = [greenlet for greenlet in crews().get(sid, []) if not greenlet.ready()]
    return crew


def crews() -> dict[str, list[gevent.Greenlet]]:
    """Who was ever started, in this app, by stream."""
    found: dict[str, list[gevent.Greenlet]] = current_app.extensions.setdefault("examples.live", {})
    return found
