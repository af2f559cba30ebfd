"""One segment compiled: blocked inside and at its boundary, and what it computes is the same."""

import numpy as np
import onnx
import pytest

from bbgrap.engine.layout import SegmentCompiler, _aligned, block_size
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.onnx_layout import Boundary, Patch, split_front
from bbgrap.runtime.blocked import blocked, blocks_of, from_blocks
from bbgrap.zoo.builder import Builder
from tests.onnx_models import model_of

BLOCK = block_size() or 16
needs_blocks = pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")


def segment(builder, *outputs):
    graph = builder.graph(*outputs)
    written = write_graph(graph, weights="detached")
    return written.data, {name: graph.weights[name].array for name in written.detached}


def residual():
    """Convolution and sum with the input: what plain loading cannot fuse."""
    builder = Builder("residual", (1, 2 * BLOCK, 6, 5))
    conv = builder.conv("input", "conv", 2 * BLOCK, 3, pad=1)
    builder.act("Relu", builder.binary("Add", "input", conv, "sum"), "out")
    return segment(builder, "out")


def cropped():
    """A sum of a map's middle with a convolution of it: the crop is inside, where no assembly at the front can take it."""
    builder = Builder("cropped", (1, BLOCK, 8, 7))
    first = builder.act("Relu", builder.conv("input", "first", 2 * BLOCK, 3, pad=1), "whole")
    bounds = [builder.weight(name, np.array(values)) for name, values in (("low", [1, 1]), ("high", [7, 6]), ("axes", [2, 3]))]
    middle = builder.node("Slice", "middle", [first, *bounds], (1, 2 * BLOCK, 6, 5))
    second = builder.conv(first, "second", 2 * BLOCK, 3, pad=0)
    builder.act("Relu", builder.binary("Add", middle, second, "sum"), "out")
    return segment(builder, "out")


def compiler_of(data, weights):
    return SegmentCompiler("segment", data, weights, BLOCK)


def test_the_block_is_a_power_of_two():
    assert block_size() in {None, 4, 8, 16, 32}


@needs_blocks
def test_inputs_and_outputs_are_blocked_in_memory():
    data, weights = residual()
    x = np.random.default_rng(0).standard_normal((1, 2 * BLOCK, 6, 5)).astype(np.float32)
    (want,) = make_session(data, weights=weights, threads=1).run(None, {"input": x})
    compiler = compiler_of(data, weights)
    offer = compiler.boundary(compiler.candidates)
    assert offer == Boundary(frozenset({"input"}), frozenset({"out"}))
    assert compiler.boundary(frozenset()).outputs == set(), "a sum with a plain map is plain"
    for boundary in (offer, Boundary(offer.inputs, frozenset()), Boundary(frozenset(), frozenset())):
        session = compiler.build(boundary, threads=1)
        (got,) = session.run(None, {"input": blocked(x, BLOCK) if boundary.inputs else x})
        got = from_blocks(blocks_of(got, BLOCK)) if boundary.outputs else got
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert session.get_inputs()[0].shape == [1, 2 * BLOCK, 6, 5]


def test_a_product_of_a_flattened_map_has_nothing_to_do_with_blocks():
    builder = Builder("head", (1, 2 * BLOCK, 3, 3))
    builder.dense(builder.flatten("input", "row"), "out", 8)
    compiler = compiler_of(*segment(builder, "out"))
    assert compiler.hopeless
    assert not compiler.candidates


@needs_blocks
def test_a_crop_inside_is_the_same_crop_whether_the_map_before_it_is_blocked_or_not():
    data, weights = cropped()
    x = np.random.default_rng(0).standard_normal((1, BLOCK, 8, 7)).astype(np.float32)
    (want,) = make_session(data, weights=weights, threads=1).run(None, {"input": x})
    compiler = compiler_of(data, weights)
    offer = compiler.boundary(compiler.candidates)
    assert offer.inputs == {"input"}
    (got,) = compiler.build(offer, threads=1).run(None, {"input": blocked(x, BLOCK)})
    got = from_blocks(blocks_of(got, BLOCK)) if offer.outputs else got
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    (got,) = compiler.build(Boundary(frozenset(), frozenset()), threads=1).run(None, {"input": x})
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@needs_blocks
def test_an_output_that_is_read_inside_too_is_blocked_outside_only():
    builder = Builder("both", (1, BLOCK, 4, 4))
    conv = builder.act("Relu", builder.conv("input", "conv", BLOCK, 3, pad=1), "map")
    builder.flatten(conv, "flat")
    data, weights = segment(builder, "map", "flat")
    x = np.random.default_rng(0).standard_normal((1, BLOCK, 4, 4)).astype(np.float32)
    want = make_session(data, weights=weights, threads=1).run(None, {"input": x})
    compiler = compiler_of(data, weights)
    offer = compiler.boundary(compiler.candidates)
    assert offer.outputs == {"map"}
    got = compiler.build(offer, threads=1).run(None, {"input": blocked(x, BLOCK)})
    assert np.array_equal(from_blocks(blocks_of(got[0], BLOCK)), want[0])
    assert np.array_equal(got[1], want[1])


@needs_blocks
def test_what_wants_plain_maps_is_offered_nothing():
    builder = Builder("plain", (1, BLOCK, 4, 4))
    data, weights = segment(builder, builder.flatten("input", "flat"))
    compiler = compiler_of(data, weights)
    assert compiler.boundary(compiler.candidates) == Boundary(frozenset(), frozenset())
    with pytest.raises(ModelError, match="cannot be blocked"):
        compiler.build(Boundary(frozenset(), frozenset({"flat"})), threads=1)
    with pytest.raises(ModelError, match="no whole blocks"):
        compiler.boundary(frozenset({"other"}))
    odd, weights = segment(Builder("odd", (1, 3, 4, 4)), "input")[0], {}
    with pytest.raises(ModelError, match="returns one of its inputs"):
        compiler_of(odd, weights)


def front_model(nodes, outputs, shapes=((1, 8, 4, 4), (1, 8, 1, 4))):
    values = {"starts": [0, 1], "ends": [3, 2**40], "axes": [2, 3], "steps": [1, 1], "strides": [2, 1]}
    return model_of(nodes, dict(zip(("own", "halo"), shapes, strict=True)), dict.fromkeys(outputs), values).SerializeToString()


CONCAT = onnx.helper.make_node("Concat", ["own", "halo"], ["both"], axis=-2)


def crop(source, result, steps="steps"):
    return onnx.helper.make_node("Slice", [source, "starts", "ends", "axes", steps], [result])


def relu(source, result="y"):
    return onnx.helper.make_node("Relu", [source], [result])


def test_assemblies_at_the_front_become_patches():
    front = split_front(front_model([CONCAT, crop("both", "part"), relu("part")], ["y"]))
    assert front.inputs == ("part",)
    assert front.joined == {"part": (Patch("own", (0, 0, 0, 1), (0, 0, 0, 0), (1, 8, 3, 3)),)}
    assert front.maps["part"] == (1, 8, 3, 3)
    front = split_front(front_model([CONCAT, relu("both"), relu("own", "z")], ["y", "z"]))
    assert front.inputs == ("own", "both")
    halo = Patch("halo", (0, 0, 0, 0), (0, 0, 4, 0), (1, 8, 1, 4))
    assert front.joined == {"both": (Patch("own", (0, 0, 0, 0), (0, 0, 0, 0), (1, 8, 4, 4)), halo)}


def test_what_is_no_assembly_of_inputs_or_is_a_result_stays():
    front = split_front(front_model([CONCAT, relu("both"), crop("y", "z")], ["z"]))
    assert [node.op_type for node in onnx.load_from_string(front.data).graph.node] == ["Relu", "Slice"]
    for nodes, outputs in (([CONCAT], ["both"]), ([crop("own", "c", "strides"), relu("c")], ["y"])):
        front = split_front(front_model(nodes, outputs))
        assert not front.joined
        assert len(onnx.load_from_string(front.data).graph.node) == len(nodes)
    body = onnx.helper.make_graph([], "body", [], [onnx.helper.make_tensor_value_info("own", 1, None)])
    condition = onnx.helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True)))
    branch = onnx.helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body)
    with pytest.raises(ModelError, match="control flow"):
        split_front(front_model([condition, branch], ["y"]))


def test_what_quantizes_is_not_compiled():
    """A last bit that another kernel leaves otherwise may be a step of the quantization."""
    ends = [onnx.helper.make_node(op, ["y"], [op]) for op in ("ReduceMin", "ReduceMax")]
    for last in ([onnx.helper.make_node("DynamicQuantizeLinear", ["y"], ["q", "scale", "zero"])], ends):
        with pytest.raises(ModelError, match="it quantizes"):
            split_front(front_model([CONCAT, relu("both"), *last], ["y"]))
    split_front(front_model([CONCAT, relu("both"), ends[1]], ["y"]))


def test_equal_weights_are_one_array_and_others_are_not():
    weight = np.arange(4000, dtype=np.float32).reshape(40, 100)
    kept = _aligned(weight)
    np.testing.assert_array_equal(kept, weight)
    assert _aligned(weight.copy()) is kept
    for place in range(0, weight.size, 7):
        other = weight.copy()
        other.flat[place] -= 0.5
        found = _aligned(other)
        assert found is not kept
        np.testing.assert_array_equal(found, other)
    assert _aligned(weight.reshape(100, 40)).shape == (100, 40)
    scalar = _aligned(np.array(2, np.float32))
    assert (scalar.shape, float(scalar)) == ((), 2.0)
    assert _aligned(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert np.signbit(_aligned(np.array([-0.0], np.float32))) != np.signbit(_aligned(np.array([0.0], np.float32)))
