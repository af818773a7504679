"""A page shows what the server has, to the character."""

from __future__ import annotations

from tests.browser.servers import Server
from tests.browser.tabs import Visitor

FISH, WAVE = "\ud83d\udc1f", "\ud83c\udf0a"  # as two halves each
AWKWARD = (
    "tab\there, two  spaces, \r\nlines\n\n, a NUL \0, שלום, e\u0301, 👩\u200d👩\u200d👧, 🇨🇭, \u2028 and \ufeff, end  \n"
)


def test_the_page_shows_the_text_of_the_snapshot_to_the_character(visitor: Visitor, server: Server, sid: str) -> None:
    """With thinking, a tool's call and answer, a text that was replaced, and emoji of which the halves came apart."""
    early = visitor.open(f"{server.url}/watch?sid={sid}")
    pieces = [
        ("thinking", "What do they want? " + FISH[0]),
        ("thinking", FISH[1] + "!"),
        ("tool_args", '{"place": "Mill '),
        ("tool_args", 'pond"}'),
        ("tool_output", '{"metres": [1.2, 3.4]}\n'),
        ("text", AWKWARD + WAVE[0]),
        ("text", WAVE[1] + WAVE[0]),
        ("text", "that half was alone"),
        ("draft", "not what was meant " + FISH[0]),
        ("draft=", "a better word " + FISH),
        ("text", WAVE[0]),
    ]
    server.write(sid, *pieces, pause=0.06)
    early.until(lambda: early.length(sid) > 40, "the first half")
    late = visitor.open(f"{server.url}/watch?sid={sid}")
    expected = [
        ["thinking", "What do they want? 🐟!"],
        ["tool_args", '{"place": "Mill pond"}'],
        ["tool_output", '{"metres": [1.2, 3.4]}\n'],
        ["text", AWKWARD + "🌊\ufffdthat half was alone"],
        ["draft", "a better word 🐟"],
        ["text", "\ufffd"],
    ]
    for tab in (early, late):
        assert tab.until_ended(sid) == expected
        assert tab.messages(sid) == server.snapshot(sid)


def test_a_reload_in_mid_answer_loses_and_doubles_no_character(visitor: Visitor, server: Server, sid: str) -> None:
    """The page is told all of it again, and goes on live."""
    tab = visitor.open(f"{server.url}/watch?sid={sid}")
    server.count(sid)
    for _ in range(2):
        tab.until_grown(sid)
        tab.page.reload()
    tab.until_grown(sid)
    assert tab.messages(sid)[-1]["status"] == "open"
    tab.finish(server, sid)


def test_two_tabs_see_the_same_and_stop_in_one_stops_both(visitor: Visitor, server: Server, sid: str) -> None:
    """Of one profile, as a person has them."""
    context = visitor.context()
    tabs = [visitor.open(f"{server.url}/watch?sid={sid}", context) for _ in range(2)]
    server.count(sid)
    for tab in tabs:
        tab.until_grown(sid)
    tabs[1].page.get_by_role("button", name="Stop").click()
    for tab in tabs:
        tab.until_ended(sid, "cancelled")
        assert tab.messages(sid) == server.snapshot(sid)


def test_text_that_looks_like_html_is_shown_as_text(visitor: Visitor, server: Server) -> None:
    """By the demo, wherever a model's words, a user's and a title go."""
    evil = '<img src=x onerror="alert(1)"><script>alert(2)</script></div><b>bold</b> &lt;i&gt; ${alert(3)} <!--'
    tab = visitor.open(f"{server.url}/demo#chat")
    asked: list[str] = []
    tab.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    mid = server.write(
        "chat", ("thinking", evil), ("tool_args", evil), ("tool_output", evil), ("text", evil), title=evil
    )
    article = tab.page.locator(f'#paper article[data-mid="{mid}"]')
    article.locator('xpath=self::*[@data-status="complete"]').wait_for(state="attached")
    shown = next(each for each in tab.messages("chat") if each["mid"] == mid)
    assert shown == next(each for each in server.snapshot("chat") if each["mid"] == mid)
    assert shown["parts"] == [[kind, evil] for kind in ("thinking", "tool_args", "tool_output", "text")]
    assert article.locator("img, script, b, i").count() == 0
    assert not asked
