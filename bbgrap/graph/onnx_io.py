"""ONNX files in and out: the door through which everything else reads and writes models.

    file -- read_model --> OnnxModel -- with_input_shapes, normalize_opset --> OnnxModel -- to_graph --> Graph -- write_graph --> bytes

Only the `onnx_*` files of this folder import onnx: `onnx_read` and `onnx_tidy` (files and their weights), `onnx_shapes` (input
shapes), `onnx_opset` (older models), `onnx_types`, this one (protobuf to `Graph`) and `onnx_write` (`Graph` to protobuf).

A value that no numpy array holds (a sequence, an optional, a map, numbers of bfloat16 or float8) keeps its ONNX type, and has no shape.
Weights of such numbers are arrays of `ml_dtypes`; they are always written inline, so they travel inside models but never as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, NodeProto

from bbgrap.errors import ModelError
from bbgrap.graph.lower import lower
from bbgrap.graph.onnx_computed import infer
from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_limits import dtype_of
from bbgrap.graph.onnx_opset import normalize_opset
from bbgrap.graph.onnx_read import ModelInput, OnnxModel, array_of, as_model_error, parse_model, read_model
from bbgrap.graph.onnx_shapes import with_input_shapes
from bbgrap.graph.onnx_tidy import bodies_of, captured_by, copy_of, graphs_of, refill, standard_domain
from bbgrap.graph.onnx_types import UNKNOWN, declare, type_of
from bbgrap.graph.onnx_write import FreeAxes, free_batch, save_graph, write_graph
from bbgrap.graph.rewriting import trimmed, unique_name
from bbgrap.graph.types import LONG, STORABLE, Array, Attribute, DType, Graph, LongList, Node, Subgraph, TensorType, Weight, check_graph
from bbgrap.graph.weights import make_weight

__all__ = [
    "FreeAxes",
    "ModelInput",
    "OnnxModel",
    "as_model_error",
    "free_batch",
    "normalize_opset",
    "parse_model",
    "read_model",
    "save_graph",
    "to_graph",
    "weights_of",
    "with_input_shapes",
    "write_graph",
]

_COUNTED_OUTPUTS = frozenset({"EmbedLayerNormalization", "If", "Loop", "QEmbedLayerNormalization", "Scan", "Split", "SplitToSequence"})
"""Operators that count their outputs, or whose inference does: one that is left out gets a name, so that the number stays."""


MAX_VALUE_BYTES = 1 << 40
"""A value whose size is known. Chosen: no machine this is for holds as much. What a request's input sizes is known to the run alone: there
the memory of the agent's worker is the limit."""


def weights_of(model: OnnxModel, known: Mapping[str, Weight] = MappingProxyType({})) -> dict[str, Weight]:
    """Return the initializers of a model by name; the content of those that are not `known` is hashed, most of the time of `to_graph`."""
    return {t.name: known.get(t.name) or make_weight(t.name, *_content(model, t)) for t in model.proto.graph.initializer}


def to_graph(
    model: OnnxModel,
    types: Mapping[str, TensorType] | None = None,
    *,
    hides_sizes: bool = False,
    stored: Mapping[str, Weight] | None = None,
) -> Graph:
    """Turn a model with concrete input shapes into a `Graph`.

    Constants become weights, every node gets a unique name and every value a type, `lower` is applied, and domains that no operator
    uses are forgotten. `types` overrules what shape inference finds, also for all that follows from it: it serves operators that only
    onnxruntime knows, and those of which it makes something else than onnx infers. What the file declares of shapes inside and of
    outputs is not believed: runtimes do without. Of element types it is where nobody infers them, as onnxruntime does. `stored` is
    what `weights_of` returned for the same model.

    Raises:
        ModelError: if an input's shape is not concrete, or an attribute has a kind that no operator of the standard needs here.
    """
    _check_interface(model)
    proto = model.proto
    given = types or {}
    known = _inferred(proto, given)
    told = _told_elements(proto)
    weights = dict(weights_of(model) if stored is None else stored)
    nodes: list[Node] = []
    names: set[str] = set()
    for item in proto.graph.node:
        domain = standard_domain(item.domain)
        if item.op_type == "Constant" and not domain:
            weights[item.output[0]] = make_weight(item.output[0], *_constant(item))
        else:
            node = _node(item, domain, names)
            names.add(node.name)
            nodes.append(node)
    for node in nodes:
        for name in filter(None, node.outputs):
            kind = given.get(name) or known.get(name, UNKNOWN)
            known[name] = told.get(name, UNKNOWN) if kind == UNKNOWN else kind
    known |= {name: weight.type for name, weight in weights.items()}
    inputs, outputs = (tuple(item.name for item in side) for side in (model.inputs, model.outputs))
    draft = Graph(model.name, tuple(nodes), inputs, outputs, weights, known, _used_opsets(model), proto.ir_version, hides_sizes)
    graph = lower(draft)
    faults = (*check_graph(graph), *_too_large(graph))
    if faults:
        raise ModelError(f"model '{model.name}': it cannot be represented: {'; '.join(faults)}")
    return graph


def _told_elements(proto: onnx.ModelProto) -> dict[str, TensorType]:
    """Return the element types that a file declares of values inside and of outputs, without shapes."""
    declared = {value.name: type_of(value.type).dtype for value in (*proto.graph.value_info, *proto.graph.output)}
    return {name: TensorType(dtype, None) for name, dtype in declared.items() if dtype in STORABLE}


def _too_large(graph: Graph) -> list[str]:
    return [
        f"value '{name}': {kind} takes more than {MAX_VALUE_BYTES} bytes"
        for name, kind in graph.types.items()
        if kind.nbytes > MAX_VALUE_BYTES
    ]


def _check_interface(model: OnnxModel) -> None:
    for item in model.inputs:
        if item.dtype is not DType.OTHER and item.concrete is None:
            raise ModelError(f"input '{item.name}': its shape {item.shape} is not concrete; fix it with `with_input_shapes`")


def _inferred(proto: onnx.ModelProto, given: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Return what ONNX's inference finds of the types of values, where those of `given` are so.

    Nodes whose outputs are given are left out, so that what follows is inferred from what is given.
    """
    draft = copy_of(proto)
    del draft.graph.value_info[:]
    for value in draft.graph.output:
        value.ClearField("type")
    _cut(draft.graph, given)
    try:
        found = infer(draft)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        # Inference of control flow may fail in a branch that is never taken: nothing is inferred of these nodes then.
        _cut(draft.graph, {name: UNKNOWN for node in draft.graph.node if any(bodies_of(node)) for name in node.output})
        try:
            found = infer(draft)
        except (onnx.shape_inference.InferenceError, RuntimeError):
            found = draft  # shapes that nobody knows are allowed
    return {value.name: type_of(value.type) for value in (*found.graph.value_info, *found.graph.output, *found.graph.input)}


def _cut(graph: GraphProto, given: Mapping[str, TensorType]) -> None:
    """Leave out, in place, the nodes all of whose outputs have given types: these are inputs then."""

    def is_given(node: NodeProto) -> bool:
        return bool(node.output) and all(name in given for name in node.output if name)

    gone = [node for node in graph.node if is_given(node)]
    if not gone:
        return
    for name in dict.fromkeys(name for node in gone for name in node.output if name):
        declare(graph.input.add(name=name), given[name])
    refill(graph.node, (node for node in graph.node if not is_given(node)))


def _content(model: OnnxModel, tensor: onnx.TensorProto) -> tuple[Array, DType]:
    array = model.weights[tensor.name] if is_external(tensor) else array_of(tensor)
    return array, dtype_of(tensor.data_type)


def _constant(node: NodeProto) -> tuple[Array, DType | None]:
    attribute = node.attribute[0]
    if attribute.name == "value":
        return array_of(attribute.t), dtype_of(attribute.t.data_type)
    dtypes = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    dtype = dtypes.get(attribute.name.removesuffix("s"))
    if dtype is None:
        raise ModelError(f"node '{node.name}': a constant of the kind '{attribute.name}' is not supported")
    return np.array(_plain(node, attribute), dtype), None


def _node(item: NodeProto, domain: str, taken: set[str]) -> Node:
    outputs = list(item.output)
    label = next((output for output in outputs if output), "")
    name = unique_name(item.name or f"{item.op_type}_{label}", taken)
    if item.op_type in _COUNTED_OUTPUTS:
        outputs = [output or f"{name}.unused{k}" for k, output in enumerate(outputs)]
    attributes = {attribute.name: _plain(item, attribute) for attribute in item.attribute}
    return Node(name, item.op_type, trimmed(item.input), trimmed(outputs), attributes, domain)


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


def _numbers(values: Sequence[float], dtype: np.dtype[Any]) -> Attribute:
    return tuple(values) if len(values) < LONG else LongList(np.fromiter(values, dtype, len(values)))


def _texts(raw: Iterable[bytes]) -> tuple[str, ...]:
    """Return texts, each of them kept once: trees say millions of times that a node is a leaf or a branch."""
    read: dict[bytes, str] = {}
    return tuple(read[text] if text in read else read.setdefault(text, text.decode("utf-8", "surrogateescape")) for text in raw)


def _subgraph(body: GraphProto) -> Subgraph:
    return Subgraph(body.SerializeToString(deterministic=True), tuple(captured_by(body)))


_READERS: Mapping[int, Callable[[AttributeProto], Attribute]] = {
    AttributeProto.INT: lambda attribute: attribute.i,
    AttributeProto.FLOAT: lambda attribute: attribute.f,
    AttributeProto.STRING: lambda attribute: _text(attribute.s),
    AttributeProto.INTS: lambda attribute: _numbers(attribute.ints, np.dtype(np.int64)),
    AttributeProto.FLOATS: lambda attribute: _numbers(attribute.floats, np.dtype(np.float32)),
    AttributeProto.STRINGS: lambda attribute: _texts(attribute.strings),
    AttributeProto.TENSOR: lambda attribute: array_of(attribute.t),
    AttributeProto.GRAPH: lambda attribute: _subgraph(attribute.g),
    AttributeProto.GRAPHS: lambda attribute: tuple(_subgraph(body) for body in attribute.graphs),
    AttributeProto.TYPE_PROTO: lambda attribute: attribute.tp.SerializeToString(deterministic=True),
}
"""How to read each kind of attribute; a type is kept as its serialized bytes, which the operator's schema tells from a string."""


def _used_opsets(model: OnnxModel) -> dict[str, int]:
    used = {standard_domain(node.domain) for graph in graphs_of(model.proto.graph) for node in graph.node} | {""}
    return {domain: version for domain, version in sorted(model.opsets.items()) if domain in used}
