"""A part's text: append-only, cut by offset, shared by all who read it.

Theory of operation. Text is appended in runs, one for each flush, and kept as the list of these runs with the offset at
which each begins. A reader who is up to date wants exactly the last run, and gets that very string: no copy, however
many readers there are and however long the text is. A reader further behind gets its runs joined, found by bisection.
Runs that lie behind are joined to longer ones, since a string of a few words takes several times its text.
Offsets and lengths count Unicode code points (docs/live-protocol.md, "Model").

Models cut emoji in two: half a surrogate pair at the end of a delta, the other half in the next. `settle` joins the
halves, holds back one that waits for its partner, and replaces one that can have none.
"""

from __future__ import annotations

from bisect import bisect_right

from . import jsontext

#: Runs behind the newest that are joined to one.
JOINED = 64


def settle(text: str, *, final: bool = False) -> tuple[str, str]:
    """Make text safe to encode.

    Args:
        text: what is to be sent; it may hold halves of surrogate pairs.
        final: nothing follows, so nothing can be held back.

    Returns:
        The text with its pairs joined and lonely halves replaced by U+FFFD; and what is held back until more comes:
        nothing, or the first half of a pair.
    """
    if text.isascii():
        return text, ""
    held = ""
    if not final and "\ud800" <= text[-1] <= "\udbff":
        held, text = text[-1], text[:-1]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = jsontext.mend(text)
    return text, held


class Part:
    """One run of text inside a message.

    Attributes:
        p: the `seq` of its `part.start`, its name on the wire.
        mid: its message.
        number: 0, 1, 2 … in its message.
        kind: `text`, `thinking` …
        meta: encoded JSON.
        length: code points so far.
        ended: `seq` of its `part.end`; None while it is open.
        replacement: what the app put in place of the text at the end; None if it did not.
    """

    __slots__ = ("_loose", "_runs", "_starts", "ended", "kind", "length", "meta", "mid", "number", "p", "replacement")

    def __init__(self, p: int, mid: str, number: int, kind: str, meta: bytes) -> None:
        self.p = p
        self.mid = mid
        self.number = number
        self.kind = kind
        self.meta = meta
        self.length = 0
        self.ended: int | None = None
        self.replacement: str | None = None
        self._loose = 0  # runs at the end of the list that are not joined
        self._runs: list[str] = []
        self._starts: list[int] = []

    @property
    def final_length(self) -> int:
        """Length of the text as it stands: of the replacement, if there is one."""
        return self.length if self.replacement is None else len(self.replacement)

    def append(self, run: str) -> None:
        """Add a run; it must hold no half of a surrogate pair."""
        if self._loose == JOINED:
            self._runs[-JOINED:] = ["".join(self._runs[-JOINED:])]
            del self._starts[1 - JOINED :]
            self._loose = 0
        self._loose += 1
        self._starts.append(self.length)
        self._runs.append(run)
        self.length += len(run)

    def cut(self, start: int, stop: int) -> str:
        """The text from one offset to another, 0 <= start <= stop <= length."""
        if start == stop:
            return ""
        first = bisect_right(self._starts, start) - 1
        run, begin = self._runs[first], self._starts[first]
        if stop <= begin + len(run):
            return run if (start, stop) == (begin, begin + len(run)) else run[start - begin : stop - begin]
        last = bisect_right(self._starts, stop - 1) - 1
        runs = self._runs[first : last + 1]
        runs[0] = runs[0][start - begin :]
        runs[-1] = runs[-1][: stop - self._starts[last]]
        return "".join(runs)
