"""What subscribers get next: everything that was produced, once and in order, wherever they are."""

from __future__ import annotations

import json
import sys
from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming.protocol import frames, ndjson, sse
from streaming.protocol.cursor import Cursor
from streaming.protocol.cut import Cut
from streaming.protocol.frames import MAX_DELTA, MAX_MESSAGE
from streaming.protocol.log import MAX_RUNS
from streaming.protocol.stream import MAX_SHARED, Stream, Text
from streaming.protocol.text import Part
from tests.folding import Fold, Writer, read_snapshot

EPOCH = "epoch123"
SMILE = "\U0001f600"
PLENTY = 10**9


def new_stream(max_events: int = 100_000, max_bytes: int = PLENTY, max_text: int = PLENTY) -> tuple[Stream, Writer]:
    stream = Stream("s", EPOCH, max_events, max_bytes, max_text)
    return stream, Writer(stream)


def brief(cut: Cut) -> list[Any]:
    """A cut's frames, short: an event's seq, (p, off, text) of a delta, (p, text) of a cumulative one, else `t`."""
    found: list[Any] = []
    for frame in map(json.loads, (frame.json for frame in cut.frames)):
        if frame["t"] == "event":
            found.append(frame["seq"])
        elif frame["t"] == "delta":
            found.append((frame["p"], frame["off"], frame["s"]))
        elif frame["t"] == "cumulative":
            found.append((frame["p"], frame["s"]))
        else:
            found.append(frame["t"])
    return found


def joined(stream: Stream) -> Cursor:
    """A subscriber that has everything."""
    cut = stream.cut(stream.start(None))
    assert cut.after is stream.tip()
    return cut.after


# -- live: order rules 1 to 3


def test_text_produced_before_an_event_goes_before_it() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "ab")
    event = writer.event()
    writer.text(p, "cd")
    other = writer.event()
    writer.text(p, "ef")
    assert brief(stream.cut(cursor)) == [(p, 0, "ab"), event, (p, 2, "cd"), other, (p, 4, "ef")]


def test_all_of_a_parts_text_comes_before_its_end() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "x" * (MAX_DELTA + 1))
    end = writer.end_part(p)
    assert brief(stream.cut(cursor)) == [(p, 0, "x" * MAX_DELTA), (p, MAX_DELTA, "x"), end]


def test_text_that_came_before_a_replacement_goes_before_it() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "draft")
    end = writer.end_part(p, replacement="final")
    cut = stream.cut(cursor)
    assert brief(cut) == [(p, 0, "draft"), end]
    assert json.loads(cut.frames[-1].json)["d"] == {"mid": "m1", "p": p, "len": 5, "s": "final"}


def test_parts_that_alternate_keep_their_order_as_separate_runs() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    one, other = writer.part(mid), writer.part(mid)
    cursor = joined(stream)
    for p, text in ((one, "a"), (one, "b"), (other, "c"), (one, "d"), (other, "e"), (other, "f")):
        writer.text(p, text)
    assert brief(stream.cut(cursor)) == [(one, 0, "ab"), (other, 0, "c"), (one, 2, "d"), (other, 1, "ef")]


def test_a_run_that_has_grown_since_goes_on_where_it_was() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    one, other = writer.part(mid), writer.part(mid)
    writer.text(one, "a")
    cursor = joined(stream)
    writer.text(one, "b")
    writer.text(other, "c")
    writer.text(one, "d")
    assert brief(stream.cut(cursor)) == [(one, 1, "b"), (other, 0, "c"), (one, 2, "d")]


@pytest.mark.parametrize("limit", [1, 150, 400, MAX_MESSAGE])
@given(steps=st.lists(st.sampled_from(["text 0", "text 1", "text 2", "event", "flush", "partly"]), max_size=40))
def test_a_live_subscriber_hears_what_was_written_in_the_order_in_which_it_was_written(
    limit: int, steps: list[str]
) -> None:
    """Whenever it is flushed, in messages of any size."""
    stream, writer = new_stream()
    fold = Fold("s", writer=writer)
    cursor = stream.start(fold.subscribe())

    def flush(most: int) -> None:
        nonlocal cursor
        while cursor is not stream.tip() and most:
            cut = stream.cut(cursor, limit)
            fold.read_message(b"[%b]" % cut.joined)
            cursor, most = cut.after, most - 1

    flush(1)
    mid = writer.message()
    parts = [writer.part(mid) for _ in range(3)]
    for step in steps:
        if step.startswith("text"):
            writer.text(parts[int(step[-1])], "xy")
        elif step == "event":
            writer.event()
        else:
            flush(1 if step == "partly" else PLENTY)
    flush(PLENTY)
    assert fold.heard == writer.wrote


# -- catching up: order rule 4


def test_a_late_joiner_gets_the_text_once() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    for token in ("one ", "two ", "three"):
        writer.text(p, token)
        joined(stream)
    cut = stream.cut(stream.start(None))
    assert brief(cut) == ["subscribed", 1, 2, (p, 0, "one two three")]
    assert brief(stream.cut(cut.after)) == []


def test_catching_up_gives_events_then_the_text_of_open_parts_and_ended_text_before_its_end() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    ended, still_open = writer.part(mid), writer.part(mid)
    writer.text(still_open, "open")
    writer.text(ended, "en")
    event = writer.event()
    writer.text(ended, "ded")
    end = writer.end_part(ended)
    last = writer.event()
    assert brief(stream.cut(stream.start(None))) == [
        "subscribed", 1, ended, still_open, event, (ended, 0, "ended"), end, last, (still_open, 0, "open"),
    ]  # fmt: skip


def test_live_begins_where_catching_up_ends_without_a_hole_and_without_a_repeat() -> None:
    """What is produced between subscribing and the first cut is live already."""
    stream, writer = new_stream()
    mid = writer.message()
    one, other = writer.part(mid), writer.part(mid)
    writer.text(one, "a")
    writer.text(other, "b")
    cursor = stream.start(None)
    writer.text(other, "c")
    writer.text(one, "d")
    event = writer.event()
    cut = stream.cut(cursor)
    assert json.loads(cut.frames[0].json)["head"] == other
    assert brief(cut)[4:] == [(one, 0, "a"), (other, 0, "b"), (other, 1, "c"), (one, 1, "d"), event]
    assert cut.after is stream.tip()


def test_only_what_is_missing_of_an_ended_part_is_sent_before_its_end() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "Hello")
    end = writer.end_part(p)
    assert brief(stream.cut(stream.start(f"{EPOCH}.{p}.{p}~3"))) == ["subscribed", (p, 3, "lo"), end]
    assert brief(stream.cut(stream.start(f"{EPOCH}.{p}.{p}~5"))) == ["subscribed", end]


def test_text_that_a_replacement_makes_void_is_not_sent_to_one_that_catches_up() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "draft")
    end = writer.end_part(p, "final")
    cut = stream.cut(stream.start(None))
    assert brief(cut) == ["subscribed", 1, p, end]
    assert json.loads(cut.frames[-1].json)["d"]["s"] == "final"


# -- the size of deltas and messages


def test_a_delta_has_at_most_its_number_of_code_points() -> None:
    assert MAX_DELTA == 16_384
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, SMILE * (MAX_DELTA + 1))
    assert [(off, len(text)) for _, off, text in brief(stream.cut(cursor))] == [(0, MAX_DELTA), (MAX_DELTA, 1)]


def test_a_message_is_closed_before_it_would_pass_its_limit() -> None:
    """At the byte: with the limit that fits exactly the second event goes too, one less and it does not."""
    assert MAX_MESSAGE == 256 * 1024
    stream, writer = new_stream()
    cursor = joined(stream)
    writer.event()
    writer.event()
    exact = len(b"[%b]" % stream.cut(cursor).joined)
    assert brief(stream.cut(cursor, exact)) == [1, 2]
    assert brief(stream.cut(cursor, exact - 1)) == [1]


def test_a_larger_frame_travels_alone() -> None:
    stream, writer = new_stream()
    cursor = joined(stream)
    writer.event()
    writer.event("note", b'"%b"' % (b"x" * MAX_MESSAGE))
    writer.event()
    found = []
    while (cut := stream.cut(cursor)).frames:
        found.append(brief(cut))
        cursor = cut.after
    assert found == [[1], [2], [3]]


def test_a_message_takes_as_much_as_it_holds() -> None:
    stream, writer = new_stream()
    cursor = joined(stream)
    for _ in range(10_000):
        writer.event()
    sizes = []
    while (cut := stream.cut(cursor)).frames:
        sizes.append(len(b"[%b]" % cut.joined))
        cursor = cut.after
    assert all(MAX_MESSAGE - 100 < size <= MAX_MESSAGE for size in sizes[:-1])


# -- slow readers


def test_a_reader_that_was_away_gets_fewer_and_larger_deltas() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    for _ in range(1_000):
        writer.text(p, "token ")
        stream.tip()
    assert brief(stream.cut(cursor)) == [(p, 0, "token " * 1_000)]


def test_a_reader_whose_next_event_has_left_the_log_is_reset_in_place() -> None:
    stream, writer = new_stream(max_events=2)
    p = writer.part(writer.message())
    writer.text(p, "ab")
    cursor = joined(stream)
    for _ in range(3):
        writer.event()
    cut = stream.cut(cursor)
    assert cut.reset == "trimmed"
    assert brief(cut) == ["reset", 4, 5, (p, 0, "ab")]
    assert json.loads(cut.frames[0].json)["floor"] == 3
    assert cut.after is stream.tip()


def test_a_reader_whose_newest_event_is_the_floor_goes_on_without_a_reset() -> None:
    stream, writer = new_stream(max_events=2)
    writer.event()
    cursor = joined(stream)
    writer.event()
    writer.event()
    assert stream.floor == 1
    assert brief(stream.cut(cursor)) == [2, 3]


def test_one_that_was_told_nothing_yet_is_not_reset_but_begins_at_the_new_floor() -> None:
    stream, writer = new_stream(max_events=2)
    writer.event()
    fresh, bad, good = stream.start(None), stream.start("otherepoch.1"), stream.start(f"{EPOCH}.0")
    for _ in range(3):
        writer.event()
    assert brief(stream.cut(fresh)) == ["subscribed", 3, 4]
    assert stream.cut(bad).reset == "epoch"
    assert stream.cut(good).reset == "trimmed"  # its own place is gone


def test_one_that_is_still_catching_up_is_reset_when_the_log_overtakes_it() -> None:
    stream, writer = new_stream(max_events=4)
    for _ in range(4):
        writer.event()
    cut = stream.cut(stream.start(None), 1)
    assert brief(cut) == ["subscribed"]
    cut = stream.cut(cut.after, 1)
    assert brief(cut) == [1]
    for _ in range(4):
        writer.event()
    cut = stream.cut(cut.after)
    assert brief(cut) == ["reset", 5, 6, 7, 8]


@pytest.mark.parametrize("many", [2, 5])
def test_parts_that_alternated_beyond_the_bound_still_fold_right_from_every_old_place(many: int) -> None:
    stream, writer = new_stream()
    mid = writer.message()
    parts = [writer.part(mid) for _ in range(many)]
    readers = [(Fold("s", writer=writer), stream.start(None))]
    readers[0][0].subscribe()
    for number in range(2 * MAX_RUNS + 100):
        writer.text(parts[number % many], "xy")
        if number % 257 == 0 or number in (MAX_RUNS - 1, MAX_RUNS, MAX_RUNS + 1):
            fold = Fold("s", writer=writer)
            cut = stream.cut(stream.start(fold.subscribe()))
            fold.read_message(b"[%b]" % cut.joined)
            readers.append((fold, cut.after))
    writer.event()
    for fold, cursor in readers:
        while (cut := stream.cut(cursor)).frames:
            fold.read_message(b"[%b]" % cut.joined)
            cursor = cut.after
        assert cursor is stream.tip()
        fold.assert_holds(read_snapshot(stream))


# -- shared work


def test_subscribers_that_have_everything_hold_the_same_cursor() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "ab")
    came_early = stream.cut(stream.start(None))
    came_back = stream.cut(stream.start(f"{EPOCH}.1"))
    assert came_early.after is came_back.after is stream.tip()
    writer.text(p, "cd")
    writer.event()
    assert stream.cut(came_early.after).after is stream.tip()
    assert stream.tip() is stream.tip()


def test_what_subscribers_at_one_cursor_get_is_cut_and_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "ab")
    writer.event()
    counts = count_calls(monkeypatch)
    cuts = [stream.cut(cursor) for _ in range(1_000)]
    assert all(cut is cuts[0] for cut in cuts)
    assert counts == {"cut": 1, "delta": 1, "event": 1}
    cuts[0].encoded["sse"] = b"x"
    assert stream.cut(cursor).encoded == {"sse": b"x"}


def test_those_who_come_with_the_same_token_share_one_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "ab")
    counts = count_calls(monkeypatch)
    for token in (None, f"{EPOCH}.1", "otherepoch.1"):
        cuts = {stream.cut(stream.start(token)) for _ in range(100)}
        assert len(cuts) == 1
    assert counts["delta"] == 3


def test_a_cut_is_not_shared_across_a_change_of_the_stream() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "ab")
    assert brief(stream.cut(cursor)) == [(p, 0, "ab")]
    writer.text(p, "cd")
    assert brief(stream.cut(cursor)) == [(p, 0, "abcd")]


def test_cuts_of_another_size_or_kind_are_not_mixed_up() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "ab")
    writer.event()
    assert brief(stream.cut(cursor, 1)) == [(p, 0, "ab")]
    assert brief(stream.cut(cursor)) == [(p, 0, "ab"), 3]
    assert brief(stream.cut_cumulative(cursor, with_text=True)) == [(p, "ab"), 3]
    assert brief(stream.cut_cumulative(cursor, with_text=False)) == [3]


def test_remembered_cuts_are_bounded_and_can_be_let_go_of() -> None:
    stream, writer = new_stream()
    for _ in range(3 * MAX_SHARED):
        writer.event()
    for seq in range(3 * MAX_SHARED):
        stream.cut(stream.start(f"{EPOCH}.{seq}"), 1)
        assert len(stream._cuts) <= MAX_SHARED
    stream.forget_cuts()
    assert (stream._cuts, stream._starts) == ({}, {})


def test_a_shared_cut_never_reaches_one_who_is_elsewhere() -> None:
    """A late joiner and one who is live, at the same moment."""
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "ab")
    live = joined(stream)
    writer.text(p, "cd")
    assert brief(stream.cut(live)) == [(p, 2, "cd")]
    assert brief(stream.cut(stream.start(None))) == ["subscribed", 1, 2, (p, 0, "abcd")]
    assert brief(stream.cut(live)) == [(p, 2, "cd")]


# -- work, counted


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts text that is cut, deltas and events that are encoded, and text that is looked at."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(Part, "cut", counted("cut", Part.cut))
    monkeypatch.setattr(frames, "delta_frame", counted("delta", frames.delta_frame))
    monkeypatch.setattr(frames, "event_frame", counted("event", frames.event_frame))
    return counts


def count_steps(function: Any) -> int:
    """How many calls and returns, of Python and of C, a function makes."""
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(hook)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def last_flush(tokens: int, parts: int, events: int, *, cumulative: bool = False) -> tuple[int, int]:
    """The calls of one flush, and its frames, behind so many tokens, for one that is live."""
    stream, writer = new_stream(max_events=200)
    mid = writer.message()
    names = [writer.part(mid) for _ in range(parts)]
    cursor = joined(stream)
    for number in range(tokens):
        writer.text(names[number % parts], "tok ")
        if events and number % events == 0:
            writer.event()
        if number % 5 == 4:
            cut = stream.cut_cumulative(cursor, with_text=False) if cumulative else stream.cut(cursor)
            cursor = cut.after

    def flush() -> None:
        for number in range(5):
            stream.apply(Text(names[number % parts], "tok "))
        found.append(stream.cut_cumulative(cursor, with_text=False) if cumulative else stream.cut(cursor))

    found: list[Cut] = []
    return count_steps(flush), len(found[0].frames)


@pytest.mark.parametrize(("parts", "events"), [(1, 0), (2, 0), (3, 0), (1, 50), (2, 7)])
def test_a_flush_costs_the_same_after_ten_thousand_tokens_as_after_one_thousand(parts: int, events: int) -> None:
    """However long the message and the log are, and however often parts have alternated."""
    short, long = last_flush(1_000, parts, events), last_flush(10_000, parts, events)
    assert long[1] == short[1] <= 6
    assert abs(long[0] - short[0]) <= 2
    assert long[0] < 500


def test_a_flush_without_text_costs_the_same_however_much_text_waits() -> None:
    short, long = (last_flush(tokens, 2, 0, cumulative=True) for tokens in (1_000, 10_000))
    assert abs(long[0] - short[0]) <= 2


def test_ten_thousand_tokens_cost_bytes_in_proportion() -> None:
    def sent(tokens: int) -> int:
        stream, writer = new_stream()
        p = writer.part(writer.message())
        cursor, size = joined(stream), 0
        for number in range(tokens):
            writer.text(p, "tokn")
            if number % 5 == 4:
                cut = stream.cut(cursor)
                cursor = cut.after
                size += len(b"[%b]" % cut.joined)
        return size

    assert sent(10_000) <= 12 * sent(1_000)
    assert sent(10_000) <= 512 * 1024


# -- clients that can't fold deltas


def test_such_a_client_gets_the_whole_text_and_only_the_latest() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    for text in ("a", "b", SMILE):
        writer.text(p, text)
    cut = stream.cut_cumulative(cursor, with_text=True)
    assert brief(cut) == [(p, "ab" + SMILE)]
    assert cut.after is stream.tip()
    assert brief(stream.cut_cumulative(cut.after, with_text=True)) == []


def test_text_whose_turn_has_not_come_is_not_lost() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    one, other = writer.part(mid), writer.part(mid)
    cursor = joined(stream)
    writer.text(one, "a")
    event = writer.event()
    writer.text(other, "b")
    cut = stream.cut_cumulative(cursor, with_text=False)
    assert brief(cut) == [event]
    assert cut.after is not stream.tip()
    assert stream.token(cut.after) == f"{EPOCH}.{event}"
    assert brief(stream.cut_cumulative(cut.after, with_text=False)) == []
    later = stream.cut_cumulative(cut.after, with_text=True)
    assert brief(later) == [(one, "a"), (other, "b")]
    assert later.after is stream.tip()


def test_whole_text_goes_before_the_event_that_came_after_it_when_its_turn_has_come() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    p = writer.part(mid)
    cursor = joined(stream)
    writer.text(p, "a")
    event = writer.event()
    late = writer.part(mid)
    writer.text(late, "b")
    last = writer.event()
    assert brief(stream.cut_cumulative(cursor, with_text=True)) == [(p, "a"), event, late, (late, "b"), last]


def test_whole_text_that_grew_since_subscribing_goes_once() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "a")
    cursor = stream.start(None)
    writer.text(p, "b")
    event = writer.event()
    writer.text(p, "c")
    assert brief(stream.cut_cumulative(cursor, with_text=True)) == ["subscribed", 1, p, (p, "abc"), event]


def test_the_cursor_of_such_a_client_is_a_place_like_any_other() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "a")
    event = writer.event()
    writer.text(p, "b")
    after = stream.cut_cumulative(cursor, with_text=False).after
    assert brief(stream.cut(after)) == [(p, 0, "ab")]
    assert event == after.seq


def test_the_end_of_a_part_brings_the_whole_text() -> None:
    stream, writer = new_stream()
    mid = writer.message()
    p, replaced = writer.part(mid), writer.part(mid)
    cursor = joined(stream)
    writer.text(p, "Hel")
    writer.text(replaced, "draft")
    cut = stream.cut_cumulative(cursor, with_text=True)
    writer.text(p, "lo")
    writer.end_part(p)
    writer.end_part(replaced, "final!")
    for cursor in (cut.after, stream.start(None), stream.start(f"{EPOCH}.3.{p}~1")):
        ends = [json.loads(frame.json)["d"] for frame in stream.cut_cumulative(cursor, with_text=True).frames[-2:]]
        assert ends == [
            {"mid": mid, "p": p, "len": 5, "s": "Hello"},
            {"mid": mid, "p": replaced, "len": 6, "s": "final!"},
        ]


def test_ended_text_comes_with_the_end_only() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "Hello")
    end = writer.end_part(p)
    assert brief(stream.cut_cumulative(stream.start(None), with_text=True)) == ["subscribed", 1, p, end]


def test_those_at_one_cursor_share_the_whole_text_too() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    cursor = joined(stream)
    writer.text(p, "ab")
    one, other = (stream.cut_cumulative(cursor, with_text=True) for _ in range(2))
    assert one is other


# -- any sequence of anything

FAMILY = "\U0001f468\u200d\U0001f469"
#: Few kinds of text, so that they meet often: halves of a pair, escapes, and more than one delta holds.
RUNS = ("a", "bcd", "é", "\ud83d", "\ude00", SMILE, FAMILY, '"\\\n', "\u2028", "\x00", "y" * 300, "z" * 40_000)
LIMITS = st.sampled_from([1, 200, 400, 1_000, 20_000, MAX_MESSAGE])


class Reader:
    """A subscriber: its place as the server keeps it, and what the client has made of it."""

    def __init__(self, machine: Streams, *, strict: bool = True, cumulative: bool = False) -> None:
        self.stream = machine.stream
        self.fold = Fold("s", strict=strict, cumulative=cumulative, writer=machine.writer)
        self.tokens: list[str | None] = [None]
        self.cursor: Cursor | None = None
        self.last: list[bytes] = []

    def subscribe(self, token: str | None) -> None:
        self.cursor = self.stream.start(token)

    def cut(self, limit: int, with_text: bool = True) -> Cut:
        assert self.cursor is not None
        if self.fold.cumulative:
            cut = self.stream.cut_cumulative(self.cursor, with_text=with_text, limit=limit)
        else:
            cut = self.stream.cut(self.cursor, limit)
        size = len(b"[%b]" % cut.joined)
        assert len(cut.frames) <= 1 or size <= limit
        return cut

    def take(self, cut: Cut, kept: int | None = None, carrier: str = "websocket") -> None:
        """The client gets a cut, or its first frames only."""
        self.cursor = cut.after
        self.last = [frame.json for frame in cut.frames[:kept]]
        if not self.last:
            return
        if cut.frames[0].t == "reset" or (cut.frames[0].t == "subscribed" and self.fold._sent is None):
            self.tokens = [None]  # what it held it forgets
        if carrier == "sse" and kept is None:
            self.fold.read_sse(sse.encode_cut(cut, self.stream.epoch))
        elif carrier == "ndjson" and kept is None:
            self.fold.read_lines(ndjson.encode_cut(cut))
        else:
            self.fold.read_message(b"[%b]" % b",".join(self.last))
        self.tokens.append(self.fold.token())

    def catch_up(self, limit: int = MAX_MESSAGE) -> None:
        while True:
            if self.fold.lost:
                self.subscribe(self.fold.subscribe())
            cut = self.cut(limit)
            if not cut.frames:
                break
            self.take(cut)
        assert self.cursor is self.stream.tip()


class Streams(RuleBasedStateMachine):
    """Producers and subscribers of one stream, doing anything in any order."""

    readers = Bundle("readers")

    @initialize(
        max_events=st.sampled_from([1, 3, 8, 1_000]),
        max_bytes=st.sampled_from([300, 2_000, 10**6]),
        max_text=st.sampled_from([0, 20, 10**6]),
    )
    def begin(self, max_events: int, max_bytes: int, max_text: int) -> None:
        self.stream = Stream("s", EPOCH, max_events, max_bytes, max_text)
        self.writer = Writer(self.stream)
        self.everyone: list[Reader] = []

    # producers

    @precondition(lambda self: len(self.writer.open) < 3)
    @rule(meta=st.sampled_from([b"{}", '{"é":["\\u2028",1]}'.encode()]))
    def start_message(self, meta: bytes) -> None:
        self.writer.message(meta=meta)

    @precondition(lambda self: self.writer.open)
    @rule(data=st.data(), kind=st.sampled_from(["text", "thinking", "tool_args"]))
    def start_part(self, data: st.DataObject, kind: str) -> None:
        self.writer.part(data.draw(st.sampled_from([*self.writer.open])), kind)

    @precondition(lambda self: self.stream.open_parts)
    @rule(
        data=st.data(),
        runs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, len(RUNS) - 1)), min_size=1, max_size=8),
    )
    def write(self, data: st.DataObject, runs: list[tuple[int, int]]) -> None:
        parts = [*self.stream.open_parts]
        for number, run in runs:
            self.writer.text(parts[number % len(parts)], RUNS[run])

    @rule(urgent=st.booleans(), size=st.sampled_from([0, 500]))
    def publish(self, urgent: bool, size: int) -> None:
        self.writer.event("tool.result", b'{"x":"%b"}' % (b"y" * size), urgent)

    @precondition(lambda self: self.stream.open_parts)
    @rule(data=st.data(), replacement=st.sampled_from([None, "", "r", FAMILY * 5]))
    def end_part(self, data: st.DataObject, replacement: str | None) -> None:
        self.writer.end_part(data.draw(st.sampled_from([*self.stream.open_parts])), replacement)

    @precondition(lambda self: self.writer.open)
    @rule(data=st.data(), status=st.sampled_from(["complete", "error", "aborted"]))
    def end_message(self, data: st.DataObject, status: str) -> None:
        self.writer.end(data.draw(st.sampled_from([*self.writer.open])), status)

    # subscribers

    @rule(target=readers, strict=st.booleans(), cumulative=st.booleans())
    def join(self, strict: bool, cumulative: bool) -> Reader:
        reader = Reader(self, strict=strict, cumulative=cumulative)
        reader.subscribe(reader.fold.subscribe())
        self.everyone.append(reader)
        return reader

    @rule(
        reader=readers, limit=LIMITS, with_text=st.booleans(), carrier=st.sampled_from(["websocket", "sse", "ndjson"])
    )
    def read(self, reader: Reader, limit: int, with_text: bool, carrier: str) -> None:
        reader.take(reader.cut(limit, with_text), carrier=carrier)

    @rule(reader=readers, limit=LIMITS)
    def catch_up(self, reader: Reader, limit: int) -> None:
        reader.catch_up(limit)

    @rule(reader=readers, limit=LIMITS, kept=st.integers(0, 5))
    def break_off(self, reader: Reader, limit: int, kept: int) -> None:
        """Only the first frames arrive; the client comes back with what it has."""
        reader.take(reader.cut(limit), kept)
        reader.subscribe(reader.fold.subscribe())

    @rule(reader=readers, data=st.data())
    def come_back_as_before(self, reader: Reader, data: st.DataObject) -> None:
        """An older cursor than what the client has: for what must not fold twice."""
        if not reader.fold.strict:
            token = data.draw(st.sampled_from(reader.tokens))
            reader.fold.subscribe()
            reader.fold._sent = token
            reader.subscribe(token)

    @rule(reader=readers, reason=st.sampled_from(["epoch", "ahead", "invalid"]))
    def bring_a_bad_cursor(self, reader: Reader, reason: str) -> None:
        if reader.fold.subscribe() is not None:
            token = {"epoch": "othe9epoch.0", "ahead": f"{EPOCH}.{self.stream.head + 1}", "invalid": "?"}[reason]
            reader.fold.resets.clear()
            reader.subscribe(token)
            reader.take(reader.cut(1))
            assert reader.fold.resets == [reason]
        else:
            reader.subscribe(None)

    @rule(reader=readers)
    def deliver_twice(self, reader: Reader) -> None:
        if not reader.fold.strict and reader.last and not reader.fold._awaits_greeting:
            frames = [json.loads(frame) for frame in reader.last]
            for frame in frames:
                if frame["t"] in ("event", "delta", "cumulative"):
                    reader.fold.apply(frame)

    # what holds

    @invariant()
    def everyone_can_catch_up_from_here(self) -> None:
        """Tried on a copy, so that those who are behind stay there."""
        if self.everyone:
            reader = self.everyone[-1]
            fold, cursor = deepcopy(reader.fold, {id(self.writer): self.writer}), reader.cursor
            kept, reader.fold = reader.fold, fold
            tokens, last = [*reader.tokens], reader.last
            reader.catch_up()
            self.check(reader)
            reader.fold, reader.cursor, reader.tokens, reader.last = kept, cursor, tokens, last

    def teardown(self) -> None:
        for reader in getattr(self, "everyone", []):
            reader.catch_up(1_000)
            self.check(reader)

    def check(self, reader: Reader) -> None:
        reader.fold.assert_holds(read_snapshot(self.stream))
        for p, part in reader.fold.parts.items():
            assert part.text == self.writer.texts[p]


TestStreams = Streams.TestCase
TestStreams.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# -- the judge judges


def judge(**options: Any) -> tuple[Fold, int]:
    """A client that is live in a stream with one open part at "abc"."""
    stream, writer = new_stream()
    p = writer.part(writer.message())
    writer.text(p, "abc")
    fold = Fold("s", **options)
    cut = stream.cut(stream.start(fold.subscribe()))
    fold.read_message(b"[%b]" % cut.joined)
    return fold, p


def delta(p: int, off: int, text: str) -> dict[str, Any]:
    return {"t": "delta", "sid": "s", "p": p, "off": off, "s": text}


def event(seq: int, kind: str = "note", d: Any = None) -> dict[str, Any]:
    return {"t": "event", "sid": "s", "seq": seq, "k": kind, "d": d}


END = {"mid": "m1", "p": 2, "len": 3}


@pytest.mark.parametrize(
    "found",
    [
        [delta(9, 0, "x")],
        [delta(2, 4, "x")],
        [delta(2, 2, "c")],
        [delta(2, 3, "")],
        [delta(2, 3, "x" * (MAX_DELTA + 1))],
        [event(2)],
        [event(4)],
        [event(3, "part.end", {**END, "len": 4})],
        [event(3, "part.end", {**END, "s": "ab"})],
        [event(3, "part.end", END), delta(2, 3, "x")],
        [event(3, "part.end", END), event(4, "part.end", END)],
        [event(3, "message.end", {"mid": "m1", "status": "complete", "parts": []})],
        [event(3, "message.unknown")],
        [{"t": "cumulative", "sid": "s", "p": 2, "s": "abcd"}],
        [{"t": "subscribed", "sid": "s", "epoch": EPOCH, "floor": 0, "head": 2, "open": []}],
        [{"t": "reset", "sid": "s", "epoch": EPOCH, "floor": 0, "head": 2, "open": [], "reason": "epoch"}],
        [{"t": "done", "sid": "s", "seq": 2}],
        [event(3, d="x" * MAX_MESSAGE), event(4)],
        [],
    ],
)
def test_the_judge_refuses_what_must_not_be_sent(found: list[dict[str, Any]]) -> None:
    fold, p = judge()
    assert (p, fold.text(p), fold.seq) == (2, "abc", 2)
    with pytest.raises((AssertionError, KeyError)):
        fold.read_message(json.dumps(found))


def test_the_judge_refuses_an_event_that_overtook_text() -> None:
    stream, writer = new_stream()
    p = writer.part(writer.message())
    fold = Fold("s", writer=writer)
    fold.read_message(b"[%b]" % stream.cut(stream.start(fold.subscribe())).joined)
    writer.text(p, "abc")
    writer.event()
    with pytest.raises(AssertionError, match="before event 3"):
        fold.apply(event(3))


def test_a_client_that_met_repeats_and_holes_does_what_the_contract_says() -> None:
    fold, p = judge(strict=False)
    for frame in (delta(p, 0, "ab"), delta(p, 1, "bcd"), event(2), {"t": "later", "x": 1}, {"t": "ping"}):
        fold.apply(frame)
    assert (fold.text(p), fold.seq, fold.lost) == ("abcd", 2, None)
    fold.apply(delta(p, 5, "f"))
    assert fold.lost is not None
    assert fold.subscribe() == f"{EPOCH}.2.{p}~4"
    fold, p = judge(strict=False)
    fold.apply(event(4))
    assert fold.lost is not None
    fold, p = judge(strict=False)
    fold.apply(event(3, "part.end", {**END, "len": 4}))
    assert fold.lost is not None
    assert fold.subscribe() == f"{EPOCH}.2"  # without that part's offset
