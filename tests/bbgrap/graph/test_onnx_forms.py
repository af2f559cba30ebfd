"""The law that compiled segments are shared by: what has one form is optimised alike, to the byte."""

import numpy as np
import pytest
from onnx import helper

from bbgrap.engine.layout import SegmentCompiler, block_size
from bbgrap.graph.onnx_layout import cut_boundary
from tests.onnx_models import model_of

BLOCK = block_size() or 16
pytestmark = pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")

node = helper.make_node
KERNEL = np.ones((BLOCK, BLOCK, 3, 3), np.float32)


def compiled(nodes, inputs, outputs, weights):
    """The key of a segment whose sizes all move, and what it is compiled to."""

    def free(shapes):
        return {name: [f"{name}{axis}" for axis in range(len(shape))] for name, shape in shapes.items()}

    data = model_of(nodes, free(inputs), free(outputs), weights).SerializeToString()
    compiler = SegmentCompiler("segment", data, {}, BLOCK, {**inputs, **outputs})
    offer = compiler.boundary(compiler.candidates)
    return compiler.key, cut_boundary(compiler._optimize(compiler.candidates), offer, BLOCK, compiler.front.moving)


def maps(*sizes):
    return (1, BLOCK, *sizes)


RESIZED = [node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]
SPREAD = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "b"], ["y"])]
SHAPED = [
    node("Relu", ["x"], ["r"]),
    node("Shape", ["x"], ["s"]),
    node("ConstantOfShape", ["s"], ["z"]),
    node("Add", ["r", "z"], ["y"]),
]


@pytest.mark.parametrize(
    ("nodes", "weights", "first", "second"),
    [
        pytest.param(
            RESIZED,
            {"sizes": np.array(maps(16, 16))},
            ({"x": maps(8, 8)}, {"y": maps(16, 16)}),
            ({"x": maps(4, 4)}, {"y": maps(16, 16)}),
            id="scales are computed from sizes",
        ),
        pytest.param(
            SHAPED,
            {},
            ({"x": maps(8, 8)}, {"y": maps(8, 8)}),
            ({"x": maps(4, 4)}, {"y": maps(4, 4)}),
            id="what is made of a shape is folded",
        ),
        pytest.param(
            SPREAD,
            {"w": KERNEL},
            ({"x": maps(3, 3), "b": maps(5, 5)}, {"y": maps(5, 5)}),
            ({"x": maps(7, 7), "b": maps(5, 5)}, {"y": maps(5, 5)}),
            id="only inside, one of them spreads",
        ),
        pytest.param(
            [node("Conv", ["x", "w"], ["c"]), node("Reshape", ["c", "long"], ["r"]), node("Reshape", ["r", "pairs"], ["y"])],
            {"w": KERNEL, "long": np.array([0, BLOCK, -1]), "pairs": np.array([0, BLOCK, 2, -1])},
            ({"x": maps(4, 6)}, {"y": maps(2, 4)}),
            ({"x": maps(8, 10)}, {"y": maps(2, 24)}),
            id="two reshapes become one with sizes",
        ),
    ],
)
def test_what_is_optimised_otherwise_has_another_form(nodes, weights, first, second):
    (key, data), (other_key, other_data) = compiled(nodes, *first, weights), compiled(nodes, *second, weights)
    assert data != other_data, "else there is nothing to tell"
    assert key != other_key


def test_a_residual_block_has_one_form_for_all_sizes():
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Slice", ["b", "start", "end", "axes"], ["crop"]),
        node("Add", ["c", "crop"], ["sum"]),
        node("Relu", ["sum"], ["y"]),
    ]
    weights = {"w": KERNEL, "start": np.array([1]), "end": np.array([(1 << 31) - 1]), "axes": np.array([2])}

    def of(rows, columns, batch=1):
        out = (batch, BLOCK, rows // 2, columns // 2)
        return compiled(nodes, {"x": (batch, BLOCK, rows, columns), "b": (batch, BLOCK, rows // 2 + 1, columns // 2)}, {"y": out}, weights)

    found = of(20, 28)
    assert of(40, 30) == found
    assert of(18, 26) == found
    assert of(20, 28, batch=2)[0] != found[0], "ones may spread"


def test_maps_whose_axes_are_renamed_have_one_form_for_all_sizes():
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Reshape", ["c", "sizes"], ["columns"]),
        node("Transpose", ["columns"], ["rows"], perm=[0, 2, 1]),
        node("Unsqueeze", ["rows", "first"], ["y"]),
    ]
    weights = {"w": KERNEL, "sizes": np.array([0, BLOCK, -1]), "first": np.array([1])}

    def of(rows, columns):
        return compiled(nodes, {"x": (2, BLOCK, rows, columns)}, {"y": (2, 1, rows * columns, BLOCK)}, weights)

    assert of(3, 28) == of(6, 40) == of(7, 9)
