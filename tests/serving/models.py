"""Small models to serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
LENGTH = 3


def _write(path: Path, graph: onnx.GraphProto) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def write_types(path: Path, types: Mapping[str, int] = TYPES) -> None:
    """Write a model with an input of each type, `in_TYPE`, which comes out as `out_TYPE`."""
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types]
    inputs, outputs = ([_value(f"{side}_{name}", kind, [LENGTH]) for name, kind in types.items()] for side in ("in", "out"))
    _write(path, helper.make_graph(nodes, "types", inputs, outputs))


def write_rows(path: Path) -> None:
    """Write a model of rows: `y` is a product of `x` [N, 4], `z` its largest numbers, 1 or more of which make it fail."""
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    constants = {"w": weights, "one": np.array([1.0], np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceMax", ["x"], ["top"], axes=[1], keepdims=1),
        helper.make_node("Cast", ["top"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["one", "index"], ["picked"], name="poisoned_gather"),
        helper.make_node("Mul", ["top", "picked"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rows",
        [_value("x", TensorProto.FLOAT, ["N", 4])],
        [_value("y", TensorProto.FLOAT, ["N", 4]), _value("z", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    _write(path, graph)


def write_slow(path: Path) -> None:
    """Write a model that adds 1 to `x` as many times as `times` says, one after the other."""
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "one"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [_value("i", TensorProto.INT64, []), _value("go", TensorProto.BOOL, []), _value("sum", TensorProto.DOUBLE, [1])],
        [_value("on", TensorProto.BOOL, []), _value("next", TensorProto.DOUBLE, [1])],
    )
    nodes = [
        helper.make_node("Identity", ["always"], ["begin"]),
        helper.make_node("Loop", ["times", "begin", "x"], ["y"], body=body),
    ]
    weights = {"one": np.array([1.0]), "always": np.array(True)}
    graph = helper.make_graph(
        nodes,
        "slow",
        [_value("x", TensorProto.DOUBLE, [1]), _value("times", TensorProto.INT64, [])],
        [_value("y", TensorProto.DOUBLE, [1])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    _write(path, graph)


def write_sequence(path: Path) -> None:
    """Write a model of which the protocol cannot carry the input."""
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    _write(path, helper.make_graph([node], "sequence", [sequence], [_value("y", TensorProto.FLOAT, ["n"])]))
