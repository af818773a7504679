"""The demo, as somebody uses it: with a strict policy, with the keyboard, on a phone, by ear."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.servers import Proxy, Server
from tests.browser.tabs import NETWORK, Tab, Visitor, is_slow

CHAT = "chat"
NARROW = 400  # pixels
#: What is wider than its place in a message.
TOO_WIDE = """(mid) => [...document.querySelectorAll(`#paper [data-mid="${mid}"] *`)]
  .filter((element) => element.clientWidth && element.scrollWidth > element.clientWidth)
  .map(({ tagName, className, scrollWidth, clientWidth, textContent }) =>
    `${tagName} ${className}: ${scrollWidth} > ${clientWidth}: ${textContent.slice(0, 40)}`)"""
#: Roles of what is pressed, filled in or followed.
CONTROLS = {"button", "checkbox", "combobox", "link", "searchbox", "slider", "spinbutton", "switch", "textbox"}


def open_demo(visitor: Visitor, url: str, choice: str = CHAT, **options: Any) -> Tab:
    """The page, connected, with nothing being written in the chat."""
    tab = visitor.open(f"{url}/demo#{choice}", **options)
    tab.until(lambda: tab.connection() == "live", "the demo to be connected")
    return tab


def until_quiet(tab: Tab, messages: int) -> None:
    """Wait until there are so many messages and none grows."""
    tab.until(
        lambda: len(found := tab.messages(CHAT)) >= messages and all(each["status"] != "open" for each in found),
        "the answers to be complete",
    )


def focused(tab: Tab) -> str:
    """What has the keyboard's focus: its id, or else its text."""
    return str(tab.evaluate("(_) => document.activeElement.id || document.activeElement.textContent.trim()"))


@pytest.mark.parametrize("path", ["/", "/demo#chat", "/report", "/pages/inbox?pause=0"])
def test_nothing_is_inline_and_the_policy_is_never_violated(visitor: Visitor, server: Server, path: str) -> None:
    """The policy allows nothing inline and nothing from elsewhere; whatever is pressed, the browser reports nothing."""
    tab = visitor.tab()
    response = tab.page.goto(server.url + path)
    assert response is not None
    html = response.text()
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    policies += filter(None, [response.headers.get("content-security-policy")])
    assert policies
    assert not re.search(r"unsafe|\*|https?:|data:", " ".join(policies))
    assert all("default-src 'self'" in policy or "default-src 'none'" in policy for policy in policies)
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", html)
    if "demo" in path:
        tab.until(lambda: tab.connection() == "live", "the demo to be connected")
        tab.page.get_by_role("textbox", name="Question").fill("Python code")
        tab.page.get_by_role("button", name="Ask", exact=True).click()
        tab.until(lambda: tab.length(CHAT) > 20, "an answer")
        tab.page.get_by_role("link", name="Scout").click()
        tab.page.get_by_role("switch").click()
        tab.page.locator('[data-sid="stress-16"][data-state="streaming"]').wait_for()
        tab.page.get_by_role("switch").click()
        assert tab.page.locator("[style], style, script:not([src])").count() == 0
    assert tab.evaluate("violations") == []


def test_the_demo_shows_what_the_server_has(visitor: Visitor, server: Server) -> None:
    """All that was said in the chat, and an answer with everything: thoughts, tools, code, a table, emoji."""
    tab = open_demo(visitor, server.url)
    before = len(tab.messages(CHAT))
    tab.page.get_by_role("button", name="Water levels").click()
    until_quiet(tab, before + 2)
    shown = tab.messages(CHAT)
    assert shown == server.snapshot(CHAT)
    assert {"thinking", "tool_args", "tool_output", "text"} <= {kind for kind, _ in shown[-1]["parts"]}


def test_the_demo_says_when_its_connection_is_lost_and_goes_on(
    visitor: Visitor, server: Server, start_proxy: Callable[[Server], Proxy]
) -> None:
    """In mid-answer; what was shown stays."""
    visitor.expected.append(NETWORK)
    proxy = start_proxy(server)
    tab = open_demo(visitor, proxy.url)
    server.count(CHAT)
    tab.until_grown(CHAT)
    proxy.cut()
    tab.until(lambda: tab.connection() == "waiting", "the demo to say that the connection is lost")
    assert tab.page.locator("#connection").inner_text() == "No connection, trying again …"
    assert tab.length(CHAT) >= 40
    proxy.mend()
    tab.until(lambda: tab.connection() == "live", "the demo to come back")
    expected = server.finish(CHAT)
    assert tab.until_ended(CHAT) == expected


def test_stress_costs_a_page_that_looks_elsewhere_three_messages_a_second(visitor: Visitor, server: Server) -> None:
    """Sixteen streams of 100 tokens a second, none in focus: states and numbers come. One that is chosen is whole."""
    tab = open_demo(visitor, server.url, "none")
    tab.page.get_by_role("switch").click()
    rows = tab.page.locator('#stress-rows [data-state="streaming"]')
    tab.until(lambda: rows.count() == 16, "all to write")
    messages = tab.next_messages("activity")  # an agent that rests tells it at once, by `notify`
    assert is_slow(messages)
    assert {frame["t"] for _, frames in messages for frame in frames} <= {"activity", "notify"}

    tab.page.get_by_role("link", name="stress-7", exact=True).click()
    tab.until(lambda: tab.length("stress-7") > 100, "its text")
    tab.page.get_by_role("switch").click()
    tab.until_ended("stress-7", "cancelled")
    assert tab.messages("stress-7") == server.snapshot("stress-7")


def test_the_keyboard_alone_asks_and_stops(visitor: Visitor, server: Server) -> None:
    """In an order that makes sense: links, streams, the box, its buttons. Enter sends, Escape and a button stop."""
    tab = open_demo(visitor, server.url)
    page = tab.page
    path: list[str] = []
    while not path or path[-1] != "question":
        page.keyboard.press("Tab")
        path.append(focused(tab))
        assert len(path) < 40, path
    for earlier, later in [("Headrace", "Demo"), ("Demo", "Chat"), ("Chat", "Critic"), ("Critic", "paper")]:
        assert path.index(earlier) < path.index(later), path
    for stop in ("the button", "Escape"):
        before = len(tab.messages(CHAT))
        page.keyboard.type("A long answer")
        page.keyboard.press("Enter")
        tab.until(lambda before=before: len(tab.messages(CHAT)) == before + 2 and tab.length(CHAT) > 20, "an answer")
        assert page.locator("#question").input_value() == ""
        assert tab.messages(CHAT)[-2]["parts"] == [["text", "A long answer"]]
        if stop == "Escape":
            page.keyboard.press("Escape")
        else:
            page.keyboard.press("Tab")
            assert focused(tab) == "send"
            page.keyboard.press("Tab")
            assert focused(tab) == "stop"
            page.keyboard.press("Space")
        tab.until_ended(CHAT, "cancelled")
        assert focused(tab) == ("question" if stop == "Escape" else "stop")  # nothing throws the reader elsewhere
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")


def test_an_answer_is_read_aloud_at_its_beginning_and_end_only(visitor: Visitor, server: Server) -> None:
    """The polite status region changes a few times, not with each token; there is no other around the text."""
    tab = open_demo(visitor, server.url)
    until_quiet(tab, 1)
    tab.evaluate("""(_) => {
      window.changes = { "#told": [], "#paper": [] };
      for (const [selector, texts] of Object.entries(changes)) {
        const element = document.querySelector(selector);
        const observer = new MutationObserver(() => texts.push(selector === "#told" && element.textContent));
        observer.observe(element, { childList: true, characterData: true, subtree: true });
      }
    }""")
    server.count(CHAT)
    tab.until(lambda: tab.evaluate("changes['#paper'].length") > 30, "text to be drawn many times")
    server.finish(CHAT)
    tab.until_ended(CHAT)
    told = tab.evaluate("changes['#told']")
    assert 2 <= len(told) <= 4
    assert "Chat" in told[0]
    assert "complete" in told[-1]
    assert tab.page.locator("#told").get_attribute("role") == "status"
    around = "#paper :is([aria-live], [role=status], [role=log], [role=alert], output)"
    assert tab.page.locator(around).count() == 0
    assert tab.evaluate("(_) => !document.querySelector('#paper').closest('[aria-live], [role=log], [role=status]')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(visitor: Visitor, server: Server, scheme: str) -> None:
    """At 400 pixels, with words that never end, folded texts opened. Colours follow the reader's wish."""
    context = visitor.context(viewport={"width": NARROW, "height": 800}, color_scheme=scheme)
    tab = visitor.tab(context)
    for path in ("/", "/report", "/pages/inbox?pause=0", f"/demo#{CHAT}"):
        tab.page.goto(server.url + path)
        assert tab.evaluate("document.documentElement.scrollWidth") == NARROW, path
    endless = "endless" * 100
    kinds = ("thinking", "tool_args", "code", "text", "other")
    mid = server.write(CHAT, *((kind, endless) for kind in kinds))
    article = tab.page.locator(f'article[data-mid="{mid}"][data-status="complete"]')
    article.wait_for()
    for summary in article.locator("summary").all():
        summary.press("Enter")
    tab.until(lambda: article.locator(".text:visible").count() == len(kinds), "all of its text to be seen")
    assert tab.evaluate("document.documentElement.scrollWidth") == NARROW
    # Blocks contain what they paint: what does not fit is cut off, without a bar to scroll to it.
    assert tab.evaluate(TOO_WIDE, mid) == []
    for name in ("#question", "#send", "#stop"):
        box = tab.page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW, name
    # Ink and ground, by the sum of their colours.
    ink, ground = (
        sum(map(int, re.findall(r"\d+", tab.evaluate("(name) => getComputedStyle(document.body)[name]", name))[:3]))
        for name in ("color", "backgroundColor")
    )
    assert (ink > ground) == (scheme == "dark")


@pytest.mark.parametrize("width", [1_280, NARROW])
def test_everything_that_can_be_used_has_a_name(visitor: Visitor, server: Server, width: int) -> None:
    """As the browser tells it to a screen reader."""
    tab = open_demo(visitor, server.url, viewport={"width": width, "height": 800})
    devtools = tab.page.context.new_cdp_session(tab.page)
    nodes = devtools.send("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in CONTROLS]
    names = [(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in controls]
    assert {"button", "link", "switch", "textbox"} <= {role for role, _ in names}
    assert [role for role, name in names if not re.search(r"\w", name)] == []
    assert {("textbox", "Question"), ("button", "Ask"), ("button", "Stop")} <= set(names)
    assert len(set(names)) == len(names), sorted(names)  # and no two are called the same
