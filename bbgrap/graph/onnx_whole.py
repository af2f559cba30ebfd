"""A model as its file has it, to be shipped whole. One of the files that import onnx (see `onnx_io`)."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, NodeProto

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_external import detach
from bbgrap.graph.onnx_read import OnnxModel, array_of, is_large
from bbgrap.graph.onnx_subnormal import flushed_weights
from bbgrap.graph.onnx_tidy import copy_of, refill, serialized
from bbgrap.graph.types import Array


def whole_model(model: OnnxModel) -> tuple[bytes, Mapping[str, Array]]:
    """Return a model without its large weights, and these by initializer name: free dimensions, opset and operators as the file has them.

    Large constants become weights: some exporters write every weight as a constant, and onnxruntime itself makes them weights when it loads
    a model. Those that only products read have no subnormal numbers.

    Raises:
        ModelError: if what is left is larger than a protobuf can be (2 GB).
    """
    weights = dict(model.weights)
    proto = model.proto
    if any(map(_is_large, proto.graph.node)):
        proto = copy_of(model.proto)
        weights |= _lift_constants(proto.graph)
    try:
        data = serialized(proto)
    except Exception as error:  # protobuf's EncodeError; that package ships no types
        raise ModelError(f"model '{model.name}': it cannot be written: {error}; keep the tensors inside its bodies outside") from None
    return data, flushed_weights(proto.graph, weights)


def _lift_constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Make weights of large constants, in place; return them by name."""
    weights: dict[str, Array] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        if not _is_large(node):
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        weights[tensor.name] = array_of(tensor)
        detach(tensor, weights[tensor.name].nbytes)
    refill(graph.node, kept)
    return weights


def _is_large(node: NodeProto) -> bool:
    if node.op_type != "Constant" or node.domain not in {"", "ai.onnx"} or len(node.attribute) != 1 or len(node.output) != 1:
        return False
    attribute = node.attribute[0]
    return attribute.name == "value" and attribute.type == AttributeProto.TENSOR and is_large(attribute.t)
