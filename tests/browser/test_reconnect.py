"""Whatever happens to a connection, the page comes back by itself, and no character is missing or doubled."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.browser.servers import Proxy, Server
from tests.browser.tabs import NETWORK, Visitor

WATCH_RETURN = """(_) => {
  window.isTheSame = true;
  addEventListener("pageshow", (event) => (window.isPersisted = event.persisted));
}"""
WATCH_FREEZING = """(_) => {
  window.states = [];
  for (const name of ["freeze", "resume"]) document.addEventListener(name, () => states.push(name));
}"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_page_survives_a_restart_of_the_server_in_mid_answer(
    visitor: Visitor, start_server: Callable[..., Server], sid: str, number: signal.Signals
) -> None:
    """It says so, comes back by itself, and follows the new process from its beginning."""
    visitor.expected.append(NETWORK)
    server = start_server()
    tab = visitor.open(f"{server.url}/watch?sid={sid}")
    server.count(sid)
    tab.until_grown(sid)
    epoch = server.epoch(sid)
    server.prepare()
    server.end(number)
    tab.until(lambda: tab.connection() != "live", "the page to say that the connection is lost")
    assert tab.wire.has_received("bye") == (number == signal.SIGTERM)
    assert tab.length(sid) >= 40  # what was read stays while the server is away
    tab.until(lambda: tab.statuses().count("waiting") > 1, "the page to have tried once without success")

    server.start()
    server.count(sid)
    tab.until(lambda: tab.connection() == "live", "the page to come back")
    tab.until(lambda: len(tab.messages(sid)) == 1 and tab.length(sid) >= 40, "the new answer")
    assert server.epoch(sid) != epoch
    tab.finish(server, sid)


def test_a_page_that_was_offline_has_the_whole_text_in_the_end(
    visitor: Visitor, server: Server, start_proxy: Callable[[Server], Proxy], sid: str
) -> None:
    """Whether its connection outlived that, or not."""
    visitor.expected.append(NETWORK)
    proxy = start_proxy(server)
    tab = visitor.open(f"{proxy.url}/watch?sid={sid}")
    server.count(sid)
    for is_broken in (False, True):  # Chromium lets a WebSocket that is open be, when it is made to think it is offline
        tab.until_grown(sid)
        before = tab.length(sid)
        if is_broken:
            proxy.cut()
        tab.page.context.set_offline(True)
        assert tab.evaluate("navigator.onLine") is False
        tab.until(lambda before=before: len(server.text(sid)) > before + 100, "the answer to go on meanwhile")
        if is_broken:
            tab.until(lambda: tab.connection() != "live", "the page to say that the connection is lost")
            proxy.mend()
        assert tab.length(sid) >= before
        tab.page.context.set_offline(False)
        tab.until(lambda: tab.connection() == "live", "the page to come back")
    tab.until_grown(sid)
    tab.finish(server, sid)


def test_a_cut_network_costs_no_character(
    visitor: Visitor, server: Server, start_proxy: Callable[[Server], Proxy], sid: str
) -> None:
    """Twice, in mid-answer. The page goes on from its cursor: what it has is not sent again."""
    visitor.expected.append(NETWORK)
    proxy = start_proxy(server)
    tab = visitor.open(f"{proxy.url}/watch?sid={sid}")
    server.count(sid)
    for _ in range(2):
        tab.until_grown(sid)
        tab.lose_connection(proxy)
    tab.until_grown(sid)
    tab.finish(server, sid)
    assert not tab.wire.has_received("reset")
    offsets = [frame["off"] for _, frames in tab.wire.received for frame in frames if frame["t"] == "delta"]
    assert offsets.count(0) == 2  # of each part once


def test_a_connection_that_only_seems_open_is_found_out_and_replaced(
    visitor: Visitor, start_server: Callable[..., Server], start_proxy: Callable[[Server], Proxy], sid: str
) -> None:
    """Nothing gets through, and neither side is told: `readyState` stays OPEN."""
    server = start_server(STREAMING_PING_INTERVAL=1)
    proxy = start_proxy(server)
    tab = visitor.open(f"{proxy.url}/watch?sid={sid}")
    server.count(sid)
    tab.until_grown(sid)
    first = len(proxy.websocket_links)
    proxy.swallow()
    tab.until(lambda: len(proxy.websocket_links) > first, "the page to notice")
    tab.until_grown(sid)
    tab.finish(server, sid)


def test_a_quiet_connection_is_kept_with_quick_heartbeats(
    visitor: Visitor, start_server: Callable[..., Server], sid: str
) -> None:
    """Nothing is written, nothing is wrong: the page keeps its connection."""
    server = start_server(STREAMING_PING_INTERVAL=1)
    tab = visitor.open(f"{server.url}/watch?sid={sid}")
    tab.until(lambda: tab.wire.opened > 1 or tab.evaluate("performance.now() > 5_500"), "the page to look twice")
    assert tab.wire.opened == 1


def test_a_page_that_comes_back_from_the_back_forward_cache_goes_on(visitor: Visitor, server: Server, sid: str) -> None:
    """It is the same page, with what it had; its connection ended when it was left."""
    tab = visitor.raw_tab()
    url = f"{server.url}/watch?sid={sid}"
    tab.go(url)
    server.count(sid)
    tab.until_grown(sid)
    tab.evaluate(WATCH_RETURN)
    tab.go(f"{server.url}/report")
    tab.back(url)
    assert tab.evaluate("(_) => [window.isTheSame, window.isPersisted]") == [True, True]
    tab.until_grown(sid)
    assert tab.statuses() == ["connecting", "live", "waiting", "connecting", "live"]
    assert not tab.wire.has_received("reset")
    tab.finish(server, sid)


def test_a_page_that_was_frozen_goes_on(visitor: Visitor, server: Server, sid: str) -> None:
    """As a browser does with tabs that nobody has looked at for long. Chromium ends its connections."""
    visitor.expected.append(NETWORK)
    tab = visitor.raw_tab()
    tab.go(f"{server.url}/watch?sid={sid}")
    tab.evaluate(WATCH_FREEZING)
    server.count(sid)
    tab.until_grown(sid)
    tab.send("Page.setWebLifecycleState", state="frozen")
    before = len(server.text(sid))
    tab.until(lambda: len(server.text(sid)) > before + 100, "the answer to go on meanwhile")
    tab.send("Page.setWebLifecycleState", state="active")
    tab.until_grown(sid)
    assert tab.evaluate("(_) => states") == ["freeze", "resume"]
    tab.finish(server, sid)
