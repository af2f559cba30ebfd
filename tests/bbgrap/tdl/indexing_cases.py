"""Random calls of gathers, scatters, and functions along an axis that answer with indices."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of, whole_numbers
from tests.strategies import shapes


def distinct(draw: Draw, *shape: int) -> Array:
    """Return floats of which no two are equal, in random order."""
    return random_of(draw).permutation(int(np.prod(shape, dtype=int))).reshape(shape).astype(np.float32)


def axis_of(draw: Draw, rank: int, *, least: int = 0) -> tuple[int, int]:
    """Return an axis, and the same counted from either end."""
    axis = draw(st.integers(least, rank - 1))
    return axis, axis - rank * draw(st.booleans())


@st.composite
def gather(draw: Draw) -> Case:
    """Gather of data or of a table, with indices that are data, constants, in equal steps or a single one, some negative."""
    shape = draw(shapes(least=1, most=3, extent=5))
    axis, given_axis = axis_of(draw, len(shape))
    indices = np.asarray(random_of(draw).integers(-shape[axis], shape[axis], draw(shapes(most=2, extent=4))))
    constant = draw(st.booleans())
    if constant and draw(st.booleans()):
        indices = np.full(draw(st.sampled_from(((), (1,), (1, 1)))), indices.flat[0])
    steps = draw(st.lists(st.integers(0, 2), max_size=2))
    if constant and draw(st.booleans()):
        extents = [draw(st.integers(1, 3)) for _ in steps]
        reach = sum(step * (extent - 1) for step, extent in zip(steps, extents, strict=True))
        assume(reach < shape[axis])
        first = draw(st.integers(0, shape[axis] - reach - 1))
        regular = sum((step * place for step, place in zip(steps, np.indices(extents), strict=True)), np.array(first))
        indices = np.broadcast_to(regular, extents) - shape[axis] * draw(st.booleans())
    loose = frozenset() if constant and indices.size == 1 else None
    parameters = frozenset((1,)) if constant else frozenset((0,)) if draw(st.booleans()) else frozenset[int]()
    return Case("Gather", (distinct(draw, *shape), indices), {"axis": given_axis}, parameters, loose=loose, below={1: shape[axis]})


@st.composite
def gather_elements(draw: Draw) -> Case:
    """GatherElements, with fewer indices than data along the other axes too."""
    shape = draw(shapes(least=1, most=3, extent=4))
    axis, given_axis = axis_of(draw, len(shape))
    own = tuple(draw(st.integers(1, 4 if a == axis else e)) for a, e in enumerate(shape))
    indices = random_of(draw).integers(-shape[axis], shape[axis], own)
    return Case("GatherElements", (distinct(draw, *shape), indices), {"axis": given_axis}, loose=None, below={1: shape[axis]})


@st.composite
def gather_nd(draw: Draw) -> Case:
    """GatherND with batch axes, looking up one axis or more."""
    shape = draw(shapes(least=2, most=4, extent=3))
    batch = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, len(shape) - batch))
    middle = draw(shapes(most=2, extent=3))
    if batch == 0 and not middle:
        middle = (2,)
    limit = min(shape[batch : batch + count])
    indices = random_of(draw).integers(0, limit, (*shape[:batch], *middle, count))
    return Case("GatherND", (distinct(draw, *shape), indices), {"batch_dims": batch}, loose=None, below={1: limit})


@st.composite
def scatter_elements(draw: Draw) -> Case:
    """ScatterElements, replacing or adding, with fewer updates than data."""
    shape = draw(shapes(least=2, most=3, extent=4))
    axis, given_axis = axis_of(draw, len(shape))
    own = tuple(draw(st.integers(1, e)) for e in shape)
    random = random_of(draw)
    indices = np.argsort(random.random((*own[:axis], shape[axis], *own[axis + 1 :])), axis=axis).take(range(own[axis]), axis=axis)
    attributes: dict[str, Attribute] = {"axis": given_axis, "reduction": draw(st.sampled_from(("none", "add", "max")))}
    operands = (whole_numbers(random, *shape), indices, whole_numbers(random, *own))
    return Case("ScatterElements", operands, attributes, frozenset((1,)), loose=None)


@st.composite
def scatter_nd(draw: Draw) -> Case:
    """ScatterND of whole rows or single elements."""
    shape = draw(shapes(least=2, most=4, extent=3))
    count = draw(st.integers(1, len(shape) - 1))
    places = np.argwhere(np.ones(shape[:count]))
    random = random_of(draw)
    chosen = places[random.permutation(len(places))[: draw(st.integers(1, len(places)))]]
    updates = whole_numbers(random, len(chosen), *shape[count:])
    return Case("ScatterND", (whole_numbers(random, *shape), chosen, updates), {}, frozenset((1,)), loose=None)


@st.composite
def tensor_scatter(draw: Draw) -> Case:
    """TensorScatter into a cache, from the given places on or the start, round about or not."""
    batch, length, size = draw(st.tuples(*[st.integers(1, 4)] * 3))
    heads = draw(st.sampled_from(((), (2,))))
    new = draw(st.integers(1, length))
    random, mode = random_of(draw), draw(st.sampled_from(("linear", "circular")))
    most = length if mode == "circular" else length - new + 1
    operands = (whole_numbers(random, batch, *heads, length, size), whole_numbers(random, batch, *heads, new, size))
    places = (random.integers(0, most, batch),) if draw(st.booleans()) else ()
    attributes: dict[str, Attribute] = {"mode": mode}
    if draw(st.booleans()):
        attributes["axis"] = 1 + len(heads)
    return Case("TensorScatter", (*operands, *places), attributes, opset=24, loose=None, below={2: most})


@st.composite
def one_hot(draw: Draw) -> Case:
    """OneHot along any axis."""
    shape, depth = draw(shapes(least=1, most=3, extent=4)), draw(st.integers(1, 4))
    indices = random_of(draw).integers(-depth, depth, shape)
    values = np.array([2, 5], np.float32)
    axis = draw(st.integers(-1, len(shape)))
    parameters = frozenset((1,)) if draw(st.booleans()) else frozenset((1, 2))
    return Case("OneHot", (indices, np.array(depth), values), {"axis": axis}, parameters, loose=None, below={0: depth})


@st.composite
def _arg(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=1, most=4, extent=4))
    _, axis = axis_of(draw, len(shape))
    attributes: dict[str, Attribute] = {"axis": axis, "keepdims": draw(st.integers(0, 1)), "select_last_index": draw(st.integers(0, 1))}
    return Case(op, (distinct(draw, *shape),), attributes, loose=None)


@st.composite
def top_k(draw: Draw) -> Case:
    """TopK along an axis, of either end, with ties: the values, and their places."""
    shape = draw(shapes(least=2, most=4, extent=5))
    axis, given_axis = axis_of(draw, len(shape))
    attributes: dict[str, Attribute] = {"axis": given_axis, "largest": draw(st.integers(0, 1))}
    operands = (whole_numbers(random_of(draw), *shape), np.array([draw(st.integers(1, shape[axis]))]))
    return Case("TopK", operands, attributes, frozenset((1,)), loose=None, further=(1,))


@st.composite
def _cumulative(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=2, most=3, extent=4))
    _, axis = axis_of(draw, len(shape))
    attributes: dict[str, Attribute] = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    x = whole_numbers(random_of(draw), *shape, low=1, high=4)
    return Case(op, (x, np.array(axis)), attributes, frozenset((1,)), 26 if op == "CumProd" else 14, loose=None)


@st.composite
def reverse_sequence(draw: Draw) -> Case:
    """ReverseSequence, time first or batch first."""
    shape = draw(shapes(least=2, most=3, extent=4))
    batch = draw(st.integers(0, 1))
    lengths = random_of(draw).integers(1, shape[1 - batch] + 1, shape[batch])
    attributes: dict[str, Attribute] = {"batch_axis": batch, "time_axis": 1 - batch}
    return Case("ReverseSequence", (distinct(draw, *shape), lengths), attributes, loose=None, below={1: shape[1 - batch]})


INDEXING: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "TopK": top_k,
    **{op: partial(_arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: partial(_cumulative, op) for op in ("CumSum", "CumProd")},
}
