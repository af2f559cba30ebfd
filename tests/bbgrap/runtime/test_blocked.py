"""Copies between blocked and plain buffers give what copies between plain ones give."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph.types import DType
from bbgrap.runtime.blocked import BlockedCopies, aligned_empty, blocked, blocks_of, from_blocks
from bbgrap.runtime.execution import Copies
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalSend, Schedule

BLOCK = 4
SHAPE = (2, 3 * BLOCK, 5, 4)


def plain(array):
    return from_blocks(blocks_of(array, BLOCK))


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_blocked_arrays_keep_their_nominal_shape_and_convert_back():
    array = numbers(SHAPE)
    made = blocked(array, BLOCK)
    assert made.shape == SHAPE
    assert made.ctypes.data % 64 == 0
    assert made.reshape(-1)[:BLOCK].tolist() == array[0, :BLOCK, 0, 0].tolist()
    assert np.array_equal(plain(made), array)
    assert aligned_empty((1, 4, 1, 1)).flags.c_contiguous


@st.composite
def boxes(draw):
    """Any region: one or two ranges per axis."""
    box = []
    for extent in SHAPE:
        cuts = sorted(draw(st.sets(st.integers(0, extent), min_size=2, max_size=4)))
        box.append(tuple(zip(cuts[::2], cuts[1::2], strict=False)))
    return tuple(box)


@given(boxes())
def test_a_part_of_a_blocked_buffer_is_plain(box):
    schedule = Schedule(0, 1, (BufferSpec("x", DType.FLOAT, SHAPE),), ())
    array, part = numbers(SHAPE), LocalPart(0, box)
    want = Copies(schedule).part(part, array)
    assert np.array_equal(BlockedCopies(schedule, BLOCK, {0}).part(part, blocked(array, BLOCK)), want)
    assert np.array_equal(BlockedCopies(schedule, BLOCK, {0}).part(LocalPart(0, None), blocked(array, BLOCK)), array)
    assert np.array_equal(BlockedCopies(schedule, BLOCK, ()).part(part, array), want)


@given(st.lists(boxes(), min_size=1, max_size=2), st.tuples(*[st.integers(0, n - 1) for n in SHAPE]), st.booleans())
def test_what_is_sent_are_the_parts_whichever_way_they_are_taken(several, corner, twice):
    b, (n, c, h, w) = BLOCK, corner
    whole_blocks = (((n, SHAPE[0]),), ((c // b * b, SHAPE[1]),), ((h, h + 1),), ((w, SHAPE[3]),))
    parts = tuple(LocalPart(0, box) for box in (*several, whole_blocks, None))
    step = LocalSend(3, 1, parts)
    schedule = Schedule(0, 1, (BufferSpec("x", DType.FLOAT, SHAPE),), (step,), feeds=(0,))
    array = numbers(SHAPE)
    plain_copies, blocked_copies = Copies(schedule), BlockedCopies(schedule, BLOCK, {0})
    for _ in range(1 + twice):
        for part, got, same in zip(
            parts, blocked_copies.sent(step, {0: blocked(array, BLOCK)}), plain_copies.sent(step, {0: array}), strict=True
        ):
            want = plain_copies.part(part, array)
            assert np.array_equal(got, want)
            assert np.array_equal(same, want)


@given(st.booleans(), st.booleans(), st.booleans(), st.sampled_from((1, 2)))
def test_joins_convert_on_the_way(own_blocked, halo_blocked, joined_blocked, axis):
    size = {1: BLOCK, 2: 2}[axis]
    halo_shape = tuple(size if a == axis else extent for a, extent in enumerate(SHAPE))
    shape = tuple(extent + size if a == axis else extent for a, extent in enumerate(SHAPE))

    def box(start, stop, of):
        return tuple(((start, stop) if a == axis else (0, extent),) for a, extent in enumerate(of))

    pieces = (
        (LocalPart(0, None), box(0, SHAPE[axis], shape)),
        (LocalPart(1, box(0, size, halo_shape)), box(SHAPE[axis], shape[axis], shape)),
    )
    specs = tuple(BufferSpec(name, DType.FLOAT, of) for name, of in (("own", SHAPE), ("halo", halo_shape), ("joined", shape)))
    step = LocalJoin(2, pieces)
    schedule = Schedule(0, 1, specs, (step,), feeds=(0, 1), results=(2,))
    own, halo = numbers(SHAPE), numbers(halo_shape, 1)
    want = np.concatenate([own, halo], axis)
    chosen = {n for n, yes in enumerate((own_blocked, halo_blocked, joined_blocked)) if yes}
    held = {n: blocked(array, BLOCK) if n in chosen else array for n, array in enumerate((own, halo))}
    got = BlockedCopies(schedule, BLOCK, chosen).join(step, held)
    assert got.shape == shape
    assert got.flags.c_contiguous
    assert np.array_equal(plain(got) if joined_blocked else got, want)
    assert np.array_equal(Copies(schedule).join(step, {0: own, 1: halo}), want)
