"""What a record says: shapes, JSON's edges, the app's defaults, and commands that the app makes itself."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import pytest
import ujson
from hypothesis import assume, example, given
from hypothesis import strategies as st

from streaming.errors import Aborted, RecordError
from streaming.protocol.commands import (
    MAX_DEPTH,
    Defaults,
    Resume,
    Start,
    Update,
    _clean,
    _is_suspicious,
    check_command,
    is_key,
    parse_command,
    parse_state,
)

START = {"type": "start", "version": 2, "state": {"title": "Inbox"}}
BOUNDARY = {"owner": "feed.html", "name": "row", "key": 7, "declarationId": 1}
RESUME = {"type": "resume", "boundary": BOUNDARY, "mode": "updatable", "state": {"rows": [1, 2]}}
UPDATE = {"type": "update", "boundary": BOUNDARY, "state": {"count": 2}}
ABORT = {"type": "abort", "message": "database is down"}
ALL = [START, RESUME, UPDATE, ABORT]
MISSING = object()


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def change(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a record with one member set, or left out when `value` is MISSING."""
    changed = copy.deepcopy(record)
    *parents, last = path.split(".")
    target = changed
    for parent in parents:
        target = target[parent]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return changed


def refusal(raw: Any, number: int = 3) -> str:
    """What is said of a record that is refused. Always one short line that begins with the record's number."""
    with pytest.raises(RecordError) as caught:
        parse_command(raw if isinstance(raw, bytes) else dump(raw), number)
    assert caught.value.record == number
    return check_line(str(caught.value), number)


def check_line(message: str, number: int) -> str:
    assert message.startswith(f"record {number}: ")
    assert message.isprintable()
    assert len(message) < 300
    return message


def start_with(text: str) -> bytes:
    """A start whose state has one member `x`, written as given."""
    return b'{"type":"start","version":2,"state":{"x":%s}}' % text.encode()


def value_of(text: str) -> Any:
    """What a state's member becomes that is written like this."""
    command = parse_command(start_with(text), 0)
    assert isinstance(command, Start)
    return command.state["x"]


# -- shapes


def test_a_start_is_parsed() -> None:
    assert parse_command(dump(START), 0) == Start({"title": "Inbox"})


def test_a_resume_is_parsed() -> None:
    assert parse_command(dump(RESUME), 0) == Resume("feed.html", "row", {"rows": [1, 2]}, 7, "updatable", 1)


def test_a_resume_is_final_and_without_key_unless_it_says_so() -> None:
    record = {"type": "resume", "boundary": {"owner": "a", "name": "b"}, "state": {}}
    assert parse_command(dump(record), 0) == Resume("a", "b", {}, None, "final", None)


def test_an_update_is_parsed() -> None:
    assert parse_command(dump(UPDATE), 0) == Update("feed.html", "row", {"count": 2}, 7, 1)


@pytest.mark.parametrize("said", ["database is down", "", "two\nlines"])
def test_an_abort_is_raised_with_what_it_says(said: str) -> None:
    with pytest.raises(Aborted) as caught:
        parse_command(dump({"type": "abort", "message": said}), 4)
    assert (caught.value.said, caught.value.record, caught.value.status) == (said, 4, 502)


def test_an_abort_may_say_nothing() -> None:
    with pytest.raises(Aborted) as caught:
        parse_command(b'{"type":"abort"}', 4)
    assert caught.value.said == ""


def test_what_an_abort_says_is_not_in_the_text_for_the_client() -> None:
    with pytest.raises(Aborted) as caught:
        parse_command(dump(ABORT), 4)
    assert str(caught.value) == "record 4: the backend aborted the page"


@pytest.mark.parametrize("record", [START, RESUME, UPDATE], ids=lambda record: record["type"])
def test_a_state_may_be_empty(record: dict[str, Any]) -> None:
    assert parse_command(dump(change(record, "state", {})), 0).state == {}


@pytest.mark.parametrize(
    ("record", "path"),
    [
        (START, "type"),
        (START, "version"),
        (START, "state"),
        (RESUME, "type"),
        (RESUME, "boundary"),
        (RESUME, "boundary.owner"),
        (RESUME, "boundary.name"),
        (RESUME, "state"),
        (UPDATE, "type"),
        (UPDATE, "boundary"),
        (UPDATE, "boundary.owner"),
        (UPDATE, "boundary.name"),
        (UPDATE, "state"),
    ],
)
def test_a_required_member_that_is_missing_is_refused_by_name(record: dict[str, Any], path: str) -> None:
    assert f'"{path.split(".")[-1]}"' in refusal(change(record, path, MISSING))


WRONG = {
    "type": [None, True, 1, 2.5, [], {}, "", "Start", "start ", "stop", "cancel", "START", "\u0000start"],
    "version": [None, True, False, 2.0, "2", 1, 0, 3, -2, 2.5, [2], {}, 10**30],
    "state": [None, True, 1, 1.5, "{}", [], [{}]],
    "boundary": [None, True, 1, 1.5, "row", [], ["feed.html", "row"]],
    "boundary.owner": [None, True, 1, 1.5, [], {}],
    "boundary.name": [None, True, 1, 1.5, [], {}],
    "boundary.key": [None, True, False, [], {}, [7], {"key": 7}],
    "boundary.declarationId": [None, True, False, 1.0, 0.0, "1", [], {}],
    "mode": [None, True, 1, "", "Final", "UPDATABLE", "final ", [], {}, ["final"]],
    "message": [None, True, 1, [], {}],
}


@pytest.mark.parametrize(
    ("record", "path", "value"),
    [
        (record, path, value)
        for record in ALL
        for path in WRONG
        if path.split(".")[0] in record
        for value in WRONG[path]
    ],
)
def test_a_member_of_a_wrong_type_or_value_is_refused_by_name(record: dict[str, Any], path: str, value: Any) -> None:
    assert f'"{path.split(".")[-1]}"' in refusal(change(record, path, value))


@pytest.mark.parametrize("version", ["2.0", "2e0", "20e-1", "true", '"2"', "1", "3", "02.0"])
def test_the_version_is_the_integer_2(version: str) -> None:
    assert '"version"' in refusal(b'{"type":"start","state":{},"version":%s}' % version.encode())


@pytest.mark.parametrize(
    ("record", "path"),
    [
        *(
            (record, member)
            for record in ALL
            for member in ("unknown", "Type", "", "id", "version", "state", "boundary", "mode", "message", "key")
            if member not in record
        ),
        (RESUME, "boundary.unknown"),
        (RESUME, "boundary.type"),
        (UPDATE, "boundary.unknown"),
        (UPDATE, "boundary.mode"),
    ],
)
def test_a_member_that_a_command_does_not_have_is_refused(record: dict[str, Any], path: str) -> None:
    *_, member = path.split(".")
    assert f'unknown member "{member}"' in refusal(change(record, path, 1))


def test_a_state_may_have_any_members() -> None:
    state = {"type": 1, "unknown": None, "": [], "boundary": {"unknown": True}, "version": "x"}
    assert parse_command(dump({**START, "state": state}), 0) == Start(state)


def test_of_duplicate_keys_the_last_wins() -> None:
    assert parse_command(
        b'{"type":"abort","version":1,"state":1,"state":{"a":1,"a":2},"type":"start","version":2}', 0
    ) == (Start({"a": 2}))
    assert "version" in refusal(b'{"type":"start","state":{},"version":2,"version":1}')
    boundary = (
        b'{"type":"resume","state":{},"boundary":{"owner":1,"owner":"o","name":"m","name":"n","key":null,"key":1}}'
    )
    assert parse_command(boundary, 0) == Resume("o", "n", {}, 1)


@pytest.mark.parametrize("key", ["7", "", "\u00e9", 0, 7, -1, 7.5, 0.0, 2**53 + 1, 10**40, 1e300])
def test_a_key_is_a_string_or_a_number(key: Any) -> None:
    for record in (RESUME, UPDATE):
        command = parse_command(dump(change(record, "boundary.key", key)), 0)
        assert command.key == key
        assert type(command.key) is type(key)


def test_the_key_7_is_7_0_and_is_not_the_string() -> None:
    """Keys are compared as Python compares them."""

    def key(text: str) -> Any:
        return parse_command(
            b'{"type":"update","state":{},"boundary":{"owner":"a","name":"b","key":%s}}' % text.encode(), 0
        ).key

    assert key("7") == key("7.0") == key("70e-1")
    assert hash(key("7")) == hash(key("7.0"))
    assert key("7") != key('"7"')
    assert key("0") == key("-0.0")


@pytest.mark.parametrize("number", [0, 1, 9_999, -1, 10**20])
def test_a_declaration_id_is_any_integer(number: int) -> None:
    assert parse_command(dump(change(RESUME, "boundary.declarationId", number)), 0).declaration_id == number


# -- JSON


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"x",
        b"{",
        b"}",
        b'{"type"',
        b'{"type":"start","version":2,"state":{}',
        b'{"type":"start","version":2,"state":{}}}',
        b'{"type":"start","version":2,"state":{}} x',
        b'{"type":"start","version":2,"state":{},}',
        b"{'type':'abort'}",
        b"{type:1}",
        b'{"type":"abort"}{"type":"abort"}',
        b'{"type":"abort"} {"type":"abort"}',
        b'{"type":"abort"},{"type":"abort"}',
        b'{"type":"abort"}\0',
        b"\xef\xbb\xbf" + b'{"type":"abort"}',
        b'{"type":"abort","message":"\\q"}',
        b'{"type":"abort","message":"\\u12"}',
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b"[" * 1_000_000,
        b"9" * 5_000,
    ],
)
def test_what_is_not_one_json_value_is_refused(raw: bytes) -> None:
    assert "not valid JSON" in refusal(raw)


@pytest.mark.parametrize("raw", [b"[]", b"null", b"true", b"1", b'"start"', b"[%s]" % dump(START), b"1.5", b"-0"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    assert "not a JSON object" in refusal(raw)


def test_blanks_around_the_object_are_json() -> None:
    assert parse_command(b' \t{ "type" : "start" ,"version":2,\r"state":{ } } \r', 0) == Start({})


NOT_FINITE = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1E400",
    "1e+400",
    "1E+0400",
    "1e0000000000400",
    "1.e400",
    "1.0e309",
    "0.1e400",
    "1e309",
    "1.8e308",
    "17976931348623159e293",
    "1e99999999999999999999",
    "1" + "0" * 400 + ".0",
    "9" * 400 + ".0",
    "-" + "8" * 309 + ".5",
    "7" * 299 + "e10",
    "7" * 215 + "e99",
    "7" * 215 + "E+99",
    "123456789" * 24 + "." + "1" * 300 + "e99",
]


@pytest.mark.parametrize(
    "number", NOT_FINITE, ids=lambda number: number if len(number) < 30 else f"{number[:9]}... {len(number)}"
)
@pytest.mark.parametrize("place", ["%s", "[%s]", '{"a":%s}', "[1,[2,{}],%s]", '["\\ud83d\\ude00",%s]'])
def test_a_number_that_is_not_finite_is_refused(number: str, place: str) -> None:
    assert "not valid JSON" in refusal(start_with(place % number))


def test_a_number_that_is_not_finite_is_no_key_and_no_version() -> None:
    for number in (b"NaN", b"1e400"):
        assert "not valid JSON" in refusal(
            b'{"type":"update","state":{},"boundary":{"owner":"a","name":"b","key":%s}}' % number
        )
        assert "not valid JSON" in refusal(b'{"type":"start","state":{},"version":%s}' % number)


@pytest.mark.parametrize(
    "number",
    [
        "1e308",
        "-1.7976931348623157e308",
        "1e-400",
        "1e-99999999999",
        "0e400",
        "0.0e999",
        "1" * 400,
        "7" * 199 + "e99",
        "5e-324",
    ],
)
def test_a_large_or_small_number_that_is_finite_is_taken(number: str) -> None:
    value = value_of(number)
    assert type(value) in (int, float)
    assert value == json.loads(number)


@pytest.mark.parametrize(
    "word", ["NaN", "Infinity", "-Infinity", "1e400", "1E+0400", "0" * 1_000, "Inf", "[" * 500, "{[" * 99]
)
def test_words_inside_strings_are_only_words(word: str) -> None:
    state = {word: [word, {"x": f'"{word}\\', word: word}]}
    assert parse_command(dump({**START, "state": state}), 0) == Start(state)


# -- nesting


def nested(depth: int, kinds: str, leaf: str) -> bytes:
    """A start with `leaf` in levels of these kinds in turn, `depth` of them with the start's own two."""
    levels = (kinds * depth)[: depth - 2]
    opening = "".join("[" if kind == "[" else '{"a":' for kind in levels)
    closing = "".join("]" if kind == "[" else "}" for kind in reversed(levels))
    return start_with(opening + leaf + closing)


@pytest.mark.parametrize("kinds", ["[", "{", "[{", "{[", "[[{", "{{["])
@pytest.mark.parametrize("leaf", ["1", '"]}[{"', '"\\"["', '"\\\\"', '"[[[[\\\\\\""'])
def test_nesting_may_be_128_deep_and_no_deeper(kinds: str, leaf: str) -> None:
    parse_command(nested(MAX_DEPTH, kinds, leaf), 0)
    for depth in (MAX_DEPTH + 1, MAX_DEPTH + 2, 200, 255, 256, 257, 500, 1_000):
        assert "nested deeper than 128" in refusal(nested(depth, kinds, leaf))


@pytest.mark.parametrize("kinds", ["[", "{", "[{", "{["])
@pytest.mark.parametrize("leaf", ["[]", "{}"])
def test_an_empty_array_or_object_is_a_level_too(kinds: str, leaf: str) -> None:
    parse_command(nested(MAX_DEPTH - 1, kinds, leaf), 0)
    assert "nested deeper than 128" in refusal(nested(MAX_DEPTH, kinds, leaf))


@pytest.mark.parametrize(
    "text", ["[" * 500, "]" * 500, "{" * 500, '"[' * 300, "\\[" * 300, '\\"{' * 300, '["' * 200 + "\\"]
)
def test_brackets_inside_strings_are_no_nesting(text: str) -> None:
    state = {"x": [text, {text: text}, text], "": text}
    assert parse_command(dump({**START, "state": state}), 0) == Start(state)


@pytest.mark.parametrize("text", ["[", "]", '"', "\\", '\\"', '"[', "]\\\\", '\\"]', "}{"])
def test_strings_do_not_hide_nesting(text: str) -> None:
    """Escaped quotes, backslashes and brackets of strings at every level change nothing about how deep it is."""

    def deep(depth: int) -> Any:
        value: Any = text
        for level in range(depth):
            value = [text, value, text] if level % 3 else {text: value, "": text}
        return value

    parse_command(dump({**START, "state": {"x": deep(MAX_DEPTH - 2)}}), 0)
    for depth in (MAX_DEPTH - 1, MAX_DEPTH, 250):
        assert "nested deeper" in refusal({**START, "state": {"x": deep(depth)}})


@pytest.mark.parametrize("neighbour", [r'"\\"', r'"\""', r'"\\\""', '""', "1"])
def test_brackets_of_strings_do_not_close_those_that_nest(neighbour: str) -> None:
    """Each level has strings beside it whose brackets would make it look flat, between strings that escape things."""
    for opening, closing in (("[", "]"), ('{"":[', "]}")):
        before = f'{opening}{neighbour},"]",{neighbour},'
        after = f',{neighbour},"[",{neighbour}{closing}'
        assert "nested deeper" in refusal(start_with(before * 130 + "1" + after * 130))


def test_many_brackets_side_by_side_are_shallow() -> None:
    state = {"x": [[], {}, [{}], {"a": []}] * 1_000}
    assert parse_command(dump({**START, "state": state}), 0) == Start(state)


# -- text


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("\\ud800", "\ufffd"),
        ("\\uDFFF", "\ufffd"),
        ("a\\ud83db", "a\ufffdb"),
        ("\\ude00\\ud83d", "\ufffd\ufffd"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
        ("\\ud83d\\ude00", "\U0001f600"),
        ("\\uD83D\\uDE00", "\U0001f600"),
        ("\\\\ud800", "\\ud800"),
        ("\\\\\\ud800", "\\\ufffd"),
        ("\\u00e9\\ufffd\\u0000", "\u00e9\ufffd\u0000"),
    ],
)
def test_half_a_pair_becomes_the_replacement_character(escaped: str, text: str) -> None:
    """In values and in keys; a proper pair is kept."""
    assert value_of(f'"{escaped}"') == text
    assert value_of(f'[{{"{escaped}":["{escaped}"]}}]') == [{text: [text]}]


def test_half_a_pair_is_replaced_outside_the_state_too() -> None:
    raw = b'{"type":"update","state":{},"boundary":{"owner":"\\ud800","name":"\\udfff","key":"a\\ud83d"}}'
    assert parse_command(raw, 0) == Update("\ufffd", "\ufffd", {}, "a\ufffd")
    with pytest.raises(Aborted) as caught:
        parse_command(b'{"type":"abort","message":"\\ud83d"}', 0)
    assert caught.value.said == "\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xc0\xaf",
        b"\xf0\x9f\x98",
        b"\xf5\x80\x80\x80",
        b"\xed\xa0\x80",
        b"\xed\xa0\xbd\xed\xb8\x80",
    ],
)
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    """Surrogates encoded in UTF-8 are not UTF-8."""
    assert refusal(b'{"type":"start","version":2,"state":{"x":"%s"}}' % data) == "record 3: not valid UTF-8"
    assert "not valid UTF-8" in refusal(b'{"type":"start","version":2,"state":{"%s":1}}' % data)
    assert "not valid UTF-8" in refusal(data)


def test_all_of_unicode_comes_through() -> None:
    text = "\u00e9\u2028\u2029\x85\ufeff\U0001f600\U0010ffff\uffff"
    assert value_of(json.dumps(text, ensure_ascii=False)) == text


# -- messages


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\r\nb",
        "\x1b[31m",
        "\0",
        "\u2028",
        "\x85",
        "x" * 10_000,
        "\U0001f600" * 10_000,
        "\n" * 100,
        '"',
        "\u202e",
        "\\" * 100,
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: {**START, "type": text},
        lambda text: {**START, "version": text},
        lambda text: {**START, text: 1},
        lambda text: {**RESUME, "mode": text},
        lambda text: change(RESUME, "boundary", {**BOUNDARY, text: 1}),
        lambda text: text.encode(),
    ],
    ids=["type", "version", "member", "mode", "boundary", "not-json"],
)
def test_a_message_is_one_short_line_whatever_the_backend_sends(make: Any, text: str) -> None:
    refusal(make(text))


def test_a_huge_number_is_shown_short() -> None:
    refusal(b'{"type":%s}' % (b"1" * 4_000))
    refusal(b'{"type":"start","state":{},"version":%s}' % (b"-" + b"1" * 4_000))


# -- whatever comes

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["start", "resume", "update", "abort", "final", "updatable", "", 2])
    | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "version", "state", "boundary", "owner", "name", "key", "mode", "message", "declarationId"]
            )
            | st.text(max_size=3),
            children,
            max_size=6,
        )
    ),
    max_leaves=20,
)
RECORDS = st.sampled_from(ALL).map(dump)


def check_whatever(raw: bytes) -> None:
    """A record is a command, or refused in one short line, or an abort; nothing else comes out of any bytes."""
    try:
        command = parse_command(raw, 5)
    except (RecordError, Aborted) as error:
        check_line(str(error), 5)
    else:
        assert isinstance(command, Start | Resume | Update)
        assert check_command(command, 5) is command
    try:
        assert isinstance(parse_state(raw).state, dict)
    except RecordError as error:
        check_line(str(error), 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    check_whatever(raw)


@given(JSON)
def test_random_json_is_a_command_or_refused(value: Any) -> None:
    check_whatever(dump(value))


@given(RECORDS, st.integers(0, 2**32))
def test_a_damaged_record_is_a_command_or_refused(raw: bytes, seed: int) -> None:
    """Bytes overwritten, left out, doubled and put in, where JSON is sensitive."""
    dice = random.Random(seed)
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data))
        snippet = dice.choice(
            [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\ud800", b"1e400", b"NaN", b"\n", b"\xff"]
        )
        action = dice.randrange(4)
        if action == 0:
            data[place] = dice.randrange(256)
        elif action == 1:
            del data[place]
        elif action == 2:
            data[place:place] = data[place : place + dice.randint(1, 20)]
        else:
            data[place:place] = snippet
    check_whatever(bytes(data))


@given(st.sampled_from([START, RESUME, UPDATE, ABORT]), st.sampled_from(list(WRONG)), JSON)
def test_a_record_with_another_member_is_a_command_or_refused(record: dict[str, Any], path: str, value: Any) -> None:
    assume(path.split(".")[0] in record)
    check_whatever(dump(change(record, path, value)))


def walk(value: Any, depth: int) -> Any:
    """The exact rules, written another way than the product's: the value as a page may see it, or ValueError."""
    if depth > 128 and isinstance(value, list | dict):
        raise ValueError("too deep")
    if isinstance(value, str):
        return "".join("\ufffd" if 0xD800 <= ord(character) < 0xE000 else character for character in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not finite")
    if isinstance(value, list):
        return [walk(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {walk(key, depth): walk(item, depth + 1) for key, item in value.items()}
    return value


def judge(raw: bytes) -> Any:
    """What the exact walk makes of a record: a value, or None when it is refused."""
    try:
        return walk(ujson.loads(raw.decode()), 1)
    except ValueError:
        return None


NUMBERS = st.builds(
    lambda sign, digits, point, fraction, exponent: sign + digits + point + fraction + exponent,
    st.sampled_from(["", "-"]),
    st.integers(0, 420).map(lambda size: "1" + "7" * size) | st.integers(0, 9).map(str),
    st.sampled_from(["", "."]),
    st.just(""),
    st.just("")
    | st.builds(
        lambda e, sign, size: f"{e}{sign}{size}",
        st.sampled_from("eE"),
        st.sampled_from(["", "+", "-", "0", "+00"]),
        st.integers(0, 420),
    ),
)
STRINGS = st.lists(
    st.sampled_from(
        ['\\"', "\\\\", "[", "]", "{", "}", "\\ud83d", "\\uDE00", "\\n", "a", "NaN", "1e999", "\u00e9", ",", ":", " "]
    ),
    max_size=8,
).map(lambda parts: '"' + "".join(parts) + '"')
BRACKETS = st.lists(st.sampled_from(["[]", "{}", "[]", '["\\"[",', '["\\\\",', '{"]":1,"":']), min_size=0, max_size=6)


def nest(levels: list[str], depth: int, leaf: str) -> str:
    """`leaf` inside `depth` levels, of these kinds in turn."""
    opening, closing = [], []
    for level in range(depth):
        kind = levels[level % len(levels)] if levels else "[]"
        if kind == "[]":
            opening.append("[")
        elif kind == "{}":
            opening.append('{"":')
        else:
            opening.append(kind)
        closing.append("}" if kind[0] == "{" else "]")
    return "".join(opening) + leaf + "".join(reversed(closing))


@given(BRACKETS, st.integers(0, 300), NUMBERS | STRINGS | st.sampled_from(["NaN", "-Infinity", "[]", "{}", "null"]))
@example(["[]", "{}"], 129, "1")
@example(["[]"], 129, "1")
@example(["[]"], 128, '"["')
@example([], 0, "7" * 211 + "e99")
def test_the_quick_look_never_misses_what_the_exact_walk_would_change(levels: list[str], depth: int, leaf: str) -> None:
    raw = nest(levels, depth, leaf).encode()
    try:
        value = ujson.loads(raw.decode())
    except ValueError:
        return
    if not _is_suspicious(raw):
        assert judge(raw) == value


@given(BRACKETS, st.integers(0, 300), NUMBERS | STRINGS)
@example(["[]", "{}"], 129, "1")
def test_a_record_is_judged_as_the_exact_walk_judges_it(levels: list[str], depth: int, leaf: str) -> None:
    raw = b'{"x":%s}' % nest(levels, depth, leaf).encode()
    expected = judge(raw)
    if expected is None:
        with pytest.raises(RecordError):
            parse_state(raw)
    else:
        assert parse_state(raw).state == expected


@given(JSON)
def test_the_exact_walk_changes_nothing_of_plain_json(value: Any) -> None:
    parsed = ujson.loads(dump(value))
    assert _clean(parsed, MAX_DEPTH) == walk(parsed, 1)


# -- the state of an ordinary page


def test_the_body_of_a_json_answer_is_the_state() -> None:
    assert parse_state(b'{"type":"x","rows":[1]}\n') == Start({"type": "x", "rows": [1]})


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b'{"a":NaN}', b'{"a":"\xff"}', b"{}{}"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RecordError) as caught:
        parse_state(raw)
    assert caught.value.record == 0


# -- defaults


def test_without_defaults_a_state_is_as_it_came() -> None:
    for first in (True, False):
        assert Defaults().apply({"a": 1, "tokens": 3}, first=first) == {"a": 1, "tokens": 3}


def test_tokens_are_laid_under_the_ones_of_the_state() -> None:
    defaults = Defaults({"a": 1, "b": 2})
    for first in (True, False):
        assert defaults.apply({"tokens": {"b": 3, "c": 4}}, first=first) == {"tokens": {"a": 1, "b": 3, "c": 4}}


@pytest.mark.parametrize("tokens", [None, 1, "x", [], True])
def test_tokens_that_are_no_object_stay(tokens: Any) -> None:
    for first in (True, False):
        assert Defaults({"a": 1}).apply({"tokens": tokens}, first=first) == {"tokens": tokens}


def test_missing_tokens_are_added_at_the_start_only() -> None:
    """A resume lays its members over the state: tokens of its own making would hide those that came before."""
    assert Defaults({"a": 1}).apply({}, first=True) == {"tokens": {"a": 1}}
    assert Defaults({"a": 1}).apply({}, first=False) == {}


def test_base_path_and_route_parameters_win() -> None:
    defaults = Defaults(None, {"basePath": "/shop", "path": "a/b"})
    for first in (True, False):
        assert defaults.apply({"basePath": 1, "path": {}, "x": 2}, first=first) == {
            "basePath": "/shop",
            "path": "a/b",
            "x": 2,
        }
        assert defaults.apply({}, first=first) == {"basePath": "/shop", "path": "a/b"}


def test_a_route_parameter_called_tokens_wins_over_tokens() -> None:
    assert Defaults({"a": 1}, {"tokens": "x"}).apply({"tokens": {}}, first=True) == {"tokens": "x"}


def test_applying_defaults_changes_neither_state_nor_defaults() -> None:
    tokens, given_tokens = {"a": 1}, {"b": 2}
    state = {"tokens": given_tokens}
    result = Defaults(tokens, {"x": "y"}).apply(state, first=True)
    result["tokens"]["c"] = 3
    assert (tokens, given_tokens, state) == ({"a": 1}, {"b": 2}, {"tokens": {"b": 2}})


# -- commands of the app's own


@pytest.mark.parametrize(
    "command",
    [
        Start(),
        Start({"a": object()}),
        Resume("a", "b"),
        Resume("a", "b", {}, 7, "updatable", 0),
        Resume("a", "b", {}, "7", "final"),
        Update("a", "b"),
        Update("a", "b", {}, 7.5, 3),
    ],
)
def test_a_proper_command_is_taken(command: Any) -> None:
    assert check_command(command, 1) is command


@pytest.mark.parametrize(
    "command",
    [
        None,
        1,
        "start",
        {"type": "start"},
        START,
        object(),
        Start,
        Start(None),
        Start([]),
        Start("x"),
        Start([("a", 1)]),
        Resume("a", "b", None),
        Resume(1, "b"),
        Resume("a", None),
        Resume(b"a", "b"),
        Resume("a", "b", {}, True),
        Resume("a", "b", {}, []),
        Resume("a", "b", {}, b"7"),
        Resume("a", "b", {}, None, "Final"),
        Resume("a", "b", {}, None, None),
        Resume("a", "b", {}, None, ["final"]),
        Resume("a", "b", {}, None, "x\ny" * 1_000),
        Resume("a", "b", {}, None, "final", True),
        Resume("a", "b", {}, None, "final", 1.0),
        Resume("a", "b", {}, None, "final", "1"),
        Update("a", "b", []),
        Update(None, "b"),
        Update("a", "b", {}, False),
        Update("a", "b", {}, None, 1.5),
    ],
    ids=lambda command: repr(command)[:40],
)
def test_a_command_with_a_wrong_member_is_refused(command: Any) -> None:
    with pytest.raises(RecordError) as caught:
        check_command(command, 6)
    check_line(str(caught.value), 6)


@pytest.mark.parametrize(("value", "expected"), [("", True), ("7", True), (0, True), (7.5, True), (10**30, True)])
def test_strings_and_numbers_can_be_keys(value: Any, expected: bool) -> None:
    assert is_key(value) is expected


@pytest.mark.parametrize("value", [None, True, False, [], {}, (), b"7", object()])
def test_nothing_else_can_be_a_key(value: Any) -> None:
    assert not is_key(value)
