"""ONNX files in and out: the door through which everything else reads and writes models.

    file -- read_model --> ModelFile -- with_input_shapes, normalize_opset --> ModelFile -- to_graph --> Graph -- write_graph --> bytes

Only the `onnx_*` files of this folder import onnx: `onnx_read` (files and their weights), `onnx_shapes` (input shapes, opset), this one
(protobuf to `Graph`) and `onnx_write` (`Graph` to protobuf).

What a `Graph` cannot hold is refused here: sparse weights, and graph inputs or outputs that are no tensors of a type that numpy or
ONNX's bfloat16 covers. Weights of other types (float8, int4) stay usable: they are arrays of `ml_dtypes`, have `DType.OTHER` and are
always written inline, so they travel inside models but never as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from bbgrap.errors import ModelError
from bbgrap.graph.lower import lower, unique_name
from bbgrap.graph.onnx_read import (
    ModelFile,
    ModelInput,
    array_of,
    dtype_of,
    graphs_of,
    is_external,
    parse_model,
    read_model,
    standard_domain,
)
from bbgrap.graph.onnx_shapes import normalize_opset, with_input_shapes
from bbgrap.graph.onnx_write import Written, save_graph, write_graph
from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, Subgraph, TensorType, check_graph
from bbgrap.graph.weights import make_weight

__all__ = [
    "ModelFile",
    "ModelInput",
    "Written",
    "normalize_opset",
    "parse_model",
    "read_model",
    "save_graph",
    "to_graph",
    "with_input_shapes",
    "write_graph",
]

_UNKNOWN = TensorType(DType.OTHER, None)

_VARIADIC_OUTPUTS = frozenset({"Split", "If", "Loop", "Scan", "SplitToSequence"})
"""Operators that count their outputs: one that is left out gets a name, so that the number stays."""


def to_graph(model: ModelFile, types: Mapping[str, TensorType] | None = None) -> Graph:
    """Turn a model with concrete input shapes into a `Graph`.

    Constants become weights, every node gets a unique name and every value a type, `lower` is applied, and domains that no operator
    uses are forgotten. `types` adds to what shape inference finds: it serves operators that only onnxruntime knows.

    Raises:
        ModelError: if an input's shape is not concrete, an input or output is not a tensor that can cross machines, or an attribute
            has a kind that no operator of the standard needs here.
    """
    _check_interface(model)
    proto = _inferred(model.proto)
    weights = {tensor.name: make_weight(tensor.name, *_content(model, tensor)) for tensor in proto.graph.initializer}
    nodes: list[Node] = []
    names: set[str] = set()
    for item in proto.graph.node:
        domain = standard_domain(item.domain)
        if item.op_type == "Constant" and not domain:
            weights[item.output[0]] = make_weight(item.output[0], _constant(item))
        else:
            node = _node(item, domain, names)
            names.add(node.name)
            nodes.append(node)
    known = {value.name: _type_of(value) for value in (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)}
    extra = types or {}
    for node in nodes:
        for name in filter(None, node.outputs):
            found = known.get(name, _UNKNOWN)
            known[name] = extra.get(name, found) if found.shape is None else found
    known |= {name: weight.type for name, weight in weights.items()}
    inputs, outputs = (tuple(item.name for item in side) for side in (model.inputs, model.outputs))
    draft = Graph(model.name, tuple(nodes), inputs, outputs, weights, known, _used_opsets(model), proto.ir_version)
    graph = lower(draft)
    faults = check_graph(graph)
    if faults:
        raise ModelError(f"model '{model.name}': it cannot be represented: {'; '.join(faults)}")
    return graph


def _check_interface(model: ModelFile) -> None:
    for item in model.inputs:
        if item.shape is None or not all(isinstance(size, int) for size in item.shape):
            raise ModelError(f"input '{item.name}': its shape {item.shape} is not concrete; fix it with `with_input_shapes`")
        if item.dtype is DType.OTHER:
            raise ModelError(f"input '{item.name}': only tensors of the common element types can be given to a partitioned model")


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return proto  # an operator's inference failed on values it did not expect; shapes that nobody knows are allowed


def _content(model: ModelFile, tensor: onnx.TensorProto) -> tuple[Array, DType]:
    array = model.weights[tensor.name] if is_external(tensor) else array_of(tensor)
    return array, dtype_of(tensor.data_type)


def _constant(node: NodeProto) -> Array:
    attribute = node.attribute[0]
    if attribute.name == "value":
        return array_of(attribute.t)
    dtypes = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    dtype = dtypes.get(attribute.name.removesuffix("s"))
    if dtype is None:
        raise ModelError(f"node '{node.name}': a constant of the kind '{attribute.name}' is not supported")
    return np.array(_plain(node, attribute), dtype)


def _node(item: NodeProto, domain: str, taken: set[str]) -> Node:
    outputs = list(item.output)
    label = next((output for output in outputs if output), "")
    name = unique_name(item.name or f"{item.op_type}_{label}", taken)
    if item.op_type in _VARIADIC_OUTPUTS:
        outputs = [output or f"{name}.unused{k}" for k, output in enumerate(outputs)]
    attributes = {attribute.name: _plain(item, attribute) for attribute in item.attribute}
    return Node(name, item.op_type, _trimmed(item.input), _trimmed(outputs), attributes, domain)


def _trimmed(names: Iterable[str]) -> tuple[str, ...]:
    result = list(names)
    while result and not result[-1]:
        result.pop()
    return tuple(result)


def _plain(node: NodeProto, attribute: AttributeProto) -> Attribute:
    reader = _READERS.get(attribute.type)
    if reader is None:
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise ModelError(f"node '{node.name}' ({node.op_type}): attribute '{attribute.name}' of kind {kind} is not supported")
    return reader(attribute)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _subgraph(body: GraphProto) -> Subgraph:
    return Subgraph(body.SerializeToString(deterministic=True), tuple(_captured(body)))


_READERS: Mapping[int, Callable[[AttributeProto], Attribute]] = {
    AttributeProto.INT: lambda attribute: attribute.i,
    AttributeProto.FLOAT: lambda attribute: attribute.f,
    AttributeProto.STRING: lambda attribute: _text(attribute.s),
    AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    AttributeProto.STRINGS: lambda attribute: tuple(text.decode("utf-8", "surrogateescape") for text in attribute.strings),
    AttributeProto.TENSOR: lambda attribute: array_of(attribute.t),
    AttributeProto.GRAPH: lambda attribute: _subgraph(attribute.g),
    AttributeProto.GRAPHS: lambda attribute: tuple(_subgraph(body) for body in attribute.graphs),
    AttributeProto.TYPE_PROTO: lambda attribute: attribute.tp.SerializeToString(deterministic=True),
}
"""How to read each kind of attribute; a type is kept as its serialized bytes, which the operator's schema tells from a string."""


def _captured(body: GraphProto) -> dict[str, None]:
    """Return the outer names that a body reads, in order (the values of the dict mean nothing)."""
    found: dict[str, None] = {}
    defined = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    for node in body.node:
        nested = [name for a in node.attribute for inner in (*([a.g] if a.HasField("g") else []), *a.graphs) for name in _captured(inner)]
        found |= dict.fromkeys(name for name in (*node.input, *nested) if name and name not in defined)
        defined.update(node.output)
    return found | dict.fromkeys(value.name for value in body.output if value.name not in defined)


def _type_of(value: ValueInfoProto) -> TensorType:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return _UNKNOWN
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    shape = tuple(size for size in dims if size is not None)
    known = tensor.HasField("shape") and len(shape) == len(dims)
    return TensorType(dtype_of(tensor.elem_type), shape if known else None)


def _used_opsets(model: ModelFile) -> dict[str, int]:
    used = {standard_domain(node.domain) for graph in graphs_of(model.proto.graph) for node in graph.node} | {""}
    return {domain: version for domain, version in sorted(model.opsets.items()) if domain in used}
