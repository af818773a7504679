"""Pages of the real browser: what they show, what goes over their WebSockets, and what they complain of."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, CDPSession, ConsoleMessage, Page, WebError

from tests.browser.servers import LIMIT, Proxy, Server, until

#: What the browser itself says in the console when a connection fails. No page can prevent it.
NETWORK = re.compile(r"^WebSocket connection to '[^']*' failed|^Failed to load resource: net::ERR_")
#: Violations of the content security policy, from the first on.
WATCH_POLICY = """
window.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sourceFile, lineNumber }) =>
  violations.push(`${violatedDirective} ${blockedURI} ${sourceFile}:${lineNumber}`));
"""
#: The messages that `watch.js` or the demo show, as `Server.snapshot` has them.
MESSAGES = """(sid) => {
  const parts = (article) => [...article.querySelectorAll("pre, [data-part]")];
  const kind = (part) => part.closest("[data-kind]").dataset.kind;
  const scope = document.querySelector(`section[data-sid="${sid}"]`) ?? document.querySelector("#paper");
  return [...scope.querySelectorAll("article[data-mid]")].map((article) => ({
    mid: article.dataset.mid, role: article.dataset.role, status: article.dataset.status,
    parts: parts(article).map((part) => [kind(part), part.textContent]),
  }));
}"""


#: Seconds of the browser's clock, and the frames of a message.
Timed = tuple[float, list[dict[str, Any]]]

RATE = 3.5  # messages a second, at most, in the background: STREAMING_BACKGROUND_INTERVAL is a third of a second
WATCHED = 8  # messages by which that is judged


def is_slow(messages: list[Timed]) -> bool:
    """Whether they came at the pace of the background. One may have been late, on a machine with much to do."""
    return messages[-1][0] - messages[0][0] > (len(messages) - 2) / RATE


class Wire:
    """What goes over the WebSockets of a page, as the browser's DevTools tell it.

    Attributes:
        received, sent: the messages.
        opened: how many WebSockets were made.
    """

    def __init__(self, on: Callable[[str, Callable[[dict[str, Any]], None]], None]) -> None:
        self.received: list[Timed] = []
        self.sent: list[Timed] = []
        self.opened = 0
        on("Network.webSocketCreated", self._count)
        on("Network.webSocketFrameReceived", lambda event: self._note(self.received, event))
        on("Network.webSocketFrameSent", lambda event: self._note(self.sent, event))

    def _count(self, _: dict[str, Any]) -> None:
        self.opened += 1

    def _note(self, messages: list[Timed], event: dict[str, Any]) -> None:
        if event["response"]["opcode"] == 1:
            found = json.loads(event["response"]["payloadData"])
            messages.append((event["timestamp"], found if isinstance(found, list) else [found]))

    def has_received(self, name: str) -> bool:
        """Whether there was a frame of this name."""
        return any(frame["t"] == name for _, frames in self.received for frame in frames)

    def has_sent(self, frame: dict[str, Any]) -> bool:
        """Whether the page sent this frame."""
        return any(frame in frames for _, frames in self.sent)


class AnyTab:
    """What a test asks of a page; `evaluate` is a page's own way of answering."""

    wire: Wire

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """What a JavaScript function, or an expression, gives in the page."""
        raise NotImplementedError

    def screenshot(self, path: Path) -> None:
        """Make a picture of it."""
        raise NotImplementedError

    def messages(self, sid: str) -> list[dict[str, Any]]:
        """The messages that the page shows."""
        found: list[dict[str, Any]] = self.evaluate(MESSAGES, sid)
        return found

    def parts(self, sid: str) -> list[list[str]]:
        """Kind and text of the parts of the newest message."""
        return (self.messages(sid) or [{"parts": []}])[-1]["parts"]

    def length(self, sid: str) -> int:
        """Of the text of the newest message."""
        return sum(len(text) for _, text in self.parts(sid))

    def connection(self) -> str:
        """What the page says of its connection."""
        return str(
            self.evaluate(
                "(_) => { const e = document.querySelector('#connection'); return e.dataset.state ?? e.textContent; }"
            )
        )

    def statuses(self) -> list[str]:
        """Of the connection, since the page was opened."""
        found: list[str] = self.evaluate("(_) => window.statuses")
        return found

    def until(self, condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
        """Wait for a condition; the browser's reports come in meanwhile."""
        return until(lambda: (self.evaluate("(_) => 0"), condition())[1], what, limit)

    def next_messages(self, of: str | None = None) -> list[Timed]:
        """The next messages that come, but for two that may have been on their way; or those with such a frame."""
        first = len(self.wire.received)

        def found() -> list[Timed]:
            return [each for each in self.wire.received[first:] if not of or any(frame["t"] == of for frame in each[1])]

        self.until(lambda: len(found()) >= WATCHED + 2, "messages")
        return found()[2 : WATCHED + 2]

    def until_grown(self, sid: str, by: int = 40) -> None:
        """Wait until so much more text is shown than now, or than nothing if it starts over."""
        before = self.length(sid)
        self.until(lambda: self.length(sid) >= before + by, f"the text to grow in {sid}")

    def until_ended(self, sid: str, status: str = "complete") -> list[list[str]]:
        """Wait until the newest message has ended and nothing is awaited any more; gives its parts."""
        self.until(lambda: [each["status"] for each in self.messages(sid)][-1:] == [status], f"the end of {sid}")
        return self.parts(sid)

    def finish(self, server: Server, sid: str) -> None:
        """End the counting there: the page has every step once, and what the server has."""
        expected = server.finish(sid)
        assert self.until_ended(sid) == expected
        assert self.messages(sid) == server.snapshot(sid)

    def lose_connection(self, proxy: Proxy) -> None:
        """Cut the network until the page says so; it comes back by itself."""
        proxy.cut()
        self.until(lambda: self.connection() != "live", "the page to say that the connection is lost")
        proxy.mend()
        self.until(lambda: self.connection() == "live", "the page to come back")


class Tab(AnyTab):
    """A page that Playwright drives. To its page it seems that somebody looks at it, whatever happens."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.add_init_script(WATCH_POLICY)
        devtools = page.context.new_cdp_session(page)
        self.wire = Wire(devtools.on)
        devtools.send("Network.enable")

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """What a JavaScript function, or an expression, gives in the page."""
        return self.page.evaluate(expression, argument)

    def screenshot(self, path: Path) -> None:
        """Make a picture of it."""
        self.page.screenshot(path=path, timeout=5_000)


class RawTab(AnyTab):
    """A page of the same browser without Playwright, which keeps its pages visible and loses those that come back.

    Tabs of one `visitor` share a window: the one in front hides the others. The messages of DevTools go through the
    browser's session, so that all is heard of in the order in which it happens.
    """

    def __init__(self, browser: CDPSession, context: str) -> None:
        self._browser = browser
        self._answers: dict[int, dict[str, Any]] = {}
        self._listeners: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._number = 0
        self.target = browser.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})[
            "targetId"
        ]
        browser.on("Target.receivedMessageFromTarget", self._receive)
        # Not `flatten`: Playwright would not pass on what comes then.
        attached = browser.send("Target.attachToTarget", {"targetId": self.target, "flatten": False})
        self._session = attached["sessionId"]
        self.wire = Wire(self.on)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _receive(self, event: dict[str, Any]) -> None:
        if event["sessionId"] != self._session:
            return
        message = json.loads(event["message"])
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] in self._listeners:
            self._listeners[message["method"]](message["params"])

    def on(self, method: str, listener: Callable[[dict[str, Any]], None]) -> None:
        """Have a function called with each report of this name."""
        self._listeners[method] = listener

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask DevTools."""
        self._number += 1
        number = self._number
        message = json.dumps({"id": number, "method": method, "params": parameters})
        self._browser.send("Target.sendMessageToTarget", {"sessionId": self._session, "message": message})
        deadline = time.monotonic() + LIMIT
        while number not in self._answers:
            assert time.monotonic() < deadline, f"no answer to {method}"
            self._browser.send("Browser.getVersion")  # lets messages come
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        found: dict[str, Any] = answer["result"]
        return found

    def go(self, url: str) -> None:
        """Go to a page; its module scripts have run."""
        self.send("Page.navigate", url=url)
        self.until_at(url)

    def back(self, url: str) -> None:
        """Go back, to this page."""
        self.evaluate("(_) => void history.back()")
        self.until_at(url)

    def until_at(self, url: str) -> None:
        """Wait until the page is there."""
        self.until(lambda: self.evaluate("(_) => document.readyState === 'complete' && location.href") == url, url)

    def show(self) -> None:
        """Bring it to the front, and so hide the other tabs."""
        self._browser.send("Target.activateTarget", {"targetId": self.target})

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """What a JavaScript function gives in the page."""
        code = f"({expression})({json.dumps(argument)})"
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Make a picture of it."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


class Visitor:
    """Somebody with a browser: opens pages, and remembers what they complain of.

    Attributes:
        expected: what consoles may say without that the test fails.
    """

    def __init__(self, browser: Browser, devtools: CDPSession) -> None:
        self._browser = browser
        self._devtools = devtools
        self._contexts: list[BrowserContext] = []
        self._raw: str | None = None
        self._complaints: list[str] = []
        self.expected: list[re.Pattern[str]] = []
        self.tabs: list[AnyTab] = []

    def context(self, **options: Any) -> BrowserContext:
        """A profile of its own."""
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        context.set_default_timeout(LIMIT * 1_000)
        context.on("console", self._hear)
        context.on("weberror", self._hear_error)
        return context

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complaints.append(message.text)

    def _hear_error(self, error: WebError) -> None:
        self._complaints.append(f"uncaught: {error.error}")

    def open(self, url: str, context: BrowserContext | None = None, **options: Any) -> Tab:
        """Open a page in a tab; in a profile of its own if none is given."""
        tab = self.tab(context, **options)
        tab.page.goto(url)
        return tab

    def tab(self, context: BrowserContext | None = None, **options: Any) -> Tab:
        """An empty tab."""
        tab = Tab((context or self.context(**options)).new_page())
        self.tabs.append(tab)
        return tab

    def raw_tab(self) -> RawTab:
        """An empty tab in the visitor's window; see RawTab."""
        self._raw = self._raw or self._devtools.send("Target.createBrowserContext")["browserContextId"]
        tab = RawTab(self._devtools, self._raw)
        tab.on("Runtime.consoleAPICalled", self._hear_raw)
        tab.on(
            "Runtime.exceptionThrown", lambda event: self._complaints.append(f"uncaught: {event['exceptionDetails']}")
        )
        tab.on("Log.entryAdded", lambda event: self._hear_log(event["entry"]))
        self.tabs.append(tab)
        return tab

    def _hear_raw(self, event: dict[str, Any]) -> None:
        if event["type"] in ("error", "warning", "assert"):
            self._complaints.append(" ".join(str(each.get("value", each.get("description"))) for each in event["args"]))

    def _hear_log(self, entry: dict[str, Any]) -> None:
        if entry["level"] in ("error", "warning"):
            self._complaints.append(entry["text"])

    def complaints(self) -> list[str]:
        """What consoles said, and nobody expected."""
        for tab in self.tabs:
            tab.evaluate("(_) => 0")  # what was said before has come then
        return [each for each in self._complaints if not any(pattern.search(each) for pattern in self.expected)]

    def close(self) -> None:
        """Close all tabs."""
        for context in self._contexts:
            context.close()
        if self._raw:
            self._devtools.send("Target.disposeBrowserContext", {"browserContextId": self._raw})
