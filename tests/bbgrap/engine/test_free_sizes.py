"""Sizes that are the same for all shapes of a model's inputs, where onnx knows nothing of its operators."""

import numpy as np
import pytest
from onnx import helper

from bbgrap.cluster import Cluster
from bbgrap.engine.free_sizes import sizes_of_free
from bbgrap.engine.load import load_graph
from bbgrap.graph.onnx_io import read_model, save_graph
from bbgrap.graph.state import with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.llama import free_axes, llama
from tests.bbgrap.graph.test_onnx_head_sizes import GROUPS, HEADS, layer, read
from tests.onnx_models import write_model

SIZES = DecoderSizes(2, 256, 8, 4, 2000, 128)


@pytest.fixture(params=[32, 4])
def path(request, tmp_path):
    graph = llama("llama", SIZES, bits=request.param)
    save_graph(graph, found := tmp_path / "m.onnx", free=free_axes(graph))
    return found


def test_features_behind_operators_of_onnxruntime_do_not_move(path):
    model = read_model(path)
    sizes = sizes_of_free(model)
    made = {node.op_type: sizes[node.output[0]] for node in model.proto.graph.node if node.domain}
    assert set(made) >= {"GroupQueryAttention", "SkipSimplifiedLayerNormalization"}
    caches = {name for node in model.proto.graph.node if node.op_type == "GroupQueryAttention" for name in node.output[1:]}
    assert not sizes.keys() & caches
    assert {found[-1] for found in made.values()} <= {SIZES.width, 4 * SIZES.width, SIZES.words}
    assert {found[1] for found in made.values()} == {None}  # as many as there are words


def test_a_decoder_of_free_sizes_is_planned_by_heads_and_features(path):
    names = [item.name for item in read_model(path).inputs if item.name.startswith("past")]
    shapes = {"input_ids": (1, 1), "attention_mask": (1, 8), **dict.fromkeys(names, (1, SIZES.key_heads, 7, SIZES.head))}
    graph = with_state(load_graph(path, shapes), {name: name.replace("past_key_values", "present") for name in names})
    plan = make_plan(graph, Cluster.even(2), PlanOptions("tensor-parallel"), all_descriptions(graph))
    attentions = [plan.tiles[node.name] for node in graph.nodes if node.op == "GroupQueryAttention"]
    assert attentions
    assert all(2 * tile.region.size == graph.types[names[0]].known_shape[0] * SIZES.width for tiles in attentions for tile in tiles)


def test_parts_of_packed_queries_move_as_what_they_are_of(tmp_path):
    read(tmp_path, layer(0, 8))
    pasts = dict.fromkeys(("past_key_values.0.key", "past_key_values.0.value"), (1, GROUPS, 3, 8))
    shapes = {"packed0": (1, 2, (HEADS + 2 * GROUPS) * 8), "lengths": (1, 1), **pasts}
    graph = load_graph(tmp_path / "decoder.onnx", {**shapes, "bytes": (1,), "scales": (1,)})
    parts = [node.first_output for node in graph.nodes if node.op == "Slice"]
    assert len(parts) == 3
    assert {graph.moving[part] for part in parts} == {frozenset({0, 1})}


def test_what_an_optimiser_names_anew_moves_as_what_it_is_made_of(tmp_path):
    """onnxruntime multiplies before it transposes here, which makes a value that the file does not have."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["packed"]),
        helper.make_node("Transpose", ["packed"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Split", ["turned"], ["a", "b", "c"], axis=1, num_outputs=3),
        helper.make_node("Mul", ["a", "b"], ["ab"]),
        helper.make_node("CausalConvWithState", ["ab", "taps"], ["mixed", "last"], domain="com.microsoft"),
        helper.make_node("Mul", ["mixed", "c"], ["chosen"]),
        helper.make_node("Transpose", ["chosen"], ["y"], perm=[0, 2, 1]),
    ]
    outputs = {"y": (1, "words", 8), "last": (1, 8, 2)}
    weights = {"w": np.ones((4, 24), np.float32), "taps": np.ones((8, 1, 3), np.float32)}
    path = write_model(tmp_path / "m.onnx", nodes, {"x": (1, "words", 4)}, outputs, weights, opset=21, domains={"com.microsoft": 1})
    loaded = load_graph(path, {"x": (1, 5, 4)})
    made = [node.first_output for node in loaded.nodes]
    assert "Mul" in {loaded.producers[name].op for name in made if name not in sizes_of_free(read_model(path))}
    for name in made:
        assert loaded.moving.get(name, set()) == {axis for axis, size in enumerate(loaded.types[name].known_shape) if size == 5}, name


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_products_are_divided_whatever_onnxruntime_makes_of_them(kind, bias, tmp_path):
    """A product of rows, with its bias; and for float16, of which it has no kernels, values of floats, which the file does not have."""
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["hidden"]),
        helper.make_node("Add", ["hidden", "b"], ["moved"]) if bias else helper.make_node("Relu", ["hidden"], ["moved"]),
        helper.make_node("Gelu", ["moved"], ["active"]),
        helper.make_node("MatMul", ["active", "w"], ["y"]),
    ]
    random = np.random.default_rng(0)
    sizes = {"v": (64, 256), "b": (256,), "w": (256, 64)}
    weights = {name: random.standard_normal(shape).astype(kind) for name, shape in sizes.items() if bias or name != "b"}
    inputs, outputs = ({name: ("batch", "words", 64)} for name in "xy")
    kinds = dict.fromkeys("xy", helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    path = write_model(tmp_path / "m.onnx", nodes, inputs, outputs, weights, kinds=kinds, opset=20)
    loaded = load_graph(path, {"x": (2, 5, 64)})
    for name, axes in loaded.moving.items():
        assert axes == {axis for axis, size in enumerate(loaded.types[name].known_shape) if size in (2, 5, 10)}, name
    plan = make_plan(loaded, Cluster.even(2), PlanOptions("tensor-parallel"), all_descriptions(loaded))
    first, second = (plan.tiles[node.name] for node in loaded.nodes if node.op in ("MatMul", "Gemm"))
    assert [str(tile.region.axes[-1]) for tile in first] == ["0:128", "128:256"]
    assert [str(tile.part and tile.part.interval) for tile in second] == ["0:128", "128:256"]


def test_what_is_dequantized_once_more_moves_as_what_it_is_of(tmp_path):
    """A value of bytes that two operators read as floats is dequantized for each."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["a"]),
        helper.make_node("MatMul", ["d", "w"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    weights = {"s": np.float32(0.1), "z": np.uint8(128), "v": np.ones((8, 6), np.float32), "w": np.ones((8, 6), np.float32)}
    path = write_model(tmp_path / "m.onnx", nodes, {"x": ("batch", "words", 8)}, {"y": ("batch", "words", 6)}, weights, opset=17)
    loaded = load_graph(path, {"x": (2, 5, 8)})
    anew = [node.first_output for node in loaded.nodes if node.first_output not in sizes_of_free(read_model(path))]
    assert {loaded.producers[name].op for name in anew} == {"DequantizeLinear"}
    assert all(loaded.moving[name] == {0, 1} for name in anew)
