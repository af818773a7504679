"""The server of live benchmarks, a process of its own: `python -m benchmarks.live_server`. It prints its port.

The product as people run it, `create_app` on `StreamingServer` with settings from the environment, and a few routes
that make it produce and tell what that cost. It ends when its standard input does.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import gevent
from flask import Blueprint, Flask, request
from gevent.socket import wait_read

from app import create_app, streaming
from benchmarks.measure import trim_memory
from streaming.live.hub import Hub
from streaming.live.sockets import SocketConnection
from streaming.server import StreamingServer, raise_descriptor_limit, tune_garbage_collection
from streaming.state import current_state

TOKEN = "word "  # five characters, as readers.py expects
FIFTH = " é→😀"  # of a numbered token; in UTF-8 they have one to four bytes
routes = Blueprint("bench", __name__, url_prefix="/bench")


def hub() -> Hub:
    """The live hub of this process."""
    return current_state().of_process(Hub)


def numbered(number: int) -> str:
    """A token that no other is like, up to 10,000 of them; five characters too."""
    return f"{number:04}{FIFTH[number % len(FIFTH)]}"


def produce(sid: str, rate: float, tokens: int, turns: int, is_numbered: bool, done: list[float]) -> None:
    """Append tokens at fixed times, as a model would: late ones follow at once. Notes the seconds of each turn."""
    for turn in range(turns):
        began = monotonic()
        with streaming.stream(sid).message(meta={"began": began, "rate": rate}) as message:
            for number in range(tokens):
                wait = began + number / rate - monotonic()
                if wait > 0:
                    gevent.sleep(wait)
                message.append(numbered(turn * tokens + number) if is_numbered else TOKEN)
        done.append(monotonic() - began)


produced: list[float] = []


@routes.post("/produce")
def start() -> tuple[dict[str, Any], int]:
    """Start producers: `sids`, `rate` a second, `tokens` a turn, `turns`; spread over one interval of a token.

    With `numbered` each token of a stream is another one.
    """
    body = request.json
    assert body is not None
    produced.clear()
    for sid in body["sids"]:
        gevent.sleep(1 / body["rate"] / len(body["sids"]))
        turns, is_numbered = body.get("turns", 1), body.get("numbered", False)
        streaming.spawn(produce, sid, body["rate"], body["tokens"], turns, is_numbered, produced)
    return {}, 202


@routes.get("/usage")
def usage() -> dict[str, Any]:
    """What the process has used and counted so far."""
    counts = hub().counts
    return {
        "cpu": process_time(),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "blocks": sys.getallocatedblocks(),
        "connections": len(hub().connections),
        "streams": len(hub().channels),
        "producing": len(hub().producers),
        "turns": produced,
        "messages": counts.messages,
        "bytes": counts.bytes,
        "tails": counts.tails,
        "flushes": counts.flushes,
    }


@routes.post("/bare")
def bare() -> dict[str, Any]:
    """Send the same bytes to each client in a bare loop, `rounds` times, `interval` seconds apart. Tells its CPU.

    The bytes are a WebSocket message or an HTTP chunk, so that the clients can go on.
    """
    body = request.json
    assert body is not None
    data = body["data"].encode("latin-1")
    sockets = [one._socket for one in hub().connections if isinstance(one, SocketConnection)]
    cpu, began = process_time(), monotonic()
    for number in range(body["rounds"]):
        gevent.sleep(max(0.0, began + number * body["interval"] - monotonic()))
        for sock in sockets:
            sock.send(data)
    return {"cpu": process_time() - cpu, "messages": len(sockets) * body["rounds"], "seconds": monotonic() - began}


@routes.post("/collect")
def collect() -> dict[str, Any]:
    """Collect garbage, so that memory can be read; with `trim` the C library gives back what it holds, too."""
    gc.collect()
    if (request.get_json(silent=True) or {}).get("trim"):
        trim_memory()
    return {}


@routes.get("/hello")
def hello() -> str:
    """A small answer of an ordinary view, for bystanders."""
    return "hello\n"


def make_app() -> Flask:
    """The app with these routes."""
    return create_app(blueprints=[routes])


if __name__ == "__main__":
    raise_descriptor_limit()
    server = StreamingServer(("127.0.0.1", 0), make_app(), log=None, backlog=4_096)
    server.start()
    tune_garbage_collection()
    print(server.server_port, flush=True)
    wait_read(0)  # its end
