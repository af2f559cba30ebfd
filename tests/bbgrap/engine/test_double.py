from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bbgrap import zoo
from bbgrap.engine import double
from bbgrap.engine.double import double_answer
from bbgrap.engine.reference import Reference
from bbgrap.graph.onnx_io import read_model
from tests.judged_models import MODELS
from tests.onnx_models import write_model


def written(path: Path, nodes, inputs, weights=(), opset: int = 17) -> Path:
    shapes, kinds = {name: shape for name, _, shape in inputs}, {name: kind for name, kind, _ in inputs}
    return write_model(path, nodes, shapes, {"y": None}, dict(weights), kinds=kinds, opset=opset)


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in ("tiny", "vit", "recurrent", "detector")], ids=lambda model: model.name)
def test_the_answer_in_64_bits_is_within_rounding_of_onnxruntimes(model, tmp_path):
    path = tmp_path / "m.onnx"
    model.write(path)
    feeds = model.draw(np.random.default_rng(0))
    exact = double_answer(read_model(path), feeds)
    assert exact is not None
    for mine, theirs in zip(exact, Reference(path).run(feeds), strict=True):
        if theirs.dtype == np.float32:
            assert mine.dtype == np.float64
            assert not np.array_equal(mine, theirs)
            assert np.abs(mine - theirs).max() < 4e-6
        else:
            assert np.array_equal(mine, theirs)


def test_it_is_what_numpy_computes_in_64_bits(tmp_path):
    random = np.random.default_rng(0)
    w, b = random.standard_normal((3, 2, 3)).astype(np.float32), random.standard_normal(3).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1]), helper.make_node("GlobalMaxPool", ["c"], ["y"])]
    path = written(tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, (1, 2, 9))], [("w", w), ("b", b)])
    x = random.standard_normal((1, 2, 9)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[0].astype(np.float64), ((0, 0), (1, 1))), 3, axis=1)
    want = (np.einsum("cnk,ock->on", windows, w.astype(np.float64)) + b[:, None]).max(axis=1)
    exact = double_answer(read_model(path), {"x": x})
    assert exact is not None
    assert np.abs(exact[0].ravel() - want).max() < 1e-14


def test_the_zoos_tiny_network_is_what_the_reference_evaluator_computes_in_64_bits():
    path = zoo.materialize("tiny")
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (want,) = ReferenceEvaluator(proto).run(None, {"input": x.astype(np.float64)})
    exact = double_answer(read_model(path), {"input": x})
    assert exact is not None
    assert np.abs(exact[0] - want).max() < 1e-12


def test_casts_constants_and_bodies_are_in_64_bits(tmp_path):
    """1 + 1e-9 is 1 in 32 bits, wherever it is computed."""

    def branch(name: str, value: float) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], [f"{name}.c"], value_float=value),
            helper.make_node("Cast", [f"{name}.c"], [f"{name}.d"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["small", f"{name}.d"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["small"], to=TensorProto.FLOAT),
        helper.make_node("If", ["yes"], ["picked"], then_branch=branch("then", 1.0), else_branch=branch("else", 2.0)),
        helper.make_node("Sub", ["picked", "one"], ["y"]),
    ]
    weights = [("yes", np.array(True)), ("one", np.array(1, np.float32))]
    path = written(tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, (2,))], weights)
    exact = double_answer(read_model(path), {"x": np.array([1e-9, 3e-9], np.float32)})
    assert exact is not None
    assert exact[0] == pytest.approx([1e-9, 3e-9], rel=1e-6)


def test_a_reference_implementation_that_disagrees_with_onnxruntime_is_no_witness(tmp_path):
    """10 x 2.3 are 23 elements for onnxruntime, and 22 for the ONNX package."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    scales = np.array([1, 1, 2.3], np.float32)
    path = written(tmp_path / "m.onnx", [node], [("x", TensorProto.FLOAT, (1, 1, 10))], [("scales", scales)])
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10)
    assert Reference(path).run({"x": x})[0].shape == (1, 1, 23)
    assert double_answer(read_model(path), {"x": x}) is None


def test_a_model_too_large_for_reference_implementations_has_no_answer(monkeypatch):
    path = zoo.materialize("tiny")
    x = np.zeros((1, 3, 32, 32), np.float32)
    products = 16 * 16 * 8 * 3 * 7 * 7
    monkeypatch.setattr(double, "MOST_PRODUCTS", products - 1)
    assert double_answer(read_model(path), {"input": x}) is None
    monkeypatch.setattr(double, "MOST_PRODUCTS", 10**9)
    assert double_answer(read_model(path), {"input": x}) is not None
