"""The writer: joining, encoding, holding back and taking back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.pages.writer import PageWriter


def test_texts_come_out_joined_in_their_order() -> None:
    writer = PageWriter(4)
    for text in ("a", "", "\u00e9", "\U0001f600"):
        writer.write(text)
    assert writer.take(flush=True) == "a\u00e9\U0001f600".encode()


def test_less_than_a_chunk_waits_for_more() -> None:
    writer = PageWriter(4)
    writer.write("abc")
    assert writer.take(flush=False) == b""
    writer.write("d")
    assert writer.take(flush=False) == b"abcd"
    assert writer.take(flush=True) == b""


def test_a_flush_sends_what_there_is() -> None:
    writer = PageWriter(4_096)
    writer.write("a")
    assert writer.take(flush=True) == b"a"


def test_a_chunk_size_of_one_sends_every_text() -> None:
    writer = PageWriter(1)
    assert writer.take(flush=False) == b""
    writer.write("a")
    assert writer.take(flush=False) == b"a"


def test_one_text_however_large_stays_whole() -> None:
    writer = PageWriter(4)
    writer.write("x" * 1_000_000)
    assert len(writer.take(flush=False)) == 1_000_000


def test_what_is_held_comes_out_after_its_release() -> None:
    writer = PageWriter(4)
    writer.write("a")
    writer.hold()
    writer.write("tail")
    assert (writer.held_size, writer.ready_size) == (4, 1)
    assert writer.take(flush=True) == b"a"
    assert writer.take(flush=True) == b""
    writer.release()
    assert (writer.held_size, writer.ready_size) == (0, 4)
    writer.write("!")
    assert writer.take(flush=True) == b"tail!"


def test_something_can_be_written_before_what_is_held() -> None:
    writer = PageWriter(4)
    writer.hold()
    writer.write("tail")
    writer.write_ahead("update")
    assert writer.take(flush=True) == b"update"
    writer.write_ahead("another")
    writer.release()
    assert writer.take(flush=True) == b"anothertail"


def test_holding_twice_keeps_what_was_held_first() -> None:
    writer = PageWriter(4)
    writer.hold()
    writer.write("a")
    writer.hold()
    writer.write("b")
    writer.release()
    assert writer.take(flush=True) == b"ab"


def test_a_roll_back_forgets_what_was_written_since_the_mark() -> None:
    writer = PageWriter(4)
    writer.write("kept")
    writer.mark()
    writer.write("lost")
    writer.write_ahead("lost")
    writer.roll_back()
    assert writer.take(flush=True) == b"kept"


def test_a_roll_back_without_a_mark_forgets_everything_that_was_not_taken() -> None:
    writer = PageWriter(4)
    writer.mark()
    writer.write("sent")
    assert writer.take(flush=True) == b"sent"
    writer.write("lost")
    writer.roll_back()
    assert writer.take(flush=True) == b""


def test_a_take_moves_the_mark_to_where_the_text_begins_now() -> None:
    """What was taken is sent; only the rest of the record can be forgotten, and no later text by mistake."""
    writer = PageWriter(4)
    writer.write("before")
    writer.mark()
    writer.write("sent")
    writer.take(flush=True)
    writer.write("x" * 3)
    assert writer.take(flush=False) == b""
    writer.roll_back()
    assert writer.take(flush=True) == b""


def test_a_roll_back_drops_what_was_released_since_the_mark() -> None:
    writer = PageWriter(4)
    writer.hold()
    writer.write("tail")
    writer.mark()
    writer.release()
    writer.roll_back()
    assert writer.take(flush=True) == b""


def test_after_a_roll_back_sizes_are_of_what_is_left() -> None:
    writer = PageWriter(4)
    writer.write("ab")
    writer.mark()
    writer.write("cdefgh")
    writer.roll_back()
    assert writer.ready_size == 2
    assert writer.take(flush=False) == b""


def test_half_a_surrogate_pair_is_encoded_as_the_replacement_character() -> None:
    """The app's own state can hold one; encoding it would fail."""
    writer = PageWriter(4)
    writer.write("a\ud83db\ude00\ud83d")
    assert writer.take(flush=True).decode() == "a\ufffdb\ufffd\ufffd"


@given(st.lists(st.text(max_size=9)), st.integers(1, 20), st.lists(st.booleans()))
def test_chunks_joined_are_the_text_and_none_is_small_unless_flushed(
    texts: list[str], chunk_size: int, flushes: list[bool]
) -> None:
    writer = PageWriter(chunk_size)
    chunks = []
    for index, text in enumerate(texts):
        writer.write(text)
        flush = flushes[index % len(flushes)] if flushes else False
        chunk = writer.take(flush=flush)
        assert flush or not chunk or len(chunk) >= chunk_size
        chunks.append(chunk)
    chunks.append(writer.take(flush=True))
    assert b"".join(chunks) == "".join(texts).encode("utf-8", "streaming.replace")
