"""What a producer of the tests says that counts until it is told to stop; so that a test knows the text by itself."""

from __future__ import annotations

from collections.abc import Iterator


def step(number: int) -> list[tuple[str, str]]:
    """Kind and text of the pieces of one step. An emoji is cut in two, as models do; two parts take turns."""
    pieces = [("text", f"{number} \ud83c"), ("text", "\udf0a")]
    return [("thinking", f"thought {number}. "), *pieces] if number % 5 == 0 else pieces


def counted(steps: int) -> list[list[str]]:
    """Kind and text of the parts after so many steps."""
    texts: dict[str, str] = {}
    for number in range(steps):
        for kind, text in step(number):
            texts[kind] = texts.get(kind, "") + text
    return [[kind, whole(text)] for kind, text in texts.items()]


def whole(text: str) -> str:
    """The text with halves of emoji put together."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def endless() -> Iterator[list[tuple[str, str]]]:
    """All steps."""
    number = 0
    while True:
        yield step(number)
        number += 1
