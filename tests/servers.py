"""The servers as people start them, each a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.parts import Client, until

ROOT = Path(__file__).parents[1]
GUNICORN = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py"]
SERVERS = {
    "worker": [*GUNICORN, "app:app"],
    "preload": [*GUNICORN, "--preload", "app:app"],
    "gevent": [*GUNICORN, "-k", "gevent", "app:app"],
    "app.py": [sys.executable, "app.py"],
}


class Server:
    """A server process, and what it has written."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = folder / "server.log"
        environment = os.environ | {"PORT": str(self.port)} | environment
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self._clients: list[Client] = []
        until(self._answers, "the server to listen", limit=20)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return self.get("/healthz").head()[0] == 200
        except ConnectionRefusedError:
            return False

    @property
    def log(self) -> str:
        """Everything it wrote."""
        return self._log.read_text()

    def get(self, path: str = "/pages/page", **how: str) -> Client:
        """Ask on a new connection."""
        return self.connect().ask(path, **how)

    def connect(self) -> Client:
        """A new connection; closed with the server at the latest."""
        client = Client(self.port)
        self._clients.append(client)
        return client

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(20)

    def hang_up(self) -> None:
        """Close all clients: gunicorn's own worker waits for idle connections."""
        for client in self._clients:
            client.leave()

    def close(self) -> None:
        """End it, however it is."""
        self.hang_up()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # gunicorn then ends without a drain
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
