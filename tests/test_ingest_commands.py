"""What a producer's record says: names, shapes, what can be sent on as JSON, and that nothing else comes out."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import random
import re
from collections import Counter, OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.protocol.grammar import is_kind, is_mid, is_own_kind, is_sid
from streaming.protocol.ingest import (
    MAX_N,
    MAX_PART,
    BadRecord,
    Delta,
    Event,
    IngestCommand,
    MessageEnd,
    MessageStart,
    PartEnd,
    PartStart,
    parse_ingest,
)
from streaming.protocol.jsontext import MAX_DEPTH, decode_json, encode_json, mend, show

MESSAGE_START = {"op": "message.start", "mid": "m1", "role": "user", "meta": {"a": 1}, "n": 1}
PART_START = {"op": "part.start", "mid": "m1", "part": 1, "kind": "thinking", "meta": {"a": 1}, "n": 2}
DELTA = {"op": "delta", "mid": "m1", "part": 1, "kind": "thinking", "s": "Hello", "n": 3}
PART_END = {"op": "part.end", "mid": "m1", "part": 1, "s": "Hello", "n": 4}
EVENT = {"op": "event", "k": "tool.result", "d": {"ok": True}, "urgent": True, "n": 5}
MESSAGE_END = {
    "op": "message.end", "mid": "m1", "status": "error", "error": "no more", "usage": {"tokens": 2}, "n": 6
}  # fmt: skip
ALL = [MESSAGE_START, PART_START, DELTA, PART_END, EVENT, MESSAGE_END]


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def refusal(raw: Any) -> str:
    """Why a record is refused: always one short line of printable ASCII."""
    with pytest.raises(BadRecord) as caught:
        parse_ingest(raw if isinstance(raw, bytes) else dump(raw))
    return check_line(caught.value)


def check_line(error: BadRecord) -> str:
    assert str(error) == error.reason
    assert error.reason.isascii()
    assert error.reason.isprintable()
    assert len(error.reason) < 220
    return error.reason


def event_with(text: str) -> bytes:
    """An event whose data is written as given."""
    return b'{"op":"event","k":"a","d":%s}' % text.encode()


# -- names


NAMES: dict[Any, tuple[list[Any], list[Any]]] = {
    is_sid: (
        ["a", "0", "A", "a" * 128, "chat-1", "user:7~x.y_z", "a.", "ws1", "wsx", "WS", "activity.", "js", "a.jsx",
         "ajs"],
        ["", "a" * 129, ".a", "-a", "_a", "~a", ":a", "a b", "a/b", "a%2e", "a+b", "a@b", "ws", "activity", "inspect",
         "client.js", "a.js", "a.js.js", "a" * 125 + ".js", "ws\n", "a\n", "\na", "a\0", "a\u00e9", "\u0661", "a\u212a",
         "a\uff21", None, 1, b"a", ["a"], {}],
    ),
    is_mid: (
        ["a", "0", "-", "_", "-_", "a" * 64, "msg_01-AbZ", "ws"],
        ["", "a" * 65, "a.b", "a b", "a:b", "a~", "a\n", "\na", "a\0", "\u00e9", "\u0661", "\u0131", "\u017f", None, 1,
         True, b"a", [], {}],
    ),
    is_kind: (
        ["a", "z", "a" * 64, "tool.result", "tool_args", "a-b", "a0", "a.", "text", "message.start", "part."],
        ["", "a" * 65, "A", "aB", "0a", ".a", "_a", "-a", "a b", "a:b", "a/b", "a\n", "\na", "a\r", "a\0", "\u00e9",
         "a\u0661", "a\u0131", None, 1, True, b"a", [], {}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("is_name", "name"), [(test, name) for test, (good, _) in NAMES.items() for name in good])
def test_a_name_of_the_grammar_is_taken(is_name: Any, name: str) -> None:
    assert is_name(name) is True


@pytest.mark.parametrize(("is_name", "name"), [(test, name) for test, (_, bad) in NAMES.items() for name in bad])
def test_any_other_name_is_refused(is_name: Any, name: Any) -> None:
    assert is_name(name) is False


@pytest.mark.parametrize("kind", ["message.start", "message.", "message.mine", "part.", "part.end", "part.x.y"])
def test_kinds_behind_message_and_part_are_the_protocols(kind: str) -> None:
    assert is_own_kind(kind) is True


@pytest.mark.parametrize("kind", ["message", "part", "messages.x", "parts.x", "message-x", "part_x", "a.message.", "a"])
def test_other_kinds_are_the_apps(kind: str) -> None:
    assert is_own_kind(kind) is False


# -- commands


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (MESSAGE_START, MessageStart("m1", "user", b'{"a":1}', 1)),
        (PART_START, PartStart("m1", 1, "thinking", b'{"a":1}', 2)),
        (DELTA, Delta("m1", 1, "thinking", "Hello", 3)),
        (PART_END, PartEnd("m1", 1, "Hello", 4)),
        (EVENT, Event("tool.result", b'{"ok":true}', True, 5)),
        (MESSAGE_END, MessageEnd("m1", "error", "no more", b'{"tokens":2}', 6)),
    ],
    ids=lambda value: value["op"] if isinstance(value, dict) else "",
)
def test_a_record_with_all_members_is_parsed(record: dict[str, Any], command: IngestCommand) -> None:
    assert parse_ingest(dump(record)) == command


@pytest.mark.parametrize(
    ("raw", "command"),
    [
        (b'{"op":"message.start"}', MessageStart(None, "assistant", b"{}", None)),
        (b'{"op":"part.start"}', PartStart(None, 0, "text", b"{}", None)),
        (b'{"op":"delta","s":"x"}', Delta(None, 0, None, "x", None)),
        (b'{"op":"part.end"}', PartEnd(None, 0, None, None)),
        (b'{"op":"event","k":"a"}', Event("a", b"null", False, None)),
        (b'{"op":"message.end"}', MessageEnd(None, "complete", None, None, None)),
    ],
)
def test_what_is_left_out_has_its_default(raw: bytes, command: IngestCommand) -> None:
    assert parse_ingest(raw) == command


def test_what_the_contract_shows_is_parsed() -> None:
    """The lines of docs/live-protocol.md, "Ingest"."""
    lines = b"""\
{"op":"message.start","mid":"m1","role":"assistant","meta":{}}
{"op":"part.start","mid":"m1","part":0,"kind":"text","meta":{}}
{"op":"delta","mid":"m1","part":0,"kind":"text","s":"Hello"}
{"op":"part.end","mid":"m1","part":0}
{"op":"event","k":"tool.result","d":{"ok":true},"urgent":false}
{"op":"message.end","mid":"m1","status":"complete","usage":{"tokens":2}}"""
    assert [parse_ingest(line) for line in lines.split(b"\n")] == [
        MessageStart("m1", "assistant", b"{}"),
        PartStart("m1", 0, "text", b"{}"),
        Delta("m1", 0, "text", "Hello"),
        PartEnd("m1", 0),
        Event("tool.result", b'{"ok":true}'),
        MessageEnd("m1", "complete", None, b'{"tokens":2}'),
    ]


VALUES = {
    "mid": ["a", "0", "-", "a" * 64],
    "role": ["u", "x" * 64, "\u00e9", "\U0001f600" * 64, " ", "two words", "\u2028", "\ufffd"],
    "part": [0, 1, MAX_PART],
    "kind": ["a", "text", "a" * 64, "message.x", "part.x"],
    "s": ["", "x", "\n\0", "\u00e9\u2028\U0001f600", "x" * 100_000],
    "k": ["a", "a" * 64, "message", "partition.x"],
    "urgent": [True, False],
    "status": ["complete", "cancelled", "aborted", "error"],
    "error": ["", "two\nlines", "\U0001f600", "x" * 100_000],
    "n": [0, 1, -1, MAX_N, -MAX_N],
}


@pytest.mark.parametrize(
    ("record", "member", "value"),
    [(record, member, value) for record in ALL for member in record if member in VALUES for value in VALUES[member]],
)
def test_a_member_of_its_type_is_taken_as_it_is(record: dict[str, Any], member: str, value: Any) -> None:
    found = getattr(parse_ingest(dump({**record, member: value})), member)
    assert found == value
    assert type(found) is type(value)


WRONG = {
    "mid": [True, 1, [], {}, "", "a" * 65, "a b", "a\n", "a.b", "\u00e9", "\ud800"],
    "role": [True, 1, [], {}, "", "x" * 65, "a\nb", "\0", "a\x7f", "a\x85", "\x1b[0m"],
    "meta": [True, 1, "{}", [], [{}]],
    "part": [True, False, 0.0, 1.5, "0", [], {}, -1, MAX_PART + 1, 10**30],
    "kind": [True, 1, [], {}, "", "Text", "a b", "a\n", "a" * 65, "\u00e9"],
    "s": [True, 1, 1.5, [], {}, ["x"]],
    "k": [True, 1, [], {}, "", "Tool", "a b", "a\n", "a" * 65, "message.start", "message.", "part.mine"],
    "urgent": [0, 1, "true", "", [], {}],
    "status": [True, 1, [], {}, "", "Complete", "done", "open", "complete ", "error\n"],
    "error": [True, 1, [], {}, {"message": "x"}],
    "usage": [True, 1, 1.5, "{}", [], [{}]],
    "n": [True, False, 0.0, 1.0, "1", [], {}, MAX_N + 1, -MAX_N - 1, 10**30],
}


@pytest.mark.parametrize(
    ("record", "member", "value"),
    [(record, member, value) for record in ALL for member in record if member in WRONG for value in WRONG[member]],
)
def test_a_member_of_a_wrong_type_or_value_is_refused_by_name(record: dict[str, Any], member: str, value: Any) -> None:
    assert refusal({**record, member: value}).startswith(f'"{member}" ')


def test_what_is_wrong_and_what_is_expected_is_said() -> None:
    assert refusal({**DELTA, "n": 2**53}) == (
        '"n" is 9007199254740992, not a whole number from -9007199254740991 to 9007199254740991'
    )
    assert refusal({**DELTA, "part": -1}) == '"part" is -1, not a whole number from 0 to 2147483648'
    assert refusal({**EVENT, "k": "part.end"}) == (
        '"k" is "part.end": kinds starting with message. or part. belong to the protocol'
    )
    assert refusal({**MESSAGE_END, "status": 1}) == '"status" is 1, not one of complete, cancelled, aborted, error'
    assert refusal({**MESSAGE_START, "meta": []}) == '"meta" is a list, not an object'


@pytest.mark.parametrize("member", ["mid", "role", "meta", "usage", "error", "n"])
def test_null_is_a_member_left_out(member: str) -> None:
    for record in ALL:
        with_null = {**record, member: None}
        without = {name: value for name, value in record.items() if name != member}
        assert parse_ingest(json.dumps(with_null).encode()) == parse_ingest(json.dumps(without).encode())


@pytest.mark.parametrize(("record", "member"), [(DELTA, "s"), (EVENT, "k")])
def test_a_required_member_that_is_missing_is_refused_by_name(record: dict[str, Any], member: str) -> None:
    assert refusal({name: value for name, value in record.items() if name != member}).startswith(
        f'"{member}" is missing'
    )


@pytest.mark.parametrize("op", [None, True, 1, [], {}, "", "Delta", "delta ", "message", "message.start\n", "part"])
def test_another_op_is_refused_with_the_ones_that_exist(op: Any) -> None:
    reason = refusal({**DELTA, "op": op})
    assert reason.startswith('"op" is ')
    assert reason.endswith(", not one of message.start, part.start, delta, part.end, event, message.end")


def test_a_record_without_op_is_refused() -> None:
    assert refusal({"s": "x"}).startswith('"op" is missing, not one of message.start, ')


@pytest.mark.parametrize("record", ALL, ids=lambda record: record["op"])
@pytest.mark.parametrize("value", ["null", "NaN", "1e400", '"\\ud800"', "[" * 100 + "]" * 100])
def test_unknown_members_are_ignored_whatever_they_hold(record: dict[str, Any], value: str) -> None:
    """So are members that only other commands have."""
    others = {member for other in ALL for member in other} - set(record)
    added = "".join(f'"{name}":{value},' for name in sorted(others | {"unknown", "", "Op", "\u00e9"}))
    assert parse_ingest(b"{" + added.encode() + dump(record)[1:]) == parse_ingest(dump(record))


def test_of_two_members_of_one_name_the_last_counts() -> None:
    assert parse_ingest(b'{"op":1,"s":"a","op":"delta","s":"b"}') == Delta(s="b")
    assert '"part"' in refusal(b'{"op":"delta","s":"a","part":0,"part":-1}')


# -- bytes


@pytest.mark.parametrize(
    "raw",
    [
        b"x",
        b" ",
        b"{",
        b'{"op":"delta","s":"x"',
        b'{"op":"delta","s":"x"}}',
        b'{"op":"delta","s":"x"},',
        b'{"op":"delta","s":"x"}{"op":"delta","s":"x"}',
        b'{"op":"delta","s":"x",}',
        b"{'op':'delta','s':'x'}",
        b'{"op":"delta","s":"\\q"}',
        b'{"op":"delta","s":"\\ud8"}',
        b'{"op":"delta","s":"x"}\0',
        b"\xef\xbb\xbf" + b'{"op":"delta","s":"x"}',
        b'{"op":"event","k":"a","d":' + b"9" * 5_000 + b"}",
        b'{"op":"event","k":"a","d":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        b"[" * 2_000_000,
        b'{"a":' * 400_000,
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_what_is_not_one_json_value_is_refused(raw: bytes) -> None:
    assert refusal(raw).startswith("not valid JSON: ")


@pytest.mark.parametrize("raw", [b"[]", b"null", b"true", b"1", b"NaN", b'"delta"', b'[{"op":"delta","s":"x"}]'])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    assert refusal(raw) == "not a JSON object"


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80"]
)
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    """Surrogates encoded in UTF-8 are not UTF-8."""
    for raw in (data, b'{"op":"delta","s":"%s"}' % data, b'{"op":"part.end","%s":1}' % data):
        assert refusal(raw) == "not valid UTF-8"


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("\\ud83d", "\ud83d"),
        ("\\ude00", "\ude00"),
        ("a\\ud83db", "a\ud83db"),
        ("\\ude00\\ud83d", "\ude00\ud83d"),
        ("\\ud83d\\ud83d\\ude00", "\ud83d\U0001f600"),
        ("\\ud83d\\ude00", "\U0001f600"),
    ],
)
def test_half_a_pair_in_text_is_kept(escaped: str, text: str) -> None:
    """The other half may come in the next record."""
    assert parse_ingest(b'{"op":"delta","s":"%s"}' % escaped.encode()) == Delta(s=text)
    assert parse_ingest(b'{"op":"part.end","s":"%s"}' % escaped.encode()) == PartEnd(s=text)


def test_half_a_pair_is_replaced_in_everything_else() -> None:
    half = b'"\\ud83d"'
    replaced = "\ufffd".encode()
    assert parse_ingest(b'{"op":"message.start","role":%s,"meta":{%s:%s}}' % (half, half, half)) == MessageStart(
        role="\ufffd", meta=b'{"%s":"%s"}' % (replaced, replaced)
    )
    assert parse_ingest(b'{"op":"message.end","error":%s,"usage":{%s:1}}' % (half, half)) == MessageEnd(
        error="\ufffd", usage=b'{"%s":1}' % replaced
    )
    assert parse_ingest(event_with('["\\ud83d","\\ude00"]')) == Event("a", b'["%s","%s"]' % (replaced, replaced))


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "\x1b[31m",
        "\0",
        "\u2028",
        "\u202e",
        "x" * 10_000,
        "\U0001f600" * 10_000,
        "\n" * 100,
        "\\" * 100,
        "\ud800",
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: {"op": text},
        lambda text: {**DELTA, "mid": text + " "},
        lambda text: {**DELTA, "part": text},
        lambda text: {**EVENT, "k": text + " "},
        lambda text: {**MESSAGE_START, "role": text + "\n"},
        lambda text: {**MESSAGE_END, "status": text},
        lambda text: text.encode("utf-8", "surrogatepass"),
    ],
    ids=["op", "mid", "part", "k", "role", "status", "not-json"],
)
def test_a_reason_is_one_short_line_that_quotes_at_most_60_characters(make: Any, text: str) -> None:
    assert "x" * 61 not in refusal(make(text))


@pytest.mark.parametrize("member", ["part", "n"])
def test_a_huge_number_is_shown_short(member: str) -> None:
    assert "1" * 61 not in refusal(b'{"op":"delta","s":"","%s":-%s}' % (member.encode(), b"1" * 4_000))


# -- data that can and can't be sent on


@pytest.mark.parametrize(
    ("record", "member"), [(EVENT, "d"), (MESSAGE_START, "meta"), (PART_START, "meta"), (MESSAGE_END, "usage")]
)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1E+400", "1" + "0" * 400 + ".0"])
def test_numbers_that_are_not_finite_are_refused(record: dict[str, Any], member: str, number: str) -> None:
    raw = dump({**record, member: {"a": [0, "here"]}}).replace(b'"here"', number.encode())
    assert refusal(raw) == f'"{member}" cannot be sent as JSON: a number is not finite'


@pytest.mark.parametrize("record", [EVENT, MESSAGE_START, PART_START, MESSAGE_END], ids=lambda record: record["op"])
def test_data_may_be_64_deep_and_no_deeper(record: dict[str, Any]) -> None:
    member = next(name for name in ("d", "meta", "usage") if name in record)

    def line(depth: int) -> bytes:
        return dump({**record, member: {"a": "here"}}).replace(b'"here"', b"[" * (depth - 1) + b"]" * (depth - 1))

    assert getattr(parse_ingest(line(64)), member) == b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
    for depth in (65, 100, 1_000):
        assert refusal(line(depth)) == f'"{member}" cannot be sent as JSON: nested deeper than 64'


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("null", b"null"),
        ("true", b"true"),
        ("0", b"0"),
        ('"x"', b'"x"'),
        ("[ ]", b"[]"),
        ('{ "a" : [ 1 , 2.50 ] }', b'{"a":[1,2.5]}'),
        ('"a\\/b</script>"', b'"a/b</script>"'),
        ('"\\u00e9\\ud83d\\ude00\\u2028"', '"\u00e9\U0001f600\u2028"'.encode()),
        ('"\\n\\r\\u0000"', b'"\\n\\r\\u0000"'),
        ("9007199254740993", b"9007199254740993"),
        ("1" * 400, b"1" * 400),
        ("01", b"1"),
    ],
)
def test_data_is_kept_as_compact_json(text: str, encoded: bytes) -> None:
    assert parse_ingest(event_with(text)) == Event("a", encoded)


# -- JSON text


class Color(enum.IntEnum):
    RED = 1


class Word(str):
    pass


class Loud:
    """ujson would ask these methods."""

    def __json__(self) -> str:
        raise AssertionError

    def toDict(self) -> dict[str, Any]:
        raise AssertionError


class Stretch(OrderedDict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ((1, [2], (3,)), b"[1,[2],[3]]"),
        ({1: "a", -2: "b", "c": None}, b'{"1":"a","-2":"b","c":null}'),
        ({Word("a"): Word("b")}, b'{"a":"b"}'),
        ([Color.RED, True, False, None], b"[1,true,false,null]"),
        (namedtuple("Point", "x y")(1, 2.0), b"[1,2.0]"),
        ([Counter(a=2), Stretch(b=1)], b'[{"a":2},{"b":1}]'),
        (2**70, b"1180591620717411303424"),
        (-0.0, b"-0.0"),
        ("", b'""'),
    ],
    ids=str,
)
def test_what_python_has_for_json_is_encoded(value: Any, encoded: bytes) -> None:
    assert encode_json(value) == encoded


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"x", "a value is a bytes"),
        (bytearray(b"x"), "a value is a bytearray"),
        ({1}, "a value is a set"),
        (object(), "a value is a object"),
        (object, "a value is a type"),
        (Loud(), "a value is a Loud"),
        (1j, "a value is a complex"),
        (decimal.Decimal(1), "a value is a Decimal"),
        (datetime.date(2026, 1, 1), "a value is a date"),
        ((item for item in ()), "a value is a generator"),
        ({}.values(), "a value is a dict_values"),
        (type("x" * 1_000 + "\n", (), {})(), "a value is a xxx"),
        (float("nan"), "a number is not finite"),
        (float("-inf"), "a number is not finite"),
        (10**5_000, "Exceeds the limit (4300 digits)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_is_refused_wherever_it_is(value: Any, why: str) -> None:
    for whole in (value, [1, value], {"a": value}, ("x", {"a": [1, {"b": value}]})):
        assert encoding_refusal(whole).startswith(f"cannot be sent as JSON: {why}")


@pytest.mark.parametrize(
    ("name", "kind"),
    [(1.5, "float"), (None, "NoneType"), (True, "bool"), ((1,), "tuple"), (b"a", "bytes"), (Color.RED, "Color")],
)
def test_a_name_that_is_no_string_and_no_integer_is_refused(name: Any, kind: str) -> None:
    for whole in ({name: 1}, [{}, {"a": 1, name: 1}]):
        assert encoding_refusal(whole) == (
            f"cannot be sent as JSON: a member's name is a {kind}, not a string or an integer"
        )


def encoding_refusal(value: Any) -> str:
    with pytest.raises(ValueError, match=r"^cannot be sent as JSON: ") as caught:
        encode_json(value)
    assert type(caught.value) is ValueError
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 120
    return text


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: (value,), lambda value: {"a": 1, "b": value}])
def test_64_levels_are_encoded_and_no_more(wrap: Any) -> None:
    value: Any = wrap(1)
    for _ in range(MAX_DEPTH - 1):
        value = wrap(value)
    assert json.loads(encode_json(value)) == json.loads(json.dumps(value))
    assert "nested deeper than 64" in encoding_refusal(wrap(value))


@pytest.mark.parametrize("leaf", [1, "x", Word("x"), Color.RED])
def test_what_stands_inside_the_64th_level_is_no_level(leaf: Any) -> None:
    value = leaf
    for _ in range(MAX_DEPTH):
        value = [value]
    assert encode_json(value)


def test_an_empty_array_or_object_is_a_level_too() -> None:
    for empty in ([], {}):
        value: Any = empty
        for _ in range(MAX_DEPTH - 1):
            value = [value]
        assert encode_json(value)
        assert "nested deeper than 64" in encoding_refusal([value])


def test_a_value_that_holds_itself_is_refused_at_once() -> None:
    """Also when it does so twice, where a naive walk would double its work with each level."""
    array: list[Any] = []
    array += [array, array]
    value: dict[str, Any] = {}
    value.update(a=value, b=[value, value])
    for whole in (array, value):
        assert "nested deeper than 64" in encoding_refusal(whole)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("", ""),
        ("plain", "plain"),
        ("\u00e9\uffff\ufeff\U0001f600", "\u00e9\uffff\ufeff\U0001f600"),
        ("\ud83d", "\ufffd"),
        ("\ude00.", "\ufffd."),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        ("\ud83d\U0001f600", "\ufffd\U0001f600"),
        ("a\ud83db\ude00", "a\ufffdb\ufffd"),
    ],
)
def test_two_halves_become_their_character_and_a_lone_one_is_replaced(text: str, mended: str) -> None:
    assert mend(text) == mended
    assert encode_json(text) == f'"{mended}"'.encode()
    assert encode_json([{text: [text]}]) == f'[{{"{mended}":["{mended}"]}}]'.encode()


def test_halves_of_two_strings_never_meet() -> None:
    assert encode_json(["\ud83d", "\ude00"]) == '["\ufffd","\ufffd"]'.encode()
    assert encode_json({"\ud83d": "\ude00"}) == '{"\ufffd":"\ufffd"}'.encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nb", '"a\\nb"'),
        ("x" * 61, '"' + "x" * 60 + '..."'),
        ("x" * 60, '"' + "x" * 60 + '"'),
        ("\ud800", '"\\ud800"'),
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        ([1], "a list"),
        ({}, "a dict"),
    ],
)
def test_a_value_is_shown_on_one_line(value: Any, shown: str) -> None:
    assert show(value) == shown


# -- whatever comes

HALVES = st.characters(categories=["Cs"])
TEXT = st.text(st.characters() | HALVES | st.sampled_from('\\"/\n\r\0\x7f\u2028\ud83d\ude00'), max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def nest(names: st.SearchStrategy[str], leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda children: st.lists(children, max_size=4) | st.dictionaries(names, children, max_size=5),
        max_leaves=20,
    )


MEMBERS = sorted({member for record in ALL for member in record})
JSON = nest(
    st.sampled_from(MEMBERS) | st.text(max_size=3),
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.sampled_from([record["op"] for record in ALL]),
)


def mended(value: Any) -> Any:
    """A value with `mend`'s rule applied to all strings, written another way than the product's."""
    if isinstance(value, str):
        return HALF_OR_PAIR.sub(lambda found: join(*found.group()) if len(found.group()) == 2 else "\ufffd", value)
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(name): mended(item) for name, item in value.items()}
    return value


HALF_OR_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")


def join(high: str, low: str) -> str:
    return chr(0x10000 + ((ord(high) - 0xD800) << 10) + (ord(low) - 0xDC00))


@given(nest(st.text(), st.none() | st.booleans() | NUMBERS | st.text()))
@example({"a/b": ["\u2028\x7f\n\0", 1e16, 5e-324, -0.0, 2**64, 123456789012345680.0]})
def test_encoded_json_is_read_as_the_same_value(value: Any) -> None:
    found = json.loads(encode_json(value))
    assert found == value
    assert repr(found) == repr(value)  # 1 is not 1.0, nor True
    assert decode_json(encode_json(value)) == value


@given(nest(TEXT, st.none() | NUMBERS | TEXT))
@example({"\ud83d\ude00": "\ude00\ud83d"})
def test_encoded_json_is_one_line_of_utf8_without_half_pairs(value: Any) -> None:
    raw = encode_json(value)
    text = raw.decode("utf-8")
    assert not set(raw) & {*range(0x20)}
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode("utf-8")  # no half pair that was escaped
    assert found == mended(value)


def check_whatever(raw: bytes) -> None:
    """A record is a command that holds its own rules, or refused in one short line; nothing else comes out."""
    try:
        command = parse_ingest(raw)
    except BadRecord as error:
        check_line(error)
        return
    if isinstance(command, Event):
        assert is_kind(command.k)
        assert not is_own_kind(command.k)
        json.loads(command.d.decode("utf-8"), parse_constant=pytest.fail)
    else:
        assert command.mid is None or is_mid(command.mid)
    if isinstance(command, MessageStart | PartStart):
        assert isinstance(json.loads(command.meta), dict)
    if isinstance(command, PartStart | Delta | PartEnd):
        assert type(command.part) is int
        assert 0 <= command.part <= MAX_PART
    assert command.n is None or type(command.n) is int


@given(st.binary(max_size=200))
def test_random_bytes_are_a_command_or_refused(raw: bytes) -> None:
    check_whatever(raw)


@given(JSON)
def test_random_json_is_a_command_or_refused(value: Any) -> None:
    check_whatever(dump(value))


@given(st.sampled_from(ALL), st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=3))
def test_a_record_with_other_members_is_a_command_or_refused(record: dict[str, Any], other: dict[str, Any]) -> None:
    check_whatever(dump({**record, **other}))


@given(st.sampled_from(ALL).map(dump), st.integers(0, 2**32))
def test_a_damaged_record_is_a_command_or_refused(raw: bytes, seed: int) -> None:
    """Bytes overwritten, left out, doubled and put in, where JSON is sensitive."""
    dice = random.Random(seed)
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data))
        snippet = dice.choice(
            [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"\\ud800", b"1e400", b"NaN", b"\n", b"\xff"]
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
