"""Ingest: what a producer outside the process may send, on real sockets (docs/live-protocol.md, "Ingest")."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
from flask import Blueprint, request
from hypothesis import given
from hypothesis import strategies as st

from streaming.config import Settings
from streaming.errors import Refused
from streaming.live import bodies, remote
from streaming.live.bodies import MAX_LINE, ChunkDecoder, abandon
from streaming.live.hub import MAX_OPEN, Hub
from streaming.live.ingest import MAX_RECORD, ingest
from streaming.live.views import live_hub
from streaming.protocol.ingest import Delta, MessageStart
from tests.parts import LIMIT, Backend, Client, Site, until
from tests.test_processes import SERVERS, Server

TOKEN = "sesame-open"


@pytest.fixture(autouse=True)
def no_traceback(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a client does wrong, nothing is logged with a traceback."""
    yield
    assert "Traceback" not in capfd.readouterr().err
    assert [entry for entry in caplog.get_records("call") if entry.exc_info] == []


@pytest.fixture
def site(site: Site) -> Site:
    """The server, with a token for ingest."""
    return site.configure(ingest_token=TOKEN)


def hub_of(site: Site) -> Hub:
    """The live path of the server."""
    hub: Hub = live_hub(site.state)
    return hub


def line(op: str, **members: Any) -> bytes:
    """A record with its line feed."""
    return json.dumps({"op": op, **members}).encode() + b"\n"


START, END = line("message.start"), line("message.end")


def delta(text: str, **members: Any) -> bytes:
    """Text, with its line feed."""
    return line("delta", s=text, **members)


class Producer:
    """A producer's side of one connection."""

    def __init__(
        self, site: Any, name: str | None = None, *, length: int | None = None, sid: str = "s", more: str = ""
    ) -> None:
        self.client: Client = site.connect()
        query = "" if name is None else f"?producer={name}"
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._is_chunked = length is None
        head = f"Content-Type: application/x-ndjson\r\nAuthorization: Bearer {TOKEN}\r\n{framing}\r\n{more}"
        self.client.ask(f"/streams/{sid}/records{query}", method="POST", headers=head)

    def send(self, *records: bytes) -> Producer:
        """Send records, each a chunk of its own if the body is chunked."""
        for record in records:
            self.client.send(b"%x\r\n%b\r\n" % (len(record), record) if self._is_chunked else record)
        return self

    def end(self) -> Producer:
        """End a chunked body properly."""
        self.client.send(b"0\r\n\r\n")
        return self

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and members of the answer."""
        body = self.client.body()
        assert body.is_complete, self.client.received
        return self.client.head()[0], json.loads(body.text)

    def is_closed(self) -> bool:
        """Whether the server closes the connection, having said so."""
        self.answer()
        assert self.client.head()[1]["connection"] == "close"
        while self.client.receive():
            pass
        return self.client.is_closed


def send(site: Any, *records: bytes, **how: Any) -> tuple[int, dict[str, Any]]:
    """Send a whole body and return the answer."""
    data = b"".join(records)
    return Producer(site, length=len(data), **how).send(data).answer()


def refused(answer: tuple[int, dict[str, Any]], status: int, record: int, text: str) -> None:
    """Check the refusal of one record."""
    code = {400: "bad_request", 413: "too_large", 503: "too_many"}[status]
    members = answer[1]
    assert (answer[0], members["error"], members.get("record"), members["accepted"]) == (status, code, record, record)
    assert text in members["message"]


def messages(site: Site, sid: str = "s") -> dict[str, Any]:
    """The messages of a stream, by id."""
    hub = hub_of(site)
    channel = hub.channels.get(sid)
    if channel is None:
        return {}
    hub.seal(channel)
    return {message["mid"]: message for message in json.loads(b"".join(channel.stream.snapshot()))["messages"]}


def status(site: Site, mid: str) -> Any:
    """`open`, or how a message ended; None if there is none."""
    return messages(site).get(mid, {}).get("status")


def texts(site: Site, mid: str) -> list[str]:
    """The text of each part of a message."""
    return [part["s"] for part in messages(site)[mid]["parts"]]


def events(site: Site, sid: str = "s") -> list[tuple[str, Any]]:
    """Kind and data of all events."""
    entries = hub_of(site).channels[sid].stream.log.entries.values()
    return [(entry.kind, json.loads(entry.data)) for entry in entries]


def ended(site: Site, mid: str) -> Any:
    """The data of a message's end."""
    return next(d for kind, d in events(site) if kind == "message.end" and d["mid"] == mid)


# -- as it arrives


@pytest.mark.parametrize("length", [None, 1_000], ids=["chunked", "content-length"])
def test_a_record_is_applied_when_its_line_feed_has_come(site: Site, length: int | None) -> None:
    producer = Producer(site, length=length)
    producer.send(line("message.start", mid="m"), delta("Hel", mid="m"))
    until(lambda: "m" in messages(site) and texts(site, "m") == ["Hel"])
    half = delta("lo", mid="m")
    producer.send(half[:5])
    producer.send(half[5:] + delta("!")[:9])
    until(lambda: texts(site, "m") == ["Hello"])
    assert hub_of(site).counts.ingested == 3


def test_a_chunk_may_hold_many_records_and_a_record_many_chunks(site: Site) -> None:
    body = line("message.start", mid="m") + b"".join(delta(str(number % 10)) for number in range(1_000)) + END
    producer = Producer(site)
    for start in range(0, len(body), 777):
        producer.send(body[start : start + 777])
    assert producer.end().answer() == (200, {"accepted": 1_002, "seq": 4, "mid": "m"})
    assert texts(site, "m") == ["0123456789" * 100]


def test_a_body_may_come_byte_by_byte(site: Site) -> None:
    body = line("message.start", mid="m") + delta("Größe 😀") + END
    framed = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\nX: y\r\n\r\n"
    producer = Producer(site)
    for byte in framed:
        producer.client.send(bytes([byte]))
    assert producer.answer()[1]["accepted"] == 3
    assert texts(site, "m") == ["Größe 😀"]


def test_a_last_line_without_line_feed_is_a_record(site: Site) -> None:
    assert send(site, START, END[:-1])[1]["accepted"] == 2
    assert Producer(site).send(START, END[:-1]).end().answer()[1]["accepted"] == 2


def test_an_empty_body_is_accepted(site: Site) -> None:
    assert send(site) == (200, {"accepted": 0, "seq": 0, "mid": None})
    assert Producer(site).end().answer() == (200, {"accepted": 0, "seq": 0, "mid": None})


def test_empty_lines_are_heartbeats_and_not_counted(site: Site) -> None:
    assert send(site, b"\n\r\n", START, b"\n" * 5_000, END, b"\n")[1]["accepted"] == 2
    refused(send(site, b"\n\n", START, b"\n", b"no JSON\n"), 400, 1, "JSON")


def test_the_connection_is_used_again_after_a_whole_body(site: Site) -> None:
    body = START + END
    producer = Producer(site)
    # The next request comes in the same packet as the last chunk, as nobody should do and somebody will.
    ask = b"POST /streams/s/records HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
    again = ask % (TOKEN.encode(), len(body), body)
    producer.client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + again + again)
    producer.client.until(b'"seq":2').until(b'"seq":4').until(b'"seq":6')
    assert producer.client.received.count(b"200 OK") == 3
    assert b"Connection: close" not in producer.client.received


def test_a_client_that_expects_100_continue_gets_it(site: Site) -> None:
    body = START + END
    for length in (len(body), None):
        producer = Producer(site, length=length, more="Expect: 100-continue\r\n")
        producer.client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        producer.client.received = b""
        producer.send(body)
        if length is None:
            producer.end()
        assert producer.answer()[1]["accepted"] == 2


def test_a_client_that_expects_100_continue_and_may_not_ingest_does_not_get_it(site: Site) -> None:
    headers = "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
    client = site.connect().ask("/streams/s/records", method="POST", headers=headers)
    assert client.head()[0] == 401
    assert client.received.startswith(b"HTTP/1.1 401")


def test_connection_upgrade_changes_nothing(site: Site) -> None:
    assert send(site, START, END, more="Connection: upgrade\r\n")[1]["accepted"] == 2


def test_flask_s_test_client_is_answered(site: Site) -> None:
    client = site.app.test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = client.post("/streams/s/records", data=START + delta("x") + END[:-1], headers=headers)
    assert answer.json is not None
    assert answer.json["accepted"] == 3
    answer = client.post("/streams/s/records", data=START + b"[]\n", headers=headers)
    refused((answer.status_code, answer.json or {}), 400, 1, "object")


# -- messages


def test_a_message_without_mid_gets_one(site: Site) -> None:
    _, answer = send(site, START, delta("x"), END)
    assert re.fullmatch(r"[A-Za-z0-9_-]{16}", answer["mid"])
    assert texts(site, answer["mid"]) == ["x"]


def test_commands_without_mid_mean_the_message_started_last(site: Site) -> None:
    _, answer = send(
        site,
        line("message.start", mid="a"),
        delta("a1"),
        line("message.start", mid="b"),
        delta("b1"),
        delta("a2", mid="a"),
        delta("b2"),
        END,
        line("message.end", mid="a"),
    )
    assert answer["mid"] == "b"
    assert (texts(site, "a"), texts(site, "b")) == (["a1a2"], ["b1b2"])
    refused(send(site, line("message.start", mid="c"), END, delta("x")), 400, 2, "not open here")


def test_a_command_before_any_message_is_refused(site: Site) -> None:
    refused(send(site, delta("x")), 400, 0, "no message was started")


def test_a_message_of_another_producer_is_refused(site: Site) -> None:
    other = Producer(site).send(line("message.start", mid="theirs"))
    until(lambda: "theirs" in messages(site))
    for record in (delta("x", mid="theirs"), line("message.end", mid="theirs"), line("part.start", mid="theirs")):
        refused(send(site, record), 400, 0, "never started it")
    assert status(site, "theirs") == "open"
    other.client.leave()


def test_a_used_mid_is_refused(site: Site) -> None:
    send(site, line("message.start", mid="m"), END)
    refused(send(site, line("message.start", mid="m")), 400, 0, "used before")


def test_role_meta_usage_and_error_reach_the_stream(site: Site) -> None:
    send(
        site,
        line("message.start", mid="m", role="tool", meta={"a": [1]}),
        line("part.start", kind="thinking", meta={"b": 2}),
        delta("hm"),
        line("message.end", status="aborted", error="tired", usage={"tokens": 2}),
    )
    assert events(site)[0] == ("message.start", {"mid": "m", "role": "tool", "meta": {"a": [1]}})
    assert events(site)[1] == ("part.start", {"mid": "m", "part": 0, "kind": "thinking", "meta": {"b": 2}})
    end = ended(site, "m")
    assert (end["status"], end["error"], end["usage"]) == ("aborted", "tired", {"tokens": 2})


def test_the_end_of_a_message_ends_its_open_parts(site: Site) -> None:
    send(site, line("message.start", mid="m"), delta("a"), delta("bc", part=1), END)
    assert [kind for kind, _ in events(site)][-3:] == ["part.end", "part.end", "message.end"]
    assert [part["len"] for part in ended(site, "m")["parts"]] == [1, 2]


@pytest.mark.parametrize("record", [delta("x"), line("part.end"), END, line("part.start", part=1)])
def test_text_and_ends_for_an_ended_message_are_refused(site: Site, record: bytes) -> None:
    refused(send(site, START, delta("x"), END, record), 400, 3, "has ended")


# -- parts


def test_a_delta_starts_the_next_part_and_no_other(site: Site) -> None:
    send(site, line("message.start", mid="m"), delta("", kind="thinking"), delta("x", part=1), END)
    assert [(part["kind"], part["s"]) for part in messages(site)["m"]["parts"]] == [("thinking", ""), ("text", "x")]
    refused(send(site, START, delta("x", part=1)), 400, 1, "out of order: the next one is 0")
    refused(send(site, START, line("part.start", part=1)), 400, 1, "out of order")


def test_a_delta_of_another_kind_than_its_part_is_refused(site: Site) -> None:
    send(site, START, delta("x", kind="thinking"), delta("y"), delta("z", kind="thinking"), END)
    refused(send(site, START, delta("x"), delta("y", kind="thinking")), 400, 2, 'is of kind "text"')


def test_a_part_that_was_started_is_not_started_again(site: Site) -> None:
    refused(send(site, START, delta("x"), line("part.start")), 400, 2, "started before")


def test_the_end_of_a_part_that_was_never_started_is_refused(site: Site) -> None:
    refused(send(site, START, line("part.end")), 400, 1, "never started")
    refused(send(site, START, line("part.end", s="whole")), 400, 1, "never started")


@pytest.mark.parametrize("record", [delta("x"), line("part.end"), line("part.end", s="y")])
def test_text_and_ends_for_an_ended_part_are_refused(site: Site, record: bytes) -> None:
    refused(send(site, START, delta("x"), line("part.end"), record), 400, 3, "part 0 has ended")


def test_the_end_of_a_part_may_replace_its_text(site: Site) -> None:
    send(site, line("message.start", mid="m"), delta("draft"), line("part.end", s="whole text"), END)
    assert texts(site, "m") == ["whole text"]
    assert ended(site, "m")["parts"][0]["len"] == 10


def test_half_a_surrogate_pair_waits_for_the_other_half(site: Site) -> None:
    send(site, line("message.start", mid="m"), delta("\ud83d"), delta("\ude00"), delta("\ud83d"), END)
    assert texts(site, "m") == ["😀\ufffd"]


def test_an_event_is_published(site: Site) -> None:
    assert send(site, line("event", k="tool.result", d={"ok": True}, urgent=True))[1]["seq"] == 1
    assert events(site) == [("tool.result", {"ok": True})]
    assert [entry.seq for entry in hub_of(site).channels["s"].stream.urgent_after(0)] == [1]


# -- refusals


def test_what_came_before_a_bad_record_stays_and_open_messages_end_with_error(site: Site) -> None:
    answer = send(site, line("message.start", mid="a"), delta("x"), line("message.start", mid="b"), b"{}\n", END)
    refused(answer, 400, 3, '"op"')
    assert texts(site, "a") == ["x"]
    assert (status(site, "a"), status(site, "b")) == ("error", "error")


@pytest.mark.parametrize(
    "record",
    [b"\xff\n", b"nul\n", b" \n", b"[1]\n", line("nothing"), line("delta"), b'{"op":"event","k":"a","d":1e999}\n'],
)
def test_a_bad_record_is_refused_by_its_number(site: Site, record: bytes) -> None:
    refused(send(site, START, record, START), 400, 1, "")


def test_a_message_that_is_too_long_ends_with_error(site: Site) -> None:
    site.configure(ingest_token=TOKEN, max_message=10)
    answer = send(site, line("message.start", mid="m"), delta("12345"), delta("123456"), END)
    refused(answer, 413, 2, "STREAMING_MAX_MESSAGE")
    assert (status(site, "m"), texts(site, "m")) == ("error", ["12345"])
    refused(send(site, START, delta("1234"), line("part.end", s="1234567890a")), 413, 2, "STREAMING_MAX_MESSAGE")
    assert hub_of(site).counts.refused["max_message"] == 2


def test_an_event_larger_than_the_log_is_refused(site: Site) -> None:
    site.configure(ingest_token=TOKEN, log_bytes=1_000)
    refused(send(site, START, line("event", k="a", d="x" * 999)), 413, 1, "STREAMING_LOG_BYTES")
    assert send(site, line("event", k="a", d="x" * 998))[0] == 200
    assert hub_of(site).counts.refused["log_bytes"] == 1


def test_a_record_of_two_million_bytes_is_accepted_and_one_more_is_refused(site: Site) -> None:
    space = MAX_RECORD - len(delta("")) + 1
    assert send(site, START, delta("x" * space), END)[0] == 200
    refused(send(site, START, delta("x" * (space + 1)), END), 413, 1, "longer than 2000000 bytes")
    assert hub_of(site).counts.refused["ingest_record"] == 1


def test_a_record_without_end_is_refused_when_its_limit_is_passed(site: Site) -> None:
    producer = Producer(site).send(START)
    flood = gevent.spawn(send_for_ever, producer, b"x" * 100_000)
    refused(producer.answer(), 413, 1, "longer than")
    flood.kill()


def test_too_many_parts_are_refused(site: Site) -> None:
    answer = send(site, START, *[delta("x", part=number) for number in range(MAX_OPEN + 1)])
    refused(answer, 400, MAX_OPEN + 1, "parts")


def test_a_stream_too_many_is_refused(site: Site) -> None:
    site.configure(ingest_token=TOKEN, max_streams=1)
    send(site, START, END)
    status_code, answer = send(site, START, END, sid="t")
    assert (status_code, answer["error"], answer["accepted"]) == (503, "too_many", 0)


# -- ends that are no ends


def test_messages_left_open_at_the_end_of_the_body_end_with_error(site: Site) -> None:
    assert send(site, line("message.start", mid="m"), delta("x"))[0] == 200
    assert ended(site, "m")["error"] == "the producer left its message open"


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("length", [None, 1_000], ids=["chunked", "content-length"])
def test_messages_of_a_broken_connection_end_with_error_at_once(site: Site, length: int | None, reset: bool) -> None:
    producer = Producer(site, length=length).send(line("message.start", mid="m"), delta("x"))
    until(lambda: status(site, "m") == "open")
    producer.client.leave(reset=reset)
    until(lambda: status(site, "m") == "error")
    assert ended(site, "m")["error"] == "the producer's connection broke"
    until(lambda: not hub_of(site).ingests)


def test_a_client_that_ends_its_body_early_but_listens_is_answered(site: Site) -> None:
    producer = Producer(site, length=1_000).send(START)
    producer.client.half_close()
    code, answer = producer.answer()
    assert (code, answer["error"], answer["accepted"]) == (400, "bad_request", 1)
    assert "record" not in answer


@pytest.mark.parametrize(
    "framing",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+5\r\n",
        b"0x5\r\n",
        b" 5\r\n",
        b"5 \r\n",
        b"5\n",
        b"\r\n",
        b"12345678901234567\r\n",
        b"5;\r\n",
        b"5;a=\r\n",
        b'5;a="\r\n',
        b"5;" + b"a" * MAX_LINE + b"\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na\rb",
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\n: x\r\n\r\n",
        b"0\r\n" + b"a: b\r\n" * 2_000 + b"\r\n",
        b"0\n\n",
    ],
)
def test_chunks_that_are_not_of_the_grammar_break_the_body(site: Site, framing: bytes) -> None:
    producer = Producer(site).send(line("message.start", mid="m"))
    producer.client.send(framing)
    code, answer = producer.answer()
    assert (code, answer["error"], answer["accepted"]) == (400, "bad_request", 1)
    assert status(site, "m") == "error"
    assert producer.is_closed()


def test_a_body_whose_end_nobody_can_tell_is_refused(site: Site) -> None:
    client = site.connect()
    headers = f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: gzip, chunked\r\n"
    client.ask("/streams/s/records", method="POST", headers=headers)
    assert client.head()[0] == 400
    assert client.head()[1]["connection"] == "close"


def test_silence_is_answered_with_408(site: Site) -> None:
    site.configure(ingest_token=TOKEN, producer_timeout=0.2)
    producer = Producer(site).send(line("message.start", mid="m"))
    code, answer = producer.answer()
    assert (code, answer["error"], answer["accepted"]) == (408, "timeout", 1)
    assert ended(site, "m")["error"] == "the producer was silent for too long"
    assert hub_of(site).counts.refused["producer_timeout"] == 1
    assert producer.is_closed()


def test_heartbeats_are_no_silence(site: Site) -> None:
    site.configure(ingest_token=TOKEN, producer_timeout=0.3)
    producer = Producer(site).send(line("message.start", mid="m"))
    began = time.monotonic()
    until(lambda: beat(producer, 0.05) and time.monotonic() - began > 0.7)
    assert producer.send(END).end().answer()[0] == 200
    assert status(site, "m") == "complete"


def beat(producer: Producer, seconds: float) -> bool:
    """Send a heartbeat each time."""
    producer.send(b"\n")
    gevent.sleep(seconds)
    return True


# -- producers with a name


def test_messages_of_a_named_producer_stay_open_and_its_next_body_goes_on(site: Site) -> None:
    first = Producer(site, "p").send(line("message.start", mid="m", n=1), delta("a", n=2))
    until(lambda: status(site, "m") == "open")
    first.client.leave(reset=True)
    until(lambda: not hub_of(site).ingests)
    assert status(site, "m") == "open"
    assert send(site, delta("b", n=3), name="p") == (200, {"accepted": 1, "seq": 2, "mid": "m"})
    assert status(site, "m") == "open"
    assert send(site, line("message.end", n=4), name="p")[0] == 200
    assert (status(site, "m"), texts(site, "m")) == ("complete", ["ab"])


def test_messages_of_a_named_producer_that_does_not_come_back_end_with_error(site: Site) -> None:
    site.configure(ingest_token=TOKEN, producer_grace=0.2)
    send(site, line("message.start", mid="m", n=1), name="p")
    assert status(site, "m") == "open"
    until(lambda: status(site, "m") == "error")
    assert ended(site, "m")["error"] == "the producer did not come back"
    refused(send(site, delta("x", n=2), name="p"), 400, 0, "has ended")


def test_the_grace_period_begins_anew_with_each_body(site: Site) -> None:
    site.configure(ingest_token=TOKEN, producer_grace=0.3)
    send(site, line("message.start", mid="m", n=1), name="p")
    began, n = time.monotonic(), 1
    while time.monotonic() - began < 0.8:
        gevent.sleep(0.1)
        n += 1
        assert send(site, delta("x", n=n), name="p")[0] == 200
    assert status(site, "m") == "open"


def test_a_record_that_was_applied_is_accepted_and_not_applied_again(site: Site) -> None:
    start, text, end = line("message.start", mid="m", n=-5), delta("a", n=7), line("message.end", n=9)
    send(site, start, text, name="p")
    assert send(site, start, text, text, end, name="p") == (200, {"accepted": 4, "seq": 4, "mid": "m"})
    assert send(site, start, text, end, name="p") == (200, {"accepted": 3, "seq": 4, "mid": "m"})
    assert texts(site, "m") == ["a"]
    assert hub_of(site).counts.ingested == 3
    # Another one of that name in another stream, and another name in this one, are others.
    assert send(site, line("message.start", n=0), name="p", sid="t")[1]["seq"] == 1
    assert send(site, line("message.start", n=0), name="q")[1]["seq"] == 5


def test_a_record_without_n_of_a_named_producer_is_refused(site: Site) -> None:
    refused(send(site, line("message.start", mid="m", n=1), delta("x"), name="p"), 400, 1, '"n" is missing')
    assert status(site, "m") == "error"


def test_a_bad_record_of_a_named_producer_ends_its_messages_with_error(site: Site) -> None:
    send(site, line("message.start", mid="a", n=1), name="p")
    refused(send(site, line("message.start", mid="b", n=2), delta("x", part=3, n=3), name="p"), 400, 1, "order")
    assert (status(site, "a"), status(site, "b")) == ("error", "error")
    # What was refused was not applied, and is not taken for a repeat.
    refused(send(site, line("delta", n=3, s="x"), name="p"), 400, 0, "has ended")


def test_a_newer_body_of_a_producer_replaces_the_older_one(site: Site) -> None:
    older = Producer(site, "p").send(line("message.start", mid="m", n=1), delta("a", n=2), delta("b", n=3))
    until(lambda: "m" in messages(site) and texts(site, "m") == ["ab"])
    newer = Producer(site, "p").send(delta("b", n=3), delta("c", n=4))
    code, answer = older.answer()
    assert (code, answer["error"], answer["accepted"]) == (409, "replaced", 3)
    with suppress(OSError):
        older.send(delta("never", n=5))
    assert newer.send(line("message.end", n=6)).end().answer()[0] == 200
    assert (status(site, "m"), texts(site, "m")) == ("complete", ["abc"])


def test_nothing_of_a_replaced_body_is_applied_even_if_it_has_come(site: Site) -> None:
    older = Producer(site, "p").send(line("message.start", mid="m", n=1))
    until(lambda: status(site, "m") == "open")
    older.send(b"".join(delta("x", n=n) for n in range(2, 200_000)))
    until(lambda: hub_of(site).counts.ingested > 1)  # in the middle of it
    newer = Producer(site, "p").send(line("message.end", n=1_000_000)).end()
    assert newer.answer()[0] == 200
    length = len("".join(texts(site, "m")))
    assert older.answer()[1]["accepted"] == length + 1
    assert status(site, "m") == "complete"


def test_a_record_counts_as_applied_before_others_get_a_turn(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a body that takes over in that turn would apply it a second time."""
    hub = hub_of(site)
    producer = remote.RemoteProducer(hub, "s", "p")
    producer.apply(MessageStart(mid="m", n=1))
    seen: list[int | None] = []
    monkeypatch.setattr("streaming.live.producer.PATIENCE", -1.0)
    monkeypatch.setattr("streaming.live.producer.give_way", lambda: seen.append(producer.n))
    assert producer.apply(Delta(s="x", n=2))
    assert seen == [2]


def test_the_body_that_has_taken_over_is_the_one_that_is_cancelled(site: Site) -> None:
    older = Producer(site, "p").send(line("message.start", mid="m", n=1))
    until(lambda: status(site, "m") == "open")
    newer = Producer(site, "p").send(delta("x", n=2))
    assert older.answer()[1]["error"] == "replaced"
    until(lambda: texts(site, "m") == ["x"])
    cancel(site)
    assert newer.answer()[1]["error"] == "cancelled"


def test_a_named_producer_is_forgotten_after_the_time_to_live_of_streams(site: Site) -> None:
    site.configure(ingest_token=TOKEN, idle_ttl=0.2)
    watcher = site.get("/streams/s/events")  # so the stream itself stays
    watcher.head()
    send(site, line("event", k="a", n=5), name="p")
    assert hub_of(site).remote
    until(lambda: not hub_of(site).remote)
    assert send(site, line("event", k="a", n=5), name="p") == (200, {"accepted": 1, "seq": 2, "mid": None})


def test_a_named_producer_is_forgotten_with_its_stream(site: Site) -> None:
    send(site, line("event", k="a", n=5), name="p")
    hub = hub_of(site)
    hub.forget(hub.channels["s"])
    assert send(site, line("event", k="a", n=5), name="p")[1]["seq"] == 1


def test_the_named_producers_of_a_stream_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_NAMED", 3)
    send(site, line("event", k="a", n=5), name="first")
    send(site, line("message.start", n=5), name="open")
    running = Producer(site, "running").send(line("event", k="a", n=5))
    until(lambda: hub_of(site).counts.ingested == 3)
    # One more: the one that has been away is forgotten.
    send(site, line("message.start", n=5), name="another")
    code, answer = send(site, line("event", k="a", n=5), name="first")
    assert (code, answer["error"], answer["accepted"]) == (503, "too_many", 0)
    assert hub_of(site).counts.refused["named_producers"] == 1
    assert running.end().answer()[0] == 200
    assert send(site, line("event", k="a", n=5), name="first")[1]["seq"] == 5  # applied: forgotten it was
    assert len(hub_of(site).remote["s"]) == 3


def test_of_the_named_producers_the_one_that_was_away_longest_is_forgotten(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_NAMED", 2)
    for name in ("a", "b", "a", "c"):
        send(site, line("event", k="a", n=5), name=name)
    assert list(hub_of(site).remote["s"]) == ["a", "c"]


# -- cancelled


def cancel(site: Site, mid: str | None = None) -> None:
    """Press stop."""
    body = json.dumps({} if mid is None else {"mid": mid}).encode()
    headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body.decode()}"
    client = site.connect()
    client.send(f"POST /streams/s/cancel HTTP/1.1\r\nHost: localhost\r\n{headers}".encode())
    assert client.head()[0] == 202


@pytest.mark.parametrize("name", [None, "p"], ids=["anonymous", "named"])
@pytest.mark.parametrize("length", [None, 1_000], ids=["chunked", "content-length"])
def test_a_producer_whose_message_is_cancelled_is_answered_at_once(
    site: Site, length: int | None, name: str | None
) -> None:
    producer = Producer(site, name, length=length)
    producer.send(line("message.start", mid="a", n=1), line("message.start", mid="b", n=2), delta("x", n=3)[:5])
    until(lambda: status(site, "b") == "open")
    cancel(site, "a")
    code, answer = producer.answer()
    assert (code, answer["error"], answer["accepted"]) == (409, "cancelled", 2)
    assert (status(site, "a"), status(site, "b")) == ("cancelled", "aborted")
    assert producer.is_closed()


def test_all_messages_of_a_producer_may_be_cancelled_together(site: Site) -> None:
    producer = Producer(site).send(line("message.start", mid="a"), line("message.start", mid="b"))
    until(lambda: status(site, "b") == "open")
    cancel(site)
    assert producer.answer()[0] == 409
    assert (status(site, "a"), status(site, "b")) == ("cancelled", "cancelled")


def test_a_message_that_has_ended_cancels_nothing(site: Site) -> None:
    producer = Producer(site).send(line("message.start", mid="a"), END, line("message.start", mid="b"))
    until(lambda: status(site, "b") == "open")
    cancel(site, "a")
    assert producer.send(END).end().answer()[0] == 200


def test_a_named_producer_that_was_away_is_told_once_that_it_was_cancelled(site: Site) -> None:
    send(site, line("message.start", mid="a", n=1), line("message.start", mid="b", n=2), name="p")
    cancel(site, "a")
    until(lambda: status(site, "b") == "aborted")
    code, answer = send(site, delta("x", n=3), name="p")
    assert (code, answer["error"], answer["accepted"]) == (409, "cancelled", 0)
    assert send(site, line("message.start", n=3), name="p")[0] == 200


def test_all_messages_of_a_named_producer_that_is_away_may_be_cancelled_together(site: Site) -> None:
    send(site, line("message.start", mid="a", n=1), line("message.start", mid="b", n=2), name="p")
    cancel(site)
    assert (status(site, "a"), status(site, "b")) == ("cancelled", "cancelled")


def test_a_named_producer_is_not_told_after_the_grace_period_that_it_was_cancelled(site: Site) -> None:
    site.configure(ingest_token=TOKEN, producer_grace=0.2)
    send(site, line("message.start", mid="a", n=1), name="p")
    known = hub_of(site).remote["s"]["p"]
    cancel(site)
    assert known.is_cancelled
    until(lambda: not known.is_cancelled)
    assert send(site, line("message.start", n=2), name="p")[0] == 200


# -- answers before the end of the body


def send_for_ever(producer: Producer, data: bytes) -> None:
    """Send until the server does not take it any more."""
    with suppress(OSError):
        while True:
            producer.send(data)
            gevent.sleep(0)


@pytest.mark.parametrize("length", [None, 2**40], ids=["chunked", "content-length"])
def test_an_early_answer_reaches_a_client_that_goes_on_sending(site: Site, length: int | None) -> None:
    producer = Producer(site, length=length).send(START, b"no JSON\n")
    flood = gevent.spawn(send_for_ever, producer, b"\n" * 10_000)
    refused(producer.answer(), 400, 1, "JSON")
    assert producer.is_closed()
    assert flood.join(LIMIT) is None
    assert flood.ready()


def test_a_client_may_go_on_sending_for_a_moment_after_an_early_answer(site: Site) -> None:
    producer = Producer(site).send(b"no JSON\n")
    assert producer.is_closed()
    goes_on_sending(producer)
    assert site.server.handlers
    producer.client.leave()
    until(lambda: not site.server.handlers, limit=0.5)


def goes_on_sending(producer: Producer) -> None:
    """Send after the answer; a connection that was reset would not take it."""
    for _ in range(10):
        producer.client.send(b"\n")
        gevent.sleep(0.01)


def test_a_client_that_sends_as_fast_as_it_can_after_its_answer_lets_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Flood:
        """A socket that always has something to read."""

        def shutdown(self, how: int) -> None:
            pass

        def recv(self, size: int) -> bytes:
            return b"x" * size

    monkeypatch.setattr(bodies, "LINGER", 0.1)
    lingering = gevent.spawn(bodies.linger, Flood())
    turns = 0
    while not lingering.ready():
        gevent.sleep(0.001)
        turns += 1
    assert turns > 10


def test_a_client_that_never_closes_loses_its_connection_within_a_second(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "LINGER", 0.2)
    producer = Producer(site).send(b"no JSON\n")
    refused(producer.answer(), 400, 0, "JSON")
    flood = gevent.spawn(send_for_ever, producer, b"\n" * 1_000)
    until(flood.ready, "the server to close", limit=2)
    until(lambda: not site.server.handlers)


def test_a_view_can_refuse_a_body_without_reading_it(site: Site) -> None:
    blueprint = Blueprint("door", __name__)

    @blueprint.post("/door")
    def door() -> tuple[str, int]:
        abandon(request.environ)
        return "no", 403

    site.configure([blueprint])
    short = site.connect().ask("/door", method="POST", headers="Content-Length: 5\r\n")
    short.send(b"knock")
    assert "connection" not in short.head()[1]
    for framing in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        client = site.connect().ask("/door", method="POST", headers=f"{framing}\r\n")
        assert client.body().text == b"no"
        assert client.head()[1]["connection"] == "close"
        assert not client.receive()


def test_a_body_that_is_being_read_ends_with_the_drain(site: Site) -> None:
    site.configure(ingest_token=TOKEN, drain_timeout=1)
    producer = Producer(site).send(line("message.start", mid="m"), delta("x"))
    until(lambda: status(site, "m") == "open" and texts(site, "m") == ["x"])
    site.server.close()
    code, answer = producer.answer()
    assert (code, answer["error"], answer["accepted"]) == (503, "draining", 2)
    assert status(site, "m") == "error"
    assert producer.is_closed()


# -- others on the hub


@pytest.mark.parametrize("data", [delta("x" * 20) * 500, b"\n" * 10_000], ids=["records", "heartbeats"])
def test_a_producer_that_sends_as_fast_as_it_can_lets_others_run(site: Site, data: bytes) -> None:
    hub = hub_of(site)
    producer = Producer(site).send(START)
    flood = gevent.spawn(send_for_ever, producer, data)
    until(lambda: hub.ingests)
    gc.collect()
    gaps = []
    for _ in range(100):
        began = time.monotonic()
        gevent.sleep(0.001)
        gaps.append(time.monotonic() - began)
    flood.kill()
    assert sorted(gaps)[90] < 0.02, gaps
    assert hub.ingests


def test_a_body_that_is_interrupted_twice_gives_the_first_reason() -> None:
    class Silent:
        """A stream in which nothing comes."""

        def read(self, size: int) -> bytes:
            gevent.sleep(LIMIT)
            return b""

    hub = Hub(Settings())
    environ = {"wsgi.input": Silent(), "wsgi.input_terminated": True}
    reading = gevent.spawn(answer_of, lambda: ingest(hub, "s", environ, None))
    until(lambda: hub.ingests)
    [running] = hub.ingests
    running.interrupt("draining", "one")
    running.interrupt("replaced", "two")
    assert reading.get(timeout=LIMIT) == "draining: one"
    assert not hub.ingests
    hub.close()


def test_an_interruption_that_comes_with_the_last_bytes_wakes_nobody_later() -> None:
    class Interrupting:
        """A stream that interrupts its reader."""

        def read(self, size: int) -> bytes:
            [running] = hub.ingests
            running.interrupt("draining", "one")
            return b"\n"

    hub = Hub(Settings())
    environ = {"wsgi.input": Interrupting(), "wsgi.input_terminated": True}
    assert answer_of(lambda: ingest(hub, "s", environ, None)) == "draining: one"
    gevent.sleep(0.01)  # here it would be thrown
    hub.close()


def answer_of(function: Callable[[], object]) -> str:
    """The refusal that a call raises, as text."""
    with pytest.raises(Refused) as caught:
        function()
    return str(caught.value)


# -- the decoder


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.binary(max_size=20), st.data())
def test_chunks_are_taken_off_however_the_bytes_are_cut(chunks: list[bytes], rest: bytes, data: st.DataObject) -> None:
    framed = b"".join(b'%X ; a="\\"x" ;b\r\n%b\r\n' % (len(chunk), chunk) for chunk in chunks)
    framed += b"000;z\r\nTrailer: yes\r\n\r\n"
    decoder, found, at = ChunkDecoder(), b"", 0
    whole = framed + rest
    while not decoder.is_done:
        piece = whole[at : at + data.draw(st.integers(1, 50))]
        payload, taken = decoder.feed(piece)
        assert decoder.failure is None
        assert taken
        found += payload
        at += taken
    assert (found, at) == (b"".join(chunks), len(framed))


def test_what_came_before_a_wrong_frame_comes_out() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(b"2\r\nab\r\nx\r\nmore") == (b"ab", 10)
    assert decoder.failure
    assert decoder.feed(b"2\r\nab\r\n") == (b"", 0)


def test_the_decoder_works_for_a_limited_time_only() -> None:
    decoder = ChunkDecoder()
    payload, taken = decoder.feed(b"1\r\nx\r\n" * 10_000)
    assert 0 < len(payload) < 1_000
    assert taken == 6 * len(payload)


# -- gunicorn's own worker


class Gunicorn:
    """`gunicorn -k gevent` as a site to connect to."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: list[Client] = []

    def connect(self) -> Client:
        client = Client(self._server.port)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.leave()


@pytest.fixture
def gunicorn(tmp_path: Path, backend: Backend) -> Iterator[Gunicorn]:
    """A process of it."""
    server = Server(SERVERS["gevent"], tmp_path, STREAMING_INGEST_TOKEN=TOKEN, STREAMING_PRODUCER_TIMEOUT="1")
    peer = Gunicorn(server)
    yield peer
    peer.close()
    server.close()
    assert "Traceback" not in server.log


def test_gunicorn_s_worker_ingests_as_it_arrives(gunicorn: Gunicorn) -> None:
    for length in (None, 1_000):
        sid = f"s{length}"
        producer = Producer(gunicorn, sid=sid, length=length).send(line("message.start", mid="m"), delta("Hello"))
        reader = gunicorn.connect().ask(f"/streams/{sid}/records")
        reader.until(b'"Hello"')
        refused(producer.send(b"no JSON\n").answer(), 400, 2, "JSON")
        reader.until(b'"status":"error"')
    assert Producer(gunicorn).send(START + END).end().answer()[1]["accepted"] == 2
    body = START + END
    producer = Producer(gunicorn, length=len(body))
    again = b"POST /streams/s/records HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
    producer.client.send(body + again % (TOKEN.encode(), len(body), body))
    producer.client.until(b'"seq":4').until(b'"seq":6')


@pytest.mark.parametrize("length", [None, 2**40], ids=["chunked", "content-length"])
def test_gunicorn_s_worker_answers_early(gunicorn: Gunicorn, length: int | None) -> None:
    producer = Producer(gunicorn, length=length).send(START, b"no JSON\n")
    flood = gevent.spawn(send_for_ever, producer, b"\n" * 10_000)
    refused(producer.answer(), 400, 1, "JSON")
    until(flood.ready, "the server to close")
    producer = Producer(gunicorn, length=length).send(b"no JSON\n")
    refused(producer.answer(), 400, 0, "JSON")
    goes_on_sending(producer)


def test_gunicorn_s_worker_ends_a_body_that_waits(gunicorn: Gunicorn) -> None:
    assert Producer(gunicorn).send(START).answer()[0] == 408
    producer = Producer(gunicorn)
    producer.client.send(b"x\r\n")
    assert producer.answer()[0] == 400
    older = Producer(gunicorn, "p").send(line("message.start", n=1))
    gunicorn.connect().ask("/streams/s/records").until(b'"seq":3,"k":"message.start"')
    assert send(gunicorn, line("event", k="a", n=9), name="p")[0] == 200
    assert older.answer()[1]["error"] == "replaced"


def test_a_large_record_is_parsed_without_the_hub(site: Site) -> None:
    """Two million bytes of nothing but brackets take most of a second."""
    hub = hub_of(site)
    turns = 0

    def turn() -> None:
        nonlocal turns
        while True:
            gevent.sleep(0.001)
            turns += 1

    ticker = gevent.spawn(turn)
    record = b'{"op":"event","k":"big","d":[' + b"[]," * 600_000 + b"[]]}\n"
    code, answer = send(site, record)
    assert (code, answer["accepted"]) == (200, 1)
    assert turns > 10
    ticker.kill()
    assert hub.counts.ingested == 1
