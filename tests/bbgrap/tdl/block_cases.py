"""Random calls of operators that lay blocks out anew, sample maps, or transform signals."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import strategies as st

from bbgrap.graph.types import Attribute
from tests.bbgrap.tdl.other_cases import int64
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of, whole_numbers
from tests.strategies import shapes

WITHOUT_CHANNELS = frozenset((0,))


def _four(draw: Draw, most: int = 3) -> tuple[int, int, int, int]:
    return draw(st.tuples(*[st.integers(1, most)] * 4))


@st.composite
def depth_to_space(draw: Draw) -> Case:
    """DepthToSpace in either order of channels."""
    (batch, channels, height, width), size = _four(draw), draw(st.integers(1, 3))
    x = whole_numbers(random_of(draw), batch, channels * size**2, height, width)
    mode = draw(st.sampled_from(("DCR", "CRD")))
    attributes: dict[str, Attribute] = {"blocksize": size, "mode": mode}
    several = frozenset((0, 1)) if mode == "CRD" else WITHOUT_CHANNELS
    # A tile inside a block meets only some of the block's channels.
    return Case("DepthToSpace", (x,), attributes, loose=frozenset({(0, 1)}), several_ranges=several)


@st.composite
def space_to_depth(draw: Draw) -> Case:
    """SpaceToDepth."""
    (batch, channels, height, width), size = _four(draw), draw(st.integers(1, 3))
    x = whole_numbers(random_of(draw), batch, channels, height * size, width * size)
    return Case("SpaceToDepth", (x,), {"blocksize": size})


@st.composite
def tile(draw: Draw) -> Case:
    """Tile with axes that repeat one element, several, or nothing."""
    shape = draw(shapes(least=1, most=3, extent=4))
    repeats = [draw(st.integers(1, 3)) for _ in shape]
    several = frozenset(a for a, r in enumerate(repeats) if r == 1)
    loose = frozenset((0, a) for a, r in enumerate(repeats) if r != 1)
    return Case("Tile", (whole_numbers(random_of(draw), *shape), int64(*repeats)), {}, frozenset((1,)), loose=loose, several_ranges=several)


DIAGONALS = st.one_of(st.integers(-7, 7), st.sampled_from((-(2**63), 2**63 - 1)))


@st.composite
def trilu(draw: Draw) -> Case:
    """Trilu of either side, with and without a diagonal, also far outside."""
    shape = draw(shapes(least=2, most=4, extent=5))
    x = whole_numbers(random_of(draw), *shape, low=1)
    k = (np.array(draw(DIAGONALS), np.int64),) if draw(st.booleans()) else ()
    several = frozenset(range(len(shape) - 2))
    return Case("Trilu", (x, *k), {"upper": draw(st.integers(0, 1))}, frozenset((1,)), loose=None, several_ranges=several)


@st.composite
def eye_like(draw: Draw) -> Case:
    """EyeLike of its input's type or a given one."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    attributes: dict[str, Attribute] = {"k": draw(DIAGONALS)}
    if draw(st.booleans()):
        attributes["dtype"] = 7
    return Case("EyeLike", (np.zeros(shape, np.float32),), attributes, several_ranges=frozenset())


@st.composite
def col2im(draw: Draw) -> Case:
    """Col2Im of blocks that touch or overlap."""
    batch, channels, height, width = _four(draw)
    block, step = (draw(st.integers(1, 2)), draw(st.integers(1, 2))), draw(st.integers(1, 2))
    image = (height + block[0], width + block[1])
    count = int(np.prod([(i - b) // step + 1 for i, b in zip(image, block, strict=True)]))
    x = whole_numbers(random_of(draw), batch, channels * block[0] * block[1], count)
    operands = (x, int64(*image), int64(*block))
    return Case("Col2Im", operands, {"strides": (step, step)}, frozenset((1, 2)), loose=None)


@st.composite
def affine_grid(draw: Draw) -> Case:
    """AffineGrid in 2 and 3 dimensions."""
    rank, batch = draw(st.integers(2, 3)), draw(st.integers(1, 4))
    size = int64(batch, 1, *draw(st.tuples(*[st.integers(2, 3)] * rank)))
    theta = whole_numbers(random_of(draw), batch, rank, rank + 1)
    attributes: dict[str, Attribute] = {"align_corners": draw(st.integers(0, 1))}
    return Case("AffineGrid", (theta, size), attributes, frozenset((1,)), 20, exact=False, loose=None)


@st.composite
def grid_sample(draw: Draw) -> Case:
    """GridSample in 2 and 3 dimensions, inside and outside the map."""
    rank = draw(st.integers(2, 3))
    batch, channels, *space = draw(st.tuples(*[st.integers(1, 4)] * (2 + 2 * rank)))
    random = random_of(draw)
    grid = random.uniform(-1.3, 1.3, (batch, *space[rank:], rank)).astype(np.float32)
    attributes: dict[str, Attribute] = {
        "mode": draw(st.sampled_from(("linear", "nearest"))),
        "padding_mode": draw(st.sampled_from(("zeros", "border", "reflection"))),
        "align_corners": draw(st.integers(0, 1)),
    }
    operands = (whole_numbers(random, batch, channels, *space[:rank]), grid)
    return Case("GridSample", operands, attributes, opset=20, exact=False, loose=None)


@st.composite
def _roi_pool(draw: Draw, op: str) -> Case:
    batch, channels, height, width = _four(draw, 4)
    count, random = draw(st.integers(1, 4)), random_of(draw)
    maps = random.integers(0, batch, count)
    corners = random.uniform(0, 2, (count, 2))
    rois = np.concatenate([corners, corners + random.uniform(1, 2, (count, 2))], axis=1).astype(np.float32)
    x = whole_numbers(random, batch, channels, height, width)
    # The regions are constants: other values would name maps that do not exist, or end before they begin.
    if op == "MaxRoiPool":
        rois = np.concatenate([maps[:, None], np.round(rois)], axis=1).astype(np.float32)
        return Case(op, (x, rois), {"pooled_shape": (2, 2)}, frozenset((1,)), loose=None)
    attributes: dict[str, Attribute] = {"output_height": 2, "output_width": 2, "sampling_ratio": draw(st.integers(0, 2))}
    return Case(op, (x, rois, maps), attributes, frozenset((1,)), exact=False, loose=None, below={2: batch})


@st.composite
def deform_conv(draw: Draw) -> Case:
    """DeformConv with and without groups, bias and mask."""
    batch, each, height, width = _four(draw)
    groups, filters, kernel, random = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2)), random_of(draw)
    height, width = height + kernel, width + kernel
    out = (height - kernel + 1, width - kernel + 1)
    offsets = random.uniform(-1, 1, (batch, 2 * kernel**2, *out)).astype(np.float32)
    bias = whole_numbers(random, groups * filters) if draw(st.booleans()) else None
    mask = random.uniform(0, 1, (batch, kernel**2, *out)).astype(np.float32) if draw(st.booleans()) else None
    operands = [
        whole_numbers(random, batch, groups * each, height, width), whole_numbers(random, groups * filters, each, kernel, kernel),
        offsets, bias, mask,
    ]  # fmt: skip
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"group": groups, "kernel_shape": (kernel, kernel), "pads": (0, 0, 0, 0)}
    return Case("DeformConv", tuple(operands), attributes, opset=19, exact=False, loose=None)


@st.composite
def det(draw: Draw) -> Case:
    """Det of a batch."""
    shape, size = draw(shapes(least=1, most=2, extent=4)), draw(st.integers(1, 3))
    return Case("Det", (random_of(draw).uniform(-1, 1, (*shape, size, size)).astype(np.float32),), exact=False, loose=None)


@st.composite
def dft(draw: Draw) -> Case:
    """DFT with the axis as operand or attribute, of real and complex signals."""
    shape = draw(shapes(least=2, most=3, extent=4))
    axis, by_operand = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
    pair = draw(st.integers(1, 2))
    x = random_of(draw).uniform(-1, 1, (*shape, pair)).astype(np.float32)
    attributes: dict[str, Attribute] = {"onesided": draw(st.integers(0, 1))} if pair == 1 else {"inverse": draw(st.integers(0, 1))}
    if by_operand:
        return Case("DFT", (x, None, np.array(axis)), attributes, frozenset((2,)), 20, exact=False, loose=None)
    return Case("DFT", (x,), {**attributes, "axis": axis}, opset=17, exact=False, loose=None)


@st.composite
def stft(draw: Draw) -> Case:
    """STFT with a window, a frame length or both, of signals with and without a last axis; frames overlap or leave gaps."""
    batch, length, step, more = draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.integers(1, 5)), draw(st.integers(0, 9))
    random = random_of(draw)
    window = random.uniform(0.5, 1, length).astype(np.float32) if draw(st.booleans()) else None
    frame = np.array(length) if window is None or draw(st.booleans()) else None
    x = random.uniform(-1, 1, (batch, length + more, *draw(st.sampled_from(((), (1,)))))).astype(np.float32)
    operands = (x, np.array(step), window, frame) if frame is not None else (x, np.array(step), window)
    return Case("STFT", operands, {}, frozenset((1, 3)), 17, exact=False, loose=None, several_ranges=frozenset((0,)))


BLOCKS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "DFT": dft,
    "DeformConv": deform_conv,
    "DepthToSpace": depth_to_space,
    "Det": det,
    "EyeLike": eye_like,
    "GridSample": grid_sample,
    "STFT": stft,
    "SpaceToDepth": space_to_depth,
    "Tile": tile,
    "Trilu": trilu,
    **{op: partial(_roi_pool, op) for op in ("MaxRoiPool", "RoiAlign")},
}
