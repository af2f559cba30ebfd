"""From a `Graph` to an ONNX model: the same graph gives the same bytes. One of the files that import onnx (see `onnx_io`).

An attribute is written with the kind that the operator's schema demands, so a `Graph` made by hand may say 1 where ONNX wants 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Literal

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_external import detach
from bbgrap.graph.onnx_read import INLINE_BYTES, LEAST_IR_VERSION
from bbgrap.graph.onnx_types import UNKNOWN, declare
from bbgrap.graph.types import STORABLE, Array, Attribute, DType, Graph, LongList, Node, Subgraph, TensorType, Weight

_PROTOBUF_LIMIT = 2_000_000_000
"""A protobuf message must be smaller than 2^31 bytes; this leaves room for everything that is not weights."""

_KIND_CODES = {
    onnx.defs.OpSchema.AttrType.FLOAT: AttributeProto.FLOAT,
    onnx.defs.OpSchema.AttrType.INT: AttributeProto.INT,
    onnx.defs.OpSchema.AttrType.STRING: AttributeProto.STRING,
    onnx.defs.OpSchema.AttrType.FLOATS: AttributeProto.FLOATS,
    onnx.defs.OpSchema.AttrType.INTS: AttributeProto.INTS,
    onnx.defs.OpSchema.AttrType.STRINGS: AttributeProto.STRINGS,
    onnx.defs.OpSchema.AttrType.GRAPHS: AttributeProto.GRAPHS,
    onnx.defs.OpSchema.AttrType.TYPE_PROTO: AttributeProto.TYPE_PROTO,
}

FreeAxes = Mapping[str, Mapping[int, str]]
"""Of graph inputs and outputs, the symbols of axes that are free."""

_ALIGNMENT = 4096
"""Weights in a file of their own begin at multiples of this many bytes, so that they can be memory-mapped."""


@dataclass(frozen=True, slots=True)
class Written:
    """A written model, and the names of the weights whose bytes are not in it, sorted."""

    data: bytes
    detached: tuple[str, ...]


def free_batch(graph: Graph) -> FreeAxes:
    """Return dimension 0 of every graph input and output as the symbol N."""
    return {name: {0: "N"} for name in (*graph.inputs, *graph.outputs)}


def write_graph(graph: Graph, *, weights: Literal["inline", "detached"], free: FreeAxes = MappingProxyType({})) -> Written:
    """Write a graph as a `ModelProto`.

    With `detached` weights the model keeps only references for those larger than 1 KiB: whoever loads it gives the arrays by name
    (`add_external_initializers`). Parameters that steer shapes, such as those of `Reshape`, `Slice` and `Pad`, are smaller and stay
    inside, where onnxruntime's optimiser needs them; so do strings and element types that numpy does not have.

    Axes of graph inputs and outputs that are `free` become these symbols. Sizes of the graph's moving axes are symbols, too.

    Raises:
        ModelError: if the model would be larger than a protobuf can be (2 GB).
    """
    detached = tuple(sorted(w.name for w in graph.weights.values() if _detachable(w))) if weights == "detached" else ()
    proto = _proto(graph, dict.fromkeys(detached, (0, "weights")), free)
    try:
        return Written(proto.SerializeToString(deterministic=True), detached)
    except Exception as error:  # protobuf's EncodeError; that package ships no types
        raise ModelError(f"model '{graph.name}': it cannot be written: {error}; keep its weights outside") from None


def save_graph(graph: Graph, path: Path, *, free: FreeAxes = MappingProxyType({}), inline_limit: int = _PROTOBUF_LIMIT) -> None:
    """Write a graph to a file; if its weights take more than `inline_limit` bytes, these go to a file named `path` + '.data'.

    Raises:
        ModelError: if the model cannot be written.
    """
    movable = [w for _, w in sorted(graph.weights.items()) if _detachable(w)]
    if sum(weight.array.nbytes for weight in movable) <= inline_limit:
        path.write_bytes(write_graph(graph, weights="inline", free=free).data)
        return
    file = path.with_name(f"{path.name}.data")
    with file.open("wb") as stream:
        places = {weight.name: (_append(stream, weight.array), file.name) for weight in movable}
    path.write_bytes(_proto(graph, places, free).SerializeToString(deterministic=True))


def _append(stream: BinaryIO, array: Array) -> int:
    """Write an array at the next aligned position of a file and return that position."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    offset = stream.tell()
    stream.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
    return offset


def _detachable(weight: Weight) -> bool:
    return weight.type.nbytes > INLINE_BYTES and weight.type.dtype is not DType.BFLOAT16


def _proto(graph: Graph, places: Mapping[str, tuple[int, str]], free: FreeAxes) -> onnx.ModelProto:
    used = {node.domain for node in graph.nodes} | {""}
    proto = onnx.ModelProto(ir_version=max(graph.ir_version, LEAST_IR_VERSION), producer_name="bbgrap")
    has_bodies = any(_has_body(node) for node in graph.nodes)
    for domain, version in sorted(graph.opsets.items()):
        if domain in used or has_bodies:  # a body may use any domain
            proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = graph.name
    symbols: dict[tuple[int, int], str] = {}
    proto.graph.input.extend(_value(graph, name, free.get(name, {}), symbols, has_bodies=has_bodies) for name in graph.inputs)
    if has_bodies and graph.hides_sizes:
        # The sizes of a weight are told, unless it may be given as an input; what has no elements is a value, so it is a weight.
        empty = (weight for _, weight in sorted(graph.weights.items()) if 0 in (weight.type.shape or ()))
        proto.graph.input.extend(_without_sizes(weight.name, weight.type.dtype) for weight in empty)
    proto.graph.output.extend(_value(graph, name, free.get(name, {}), symbols, has_bodies=has_bodies) for name in graph.outputs)
    proto.graph.value_info.extend(_elements(graph))
    proto.graph.node.extend(_node(node, graph.opsets) for node in graph.nodes)
    proto.graph.initializer.extend(_tensor(weight, places.get(name)) for name, weight in sorted(graph.weights.items()))
    return proto


def _elements(graph: Graph) -> Iterator[ValueInfoProto]:
    """Declare element types of values inside that onnxruntime may not infer: further outputs of its own operators."""
    further = [name for node in graph.nodes if node.domain for name in node.outputs[1:] if name and name not in graph.outputs]
    for name in further:
        if (dtype := graph.types.get(name, UNKNOWN).dtype) in STORABLE:
            yield _without_sizes(name, dtype)


def _without_sizes(name: str, dtype: DType) -> ValueInfoProto:
    value = ValueInfoProto(name=name)
    declare(value, TensorType(dtype, None))
    return value


def _has_body(node: Node) -> bool:
    return any(
        isinstance(value, Subgraph) or (isinstance(value, tuple) and Subgraph in map(type, value)) for value in node.attributes.values()
    )


def _value(graph: Graph, name: str, free: Mapping[int, str], symbols: dict[tuple[int, int], str], *, has_bodies: bool) -> ValueInfoProto:
    """Declare a value; sizes of moving axes become `symbols`, equal ones of an axis the same: what is equal may be relied on."""
    value = ValueInfoProto(name=name)
    declare(value, graph.types[name])
    if has_bodies and graph.types[name].shape is None:
        # onnxruntime infers sizes in bodies from values of unknown rank that no tensor can have, and refuses them.
        for _ in range(graph.ranks.get(name, 0)):
            value.type.tensor_type.shape.dim.add()
    moving = graph.moving.get(name, frozenset())
    for axis, dim in enumerate(value.type.tensor_type.shape.dim if graph.types[name].shape else ()):
        if has_bodies and graph.hides_sizes:
            dim.Clear()
        elif axis in free:
            dim.dim_param = free[axis]
        elif axis in moving:
            dim.dim_param = symbols.setdefault((axis, dim.dim_value), f"size{len(symbols)}")
    return value


def _tensor(weight: Weight, place: tuple[int, str] | None) -> TensorProto:
    if place is None:
        return numpy_helper.from_array(np.ascontiguousarray(weight.array).reshape(weight.array.shape), weight.name)
    tensor = TensorProto(name=weight.name, dims=weight.array.shape, data_type=weight.type.dtype.value)
    detach(tensor, weight.type.nbytes, *place)
    return tensor


def _node(node: Node, opsets: Mapping[str, int]) -> NodeProto:
    proto = NodeProto(op_type=node.op, name=node.name, domain=node.domain, input=node.inputs, output=node.outputs)
    if node.op == "Loop":  # of inputs that may be absent, onnxruntime counts the first two
        proto.input.extend(("", "")[len(node.inputs) :])
    kinds = _kinds(node.op, opsets.get(node.domain, 1), node.domain)
    for name, value in sorted(node.attributes.items()):
        proto.attribute.append(_attribute(name, value, kinds.get(name)))
    return proto


def _kinds(op: str, opset: int, domain: str) -> dict[str, int]:
    """Return the kind of each attribute by the operator's schema; nothing for operators that onnx does not know."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: _KIND_CODES[attribute.type] for name, attribute in schema.attributes.items() if attribute.type in _KIND_CODES}


def _attribute(name: str, value: Attribute, kind: int | None) -> AttributeProto:
    result = AttributeProto(name=name)
    match value:
        case bytes() if kind == AttributeProto.TYPE_PROTO:
            result.type = AttributeProto.TYPE_PROTO
            result.tp.ParseFromString(value)
        case str() | bytes():
            result.type, result.s = AttributeProto.STRING, _raw(value)
        case int() | float() | np.number():
            if kind == AttributeProto.FLOAT or (kind is None and isinstance(value, float)):
                result.type, result.f = AttributeProto.FLOAT, float(value)
            else:
                result.type, result.i = AttributeProto.INT, int(value)
        case Subgraph():
            result.type = AttributeProto.GRAPH
            result.g.ParseFromString(value.serialized)
        case np.ndarray():
            result.type = AttributeProto.TENSOR
            result.t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape)))
        case LongList(array):
            result.type = AttributeProto.FLOATS if array.dtype.kind == "f" else AttributeProto.INTS
            (result.floats if array.dtype.kind == "f" else result.ints).extend(array.tolist())
        case tuple():
            return _sequence(name, value, kind)
    return result


def _sequence(name: str, values: Sequence[object], kind: int | None) -> AttributeProto:
    if kind is None:
        kinds = {str: AttributeProto.STRINGS, float: AttributeProto.FLOATS, Subgraph: AttributeProto.GRAPHS}
        kind = kinds.get(type(values[0]), AttributeProto.INTS) if values else AttributeProto.INTS
    result = AttributeProto(name=name, type=AttributeProto.AttributeType.ValueType(kind))
    types = {type(value) for value in values}
    if all(issubclass(held, (int, float, np.number)) for held in types):
        numbers = result.floats if kind == AttributeProto.FLOATS else result.ints
        numbers.extend(values)
    elif all(issubclass(held, (str, bytes)) for held in types):
        # Of many texts of trees few are different.
        raw: dict[object, bytes] = {value: _raw(value) for value in {*values} if isinstance(value, (str, bytes))}
        result.strings.extend(map(raw.__getitem__, values))
    else:
        for value in values:
            if not isinstance(value, Subgraph):
                raise ModelError(f"attribute '{name}': a sequence cannot hold {value!r}")
            result.graphs.add().ParseFromString(value.serialized)
    return result


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
