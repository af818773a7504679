"""Streamed pages in a browser: `page.js` puts updates in their place, and without it the page is whole all the same."""

from __future__ import annotations

import pytest

from examples.backend import MESSAGES
from tests.browser.servers import Server
from tests.browser.tabs import Visitor

SALES = {"North": "4,200", "East": "3,100", "South": "5,350", "West": "2,480", "Islands": "870", "Total": "16,000"}
SUMS = ["4,200", "7,300", "12,650", "15,130", "16,000"]
#: Notes what stands in a place whenever it changes, and whether more of the document is still to come.
WATCH_PLACE = """
window.seen = [];
new MutationObserver(() => {
  const text = document.querySelector("SELECTOR")?.textContent.trim();
  if (text && text !== seen.at(-1)?.[1]) seen.push([document.readyState, text]);
}).observe(document, { childList: true, subtree: true, characterData: true });
"""


def rows(text: str) -> dict[str, str]:
    """The first two cells of each row of a table's text."""
    return dict(line.split("\t")[:2] for line in text.splitlines() if "\t" in line)


def test_updates_of_the_report_arrive_in_their_place_while_it_loads(visitor: Visitor, server: Server) -> None:
    """The sum above the table follows each row; no template is left over, and the table is one."""
    tab = visitor.tab()
    tab.page.add_init_script(WATCH_PLACE.replace("SELECTOR", ".lead .figure"))
    tab.page.goto(f"{server.url}/report")
    seen = tab.evaluate("seen")
    assert [text for _, text in seen] == SUMS[-len(seen) :]  # those before `page.js` was there came as one
    assert ["loading", SUMS[-2]] in seen
    assert tab.page.locator(".lead .figure").all_inner_texts() == SUMS[-1:]
    assert tab.page.locator("template").count() == 0
    assert SALES.items() <= rows(tab.page.locator("table").inner_text()).items()


def test_summaries_of_the_inbox_grow_in_their_place(visitor: Visitor, server: Server) -> None:
    """Side by side, each in its own card; records come from a backend."""
    tab = visitor.tab()
    tab.page.add_init_script(WATCH_PLACE.replace("SELECTOR", "li:nth-child(2) .summary"))
    tab.page.goto(f"{server.url}/pages/inbox?pause=0.05")
    sentences = MESSAGES[1]["summary"]
    growing = [" ".join(sentences[:count]) for count in range(1, len(sentences) + 1)]
    seen = [text.removesuffix(" …") for state, text in tab.evaluate("seen") if state == "loading"]
    assert len(seen) > 1
    assert seen == growing[-len(seen) :]
    assert tab.page.locator(".summary").all_inner_texts() == [" ".join(each["summary"]) for each in MESSAGES]
    assert tab.page.locator("template").count() == 0


@pytest.mark.parametrize("path", ["/report", "/pages/inbox?pause=0.02"])
def test_without_javascript_a_page_is_whole(visitor: Visitor, server: Server, path: str) -> None:
    """Every place as it was first rendered, and no update to be seen."""
    page = visitor.open(server.url + path, java_script_enabled=False).page
    if path == "/report":
        assert SALES.items() <= rows(page.locator("table").inner_text()).items()
        assert page.locator(".lead").inner_text() == "The regions are asked one after the other."
        assert not page.locator(".figure").is_visible()
    else:
        assert page.get_by_role("heading", level=3).all_inner_texts() == [each["subject"] for each in MESSAGES]
        assert page.locator(".summary:visible").all_inner_texts() == [f"{each['summary'][0]} …" for each in MESSAGES]
    assert not page.locator(".waiting:visible").count()
