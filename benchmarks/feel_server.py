"""The server of `feel`, a process of its own: `python -m benchmarks.feel_server`. It prints its port.

The real app with the demo's blueprint, a naive client's page beside it, and routes that write what is measured. The
demo's agents stay asleep, so that what runs is what the tables say. It ends when its standard input does.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from time import monotonic
from typing import Any

import gevent
from flask import Blueprint, Flask, Response, make_response, render_template, request
from gevent.socket import wait_read

from app import create_app, streaming
from benchmarks import live_server
from examples.demo import demo, stress, words
from examples.demo.agents import WRITERS
from examples.start import start
from streaming import Message
from streaming.server import StreamingServer, tune_garbage_collection

feel = Blueprint("feel", __name__, url_prefix="/feel", static_folder="feel", static_url_path="/static")
OURS = 'src="/demo/static/demo.js"'
SHORT = 300  # characters of a message of the history
PIECE = 16_384  # characters that are appended at once
waiting: dict[str, Message] = {}


@feel.get("/naive")
def naive() -> Response:
    """The demo's page with a naive client in place of the demo's script; all else is the same, the styles too."""
    page = render_template("demo.html", writers=WRITERS, stress=stress, max_question=2_000)
    assert OURS in page
    response = make_response(page.replace(OURS, 'src="/feel/static/naive.js"'))
    response.headers["Content-Security-Policy"] = "default-src 'self'"
    return response


@feel.post("/begin")
def begin() -> dict[str, Any]:
    """Write `history` short messages into stream `sid`, and begin one with `characters` of text."""
    body = request.json
    assert body is not None
    stream, random = streaming.stream(body["sid"]), Random(1)
    for _ in range(body.get("history", 0)):
        with stream.message() as message:
            message.append(_text(SHORT, random))
    message = waiting[body["sid"]] = stream.message()
    text = _text(body.get("characters", 0), random)
    for at in range(0, len(text), PIECE):
        message.append(text[at : at + PIECE])
    return {"characters": len(text)}


@feel.post("/speak")
def speak() -> tuple[dict[str, Any], int]:
    """Go on with what was begun in stream `sid`: `tokens` of them, at `rate` a second; end it if there is no `more`."""
    body = request.json
    assert body is not None
    live_server.produced.clear()
    streaming.spawn(_speak, waiting[body["sid"]], body["rate"], body["tokens"], "more" in body)
    return {}, 202


def _speak(message: Message, rate: float, tokens: int, has_more: bool) -> None:
    began = monotonic()
    for number, token in enumerate(islice(words.ramble(Random(2)), tokens)):
        wait = began + number / rate - monotonic()
        if wait > 0.0005:  # what the hub's timers can tell from nothing
            gevent.sleep(wait)
        message.append(token)
    if not has_more:
        message.end()
    live_server.produced.append(monotonic() - began)


def _text(size: int, random: Random) -> str:
    pieces: list[str] = []
    left = size
    for token in words.ramble(random) if size else ():
        pieces.append(token)
        left -= len(token)
        if left <= 0:
            break
    return "".join(pieces)[:size]


def make_app() -> Flask:
    """The app."""
    app = create_app(blueprints=[start, demo, live_server.routes, feel])
    app.view_functions["demo.start_agents"] = lambda: ({"started": [], "stress": stress.is_on()}, 202)
    return app


if __name__ == "__main__":
    server = StreamingServer(("127.0.0.1", 0), make_app(), log=None)
    server.start()
    tune_garbage_collection()
    print(server.server_port, flush=True)
    wait_read(0)  # its end
