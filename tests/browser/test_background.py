"""What nobody looks at costs little, and is whole when somebody does."""

from __future__ import annotations

from tests.browser.servers import Server
from tests.browser.tabs import Visitor, is_slow


def test_a_hidden_page_says_so_and_gets_about_three_messages_a_second(
    visitor: Visitor, server: Server, sid: str
) -> None:
    """And when it is shown again, it has the whole text. A real tab, hidden by another one in the same window."""
    tab, other = visitor.raw_tab(), visitor.raw_tab()
    tab.go(f"{server.url}/watch?sid={sid}")
    tab.show()
    tab.until(lambda: tab.evaluate("(_) => document.visibilityState") == "visible", "the page to be seen")
    server.count(sid)
    tab.until_grown(sid)
    assert not is_slow(tab.next_messages())
    other.show()
    tab.until(lambda: tab.evaluate("(_) => document.visibilityState") == "hidden", "the page to be hidden")
    tab.until(lambda: tab.wire.has_sent({"t": "visibility", "hidden": True}), "it to say so")
    assert is_slow(tab.next_messages())
    tab.wire.sent.clear()
    tab.show()
    tab.until(lambda: tab.wire.has_sent({"t": "visibility", "hidden": False}), "it to say so")
    tab.until_grown(sid)
    assert not is_slow(tab.next_messages())
    tab.finish(server, sid)
    assert tab.wire.opened == 1


def test_sixteen_streams_in_the_background_cost_three_messages_a_second(
    visitor: Visitor, server: Server, sid: str
) -> None:
    """Of activity alone, no text. One that is chosen is shown whole."""
    sids = [f"{sid}-{number}" for number in range(16)]
    tab = visitor.open(f"{server.url}/watch?{'&'.join(f'sid={each}' for each in sids)}#none")
    for each in sids:
        server.count(each, pause=0.03)
    tab.until(lambda: tab.page.locator(".activity", has_text="streaming").count() == 16, "all to be at work")
    messages = tab.next_messages()
    assert is_slow(messages)
    assert {frame["t"] for _, frames in messages for frame in frames} == {"activity"}
    assert {item["sid"] for _, frames in messages for frame in frames for item in frame["items"]} == set(sids)

    chosen = sids[7]
    assert tab.messages(chosen) == []
    tab.page.get_by_role("link", name=chosen).click()
    tab.until_grown(chosen)
    for each in sids:
        expected = server.finish(each)
        if each == chosen:
            assert tab.until_ended(chosen) == expected
    assert tab.messages(chosen) == server.snapshot(chosen)
    texts = {frame["sid"] for _, frames in tab.wire.received for frame in frames if frame["t"] == "delta"}
    assert texts == {chosen}
    assert tab.wire.opened == 1
