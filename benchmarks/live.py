"""What live benchmarks are made of, as the driver sees it: a server process, processes of clients, and their costs."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import process_cpu

FOLDER = Path(__file__).parent


class Child:
    """A Python process; it prints its port first and ends with its standard input."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=FOLDER.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )
        self.pid = self._process.pid
        self.port = int(self.line())

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found:
            raise RuntimeError(f"a process of the benchmark ended with code {self._process.wait()}")
        return found

    def tell(self, text: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        return process_cpu(self.pid)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class LiveServer(Child):
    """The product, serving; settings as STREAMING_* variables."""

    def __init__(self, **settings: str) -> None:
        super().__init__("-m", "benchmarks.live_server", **{"STREAMING_MAX_CONNECTIONS": "100000", **settings})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request on a connection of its own; the answer's JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        headers = {"Connection": "close"} | ({} if body is None else {"Content-Type": "application/json"})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return json.loads(text)

    def usage(self) -> dict[str, Any]:
        """What it has used and counted so far."""
        found: dict[str, Any] = self.ask("GET", "/bench/usage")
        return found

    def produce(
        self, sids: Sequence[str], *, rate: float, tokens: int, turns: int = 1, is_numbered: bool = False
    ) -> None:
        """Start a producer for each stream; `is_numbered` makes each token of a stream another one."""
        body = {"sids": list(sids), "rate": rate, "tokens": tokens, "turns": turns, "numbered": is_numbered}
        self.ask("POST", "/bench/produce", body)

    def wait(self, limit: float) -> None:
        """Wait until no producer is at work; `limit` in seconds."""
        wait_until(lambda: self.usage()["producing"] == 0, "the producers to end", limit)


class Readers(Child):
    """A process of clients."""

    def __init__(self, server: LiveServer, carrier: str) -> None:
        super().__init__(FOLDER / "readers.py", server.port, carrier)

    def _do(self, **command: Any) -> dict[str, Any]:
        self.tell(json.dumps(command))
        answer: dict[str, Any] = json.loads(self.line())
        return answer

    def connect(self, sids: Sequence[str], *, read: int = 0, query: str = "", keep: bool = False) -> None:
        """Open one connection for each id; the first `read` of them are read frame by frame."""
        self._do(do="connect", sids=list(sids), read=read, query=query, keep=keep)

    def report(self) -> dict[str, Any]:
        """What has come since the last report; see `readers.py`."""
        return self._do(do="report")

    def disconnect(self) -> None:
        """Close all connections."""
        self._do(do="close")


class Droppers(Child):
    """A process of clients that lose their connections; see `droppers.py`."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(FOLDER / "droppers.py", server.port)

    def start(self, **plan: Any) -> None:
        """Start the clients, and wait until all are connected."""
        self.tell(json.dumps(plan))
        self.line()

    def report(self) -> dict[str, Any]:
        """Wait for the end; what each client has and counted."""
        answer: dict[str, Any] = json.loads(self.line())
        return answer


class Bystander(Child):
    """A process that asks for an ordinary page on a fixed schedule."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(FOLDER / "bystander_client.py", server.port)

    def start(self, seconds: float) -> None:
        """Ask for so long; `report` waits for the end."""
        self.tell(str(seconds))

    def report(self) -> dict[str, list[float]]:
        """What came of it; see `bystander_client.py`."""
        answer: dict[str, list[float]] = json.loads(self.line())
        return answer


def wait_until(condition: Callable[[], bool], what: str, limit: float) -> None:
    """Look every 0.1 s until something holds; RuntimeError after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit:g} s for {what}")
        time.sleep(0.1)


def bottleneck(server_cpu: float, clients_cpu: float, seconds: float) -> str:
    """Which side had the least room left: shares of one core."""
    server, clients = server_cpu / seconds, clients_cpu / seconds
    side = "neither side" if max(server, clients) < 0.8 else "the server" if server > clients else "the clients"
    return f"{side} (server {server:.0%}, clients {clients:.0%} of a core)"
