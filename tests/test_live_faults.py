"""What apps do wrong, and what takes too long: nothing stays broken behind it."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from flask import Response
from gevent.pool import Pool

from streaming import Refused
from streaming.live.drain import drain
from streaming.live.hub import MAX_META, MAX_OPEN_META
from streaming.live.sweeper import WARNING_INTERVAL
from streaming.server import StreamingServer
from streaming.turns import breathe
from tests.folding import Fold
from tests.live import LiveSite, SocketAnswer
from tests.parts import Client, until


@pytest.mark.parametrize("role", [b"x", object(), None, 1.5])
def test_a_message_with_a_role_that_is_no_text_leaves_nothing(live_site: LiveSite, role: Any) -> None:
    with pytest.raises(ValueError, match="role"):
        live_site.message("chat", role=role)
    assert not live_site.hub.channels.get("chat") or not live_site.channel("chat").producers


def test_an_end_that_is_misused_leaves_the_message_open(live_site: LiveSite) -> None:
    message = live_site.message("chat")
    message.append("text")
    with pytest.raises(TypeError):
        message.end("error", error=ValueError("x"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finished"):
        message.end("finished")  # type: ignore[arg-type]
    part = message.part()
    with pytest.raises(TypeError):
        part.end(5)  # type: ignore[arg-type]
    assert part.p == 0
    message.end()
    assert live_site.channel("chat").stream.messages[message.mid].status == "complete"


def test_meta_has_a_limit_and_so_has_that_of_all_that_is_open(live_site: LiveSite) -> None:
    with pytest.raises(Refused, match="meta"):
        live_site.message("chat", meta={"x": "y" * MAX_META})
    size = MAX_META // 2
    messages = [live_site.message("chat", meta={"x": "y" * (size - 8)}) for _ in range(MAX_OPEN_META // size)]
    with pytest.raises(Refused, match="meta"):
        messages[0].part(meta={"x": "y" * 1_000}).append("text")
    messages.pop().end()
    messages[0].part(meta={"x": "y" * 1_000}).append("text")
    with pytest.raises(ValueError, match="usage"):
        messages[0].usage = {"x": "y" * MAX_META}
    for message in messages:
        message.end()


def test_what_replaces_texts_counts_against_the_limit_of_a_message(live_site: LiveSite) -> None:
    live_site.configure(max_message=100)
    message = live_site.message("chat")
    message.part().end("x" * 90)
    with pytest.raises(Exception, match="longer than 100 bytes"):
        message.part().end("x" * 90)


def test_a_handler_may_take_longer_than_heartbeats(live_site: LiveSite) -> None:
    """Nobody reads the client's answers meanwhile."""
    live_site.configure(ping_interval=0.05)
    live_site.streaming.authorizer(lambda action, sid: True)
    went_on = gevent.event.Event()

    @live_site.streaming.on_publish("slow")
    def slow(sid: str, data: Any) -> str:
        went_on.wait()
        return "done"

    client = live_site.websocket()
    client.say({"t": "publish", "sid": "a", "k": "slow", "d": None, "id": 1})
    connection = live_site.connection
    until(lambda: connection.is_asking)
    until(lambda: connection.is_closed or connection.hub.sweeper.looks > 30, "many looks at what is silent")
    went_on.set()
    assert client.answer("ack")["d"] == "done"


def test_an_app_that_times_out_in_a_handler_answers_all_the_same(live_site: LiveSite) -> None:
    live_site.streaming.authorizer(lambda action, sid: True)

    @live_site.streaming.on_publish("late")
    def late(sid: str, data: Any) -> None:
        with gevent.Timeout(0.01):
            gevent.event.Event().wait()

    client = live_site.websocket()
    client.say({"t": "publish", "sid": "a", "k": "late", "d": None, "id": 1})
    assert client.answer("ack") == {"t": "ack", "id": 1, "ok": False, "error": "failed"}


def test_a_response_that_the_app_replaces_is_sent_as_it_is(live_site: LiveSite) -> None:
    @live_site.app.after_request
    def replace(response: Response) -> Response:
        return Response("another answer", content_type="text/plain")

    for path in ("/streams/a/events", "/streams/a/records"):
        answer = SocketAnswer(live_site.connect().ask(path), None)
        assert answer.body == b"another answer"
    until(lambda: not live_site.hub.connections, "the connections to be gone")


@pytest.mark.parametrize("count", [1_000, 1_400, 1_700, 1_800, 1_900])
@pytest.mark.parametrize("form", ["events", "records"])
def test_done_comes_however_large_the_last_message_is(live_site: LiveSite, form: str, count: int) -> None:
    stream = live_site.stream("chat")
    stream.message().end()
    for number in range(count):
        stream.publish("note", {"n": number, "text": "x" * 60})
    fold = Fold("chat")
    fold.subscribe()
    answer = SocketAnswer(live_site.connect().ask(f"/streams/chat/{form}?until=idle"), fold)
    answer.read()
    assert answer.frames[-1]["t"] == "done"


def test_a_client_of_whole_texts_costs_no_spinning_without_a_flush_interval(live_site: LiveSite) -> None:
    live_site.configure(flush_interval=0)
    message = live_site.message("chat")
    message.append("a")
    fold = Fold("chat", cumulative=True)
    fold.subscribe()
    answer = SocketAnswer(live_site.connect().ask("/streams/chat/records?deltas=0"), fold)
    answer.wait(lambda: answer.named("cumulative"), "the text so far")
    message.append("b")
    flushes = live_site.hub.counts.flushes
    answer.wait(lambda: len(answer.named("cumulative")) == 2, "the longer text")
    assert live_site.hub.counts.flushes - flushes <= 2
    message.end()


def test_a_drain_ends_a_producer_that_does_not_want_to_end(live_site: LiveSite) -> None:
    def stubborn() -> None:
        with live_site.message("chat") as message:
            message.append("text")
            try:
                gevent.event.Event().wait()
            finally:
                gevent.sleep(3)

    client = live_site.websocket()
    client.subscribed("chat")
    producer = live_site.spawn(stubborn)
    client.wait(lambda: client.named("delta"), "text")
    draining = gevent.spawn(drain, live_site.hub, 0.01)
    assert client.end() == (1012, "restart")
    assert client.named("event", "chat")[-1]["d"]["status"] == "error"
    draining.get(timeout=5)
    producer.kill()


def test_the_server_drains_though_all_its_places_are_taken(live_site: LiveSite) -> None:
    server = StreamingServer(("127.0.0.1", 0), live_site.app, spawn=Pool(1), log=None)
    server.start()
    waiting = Client(server.server_port)
    waiting.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    until(lambda: server.pool.full(), "the place to be taken")
    server.close()
    until(lambda: live_site.hub.is_draining, "the drain to begin")
    waiting.leave()


def test_what_a_cancelled_message_calls_may_fail(live_site: LiveSite, caplog: pytest.LogCaptureFixture) -> None:
    messages = [live_site.message("chat") for _ in range(3)]

    def fail() -> None:
        raise OSError("x")

    messages[0].on_cancel = fail
    assert len(live_site.hub.cancel(live_site.channel("chat"), None)) == 3
    assert [message.cancelled for message in messages] == [True] * 3
    assert caplog.text.count("Traceback") == 1


def test_letting_others_run_makes_no_hub_in_a_thread_that_has_none() -> None:
    """A threaded server that is not gevent's would lose two descriptors for each thread."""
    from gevent._hub_local import get_hub_if_exists
    from gevent.monkey import get_original

    found: list[Any] = []
    done = get_original("_thread", "allocate_lock")()
    done.acquire()

    def run() -> None:
        breathe()
        found.append(get_hub_if_exists())
        done.release()

    get_original("_thread", "start_new_thread")(run, ())
    until(lambda: done.acquire(False), "the thread")
    assert found == [None]


def fill(live_site: LiveSite) -> None:
    with live_site.message("big") as message:
        for _ in range(10):
            message.append("x" * 1_000_000)


def test_a_snapshot_that_nobody_reads_is_cut(live_site: LiveSite) -> None:
    live_site.configure(send_timeout=0.2)
    fill(live_site)
    client = live_site.connect(receive_buffer=4_096).ask("/streams/big")
    until(lambda: live_site.server.handlers, "the request")
    until(lambda: not live_site.server.handlers, "the end of the connection")
    client.leave()


def test_a_drain_that_cuts_an_unread_snapshot_leaves_no_traceback(
    live_site: LiveSite, capfd: pytest.CaptureFixture[str]
) -> None:
    live_site.configure(drain_timeout=0.1)
    fill(live_site)
    client = live_site.connect(receive_buffer=4_096).ask("/streams/big")
    until(lambda: live_site.server.handlers, "the request")
    live_site.server.stop(timeout=0.3)
    until(lambda: not live_site.server.handlers, "the end of the connection")
    client.leave()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_nothing_comes_behind_done(live_site: LiveSite) -> None:
    """Not even a goodbye that was on its way."""
    message = live_site.message("chat")
    message.append("text")
    fold = Fold("chat")
    fold.subscribe()
    answer = SocketAnswer(live_site.connect().ask("/streams/chat/records?until=idle"), fold)
    answer.wait(lambda: answer.named("delta"), "text")
    connection = live_site.connection
    message.end()
    connection.end(connection.bye("restart", 100, 1012))
    answer.read()
    assert answer.is_whole
    assert answer.frames[-1]["t"] == "done"


def test_a_limit_of_the_process_is_warned_of_once_a_minute(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, not one for each client that is refused; those who were refused since are in the next."""
    live_site.configure(max_connections=1, idle_ttl=0.1)  # the sweeper looks often
    live_site.websocket()
    sweeper = live_site.hub.sweeper

    def refuse(count: int) -> None:
        for _ in range(count):
            assert live_site.get("/streams/chat/events").status == 503
        looks = sweeper.looks
        until(lambda: sweeper.looks > looks + 1, "another look")

    refuse(3)
    refuse(2)
    text = "STREAMING_MAX_CONNECTIONS, 1, was reached"
    first = [record.getMessage() for record in caplog.records if text in record.getMessage()]
    assert len(first) == 1
    sweeper._warned = {limit: (told, at - WARNING_INTERVAL) for limit, (told, at) in sweeper._warned.items()}
    refuse(0)
    counts = [int(record.getMessage().rsplit(" ", 2)[-2]) for record in caplog.records if text in record.getMessage()]
    assert (len(counts), sum(counts)) == (2, 5)
