"""The live path in servers as people start them, with a producer outside the process."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.folding import Fold
from tests.live import SocketAnswer, WebSocket
from tests.parts import until
from tests.servers import SERVERS, Server

TOKEN = "a token for tests"
OURS = ["worker", "preload", "app.py"]
StartServer = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers by name; all end with the test."""
    servers: list[Server] = []

    def start_server(name: str, **settings: str) -> Server:
        servers.append(Server(SERVERS[name], tmp_path, STREAMING_INGEST_TOKEN=TOKEN.replace(" ", "-"), **settings))
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


class Ingest:
    """A producer: one POST whose body goes on until it is ended."""

    def __init__(self, server: Server, sid: str) -> None:
        self.client = server.get(
            f"/streams/{sid}/records",
            method="POST",
            headers=f"Authorization: Bearer {TOKEN.replace(' ', '-')}\r\nTransfer-Encoding: chunked\r\n",
        )

    def put(self, *records: dict[str, Any]) -> None:
        """Send records, in one HTTP chunk."""
        data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        self.client.send(b"%x\r\n%b\r\n" % (len(data), data))

    def start(self) -> Ingest:
        """Start a message with some text."""
        self.put({"op": "message.start"}, {"op": "delta", "s": "Hello"})
        return self

    def end(self) -> tuple[int, Any]:
        """End the body; status and answer."""
        self.client.send(b"0\r\n\r\n")
        return self.answer()

    def answer(self) -> tuple[int, Any]:
        """Wait for the answer."""
        return self.client.head()[0], json.loads(self.client.body().text)


def follow(server: Server, sid: str, form: str, query: str = "") -> SocketAnswer:
    fold = Fold(sid)
    fold.subscribe()
    return SocketAnswer(server.get(f"/streams/{sid}/{form}{query}"), fold)


def websocket(server: Server) -> WebSocket:
    return WebSocket(server.connect(), "/streams/ws", "")


@pytest.mark.parametrize("name", SERVERS)
def test_text_goes_from_a_producers_body_to_readers_on_every_server(name: str, start: StartServer) -> None:
    server = start(name)
    producer = Ingest(server, "chat").start() if name != "gevent" else None
    events, records = follow(server, "chat", "events"), follow(server, "chat", "records", "?until=idle")
    if producer is None:  # gunicorn's own worker hands a body over when it is whole
        producer = Ingest(server, "chat").start()
    else:
        events.wait(lambda: events.named("delta"), "the text, before the body ends")
    producer.put({"op": "delta", "s": ", world"}, {"op": "message.end"})
    assert producer.end()[0] == 200
    events.wait(lambda: any(frame["k"] == "message.end" for frame in events.named("event")), "the message's end")
    records.read()
    assert records.is_whole
    assert records.frames[-1]["t"] == "done"
    snapshot = json.loads(server.get("/streams/chat").body().text)
    assert snapshot["messages"][0]["parts"][0]["s"] == "Hello, world"
    for answer in (events, records):
        assert answer.fold is not None
        answer.fold.assert_holds(snapshot)


@pytest.mark.parametrize("name", OURS)
def test_a_websocket_works_on_every_server_of_ours(name: str, start: StartServer) -> None:
    server = start(name)
    client = websocket(server)
    fold = client.subscribed("chat")
    producer = Ingest(server, "chat").start()
    client.wait(lambda: client.named("delta"), "text")
    producer.put({"op": "message.end"})
    producer.end()
    client.wait(lambda: any(frame["k"] == "message.end" for frame in client.named("event")), "the message's end")
    fold.assert_holds(json.loads(server.get("/streams/chat").body().text))
    client.close()
    assert client.end() == (1000, "")


def test_under_gunicorns_own_worker_a_websocket_is_501_and_says_what_to_do(start: StartServer) -> None:
    from tests.live import UPGRADE

    client = start("gevent").get("/streams/ws", headers=UPGRADE)
    status, headers = client.head()
    assert (status, headers["content-type"]) == (501, "application/json")
    answer = json.loads(client.body().text)
    assert answer["error"] == "not_supported"
    assert "streaming.server.StreamingWorker" in answer["message"]


@pytest.mark.parametrize("name", ["worker", "app.py"])
def test_sigterm_sends_50_mixed_readers_away_and_ends_early(name: str, start: StartServer) -> None:
    server = start(name, STREAMING_DRAIN_TIMEOUT="8")
    producers = [Ingest(server, f"chat-{number}").start() for number in range(10)]
    answers = [follow(server, f"chat-{number % 10}", form) for number in range(15) for form in ("events", "records")]
    sockets = [websocket(server) for _ in range(20)]
    for number, client in enumerate(sockets):
        client.subscribed(f"chat-{number % 10}")
    for answer in answers:
        answer.wait(lambda answer=answer: answer.named("delta"), "text")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    for producer in producers:
        status, answer = producer.answer()
        assert (status, answer["error"], answer["accepted"]) == (503, "draining", 2)
    retries = []
    for answer in answers:
        answer.read()
        assert answer.is_whole
        assert [frame["d"]["status"] for frame in answer.named("event") if frame["k"] == "message.end"] == ["error"]
        bye = answer.frames[-1]
        assert (bye["t"], bye["reason"]) == ("bye", "restart")
        retries.append(bye["retry_ms"])
    for client in sockets:
        assert client.end() == (1012, "restart")
        assert client.frames[-1]["t"] == "bye"
        retries.append(client.frames[-1]["retry_ms"])
    assert server.process.wait(20) == 0
    assert time.monotonic() - began < 15  # gunicorn would wait 30 s for them
    assert len(set(retries)) > 25
    assert max(retries) - min(retries) > 300
    assert "Traceback" not in server.log


def test_sigterm_ends_streams_under_gunicorns_own_worker_too(start: StartServer) -> None:
    server = start("gevent")
    server.hang_up()  # it waits for idle connections
    answer = follow(server, "chat", "events")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    answer.read()
    assert answer.is_whole
    assert answer.frames[-1]["reason"] == "restart"
    assert server.process.wait(20) == 0  # though the client keeps its connection
    assert time.monotonic() - began < 15


def test_a_hostile_client_leaves_no_traceback_in_the_log(start: StartServer) -> None:
    server = start("worker")
    for junk in (b"\xff" * 50, b"\x81\x05hello", b"\x82\x80\0\0\0\0", b"\x81\xff" + b"\x7f" * 8 + b"\0" * 4):
        client = websocket(server)
        client.send(junk)
        assert client.end()[0] in (1002, 1003, 1009)
    for path in ("/streams/a%0d%0aX:1/events", "/streams/%ff", "/streams/ws", "/streams/activity", "/streams/a/none"):
        assert server.get(path).head()[0] in (400, 404, 426)
    server.get("/streams/a/events", headers="Last-Event-ID: x\r\n").until(b"event: reset")
    producer = Ingest(server, "a")
    producer.client.send(b"zz\r\n")
    until(lambda: not producer.client.receive(), "the connection to end")
    assert server.end() == 0
    assert not re.search("Traceback|Error", server.log)
