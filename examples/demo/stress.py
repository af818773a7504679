"""Sixteen streams that never rest, each as fast as a fast model: for looking at what a page does meanwhile."""

from __future__ import annotations

import time
from itertools import count, islice
from random import Random

from app import streaming

from . import words
from .crew import crew

SIDS = [f"stress-{number}" for number in range(1, 17)]
RATE = 100  # tokens a second, of each
LENGTH = 1_000  # tokens of a message
PATIENCE = 15.0  # seconds without anybody on the page, after which a stream gives up
LATE = 1.0  # seconds behind its schedule, above which a stream lets go what it has missed


def switch(on: bool) -> None:
    """Start the streams that are not writing, or have all of them stop before their next token."""
    crew().is_stressed = on
    for sid in SIDS if on else []:
        if not crew().running(sid):
            crew().start(sid, write)


def is_on() -> bool:
    """Whether any of them goes on writing: they end by themselves when nobody watches."""
    return crew().is_stressed and any(crew().running(sid) for sid in SIDS)


def write(sid: str) -> None:
    """Write one message after the other. `Cancelled` ends that: somebody pressed Stop, or nobody watches."""
    random = Random()
    own = crew()
    due = time.monotonic() + random.uniform(0, 1 / RATE)  # not all of them in the same moment
    for number in count(1):
        meta = {"title": f"Message {number}"}
        with streaming.stream(sid).message(meta=meta, cancel_unwatched_after=PATIENCE) as message:
            for token in islice(words.ramble(random), LENGTH):
                # Against a schedule: the sleeps are as much shorter as the work between them takes.
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - LATE) + 1 / RATE
                if not own.is_stressed:
                    message.cancel()
                message.append(token)
