"""The servers as people start them, each a process of its own: our gunicorn worker, `python app.py`, gunicorn's gevent
worker, and our worker with `--preload`."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from tests.parts import Backend, Peer, boundary, record, until
from tests.servers import ROOT, SERVERS, Server

EXAMPLES = [sys.executable, "-m", "examples"]
START = record("start", state={"title": "Inbox"})
TEMPLATE = '<h1>{{ title }}</h1>{% boundary "rows" %}<p>{{ rows }}</p>{% endboundary %}<hr>'
COMPLETE = b"<!--stream:complete-->"


StartServer = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, backend: Backend) -> Iterator[StartServer]:
    """Start servers by name; all end with the test."""
    (tmp_path / "page.html").write_text(TEMPLATE)
    servers: list[Server] = []

    def start_server(name: str, **settings: str) -> Server:
        pages = {"STREAMING_BACKEND_URL": backend.url, "STREAMING_TEMPLATE_FOLDER": str(tmp_path)}
        servers.append(Server(SERVERS[name], tmp_path, **(pages | settings)))
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


@pytest.mark.parametrize("name", SERVERS)
def test_pages_stream_truncate_and_notice_departures(name: str, start: StartServer, backend: Backend) -> None:
    server = start(name)
    seen = gevent.event.Event()

    def streams(peer: Peer) -> None:
        peer.answer(START)
        assert seen.wait(5)
        peer.chunk(record("resume", boundary=boundary("rows"), state={"rows": 7}))
        peer.wait()

    backend.script = streams
    client = server.get().until(b"<h1>Inbox</h1>")
    assert client.head()[0] == 200
    assert client.head()[1]["transfer-encoding"] == "chunked"
    seen.set()
    body = client.body()
    assert body.text == b"<h1>Inbox</h1><p>7</p><hr>" + COMPLETE
    assert body.is_complete

    backend.answers(START)
    body = server.get().body()
    assert body.text == b"<h1>Inbox</h1>"
    assert not body.is_complete

    def silent(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = silent
    client = server.get().until(b"<h1>Inbox</h1>")
    left_at = time.monotonic()
    client.leave()
    backend.peer.wait()
    assert backend.peer.closed_at - left_at < 1

    asked = len(backend.peers)
    client = server.get(method="HEAD")
    assert client.head()[0] == 200
    client.ask("/healthz").until(b'{"status":"ok"}')
    assert client.received.split(b"\r\n\r\n")[1].startswith(b"HTTP/1.1 200")
    assert len(backend.peers) == asked
    assert server.get("/pages/none").head()[0] == 404

    server.hang_up()
    server.end()
    assert "Traceback" not in server.log


@pytest.mark.parametrize("name", ["worker", "gevent"])
def test_gunicorns_access_log_has_each_request(name: str, start: StartServer, backend: Backend) -> None:
    server = start(name)
    backend.answers(START)
    server.get("/pages/page?x=1").body()
    server.get("/pages/none").body()
    server.hang_up()
    server.end()
    assert re.search(r'127\.0\.0\.1 .*"GET /pages/page\?x=1 HTTP/1\.1" 200 ', server.log)
    assert re.search(r'127\.0\.0\.1 .*"GET /pages/none HTTP/1\.1" 404 ', server.log)


@pytest.mark.parametrize("name", ["worker", "app.py"])
def test_a_malformed_request_is_400_without_a_traceback(name: str, start: StartServer) -> None:
    server = start(name)
    client = server.get("/x y")
    assert client.head()[0] == 400
    server.end()
    assert "Traceback" not in server.log


@pytest.mark.parametrize("name", ["worker", "app.py"])
def test_a_server_may_open_as_many_descriptors_as_the_system_allows(name: str, start: StartServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        server = start(name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (process, *_) = children(server.process.pid) or [server.process.pid]
    limits = Path(f"/proc/{process}/limits").read_text()
    assert re.search(rf"Max open files +{hard} +{hard} ", limits), limits


@pytest.mark.parametrize("name", ["worker", "app.py"])
def test_sigterm_lets_pages_finish(name: str, start: StartServer, backend: Backend) -> None:
    server = start(name)
    go_on = gevent.event.Event()

    def script(peer: Peer) -> None:
        peer.answer(START)
        assert go_on.wait(10)
        peer.chunk(record("resume", boundary=boundary("rows")))
        peer.wait()

    backend.script = script
    page = server.get().until(b"Inbox")
    idle = server.get("/healthz").until(b'"ok"}')
    server.process.send_signal(signal.SIGTERM)
    assert not idle.receive()  # a connection that only waits for its next request is closed
    go_on.set()
    assert page.body().is_complete
    assert server.process.wait(10) == 0


@pytest.mark.parametrize("name", ["worker", "app.py"])
def test_sigterm_cuts_what_takes_longer_and_ends_early(name: str, start: StartServer, backend: Backend) -> None:
    """Well before gunicorn's graceful timeout of 30 s."""
    server = start(name, STREAMING_DRAIN_TIMEOUT="0.5")

    def script(peer: Peer) -> None:
        peer.answer(START)
        peer.wait()

    backend.script = script
    page = server.get().until(b"Inbox")
    began = time.monotonic()
    assert server.end() == 0
    assert time.monotonic() - began < 10
    assert not page.body().is_complete
    assert "1 responses were cut" in server.log
    assert "Traceback" not in server.log


def test_ctrl_c_ends_app_py(start: StartServer) -> None:
    assert start("app.py").end(signal.SIGINT) == 0


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be asked for its result."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_examples_serve_and_end_with_their_backend(number: int, tmp_path: Path) -> None:
    """`make run`: the start page, a page of the second process, and both processes end together."""
    server = Server(EXAMPLES, tmp_path)
    try:
        assert b'href="/pages/inbox"' in server.get("/").body().text
        assert server.get("/report", method="HEAD").head()[0] == 200  # its content takes seconds, on purpose
        page = server.get("/pages/inbox?pause=0").body()
        assert page.is_complete
        assert page.text.endswith(COMPLETE)
        broken = server.get("/pages/broken?pause=0").body()
        assert not broken.is_complete
        (backend_process,) = children(server.process.pid)
        server.hang_up()
        server.end(number)
        until(lambda: has_ended(backend_process), "the backend to end")
    finally:
        server.close()


def run_app(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a server until it gives up."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_port_in_use_is_an_error_a_person_can_act_on(backend: Backend) -> None:
    port = backend.url.rpartition(":")[2]
    result = run_app("app.py", PORT=port)
    assert result.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "set HOST and PORT" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"PORT": "http"}, "PORT is 'http'"),
        ({"STREAMING_NONE": "1"}, "STREAMING_NONE is not a setting"),
        ({"STREAMING_MAX_PAGES": "many"}, "STREAMING_MAX_PAGES"),
        ({"STREAMING_BACKEND_URL": "http://127.0.0.1:1"}, "STREAMING_TEMPLATE_FOLDER"),
        ({"STREAMING_BACKEND_URL": "http://x", "STREAMING_TEMPLATE_FOLDER": "/none"}, "/none is not a folder"),
    ],
)
def test_a_wrong_setting_is_named_at_start(environment: dict[str, str], text: str) -> None:
    result = run_app("app.py", **environment)
    assert result.returncode != 0
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_setting_ends_the_examples_in_one_line() -> None:
    result = run_app("-m", "examples", STREAMING_MAX_PAGES="many")
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1
    assert "STREAMING_MAX_PAGES" in result.stderr


def test_serving_without_gevents_sockets_is_refused() -> None:
    code = "from streaming.server import serve; serve(lambda environ, start_response: [], '127.0.0.1', 0)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "monkey.patch_all()" in result.stderr
    assert "Traceback" not in result.stderr
