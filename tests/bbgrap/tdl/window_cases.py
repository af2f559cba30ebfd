"""Random calls of the windowed operators."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from tests.bbgrap.tdl.verifier import Case

Draw = st.DrawFn


def random_of(draw: Draw) -> np.random.Generator:
    """Return a generator with a drawn seed."""
    return np.random.default_rng(draw(st.integers(0, 9999)))


def whole_numbers(random: np.random.Generator, *shape: int, low: int = -4, high: int = 5) -> Array:
    """Return floats that are small integers: sums and products of them never round."""
    return random.integers(low, high, shape).astype(np.float32)


def _many(draw: Draw, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))


def _extents(draw: Draw, reach: tuple[int, ...], pads: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return extents that a window fits into."""
    rank = len(reach)
    drawn = _many(draw, rank, 1, most)
    return tuple(max(e, r - pads[a] - pads[a + rank]) for a, (e, r) in enumerate(zip(drawn, reach, strict=True)))


def _reach(kernel: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def hulls(operand: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    """Spatial axes whose windows have holes or gaps, where a clipped hull may end at an element that nobody reads."""
    facts = enumerate(zip(kernel, strides, dilations, strict=True))
    return frozenset((operand, axis + 2) for axis, (k, s, d) in facts if (d > 1 and k > 1) or s > k)


@st.composite
def conv(draw: Draw) -> Case:
    """Conv in 1 to 3 dimensions: groups, depthwise with a multiplier, strides, dilations, wide uneven pads, auto_pad."""
    random, rank, groups = random_of(draw), draw(st.sampled_from((1, 1, 2, 2, 3))), draw(st.sampled_from((1, 1, 2, 3)))
    per_in, per_out, batch = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    kernel, strides = _many(draw, rank, 1, 3), _many(draw, rank, 1, 4)
    auto_pad = draw(st.sampled_from(("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")))
    dilations = _many(draw, rank, 1, 3) if draw(st.booleans()) and auto_pad in ("NOTSET", "VALID") else (1,) * rank
    pads = _many(draw, 2 * rank, 0, 4) if auto_pad == "NOTSET" else (0,) * (2 * rank)
    extents = _extents(draw, _reach(kernel, dilations), pads, 9 if rank == 1 else 6)
    assume(not auto_pad.startswith("SAME") or all((e - 1) % s < k for e, k, s in zip(extents, kernel, strides, strict=True)))
    attributes: dict[str, Attribute] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": groups}
    attributes |= {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    bias = (whole_numbers(random, groups * per_out),) if draw(st.booleans()) else ()
    operands = (whole_numbers(random, batch, groups * per_in, *extents), whole_numbers(random, groups * per_out, per_in, *kernel), *bias)
    loose = hulls(0, kernel, strides, dilations)
    return Case("Conv", operands, attributes, loose=loose, several_ranges=frozenset((0, 1)))


@st.composite
def conv_transpose(draw: Draw) -> Case:
    """ConvTranspose in 1 to 2 dimensions: groups, strides, dilations, pads, output_padding, output_shape or auto_pad."""
    random, rank = random_of(draw), draw(st.integers(1, 2))
    kernel, strides = _many(draw, rank, 1, 4), _many(draw, rank, 1, 3)
    dilations = _many(draw, rank, 1, 2) if draw(st.booleans()) else (1,) * rank
    assume(all(r >= s for r, s in zip(_reach(kernel, dilations), strides, strict=True)))
    extents, pads = _many(draw, rank, 1, 5), _many(draw, 2 * rank, 0, 2)
    extra = tuple(draw(st.integers(0, s - 1)) for s in strides)
    attributes: dict[str, Attribute] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "output_padding": extra}
    natural = tuple((e - 1) * s + r + x for e, s, r, x in zip(extents, strides, _reach(kernel, dilations), extra, strict=True))
    form = draw(st.sampled_from(("pads", "pads", "output_shape", "output_shape", "SAME_UPPER", "SAME_LOWER", "VALID")))
    if form == "pads":
        assume(all(n > pads[a] + pads[a + rank] for a, n in enumerate(natural)))
        attributes["pads"] = pads
    elif form == "output_shape":
        # beyond what is natural, onnxruntime takes as much as an output_padding may be
        attributes["output_shape"] = tuple(
            max(1, n + draw(st.integers(-3, s - 1 - x))) for n, s, x in zip(natural, strides, extra, strict=True)
        )
        attributes["auto_pad"] = draw(st.sampled_from(("NOTSET", "SAME_UPPER", "SAME_LOWER")))
    else:
        attributes["auto_pad"] = form
    groups, channels, filters = draw(st.sampled_from((1, 1, 2, 3))), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    attributes["group"] = groups
    bias = (whole_numbers(random, groups * filters),) if draw(st.booleans()) else ()
    operands = (whole_numbers(random, 1, groups * channels, *extents), whole_numbers(random, groups * channels, filters, *kernel), *bias)
    # One output meets every stride-th kernel element; with dilation also not every input.
    loose = frozenset((1, a + 2) for a in range(rank)) | frozenset((0, a + 2) for a in range(rank) if dilations[a] > 1)
    if groups > 1:  # channels on both sides of a border between groups read a hull of their filters
        loose |= {(1, 1)}
    return Case("ConvTranspose", operands, attributes, loose=loose, several_ranges=frozenset((0, 1)))


@st.composite
def pool(draw: Draw, op: str) -> Case:
    """A pool: ceil_mode, count_include_pad, dilations, uneven pads, auto_pad."""
    random, rank = random_of(draw), draw(st.sampled_from((1, 2, 2, 3)))
    kernel, strides = _many(draw, rank, 1, 3), _many(draw, rank, 1, 4)
    ceil_mode = draw(st.integers(0, 1))
    auto_pad = draw(st.sampled_from(("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")))
    ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
    dilations = _many(draw, rank, 1, 2) if draw(st.booleans()) and auto_pad == "NOTSET" else (1,) * rank
    pads = tuple(draw(st.integers(0, k - 1)) for k in kernel * 2) if auto_pad == "NOTSET" else (0,) * (2 * rank)
    extents = _extents(draw, _reach(kernel, dilations), pads, 9 if rank == 1 else 6)
    assume(not auto_pad.startswith("SAME") or all((e - 1) % s < k for e, k, s in zip(extents, kernel, strides, strict=True)))
    attributes: dict[str, Attribute] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "ceil_mode": ceil_mode}
    attributes |= {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    if op == "LpPool":
        attributes["p"] = draw(st.integers(1, 3))
    x = whole_numbers(random, draw(st.integers(1, 2)), draw(st.integers(1, 3)), *extents)
    loose = hulls(0, kernel, strides, dilations)
    return Case(op, (x,), attributes, opset=19, exact=op == "MaxPool", loose=loose, several_ranges=frozenset((0, 1)))


@st.composite
def global_pool(draw: Draw, op: str) -> Case:
    """A global pool in 1 to 3 dimensions."""
    x = whole_numbers(random_of(draw), *_many(draw, 2, 1, 4), *_many(draw, draw(st.integers(1, 3)), 1, 4))
    return Case(op, (x,), {"p": 3} if op == "GlobalLpPool" else {}, exact=op == "GlobalMaxPool")


@st.composite
def lrn(draw: Draw) -> Case:
    """LRN over 1, 3 or 5 channels."""
    x = whole_numbers(random_of(draw), draw(st.integers(1, 2)), draw(st.integers(1, 8)), *_many(draw, 2, 1, 3), low=1)
    attributes: dict[str, Attribute] = {"size": draw(st.sampled_from((1, 3, 5))), "alpha": 0.5, "beta": 0.75, "bias": 2.0}
    return Case("LRN", (x,), attributes, exact=False, several_ranges=frozenset((0, 2, 3)))


WINDOWS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "LRN": lrn,
    **{op: partial(pool, op) for op in ("AveragePool", "LpPool", "MaxPool")},
    **{op: partial(global_pool, op) for op in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")},
}
