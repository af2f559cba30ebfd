"""The largest elements of an output: whatever the blocks, what a stable sort of all of it says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import DType, Graph, Node, TensorType, check_graph
from bbgrap.graph.onnx_io import read_model, write_graph
from bbgrap.graph.onnx_read import parse_model
from bbgrap.graph.onnx_top_k import with_top_outputs
from bbgrap.graph.top_k import blocks_for, with_top
from tests.partition import plain_outputs


def doubled(*shape, dtype=DType.FLOAT):
    """A model whose output `y` is its input, plus itself."""
    kind = TensorType(dtype, shape)
    nodes = (Node("sum", "Add", ("x", "x"), ("y",)),)
    return Graph("doubled", nodes, ("x",), ("y",), {}, {"x": kind, "y": kind}, {"": 17})


def largest(array, count):
    """Return the largest elements along the last axis and their places, of equal ones the first."""
    places = np.argsort(-array, axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(array, places, -1), places


@st.composite
def outputs(draw):
    shape = (*draw(st.lists(st.integers(1, 3), max_size=3)), draw(st.integers(1, 90)))
    dtype = draw(st.sampled_from((np.float32, np.float64, np.float16, np.int32, np.int64)))
    values = draw(st.sampled_from((2, 5, 1000)))  # few: ties are the rule
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return random.integers(-values, values, shape).astype(dtype)


@given(y=outputs(), count=st.integers(1, 100), blocks=st.integers(1, 40))
def test_blocks_give_what_a_stable_sort_gives(y, count, blocks):
    graph = with_top(doubled(*y.shape, dtype=DType.of(y.dtype)), {"y": count}, blocks)
    assert not check_graph(graph)
    assert graph.outputs == ("y.values", "y.indices")
    expected = largest(2 * y, count)
    for name, got, want in zip(graph.outputs, plain_outputs(graph, [y]), expected, strict=True):
        assert (got.dtype, got.shape) == (graph.types[name].dtype.numpy, graph.types[name].shape)
        np.testing.assert_array_equal(got, want)


@given(y=outputs(), count=st.integers(1, 100), declares=st.booleans())
def test_a_file_with_free_dimensions_gives_the_same(y, count, declares):
    graph = doubled(*y.shape, dtype=DType.of(y.dtype))
    last = y.ndim - 1
    free = {name: {axis: f"d{axis}" for axis in range(y.ndim) if axis != last or not declares} for name in "xy"}
    model = with_top_outputs(parse_model(write_graph(graph, weights="inline", free=free).data, Path(), "m"), {"y": count})
    session = make_session(model.detached()[0], threads=1)
    assert [item.name for item in model.outputs] == [item.name for item in session.get_outputs()] == ["y.values", "y.indices"]
    for got, want in zip(session.run(None, {"x": y}), largest(2 * y, count), strict=True):
        np.testing.assert_array_equal(got, want)


def test_other_outputs_stay_and_moving_axes_follow():
    graph = replace(doubled(3, 20), outputs=("x", "y", "x"), moving={"y": frozenset({0, 1})})
    made = with_top(graph, {"y": 4}, 5)
    assert made.outputs == ("x", "y.values", "y.indices", "x")
    assert made.types["y.indices"] == TensorType(DType.INT64, (3, 4))
    assert made.moving["y.values"] == made.moving["y.indices"] == frozenset({0})


@pytest.mark.parametrize(("nodes", "blocks"), [(1, 12), (2, 12), (3, 12), (5, 15), (7, 14), (8, 16), (20, 20)])
def test_equal_nodes_get_equally_many_blocks(nodes, blocks):
    assert blocks_for(nodes) == blocks


@pytest.mark.parametrize(
    ("graph", "name", "words"),
    [
        (doubled(3, 4), "z", "it is no output; the outputs are y"),
        (doubled(), "y", "with a last axis, got float of rank 0"),
        (doubled(3, 0), "y", "with elements, got float.3, 0."),
        (doubled(3, dtype=DType.BOOL), "y", "expected an output of double, float, float16, int32, int64 .* got bool"),
        (replace(doubled(3), opsets={"": 11}), "y", "expected opset 13 or newer, got 11; convert the model"),
    ],
)
def test_what_has_no_largest_elements_is_refused(graph, name, words):
    with pytest.raises(ModelError, match=f"top '{name}' of model 'doubled': .*{words}"):
        with_top(graph, {name: 2}, 3)


def test_a_name_that_is_taken_is_refused():
    taken = replace(doubled(3), nodes=(Node("sum", "Add", ("x", "x"), ("y",)), Node("other", "Neg", ("x",), ("y.values",))))
    taken = replace(taken, types={**taken.types, "y.values": taken.types["y"]})
    with pytest.raises(ModelError, match=r"a value is called 'y\.values' already; rename it"):
        with_top(taken, {"y": 1}, 1)


def test_a_file_without_that_output_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(write_graph(doubled(3), weights="inline").data)
    with pytest.raises(ModelError, match="top 'z' of model 'm': it is no output; the outputs are y"):
        with_top_outputs(read_model(tmp_path / "m.onnx"), {"z": 1})
