"""Small ONNX models for the tests of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Declared = tuple[str, int, Sequence[int | str]]


def convolution(channels: int = 4) -> tuple[NodeProto, TensorProto]:
    """Return a 3x3 convolution of x to y that keeps the size, and its weight."""
    weight = np.random.default_rng(0).standard_normal((channels, 3, 3, 3)).astype(np.float32)
    return helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), numpy_helper.from_array(weight, "w")


def write_model(
    path: Path, nodes: Sequence[NodeProto], inputs: Sequence[Declared], outputs: Sequence[Declared], weights: Sequence[TensorProto] = ()
) -> Path:
    """Write a model; inputs and outputs are (name, element type, shape)."""

    def declared(values: Sequence[Declared]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in values]

    graph = helper.make_graph(list(nodes), "g", declared(inputs), declared(outputs), list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
