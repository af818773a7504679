"""The server of the browser tests, a process of its own: a page that watches streams, producers that do as they are
told, and the examples, in a hurry.

    PORT=8001 python -m tests.browser.served

It says `ready`, and serves as soon as a line comes in: so a process can be ready before the one ends whose place it
takes. It ends with its standard input, and so with the process of the tests.
"""

from __future__ import annotations

import app

# isort: split
# `app` is first, since it lets gevent patch the standard library.

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gevent.os
from flask import Blueprint, Response, make_response, render_template, request

from app import streaming
from examples import report as sales
from examples.__main__ import HERE, backend
from examples.demo import demo, words
from examples.start import start
from tests.browser.counting import endless

sales.PAUSE = 0.12
words.SLOWNESS = 0.25

FOLDER = Path(__file__).parent
#: Nothing inline, nothing from elsewhere, and no text that becomes HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

watch = Blueprint(
    "watch", __name__, template_folder="templates", static_folder="static", static_url_path="/watch/static"
)
counting: dict[str, dict[str, Any]] = {}  # by stream: the state of the producer that counts there


@watch.get("/watch")
def show() -> Response:
    """A page that shows the streams of its query; what stands behind # is in focus."""
    response = make_response(render_template("watch.html", sids=request.args.getlist("sid")))
    response.headers["Content-Security-Policy"] = POLICY
    return response


@watch.post("/write/<sid>")
def begin_to_write(sid: str) -> dict[str, Any]:
    """Write a message of known pieces, each `[kind, text]`; `pause` seconds before each. `title` is that of all."""
    title, pieces, pause = (request.json[name] for name in ("title", "pieces", "pause"))
    message = streaming.stream(sid).message(meta={"title": title})
    streaming.spawn(write, message, title, pieces, pause)
    return {"mid": message.mid}


def write(message: Any, title: str, pieces: list[tuple[str, str]], pause: float) -> None:
    """A new part for each run of a kind; one that is `kind=` replaces the text of the part before it."""
    with message:
        part: Any = None
        kind: str | None = None
        for next_kind, text in pieces:
            time.sleep(pause)
            if next_kind.endswith("="):
                part.end(text)
                part = kind = None
                continue
            if next_kind != kind:
                if part is not None:
                    part.end()
                part, kind = message.part(next_kind, {"title": title, "tool": title}), next_kind
            part.append(text)


@watch.post("/count/<sid>")
def begin_to_count(sid: str) -> dict[str, Any]:
    """Count in a new message, until it is finished or cancelled; `pause` seconds before each piece."""
    state = counting[sid] = {"goes_on": True, "steps": 0}
    message = streaming.stream(sid).message(meta={"title": "Counted"})
    state["greenlet"] = streaming.spawn(count, message, state, request.json["pause"])
    return {"mid": message.mid}


def count(message: Any, state: dict[str, Any], pause: float) -> None:
    """See `counting.py`."""
    parts: dict[str, Any] = {}
    with message:
        for pieces in endless():
            for kind, text in pieces:
                time.sleep(pause)
                if kind not in parts:
                    parts[kind] = message.part(kind)
                parts[kind].append(text)
            state["steps"] += 1
            if not state["goes_on"]:
                break


@watch.post("/finish/<sid>")
def finish(sid: str) -> dict[str, Any]:
    """End the counting at the end of a step, and say how many there were."""
    state = counting[sid]
    state["goes_on"] = False
    state["greenlet"].join()
    return {"steps": state["steps"]}


def end_with_input() -> None:
    """End as with SIGTERM when nobody is there any more who could send it."""
    gevent.os.make_nonblocking(0)
    while gevent.os.nb_read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until SIGTERM."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    gevent.spawn(end_with_input)
    os.environ.setdefault("STREAMING_TEMPLATE_FOLDER", str(HERE / "templates"))
    os.environ.setdefault("STREAMING_DRAIN_TIMEOUT", "0.5")
    with backend() as url:
        os.environ["STREAMING_BACKEND_URL"] = url
        app.main(blueprints=[start, sales.report, demo, watch])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
