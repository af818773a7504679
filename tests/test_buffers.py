"""The buffer pool: what is kept idle is bounded, and a lent buffer is one's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.buffers import BufferPool


def test_a_lent_buffer_has_at_least_a_chunk() -> None:
    assert len(BufferPool(100, 2).lend()) == 100


def test_the_defaults_keep_a_mebibyte_at_most() -> None:
    pool = BufferPool()
    assert pool.chunk_size * pool.max_pool == 1_048_576


def test_a_returned_buffer_is_lent_again() -> None:
    pool = BufferPool(100, 2)
    buffer = pool.lend()
    pool.give_back(buffer)
    assert pool.idle_bytes == 100
    assert pool.lend() is buffer
    assert pool.idle_bytes == 0


def test_two_borrowers_never_have_the_same_buffer() -> None:
    pool = BufferPool(100, 2)
    pool.give_back(pool.lend())
    assert pool.lend() is not pool.lend()


@pytest.mark.parametrize("max_pool", [2, 3])
def test_one_buffer_past_the_bound_is_dropped(max_pool: int) -> None:
    pool = BufferPool(10, max_pool)
    for buffer in [pool.lend() for _ in range(max_pool)]:
        pool.give_back(buffer)
    assert pool.idle_bytes == max_pool * 10
    for buffer in [pool.lend() for _ in range(max_pool + 1)]:
        pool.give_back(buffer)
    assert pool.idle_bytes == max_pool * 10


@pytest.mark.parametrize("max_pool", [0, -1])
def test_one_buffer_is_kept_at_least(max_pool: int) -> None:
    pool = BufferPool(10, max_pool)
    for buffer in [pool.lend(), pool.lend()]:
        pool.give_back(buffer)
    assert pool.idle_bytes == 10


@pytest.mark.parametrize("size", [0, 9, 11, 1_000_000])
def test_a_buffer_of_another_size_is_dropped(size: int) -> None:
    """One that grew would hold memory for ever; one that shrank would be too small for the next."""
    pool = BufferPool(10, 4)
    buffer = pool.lend()
    buffer[:] = bytes(size)
    pool.give_back(buffer)
    assert pool.idle_bytes == 0
    assert len(pool.lend()) == 10


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_a_chunk_has_at_least_one_byte(chunk_size: int) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        BufferPool(chunk_size, 1)


def test_what_is_lent_is_counted() -> None:
    pool = BufferPool(10, 1)
    first, second = pool.lend(), pool.lend()
    assert pool.lent == 2
    pool.give_back(first)
    pool.give_back(second)
    assert pool.lent == 0


@given(
    st.integers(1, 5),
    st.integers(-1, 4),
    st.lists(st.tuples(st.sampled_from(["lend", "resize", "give back"]), st.integers(0, 12), st.integers(0, 9))),
)
def test_idle_bytes_stay_bounded_whatever_borrowers_do(
    chunk_size: int, max_pool: int, actions: list[tuple[str, int, int]]
) -> None:
    """Idle bytes are never more than max(1, max_pool) * chunk_size, and no buffer is lent twice or too small."""
    pool = BufferPool(chunk_size, max_pool)
    lent: list[bytearray] = []
    for action, size, choice in actions:
        if action == "lend":
            buffer = pool.lend()
            assert len(buffer) >= chunk_size
            assert all(buffer is not other for other in lent)
            lent.append(buffer)
        elif lent and action == "resize":
            lent[choice % len(lent)][:] = bytes(size)
        elif lent:
            pool.give_back(lent.pop(choice % len(lent)))
        assert pool.idle_bytes <= max(1, max_pool) * chunk_size
        assert pool.lent == len(lent)
