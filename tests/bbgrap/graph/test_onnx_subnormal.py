"""Subnormal weights: gone where they are factors of products, kept elsewhere; answers keep their bits."""

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from bbgrap.engine.load import load_graph
from bbgrap.engine.reload import ReloadedModel
from bbgrap.engine.standby import standby_of
from bbgrap.graph.onnx_io import read_model
from bbgrap.graph.onnx_whole import whole_model
from tests.onnx_models import model_of

TINY = np.float32(1e-40)
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def weights_with_subnormals(random, *shape):
    """Normal numbers, a third of them subnormal, and the smallest that is not."""
    array = random.standard_normal(shape).astype(np.float32)
    array[random.random(shape) < 1 / 3] = -TINY
    array.reshape(-1)[0] = SMALLEST_NORMAL
    return array


def saved(path, nodes, weights, outputs=("y",), batch="n"):
    path.write_bytes(model_of(nodes, {"x": [batch, 16, 9, 9]}, dict.fromkeys(outputs), weights).SerializeToString())
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A convolution with a sum behind it, and another convolution: weights of all three have subnormal numbers."""
    random = np.random.default_rng(0)
    weights = {"a": weights_with_subnormals(random, 300, 16, 3, 3), "b": weights_with_subnormals(random, 1, 300, 1, 1)}
    weights["c"] = weights_with_subnormals(random, 8, 300, 1, 1)
    conv = helper.make_node("Conv", ["x", "a"], ["u"], pads=[1, 1, 1, 1])
    nodes = [conv, helper.make_node("Add", ["u", "b"], ["v"]), helper.make_node("Relu", ["v"], ["w"])]
    return saved(tmp_path_factory.mktemp("network") / "m.onnx", [*nodes, helper.make_node("Conv", ["w", "c"], ["y"])], weights), weights


def subnormals(array):
    return np.count_nonzero((np.abs(array) < SMALLEST_NORMAL) & (array != 0))


def test_no_way_to_load_a_model_leaves_subnormal_factors(network):
    path, weights = network
    shapes = {"x": (2, 16, 9, 9)}
    reloaded = ReloadedModel(path)
    standby = [array for array in standby_of(path).artifacts.weights.values() if array.dtype == np.float32]
    assert sum(array.size for array in standby) == sum(array.size for array in weights.values())
    graphs = (load_graph(path, shapes), reloaded.graph(path, shapes), reloaded.graph(path, {"x": (3, 16, 9, 9)}))
    for arrays in (standby, *([weight.array for weight in graph.weights.values()] for graph in graphs)):
        assert sum(map(subnormals, arrays)) == 0
        assert sum(np.count_nonzero(np.abs(array) == SMALLEST_NORMAL) for array in arrays) == len(weights)


def test_what_folding_makes_subnormal_is_gone_too(tmp_path):
    """A channel that training has given up by the scale of its normalisation."""
    weights = {"a": np.ones((32, 16, 3, 3), np.float32), "mean": np.zeros(32, np.float32), "variance": np.ones(32, np.float32)}
    weights |= {"scale": np.full(32, 1e-38, np.float32), "bias": np.ones(32, np.float32)}
    weights["scale"][1:] = 1
    weights["a"][0] = 0.01
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["u"]),
        helper.make_node("BatchNormalization", ["u", *list(weights)[3:], *list(weights)[1:3]], ["y"]),
    ]
    graph = load_graph(saved(tmp_path / "m.onnx", nodes, weights), {"x": (1, 16, 9, 9)})
    (folded,) = (weight.array for weight in graph.weights.values() if weight.array.ndim == 4)
    assert not folded[0].any()
    assert np.count_nonzero(folded) == folded[1:].size


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from((1e-20, 1.0, 1e20)))
def test_answers_keep_their_bits(network, seed, scale):
    path, _ = network
    x = (scale * np.random.default_rng(seed).standard_normal((1, 16, 9, 9))).astype(np.float32)
    (want,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    data, arrays = whole_model(read_model(path))
    options = ort.SessionOptions()
    options.add_external_initializers(list(arrays), [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()])
    (got,) = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(got, want)


KEPT = {
    "also added to what no product made": [helper.make_node("Add", ["x", "b"], ["y"]), helper.make_node("Conv", ["x", "b"], ["z"])],
    "a divisor": [helper.make_node("Div", ["x", "b"], ["y"]), helper.make_node("Identity", ["y"], ["z"])],
    "an output": [helper.make_node("Conv", ["x", "b"], ["y"]), helper.make_node("Identity", ["b"], ["z"])],
}


@pytest.mark.parametrize("case", KEPT)
def test_what_something_else_reads_stays_as_it_is(tmp_path, case):
    shape = (16, 16, 9, 9) if case != "a divisor" else (1, 16, 9, 9)
    weight = weights_with_subnormals(np.random.default_rng(1), *shape)
    path = saved(tmp_path / "m.onnx", KEPT[case], {"b": weight}, ("y", "z"), 16)
    _, arrays = whole_model(read_model(path))
    np.testing.assert_array_equal(arrays["b"], weight)
