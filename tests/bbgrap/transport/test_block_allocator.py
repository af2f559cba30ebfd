"""Blocks never overlap, and everything is free again when all are dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.transport.block_allocator import ALIGN, BlockAllocator

START, SIZE = 4 * ALIGN, 16 * ALIGN
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 6 * ALIGN)), max_size=60)


@given(STEPS)
def test_blocks_are_disjoint_and_live_until_they_are_dropped(steps):
    blocks, sizes = BlockAllocator(START, SIZE), {}
    for takes, number in steps:
        if takes:
            offset = blocks.take(number)
            if offset is not None:
                assert offset not in sizes
                assert offset % ALIGN == 0
                sizes[offset] = max(1, number)
        elif sizes:
            offset = sorted(sizes)[number % len(sizes)]
            blocks.drop(offset)
            del sizes[offset]
        taken = list(blocks)
        assert [start for start, _ in taken] == sorted(sizes)
        assert all(stop - start >= sizes[start] for start, stop in taken)
        edges = [START, *(edge for block in taken for edge in block), START + SIZE]
        assert edges == sorted(edges)
    for offset in sizes:
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


@pytest.mark.parametrize("offset", [0, START - 1, START + 1, START + ALIGN, START + SIZE])
def test_what_is_no_block_cannot_be_dropped(offset):
    blocks = BlockAllocator(START, SIZE)
    blocks.take(1)
    with pytest.raises(LookupError, match="no block"):
        blocks.drop(offset)
    assert list(blocks) == [(START, START + ALIGN)]
