"""The browser client folds what the server says to what the server has.

Recorded frames, which `tests/client/recorded.test.mjs` gives to the client too; and hypothesis, which drives the
server's core and the real client in one long-lived Node process over connections that lose, repeat and break off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streaming.protocol.cursor import Cursor
from streaming.protocol.stream import Stream
from tests.folding import Fold, Writer, read_snapshot
from tests.test_client import node

FRAMES = Path(__file__).parent / "frames"
DRIVER = Path(__file__).parent / "client" / "driver.mjs"
SMILE = "\U0001f600"
RUNS = ["a", "bc ", "x" * 300, "é\u2028", SMILE, "\ud83d", "\ude00", f"{SMILE}\U0001f468\u200d\U0001f469", "line\n"]
WRITES = ["text"] * 10 + ["message", "part", "event", "event", "part.end", "replace", "complete", "error"]


# -- recorded frames


@pytest.mark.parametrize("path", sorted(FRAMES.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_frames_make_the_servers_snapshot(path: Path) -> None:
    recorded = json.loads(path.read_text())
    fold = Fold(recorded["sid"])
    for step in recorded["steps"]:
        if "connect" in step:
            assert fold.subscribe() == step["connect"]
        elif "message" in step:
            fold.read_message(json.dumps(step["message"]))
    fold.assert_holds(recorded["snapshot"])


# -- the client in Node


class Page:
    """`client.js` in a process of its own, with a fake page around it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([node(), str(DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def do(self, op: str, **members: Any) -> dict[str, Any]:
        """Have something done; what the page has sent since, and what is wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **members}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        answer: dict[str, Any] = json.loads(line)
        assert not answer["wrong"], answer["wrong"]
        return answer

    def close(self) -> None:
        """End it."""
        with self._process:
            self._process.kill()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.close()


class Connections(RuleBasedStateMachine):
    """One stream, and one client whose connection does what connections do."""

    page: Page

    @initialize(
        max_events=st.sampled_from([8, 1_000, 1_000]),
        max_text=st.sampled_from([20, 10**6]),
    )
    def begin(self, max_events: int, max_text: int) -> None:
        self.limits = (max_events, 10**6, max_text)
        self.restarts = 0
        self.last: list[Any] = []
        self.asked: list[str | None] = []
        self.had: list[str] = []  # texts before they were replaced, or lost by a restart
        self.start_server()
        self.sent(self.page.do("new"))
        self.answer()
        self.deliver(self.cut(262_144))

    def start_server(self) -> None:
        self.stream = Stream("s", f"epoch{self.restarts:03}", *self.limits)
        self.writer = Writer(self.stream)
        self.cursor: Cursor | None = None

    # the connection

    def sent(self, answer: dict[str, Any]) -> None:
        """Note what the client has sent; the server reads it when it comes to it."""
        for frame in answer["sent"]:
            assert (frame["t"], frame["sid"], frame["mode"]) == ("subscribe", "s", "full")
            self.asked.append(frame.get("cursor"))

    def answer(self) -> None:
        """The server reads."""
        for token in self.asked:
            self.cursor = self.stream.start(token)
        self.asked.clear()

    def cut(self, limit: int) -> list[Any]:
        """The server's next message."""
        if self.cursor is None:
            return []
        cut = self.stream.cut(self.cursor, limit)
        self.cursor = cut.after
        return [json.loads(frame.json) for frame in cut.frames]

    def deliver(self, found: list[Any]) -> None:
        if found:
            self.sent(self.page.do("say", frames=found))
            self.last = found

    # producers

    @rule(steps=st.lists(st.tuples(st.sampled_from(WRITES), st.integers(0, 5), st.sampled_from(RUNS)), min_size=5))
    def write(self, steps: list[tuple[str, int, str]]) -> None:
        """Much at once, since what happens to a connection has to meet something."""
        writer = self.writer
        for step, number, run in steps:
            messages, parts = [*writer.open], [*self.stream.open_parts]
            if not messages or (step == "message" and len(messages) < 3):
                parts = [writer.part(writer.message(f"m{self.restarts}-{writer._count}"))]
            elif step == "part" or not parts:
                parts = [writer.part(messages[number % len(messages)], ("text", "thinking")[number % 2])]
            p = parts[number % len(parts)]
            if step == "text":
                writer.text(p, run)
            elif step == "event":
                writer.event("tool.result", b'{"x":"%b"}' % (b"y" * 100 * number))
            elif step in ("part.end", "replace"):
                self.had.append(writer.texts[p] + "\ufffd")  # for half an emoji that waits
                writer.end_part(p, {"replace": SMILE * number}.get(step))
            elif step in ("complete", "error"):
                writer.end([*writer.open][number % len(writer.open)], step)

    # what happens to a connection

    @rule(limit=st.sampled_from([150, 400, 262_144]), count=st.integers(1, 5), late=st.integers(0, 5))
    def go_on(self, limit: int, count: int, late: int) -> None:
        """The next messages; the server comes to what the client has asked after `late` of them."""
        for number in range(count):
            if number >= late:
                self.answer()
            self.deliver(self.cut(limit))

    @rule(limit=st.sampled_from([150, 262_144]))
    def catch_up(self, limit: int) -> None:
        """All that is there."""
        self.answer()
        while found := self.cut(limit):
            self.deliver(found)
            self.answer()

    @rule(limit=st.sampled_from([400, 262_144]), lost=st.sampled_from(["delta", "event", "second", "all"]))
    def lose(self, limit: int, lost: str) -> None:
        """Some frames of a message are lost, and then it goes on."""
        self.answer()
        found = self.cut(limit)
        kept = {"second": found[::2], "all": []}.get(lost, [frame for frame in found if frame["t"] != lost])
        self.deliver(kept)
        self.go_on(limit, 2, 2)

    @rule()
    def repeat(self) -> None:
        """The last message comes twice."""
        self.deliver(self.last)

    @rule(limit=st.sampled_from([150, 262_144]), kept=st.integers(0, 5))
    def break_off(self, limit: int, kept: int) -> None:
        """The first frames of a message come, then the connection breaks."""
        self.deliver(self.cut(limit)[:kept])
        self.reconnect()

    @precondition(lambda self: self.stream.head > 20)
    @rule()
    def restart(self) -> None:
        """The server has lost everything."""
        self.restarts += 1
        self.had += self.writer.texts.values()
        self.start_server()
        self.reconnect()

    @rule()
    def wait(self) -> None:
        """The client asks again, if it has to."""
        self.sent(self.page.do("wait", ms=1_000))
        self.answer()

    def reconnect(self) -> None:
        self.asked.clear()
        self.last = []  # what an old connection had under way does not come over a new one
        self.sent(self.page.do("reconnect"))
        assert len(self.asked) == 1
        self.answer()

    # what holds

    @invariant()
    def texts_are_those_of_the_server_or_their_beginnings(self) -> None:
        """However little has come: nothing is where it does not belong."""
        if not hasattr(self, "stream"):
            return
        found = self.page.do("say", frames=[], look=True)
        for message in found["messages"]:
            for part in message["parts"]:
                assert any(text.startswith(part["text"]) for text in [*self.writer.texts.values(), *self.had])

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.reconnect()
            while found := self.cut(262_144):
                self.deliver(found)
                assert not self.asked, "over a clean connection the client has to ask again"
            self.check(self.page.do("say", frames=[], look=True), read_snapshot(self.stream))

    def check(self, found: dict[str, Any], snapshot: dict[str, Any]) -> None:
        mine = {message["mid"]: message for message in found["messages"]}
        for message in snapshot["messages"]:
            here = mine[message["mid"]]
            assert (here["role"], here["meta"], here["status"]) == (message["role"], message["meta"], message["status"])
            parts = [(each["kind"], each["text"], each["open"]) for each in here["parts"]]
            for part in message["parts"]:  # the log may have forgotten others
                told = (part["kind"], part["s"], part["open"])
                assert told in parts
                del parts[: parts.index(told) + 1]
        told = {message["mid"] for message in snapshot["messages"] if message["status"] == "open"}
        assert told == {message["mid"] for message in found["messages"] if message["status"] == "open"}
        newer = [event for event in found["events"] if event["seq"] > snapshot["floor"]]
        assert newer == snapshot["events"]


@pytest.mark.timeout(300)  # to find the smallest example if it fails
def test_over_any_connection_the_client_ends_up_with_the_servers_text(page: Page) -> None:
    """And under one part `id` a text never shrinks, which the driver judges."""

    class OnThisPage(Connections):
        pass

    OnThisPage.page = page
    run_state_machine_as_test(
        OnThisPage,
        settings=settings(
            max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
