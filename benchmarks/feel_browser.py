"""A headless Chromium for `feel`, spoken to in the Chrome DevTools Protocol, and what its traces say.

The protocol goes over sockets that the browser takes for pipes, without a library. Libraries that drive browsers have
the page report each WebSocket message to them, which costs its main thread time: what `feel` measures. Here nothing is
switched on that was not asked for. What waits here is patched by gevent, as in all benchmarks: a thread is a greenlet.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

#: The browser: $CHROMIUM, or the first of these.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container there is no sandbox to be had
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--password-store=basic",
    "--mute-audio",
    # A page that nobody looks at would be slowed down, and it is never sure that a headless one is looked at.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
)
#: Of a trace: tasks of the main thread, what they do, frames, the marks of the page.
DETAILS = ("devtools.timeline", "disabled-by-default-devtools.timeline", "blink.user_timing")
#: The same without what they do: for loads under which that would be millions of events.
TASKS_ONLY = ("toplevel", "blink.user_timing")
LIMIT = 60.0  # seconds for an answer of the browser


class BrowserError(RuntimeError):
    """The browser refused, failed, or did not answer in time."""


class Browser:
    """One process of it with a profile of its own, which is deleted at the end.

    Raises:
        BrowserError: there is none.
    """

    def __init__(self) -> None:
        found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            raise BrowserError("there is no Chromium; name one in the environment as CHROMIUM")
        self._profile = tempfile.mkdtemp(prefix="headrace-feel-")
        self._pipe, theirs = socket.socketpair()
        os.set_blocking(theirs.fileno(), True)  # gevent's are not
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec 4<&{theirs.fileno()} 3<&4 && exec "$0" "$@"'
        command = ["bash", "-c", script, found, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        theirs.close()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._events: dict[str, Future[dict[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()
        self.version = self.call("Browser.getVersion")["product"]

    def _read(self) -> None:
        rest = b""
        while data := self._pipe.recv(1 << 20):
            *messages, rest = (rest + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            future = self._waiting.pop(message["id"], None)
        else:
            future = self._events.pop(message["method"], None)
        if future is None:
            return
        if "error" in message:
            future.set_exception(BrowserError(str(message["error"])))
        else:
            future.set_result(message.get("result") or message.get("params") or {})

    def send(self, method: str, session: str | None = None, **params: Any) -> Future[dict[str, Any]]:
        """Ask for something; the answer comes later. From any thread."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        future: Future[dict[str, Any]] = Future()
        self._waiting[number] = future
        data = json.dumps(message).encode() + b"\0"
        with self._lock:
            self._pipe.sendall(data)
        return future

    def call(self, method: str, session: str | None = None, limit: float = LIMIT, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        try:
            return self.send(method, session, **params).result(limit)
        except TimeoutError:
            raise BrowserError(f"no answer to {method} within {limit:g} s") from None

    def expect(self, event: str) -> Future[dict[str, Any]]:
        """The next event of this name."""
        return self._events.setdefault(event, Future())

    @contextlib.contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """A tab with this page, in front; it is closed at the end. A new window would cost seconds for its frame."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Page.navigate", url=url)
        try:
            yield page
        finally:
            with contextlib.suppress(BrowserError):
                self.call("Target.closeTarget", targetId=target, limit=15)

    @contextlib.contextmanager
    def tracing(self, categories: Sequence[str] = DETAILS) -> Iterator[dict[str, Any]]:
        """Trace what happens in the block. Afterwards the yielded dictionary has it in `traceEvents`."""
        config = {"includedCategories": list(categories), "excludedCategories": ["*"]}
        buffer = {"recordMode": "recordUntilFull", "traceBufferSizeInKb": 400_000}
        self.call("Tracing.start", transferMode="ReturnAsStream", traceConfig=config | buffer)
        found: dict[str, Any] = {}
        try:
            yield found
        finally:
            complete = self.expect("Tracing.tracingComplete")
            self.call("Tracing.end")
            handle = complete.result(LIMIT)["stream"]
            pieces = []
            while not (piece := self.call("IO.read", handle=handle, size=8 << 20)).get("eof"):
                pieces.append(piece["data"])
            pieces.append(piece.get("data", ""))
            self.call("IO.close", handle=handle)
            found.update(json.loads("".join(pieces)))

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close", limit=10)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe.close()
        shutil.rmtree(self._profile, ignore_errors=True)


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self._session = session

    def send(self, method: str, **params: Any) -> Future[dict[str, Any]]:
        """Ask for something; the answer comes later."""
        return self.browser.send(method, self._session, **params)

    def call(self, method: str, limit: float = LIMIT, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        return self.browser.call(method, self._session, limit, **params)

    def do(self, expression: str, limit: float = LIMIT) -> Any:
        """The value of an expression of JavaScript, a promise's too.

        Raises:
            BrowserError: it threw, or the page was busy for longer than `limit`.
        """
        options = {"awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", limit, expression=expression, **options)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"].get("exception", answer["exceptionDetails"])))
        return answer["result"].get("value")

    def wait(self, expression: str, limit: float = 30) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + limit
        while not self.do(f"Boolean({expression})", limit=max(1.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited {limit:g} s for {expression}")
            time.sleep(0.05)

    def metrics(self) -> dict[str, float]:
        """Those of the `Performance` domain, in seconds where they are times."""
        return {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
