"""BBGraP's equations 1 to 6 in their corrected form (docs/equations.md; acceptance checks B1 to B8)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.planners.shares import split_by_shares
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl.operators.windows import Window
from tests.bbgrap.tdl.verifier import Case, Whole, local_pads, run_local, take
from tests.bbgrap.tdl.window_cases import conv, conv_transpose, pool

Bounds = tuple[int, int]


def conv_1d(extent, kernel, *, stride=1, pads=(0, 0), dilation=1):
    """A 1-D Conv of one channel."""
    attributes = {"kernel_shape": (kernel,), "strides": (stride,), "pads": pads, "dilations": (dilation,)}
    return Whole(Case("Conv", (np.ones((1, 1, extent), np.float32), np.ones((1, 1, kernel), np.float32)), attributes))


def pieces_of(whole, devices):
    """Per device: what it reads along the last axis, and its pads; (), () for a device without work."""
    shape = whole.output.shape
    found = []
    for piece in split_by_shares(shape[-1], [1.0] * devices):
        if not len(piece):
            found.append(((), ()))
            continue
        local = whole.localize(ShapeMap.full(shape).replace(len(shape) - 1, IntervalSet.of(piece)))
        hull = local.reads[0].axes[-1].hull
        found.append(((hull.start, hull.stop), local_pads(local)))
    return found


def as_printed(extent, kernel, stride, pads, dilation, devices) -> list[Bounds]:
    """Equations 2 to 6 as the paper prints them, except that equation 3 takes the node's own output size (its figure 4 does)."""
    true_kernel = (kernel - 1) * dilation + 1
    sizes = [len(piece) for piece in split_by_shares((extent + sum(pads) - true_kernel) // stride + 1, [1.0] * devices)]
    found = []
    for i, size in enumerate(sizes):
        interval = (size - 1) * stride + true_kernel
        left = 0 if i == 0 else stride * sum(sizes[:i]) - pads[0]
        removed = pads[0] if i == 0 else pads[1] if i == devices - 1 else 0
        found.append((left, left + interval - removed))
    return found


def test_b1_equation_1_even_split_with_remainder_first():
    assert [len(piece) for piece in split_by_shares(8, [1.0] * 3)] == [3, 3, 2]


@given(st.integers(0, 40), st.integers(1, 9))
def test_equation_1_cuts_everything_once_and_evenly(extent, parts):
    pieces = split_by_shares(extent, [1.0] * parts)
    assert [i for piece in pieces for i in range(piece.start, piece.stop)] == list(range(extent))
    sizes = [len(piece) for piece in pieces]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_b2_equation_2_true_kernel():
    assert [Window(9, 3, 1, dilation, 0, 0).reach for dilation in (1, 2, 3)] == [3, 5, 7]


def test_b3_equation_3_interval_of_a_node():
    whole = conv_1d(40, 3, stride=2, dilation=2)
    local = whole.localize(ShapeMap.of((0, 1), (0, 1), (4, 7)))
    assert local.reads[0] == ShapeMap.of((0, 1), (0, 1), (8, 17))
    assert local.reads[0].shape[-1] == 9


def test_b4_equations_4_to_6_stride_remainder_at_the_last_node():
    assert [read for read, _ in pieces_of(conv_1d(224, 3, stride=2, pads=(1, 1)), 3)] == [(0, 76), (75, 150), (149, 224)]
    assert as_printed(224, 3, 2, (1, 1), 1, 3) == [(0, 76), (75, 150), (149, 223)]  # one row short: P1 is removed though it is not reached


def test_b5_equations_4_to_6_windows_wider_than_the_tensor():
    found = pieces_of(conv_1d(4, 5, pads=(2, 2)), 4)
    assert [read for read, _ in found] == [(0, 3), (0, 4), (0, 4), (1, 4)]
    assert [pads for _, pads in found] == [(2, 0), (1, 0), (0, 1), (0, 2)]
    assert as_printed(4, 5, 1, (2, 2), 1, 4)[1:3] == [(-1, 4), (0, 5)]  # the printed form leaves the tensor at both ends


def test_b6_equations_4_to_6_one_node_has_both_pads():
    assert pieces_of(conv_1d(8, 3, pads=(1, 1)), 1) == [((0, 8), (1, 1))]
    assert as_printed(8, 3, 1, (1, 1), 1, 1) == [(0, 9)]


def test_b7_equations_4_to_6_more_nodes_than_outputs():
    assert [read for read, _ in pieces_of(conv_1d(2, 3, pads=(1, 1)), 4)] == [(0, 2), (0, 2), (), ()]


def test_a_tile_wholly_in_padding_reads_nothing():
    whole = conv_1d(1, 1, pads=(2, 2))
    local = whole.localize(ShapeMap.of((0, 1), (0, 1), (0, 2)))
    assert local.reads[0].is_empty
    assert local_pads(local) == (2, 0)  # not 2 at the begin and something at the end: as many as the window needs


def touched(window: Window, piece: Interval) -> set[int]:
    """Every element that a window operator's piece reads, one by one."""
    places = range(piece.start, piece.stop)
    reads = {o * window.stride + k * window.dilation - window.pad_begin for o in places for k in range(window.kernel)}
    return {i for i in reads if 0 <= i < window.extent}


def touched_transposed(window: Window, piece: Interval) -> set[int]:
    """Every input element that reaches an output of a ConvTranspose piece."""
    offsets = [k * window.dilation - window.pad_begin for k in range(window.kernel)]
    return {i for i in range(window.extent) if any(i * window.stride + offset in piece for offset in offsets)}


def windows(case: Case) -> list[Window]:
    rank = case.operands[0].ndim - 2
    facts = zip(*(case.attributes[name] for name in ("kernel_shape", "strides", "dilations")), strict=True)
    pads = case.attributes["pads"]
    return [Window(case.operands[0].shape[a + 2], *fact, pads[a], pads[a + rank]) for a, fact in enumerate(facts)]


@pytest.mark.parametrize("kind", ["conv", "conv_transpose", "MaxPool", "AveragePool", "LpPool"])
@given(data=st.data())
def test_b8_equations_2_to_6_against_brute_force(kind, data):
    cases = {"conv": conv, "conv_transpose": conv_transpose}.get(kind, lambda: pool(kind))()
    case = data.draw(cases.filter(lambda case: "pads" in case.attributes))
    whole, devices = Whole(case), data.draw(st.integers(1, 4))
    axis = data.draw(st.integers(0, case.operands[0].ndim - 3))
    window, shape = windows(case)[axis], whole.output.shape
    count = touched_transposed if kind == "conv_transpose" else touched
    results = []
    for piece in split_by_shares(shape[axis + 2], [1.0] * devices):
        if not len(piece):
            continue
        region = ShapeMap.full(shape).replace(axis + 2, IntervalSet.of(piece))
        local = whole.localize(region)
        read, needed = local.reads[0].axes[axis + 2], count(window, piece)
        assert set(read) >= needed
        if needed and window.dilation == 1 and (window.stride <= window.kernel or kind == "conv_transpose"):
            assert (read.hull.start, read.hull.stop) == (min(needed), max(needed) + 1)
        results.append(run_local(case, local)[0])
        np.testing.assert_allclose(results[-1], take(whole.output, region), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(results, axis + 2), whole.output, rtol=1e-5, atol=1e-6)
