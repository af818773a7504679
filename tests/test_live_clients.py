"""Clients that others wrote: a WebSocket library, and an EventSource one that comes back with the id it remembers."""

from __future__ import annotations

import json
from typing import Any

import gevent
import httpx
import websocket
from httpx_sse import connect_sse

from streaming.live.producer import Message
from tests.folding import Fold
from tests.live import LiveSite
from tests.parts import LIMIT, until

WORDS = [f"word{number} \U0001f30d" for number in range(200)]


def write(message: Message) -> None:
    """An answer in small pieces, over some time."""
    with message:
        for word in WORDS:
            message.append(word)
            gevent.sleep(0.002)


def answer_of(snapshot: dict[str, Any]) -> str:
    """The text of the only part."""
    text: str = snapshot["messages"][0]["parts"][0]["s"]
    return text


def test_a_websocket_library_follows_a_stream(live_site: LiveSite) -> None:
    connection = websocket.create_connection(
        f"ws://127.0.0.1:{live_site.port}/streams/ws", timeout=LIMIT, subprotocols=["other", "headrace.v1"]
    )
    assert connection.subprotocol == "headrace.v1"
    assert json.loads(connection.recv())[0]["t"] == "hello"
    fold = Fold("chat")
    connection.send(json.dumps({"t": "subscribe", "sid": "chat", "cursor": fold.subscribe()}))
    writer = gevent.spawn(write, live_site.message("chat"))
    while not any(message.status == "complete" for message in fold.messages.values()):
        fold.read_message(connection.recv())
    writer.get()
    snapshot = httpx.get(f"http://127.0.0.1:{live_site.port}/streams/chat").json()
    fold.assert_holds(snapshot)
    assert answer_of(snapshot) == "".join(WORDS)
    connection.ping("are you there")
    assert connection.recv_data_frame(control_frame=True)[0] == websocket.ABNF.OPCODE_PONG
    connection.close(1000)
    until(lambda: not live_site.hub.connections, "the connection to be gone")


def test_an_eventsource_library_comes_back_with_its_last_id_and_misses_nothing(live_site: LiveSite) -> None:
    """It leaves after every few events, and stops at 204."""
    fold = Fold("chat", strict=False)
    writer = gevent.spawn(write, live_site.message("chat"))
    last_id, visits = "", 0
    url = f"http://127.0.0.1:{live_site.port}/streams/chat/events?until=idle"
    with httpx.Client(timeout=LIMIT) as client:
        while True:
            visits += 1
            with connect_sse(client, "GET", url, headers={"Last-Event-ID": last_id} if last_id else {}) as source:
                if source.response.status_code == 204:
                    break
                fold.subscribe()
                for count, event in enumerate(source.iter_sse()):
                    assert event.event == json.loads(event.data)["t"]
                    fold.apply(json.loads(event.data))
                    last_id = event.id
                    if count == 6:
                        break
        snapshot = client.get(f"http://127.0.0.1:{live_site.port}/streams/chat").json()
    writer.get()
    assert visits > 3
    fold.assert_holds(snapshot)
    assert answer_of(snapshot) == "".join(WORDS)
