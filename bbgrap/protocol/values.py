"""Values that are no arrays, packed into one: sequences, optionals, maps, and tensors of numbers that numpy lacks.

    packed   uint8 [bytes]: one value, little endian
    value    kind (1 byte), then by kind
             nothing   an empty optional
             tensor    ONNX element type, rank, bytes (64 bits each), extents, content
             list      length, values
             map       length, keys and values by turns
             integer, number   64 bits
             text      bytes, UTF-8

Laws: `unpack_value` of what `pack_value` made is the same value; it raises nothing but `RemoteProtocolError`, makes nothing larger than
what it was given, and executes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from bbgrap.errors import InputError, RemoteProtocolError
from bbgrap.graph.types import STORABLE, Array, DType
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.protocol.messages import BytesLike
from bbgrap.protocol.tensors import decode_array, encode_array

MAX_DEPTH = 8
"""Values inside values; ONNX has types of three levels at most (an optional sequence of maps)."""

_MAX_RANK = 64
_NOTHING, _TENSOR, _LIST, _MAP, _INTEGER, _NUMBER, _TEXT = range(7)
_BITS = {16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
"""Bits of an element, by ONNX's codes of the types that numpy lacks: bfloat16, float8, and integers and floats of 4 and 2 bits."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor of numbers that numpy lacks: ONNX's code of their type, extents, and content as onnxruntime keeps it.

    Invariants: the content has as many bytes as the numbers take.
    """

    code: int
    shape: tuple[int, ...]
    content: bytes

    def __post_init__(self) -> None:
        """Check the invariants."""
        bits = _BITS.get(self.code)
        if bits is None or -(-prod(self.shape) * bits // 8) != len(self.content):
            raise RemoteProtocolError(f"numbers of ONNX type {self.code} {list(self.shape)}: they do not take {len(self.content)} bytes")


Value = None | Array | Numbers | int | float | str | list["Value"] | dict[int, "Value"] | dict[str, "Value"]
"""A value as onnxruntime's Python interface gives and takes it, but for `Numbers`."""


def pack_value(value: object) -> Array:
    """Return a value as one array of bytes.

    Raises:
        InputError: if it is nothing that a model can take or give.
    """
    chunks = list(_packed(value, MAX_DEPTH))
    return np.frombuffer(b"".join(chunks), np.uint8)


def unpack_value(packed: Array | BytesLike) -> Value:
    """Return the value that `pack_value` made such bytes of.

    Raises:
        RemoteProtocolError: if it made no such bytes.
    """
    reader = _Reader(memoryview(encode_array(packed) if isinstance(packed, np.ndarray) else packed))
    value = reader.value(MAX_DEPTH)
    if reader.left:
        raise RemoteProtocolError(f"packed value: {reader.left} bytes are left over")
    return value


def _packed(value: object, depth: int) -> Iterator[BytesLike]:
    if depth < 0:
        raise InputError(f"value: more than {MAX_DEPTH} levels of lists inside lists")
    match value:
        case None:
            yield _tag(_NOTHING)
        case np.ndarray():
            yield from _packed_tensor(DType.of(value.dtype), value)
        case Numbers(code, shape, content):
            yield _tag(_TENSOR, code, len(shape), len(content), *shape)
            yield content
        case list() | tuple():
            yield _tag(_LIST, len(value))
            for item in value:
                yield from _packed(item, depth - 1)
        case dict():
            yield _tag(_MAP, len(value))
            for key, item in value.items():
                yield from _packed(key, 0)
                yield from _packed(item, depth - 1)
        case _:
            yield from _packed_scalar(value)


def _packed_scalar(value: object) -> Iterator[BytesLike]:
    match value:
        case int() | np.integer():
            yield _tag(_INTEGER, int(value))
        case float() | np.floating():
            yield struct.pack("<Bd", _NUMBER, value)
        case str():
            encoded = value.encode()
            yield _tag(_TEXT, len(encoded))
            yield encoded
        case _:
            raise InputError(f"value: a model takes arrays, lists, dictionaries and None, not {type(value).__name__}")


def _packed_tensor(dtype: DType, array: Array) -> Iterator[BytesLike]:
    if dtype not in STORABLE:
        raise InputError(f"value: numbers of type {array.dtype} are not of a type that models have")
    content = encode_array(array)
    yield _tag(_TENSOR, dtype.value, array.ndim, len(content), *array.shape)
    yield content


def _tag(kind: int, *integers: int) -> bytes:
    return struct.pack(f"<B{len(integers)}q", kind, *integers)


class _Reader:
    """Reads values off some bytes.

    Invariants: `left` is how many bytes were not read yet.
    """

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.left = len(content)

    def value(self, depth: int) -> Value:
        """Read one value that has so many levels at most."""
        if depth < 0:
            raise RemoteProtocolError(f"packed value: more than {MAX_DEPTH} levels")
        match self._take(1)[0]:
            case 0:
                return None
            case 1:
                return self._tensor()
            case 2:
                return [self.value(depth - 1) for _ in range(self._count())]
            case 3:
                return self._map(depth)
            case 4:
                return self._integers(1)[0]
            case 5:
                (number,) = struct.unpack("<d", self._take(8))
                return float(number)
            case 6:
                return self._text()
            case kind:
                raise RemoteProtocolError(f"packed value: there is no kind {kind}")

    def _tensor(self) -> Array | Numbers:
        code, rank, nbytes = self._integers(3)
        if not 0 <= rank <= _MAX_RANK:
            raise RemoteProtocolError(f"packed tensor: it cannot have {rank} axes")
        shape = self._integers(rank)
        if any(extent < 0 for extent in shape) or not 0 <= nbytes <= MAX_TENSOR_BYTES:
            raise RemoteProtocolError(f"packed tensor: extents {list(shape)} and {nbytes} bytes cannot be")
        content = self._take(nbytes)
        dtype = DType(code) if code in DType._value2member_map_ else DType.OTHER
        if dtype not in STORABLE:
            return Numbers(code, shape, bytes(content))
        return decode_array(dtype, shape, bytes(content))

    def _map(self, depth: int) -> Value:
        pairs = [(self.value(0), self.value(depth - 1)) for _ in range(self._count())]
        texts: dict[str, Value] = {key: item for key, item in pairs if isinstance(key, str)}
        numbers: dict[int, Value] = {key: item for key, item in pairs if isinstance(key, int)}
        if max(len(texts), len(numbers)) != len(pairs):
            raise RemoteProtocolError("packed map: its keys are not all texts or all integers, or one is there twice")
        return texts or numbers

    def _text(self) -> str:
        try:
            return str(self._take(self._count()), "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"packed text: {error}") from None

    def _count(self) -> int:
        """Read a length: of what takes a byte or more each."""
        count = self._integers(1)[0]
        if not 0 <= count <= self.left:
            raise RemoteProtocolError(f"packed value: a length of {count} with {self.left} bytes left")
        return count

    def _integers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}q", self._take(8 * count))

    def _take(self, count: int) -> memoryview:
        if count > self.left:
            raise RemoteProtocolError(f"packed value: it ends {count - self.left} bytes too early")
        start = len(self._content) - self.left
        self.left -= count
        return self._content[start : start + count]
