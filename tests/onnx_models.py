"""Small ONNX models for tests, made of nodes, shapes and arrays."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Shape = Sequence[int | str | None] | None


def model_of(
    nodes: Iterable[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape] | Iterable[str],
    weights: Mapping[str, ArrayLike] | None = None,
    *,
    kinds: Mapping[str, int] | None = None,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
    ir_version: int | None = None,
    **parts: object,
) -> ModelProto:
    """Return a model.

    Args:
        nodes: In the order of computation.
        inputs: Shapes by name; None: of any rank.
        outputs: The same; or names alone, of which nothing is declared.
        weights: Arrays by name.
        kinds: Element types of inputs and outputs that are not float32.
        opset: Of ONNX's own operators.
        domains: Versions of others.
        ir_version: None: the least that the operators have.
        parts: Of the graph, as `helper.make_graph` has them.
    """
    kinds = kinds or {}

    def declared(shapes: Mapping[str, Shape]) -> list[ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()]

    results = declared(outputs) if isinstance(outputs, Mapping) else [ValueInfoProto(name=name) for name in outputs]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", declared(inputs), results, stored, **parts)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    version = ir_version or helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=opsets, ir_version=version)


def write_model(path: Path, *arguments: Any, **options: Any) -> Path:  # noqa: ANN401
    """Write a model, of which `model_of` has the arguments, and return where it is."""
    onnx.save(model_of(*arguments, **options), path)
    return path
