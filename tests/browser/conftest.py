"""One browser for all tests, and a server. A page that complains fails its test; a test that fails leaves a picture."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Playwright, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.browser.servers import Proxy, Server
from tests.browser.tabs import Visitor

RESULTS = Path(__file__).parent / "results"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # in a container there is none to be had
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages of the browser's own address bar, two for each window, which cost more than ours.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
]


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """The driver."""
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """The system's Chromium, or the one that $CHROMIUM names."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        (pytest.fail if "REQUIRE_ALL" in os.environ else pytest.skip)("Chromium is not installed")
    # Playwright switches the back/forward cache off; people have it.
    without = ["--disable-back-forward-cache"]
    browser = playwright.chromium.launch(executable_path=found, args=FLAGS, ignore_default_args=without)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def devtools(browser: Browser) -> CDPSession:
    """The browser's own session, for what Playwright has no words for."""
    return browser.new_browser_cdp_session()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests that leave it as it is. Streams are told apart by `sid`."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def sid(request: pytest.FixtureRequest) -> str:
    """A stream that no other test has."""
    return re.sub(r"\W+", "-", request.node.name)[:100].strip("-")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of the test's own, with settings."""
    with ExitStack() as stack:

        def start(**settings: object) -> Server:
            server = Server(tmp_path, **settings)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def start_proxy() -> Iterator[Callable[[Server], Proxy]]:
    """Start a proxy in front of a server."""
    with ExitStack() as stack:

        def start(server: Server) -> Proxy:
            proxy = Proxy(server.port)
            stack.callback(proxy.close)
            return proxy

        yield start


@pytest.fixture
def visitor(browser: Browser, devtools: CDPSession) -> Iterator[Visitor]:
    """Somebody with the browser."""
    visitor = Visitor(browser, devtools)
    yield visitor
    visitor.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run a test; then no page may have complained. If it fails, make pictures and name them in the message."""
    visitor = pyfuncitem.funcargs.get("visitor")
    try:
        result = yield
        if isinstance(visitor, Visitor):
            complaints = visitor.complaints()
            assert not complaints, "a page complained in its console:\n" + "\n".join(complaints)
    except Exception as error:
        for number, tab in enumerate(visitor.tabs if isinstance(visitor, Visitor) else [], start=1):
            path = RESULTS / f"{re.sub(r'[^a-zA-Z0-9]+', '_', pyfuncitem.name).strip('_')}_{number}.png"
            try:
                RESULTS.mkdir(exist_ok=True)
                tab.screenshot(path)
                error.add_note(f"screenshot: {path}")
            except (PlaywrightError, AssertionError) as failure:
                error.add_note(f"no screenshot: {failure}")
        raise
    return result
