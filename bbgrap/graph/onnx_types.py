"""Types of values: from protobufs and from how onnxruntime writes them. One of the files that import onnx (see `onnx_io`).

float [1, 64]           TensorType(FLOAT, (1, 64))
seq(tensor(float))      TensorType(OTHER, None, the serialized type)
tensor(bfloat16)        TensorType(OTHER, None, the serialized type): numpy has no such numbers
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper

from bbgrap.graph.onnx_limits import dtype_of
from bbgrap.graph.types import STORABLE, Array, DType, TensorType

UNKNOWN = TensorType(DType.OTHER, None)

_TOKEN = re.compile(r"[a-z_]+[0-9a-z]*|[(),]")

_ELEMENTS = {TensorProto.DataType.Name(code).lower(): code for code in TensorProto.DataType.values() if code}
"""Element types by the names that onnxruntime gives them."""


@dataclass(frozen=True, slots=True)
class TensorOf:
    """A tensor of numbers or strings, by ONNX's code of the element type."""

    code: int

    @property
    def dtype(self) -> DType:
        """The element type; `OTHER` for one that numpy lacks."""
        return dtype_of(self.code) if dtype_of(self.code) in STORABLE else DType.OTHER


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """A list of values of one kind."""

    item: ValueKind


@dataclass(frozen=True, slots=True)
class OptionalOf:
    """A value or nothing."""

    item: ValueKind


@dataclass(frozen=True, slots=True)
class MapOf:
    """A dictionary from texts or integers to values of one kind."""

    key: DType
    item: ValueKind


@dataclass(frozen=True, slots=True)
class Unknown:
    """A kind of value that nobody can give or take here: sparse tensors, and opaque ones."""


ValueKind = TensorOf | SequenceOf | OptionalOf | MapOf | Unknown
"""What kind of value a type declares."""


def type_of(proto: TypeProto) -> TensorType:
    """Return the type that a protobuf declares; without a shape unless that is concrete."""
    tensor = proto.tensor_type
    if not proto.WhichOneof("value"):
        return UNKNOWN
    if not proto.HasField("tensor_type") or dtype_of(tensor.elem_type) not in STORABLE:
        # Of what is in an optional value the shape stays: without, onnxruntime takes it for a scalar's, and refuses what follows from that.
        whole = proto.SerializeToString(deterministic=True) if proto.HasField("optional_type") else _without_shape(proto)
        return TensorType(DType.OTHER, None, whole)
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


def kind_of(serialized: bytes) -> ValueKind:
    """Return what kind of value a serialized type declares."""
    return _kind(TypeProto.FromString(serialized))


def _kind(proto: TypeProto) -> ValueKind:
    match proto.WhichOneof("value"):
        case "tensor_type":
            return TensorOf(proto.tensor_type.elem_type)
        case "sequence_type":
            return SequenceOf(_kind(proto.sequence_type.elem_type))
        case "optional_type":
            return OptionalOf(_kind(proto.optional_type.elem_type))
        case "map_type":
            return MapOf(dtype_of(proto.map_type.key_type), _kind(proto.map_type.value_type))
        case _:
            return Unknown()


def content_of(array: Array, code: int) -> bytes | None:
    """Return an array of a type of `ml_dtypes` as onnxruntime keeps such numbers; None if it is not of the type with this ONNX code."""
    try:
        tensor = numpy_helper.from_array(array)
    except (KeyError, ValueError, TypeError):
        return None
    return bytes(tensor.raw_data) if tensor.data_type == code else None


def array_of_content(code: int, shape: tuple[int, ...], content: bytes) -> Array:
    """Return the array of `ml_dtypes` that `content_of` made such bytes of."""
    return numpy_helper.to_array(TensorProto(data_type=code, dims=shape, raw_data=content))


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
