"""Behind a proxy that lets no WebSocket through, server-sent events carry the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Request

from tests.browser.servers import Proxy, Server
from tests.browser.tabs import NETWORK, Visitor


@pytest.mark.parametrize("how", ["refuse", "strip"])
def test_without_websockets_the_text_comes_whole_and_stop_works(
    visitor: Visitor, server: Server, start_proxy: Callable[[Server], Proxy], sid: str, how: str
) -> None:
    """After two tries. With `strip` the proxy takes the wish for an upgrade out, and the server refuses."""
    visitor.expected.append(NETWORK)
    proxy = start_proxy(server)
    proxy.websockets = how
    tab = visitor.tab()
    sources: list[str] = []

    def note(request: Request) -> None:
        if request.resource_type == "eventsource":
            sources.append(request.url)

    tab.page.on("request", note)
    tab.page.goto(f"{proxy.url}/watch?sid={sid}")
    tab.until(lambda: tab.connection() == "live", "the page to be connected")
    assert proxy.refused == 2
    assert sources == [f"{proxy.url}/streams/{sid}/events"]
    server.count(sid)
    tab.until_grown(sid)
    tab.lose_connection(proxy)
    tab.until_grown(sid)
    tab.finish(server, sid)
    assert sources[-1].startswith(f"{sources[0]}?cursor=")

    server.count(sid)
    tab.until(lambda: len(tab.messages(sid)) == 2 and tab.length(sid) > 20, "the second answer")
    tab.page.get_by_role("button", name="Stop").click()
    tab.until_ended(sid, "cancelled")
    assert tab.messages(sid) == server.snapshot(sid)
    assert not tab.wire.received


def test_the_page_returns_to_a_websocket_once_one_gets_through(
    visitor: Visitor, server: Server, start_proxy: Callable[[Server], Proxy], sid: str
) -> None:
    """It tries after a minute, which the browser's clock is made to pass at once; the text goes on."""
    visitor.expected.append(NETWORK)
    proxy = start_proxy(server)
    proxy.websockets = "refuse"
    tab = visitor.tab()
    tab.page.clock.install()
    tab.page.goto(f"{proxy.url}/watch?sid={sid}")
    tab.until(lambda: tab.connection() == "live", "the page to be connected")
    server.count(sid)
    tab.until_grown(sid)
    proxy.websockets = "pass"
    tab.page.clock.fast_forward("01:05")
    tab.until(lambda: tab.wire.has_received("delta"), "text over a WebSocket")
    tab.until_grown(sid)
    tab.finish(server, sid)
    assert len(proxy.websocket_links) == 1
