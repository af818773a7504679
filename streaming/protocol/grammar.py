"""The names of the live protocol: streams, messages, epochs, kinds. Source: docs/live-protocol.md, "Names".

The predicates take whatever JSON or a URL gave. The patterns are for `fullmatch`: `$` lets a line feed at the end pass.
Every character class is spelled out, so that nothing outside ASCII is a letter or a digit.
"""

from __future__ import annotations

import re
from typing import TypeGuard

# The first and the last bracket leave out what would be taken for another route beside `/streams/<sid>`.
SID = re.compile(r"(?!(?:ws|activity|inspect)\Z)[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}(?<!\.js)")
MID = re.compile(r"[A-Za-z0-9_-]{1,64}")
EPOCH = re.compile(r"[A-Za-z0-9]{8,32}")
KIND = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


def is_sid(text: object) -> TypeGuard[str]:
    """Whether this can name a stream: of the grammar, and not the path of another route."""
    return _fits(SID, text)


def is_mid(text: object) -> TypeGuard[str]:
    """Whether this can name a message; also a producer, which has the same grammar."""
    return _fits(MID, text)


def is_kind(text: object) -> TypeGuard[str]:
    """Whether this can be the kind of an event or of a part; the protocol's own kinds are of the grammar too."""
    return _fits(KIND, text)


def is_own_kind(text: str) -> bool:
    """Whether a kind belongs to the protocol, so that no app and no producer may use it for its events."""
    return text.startswith(("message.", "part."))


def _fits(pattern: re.Pattern[str], text: object) -> TypeGuard[str]:
    return isinstance(text, str) and pattern.fullmatch(text) is not None
