"""Record what the real server says over a real WebSocket, for the tests of clients in any language.

Run it when the protocol has changed, and look at the difference before it is committed:

    python -m tests.record_frames

It writes `tests/frames/<scenario>.json`, each of them an object:

    about      what happens in it.
    sid        the stream.
    steps      in order: {"connect": cursor} is a new connection that subscribes with this cursor, null at first, in
               full if there is no "mode"; {"focus": [sid, …]} is said by the client; {"message": [frame, …]} came;
               {"urgent": event} is what the client must know at this place of a stream that is not in focus.
    snapshot   what `GET /streams/<sid>` answers at the end: what the client must have then.

`test_client_folding.py` folds them in Python, `client/recorded.test.mjs` with `client.js`.
"""

from __future__ import annotations

from gevent import monkey

if __name__ == "__main__":
    monkey.patch_all()

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from streaming.errors import Cancelled
from tests.folding import Fold
from tests.live import LiveSite, WebSocket
from tests.parts import until

FRAMES = Path(__file__).parent / "frames"
SID = "chat"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # five code points, three of them outside the BMP


class Recorder:
    """A client of one stream that notes what is said.

    Attributes:
        steps: what was said so far.
        fold: what the client has.
    """

    def __init__(self, site: LiveSite) -> None:
        self.site = site
        self.stream = site.stream(SID)
        self.fold = Fold(SID)
        self.steps: list[dict[str, Any]] = []
        self._websocket: WebSocket | None = None
        self._noted = 0

    def connect(self, **members: Any) -> None:
        """A new connection with the cursor of what the client has; the answer has come."""
        self._websocket = self.site.websocket()
        self.steps.append({"connect": self.fold.token(), **members})
        self._noted = 0
        self._websocket.subscribed(SID, self.fold, **members)
        self.note()

    def leave(self) -> None:
        """The client goes, without having read what is not noted."""
        assert self._websocket is not None
        self._websocket.leave()

    def focus(self, *sids: str) -> None:
        """The client says what is on screen."""
        assert self._websocket is not None
        self.note()
        self.steps.append({"focus": list(sids)})
        self._websocket.say({"t": "focus", "sids": list(sids)})
        self._websocket.settle()

    def wait(self, condition: Callable[[], Any]) -> None:
        """Read until the condition holds."""
        assert self._websocket is not None
        self._websocket.wait(condition)
        self.note()

    def catch_up(self) -> None:
        """Read until the client has all events and all text."""
        channel = self.site.channel(SID)
        until(lambda: not channel.outbox, "the flush")  # half an emoji makes no message

        def has_all() -> bool:
            with_text = {p: part.length for p, part in channel.stream.open_parts.items()}
            mine = {p: len(part.text) for p, part in self.fold.parts.items() if part.open}
            return self.fold.seq == channel.stream.head and mine == with_text

        self.wait(has_all)

    def answers(self, t: str) -> list[dict[str, Any]]:
        """The frames of one name that have come."""
        assert self._websocket is not None
        return self._websocket.named(t)

    def note(self) -> None:
        """Note the messages that have come."""
        assert self._websocket is not None
        messages = [
            [frame for frame in message if frame["t"] != "pong"] for message in self._websocket.messages[self._noted :]
        ]
        self.steps += [{"message": message} for message in messages if message]
        self._noted = len(self._websocket.messages)


def emoji(recorder: Recorder) -> None:
    """Text with emoji, which the model cuts in the middle."""
    recorder.connect()
    with recorder.stream.message(mid="m1") as message:
        for piece in (
            "Hello ",
            "\ud83d",
            "\ude00",
            " ",
            FAMILY[:2],
            FAMILY[2:],
            " é\u2028",
            "\ud83d",
            "!",
            "\U0001f1e9",
        ):
            message.append(piece)
            recorder.catch_up()
    recorder.catch_up()


def thinking(recorder: Recorder) -> None:
    """Thinking and text that take turns, within one flush and over several."""
    recorder.connect()
    with recorder.stream.message(mid="m1", meta={"model": "words-1"}) as message:
        thoughts, answer = message.part("thinking"), message.part("text")
        for turn in range(4):
            thoughts.append(f"thought {turn}. ")
            answer.append(f"sentence {turn}. ")
            if turn % 2:
                recorder.catch_up()
        thoughts.end()
        answer.append("The end.")
        message.usage = {"tokens": 12}
    recorder.catch_up()


def tools(recorder: Recorder) -> None:
    """A tool: its arguments, its output, and events of the app; two messages, one of them the user's."""
    recorder.connect()
    with recorder.stream.message(role="user", mid="m1") as message:
        message.append("What is the weather?")
    with recorder.stream.message(mid="m2") as message:
        arguments = message.part("tool_args", {"tool": "weather"})
        for piece in ('{"pla', 'ce": "Bo', 'nn"}'):
            arguments.append(piece)
        arguments.end()
        recorder.stream.publish("tool.call", {"tool": "weather"})
        recorder.catch_up()
        output = message.part("tool_output", {"tool": "weather"})
        output.append("21 °C")
        recorder.stream.publish("tool.result", {"ok": True, "rows": [1, 2]})
        output.end()
        message.append("It is 21 °C.")
        recorder.stream.publish("note")
    recorder.catch_up()


def replaced(recorder: Recorder) -> None:
    """Text that the app replaces at its end, before and after the client has it."""
    recorder.connect()
    with recorder.stream.message(mid="m1") as message:
        part = message.part()
        part.append("a draft with 0612345678")
        recorder.catch_up()
        part.end("a draft with \U0001f512")
        other = message.part()
        other.append("never mind")
        other.end("")
        same = message.part()
        same.append("the same")
        same.end("the same")
        recorder.catch_up()
    recorder.catch_up()


def endings(recorder: Recorder) -> None:
    """The four ways in which a message ends."""
    recorder.connect()
    recorder.stream.message(mid="m1").end()
    for mid in ("m2", "m3", "m4", "m5"):
        message = recorder.stream.message(mid=mid)
        message.append(f"text of {mid}")
        if mid == "m2":
            message.cancel()
            with suppress(Cancelled):
                message.append("more")
        elif mid == "m3":
            message.end("aborted")
        elif mid == "m4":
            message.end("error", "the model is away")
        recorder.catch_up()


def resumed(recorder: Recorder) -> None:
    """The client comes back in mid-part, twice, once while much has happened."""
    recorder.connect()
    message = recorder.stream.message(mid="m1")
    message.append(f"before {FAMILY} ")
    recorder.catch_up()
    recorder.leave()
    message.append(f"while away {FAMILY} ")
    recorder.connect()
    recorder.catch_up()
    message.append("after ")
    recorder.catch_up()
    recorder.leave()
    message.append("the end")
    message.end()
    recorder.stream.publish("note", 1)
    recorder.stream.message(mid="m2").append("new")
    recorder.connect()
    recorder.catch_up()


def trimmed(recorder: Recorder) -> None:
    """The log has dropped what the client would need next: reset, with a message that is open over the hole."""
    recorder.connect()
    message = recorder.stream.message(mid="m1", meta={"n": 1})
    thoughts = message.part("thinking")
    thoughts.append("hm \U0001f914 ")
    message.append("a")
    recorder.stream.publish("note", 0)
    recorder.catch_up()
    recorder.leave()
    for number in range(20):
        recorder.stream.publish("note", number)
        message.append(f"{number} ")
    recorder.connect()
    recorder.catch_up()
    message.append("z")
    recorder.catch_up()


def activity(recorder: Recorder) -> None:
    """A stream that is summarised, has an urgent event, and comes into focus."""
    recorder.connect(mode="activity")
    message = recorder.stream.message(mid="m1")
    message.append("in the background ")
    recorder.wait(lambda: [item for frame in recorder.answers("activity") for item in frame["items"] if item["chars"]])
    recorder.stream.publish("alarm", {"level": 3}, urgent=True)
    recorder.wait(lambda: recorder.answers("notify"))
    recorder.focus(SID)
    recorder.catch_up()
    message.append("and in front")
    recorder.catch_up()
    recorder.focus()
    seq = recorder.stream.publish("alarm", {"level": 4}, urgent=True)
    recorder.wait(lambda: len(recorder.answers("notify")) == 2)
    recorder.steps.append({"urgent": {"seq": seq, "k": "alarm", "d": {"level": 4}}})
    recorder.focus(SID)
    recorder.catch_up()


SCENARIOS = (emoji, thinking, tools, replaced, endings, resumed, trimmed, activity)


def record(scenario: Callable[[Recorder], None]) -> dict[str, Any]:
    """Play a scenario on a server of its own."""
    site = LiveSite().configure(log_events=12) if scenario is trimmed else LiveSite()
    try:
        recorder = Recorder(site)
        scenario(recorder)
        assert scenario.__doc__ is not None
        recorded = {
            "about": scenario.__doc__,
            "sid": SID,
            "steps": recorder.steps,
            "snapshot": site.get(f"/streams/{SID}").json,
        }
        site.leave()
        until(site.is_idle)
        return recorded
    finally:
        site.stop()


def main() -> None:
    """Record all scenarios."""
    FRAMES.mkdir(exist_ok=True)
    for scenario in SCENARIOS:
        recorded = record(scenario)
        path = FRAMES / f"{scenario.__name__}.json"
        steps = ",\n    ".join(json.dumps(step, ensure_ascii=True) for step in recorded.pop("steps"))
        rest = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in recorded.items())
        path.write_text(f'{{\n  {rest},\n  "steps": [\n    {steps}\n  ]\n}}\n')
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
