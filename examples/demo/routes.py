"""The page, and what its script asks for.

The streams are the same for everybody who opens it. Nothing here runs for ever: an agent works a few rounds, and what
is written is cancelled when nobody watches.
"""

from __future__ import annotations

from random import Random
from typing import Any

from flask import Blueprint, Response, make_response, render_template, request

from app import streaming

from . import stress, words
from .agents import CHAT, WRITERS, start_message, work, write
from .crew import crew

demo = Blueprint("demo", __name__, template_folder="templates", static_folder="static", static_url_path="/demo/static")

MAX_RUNNING = 3  # answers of one stream at a time
MAX_QUESTION = 2_000  # characters
#: Scripts, styles and the WebSocket come from here, and nothing from elsewhere.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@demo.get("/demo")
def show() -> Response:
    """The page. Its script starts the agents once it is connected."""
    page = render_template("demo.html", writers=WRITERS, stress=stress, max_question=MAX_QUESTION)
    response = make_response(page)
    response.headers["Content-Security-Policy"] = POLICY
    return response


@demo.post("/demo")
def start_agents() -> tuple[dict[str, Any], int]:
    """Start the agents that are not at work; the chat says its welcome once."""
    request.get_json()  # as JSON, which a page of another site can't send unasked
    if not crew().knows(CHAT):
        crew().start(CHAT, write, start_message(CHAT, "Welcome"), WRITERS[CHAT].work(Random()))
    resting = [sid for sid in WRITERS if sid != CHAT and not crew().running(sid)]
    for sid in resting:
        crew().start(sid, work)
    return {"started": resting, "stress": stress.is_on()}, 202


@demo.post("/demo/stress")
def switch_stress() -> tuple[dict[str, Any], int]:
    """Switch the streams that never rest on or off."""
    members = request.get_json()
    on = members.get("on") if isinstance(members, dict) else None
    if not isinstance(on, bool):
        return {"error": "It is on or off."}, 400
    stress.switch(on)
    return {"stress": on}, 202


@demo.post("/demo/<sid>")
def ask(sid: str) -> tuple[dict[str, Any], int]:
    """Put a question into a stream, and begin to answer it there."""
    members = request.get_json()
    text = members.get("text") if isinstance(members, dict) else None
    if sid not in WRITERS:
        return {"error": "Nobody answers questions there."}, 404
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_QUESTION:
        return {"error": f"A question has 1 to {MAX_QUESTION:,} characters."}, 400
    if len(crew().running(sid)) >= MAX_RUNNING:
        return {"error": "It has enough to answer. Wait, or press Stop."}, 429
    with streaming.stream(sid).message(role="user") as question:
        question.append(text)
    answer = start_message(sid, "Answer")
    crew().start(sid, write, answer, words.answer(text, Random()))
    return {"mid": answer.mid}, 202
