"""Blocks never overlap, and everything is free again when nobody holds anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.transport.arena import ALIGN, Arena

START, SIZE = 4 * ALIGN, 16 * ALIGN
STEPS = st.lists(st.tuples(st.sampled_from(["take", "hold", "drop"]), st.integers(0, 6 * ALIGN)), max_size=60)


@given(STEPS)
def test_blocks_are_disjoint_and_live_as_long_as_they_have_holders(steps):
    arena, held = Arena(START, SIZE), []
    sizes = {}
    for what, number in steps:
        if what == "take":
            offset = arena.take(number)
            if offset is not None:
                assert offset not in held
                assert offset % ALIGN == 0
                held.append(offset)
                sizes[offset] = max(1, number)
        elif held:
            offset = held[number % len(held)]
            inside = offset + number % sizes[offset]
            if what == "hold":
                arena.hold(inside)
                held.append(offset)
            else:
                arena.drop(inside)
                held.remove(offset)
        blocks = list(arena)
        assert [start for start, _ in blocks] == sorted(set(held))
        assert all(stop - start >= sizes[start] for start, stop in blocks)
        edges = [START, *(edge for block in blocks for edge in block), START + SIZE]
        assert edges == sorted(edges)
    for offset in held:
        arena.drop(offset)
    assert list(arena) == []
    assert arena.take(SIZE) == START


def test_a_full_arena_refuses_and_the_lowest_gap_is_taken_first():
    arena = Arena(START, SIZE)
    first, second, third = (arena.take(n * ALIGN) for n in (4, 4, 8))
    assert arena.take(1) is None
    arena.drop(second)
    assert arena.take(5 * ALIGN) is None
    assert arena.take(ALIGN) == second
    assert (first, third) == (START, START + 8 * ALIGN)


@pytest.mark.parametrize("offset", [0, START - 1, START + ALIGN, START + SIZE])
def test_what_no_block_has_can_be_neither_held_nor_dropped(offset):
    arena = Arena(START, SIZE)
    arena.take(1)
    for change in (arena.hold, arena.drop):
        with pytest.raises(LookupError, match="no block"):
            change(offset)
    assert list(arena) == [(START, START + ALIGN)]
