"""Who writes: the chat, which waits for questions, and agents that work by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from app import streaming
from streaming import Message

from . import words
from .words import ModelError, Passage

ROUNDS = 6  # that an agent works, each time it is started
PAUSE = 2.5  # seconds at most, between two of them
PATIENCE = 15.0  # seconds without anybody on the page, after which an answer is given up


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes into a stream; `work` makes up what, when nobody asks."""

    name: str
    about: str
    work: Callable[[Random], list[Passage]]


CHAT = "chat"
WRITERS = {
    CHAT: Writer("Chat", "answers what you ask", words.welcome),
    "scout": Writer("Scout", "reads the gauges with a tool", words.read_levels),
    "coder": Writer("Coder", "writes a function and tests it", words.write_code),
    "writer": Writer("Writer", "tells a long story", words.tell_story),
    "critic": Writer("Critic", "reads it, and often breaks off", words.review),
}


def work(sid: str) -> None:
    """Work some rounds. `Cancelled` ends them: somebody pressed Stop, or nobody watches."""
    random = Random()
    for number in range(1, ROUNDS + 1):
        time.sleep(random.uniform(0, PAUSE))
        write(sid, start_message(sid, f"Round {number}"), WRITERS[sid].work(random))
    # Urgent, so that those who only watch the stream's activity hear of it.
    streaming.stream(sid).publish("agent.rests", {"text": f"rests after {ROUNDS} rounds"}, urgent=True)


def start_message(sid: str, title: str) -> Message:
    """Begin an answer, or a round of work."""
    return streaming.stream(sid).message(meta={"title": title}, cancel_unwatched_after=PATIENCE)


def write(sid: str, message: Message, passages: list[Passage]) -> None:
    """Put what the model says into a message, as it comes. Waiting keeps nobody else: gevent has patched `sleep`."""
    random = Random()
    letters = 0
    with message:
        try:
            for passage in passages:
                part = message.part(passage.kind, passage.meta)
                for pause, text in passage.speak(random):
                    time.sleep(pause)
                    part.append(text)
                part.end()
                letters += len(passage.text)
            message.usage = {"letters": letters}
        except ModelError as error:
            message.end("error", str(error))
