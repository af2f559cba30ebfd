"""A piece of a reshape is the same for several shapes of the model's inputs, wherever ONNX can say that; and it makes the right shape."""

import numpy as np
import pytest

from bbgrap.graph import Graph, Node, TensorType
from bbgrap.graph.types import DType
from bbgrap.graph.weights import make_weight
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl.rule import ConstantOperand, describe, localize
from tests.bbgrap.tdl.verifier import Case, run_local, take


def piece_of(before, after, free, region=None):
    """The target of the piece that makes a region; `free` are the axes of the input and of the output whose sizes differ between shapes."""
    target = make_weight("target", np.array(after, np.int64))
    types = {"x": TensorType(DType.FLOAT, before), "y": TensorType(DType.FLOAT, after), "target": target.type}
    moving = dict(zip("xy", map(frozenset, free), strict=True))
    node = Node("n", "Reshape", ("x", "target"), ("y",))
    graph = Graph("g", (node,), ("x",), ("y",), {"target": target}, types, {"": 17}, moving=moving)
    region = ShapeMap.full(after) if region is None else region
    local = localize(graph, node, describe(graph, node), region)
    (step,) = local.nodes
    read = np.zeros(local.reads[0].shape, np.float32)
    told = [read.shape[axis] if size == 0 else size for axis, size in enumerate(step.operands[1].array)]
    assert read.reshape(told).shape == region.shape
    return tuple(step.operands[1].array)


@pytest.mark.parametrize(
    ("shapes", "free", "target"),
    [
        # Lines and columns become one axis.
        ([((3, 8, 2), (24, 2)), ((3, 9, 2), (27, 2)), ((5, 8, 2), (40, 2))], ({0, 1}, {0}), (-1, 2)),
        # That nobody knows that channels are fixed changes nothing.
        ([((3, 8, 2), (24, 2)), ((5, 9, 2), (45, 2))], ({0, 1, 2}, {0, 1}), (-1, 2)),
        # And one axis becomes lines and columns: the number of lines is told.
        ([((24, 2), (3, 8, 2)), ((27, 2), (3, 9, 2))], ({0}, {0, 1}), (3, -1, 2)),
        # Heads are joined: both free sizes are those of the input.
        ([((3, 8, 4, 5), (3, 8, 20)), ((5, 9, 4, 5), (5, 9, 20))], ({0, 1}, {0, 1}), (0, 0, 20)),
        # An axis of one is put in between.
        ([((3, 8, 2), (3, 1, 8, 2)), ((5, 9, 2), (5, 1, 9, 2))], ({0, 1}, {0, 2}), (0, 1, -1, 2)),
    ],
)
def test_pieces_for_several_shapes_are_the_same(shapes, free, target):
    assert {piece_of(before, after, free) for before, after in shapes} == {target}


def test_pieces_of_halves_are_the_same():
    halves = {
        columns: ShapeMap((IntervalSet.of(*((line * columns, line * columns + columns // 2) for line in range(3))), IntervalSet.full(2)))
        for columns in (8, 12)
    }
    made = {piece_of((3, columns, 2), (3 * columns, 2), ({0, 1}, {0}), half) for columns, half in halves.items()}
    assert made == {(-1, 2)}


def test_sizes_that_are_the_same_for_all_shapes_are_told():
    assert piece_of((3, 8, 2), (24, 2), ((), ())) == (24, 2)


def rows_of_heads(words, total, order):
    """A reshape that joins sequences and heads, or parts them again, in a decoder: words and all words are at other places behind it."""
    shapes = [(1, 4, words, total), (4, words, total)][::order]
    axes = [frozenset({2, 3}), frozenset({1, 2})][::order]
    before, after = (TensorType(DType.FLOAT, shape) for shape in shapes)
    sizes = TensorType(DType.INT64, (len(shapes[1]),))
    node = Node("n", "Reshape", ("x", "sizes"), ("y",))
    types, moving = {"x": before, "y": after, "sizes": sizes}, {"x": axes[0], "y": axes[1]}
    return Graph("g", (node,), ("x", "sizes"), ("y",), {}, types, {"": 17}, moving=moving, state={"x": "y"})


@pytest.mark.parametrize("order", [1, -1])
def test_a_piece_in_a_model_with_state_tells_no_size_that_moves(order):
    """Nor does it where a request has one word only, so that an axis is as one that is none."""
    written = set()
    for words, total in ((1, 65), (2, 67), (5, 9)):
        graph = rows_of_heads(words, total, order)
        (node,) = graph.nodes
        before, after = (graph.types[name].known_shape for name in "xy")
        x, region = np.arange(4.0 * words * total).reshape(before), ShapeMap.full(after).replace(order == -1, IntervalSet.of((2, 4)))
        local = localize(graph, node, describe(graph, node), region)
        (made,) = run_local(Case("Reshape", (x, np.array(after))), local)
        np.testing.assert_array_equal(made, take(x.reshape(after), region))
        constants = [operand.array.tolist() for step in local.nodes for operand in step.operands if isinstance(operand, ConstantOperand)]
        written.add(str([(step.op, constants) for step in local.nodes]))
    assert len(written) == 1
