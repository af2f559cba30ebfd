"""GroupNormalization written out: divided by rows, no further from 64-bit floats than onnxruntime's function; kept where bits count."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cluster import Cluster
from bbgrap.comparison.rules import FURTHER, ROUNDING
from bbgrap.engine.load import JUMPS, load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.sessions import make_session
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.graph.onnx_group_norms import with_plain_group_norms
from bbgrap.graph.onnx_io import read_model
from bbgrap.planners.options import PlanOptions
from bbgrap.program.steps import Compute
from bbgrap.tdl.rule import describe
from tests.victim import Victim

EPSILON = 1e-3


def saved(path: Path, shape, groups: int, *, more=(), dtype=TensorProto.FLOAT, given_scale=False, opset=21, entry="x") -> Path:
    """What comes behind a map, a Relu of x (x itself if there is one group), that is normalised by drawn scales and biases."""
    random = np.random.default_rng(groups)
    numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    weights = [numpy_helper.from_array(random.standard_normal(shape[1]).astype(numpy_dtype), name) for name in ("s", "b")]
    inputs = [helper.make_tensor_value_info(entry, dtype, shape)]
    if given_scale:
        inputs.append(helper.make_tensor_value_info("s", dtype, (shape[1],)))
        weights = weights[1:]
    nodes = [
        *([helper.make_node("Relu", [entry], ["map"])] if groups > 1 else []),
        helper.make_node("GroupNormalization", ["map" if groups > 1 else entry, "s", "b"], ["y"], num_groups=groups, epsilon=EPSILON),
        *more,
    ]
    output = helper.make_tensor_value_info(nodes[-1].output[0], nodes[-1].attribute[0].i if more else dtype, None)
    graph = helper.make_graph(nodes, "normal", inputs, [output], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def answer(model, x):
    data, weights = model.detached()
    return make_session(data, weights=weights, threads=1).run(None, {model.inputs[0].name: x})[0]


@given(st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_it_is_as_close_to_64_bit_floats_as_onnxruntimes_function(tmp_path_factory, batch, groups, size, spatial):
    shape = (batch, groups * size, *spatial)
    model = read_model(saved(tmp_path_factory.getbasetemp() / "normal.onnx", shape, groups))
    plain = with_plain_group_norms(model, JUMPS)
    assert ("", "GroupNormalization") not in plain.operators
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scale, bias = (numpy_helper.to_array(w).astype(np.float64).reshape(-1, *[1] * len(spatial)) for w in model.proto.graph.initializer)
    parts = (np.maximum(x, 0) if groups > 1 else x).astype(np.float64).reshape(batch, groups, -1)
    off = parts - parts.mean(-1, keepdims=True)
    exact = (off / np.sqrt((off**2).mean(-1, keepdims=True) + np.float32(EPSILON))).reshape(shape) * scale + bias
    mine, theirs = (np.abs(answer(one, x) - exact).max() for one in (plain, model))
    assert mine <= max(FURTHER * theirs, ROUNDING[4] * np.finfo(np.float32).eps * np.abs(exact).max())


@pytest.mark.parametrize("batch", [1, "n"])
def test_a_model_that_has_one_is_divided_by_rows(tmp_path, batch):
    path, x = saved(tmp_path / "m.onnx", (batch, 8, 32, 16), 4), np.random.default_rng(0).standard_normal((1, 8, 32, 16)).astype(np.float32)
    graph = load_graph(path, {"x": x.shape})
    assert "InstanceNormalization" in {node.op for node in graph.nodes}
    assert all(describe(graph, node) is not None for node in graph.nodes)
    program = plan_graph(graph, Cluster.even(2), PlanOptions("bbgrap", "rows")).compiled.optimized
    assert all(any(isinstance(step, Compute) for step in device.steps) for device in program.devices[:2])
    found = ReferenceAnswers(path, {"x": x}).judge(Victim(program, [x], [x]).answer)
    assert found.verified, found.text


@pytest.mark.parametrize(
    "case",
    [
        {"more": [helper.make_node("Cast", ["y"], ["z"], to=TensorProto.INT64)]},
        {"more": [helper.make_node("ArgMax", ["y"], ["z"], axis=1)]},
        {"dtype": TensorProto.FLOAT16},
        {"given_scale": True},
    ],
    ids=["cast", "argmax", "float16", "scale of the request"],
)
def test_it_is_kept(tmp_path, case):
    model = read_model(saved(tmp_path / "m.onnx", (1, 8, 16, 16), 4, **case))
    assert ("", "GroupNormalization") in with_plain_group_norms(model, JUMPS).operators


def test_a_model_that_onnx_cannot_infer_is_left_to_onnxruntime(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise onnx.shape_inference.InferenceError("sizes contradict each other")

    model = read_model(saved(tmp_path / "m.onnx", (1, 8, 16, 16), 4))
    monkeypatch.setattr("bbgrap.graph.onnx_group_norms.infer_shapes", fail)
    assert with_plain_group_norms(model, JUMPS) is model


@pytest.mark.parametrize("part", ["grouped", "ones", "groups", "normal", "shape", "map", "scale", "scaled"])
def test_names_that_are_there_are_not_taken(tmp_path, part):
    behind = helper.make_node("Cast", ["y"], [f"y_{part}"], to=TensorProto.FLOAT)
    x = np.random.default_rng(0).standard_normal((1, 8, 16, 16)).astype(np.float32)
    for case in ({"more": [behind]}, {"entry": f"y_{part}"}):
        model = read_model(saved(tmp_path / "m.onnx", (1, 8, 16, 16), 4, **case))
        assert np.abs(answer(with_plain_group_norms(model, JUMPS), x) - answer(model, x)).max() < 1e-5
