"""Random calls of reductions, products, and operators that only move or rename."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from bbgrap.tdl.operators.reductions import KINDS
from bbgrap.tdl.operators.shapes import groups_of
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of, whole_numbers
from tests.strategies import shapes


def int64(*values: int) -> Array:
    """Return a 1-D parameter."""
    return np.array(values, np.int64)


def _some_axes(draw: Draw, rank: int, *, least: int = 0) -> tuple[int, ...]:
    """Return distinct axes in some order, some counted from the end."""
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=least, max_size=rank))
    return tuple(axis - rank * draw(st.booleans()) for axis in axes)


def _tensor(draw: Draw, *shape: int) -> Array:
    """Return a tensor of some type; only for operators that move elements."""
    values = random_of(draw).integers(0, 100, shape)
    return values.astype(draw(st.sampled_from((np.float32, np.int64, np.uint8, np.float16))))


@st.composite
def _reduction(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=1, most=4, extent=4))
    axes, keep = _some_axes(draw, len(shape)), draw(st.integers(0, 1))
    by_operand = op == "ReduceSum" or draw(st.booleans())
    x = whole_numbers(random_of(draw), *shape, low=1, high=4)
    exact = op in ("ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")
    attributes: dict[str, Attribute] = {"keepdims": keep}
    if not axes:
        return Case(op, (x,), attributes, exact=exact)
    if by_operand:
        return Case(op, (x, int64(*axes)), attributes, frozenset((1,)), 18, exact)
    return Case(op, (x,), attributes | {"axes": axes}, opset=17, exact=exact)


@st.composite
def _along_axis(draw: Draw, op: str) -> Case:
    x = whole_numbers(random_of(draw), *draw(shapes(least=1, most=4, extent=4)))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    # Equal shifts of a whole row leave the place of its largest element.
    return Case(op, (x,), {"axis": axis}, exact=op == "Hardmax", loose=None if op == "Hardmax" else frozenset())


@st.composite
def matmul(draw: Draw) -> Case:
    """MatMul: 1-D operands on either side, leading axes that broadcast."""
    random, (m, k, n) = random_of(draw), draw(st.tuples(*[st.integers(1, 5)] * 3))
    batch = draw(shapes(most=2, extent=3))
    left, right = (broadcast(draw, batch) for _ in range(2))
    a = whole_numbers(random, k) if draw(st.integers(0, 3)) == 0 else whole_numbers(random, *left, m, k)
    b = whole_numbers(random, k) if draw(st.integers(0, 3)) == 0 else whole_numbers(random, *right, k, n)
    return Case("MatMul", (a, b))


def broadcast(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that broadcasts to the given one: leading axes dropped, others 1."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.integers(0, 2)) == 0 else extent for extent in kept)


@st.composite
def gemm(draw: Draw) -> Case:
    """Gemm: transposed operands, alpha and beta, every shape of bias."""
    random, (m, k, n) = random_of(draw), draw(st.tuples(*[st.integers(1, 5)] * 3))
    swap_a, swap_b = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    a = whole_numbers(random, *((k, m) if swap_a else (m, k)))
    b = whole_numbers(random, *((n, k) if swap_b else (k, n)))
    bias = draw(st.sampled_from((None, (), (1,), (n,), (1, n), (m, 1), (m, n), (1, 1))))
    attributes: dict[str, Attribute] = {"transA": swap_a, "transB": swap_b, "alpha": draw(st.sampled_from((0.5, 1.0))), "beta": 2.0}
    return Case("Gemm", (a, b) if bias is None else (a, b, whole_numbers(random, *bias)), attributes)


@st.composite
def concat(draw: Draw) -> Case:
    """Concat of 1 to 4 operands, maybe empty ones."""
    shape = draw(shapes(least=1, extent=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    extents = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    first = _tensor(draw, *shape)
    random = random_of(draw)
    operands = []
    for extent in extents:
        own = list(shape)
        own[axis] = extent
        operands.append(random.integers(0, 100, own).astype(first.dtype))
    return Case("Concat", tuple(operands), {"axis": axis})


@st.composite
def slices(draw: Draw) -> Case:
    """Slice: any axes in any order, steps of either sign, bounds inside and far outside."""
    shape = draw(shapes(least=1, extent=7))
    axes = _some_axes(draw, len(shape), least=1)
    steps = [draw(st.sampled_from((1, 1, 2, 3, -1, -2))) for _ in axes]
    starts, ends = zip(*(_slice_bounds(draw, shape[axis], step) for axis, step in zip(axes, steps, strict=True)), strict=True)
    x = _tensor(draw, *shape)
    stepped = {axis % len(shape) for axis, step in zip(axes, steps, strict=True) if step != 1}
    operands: tuple[Array, ...] = (x, int64(*starts), int64(*ends), int64(*axes))
    if stepped or draw(st.booleans()):
        operands = (*operands, int64(*steps))
    return Case("Slice", operands, {}, frozenset(range(1, 5)), several_ranges=frozenset(range(len(shape))) - stepped)


@st.composite
def told_slices(draw: Draw) -> Case:
    """Slice by bounds that are no constants: some axes, which stay whole."""
    case = draw(slices().filter(lambda case: len(case.operands[3]) < case.operands[0].ndim))
    told = draw(st.sets(st.integers(1, 2), min_size=1))
    sliced = frozenset(int(axis) % case.operands[0].ndim for axis in case.operands[3])
    kept = frozenset(range(case.operands[0].ndim)) - sliced
    return replace(case, parameters=case.parameters - told, several_ranges=kept, loose=None)


def _slice_bounds(draw: Draw, extent: int, step: int) -> tuple[int, int]:
    """Return a start and an end that keep something, as they are, counted from the end, or far outside where that means the same."""
    first = draw(st.integers(0, extent - 1))
    places = range(first, extent, step) if step > 0 else range(first, -1, step)
    end = places[draw(st.integers(0, len(places) - 1))] + (1 if step > 0 else -1)
    starts, ends = [first, first - extent], [end, end - extent] if 0 <= end < extent else [end if step > 0 else -extent - 1]
    starts += [-99] * (step > 0 and first == 0) + [2**63 - 1] * (step < 0 and first == extent - 1)
    ends += [2**63 - 1] * (end == extent) + [-(2**63) + 1] * (end < 0)
    return draw(st.sampled_from(starts)), draw(st.sampled_from(ends))


@st.composite
def pad(draw: Draw) -> Case:
    """Pad: constant (given or not, negative too), reflected, edge, wrapped; all axes or some."""
    shape = draw(shapes(least=1, extent=5))
    mode = draw(st.sampled_from(("constant", "constant", "constant", "reflect", "edge", "wrap")))
    axes = _some_axes(draw, len(shape), least=1) if draw(st.booleans()) else tuple(range(len(shape)))
    low, most = (-2, 4) if mode == "constant" else (0, 4)
    widths = [(draw(st.integers(low, most)), draw(st.integers(low, most))) for _ in axes]
    if mode in ("reflect", "wrap"):
        widths = [(min(b, shape[axis] - 1), min(a, shape[axis] - 1)) for axis, (b, a) in zip(axes, widths, strict=True)]
    assume(
        all(
            shape[axis] + before + after > 0 and min(before, after) > -shape[axis]
            for axis, (before, after) in zip(axes, widths, strict=True)
        )
    )
    x = whole_numbers(random_of(draw), *shape)
    value = np.array(7, np.float32) if mode == "constant" and draw(st.booleans()) else None
    operands = (x, int64(*(b for b, _ in widths), *(a for _, a in widths)), value, int64(*axes))
    padded = {axis % len(shape) for axis, pair in zip(axes, widths, strict=True) if pair != (0, 0)}
    several = frozenset(range(len(shape))) - padded
    return Case("Pad", operands, {"mode": mode}, frozenset((1, 2, 3)), 19, several_ranges=several)


@st.composite
def transpose(draw: Draw) -> Case:
    """Transpose with and without a permutation."""
    x = _tensor(draw, *draw(shapes(most=4)))
    order = draw(st.none() | st.permutations(range(x.ndim)).map(tuple))
    return Case("Transpose", (x,), {} if order is None or not order else {"perm": order})


@st.composite
def reshape(draw: Draw) -> Case:
    """Reshape between two groupings of the same factors, with axes of extent 1 anywhere."""
    factors = draw(st.lists(st.integers(1, 4), max_size=5).filter(lambda f: np.prod(f, dtype=int) <= 300))
    before, after = _grouping(draw, factors), _grouping(draw, factors)
    if draw(st.integers(0, 3)) == 0:  # another order of factors: groups whose units do not match
        after = _grouping(draw, draw(st.permutations(factors)))
    target = list(after)
    if target and draw(st.booleans()):
        target[draw(st.integers(0, len(target) - 1))] = -1
    return _renamed("Reshape", before, after, (int64(*target),), {}, draw)


def _grouping(draw: Draw, factors: list[int]) -> tuple[int, ...]:
    shape: list[int] = []
    for factor in factors:
        if shape and draw(st.booleans()):
            shape[-1] *= factor
        else:
            shape.append(factor)
    return tuple(shape)


def _renamed(
    op: str, before: tuple[int, ...], after: tuple[int, ...], parameters: tuple[Array, ...], attributes: dict[str, Attribute], draw: Draw
) -> Case:
    """A cut inside a unit reads whole units: inner axes of a group are hulls."""
    loose = frozenset((0, axis) for ins, _ in groups_of(before, after) for axis in ins[1:])
    x = np.arange(np.prod(before, dtype=int)).reshape(before).astype(draw(st.sampled_from((np.float32, np.int32))))
    return Case(op, (x, *parameters), attributes, frozenset(range(1, 1 + len(parameters))), loose=loose)


@st.composite
def flatten(draw: Draw) -> Case:
    """Flatten at any axis."""
    before = draw(shapes(most=4, extent=4))
    axis = draw(st.integers(-len(before), len(before)))
    cut = axis if axis >= 0 else axis + len(before)
    after = (int(np.prod(before[:cut], dtype=int)), int(np.prod(before[cut:], dtype=int)))
    return _renamed("Flatten", before, after, (), {"axis": axis}, draw)


@st.composite
def squeeze(draw: Draw) -> Case:
    """Squeeze of named or all axes of extent 1."""
    before = draw(st.lists(st.sampled_from((1, 1, 2, 3)), max_size=5).map(tuple))
    ones = [a for a, extent in enumerate(before) if extent == 1]
    named = [a for a in ones if draw(st.booleans())]
    gone = named or ones
    parameters = (int64(*(a - len(before) * draw(st.booleans()) for a in named)),) if named else ()
    return _renamed("Squeeze", before, tuple(e for a, e in enumerate(before) if a not in gone), parameters, {}, draw)


@st.composite
def unsqueeze(draw: Draw) -> Case:
    """Unsqueeze at any axes."""
    before = draw(shapes())
    rank = len(before) + draw(st.integers(1, 2))
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=rank - len(before), max_size=rank - len(before)))
    rest = iter(before)
    after = tuple(1 if a in axes else next(rest) for a in range(rank))
    return _renamed("Unsqueeze", before, after, (int64(*axes),), {}, draw)


@st.composite
def expand(draw: Draw) -> Case:
    """Expand in either direction."""
    shape = draw(shapes(most=4, extent=4))
    before, target = broadcast(draw, shape), broadcast(draw, shape)
    return Case("Expand", (_tensor(draw, *before), int64(*target)), {}, frozenset((1,)))


@st.composite
def shape_of(draw: Draw) -> Case:
    """Shape of all axes or of some, counted from either end."""
    shape = draw(shapes(least=1))
    start = draw(st.integers(0, len(shape) - 1))
    end = draw(st.integers(start + 1, len(shape)))
    rank = len(shape)
    attributes: dict[str, Attribute] = {"start": draw(st.sampled_from((start, start - rank)))}
    if end < rank or draw(st.booleans()):
        attributes["end"] = draw(st.sampled_from((end, end - rank) if end < rank else (end,)))
    return Case("Shape", (_tensor(draw, *shape),), attributes, loose=None, several_ranges=frozenset())


@st.composite
def range_(draw: Draw) -> Case:
    """Range in either direction."""
    start, count, step = draw(st.integers(-5, 5)), draw(st.integers(1, 6)), draw(st.sampled_from((1, 2, -1, -3)))
    operands = tuple(np.array(value, np.int64) for value in (start, start + count * step, step))
    return Case("Range", operands, {}, frozenset(range(3)), several_ranges=frozenset())


@st.composite
def constant_of_shape(draw: Draw) -> Case:
    """ConstantOfShape with its own value."""
    return Case("ConstantOfShape", (int64(*draw(shapes(least=1))),), {}, frozenset((0,)), several_ranges=frozenset())


@st.composite
def resize(draw: Draw) -> Case:
    """Resize by whole factors and others, nearest in any rank, linear in images, by scales or sizes."""
    mode = draw(st.sampled_from(("nearest", "linear", "linear", "cubic")))
    shape = draw(shapes(least=4, most=4, extent=4) if mode != "nearest" else shapes(least=1, most=4, extent=4))
    free = range(2, 4) if mode != "nearest" else range(len(shape))
    scales = [draw(st.sampled_from((1.0, 2.0, 2.0, 3.0, 1.5, 2.1))) if axis in free else 1.0 for axis in range(len(shape))]
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"))),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")))
    blocks = _maps_by_blocks(attributes)
    assume(1.0 in scales or (blocks and set(scales) & {2.0, 3.0}))
    sizes = int64(*(int(extent * scale) for extent, scale in zip(shape, scales, strict=True)))
    operands = (np.array(scales, np.float32),) if draw(st.booleans()) else (None, sizes)
    x = whole_numbers(random_of(draw), *shape)
    # A factor of 3 gives every third neighbour no weight; an axis that stays whole may skip elements.
    loose = frozenset((0, a) for a, scale in enumerate(scales) if scale not in ((1.0, 2.0) if blocks else (1.0,)))
    several = frozenset(a for a, scale in enumerate(scales) if scale == 1.0)
    opset = draw(st.sampled_from((13, 18)))
    return Case("Resize", (x, None, *operands), attributes, frozenset(range(1, 4)), opset, mode == "nearest", loose, several)


def _maps_by_blocks(attributes: dict[str, Attribute]) -> bool:
    centred = attributes["coordinate_transformation_mode"] in ("half_pixel", "pytorch_half_pixel")
    if attributes["mode"] == "nearest":
        nearest, floor = str(attributes["nearest_mode"]), attributes["coordinate_transformation_mode"] == "asymmetric"
        return (centred and nearest.startswith("round")) or (floor and nearest == "floor")
    return centred and attributes["mode"] == "linear"


OTHERS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    **{op: partial(_reduction, op) for op in KINDS},
    **{op: partial(_along_axis, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Flatten": flatten,
    "Gemm": gemm,
    "MatMul": matmul,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "Shape": shape_of,
    "Slice": lambda: slices() | told_slices(),
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
