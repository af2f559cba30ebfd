"""Types of values: from protobufs and from how onnxruntime writes them. One of the files that import onnx (see `onnx_io`).

float [1, 64]           TensorType(FLOAT, (1, 64))
seq(tensor(float))      TensorType(OTHER, None, the serialized type)
tensor(bfloat16)        TensorType(OTHER, None, the serialized type): numpy has no such numbers
"""

from __future__ import annotations

import re

import onnx
from onnx import TensorProto, TypeProto, helper

from bbgrap.graph.onnx_read import dtype_of
from bbgrap.graph.types import STORABLE, DType, TensorType

UNKNOWN = TensorType(DType.OTHER, None)

_TOKEN = re.compile(r"[a-z_]+[0-9a-z]*|[(),]")

_ELEMENTS = {TensorProto.DataType.Name(code).lower(): code for code in TensorProto.DataType.values() if code}
"""Element types by the names that onnxruntime gives them."""


def type_of(proto: TypeProto) -> TensorType:
    """Return the type that a protobuf declares; without a shape unless that is concrete."""
    tensor = proto.tensor_type
    if not proto.WhichOneof("value"):
        return UNKNOWN
    if not proto.HasField("tensor_type") or dtype_of(tensor.elem_type) not in STORABLE:
        return TensorType(DType.OTHER, None, _without_shape(proto))
    dims = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim]
    shape = tuple(size for size in dims if size is not None)
    known = tensor.HasField("shape") and len(shape) == len(dims)
    return TensorType(dtype_of(tensor.elem_type), shape if known else None)


def type_named(text: str) -> TensorType:
    """Return the type of which onnxruntime writes `seq(tensor(float))`, without a shape; the unknown one where it cannot be read."""
    tokens = _TOKEN.findall(text)
    try:
        proto = _parse(tokens)
    except (IndexError, KeyError, ValueError):
        return UNKNOWN
    return UNKNOWN if tokens else type_of(proto)


def declare(value: onnx.ValueInfoProto, kind: TensorType) -> None:
    """Write a type into the declaration of a value; nothing of an unknown one: onnxruntime infers it."""
    if kind.dtype is DType.OTHER:
        value.type.ParseFromString(kind.onnx)
        return
    value.type.tensor_type.elem_type = kind.dtype.value
    if kind.shape is not None:
        value.type.tensor_type.shape.SetInParent()
        for size in kind.shape:
            value.type.tensor_type.shape.dim.add().dim_value = size


def text_of(serialized: bytes) -> str:
    """Return a type as onnxruntime writes it: `seq(map(int64,tensor(float)))`."""
    return _text(TypeProto.FromString(serialized))


def _text(proto: TypeProto) -> str:
    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_text(proto.optional_type.elem_type)})"
        case "map_type":
            return f"map({TensorProto.DataType.Name(proto.map_type.key_type).lower()},{_text(proto.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({TensorProto.DataType.Name(proto.sparse_tensor_type.elem_type).lower()})"
        case "tensor_type":
            return f"tensor({TensorProto.DataType.Name(proto.tensor_type.elem_type).lower()})"
        case _:
            return "unknown"


def _without_shape(proto: TypeProto) -> bytes:
    """Return a type without the shapes in it: they are known when the model runs."""
    return _parse(_TOKEN.findall(_text(proto))).SerializeToString(deterministic=True) if _text(proto) != "unknown" else b""


def _parse(tokens: list[str]) -> TypeProto:
    """Read one type off the tokens."""
    kind, opening = tokens.pop(0), tokens.pop(0)
    if opening != "(":
        raise ValueError(kind)
    match kind:
        case "tensor":
            proto = helper.make_tensor_type_proto(_ELEMENTS[tokens.pop(0)], None)
        case "sparse_tensor":
            proto = helper.make_sparse_tensor_type_proto(_ELEMENTS[tokens.pop(0)], None)
        case "seq":
            proto = helper.make_sequence_type_proto(_parse(tokens))
        case "optional":
            proto = helper.make_optional_type_proto(_parse(tokens))
        case "map":
            key, _ = _ELEMENTS[tokens.pop(0)], tokens.pop(0)
            proto = helper.make_map_type_proto(key, _parse(tokens))
        case _:
            raise ValueError(kind)
    if tokens.pop(0) != ")":
        raise ValueError(kind)
    return proto
