"""What a record says: parsing, checking and the app's defaults. Source: docs/pages.md, "Records" and "State".

A record is JSON as ujson reads it, minus what ujson lets through and a page must not see: invalid UTF-8, numbers that
are not finite, nesting beyond 128, half a surrogate pair. Looking for these in Python would cost more than parsing, so
`_is_suspicious` asks first, with a few searches at C speed, whether the bytes can hold such a thing at all; only then
does `_clean` walk the parsed value.

Everything here is pure and runs in a render thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Aborted, RecordError
from .jsontext import decode_json, show

MAX_DEPTH = 128
VERSION = 2

Key = str | int | float
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """The first command of a page: the state that everything is rendered with."""

    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume:
    """Renders the boundary that the page waits at.

    Args:
        owner: the template file in which the tag stands.
        name: the tag's name.
        state: laid over the page's state, key by key, for this boundary and everything behind it.
        key: the occurrence's key, where the tag has one; `7` is `7.0` and is not `"7"`.
        mode: `final`, or `updatable` where `Update` may follow.
        declaration_id: the tag's place among its template's boundary tags, from 0; checked when given.
    """

    owner: str
    name: str
    state: Mapping[str, Any] = field(default_factory=dict)
    key: Key | None = None
    mode: str = "final"
    declaration_id: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Renders an updatable boundary again, with `state` laid over what it had; see `Resume` for the arguments."""

    owner: str
    name: str
    state: Mapping[str, Any] = field(default_factory=dict)
    key: Key | None = None
    declaration_id: int | None = None


Command = Start | Resume | Update


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the app adds to the state of `start` and `resume`.

    Args:
        tokens: laid under the state's `tokens` when that is an object or missing.
        overwrite: strings that win over the state: `basePath`, and the route's parameters.
    """

    tokens: Mapping[str, Any] | None = None
    overwrite: Mapping[str, str] = field(default_factory=dict)

    def apply(self, state: Mapping[str, Any], *, first: bool) -> State:
        """Return `state` with the defaults; `first` for the state of `start`, where missing tokens are added."""
        merged = dict(state)
        if self.tokens is not None and (first or "tokens" in merged):
            given = merged.get("tokens", {})
            if isinstance(given, dict):
                merged["tokens"] = {**self.tokens, **given}
        merged.update(self.overwrite)
        return merged


def parse_command(raw: bytes, record: int) -> Command:
    """Parse and check one record.

    Raises:
        RecordError: it is not JSON, or not of a command's shape.
        Aborted: it is an `abort`.
    """
    value = _parse_object(raw, record)
    kind = value.get("type")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise RecordError(f'"type" is {show(kind)}, not one of start, resume, update, abort', record)
    _refuse_unknown(value, shape, record)
    if kind == "abort":
        raise Aborted(_string(value, "message", record) if "message" in value else "", record)
    state = value.get("state")
    if not isinstance(state, dict):
        raise RecordError('"state" must be an object', record)
    if kind == "start":
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            raise RecordError(f'"version" is {show(version)}, not {VERSION}', record)
        return Start(state)
    owner, name, key, declaration_id = _parse_boundary(value.get("boundary"), record)
    if kind == "update":
        return Update(owner, name, state, key, declaration_id)
    mode = value.get("mode", "final")
    if mode not in ("final", "updatable"):
        raise RecordError(f'"mode" is {show(mode)}, not "final" or "updatable"', record)
    return Resume(owner, name, state, key, mode, declaration_id)


def parse_state(raw: bytes) -> Start:
    """Parse the body of an `application/json` answer: one object, the state of an ordinary page.

    Raises:
        RecordError: it is not JSON, or not an object.
    """
    return Start(_parse_object(raw, 0))


def check_command(command: object, record: int) -> Command:
    """Check a command that the app made itself, as strictly as a parsed one.

    Raises:
        RecordError: it is no command, or a member has a wrong type.
    """
    if not isinstance(command, Start | Resume | Update):
        raise RecordError(f"{type(command).__name__} is neither bytes nor Start, Resume or Update", record)
    if not isinstance(command.state, Mapping):
        raise RecordError('"state" must be a mapping', record)
    if isinstance(command, Start):
        return command
    if not isinstance(command.owner, str) or not isinstance(command.name, str):
        raise RecordError('"owner" and "name" must be strings', record)
    if command.key is not None and not is_key(command.key):
        raise RecordError('"key" must be a string or a number', record)
    if command.declaration_id is not None and type(command.declaration_id) is not int:
        raise RecordError('"declaration_id" must be an integer', record)
    if isinstance(command, Resume) and command.mode not in ("final", "updatable"):
        raise RecordError(f'"mode" is {show(command.mode)}, not "final" or "updatable"', record)
    return command


def is_key(value: object) -> bool:
    """Whether a value can be the key of an occurrence: a string or a number, and `True` is no number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


_SHAPES: dict[str, frozenset[str]] = {
    "start": frozenset({"type", "version", "state"}),
    "resume": frozenset({"type", "boundary", "mode", "state"}),
    "update": frozenset({"type", "boundary", "state"}),
    "abort": frozenset({"type", "message"}),
}
_BOUNDARY_SHAPE = frozenset({"owner", "name", "key", "declarationId"})


def _parse_object(raw: bytes, record: int) -> dict[str, Any]:
    try:
        value = decode_json(raw)
        if _is_suspicious(raw):
            value = _clean(value, MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RecordError(str(error), record) from error
    if not isinstance(value, dict):
        raise RecordError("not a JSON object", record)
    return value


def _parse_boundary(value: object, record: int) -> tuple[str, str, Key | None, int | None]:
    if not isinstance(value, dict):
        raise RecordError('"boundary" must be an object', record)
    _refuse_unknown(value, _BOUNDARY_SHAPE, record)
    key = value.get("key")
    if "key" in value and not is_key(key):
        raise RecordError('"key" must be a string or a number', record)
    declaration_id = value.get("declarationId")
    if "declarationId" in value and type(declaration_id) is not int:
        raise RecordError('"declarationId" must be an integer', record)
    return _string(value, "owner", record), _string(value, "name", record), key, declaration_id


def _string(value: dict[str, Any], member: str, record: int) -> str:
    found = value.get(member)
    if not isinstance(found, str):
        raise RecordError(f'"{member}" must be a string', record)
    return found


def _refuse_unknown(value: dict[str, Any], known: frozenset[str], record: int) -> None:
    if not known.issuperset(value):
        unknown = min(key for key in value if key not in known)
        raise RecordError(f"unknown member {show(unknown)}", record)


# Digits become 0 and E becomes e; so three literals find every number that could be too large for a double: a mantissa
# of 200 digits, or an exponent of three.
_NUMBERS = bytes.maketrans(b"123456789E", b"000000000e")
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _is_suspicious(raw: bytes) -> bool:
    """Whether the bytes of valid JSON might hold deep nesting, a number that is not finite, or half a pair."""
    # Single bytes are looked for many times faster than words, and most records have none of these.
    if (b"N" in raw and b"NaN" in raw) or (b"I" in raw and b"Inf" in raw):
        return True
    if b"\\" in raw and _HALF_A_PAIR.search(raw):
        return True
    numbers = raw.translate(_NUMBERS)
    if b"e000" in numbers or (b"+" in raw and b"e+000" in numbers) or b"0" * 200 in numbers:
        return True
    return raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and not _is_shallow(raw)


def _is_shallow(raw: bytes) -> bool:
    """Whether nesting is certainly within MAX_DEPTH. False also when a string has brackets in it: then ask the value.

    All but quotes and brackets is dropped. A string without brackets is then two quotes; when those are gone and a
    quote is left, some string holds a bracket. Else what is left are the real brackets, and each round takes the
    innermost ones away.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = raw.translate(None, _ALL_BUT_BRACKETS).replace(b'""', b"")
    if b'"' in brackets:
        return False
    brackets = brackets.translate(_ONE_KIND)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def _clean(value: Any, depth: int) -> Any:
    """Copy a parsed value with half pairs replaced by U+FFFD; ValueError for what no record may hold."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError("not valid JSON: a number is not finite")
        return value
    if isinstance(value, dict | list):
        if depth == 0:
            raise ValueError(f"not valid JSON: nested deeper than {MAX_DEPTH}")
        if isinstance(value, list):
            return [_clean(item, depth - 1) for item in value]
        return {_clean(key, depth): _clean(item, depth - 1) for key, item in value.items()}
    return value
