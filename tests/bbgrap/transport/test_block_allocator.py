"""Blocks never overlap, and everything is free again when nobody holds anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.transport.block_allocator import ALIGN, BlockAllocator

START, SIZE = 4 * ALIGN, 16 * ALIGN
STEPS = st.lists(st.tuples(st.sampled_from(["take", "hold", "drop"]), st.integers(0, 6 * ALIGN)), max_size=60)


@given(STEPS)
def test_blocks_are_disjoint_and_live_as_long_as_they_have_holders(steps):
    blocks, held = BlockAllocator(START, SIZE), []
    sizes = {}
    for what, number in steps:
        if what == "take":
            offset = blocks.take(number)
            if offset is not None:
                assert offset not in held
                assert offset % ALIGN == 0
                held.append(offset)
                sizes[offset] = max(1, number)
        elif held:
            offset = held[number % len(held)]
            inside = offset + number % sizes[offset]
            if what == "hold":
                blocks.hold(inside)
                held.append(offset)
            else:
                blocks.drop(inside)
                held.remove(offset)
        taken = list(blocks)
        assert [start for start, _ in taken] == sorted(set(held))
        assert all(stop - start >= sizes[start] for start, stop in taken)
        edges = [START, *(edge for block in taken for edge in block), START + SIZE]
        assert edges == sorted(edges)
    for offset in held:
        blocks.drop(offset)
    assert list(blocks) == []
    assert blocks.take(SIZE) == START


def test_a_full_memory_refuses_and_the_lowest_gap_is_taken_first():
    blocks = BlockAllocator(START, SIZE)
    first, second, third = (blocks.take(n * ALIGN) for n in (4, 4, 8))
    assert blocks.take(1) is None
    blocks.drop(second)
    assert blocks.take(5 * ALIGN) is None
    assert blocks.take(ALIGN) == second
    assert (first, third) == (START, START + 8 * ALIGN)


@pytest.mark.parametrize("offset", [0, START - 1, START + ALIGN, START + SIZE])
def test_what_no_block_has_can_be_neither_held_nor_dropped(offset):
    blocks = BlockAllocator(START, SIZE)
    blocks.take(1)
    for change in (blocks.hold, blocks.drop):
        with pytest.raises(LookupError, match="no block"):
            change(offset)
    assert list(blocks) == [(START, START + ALIGN)]
