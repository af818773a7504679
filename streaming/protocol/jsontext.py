"""JSON in and JSON out, as ujson does it minus what ujson lets through.

In: UTF-8 is checked strictly, since ujson takes surrogates that are encoded in it. Half a pair that is *escaped* stays
in the value, and so do numbers that are not finite; what becomes of these is up to whoever uses the value.

Out: a browser has to be able to read it. ujson would write a tuple as a name, call `toDict` and `__json__` of any
object, put what the latter returns into the text as it is, and go 1,024 levels deep. So types and depth are checked
first, a whole level of the value at a time, most of it at C speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from json.encoder import encode_basestring
from typing import Any

import ujson

MAX_DEPTH = 64

_PLAIN: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_ARRAYS = (list, tuple)
_ENCODABLE = (str, int, float, type(None), dict, *_ARRAYS)


def decode_json(raw: bytes) -> Any:
    """Parse one JSON value.

    Raises:
        ValueError: it is not UTF-8, or not one JSON value. The text is one short line.
    """
    try:
        # ujson raises ValueErrors of two kinds, and OverflowError.
        return ujson.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("not valid UTF-8") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {shorten(str(error))}") from error


def encode_json(value: Any) -> bytes:
    """Write a value as compact JSON in UTF-8, without a line feed in it.

    Names of members are strings, or integers that become strings. Half a surrogate pair becomes U+FFFD, anywhere.

    Raises:
        ValueError: something in it is no JSON, not finite, or nested deeper than 64. The text is one short line.
    """
    try:
        # Before ujson: it would follow a value that contains itself, and call methods of what is refused here.
        _check(value)
        text: str = ujson.dumps(value, ensure_ascii=False, escape_forward_slashes=False, allow_nan=False)
    except OverflowError as error:  # of depth, the other one of ujson's, there is none after the check
        raise ValueError("cannot be sent as JSON: a number is not finite") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"cannot be sent as JSON: {shorten(str(error))}") from error
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # in JSON a quote stands between two strings, so halves of two never meet
        return mend(text).encode("utf-8")


def encode_text(text: str) -> bytes:
    """Write a string as JSON; it must hold no half of a surrogate pair.

    The standard library's encoder: a run of 40 characters takes it 0.35 us, ujson 1.2.
    """
    return encode_basestring(text).encode()


def mend(text: str) -> str:
    """Return the text as Unicode: two halves of a pair side by side become their character, a lone one U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def show(value: object) -> str:
    """A value that came from outside, short and on one line, for a message that people and logs will see."""
    if isinstance(value, str):
        return f'"{shorten(value)}"'
    return shorten(repr(value)) if isinstance(value, int | float | None) else f"a {type(value).__name__}"


def shorten(text: str) -> str:
    """The first 60 characters of a text, escaped to printable ASCII."""
    escaped = text[:61].encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= 60 else escaped[:60] + "..."


def _check(value: Any) -> None:
    """Refuse what is no JSON, at any level, and a level too many."""
    level: list[Any] = [value]
    depth = 0
    while level:
        kinds = set(map(type, level))
        if kinds <= _PLAIN:
            return
        for kind in kinds:
            if not issubclass(kind, _ENCODABLE):
                raise ValueError(f"a value is a {kind.__name__}")
        # By identity, each once: where a list holds itself twice, levels would double.
        objects = {id(item): item for item in level if isinstance(item, dict)}.values()
        arrays = {id(item): item for item in level if isinstance(item, _ARRAYS)}.values()
        if objects or arrays:
            depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        _check_names(objects)
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(arrays)]


def _check_names(objects: Iterable[dict[Any, Any]]) -> None:
    for kind in set(map(type, chain.from_iterable(objects))):
        # A subclass of int, an enum's for example, can have a `__str__` of its own, and ujson would use it.
        if kind is not int and not issubclass(kind, str):
            raise ValueError(f"a member's name is a {kind.__name__}, not a string or an integer")
