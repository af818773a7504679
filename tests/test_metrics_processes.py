"""`GET /metrics` of gunicorn with several workers: any of them answers for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import gevent
import pytest

from tests.parts import Client, until
from tests.scrape import families, values
from tests.servers import SERVERS, Server
from tests.test_processes import children

StartServer = Callable[..., Server]
#: Seconds until what a worker does is seen by all: it reports once a second. The machine may be busy.
SOON = 10.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    """Start gunicorn with so many workers; it ends with the test."""
    servers: list[Server] = []

    def start_server(workers: int, name: str = "worker") -> Server:
        (tmp_path / "tmp").mkdir()
        settings = {"WEB_CONCURRENCY": str(workers), "TMPDIR": str(tmp_path / "tmp")}
        heartbeat = {"STREAMING_PING_INTERVAL": "1000"}  # they would be bytes too
        servers.append(Server(SERVERS[name], tmp_path, **settings, **heartbeat))
        until(lambda: len(children(servers[-1].process.pid)) == workers, "the workers")
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


def folders(tmp_path: Path) -> list[str]:
    """The folders of shared metrics that there are."""
    return [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("headrace-metrics-")]


def sockets(pid: int) -> int:
    """How many sockets a process has."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(each).startswith("socket:")
    return count


def follow(server: Server, sid: str = "chat") -> Client:
    """A live connection; its first bytes have come."""
    return server.get(f"/streams/{sid}/events").until(b"subscribed")


def spread(server: Server, least: int = 3) -> tuple[list[Client], dict[int, int]]:
    """Open connections until each worker has some; how many each has."""
    before = {pid: sockets(pid) for pid in children(server.process.pid)}

    def shares() -> dict[int, int]:
        return {pid: sockets(pid) - count for pid, count in before.items()}

    clients = [follow(server)]
    while min(shares().values()) < least:
        clients.append(follow(server))
        assert len(clients) < 500, "one worker takes all connections"
    until(lambda: sum(shares().values()) == len(clients), "no other connections")
    return clients, shares()


def sample(server: Server, name: str, **labels: str) -> float:
    """What any worker says."""
    return values(families(server))[name, tuple(labels.items())]


def read_to_the_end(client: Client) -> None:
    """Read what comes, and leave at once when there is no more."""
    client._socket.settimeout(20)
    while client.receive():
        pass
    client.leave()
    assert b'"reason":"restart"' in client.received


def is_said(server: Server, name: str, value: float, **labels: str) -> bool:
    """Whether whoever is asked says so: several times, each on a new connection."""
    return all(sample(server, name, **labels) == value for _ in range(8))


def test_each_worker_answers_for_all(start: StartServer, tmp_path: Path) -> None:
    server = start(2)
    assert len(folders(tmp_path)) == 1
    clients, _ = spread(server)
    sse = {"carrier": "sse"}
    until(lambda: is_said(server, "headrace_connections", len(clients), **sse), "all connections", SOON)
    assert is_said(server, "headrace_subscribers", len(clients), mode="full")
    assert is_said(server, "headrace_streams", 2, state="idle")  # each worker has its own
    received = sum(len(client.received.split(b"\r\n\r\n", 1)[1]) for client in clients)
    assert is_said(server, "headrace_sent_bytes_total", received)
    names = {family.name for family in families(server)}
    assert not [name for name in names if name.startswith(("process_", "python_"))]
    for client in clients:
        client.leave()
    until(lambda: is_said(server, "headrace_connections", 0, **sse), "all to be gone", SOON)
    assert is_said(server, "headrace_sent_bytes_total", received)
    assert server.end() == 0
    assert folders(tmp_path) == []
    assert "Traceback" not in server.log


def test_what_a_killed_worker_had_open_goes_and_what_it_counted_stays(start: StartServer, tmp_path: Path) -> None:
    server = start(2)
    clients, shares = spread(server)
    sse = {"carrier": "sse"}
    until(lambda: is_said(server, "headrace_connections", len(clients), **sse), "all connections", SOON)
    sent = sample(server, "headrace_sent_bytes_total")
    victim, survivor = children(server.process.pid)
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in children(server.process.pid), "the worker's end", SOON)
    left = len(clients) - shares[victim]
    assert left >= shares[survivor] >= 3
    until(lambda: is_said(server, "headrace_connections", shares[survivor], **sse), "its connections to go", SOON)
    assert is_said(server, "headrace_sent_bytes_total", sent)
    until(lambda: len(children(server.process.pid)) == 2, "another worker", SOON)
    (newcomer,) = {*children(server.process.pid)} - {survivor}
    # It has all the sockets that a worker has without connections: before, they would be counted as such.
    until(lambda: sockets(newcomer) == sockets(survivor) - shares[survivor], "it to be ready", SOON)
    more, _ = spread(server, least=1)
    together = shares[survivor] + len(more)
    until(lambda: is_said(server, "headrace_connections", together, **sse), "those of the new worker", SOON)
    assert server.end() == 0
    assert folders(tmp_path) == []


def test_counts_of_a_worker_that_ends_in_peace_are_not_lost(start: StartServer, tmp_path: Path) -> None:
    """It reports once more when it ends: its last goodbyes are not a second old."""
    server = start(2)
    clients, _ = spread(server)
    before = children(server.process.pid)
    server.process.send_signal(signal.SIGHUP)  # new workers, and the old ones drain
    reading = [gevent.spawn(read_to_the_end, client) for client in clients]
    until(lambda: not set(before) & set(children(server.process.pid)), "the old workers to end", 20.0)
    gevent.joinall(reading, raise_error=True)
    received = sum(len(client.received.split(b"\r\n\r\n", 1)[1]) for client in clients)
    until(lambda: is_said(server, "headrace_sent_bytes_total", received), "what they have sent", SOON)
    assert sample(server, "headrace_closed_total", reason="restart") == len(clients)
    assert sample(server, "headrace_connections", carrier="sse") == 0
    assert len(folders(tmp_path)) == 1


def test_with_preload_it_is_the_same(start: StartServer, tmp_path: Path) -> None:
    server = start(2, "preload")
    clients, _ = spread(server)
    count = len(clients)
    until(lambda: is_said(server, "headrace_connections", count, carrier="sse"), "all connections", SOON)
    assert server.end() == 0
    assert folders(tmp_path) == []


def test_one_worker_needs_no_folder(start: StartServer, tmp_path: Path) -> None:
    server = start(1)
    follow(server)
    assert sample(server, "headrace_connections", carrier="sse") == 1
    assert "process_open_fds" in {family.name for family in families(server)}
    assert folders(tmp_path) == []
    assert server.end() == 0
