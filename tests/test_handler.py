"""Hostile requests on our server: heads that others may read differently, floods, clients that break off."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.pool import Pool

from streaming.server import StreamingServer
from tests.live import LiveSite
from tests.parts import Client, until

TOKEN = "a-token-for-tests"
REQUEST = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]


@pytest.mark.parametrize("path", ["/healthz", "/streams/none", "/nothing"])
def test_a_client_that_pipelines_requests_lets_others_run(live_site: LiveSite, path: str) -> None:
    """Its next request is always there, and its answers never block."""
    client = live_site.connect()
    requests = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 500

    def send() -> None:
        while True:
            client.send(requests)

    def read() -> None:
        while client.receive():
            client.received = b""

    greenlets = [gevent.spawn(send), gevent.spawn(read)]
    gaps = []
    for _ in range(100):
        began = time.monotonic()
        gevent.sleep(0.001)
        gaps.append(time.monotonic() - began)
    gevent.killall(greenlets)
    assert sorted(gaps)[90] < 0.05, gaps


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4\r\nContent-Length: 4",
        "Content-Length: 4, 4",
        "Content-Length: +4",
        "Content-Length: -4",
        "Content-Length: 0_4",
        "Content-Length: 4 4",
        "Content-Length:",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "X: y\r\n z: w",
    ],
)
def test_a_head_that_others_may_read_differently_is_refused(live_site: LiveSite, headers: str) -> None:
    client = live_site.connect()
    client.send(f"POST /streams/a/cancel HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\nabcd".encode())
    assert client.head()[0] == 400
    while client.receive():
        pass
    assert client.received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe\x00" * 100,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000,
        b"GET /healthz HTTP/1.1\r\nContent-Length: zz\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /streams/a/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{",
        b"POST /streams/a/cancel HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"POST /streams/a/cancel HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /streams/a/events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 300,
    ],
)
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_breaks_off_leaves_no_traceback(
    live_site: LiveSite,
    data: bytes,
    reset: bool,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(5):
        client = live_site.connect()
        client.send(data)
        client.leave(reset=reset)
    until(lambda: not live_site.server.handlers, "the server to notice")
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_body_that_does_not_come_is_answered_in_limited_time(
    live_site: LiveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.live.views.CANCEL_TIMEOUT", 0.1)
    client = live_site.connect()
    client.send(b"POST /streams/a/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{")
    assert client.head()[0] == 408


def test_a_refusal_before_100_continue_ends_the_connection(live_site: LiveSite) -> None:
    """The client may send its body, or its next request: nobody could tell which."""
    live_site.configure(ingest_token=TOKEN)
    client = live_site.connect()
    client.ask("/streams/a/records", method="POST", headers="Content-Length: 20\r\nExpect: 100-continue\r\n")
    status, headers = client.head()
    assert (status, headers["connection"]) == (401, "close")
    while client.receive():
        pass


# -- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate and its key."""
    if shutil.which("openssl") is None:
        (pytest.fail if "REQUIRE_ALL" in os.environ else pytest.skip)("openssl is not installed")
    made = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        [*REQUEST, "-out", made[0], "-keyout", made[1]],
        check=True,
        capture_output=True,
    )
    return made


def test_tls_clients_follow_streams_and_break_off_without_a_traceback(
    live_site: LiveSite, certificate: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(*certificate)
    server = StreamingServer(("127.0.0.1", 0), live_site.app, spawn=Pool(), log=None, ssl_context=own)
    server.start()
    context = ssl.create_default_context(cafile=certificate[0])

    def connect() -> Any:
        plain = Client(server.server_port)
        return context.wrap_socket(plain._socket, server_hostname="localhost")

    text = "x" * 1_000_000  # more than a socket takes at once
    with live_site.message("chat") as message:
        message.append(text)
        message.append("the end")
    follower = connect()
    follower.sendall(b"GET /streams/chat/records?until=idle HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = b""
    while data := follower.recv(65_536):
        received += data
    assert received.count(b"x") > 1_000_000
    assert b'"t":"done"' in received
    assert received.endswith(b"0\r\n\r\n")
    follower.close()

    leaver = connect()
    leaver.sendall(b"GET /streams/chat/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    leaver.recv(1_000)
    leaver.close()
    for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        client = Client(server.server_port)
        client.send(junk)
        client.leave(reset=bool(junk))
    half = connect()
    half.sendall(b"GET / HTTP/1.1\r\nHost")
    half.close()
    until(lambda: not live_site.hub.connections and not server.handlers, "all to be gone")
    until(lambda: not server.pool, "all handlers to end")
    server.stop()
    assert "Traceback" not in "".join(capfd.readouterr())
