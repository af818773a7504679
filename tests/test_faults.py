"""Each row of the failure tables of docs/pages.md, on real sockets: what the client gets, to the byte; that the
backend's connection is closed; and, by the `site` fixture, that everything is given back."""

from __future__ import annotations

import logging
import time
from typing import Any

import gevent
import pytest
from flask import Blueprint

from tests.parts import LIMIT, Backend, Client, Peer, Site, boundary, record, until

START = record("start", state={"title": "Inbox"})
ROWS = record("resume", boundary=boundary("rows"), state={"rows": [1, 2]})
TEMPLATE = (
    '<h1>{{ title }}</h1>{% boundary "rows" %}<p>{{ rows }}</p>{% endboundary %}<hr>'
    '{% boundary "end" %}{% endboundary %}'
)
SHELL = b"<h1>Inbox</h1>"
BODY = b"<p>[1, 2]</p><hr>"


def expect_refusal(client: Client, status: int, text: str) -> dict[str, str]:
    """The client got a complete plain answer of one line."""
    body = client.body()
    assert client.head()[0] == status
    headers = client.head()[1]
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert body.text.decode() == text + "\n"
    assert body.is_complete
    return headers


# -- before the commit


@pytest.fixture
def page(site: Site) -> Site:
    return site.template(TEMPLATE)


def test_a_page_without_a_template_is_404_and_the_backend_is_not_asked(site: Site, backend: Backend) -> None:
    expect_refusal(site.get("/pages/none"), 404, "there is no such page")
    assert backend.peers == []


def test_an_unreachable_backend_is_502(page: Site, backend: Backend) -> None:
    backend.close()
    expect_refusal(page.get(), 502, "record 0: the backend could not be reached (ConnectionRefusedError)")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"status": b"500 Oops"}, "the backend answered 500"),
        ({"status": b"302 Found\r\nLocation: /elsewhere"}, "the backend answered 302"),
        ({"status": b"404 Not Found"}, "the backend answered 404"),
        ({"kind": b"text/html"}, "the backend answered with a content type that is neither records nor JSON"),
        (
            {"kind": b"application/x-ndjson\r\nContent-Encoding: gzip"},
            "the backend answered with a content encoding that was not asked for",
        ),
    ],
)
def test_an_answer_that_is_no_records_is_502(page: Site, backend: Backend, how: dict[str, Any], reason: str) -> None:
    backend.answers(START, **how)
    expect_refusal(page.get(), 502, f"record 0: {reason}")
    backend.peer.wait()
    assert len(backend.peers) == 1  # no redirect was followed, nothing was asked twice


@pytest.mark.parametrize("lines", [(), (b"\n", b"\r\n\n")])
def test_a_body_without_a_record_is_502(page: Site, backend: Backend, lines: tuple[bytes, ...]) -> None:
    backend.answers(*lines)
    expect_refusal(page.get(), 502, "record 0: the source ended before the first record")
    backend.peer.wait()


@pytest.mark.parametrize("length", [1000, None], ids=["announced length", "chunked"])
def test_an_answer_cut_before_its_first_record_is_502(page: Site, backend: Backend, length: int | None) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START[:-10], length=length)
        peer.close()

    backend.script = script
    expect_refusal(page.get(), 502, "record 0: the backend broke off, or broke HTTP")


@pytest.mark.parametrize(
    "head",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 65_536],
    ids=["not HTTP", "longer than 65,536 bytes"],
)
def test_a_head_that_is_none_is_502(page: Site, backend: Backend, head: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.send(head)
        peer.wait()

    backend.script = script
    expect_refusal(page.get(), 502, "record 0: the backend broke off, or broke HTTP")
    backend.peer.wait()


def test_a_reset_before_the_first_record_is_502(page: Site, backend: Backend) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START[:-10])
        peer.reset()

    backend.script = script
    expect_refusal(page.get(), 502, "record 0: the backend broke off (ConnectionResetError)")


def test_a_first_record_too_long_is_502_before_its_line_feed(page: Site, backend: Backend) -> None:
    def script(peer: Peer) -> None:
        peer.answer(b"x" * 2_000_001)
        peer.wait()  # no line feed, no end: the server must not wait for either

    backend.script = script
    expect_refusal(page.get(), 502, "record 0: longer than 2000000 bytes")
    backend.peer.wait()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"{\n", "not valid JSON"),
        (b"[]\n", "not a JSON object"),
        (b'{"type":"start","version":2,"state":{}} {}\n', "not valid JSON"),
        (b'\xff{"type":"start"}\n', "not valid UTF-8"),
        (ROWS, 'the first record must be a "start"'),
        (record("start", version=1), '"version" is 1, not 2'),
        (record("start", version=True), '"version" is True, not 2'),
        (record("start", state=[]), '"state" must be an object'),
        (b'{"type":"start","version":2}\n', '"state" must be an object'),
        (record("start", extra=1), 'unknown member "extra"'),
        (record("abort", message="secret"), "the backend aborted the page"),
    ],
)
def test_a_bad_first_record_is_502(page: Site, backend: Backend, first: bytes, reason: str) -> None:
    def script(peer: Peer) -> None:
        peer.answer(first)
        peer.wait()

    backend.script = script
    client = page.get()
    assert client.head()[0] == 502
    text = client.body().text.decode()
    assert text.startswith(f"record 0: {reason}")
    assert "secret" not in text
    assert text.count("\n") == 1
    backend.peer.wait()


@pytest.mark.parametrize(
    "broken", ["{% boundary %}", "{{ 1 / 0 }}", "{% macro m() %}{% boundary 'x' %}{% endboundary %}{% endmacro %}"]
)
def test_a_bad_first_record_wins_over_a_broken_template(site: Site, backend: Backend, broken: str) -> None:
    site.template(broken)
    backend.answers(b"{}\n")
    assert site.get().head()[0] == 502


@pytest.mark.parametrize("before", [(), (b"\n\n\n",)])
def test_no_first_record_in_time_is_504(page: Site, backend: Backend, before: tuple[bytes, ...]) -> None:
    page.configure(backend_timeout=0.2)

    def script(peer: Peer) -> None:
        peer.answer(*before)
        peer.wait()

    backend.script = script
    expect_refusal(page.get(), 504, "record 0: none within 0.2 s")
    backend.peer.wait()


def test_heartbeats_do_not_put_off_the_first_records_deadline(page: Site, backend: Backend) -> None:
    page.configure(backend_timeout=0.3)

    def script(peer: Peer) -> None:
        peer.answer()
        while not peer.closed.wait(0.05):
            peer.chunk(b"\n")

    backend.script = script
    expect_refusal(page.get(), 504, "record 0: none within 0.3 s")


def test_a_flood_of_heartbeats_does_not_put_off_the_deadline(page: Site, backend: Backend) -> None:
    """The source never lets the hub wait, so a timer alone would not come."""
    page.configure(backend_timeout=0.3)

    def script(peer: Peer) -> None:
        peer.answer()
        while True:
            peer.chunk(b"\n" * 60_000)

    backend.script = script
    expect_refusal(page.get(), 504, "record 0: none within 0.3 s")


def test_no_answer_in_time_is_504(page: Site, backend: Backend) -> None:
    page.configure(backend_timeout=0.2)
    backend.script = Peer.wait
    expect_refusal(page.get(), 504, "record 0: none within 0.2 s")
    backend.peer.wait()


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{% include 'none.html' %}", "TemplateNotFound"),
        ("{% filter upper %}{% boundary 'x' %}secret{% endboundary %}{% endfilter %}", "TemplateAssertionError"),
    ],
)
def test_an_error_in_the_template_is_500(
    site: Site, backend: Backend, template: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.template(template)
    backend.answers(START)
    expect_refusal(site.get(), 500, f"record 0: the template failed ({error})")
    backend.peer.wait()
    assert [entry.levelname for entry in caplog.records if entry.name == "streaming.pages"] == ["ERROR"]
    assert "GET '/pages/page': answered 500, record 0: the template failed" in caplog.text


def test_a_page_too_many_is_503_and_its_backend_is_not_asked(
    page: Site, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    page.configure(max_pages=1)

    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    first = page.get().until(SHELL)
    headers = expect_refusal(page.get(), 503, "1 pages are open")
    assert int(headers["retry-after"]) > 0
    assert len(backend.peers) == 1
    assert "GET '/pages/page': answered 503, 1 pages are open" in caplog.text
    first.leave()
    until(page.is_idle)
    assert page.get().head()[0] == 200


def blocking_blueprint(gate: gevent.event.Event) -> Blueprint:
    """Gives templates a function that keeps its render thread until the test opens the gate."""
    blueprint = Blueprint("blocking", __name__)

    def block() -> str:
        from gevent.monkey import get_original

        while not gate.is_set():
            get_original("time", "sleep")(0.001)
        return ""

    blueprint.app_template_global("block")(block)
    return blueprint


def test_no_render_slot_in_time_is_503(site: Site, backend: Backend) -> None:
    gate = gevent.event.Event()
    site.configure(render_workers=1, render_wait=0.2, blueprints=[blocking_blueprint(gate)])
    site.template("{{ block() }}").template("quick", "quick.html")
    backend.answers(START)
    slow = site.get()
    until(lambda: site.state.shared.pool.busy == 1)
    headers = expect_refusal(site.get("/pages/quick"), 503, "no render slot in 0.2 s")
    assert int(headers["retry-after"]) > 0
    gate.set()
    assert slow.body().text == b"<!--stream:complete-->"


def test_what_a_state_brings_into_an_error_begins_no_line_of_the_log(
    site: Site, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    site.template("{% include name %}")
    backend.answers(record("start", state={"name": "q\nFAKE \x1b[31mline"}))
    assert site.get().head()[0] == 500
    (entry,) = [entry for entry in caplog.records if entry.name == "streaming.pages"]
    first, *rest = entry.getMessage().split("\n")
    assert first.endswith("(TemplateNotFound): q\\nFAKE \\x1b[31mline")
    assert any("page.html" in line for line in rest)
    assert all(line.startswith("    | ") and "\x1b" not in line for line in rest)


# -- after the commit


def expect_truncation(client: Client, text: bytes) -> None:
    """The client got these bytes and then the connection's end: no last chunk, no comment."""
    body = client.body()
    assert client.head()[0] == 200
    assert body.text == text
    assert not body.is_complete
    assert not client.received.endswith(b"0\r\n\r\n")
    assert client.is_closed


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (b"{\n", "not valid JSON"),
        (b'{"type":"resume"}\n', '"state" must be an object'),
        (START, 'a second "start"'),
        (record("resume", boundary=boundary("other")), "does not resume the boundary that is waited for"),
        (record("resume", boundary=boundary("rows", owner="other.html")), "does not resume the boundary"),
        (record("resume", boundary=boundary("rows", key=1)), "does not resume the boundary"),
        (record("resume", boundary=boundary("rows") | {"declarationId": 1}), '"declarationId" is 1'),
        (record("update", boundary=boundary("rows")), 'updates "rows" of "page.html"'),
        (record("abort", message="database\nis down"), 'the backend aborted the page: "database\\nis down"'),
        (b"x" * 2_000_001, "longer than 2000000 bytes"),
    ],
)
def test_a_bad_record_truncates(
    page: Site, backend: Backend, second: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.chunk(second)
        peer.wait()

    backend.script = script
    expect_truncation(page.get(), SHELL)
    backend.peer.wait()
    entries = [entry.getMessage() for entry in caplog.records if entry.name == "streaming.pages"]
    assert len(entries) == 1
    assert entries[0].startswith(f"GET '/pages/page': cut, record 1: {reason}")


def test_what_preceded_the_bad_record_is_sent(page: Site, backend: Backend) -> None:
    backend.answers(START + ROWS + b"{\n")
    expect_truncation(page.get(), SHELL + BODY)


def test_a_template_error_after_the_commit_truncates(site: Site, backend: Backend) -> None:
    site.template('<h1>{{ title }}</h1>{% boundary "rows" %}lost{{ 1 / rows[0] }}{% endboundary %}')
    backend.answers(START, record("resume", boundary=boundary("rows"), state={"rows": [0]}))
    expect_truncation(site.get(), SHELL)
    backend.peer.wait()


def test_a_template_error_behind_the_last_boundary_truncates(site: Site, backend: Backend) -> None:
    site.template('<h1>{{ title }}</h1>{% boundary "rows" %}{% endboundary %}lost{{ 1 / 0 }}')
    backend.answers(START, record("resume", boundary=boundary("rows")))
    expect_truncation(site.get(), SHELL)


def test_a_reset_after_the_commit_truncates(page: Site, backend: Backend) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START, ROWS)
        client.until(BODY)
        peer.reset()

    backend.script = script
    client = page.get()
    expect_truncation(client, SHELL + BODY)


def test_a_reset_after_the_last_boundary_truncates(site: Site, backend: Backend) -> None:
    """An update may still have come, so the page was not complete."""
    site.template('<h1>{{ title }}</h1>{% boundary "rows" %}<p>{{ rows }}</p>{% endboundary %}tail')

    def script(peer: Peer) -> None:
        peer.answer(START, record("resume", boundary=boundary("rows"), state={"rows": 1}, mode="updatable"))
        client.until(b"<!--/b:0-->")
        peer.reset()

    backend.script = script
    client = site.get()
    expect_truncation(client, SHELL + b"<!--b:0--><p>1</p><!--/b:0-->")


def test_a_close_before_the_announced_end_truncates(page: Site, backend: Backend) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START, ROWS)
        peer.close()

    backend.script = script
    expect_truncation(page.get(), SHELL + BODY)


def test_silence_after_the_commit_truncates(page: Site, backend: Backend) -> None:
    page.configure(record_timeout=0.2)

    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    expect_truncation(page.get(), SHELL)
    backend.peer.wait()


def test_heartbeats_are_no_silence(page: Site, backend: Backend) -> None:
    page.configure(record_timeout=0.3)

    def script(peer: Peer) -> None:
        peer.answer(START)
        for _ in range(8):
            gevent.sleep(0.1)
            peer.chunk(b"\n")
        peer.chunk(ROWS)
        peer.chunk(record("resume", boundary=boundary("end")))
        peer.wait()

    backend.script = script
    assert page.get().body().is_complete


def test_bytes_that_are_no_body_are_no_silence(page: Site, backend: Backend) -> None:
    """A chunk that comes byte by byte, its length and line ends too, is silent only from byte to byte."""
    page.configure(record_timeout=0.3)

    def script(peer: Peer) -> None:
        peer.answer(START)
        for byte in b"1\r\n\n\r\n1\r\n\n\r\n":
            gevent.sleep(0.1)
            peer.send(bytes([byte]))
        peer.chunk(ROWS)
        peer.chunk(record("resume", boundary=boundary("end")))
        peer.wait()

    backend.script = script
    assert page.get().body().is_complete


def test_the_records_end_with_a_boundary_pending_truncates(page: Site, backend: Backend) -> None:
    backend.answers(START, ROWS)
    expect_truncation(page.get(), SHELL + BODY)


def test_the_first_records_page_is_committed_before_the_second_is_judged(page: Site, backend: Backend) -> None:
    """What is wrong with a record that is already here is no 502."""
    backend.answers(START + b"{\n")
    expect_truncation(page.get(), SHELL)


def test_all_records_together_have_a_limit(site: Site, backend: Backend) -> None:
    site.configure(max_record=1000, max_page_records=1500).template(TEMPLATE)
    backend.answers(START, ROWS, record("resume", boundary=boundary("end"), state={"x": "y" * 900})[:-1] + b" " * 500)
    client = site.get()
    expect_truncation(client, SHELL + BODY)


def test_http_1_0_lacks_only_the_comment(page: Site, backend: Backend) -> None:
    backend.answers(START, ROWS)
    client = page.get(version="1.0")
    body = client.body()
    assert body.text == SHELL + BODY
    assert client.is_closed
    assert "transfer-encoding" not in client.head()[1]


def test_a_client_that_takes_nothing_is_cut_off(site: Site, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    site.configure(flush_timeout=0.5).template(
        "{% boundary 'x' %}{% for i in range(2000) %}{{ big }}{% endfor %}{% endboundary %}"
    )
    backend.answers(record("start", state={"big": "x" * 10_000}), record("resume", boundary=boundary("x")))
    client = site.connect(receive_buffer=4096).ask("/pages/page")
    until(lambda: site.state.shared.pool.open_pages == 1)
    until(site.is_idle, "the page to be cut off")
    body = client.body()
    assert not body.is_complete
    assert client.is_closed

    assert caplog.text.count("GET '/pages/page': cut, the client took nothing for 0.5 s") == 1


def test_a_client_that_takes_nothing_after_closing_its_sending_half_is_cut_off(site: Site, backend: Backend) -> None:
    """The page is closed at once; the server's greenlet must not wait for the socket for ever."""
    site.configure(flush_timeout=0.5).template("{% boundary 'x' %}{{ big * 5000 }}{% endboundary %}")
    backend.answers(record("start", state={"big": "x" * 10_000}), record("resume", boundary=boundary("x")))
    client = site.connect(receive_buffer=4096).ask("/pages/page")
    client.until(b"xxx")
    client.half_close()
    until(lambda: not site.server.handlers, "the connection's greenlet to end")


# -- the client leaves


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("lines", [(), (START,)], ids=["before the commit", "after the commit"])
def test_the_backend_is_closed_within_a_second_of_the_clients_departure(
    page: Site, backend: Backend, reset: bool, lines: tuple[bytes, ...]
) -> None:
    def script(peer: Peer) -> None:
        peer.answer(*lines)
        peer.wait()

    backend.script = script
    client = page.get()
    until(lambda: backend.peers)
    if lines:
        client.until(SHELL)
    left_at = time.monotonic()
    client.leave(reset=reset)
    backend.peer.wait()
    assert backend.peer.closed_at - left_at < 1
    until(page.is_idle)


@pytest.mark.parametrize("lines", [(), (START,)], ids=["before the commit", "after the commit"])
def test_a_client_that_closes_its_sending_half_has_left(page: Site, backend: Backend, lines: tuple[bytes, ...]) -> None:
    """It can't be told from a departure; it must not be told that the page is complete."""

    def script(peer: Peer) -> None:
        peer.answer(*lines)
        peer.wait()

    backend.script = script
    client = page.get()
    until(lambda: backend.peers)
    if lines:
        client.until(SHELL)
    client.half_close()
    backend.peer.wait()
    while client.receive():
        pass
    assert client.received == b"" if not lines else client.received.endswith(b"\r\n" + SHELL + b"\r\n")


def test_departure_is_noticed_behind_bytes_of_a_next_request(page: Site, backend: Backend) -> None:
    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    client = page.get().until(SHELL)
    client.ask("/healthz")
    gevent.sleep(0)
    left_at = time.monotonic()
    client.leave()
    backend.peer.wait()
    assert backend.peer.closed_at - left_at < 1


def test_a_client_that_leaves_while_it_waits_for_a_slot_gives_up_its_place(site: Site, backend: Backend) -> None:
    gate = gevent.event.Event()
    site.configure(render_workers=1, render_wait=LIMIT, blueprints=[blocking_blueprint(gate)])
    site.template("{{ block() }}")
    backend.answers(START)
    first = site.get()
    pool = site.state.shared.pool
    until(lambda: pool.busy == 1)
    second = site.get()
    until(lambda: pool.waiting == 1)
    second.leave()
    until(lambda: pool.waiting == 0, "the place in the line", limit=1)
    assert pool.open_pages == 1
    gate.set()
    assert first.body().is_complete


def test_a_step_that_yields_nothing_ends_soon_after_the_clients_departure(site: Site, backend: Backend) -> None:
    """A loop without output asks at every turn whether the page is wanted; so its thread is free within a second."""
    site.template("{{ title }}{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}")
    backend.answers(START)
    clients = [site.get() for _ in range(4)]
    pool = site.state.shared.pool
    until(lambda: pool.busy == 4)
    for client in clients:
        client.leave()
    until(lambda: pool.busy == 0, "the render threads", limit=1)


def test_a_failure_is_logged_once_without_a_traceback_of_input(
    page: Site, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    backend.answers(START, b"{\n")
    page.get().body()
    assert "Traceback" not in caplog.text
    assert len(caplog.records) == 1
