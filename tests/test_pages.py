"""The page path end to end, on real sockets: what a client sees of a page that works, when it sees it, and what is
asked of the backend."""

from __future__ import annotations

import contextvars
import gc
import json
import logging
import os
import resource
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import gevent
import pytest
from flask import Blueprint, Flask, Response, g, request, url_for

from app import create_app, streaming
from streaming import Resume, Start, Streaming, Update
from streaming.config import Settings
from streaming.departure import SOCKET_KEY
from streaming.errors import Cut, RenderError
from streaming.live.hub import Hub
from streaming.pages.ingest import Ingest
from streaming.pages.renderer import PageRenderer
from streaming.pages.response import Page
from streaming.pages.sources import IterableSource
from streaming.pages.views import is_page
from streaming.state import Shared
from tests.parts import Backend, Peer, Site, boundary, record, until

COMPLETE = b"<!--stream:complete-->"
START = record("start", state={"title": "Inbox"})
LIST = '<h1>{{ title }}</h1>{% boundary "rows" %}<p>{{ rows }}</p>{% endboundary %}<hr>'


def resume(name: str, **members: Any) -> bytes:
    """A resume record of page.html."""
    return record("resume", boundary=boundary(name), **members)


# -- what is sent


def test_a_page_streams_as_its_records_come(site: Site, backend: Backend) -> None:
    site.template(LIST)
    seen = gevent.event.Event()

    def script(peer: Peer) -> None:
        peer.answer(START)
        assert seen.wait(5)
        peer.chunk(resume("rows", state={"rows": 7}))
        peer.wait()

    backend.script = script
    client = site.get().until(b"<h1>Inbox</h1>")
    status, headers = client.head()
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers
    assert b"<p>" not in client.received
    seen.set()
    body = client.body()
    assert body.is_complete
    assert body.text == b"<h1>Inbox</h1><p>7</p><hr>" + COMPLETE


def test_a_page_is_complete_when_nothing_legal_can_follow(site: Site, backend: Backend) -> None:
    """The backend has not ended, and its connection is closed at once."""
    site.template(LIST)

    def script(peer: Peer) -> None:
        peer.answer(START, resume("rows"))
        peer.wait()

    backend.script = script
    assert site.get().body().is_complete
    backend.peer.wait()


def test_surplus_records_are_logged(site: Site, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    site.template(LIST)
    backend.answers(START + resume("rows") + resume("more") + resume("most"))
    assert site.get().body().is_complete
    assert "2 surplus records behind the end of the page" in caplog.text


def test_an_updatable_page_completes_at_the_end_of_the_records(site: Site, backend: Backend) -> None:
    site.template(LIST)
    ended = gevent.event.Event()

    def script(peer: Peer) -> None:
        peer.answer(START, resume("rows", state={"rows": 1}, mode="updatable"))
        peer.chunk(record("update", boundary=boundary("rows"), state={"rows": 2}))
        assert ended.wait(5)
        peer.end()

    backend.script = script
    client = site.get().until(b"</template>")
    assert b"<hr>" not in client.received
    ended.set()
    assert client.body().text == (
        b'<h1>Inbox</h1><!--b:0--><p>1</p><!--/b:0--><template data-boundary="0"><p>2</p></template><hr>' + COMPLETE
    )


def test_an_empty_shell_sends_its_headers_at_the_commit(site: Site, backend: Backend) -> None:
    site.template('{% boundary "rows" %}late{% endboundary %}')

    seen = gevent.event.Event()

    def script(peer: Peer) -> None:
        peer.answer(START)
        assert seen.wait(5)
        peer.chunk(resume("rows"))
        peer.wait()

    backend.script = script
    client = site.get()
    assert client.head()[0] == 200
    seen.set()
    assert client.body().text == b"late" + COMPLETE


def test_state_defaults_and_unicode_reach_the_template(site: Site, backend: Backend) -> None:
    site.configure(base_path="/base", tokens=json.dumps({"a": 1, "b": 1}))
    site.template("{{ path }}|{{ basePath }}|{{ tokens.a }}{{ tokens.b }}|{{ word }}{{ half }}|{{ '<' }}")
    backend.answers(
        b"\xef\xbb\xbf"
        + '{"type":"start","version":2,"state":'
        '{"path":"lost","tokens":{"b":2},"word":"žluť😀","half":"\\ud83d"}}\r\n'.encode()
    )
    assert site.get().body().text == "page|/base|12|žluť😀\ufffd|&lt;".encode() + COMPLETE


def test_an_ordinary_json_answer_renders_every_boundary_at_once(site: Site, backend: Backend) -> None:
    site.template(LIST)
    body = json.dumps({"title": "T", "rows": [1]}, indent=2).encode()
    backend.answers(body, kind=b"Application/JSON; charset=utf-8", length=len(body))
    assert site.get().body().text == b"<h1>T</h1><p>[1]</p><hr>" + COMPLETE


@pytest.mark.parametrize("body", [b"[1]", b"{", b"{} {}", b"\xff"])
def test_json_that_is_no_object_is_502(site: Site, backend: Backend, body: bytes) -> None:
    site.template(LIST)
    backend.answers(body, kind=b"application/json", length=len(body))
    assert site.get().head()[0] == 502


def test_json_longer_than_a_record_may_be_is_502(site: Site, backend: Backend) -> None:
    site.configure(max_record=100).template(LIST)
    body = b'{"x":"%s"}' % (b"y" * 100)
    backend.answers(body, kind=b"application/json", length=len(body))
    client = site.get()
    assert client.head()[0] == 502
    assert client.body().text == b"record 0: longer than 100 bytes\n"


def test_a_last_record_needs_no_line_feed(site: Site, backend: Backend) -> None:
    site.template("<h1>{{ title }}</h1>")
    backend.answers(START.rstrip(b"\n"))
    assert site.get().body().text == b"<h1>Inbox</h1>" + COMPLETE


def test_records_in_slices_of_one_byte_make_the_same_page(site: Site, backend: Backend) -> None:
    site.template(LIST)
    backend.answers(*[bytes([byte]) for byte in START + resume("rows", state={"rows": "é"})])
    assert site.get().body().text == "<h1>Inbox</h1><p>é</p><hr>".encode() + COMPLETE


def test_a_long_page_goes_out_in_steps_and_large_writes_stay_whole(site: Site, backend: Backend) -> None:
    site.template("{% for row in rows %}<i>{{ row }}</i>{% endfor %}{{ large }}")
    rows, large = ["r" * 10] * 40_000, "x" * 1_000_000
    backend.answers(record("start", state={"rows": rows, "large": large}))
    body = site.get().body()
    assert body.text == b"".join(b"<i>%s</i>" % row.encode() for row in rows) + large.encode() + COMPLETE
    assert body.is_complete


def test_no_chunk_is_small_unless_it_is_flushed(site: Site, backend: Backend) -> None:
    site.configure(max_precommit=1).template("{% for row in rows %}<i>{{ row }}</i>{% endfor %}")
    backend.answers(record("start", state={"rows": ["r" * 10] * 40_000}))
    chunks = site.get().body().chunks
    assert len(chunks) > 3
    # The first is flushed by the commit, the last by the end.
    assert all(len(chunk) >= 4_096 for chunk in chunks[1:-1])
    assert all(len(chunk) < 100_000 for chunk in chunks)


def test_a_page_is_committed_when_its_staging_is_full(site: Site, backend: Backend) -> None:
    """It is not an error to be long: what fails behind the limit truncates, what fails before it is a status."""
    site.template("{% for i in range(n) %}<i>0123456789</i>{% endfor %}{{ 1 / 0 }}")
    backend.answers(record("start", state={"n": 150_000}))
    assert site.get().head()[0] == 500
    backend.answers(record("start", state={"n": 300_000}))
    client = site.get()
    assert client.head()[0] == 200
    body = client.body()
    assert not body.is_complete
    assert len(body.text) >= 4_000_000


@pytest.mark.parametrize(("size", "status"), [(3_999_999, 500), (4_000_000, 200)])
@pytest.mark.parametrize("piece", [7, 1_000])
def test_staging_is_full_to_the_byte(site: Site, backend: Backend, piece: int, size: int, status: int) -> None:
    """In pieces of any size; each of these pages fails right behind its text."""
    site.template("{% for i in range(count) %}{{ piece }}{% endfor %}{{ rest }}{{ 1 / 0 }}")
    state = {"count": size // piece, "piece": "x" * piece, "rest": "x" * (size % piece)}
    backend.answers(record("start", state=state))
    assert site.get().head()[0] == status


# -- what is asked


def test_path_and_query_are_forwarded_as_they_came(site: Site, backend: Backend) -> None:
    (site.folder / "a b").mkdir()
    site.template("ok", "a b/ž.html")
    backend.answers(START)
    client = site.get("/pages/a%20b/%C5%BE?x=%2F%20&y=1+2&&z")
    assert client.body().text == b"ok" + COMPLETE
    assert backend.peer.target == "/a%20b/%C5%BE?x=%2F%20&y=1+2&&z"
    head = backend.peer.head.lower()
    assert b"accept: application/x-webui-stream, application/x-ndjson, application/json\r\n" in head
    assert head.startswith(b"get ")


def test_a_path_in_the_backend_url_is_kept_in_front(site: Site, backend: Backend) -> None:
    site.configure(backend_url=backend.url + "/api/v1/").template("ok")
    backend.answers(START)
    site.get().body()
    assert backend.peer.target == "/api/v1/page"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "//secret",
        "%2Fsecret",
        "..%2fsecret",
        "%2e%2e/secret",
        "a/../../secret",
        "..%5csecret",
        "page%00",
        "/page",
        "./page",
        "page/",
    ],
)
def test_no_path_leaves_the_folder(site: Site, backend: Backend, path: str) -> None:
    (site.folder.parent / "secret.html").write_text("secret")
    site.template("ok")
    assert site.get(f"/pages/{path}").head()[0] == 404
    assert backend.peers == []


def test_only_plainly_named_files_are_pages(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("")
    (tmp_path.parent / "up.html").write_text("")
    assert is_page(str(tmp_path), "page")
    for path in ("", "..", "../up", "a/../page", "a\\..\\page", "page\0", "./page", "//page", "/page", "page/", "none"):
        assert not is_page(str(tmp_path), path), path


def test_head_gets_headers_and_the_backend_is_not_asked(site: Site, backend: Backend) -> None:
    site.template("ok")
    client = site.get(method="HEAD")
    status, headers = client.head()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "content-length" not in headers
    # The same connection's next answer is read right only if no byte of a body came.
    client.ask("/healthz")
    client.until(b'{"status":"ok"}')
    assert client.received.count(b"HTTP/1.1 200") == 2
    assert client.received.split(b"\r\n\r\n")[1].startswith(b"HTTP/1.1 200")
    assert backend.peers == []


def test_head_of_no_page_is_404(site: Site) -> None:
    client = site.get("/pages/none", method="HEAD", headers="Connection: close\r\n")
    assert client.head()[0] == 404
    while client.receive():
        pass
    assert client.received.endswith(b"\r\n\r\n")


def test_http_1_0_closes_at_the_end_even_if_asked_to_keep_alive(site: Site, backend: Backend) -> None:
    site.template("ok")
    backend.answers(START)
    client = site.get(version="1.0", headers="Connection: keep-alive\r\n")
    assert client.body().text == b"ok" + COMPLETE
    assert client.is_closed


def test_a_connection_serves_page_after_page(site: Site, backend: Backend) -> None:
    site.template("ok")
    backend.answers(START)
    client = site.connect()
    for number in range(1, 4):
        client.ask("/pages/page")
        until(lambda number=number: client.receive() and client.received.count(b"0\r\n\r\n") == number)
    assert client.received.count(COMPLETE) == 3


# -- pressure


def descriptors() -> int:
    """Descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def greenlets() -> int:
    """Greenlets that have not ended."""
    gc.collect()
    return sum(isinstance(thing, gevent.Greenlet) and not thing.dead for thing in gc.get_objects())


def test_300_heads_and_300_resets_leave_nothing_behind(site: Site, backend: Backend) -> None:
    site.template(LIST)

    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    site.get(method="HEAD").head()
    site.get().until(b"Inbox").leave(reset=True)
    until(site.is_idle)
    before = descriptors(), greenlets()
    for _ in range(300):
        client = site.get(method="HEAD", headers="Connection: close\r\n")
        while client.receive():
            pass
        client.leave()
        site.get().leave(reset=True)
    until(site.is_idle)
    until(lambda: all(peer.closed.is_set() for peer in backend.peers))
    until(lambda: (descriptors(), greenlets()) <= before, f"descriptors and greenlets to be {before} again")


def test_300_slow_pages_on_4_threads_all_progress(site: Site, backend: Backend) -> None:
    """A record each second; no worker is held between steps, so 4 threads are plenty."""
    site.template("{% for i in range(3) %}{% boundary 'b' key=i %}<p>{{ i }}</p>{% endboundary %}{% endfor %}")
    tick = [gevent.event.Event() for _ in range(4)]

    def script(peer: Peer) -> None:
        peer.answer(START)
        for key in range(3):
            assert tick[key].wait(30)
            peer.chunk(record("resume", boundary=boundary("b", key)))
        peer.wait()

    backend.script = script
    clients = [site.get() for _ in range(300)]
    until(lambda: len(backend.peers) == 300)
    pool = site.state.shared.pool
    assert pool.workers == 4
    until(lambda: pool.open_pages == 300 and pool.busy == 0)
    for key in range(3):
        for client in clients:
            assert b"<p>%d</p>" % key not in client.received
        tick[key].set()
        for client in clients:
            client.until(b"<p>%d</p>" % key)
        if key < 2:
            until(lambda: pool.busy == 0)
            assert pool.open_pages == 300
    assert all(client.body().is_complete for client in clients)


def test_a_client_that_does_not_read_stops_the_backend_being_read(site: Site, backend: Backend) -> None:
    site.template("{% for i in range(n) %}{% boundary 'b' key=i %}{{ x }}{% endboundary %}{% endfor %}")
    sent = [0]
    state = {"x": "x" * 50_000}

    def script(peer: Peer) -> None:
        peer.answer(record("start", state={"n": 10_000}))
        for key in range(10_000):
            peer.chunk(record("resume", boundary=boundary("b", key), state=state))
            sent[0] = key

    backend.script = script
    site.configure(max_page_records=1_000_000_000)
    client = site.connect(receive_buffer=4096).ask("/pages/page")
    client.until(b"xxx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The standstill: kernel buffers are full, and a quarter of a second brings nothing more.
    standstill = -1
    while sent[0] != standstill:
        standstill = sent[0]
        gevent.sleep(0.25)
    assert standstill < 1_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB
    client.leave()
    backend.peer.wait()


@pytest.mark.parametrize(
    ("sizes", "waiting"),
    [([1_000] * 70, 65), ([32_768, 32_768, 1], 2), ([32_768, 32_769], 1), ([1_500_000] * 2, 1)],
    ids=["many", "65,536 bytes", "one more", "large"],
)
def test_records_wait_together_while_they_are_small_together(sizes: list[int], waiting: int) -> None:
    """64 KiB of them, or a single one that is larger; then the source is not read."""
    taken = [0]

    def records() -> Iterator[bytes]:
        for size in sizes:
            taken[0] += 1
            yield b"x" * size + b"\n"

    ingest = Ingest(IterableSource(records()), Settings(), contextvars.copy_context(), lambda: None)
    ingest.start()
    until(lambda: taken[0] > waiting)
    gevent.idle()
    assert (ingest.waiting, taken[0]) == (waiting, waiting + 1)
    assert len(ingest.take(only_one=False)) == waiting
    until(lambda: ingest.waiting > 0)
    ingest.stop()


def test_an_exception_that_is_its_own_cause_is_settled() -> None:
    failure = RenderError("failed")
    failure.__cause__ = cause = ValueError("own")
    cause.__cause__ = cause
    failure.settle()
    assert failure.details.count("ValueError: own") == 1


def test_one_step_is_prepared_ahead_and_no_more(site: Site) -> None:
    """While a chunk is being sent the next step runs; the one after that waits for room."""
    steps: list[int] = []

    def records() -> Iterator[Any]:
        yield Start({"n": 50})
        for key in range(50):
            steps.append(key)
            yield Resume("page.html", "b", {"x": "x" * 10}, key=key)

    with site.app.test_request_context("/"):
        site.template("{% for i in range(n) %}{% boundary 'b' key=i %}{{ x }}{% endboundary %}{% endfor %}")
        response = streaming.stream_template("page.html", records())
        chunks = iter(response.response)
        assert next(chunks) == b""
        # One in the renderer's output, one in the queue, one in the generator's hand.
        until(lambda: len(steps) >= 3 and site.state.shared.pool.busy == 0)
        gevent.idle()  # everybody who could do something has had the turn
        assert len(steps) == 3
        assert next(chunks) == b"x" * 10
        until(lambda: len(steps) == 4)
        response.close()


# -- under other servers, and in tests


@pytest.fixture
def client_app(tmp_path: Path) -> Flask:
    """An app with a page of its own, and no server."""
    (tmp_path / "own.html").write_text(
        "<b>{{ path }}{{ who }}</b>{% boundary 'x' %}{{ y }}{{ url_for('own.page', who='z') }}{% endboundary %}"
    )
    blueprint = Blueprint("own", __name__, template_folder=str(tmp_path))

    @blueprint.get("/own/<who>")
    def page(who: str) -> Response:
        return streaming.stream_template("own.html", records(who))

    def records(who: str) -> Iterator[Any]:
        yield Start({"path": request.path, "who": "overwritten"})
        yield Resume("own.html", "x", {"y": "é"}, mode="updatable")
        yield Update("own.html", "x", {"y": "ö"})

    return create_app(blueprints=[blueprint])


OWN = '<b>/own/meme</b><!--b:0-->é/own/z<!--/b:0--><template data-boundary="0">ö/own/z</template>'.encode() + COMPLETE


def test_pages_work_with_flasks_test_client(client_app: Flask) -> None:
    response = client_app.test_client().get("/own/me")
    assert response.status_code == 200
    assert response.data == OWN


def test_pages_keep_the_wsgi_rules(client_app: Flask) -> None:
    with client_app.test_client() as client:
        client_app.wsgi_app = validator(client_app.wsgi_app)  # type: ignore[method-assign]
        response = client.get("/own/me", environ_overrides={"QUERY_STRING": ""})
        assert response.data == OWN
        response.close()
        response = client.head("/own/me")
        assert response.data == b""
        response.close()


def test_route_parameters_overwrite_the_state(client_app: Flask) -> None:
    data = client_app.test_client().get("/own/me").data
    assert b"<b>/own/meme</b>" in data
    assert b"overwritten" not in data


def test_a_page_uses_the_request_after_its_teardown(client_app: Flask) -> None:
    """`request` and `url_for` work in templates and iterables to the end of the stream, in their threads."""
    with client_app.test_request_context("/own/me"):
        response = client_app.make_response(client_app.view_functions["own.page"]("me"))
    assert b"".join(response.response) == OWN


def idle(app: Flask) -> bool:
    """Whether an app's pool has no page."""
    pool = app.extensions["streaming"].shared.pool
    return (pool.open_pages, pool.busy) == (0, 0)


def test_a_page_whose_after_request_fails_is_given_back(client_app: Flask) -> None:
    @client_app.after_request
    def fail(response: Response) -> Response:
        raise ValueError("after_request")

    client = client_app.test_client()
    assert client.get("/own/me").status_code == 500
    until(lambda: idle(client_app))


def test_a_page_that_is_thrown_away_is_given_back(client_app: Flask) -> None:
    with client_app.test_request_context("/own/me"):
        streaming.stream_template("own.html", iter([Start({}), Resume("own.html", "x")]))
    until(lambda: idle(client_app))


def test_an_iterable_is_closed_on_the_way_out(site: Site) -> None:
    closed = []

    def records() -> Iterator[Any]:
        try:
            yield Start({"title": 1})
            gevent.sleep(60)
        finally:
            closed.append(True)

    site.template(LIST)
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", records())
        assert next(iter(response.response)) == b"<h1>1</h1>"
        response.close()
    until(lambda: closed)


def test_an_iterable_is_closed_for_a_head_too(site: Site) -> None:
    closed = []

    class Records(list[Any]):
        def close(self) -> None:
            closed.append(True)

    with site.app.test_request_context("/", method="HEAD"):
        assert streaming.stream_template("page.html", Records()).status_code == 200
    assert closed == [True]


def test_an_iterable_that_cannot_be_closed_holds_nothing_up(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    class Records(list[Any]):
        def close(self) -> None:
            raise ValueError("close")

    site.template(LIST)
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", Records([Start({"title": 1}), Resume("page.html", "rows")]))
        assert response.data == b"<h1>1</h1><p></p><hr>" + COMPLETE
    until(site.is_idle)
    assert caplog.text.count("could not be closed") == 1


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_timeout_of_the_apps_own_is_a_failure_and_no_end(site: Site, before: int) -> None:
    """`gevent.Timeout` is no `Exception`; it must not pass for the end of the records."""

    def records() -> Iterator[Any]:
        yield from [Start({"title": 1}), Resume("page.html", "rows", mode="updatable")][:before]
        with gevent.Timeout(0.01):
            gevent.sleep(5)

    site.template(LIST)
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", records())
        if before == 0:
            assert response.status_code == 500
            assert response.data == b"record 0: the source of the records failed (Timeout)\n"
        else:
            chunks = []
            with pytest.raises(Cut):
                chunks.extend(response.response)
        response.close()


def test_a_wrong_record_is_numbered_among_commands_too(site: Site) -> None:
    site.configure(max_record=50).template(LIST)
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", iter([Start({"title": 1}), b"y" * 60]))
        with pytest.raises(Cut, match="record 1: longer than 50 bytes"):
            list(response.response)


def test_a_failed_page_frees_its_state(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a page whose source failed is freed in a worker, not whenever garbage is collected."""
    # pytest keeps what is logged, and so the traceback and its frames.
    monkeypatch.setattr("streaming.pages.response.log_failure", lambda *args, **how: None)

    class Large(dict[str, Any]):
        pass

    states = [Large(title=1)]
    gone = weakref.ref(states[0])

    def records() -> Iterator[Any]:
        yield Start({"large": states.pop()})
        raise ValueError("source")

    site.template("{{ large.title }}{% boundary 'x' %}{% endboundary %}")
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", records())
        with pytest.raises(Cut):
            list(response.response)
    until(lambda: gone() is None, "the state to be freed")


LARGE = "x" * 100_000
ENDINGS: dict[str, list[bytes]] = {
    "complete": [START, resume("rows")],
    "bad first record": [b"{\n"],
    "bad record": [START, b"{\n"],
    "too long": [START, b"y" * 2_000_001],
    "no boundary pending": [START, resume("rows", mode="updatable"), resume("more")],
    "ended": [START],
}


@pytest.mark.parametrize("ending", [*ENDINGS, "template", "body", "left", "left with records waiting"])
def test_a_page_leaves_no_cycle_however_it_ends(site: Site, backend: Backend, ending: str) -> None:
    """What it holds goes at once, and does not wait for a garbage collection, which is rare."""
    site.template({"template": "{{ 1 / 0 }}", "body": LIST.replace("<p>", "{{ 1 / 0 }}")}.get(ending, LIST))
    lines = ENDINGS.get(ending, [START, resume("rows", state={"rows": LARGE})])
    if ending == "left":
        lines = [START]

    def script(peer: Peer) -> None:
        peer.answer(*lines)
        if ending != "left":
            peer.end()
        peer.wait()

    backend.script = script
    if ending == "left with records waiting":
        site.template("{% for i in range(9) %}{{ title * 1000000 }}{% endfor %}" + LIST)
    gc.collect()
    gc.disable()
    try:
        client = site.connect(receive_buffer=4096).ask("/pages/page")
        if ending.startswith("left"):
            client.until(b"Inbox")
        else:
            client.body()
        client.leave()
        until(site.is_idle)
        until(lambda: not site.server.handlers)
        gevent.idle()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Page | Ingest | PageRenderer)]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("items", "status", "text"),
    [
        ([], 502, b"record 0: the source ended before the first record\n"),
        (["text"], 502, b"record 0: str is neither bytes nor Start, Resume or Update\n"),
        ([Start([])], 502, b'record 0: "state" must be a mapping\n'),
        ([Resume("a", "b")], 502, b'record 0: the first record must be a "start"\n'),
        ((1 / 0 for _ in range(1)), 500, b"record 0: the source of the records failed (ZeroDivisionError)\n"),
    ],
)
def test_what_an_iterable_may_do_wrong_is_told(site: Site, items: Any, status: int, text: bytes) -> None:
    site.template(LIST)
    with site.app.test_request_context("/"):
        response = streaming.stream_template("page.html", items)
    assert (response.status_code, response.data) == (status, text)


def test_records_that_are_no_records_are_a_type_error(site: Site) -> None:
    with site.app.test_request_context("/"):
        for records in ("text", b"bytes", {"a": 1}, 7):
            with pytest.raises(TypeError, match="give a Backend or an iterable"):
                streaming.stream_template("page.html", records)  # type: ignore[arg-type]


def test_several_apps_live_in_one_process(tmp_path: Path) -> None:
    one, two = create_app({"STREAMING_MAX_PAGES": 1}), create_app({"STREAMING_MAX_PAGES": 2})
    assert one.extensions["streaming"].shared.pool.max_pages == 1
    assert two.extensions["streaming"].shared.pool.max_pages == 2
    assert one.extensions["streaming"].shared is one.extensions["streaming"].shared


def test_an_app_has_one_streaming() -> None:
    app = Flask("one")
    Streaming(app)
    with pytest.raises(RuntimeError, match="has a Streaming already"):
        Streaming(app)


def test_an_app_without_streaming_is_told(tmp_path: Path) -> None:
    app = Flask("none")
    with app.test_request_context("/"), pytest.raises(RuntimeError, match="has no Streaming"):
        streaming.stream_template("page.html", [Start({})])


def test_healthz_answers() -> None:
    response = create_app().test_client().get("/healthz")
    assert (response.status_code, response.json) == (200, {"status": "ok"})


def test_page_js_is_served() -> None:
    app = create_app()
    with app.test_request_context("/"):
        path = url_for("streaming.static", filename="page.js")
    with app.test_client().get(path) as response:
        assert response.status_code == 200
        assert response.content_type.startswith("text/javascript")


def test_a_page_in_a_thread_of_its_own_is_refused(client_app: Flask) -> None:
    """Pools belong to one hub, so a threaded server that is not patched must hear of it and not hang."""
    client_app.testing = True
    client = client_app.test_client()
    with pytest.raises(RuntimeError, match=r"gevent\.monkey\.patch_all"):
        gevent.get_hub().threadpool.apply(client.get, ("/own/me",))


def test_nothing_starts_at_import_or_with_the_app(site: Site) -> None:
    app = create_app()
    assert app.extensions["streaming"].made(Shared) is None
    assert app.extensions["streaming"].made(Hub) is None
    app.test_client().get("/healthz")
    assert app.extensions["streaming"].made(Shared) is None
    assert app.extensions["streaming"].made(Hub) is None


def test_a_client_that_sends_no_request_in_time_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.handler.HEAD_TIMEOUT", 0.1)
    silent, slow = site.connect(), site.connect()
    slow.send(b"GET /healthz HTTP/1.1\r\nHost:")
    assert not silent.receive()
    while slow.receive():
        pass
    assert b"200 OK" not in slow.received
    kept = site.get("/healthz").until(b'"ok"}')
    assert not kept.receive()


def test_the_rest_of_a_body_is_read_for_a_limited_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.handler.BODY_TIMEOUT", 0.1)
    client = site.connect()
    client.send(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert client.head()[0] == 405
    while client.receive():
        pass
    until(lambda: not site.server.handlers)


def test_a_connection_that_waits_keeps_nothing_of_its_last_request(site: Site, backend: Backend) -> None:
    site.template("ok")
    backend.answers(START)
    site.get().body()
    until(lambda: [handler.environ for handler in site.server.handlers] == [{}])


def test_a_whole_url_may_be_asked_for(site: Site, backend: Backend) -> None:
    """As a proxy is asked (RFC 9112, section 3.2.2)."""
    site.template("ok")
    backend.answers(START)
    assert site.get("http://localhost/pages/page?x=%20").body().text == b"ok" + COMPLETE
    assert backend.peer.target == "/page?x=%20"


@pytest.mark.parametrize(
    "line", ["GET /x HTTP/151", "GET /x HTTP/1.", "GET /x y HTTP/1.1", "nonsense", "GET /x FTP/1.1"]
)
def test_a_malformed_request_is_400_without_a_traceback(
    site: Site, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    client = site.connect()
    client.send(line.encode() + b"\r\n\r\n")
    assert client.head()[0] == 400
    assert "Traceback" not in capfd.readouterr().err


def test_too_many_headers_are_400_without_a_traceback(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    client = site.get("/healthz", headers="X: y\r\n" * 200)
    assert client.head()[0] == 400
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_resets_in_the_middle_of_its_head_leaves_no_traceback(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        client = site.connect()
        client.send(b"GET /x HTTP/1.1\r\nHo")
        until(lambda: any(handler.is_busy for handler in site.server.handlers))
        client.leave(reset=True)
        until(lambda: not site.server.handlers)
    assert capfd.readouterr().err == ""


# -- drain


def test_drain_lets_pages_finish_and_closes_idle_connections(site: Site, backend: Backend) -> None:
    site.template(LIST)
    go_on = gevent.event.Event()

    def script(peer: Peer) -> None:
        peer.answer(START)
        assert go_on.wait(5)
        peer.chunk(resume("rows"))
        peer.wait()

    backend.script = script
    page = site.get().until(b"Inbox")
    waiting = site.get("/healthz").until(b'"ok"}')
    site.server.close()
    assert not waiting.receive()
    go_on.set()
    assert page.body().is_complete
    assert not page.receive()
    with pytest.raises(ConnectionRefusedError):
        site.get()


def test_drain_cuts_what_takes_longer(site: Site, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    site.configure(drain_timeout=0.2).template(LIST)

    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    page = site.get().until(b"Inbox")
    site.server.close()
    body = page.body()
    assert page.is_closed
    assert not body.is_complete
    backend.peer.wait()
    assert "drain: 1 responses were cut" in caplog.text


def test_the_environ_tells_target_and_socket(site: Site) -> None:
    seen: dict[str, Any] = {}

    @site.app.get("/environ/<path:rest>")
    def environ(rest: str) -> str:
        seen.update(request.environ)
        g.nothing = None
        return ""

    site.get("/environ/a%2Fb?c").head()
    assert seen["REQUEST_URI"] == "/environ/a%2Fb?c"
    assert seen[SOCKET_KEY].fileno() > 0
