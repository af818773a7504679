"""One line of a producer's body becomes one command. Source: docs/live-protocol.md, "Ingest".

Only the line itself is judged here. Whether a `mid` is new, a part comes in order and a message is still open depends
on the stream, and is judged where the command is applied.

A bad record is refused as a whole, before anything of it is applied. So what will be sent on as JSON (`d`, `meta`,
`usage`) is encoded here, where it shows whether it can be; the commands carry the bytes and nobody encodes it again.

Unknown members are ignored, whatever they hold. A member that is `null` counts as left out, as many encoders write it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .grammar import is_kind, is_mid, is_own_kind
from .jsontext import decode_json, encode_json, mend, show

MAX_PART = 2**31
MAX_N = 2**53 - 1  # the largest whole number that JavaScript counts to
MAX_ROLE = 64
STATUSES = ("complete", "cancelled", "aborted", "error")


class BadRecord(Exception):
    """A record broke a rule of docs/live-protocol.md, "Ingest".

    Attributes:
        reason: one short line for the producer and the log: what is wrong, and what is expected.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class MessageStart:
    """Starts a message.

    Args:
        mid: its name; None for one that is made up.
        role: who speaks: not empty, at most 64 characters, none of them a control character.
        meta: a JSON object.
        n: the record's number, where the producer counts them. In every command.
    """

    mid: str | None = None
    role: str = "assistant"
    meta: bytes = b"{}"
    n: int | None = None


@dataclass(frozen=True, slots=True)
class PartStart:
    """Starts a part of a message.

    Args:
        mid: the message; None for the last one that this producer started. So in all commands below.
        part: the part's number in its message.
        kind: of the grammar of event kinds.
        meta: a JSON object.
    """

    mid: str | None = None
    part: int = 0
    kind: str = "text"
    meta: bytes = b"{}"
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Appends text to a part, and starts the part where that has not happened.

    Args:
        kind: None where the record names none; who starts a part then takes `text`.
        s: the text as the producer cut it: it may begin or end with half a surrogate pair.
    """

    mid: str | None = None
    part: int = 0
    kind: str | None = None
    s: str = ""
    n: int | None = None


@dataclass(frozen=True, slots=True)
class PartEnd:
    """Ends a part.

    Args:
        s: the whole text when it replaces what was streamed, half pairs as they came; None when it doesn't.
    """

    mid: str | None = None
    part: int = 0
    s: str | None = None
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Publishes an event of the app's own.

    Args:
        k: its kind, none of the protocol's.
        d: a JSON value.
        urgent: it also goes to subscribers in mode `activity`, and to hidden pages at once.
    """

    k: str
    d: bytes = b"null"
    urgent: bool = False
    n: int | None = None


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """Ends a message and its open parts.

    Args:
        status: one of `STATUSES`.
        error: what went wrong, in words.
        usage: a JSON object.
    """

    mid: str | None = None
    status: str = "complete"
    error: str | None = None
    usage: bytes | None = None
    n: int | None = None


IngestCommand = MessageStart | PartStart | Delta | PartEnd | Event | MessageEnd


def parse_ingest(raw: bytes) -> IngestCommand:
    """Parse and check one record, a line without its line feed.

    Raises:
        BadRecord: it is not JSON, or not of a command's shape.
    """
    try:
        record = decode_json(raw)
    except ValueError as error:
        raise BadRecord(str(error)) from error
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object")
    op = record.get("op")
    parse = _PARSERS.get(op) if isinstance(op, str) else None
    if parse is None:
        found = show(op) if "op" in record else "missing"
        raise BadRecord(f'"op" is {found}, not one of {", ".join(_PARSERS)}')
    return parse({name: value for name, value in record.items() if value is not None})


# -- commands

_Record = dict[str, Any]


def _message_start(record: _Record) -> MessageStart:
    return MessageStart(_mid(record), _role(record), _json_object(record, "meta") or b"{}", _n(record))


def _part_start(record: _Record) -> PartStart:
    kind = _kind(record)
    meta = _json_object(record, "meta") or b"{}"
    return PartStart(_mid(record), _part(record), "text" if kind is None else kind, meta, _n(record))


def _delta(record: _Record) -> Delta:
    text = _text(record, "s")
    if text is None:
        raise BadRecord('"s" is missing, it must be a string')
    return Delta(_mid(record), _part(record), _kind(record), text, _n(record))


def _part_end(record: _Record) -> PartEnd:
    return PartEnd(_mid(record), _part(record), _text(record, "s"), _n(record))


def _event(record: _Record) -> Event:
    if "k" not in record:
        raise BadRecord('"k" is missing, it must be the kind of an event')
    kind = record["k"]
    if not is_kind(kind):
        raise BadRecord(f'"k" is {show(kind)}, {_KIND_RULE}')
    if is_own_kind(kind):
        raise BadRecord(f'"k" is {show(kind)}: kinds starting with message. or part. belong to the protocol')
    urgent = record.get("urgent", False)
    if not isinstance(urgent, bool):
        raise BadRecord(f'"urgent" is {show(urgent)}, not true or false')
    data = _encode(record, "d") if "d" in record else b"null"
    return Event(kind, data, urgent, _n(record))


def _message_end(record: _Record) -> MessageEnd:
    status = record.get("status", "complete")
    if status not in STATUSES:
        raise BadRecord(f'"status" is {show(status)}, not one of {", ".join(STATUSES)}')
    error = _text(record, "error")
    usage = _json_object(record, "usage")
    return MessageEnd(_mid(record), status, None if error is None else mend(error), usage, _n(record))


_PARSERS: dict[str, Callable[[_Record], IngestCommand]] = {
    "message.start": _message_start,
    "part.start": _part_start,
    "delta": _delta,
    "part.end": _part_end,
    "event": _event,
    "message.end": _message_end,
}


# -- members

_KIND_RULE = "not a small letter with up to 63 of a-z 0-9 _ . - behind it"


def _mid(record: _Record) -> str | None:
    if "mid" not in record:
        return None
    mid = record["mid"]
    if not is_mid(mid):
        raise BadRecord(f'"mid" is {show(mid)}, not 1 to 64 of A-Z a-z 0-9 _ -')
    return mid


def _role(record: _Record) -> str:
    role = record.get("role", "assistant")
    # Cc is Unicode's category of control characters.
    if (
        not isinstance(role, str)
        or not 0 < len(role) <= MAX_ROLE
        or any(unicodedata.category(character) == "Cc" for character in role)
    ):
        raise BadRecord(
            f'"role" is {show(role)}, not a string of 1 to {MAX_ROLE} characters without control characters'
        )
    return mend(role)


def _part(record: _Record) -> int:
    part = record.get("part", 0)
    if type(part) is not int or not 0 <= part <= MAX_PART:
        raise BadRecord(f'"part" is {show(part)}, not a whole number from 0 to {MAX_PART}')
    return part


def _kind(record: _Record) -> str | None:
    if "kind" not in record:
        return None
    kind = record["kind"]
    if not is_kind(kind):
        raise BadRecord(f'"kind" is {show(kind)}, {_KIND_RULE}')
    return kind


def _n(record: _Record) -> int | None:
    if "n" not in record:
        return None
    n = record["n"]
    if type(n) is not int or not -MAX_N <= n <= MAX_N:
        raise BadRecord(f'"n" is {show(n)}, not a whole number from -{MAX_N} to {MAX_N}')
    return n


def _text(record: _Record, member: str) -> str | None:
    if member not in record:
        return None
    text = record[member]
    if not isinstance(text, str):
        raise BadRecord(f'"{member}" is {show(text)}, not a string')
    return text


def _json_object(record: _Record, member: str) -> bytes | None:
    if member not in record:
        return None
    if not isinstance(record[member], dict):
        raise BadRecord(f'"{member}" is {show(record[member])}, not an object')
    return _encode(record, member)


def _encode(record: _Record, member: str) -> bytes:
    try:
        return encode_json(record[member])
    except ValueError as error:
        raise BadRecord(f'"{member}" {error}') from error
