"""What `inspect` says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bbgrap.engine.load import load_graph
from bbgrap.planners.inspection import inspect_graph
from bbgrap.tdl.operators.undescribed import why_whole
from bbgrap.zoo import build
from tests.onnx_models import write_model


def test_parameters_work_and_axes_of_a_known_model() -> None:
    found = inspect_graph(build("mobilenet_v2"))
    assert found["parameters"] == 3_504_872 + 2 * 17_056 + 2  # as published, means and variances, two limits
    assert abs(found["flops"] - 2 * 300e6) < 30e6  # 300 million multiply-adds are published
    conv = next(layer for layer in found["layers"] if layer["operator"] == "Conv")
    assert conv["splits_along"] == [1, 2, 3]
    assert conv["reduces_over"] == ["ci"]
    assert not any(layer["whole_because"] for layer in found["layers"])


def test_quantized_parameters_are_parameters() -> None:
    """Of a filter of voices with 12 million weights of int8, 27,911 were told."""
    assert 3_400_000 < inspect_graph(build("mobilenet_v2_int8"))["parameters"] < 3_600_000


def test_a_lookup_among_words_is_no_work() -> None:
    found = {layer["operator"]: layer["flops"] for layer in inspect_graph(build("tiny-decoder"))["layers"]}
    assert found["Gather"] == 0
    assert found["MatMul"] > 0


def _whole(path: Path) -> dict[str, str]:
    return {layer["operator"]: layer["whole_because"] for layer in inspect_graph(load_graph(path, {}))["layers"]}


def test_what_is_no_tensor_is_not_said_to_have_an_unknown_shape(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[1, 2]),
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "first"], ["part"]),
        helper.make_node("NonZero", ["part"], ["places"]),
        helper.make_node("Split", ["places"], ["y", "z"], axis=0),
    ]
    weights = {"first": np.array(0)}
    found = _whole(write_model(tmp_path / "m.onnx", nodes, {"x": (4, 2)}, ("maps", "y", "z"), weights, domains={"ai.onnx.ml": 2}))
    for operator, domain in (("ZipMap", "ai.onnx.ml"), ("SplitToSequence", ""), ("SequenceAt", "")):
        assert found[operator] == why_whole(domain, operator)
        assert "no tensor" in found[operator]
    for operator in ("NonZero", "Split"):
        assert found[operator] == "the shape of 'places' is only known when the model runs"


def test_what_numpy_lacks_is_not_said_to_have_an_unknown_shape(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ]
    path = write_model(tmp_path / "m.onnx", nodes, {"x": (4, 2)}, {"y": (4, 2)}, {"step": np.float32(0.5)}, opset=19)
    model = onnx.load(path)
    model.graph.initializer.append(TensorProto(name="zero", data_type=TensorProto.FLOAT8E4M3FN, raw_data=b"\0"))
    onnx.save(model, path)
    lacking = "numpy has no array for 'q': it is a sequence, an optional or a map, or of 8-bit floats or fewer bits"
    assert _whole(path) == {"QuantizeLinear": lacking, "DequantizeLinear": lacking}


def test_a_product_without_elements_is_whole_for_that(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.zeros((2, 0), np.float32)}
    assert _whole(write_model(tmp_path / "m.onnx", nodes, {"x": (4, 2)}, {"y": (4, 0)}, weights)) == {"MatMul": "'y' has no elements"}
