"""A model loaded for one shape after the other is, for each, what loading its file for that shape alone makes."""

import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bbgrap.engine import reload
from bbgrap.engine.load import folded, load_graph
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import BbgrapError
from bbgrap.zoo import build
from tests.examples import examples
from tests.free_models import other_shapes, save_free
from tests.onnx_models import write_model
from tests.partition import assert_close, plain_outputs
from tests.random_models import networks, random_feeds


def assert_alike(again, fresh):
    """The same interface, and with the same inputs the same outputs."""
    assert (again.inputs, again.outputs) == (fresh.inputs, fresh.outputs)
    for name in (*fresh.inputs, *fresh.outputs):
        assert again.types[name] == fresh.types[name]
    feeds = random_feeds(fresh)
    for name, got, want in zip(fresh.outputs, plain_outputs(again, feeds), plain_outputs(fresh, feeds), strict=True):
        assert_close(got, want, name)


@settings(max_examples=examples(25))
@given(networks(), st.data())
def test_another_shape_is_what_its_file_makes(graph, data):
    with tempfile.TemporaryDirectory() as folder:
        path = save_free(graph, Path(folder) / "m.onnx")
        model = ReloadedModel(path)
        model.graph(path, {name: graph.types[name].known_shape for name in graph.inputs})
        for shapes in data.draw(st.lists(other_shapes(graph), min_size=1, max_size=2)):
            try:
                fresh = load_graph(path, shapes)
            except BbgrapError:  # too small for a window
                with pytest.raises(BbgrapError):
                    model.graph(path, shapes)
                continue
            assert_alike(model.graph(path, shapes), fresh)


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2", "tiny_int8"])
def test_networks_of_the_zoo_are_loaded_again_to_the_node(name, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = save_free(build(name), tmp_path / "m.onnx")
    model = ReloadedModel(path)
    model.graph(path, {"input": (1, 3, 64, 64)})
    for shape in ((1, 3, 96, 80), (2, 3, 64, 64), (1, 3, 64, 64)):
        again, fresh = model.graph(path, {"input": shape}), load_graph(path, {"input": shape})
        assert again.nodes == fresh.nodes
        assert again.types == fresh.types
        assert {n: w.digest for n, w in again.weights.items()} == {n: w.digest for n, w in fresh.weights.items()}
    assert "from its file" not in caplog.text


def test_weights_are_read_once(tmp_path):
    path = save_free(build("tiny"), tmp_path / "m.onnx")
    model = ReloadedModel(path)
    first, second, third = (model.graph(path, {"input": (1, 3, side, side)}) for side in (32, 64, 48))
    large = [name for name, weight in first.weights.items() if weight.type.nbytes > 1024]
    assert large
    assert all(second.weights[name] is third.weights[name] for name in large)


def test_further_shapes_have_the_nodes_of_the_first(path):
    """Told the sizes from the beginning, onnxruntime gives other names to the transpositions that it moves."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["turned", "none", "one", "none"], ["first"]),
        helper.make_node("Squeeze", ["first", "none"], ["y"]),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Reshape", ["x", "sizes"], ["same"]),
        helper.make_node("Transpose", ["same"], ["again"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["again", "none", "one", "none"], ["other"]),
        helper.make_node("Relu", ["other"], ["positive"]),
        helper.make_node("Transpose", ["positive"], ["z"], perm=[1, 0, 2]),
    ]
    weights = {"none": np.array([0]), "one": np.array([1])}
    save(path, nodes, {"x": (FLOAT, ["n", "m", 4])}, {"y": (FLOAT, None), "z": (FLOAT, None)}, weights)
    model = ReloadedModel(path)
    graphs = [model.graph(path, {"x": shape}) for shape in ((2, 3, 4), (2, 3, 4), (5, 3, 4), (2, 7, 4))]
    assert len({tuple(node.name for node in graph.nodes) for graph in graphs}) == 1
    assert_alike(graphs[0], load_graph(path, {"x": (2, 3, 4)}))


def test_a_model_is_folded_once(tmp_path, monkeypatch):
    model = ReloadedModel(save_free(build("tiny"), tmp_path / "m.onnx"))
    calls = []
    monkeypatch.setattr(reload, "folded", lambda *given: calls.append(1) or folded(*given))
    for side in (32, 64, 32):
        model.graph(tmp_path / "m.onnx", {"input": (1, 3, side, side)})
    assert len(calls) == 1


def save(path, nodes, inputs, outputs, weights=()):
    kinds = {name: kind for name, (kind, _) in (inputs | outputs).items()}
    given, made = ({name: shape for name, (_, shape) in side.items()} for side in (inputs, outputs))
    return write_model(path, nodes, given, made, dict(weights), kinds=kinds)


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.onnx"


def test_what_follows_of_sizes_is_computed_for_each(path):
    """`Shape` and what is made of it, sizes of zero and of one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"], value=numpy_helper.from_array(np.array([2], np.float32))),
        helper.make_node("Gather", ["sizes", "first"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["count"], to=FLOAT),
        helper.make_node("Mul", ["zeros", "count"], ["scaled"]),
        helper.make_node("Add", ["x", "scaled"], ["y"]),
    ]
    save(path, nodes, {"x": (FLOAT, ["n", "m"])}, {"y": (FLOAT, ["n", "m"])}, {"first": np.array(0, np.int64)})
    model = ReloadedModel(path)
    for shape in ((3, 4), (1, 1), (5, 4), (0, 4), (3, 4)):
        assert_alike(model.graph(path, {"x": shape}), load_graph(path, {"x": shape}))


def test_sizes_that_depend_on_values_stay_unknown_and_move(path):
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Transpose", ["places"], ["y"])]
    save(path, nodes, {"x": (FLOAT, ["n", "m"])}, {"y": (INT64, ["k", 2])})
    model = ReloadedModel(path)
    for shape in ((3, 4), (2, 5)):
        graph = model.graph(path, {"x": shape})
        assert graph.types["y"].shape == load_graph(path, {"x": shape}).types["y"].shape
        assert graph.moving["x"] == {0, 1}


def test_control_flow_is_loaded_from_its_file(path):
    def branch(op):
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}y"])], op, [], [helper.make_tensor_value_info(f"{op}y", FLOAT, None)])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    save(path, nodes, {"x": (FLOAT, ["n", "m"])}, {"y": (FLOAT, ["n", "m"])}, {"zero": np.array(0, np.float32)})
    model = ReloadedModel(path)
    for shape in ((3, 4), (2, 5), (1, 1)):
        assert_alike(model.graph(path, {"x": shape}), load_graph(path, {"x": shape}))


def test_branches_that_read_float16_are_loaded_so_that_they_run(path):
    """onnxruntime adds a cast inside that is called like one outside, which it refuses; it does so only once sizes are told."""
    half = TensorProto.FLOAT16

    def branch(op):
        return helper.make_graph([helper.make_node(op, ["a"], [f"{op}y"])], op, [], [helper.make_tensor_value_info(f"{op}y", half, None)])

    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("Flatten", ["h"], ["a"]),
        helper.make_node("ReduceMax", ["a"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "one"], ["large"]),
        helper.make_node("If", ["large"], ["b"], then_branch=branch("Relu"), else_branch=branch("Neg")),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    save(path, nodes, {"x": (FLOAT, ["n", 1, 7])}, {"y": (half, None)}, {"one": np.array(1, np.float16)})
    model = ReloadedModel(path)
    for images in (1, 3):
        assert_alike(model.graph(path, {"x": (images, 1, 7)}), load_graph(path, {"x": (images, 1, 7)}))


def test_a_model_without_free_inputs_is_read_each_time(path):
    save(path, [helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})
    model = ReloadedModel(path)
    for shape in ((2, 3), (4, 3)):
        try:
            fresh = load_graph(path, {"x": shape})
        except BbgrapError:
            with pytest.raises(BbgrapError):
                model.graph(path, {"x": shape})
            continue
        assert_alike(model.graph(path, {"x": shape}), fresh)
        assert not fresh.moving


@pytest.mark.parametrize("name", ["tiny", "tiny_int8"])
def test_moving_axes_are_those_that_differ(name, path):
    save_free(build(name), path)
    model = ReloadedModel(path)
    one, other = (model.graph(path, {"input": (1, 3, side, side)}) for side in (32, 64))
    assert one.moving == other.moving
    for name, kind in one.types.items():
        if name not in one.weights:
            differ = {axis for axis, (a, b) in enumerate(zip(kind.known_shape, other.types[name].known_shape, strict=True)) if a != b}
            assert differ <= one.moving.get(name, frozenset()), name
    assert one.moving["input"] == {0, 2, 3}
    assert one.moving["output"] == {0}


def test_sizes_below_zero_are_not_believed(path):
    """onnx infers them where a window is larger than what it reads; onnxruntime refuses to run that, and says so."""
    save(path, [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])], {"x": (FLOAT, ["n", 1, "h", "w"])}, {"y": (FLOAT, None)})
    model = ReloadedModel(path)
    assert model.graph(path, {"x": (1, 1, 4, 4)}).types["y"].shape == (1, 1, 2, 2)
    assert model.graph(path, {"x": (1, 1, 4, 1)}).types["y"].shape is None
    assert load_graph(path, {"x": (1, 1, 4, 1)}).types["y"].shape is None


def test_a_weight_that_is_given_this_time_is_an_input(tmp_path):
    nodes = [helper.make_node("Add", ["a", "w"], ["y"])]
    path = write_model(tmp_path / "given.onnx", nodes, {"a": ["n", 3], "w": [3]}, {"y": ["n", 3]}, {"w": np.ones(3, np.float32)})
    model = ReloadedModel(path)
    for shapes in ({"a": (2, 3)}, {"a": (4, 3), "w": (3,)}, {"a": (5, 3)}):
        graph = model.graph(path, shapes)
        assert set(graph.inputs) == set(shapes)
        assert {name: graph.types[name].shape for name in shapes} == shapes
