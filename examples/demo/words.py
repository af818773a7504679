"""A model to try things with, offline: it thinks, calls tools, writes, and now and then it fails.

It speaks as language models do over a network: a few letters at a time, now faster and now slower, in bursts, with
silences in between, and cuts an emoji into two halves. `random.Random(seed)` makes it say the same again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

SLOWNESS = 1.0  # 0: everything comes at once
#: Seconds before a piece of text, on average, by kind; a tool's output comes whole.
PACE = {"thinking": 0.02, "text": 0.03, "code": 0.015, "tool_args": 0.025, "tool_output": 0.9}
SILENCE = 0.9  # seconds at most, before a burst
#: How much faster or slower a stretch of text may be than the average, as a factor.
TEMPO = (0.4, 1.8)
#: A word or a piece of a long one; or what comes before an emoji, and the first half of it.
PIECE = re.compile(r"\s*[^\s\ud800-\udbff]{1,7}(?!\S)|\s*[^\s\ud800-\udbff]{0,3}\S|\s+")
#: Of words that nobody reads: how many a sentence has, and how often a line or a paragraph ends with one.
SENTENCE = (4, 18)
LINE, PARAGRAPH = 0.1, 0.18

RIVERS = ["Upper weir", "Mill pond", "Tailrace", "Old bridge", "Fish ladder"]
FAILURES = ["the model is overloaded", "the connection to the model broke off", "the answer was longer than allowed"]


class ModelError(Exception):
    """The model gave up in the middle of its answer; the text is for the reader."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of an answer, all of one kind.

    Attributes:
        kind: `text`, `thinking`, `code`, `tool_args` or `tool_output`.
        meta: what is known before its text: a title, a tool's name.
        failure: it breaks off in the middle, for this reason.
    """

    kind: str
    text: str
    meta: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    def speak(self, random: Random) -> Iterator[tuple[float, str]]:
        """Pieces of the text, each with the seconds that it takes to come.

        Raises:
            ModelError: half of it is said, and it has a `failure`.
        """
        pieces = [self.text] if self.kind == "tool_output" else PIECE.findall(halve_pairs(self.text))
        burst = 0  # pieces that have waited somewhere on the way, and now come together
        tempo = random.uniform(*TEMPO)
        for number, piece in enumerate(pieces):
            if self.failure and number > len(pieces) / 2:
                raise ModelError(self.failure)
            pause = random.expovariate(1 / PACE[self.kind]) * tempo
            if burst > 0:
                burst, pause = burst - 1, 0.0
            elif (number == 0 and len(pieces) > 1) or random.random() < 0.02:
                burst, pause = random.randrange(2, 20), random.uniform(SILENCE / 3, SILENCE)
                tempo = random.uniform(*TEMPO)
            yield pause * SLOWNESS, piece


def halve_pairs(text: str) -> str:
    """The text with each emoji as two surrogates: what JSON gives when a provider cuts one in the middle."""
    units = text.encode("utf-16-le")
    return "".join(chr(int.from_bytes(units[at : at + 2], "little")) for at in range(0, len(units), 2))


def call(tool: str, arguments: dict[str, Any], result: Any) -> list[Passage]:
    """A call of a tool and what it gave back."""
    return [
        Passage("tool_args", json.dumps(arguments), {"tool": tool, "title": f"calls {tool}"}),
        Passage("tool_output", json.dumps(result), {"tool": tool, "title": "result"}),
    ]


# -- what it is asked


def answer(question: str, random: Random) -> list[Passage]:
    """An answer to a question. It knows about little: levels, code, and the mill's long story."""
    asked = question.lower()
    about = " ".join(question.split())[:80]
    if "error" in asked or "fail" in asked:
        thought = f"“{about}”: they want to see what a failure looks like. Begin as if nothing were wrong."
        return [Passage("thinking", thought), fail(tell_story(random), random)]
    known = {"level": read_levels, "water": read_levels, "code": write_code, "python": write_code, "long": write_report}
    chosen = next((known[word] for word in known if word in asked), None)
    thought = f"The question is: “{about}”. " + (
        "That is one of the three things I know. What would help most is an answer that can be used at once: first the "
        "result, then how I came to it. No need to repeat the question."
        if chosen
        else "I have no idea what to say to that, and no way to look it up. Saying so would be honest, but short. "
        "Let me tell something about the mill; nobody has ever complained about the mill."
    )
    thinking, *rest = (chosen or random.choice([read_levels, write_code, tell_story]))(random)
    return [replace(thinking, text=f"{thought}\n\n{thinking.text}"), *rest]


def welcome(random: Random) -> list[Passage]:
    """What the chat begins with."""
    return [
        Passage(
            "thinking",
            "Somebody has opened the page. First see who else is at work, so that I name nobody who is not there. Then "
            "say what there is to do, in few words: people try things rather than read about them.",
        ),
        *call("list_streams", {"state": "all"}, ["chat", "scout", "coder", "writer", "critic"]),
        Passage(
            "text",
            "Welcome! 👋 I am a stream, and so are the four agents beside me: they work whether you look or not.\n\n"
            "• Choose one to follow its text. Until then the server sends you its state and a number, no text.\n"
            "• Ask me something. I know about water levels, about Python code, and I can give a long answer.\n"
            "• Press Stop in the middle of an answer, or ask for an error.\n"
            "• Open this page in a second window, or restart the server while it writes.\n"
            "• Switch on the stress: sixteen more streams, each as fast as a fast model. I will not stutter.\n\n"
            "No model is involved: examples/demo/words.py makes all this up. 🌊",
        ),
    ]


# -- what it does by itself


def read_levels(random: Random) -> list[Passage]:
    """Ask a tool, then say what it means."""
    place = random.choice(RIVERS)
    levels = [round(random.uniform(0.8, 2.6), 2) for _ in range(6)]
    rises = levels[-1] > levels[0]
    verdict = "The water rises; open the upper gate a hand's breadth 🌧️." if rises else "It falls. All is well ✅."
    return [
        Passage(
            "thinking",
            f"Six readings of {place} should do. Compare the last one with the first, and mind the pike: it likes to "
            "lie on the sensor, and then the level is 40 cm too high for as long as it sleeps. A single reading that "
            "stands out is the pike. Two are rain.",
        ),
        *call("read_gauge", {"place": place, "hours": 6}, {"metres": levels, "complete": True}),
        Passage(
            "text",
            f"{place}: {levels[-1]:.2f} m now, {levels[0]:.2f} m six hours ago. {verdict}\n\n"
            f"The highest reading was {max(levels):.2f} m, the lowest {min(levels):.2f} m. "
            "I look again when the next readings are in.",
        ),
    ]


def write_code(random: Random) -> list[Passage]:
    """A few words around a function."""
    limit = random.randrange(12, 25) / 10
    return [
        Passage(
            "thinking",
            "A class would be too much. A generator can be tested without a pump. Two limits instead of one: a gate "
            "that opens and closes at the same level would flutter whenever the wind makes waves.",
        ),
        Passage(
            "text", f"This opens the gate above {limit} m, and closes it only well below, so that it does not flutter:"
        ),
        Passage("code", CODE.replace("LIMIT", str(limit)), {"title": "python"}),
        *call("run_tests", {"path": "test_gate.py"}, {"passed": random.randrange(3, 9), "failed": 0}),
        Passage("text", "The tests pass. Signs like < and & are only text here, and <b>this</b> is not bold."),
    ]


def tell_story(random: Random) -> list[Passage]:
    """Some paragraphs, in an order that makes sense."""
    order = random.sample(STORY[1:], len(STORY) - 1)
    return [
        Passage(
            "thinking", "Begin with the canal; the rest fits in any order. End where the water falls, if possible."
        ),
        Passage("text", "\n\n".join([STORY[0], *order])),
    ]


def write_report(random: Random) -> list[Passage]:
    """A long answer, of all that it knows."""
    story, levels, code = tell_story(random)[1], read_levels(random), write_code(random)
    notes = "\n".join(f"{number}. {point}" for number, point in enumerate(OPINIONS, start=1))
    return [
        *levels[:3],
        replace(story, text=f"THE MILL\n\n{story.text}\n\nTHE WATER TODAY\n\n{levels[3].text}\n\nTHE GATE\n"),
        *code[1:],
        Passage("text", f"WHAT A CRITIC WOULD SAY OF THIS REPORT\n\n{notes}\n\nI agree with most of it. 🐟"),
    ]


def review(random: Random) -> list[Passage]:
    """Opinions, of which every other one breaks off."""
    points = random.sample(OPINIONS, 4)
    passages = [
        Passage(
            "thinking",
            "Read it once without a pencil. Then look for what is missing, which is harder than what is wrong. Say it "
            "kindly: the writer sits in the next stream and can see this.",
        ),
        Passage("text", "\n".join(f"{number}. {point}" for number, point in enumerate(points, start=1))),
    ]
    return [passages[0], fail(passages, random)] if random.random() < 0.5 else passages


def ramble(random: Random) -> Iterator[str]:
    """Tokens without end and without sense: words of the story, in sentences, lines and paragraphs."""
    known = sorted(set(re.findall(r"(?<!')\b[a-z]+", " ".join(STORY).lower())))
    while True:
        words = random.choices(known, k=random.randint(*SENTENCE))
        yield from PIECE.findall(" ".join(words).capitalize())
        mark, chance = "." if random.random() < 0.9 else ". 🌊", random.random()
        yield mark + ("\n" if chance < LINE else "\n\n" if chance < PARAGRAPH else " ")


def fail(passages: list[Passage], random: Random) -> Passage:
    """The last of the passages, breaking off in the middle."""
    return replace(passages[-1], failure=random.choice(FAILURES))


CODE = '''\
def gate(levels, limit=LIMIT, margin=0.2):
    """Say for each level whether the gate is open."""
    is_open = False
    for level in levels:
        if level > limit:
            is_open = True
        elif level < limit - margin:
            is_open = False
        yield is_open


assert list(gate([1.0, 9.0, 1.0])) == [False, True, False]
'''

STORY = [
    "A headrace is the canal that brings water to a mill. It begins at a weir, far enough upstream that the water "
    "arrives higher than the river beside the mill, and it ends where the water falls on the wheel.",
    "The canal is level to the eye. It loses a hand's breadth in a hundred paces, no more: what it lost on the way, "
    "the wheel could not use. The people who dug it measured with a bowl of water and a straw.",
    "In dry summers the miller ground at night. By day the pond filled, in the evening the gate was opened, and "
    "whoever lived by the canal knew from the sound that it was nine o'clock.",
    "Floods were worse than drought. The gate had to be opened before the water came, by somebody who believed the "
    "messenger. Twice nobody did, and both times the mill was built again a little higher up. 🌊",
    "Eels came with the rain. A grating kept them from the wheel, and a box beside the grating kept them for "
    "dinner. The quarrel over that box fills more pages of the town's books than the mill itself.",
    "When the turbine came, the wheel was sold to a museum, which found it too large for the door. It lies behind "
    "the barn, and a blackbird has had it for eleven years. 🐦",
    "The old measuring post still stands. Its marks are in feet of a kind that nobody else used, so that every "
    "reading must be looked up in a table that hangs beside it, behind glass, in fading ink.",
    "Today a sensor sends the level each minute. It was wrong for a whole winter, since a snail had moved in. The "
    "post, the table and the ink were right the whole time. 🐌",
    "Whoever walks along the canal in the morning sees the water stand still and hears it move. That is the whole "
    "trick: a long, quiet way, so that there is something to fall at its end.",
]

OPINIONS = [
    "The title promises a river and the text has a ditch. Either is fine; both is not.",
    "Paragraph two says “recently”. The newest date in it is 1911.",
    "The eels are the best part. They should come before the turbine.",
    "A table of levels would be shorter than the sentence about them, and true.",
    "“Very level” is a strange thing to say of water. Level will do.",
    "Who is “we”? There is one author, and she lives elsewhere.",
    "The last sentence can go. The one before it already was the end.",
]
