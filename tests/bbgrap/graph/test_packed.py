"""Weights of less than a byte, as quantizers write them: dequantized by regions, as weights of bytes are."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.graph.types import DType
from bbgrap.planners.inspection import inspect_graph
from bbgrap.planners.options import PlanOptions
from tests.partition import assert_close

F = TensorProto.FLOAT
FORMS = {
    "of a tensor": ((), (), {}),
    "of a channel": ((4,), (4,), {"axis": 0}),
    "of a block": ((4, 3, 3, 3), (4, 3, 3, 3), {"axis": 1, "block_size": 2}),
}


def convolution(kind: str, form: str, *, domain: str = "") -> onnx.ModelProto:
    """A convolution whose weights have less than a byte, and a product that reads the map after it."""
    random = np.random.default_rng(4)
    own, of_zeros, attributes = FORMS[form]
    low, high = (0, 16) if kind.startswith("u") else (-8, 8)
    numbers = random.integers(low, high, (4, 6, 3, 3)).astype(kind)
    zeros = random.integers(low, high, of_zeros).astype(kind)
    scales = random.uniform(0.05, 0.1, own).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], domain=domain, **attributes),
        helper.make_node("Conv", ["x", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in {"w": numbers, "s": scales, "z": zeros}.items()]
    x, y = helper.make_tensor_value_info("x", F, [1, 6, 12, 10]), helper.make_tensor_value_info("y", F, [1, 4, 12, 10])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("split", ["rows", "channels"])
@pytest.mark.parametrize(
    ("kind", "form", "domain"),
    [*((kind, form, "") for kind in ("int4", "uint4") for form in FORMS), ("int4", "of a tensor", "com.microsoft")],
)
def test_weights_of_less_than_a_byte_are_dequantized_where_they_are_used(kind, form, domain, split, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(convolution(kind, form, domain=domain), path)
    graph = load_graph(path, {})
    assert not [layer for layer in inspect_graph(graph)["layers"] if layer["whole_because"]]
    assert all(weight.type.dtype is not DType.OTHER for weight in graph.weights.values())
    x = np.random.default_rng(5).standard_normal((1, 6, 12, 10)).astype(np.float32)
    artifacts = export(plan_graph(graph, Cluster.even(3), PlanOptions("bbgrap", split)).compiled.optimized)
    (got,) = simulate(artifacts, [x], local_kernels(artifacts))
    (want,) = Reference(path).run({"x": x})
    assert_close(got, want, form)


def test_types_of_less_than_a_byte_are_those_of_ml_dtypes() -> None:
    assert {np.dtype(getattr(ml_dtypes, name)).name for name in ("int2", "int4", "uint2", "uint4")} == {"int2", "int4", "uint2", "uint4"}


def check_products(path: Path, x: np.ndarray, split: str, what: str) -> None:
    """Divide a model wholly over two machines: its first output is of products, its second of numbers that are the same to the bit."""
    graph = load_graph(path, {})
    assert not [layer for layer in inspect_graph(graph)["layers"] if layer["whole_because"]]
    artifacts = export(plan_graph(graph, Cluster.even(2), PlanOptions(split=split)).compiled.optimized)
    got, want = simulate(artifacts, [x], local_kernels(artifacts)), Reference(path).run({"x": x})
    assert_close(got[0], want[0], what)
    assert np.array_equal(got[1], want[1])


@pytest.mark.parametrize("split", ["rows", "channels"])
@pytest.mark.parametrize("scales", [(), (20,)])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_weights_of_float8_are_dequantized_where_they_are_used(kind, scales, split, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    numbers = np.arange(256, dtype=np.uint8).repeat(5).view(getattr(ml_dtypes, kind)).reshape(64, 20)
    numbers = np.where(np.isfinite(numbers.astype(np.float32)), numbers, np.zeros((), numbers.dtype))
    factors = random.uniform(0.05, 0.1, scales).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "o"], ["v"], axis=1),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
        helper.make_node("Identity", ["v"], ["z"]),
    ]
    weights = [
        numpy_helper.from_array(array, name) for name, array in {"w": numbers, "s": factors, "o": np.zeros(scales, numbers.dtype)}.items()
    ]
    values = {
        name: helper.make_tensor_value_info(name, F, shape) for name, shape in {"x": [1, 32, 64], "y": [1, 32, 20], "z": [64, 20]}.items()
    }
    model = helper.make_graph(nodes, "g", [values["x"]], [values["y"], values["z"]], weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(model, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    check_products(path, random.standard_normal((1, 32, 64)).astype(np.float32), split, kind)


@pytest.mark.parametrize("split", ["rows", "channels"])
@pytest.mark.parametrize("kind", ["int4", "uint4", "int4 without a zero point"])
def test_what_is_rounded_to_less_than_a_byte_is_divided(kind, split, tmp_path: Path) -> None:
    """Of blocks of a weight whose scales have scales, and of a map; many of its numbers are beyond those of 4 bits."""
    random = np.random.default_rng(5)
    of_bits = kind.split()[0]
    weights = {"w": random.standard_normal((8, 6)), "x_step": np.array(0.1), "steps": random.uniform(0.1, 0.2, (2, 6))}
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    zeros, attributes = (["x_zero"], ["zeros"]), {}
    if kind == of_bits:
        low, high = (0, 16) if kind == "uint4" else (-8, 8)
        stored += [
            numpy_helper.from_array(random.integers(low, high, shape).astype(kind), name)
            for name, shape in ((zeros[0][0], ()), (zeros[1][0], (2, 6)))
        ]
    else:
        zeros, attributes = ([], []), {"output_dtype": TensorProto.INT4}
    blocks = {"axis": 0, "block_size": 4}
    nodes = [
        helper.make_node("Neg", ["steps"], ["less"]),
        helper.make_node("Neg", ["less"], ["scales"]),
        helper.make_node("QuantizeLinear", ["w", "scales", *zeros[1]], ["w_q"], **blocks, **attributes),
        helper.make_node("DequantizeLinear", ["w_q", "scales", *zeros[1]], ["w_d"], **blocks),
        helper.make_node("QuantizeLinear", ["x", "x_step", *zeros[0]], ["x_q"], **attributes),
        helper.make_node("DequantizeLinear", ["x_q", "x_step", *zeros[0]], ["x_d"]),
        helper.make_node("MatMul", ["x_d", "w_d"], ["y"]),
        helper.make_node("Identity", ["x_d"], ["z"]),
    ]
    given = [helper.make_tensor_value_info(name, F, shape) for name, shape in (("x", [1, 12, 8]), ("y", None), ("z", None))]
    graph = helper.make_graph(nodes, "g", given[:1], given[1:], stored)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    check_products(path, random.standard_normal((1, 12, 8)).astype(np.float32), split, kind)


@pytest.mark.parametrize(("kind", "blocks"), [("int4", 2), ("uint4", 3), ("int4 without zero points", 2)])
def test_what_is_looked_up_in_a_table_of_four_bits_is_divided(kind: str, blocks: int, tmp_path: Path) -> None:
    """As onnxruntime's quantizer of `Gather` writes it."""
    random, of_bits = np.random.default_rng(6), kind.split()[0]
    low, high = (0, 16) if of_bits == "uint4" else (-8, 8)
    weights = {
        "table": random.integers(low, high, (40, 16 * blocks)).astype(of_bits),
        "steps": random.uniform(0.1, 0.2, (40, blocks)).astype(np.float32),
    }
    if of_bits == kind:
        weights["zeros"] = random.integers(low, high, (40, blocks)).astype(of_bits)
    inputs = ["table", "x", *list(weights)[1:]]
    lookup = helper.make_node("GatherBlockQuantized", inputs, ["z"], domain="com.microsoft", gather_axis=0, quantize_axis=1, block_size=16)
    nodes = [lookup, helper.make_node("Relu", ["z"], ["y"])]
    given = [helper.make_tensor_value_info("x", TensorProto.INT64, [1, 30]), *(helper.make_tensor_value_info(n, F, None) for n in "yz")]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    path = tmp_path / "model.onnx"
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", given[:1], given[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    check_products(path, random.integers(-40, 40, (1, 30)), "rows", kind)
    assert sum(weight.type.nbytes for weight in load_graph(path, {}).weights.values()) <= 40 * blocks * 13
