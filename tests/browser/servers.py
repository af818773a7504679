"""Real server processes, and a proxy in front of them that can misbehave. No gevent: Playwright can't live with it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.browser.counting import counted

ROOT = Path(__file__).parents[2]
LIMIT = 15.0  # seconds that a test waits for anything


def until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Wait until a condition is true and return what it gave; fail the test if it does not come."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {limit:g} s for {what}"
        time.sleep(0.02)
    return found


def free_port() -> int:
    """Below those that the system gives to clients: between two processes of a server nobody takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


class Server:
    """`served.py` in a process of its own; a new one can take its place, on the same port."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        own = {key: value for key, value in os.environ.items() if not key.startswith("STREAMING_")}
        self._environment = own | {"PORT": str(self.port)} | {key: str(value) for key, value in settings.items()}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.prepare()
        self.start()

    def prepare(self) -> None:
        """Have a process ready to `start`: it has imported all that it needs."""
        command = [sys.executable, "-m", "tests.browser.served"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._processes.append(process)
        until(lambda: self.log.count("ready\n") == len(self._processes), "a process to be ready")

    def start(self) -> None:
        """Start the process that was prepared."""
        self.process = self._processes[-1]
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        until(self._answers, "the server to listen")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        with contextlib.suppress(URLError):
            self.ask("/healthz")
            return True
        return False

    @property
    def log(self) -> str:
        """Everything that its processes wrote."""
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(LIMIT)

    def close(self) -> None:
        """End all processes, however they are. Nothing that a browser did may have made a traceback."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(LIMIT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            assert process.stdin is not None
            process.stdin.close()
        assert "Traceback" not in self.log, self.log

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST of JSON; the answer's body, decoded if it is JSON."""
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, {"Content-Type": "application/json"}), timeout=LIMIT) as response:
            text = response.read().decode()
        return json.loads(text) if "json" in response.headers["Content-Type"] else text

    def write(self, sid: str, *pieces: tuple[str, str], pause: float = 0, title: str = "Written") -> str:
        """Begin to write a message of these pieces, `(kind, text)`; gives its mid."""
        return str(self.ask(f"/write/{sid}", {"pieces": pieces, "pause": pause, "title": title})["mid"])

    def count(self, sid: str, pause: float = 0.008) -> None:
        """Begin to count in a stream, until `finish`."""
        self.ask(f"/count/{sid}", {"pause": pause})

    def finish(self, sid: str) -> list[list[str]]:
        """End the counting; gives kind and text of the parts, from the test's own knowledge."""
        return counted(self.ask(f"/finish/{sid}", {})["steps"])

    def snapshot(self, sid: str) -> list[dict[str, Any]]:
        """The messages of the stream, as GET /streams/<sid> tells them, in the form of `Tab.messages`."""
        return [
            {"mid": each["mid"], "role": each["role"], "status": each["status"]}
            | {"parts": [[part["kind"], part["s"]] for part in each["parts"]]}
            for each in self.ask(f"/streams/{sid}")["messages"]
        ]

    def text(self, sid: str) -> str:
        """All text of the newest message."""
        return "".join(text for _, text in self.snapshot(sid)[-1]["parts"])

    def epoch(self, sid: str) -> str:
        """The epoch of a stream."""
        return str(self.ask(f"/streams/{sid}")["epoch"])


class Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, head: bytes, target: int) -> None:
        self.is_silent = False
        self.head = head
        self.client = client
        self.server = socket.create_connection(("127.0.0.1", target))
        self.server.sendall(head)
        for source, sink in ((self.client, self.server), (self.server, self.client)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self.is_silent:
                    sink.sendall(data)
        if not self.is_silent:
            self.cut()

    def cut(self) -> None:
        """End both connections."""
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the sockets back."""
        self.cut()
        self.client.close()
        self.server.close()

    @property
    def is_websocket(self) -> bool:
        """Whether an upgrade was asked for and let through."""
        return b"\r\nupgrade: websocket" in self.head.lower()


class Proxy:
    """A TCP proxy on a port of its own, in front of a server.

    Attributes:
        websockets: `pass`; `refuse`, they are answered 403; or `strip`, the wish for an upgrade is taken out.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_cut = False
        self.websockets = "pass"
        self.links: list[Link] = []
        self._clients: list[socket.socket] = []  # so that a test ends with all of them closed
        self.refused = 0  # wishes for an upgrade that were not let through
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                if self._is_cut:
                    # With a reset.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                else:
                    threading.Thread(target=self._begin, args=(client,), daemon=True).start()

    def _begin(self, client: socket.socket) -> None:
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                data = client.recv(65_536)
                if not data:
                    return client.close()  # a browser connects ahead of its needs
                head += data
            if b"\r\nupgrade: websocket" in head.lower() and self.websockets != "pass":
                self.refused += 1
                if self.websockets == "refuse":
                    client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return client.close()
                lines = [
                    line for line in head.split(b"\r\n") if not line.lower().startswith((b"upgrade:", b"connection:"))
                ]
                head = b"\r\n".join(lines)
            self.links.append(Link(client, head, self._target))
        except OSError:
            client.close()

    @property
    def websocket_links(self) -> list[Link]:
        """All WebSockets that there were."""
        return [link for link in self.links if link.is_websocket]

    def cut(self) -> None:
        """Break all connections, and let none come about."""
        self._is_cut = True
        for link in self.links:
            link.cut()

    def mend(self) -> None:
        """Let connections come about again."""
        self._is_cut = False

    def swallow(self) -> None:
        """Of the connections that there are nothing gets through any more, and nobody is told; new ones work."""
        for link in self.links:
            link.is_silent = True

    def close(self) -> None:
        """End it, with all connections."""
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        for link in self.links:
            link.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
