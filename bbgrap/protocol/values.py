"""Values that are no arrays, packed into one with msgpack: sequences, optionals, maps, and tensors of numbers that numpy lacks.

Lists, maps, texts, integers, floats and nothing (an empty optional) are msgpack's own. A tensor is its extension 1:

    ONNX element type 1 | rank 1 | extents 8 each | content                    little endian

Laws: `unpack_value` of what `pack_value` made is the same value; it raises nothing but `RemoteProtocolError`, makes nothing larger than
what it was given, and executes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TypeVar, cast

import msgpack
import numpy as np

from bbgrap.errors import InputError, RemoteProtocolError
from bbgrap.graph.types import STORABLE, Array, DType
from bbgrap.protocol.messages import BytesLike
from bbgrap.protocol.tensors import decode_array, encode_array

T = TypeVar("T")

MAX_DEPTH = 8
"""Values inside values; ONNX has types of three levels at most (an optional sequence of maps)."""

MAX_CONTAINERS = 1 << 20
"""Lists and maps in a value; beyond, one in so many bytes: an empty map is one byte, and 72 in memory."""
_LEAST_BYTES = 8

_TENSOR = 1
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
    fault = _fault(value, MAX_DEPTH)
    if fault:
        raise InputError(f"value: {fault}")
    try:
        packed = msgpack.packb(value, default=_packed)
    except (ValueError, OverflowError) as error:  # an integer of more than 64 bits, a text that is no Unicode
        raise InputError(f"value: {error}") from error
    return np.frombuffer(packed, np.uint8)


def unpack_value(packed: Array | BytesLike) -> Value:
    """Return the value that `pack_value` made such bytes of.

    Raises:
        RemoteProtocolError: if it made no such bytes.
    """
    content = encode_array(packed) if isinstance(packed, np.ndarray) else packed
    budget = _Budget(max(MAX_CONTAINERS, len(content) // _LEAST_BYTES))
    try:
        value = msgpack.unpackb(content, ext_hook=_tensor, list_hook=budget.counted, object_pairs_hook=budget.map, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"packed value: {type(error).__name__}: {str(error)[:200]}") from error
    fault = _fault(value, MAX_DEPTH)
    if fault:
        raise RemoteProtocolError(f"packed value: {fault}")
    return cast("Value", value)


_PLAIN = frozenset({type(None), bool, int, float, str, Numbers})
"""Types whose values have nothing inside."""


def _fault(value: object, depth: int) -> str:
    """Return why a value is none that may have so many levels; empty if it is one."""
    if depth < 0:
        return f"more than {MAX_DEPTH} levels of lists inside lists"
    match value:
        case None | Numbers() | int() | float() | str() | np.integer() | np.floating():
            return ""
        case np.ndarray():
            return "" if DType.of(value.dtype) in STORABLE else f"numbers of type {value.dtype} are not of a type that models have"
        case list() | tuple():
            return _fault_inside(value, depth)
        case dict():
            keys = {*map(type, value)}
            if not any(all(issubclass(key, kind) for key in keys) for kind in (str, (int, np.integer))):
                return "the keys of a map are neither all texts nor all integers"
            return _fault_inside(value.values(), depth)
        case _:
            return f"a model takes arrays, lists, dictionaries and None, not {type(value).__name__}"


def _fault_inside(values: Collection[object], depth: int) -> str:
    """Return the first fault of values one level further down."""
    if depth and (_PLAIN.issuperset(map(type, values)) or (depth > 1 and _are_plain_maps(values))):
        return ""
    return next(filter(None, (_fault(item, depth - 1) for item in values)), "")


def _are_plain_maps(values: Collection[object]) -> bool:
    """Tell whether all values are maps of texts or of integers to what has nothing inside: classifiers give one for each of many rows."""
    maps = [value for value in values if type(value) is dict]
    if len(maps) < len(values):
        return False
    keys = {*map(type, chain.from_iterable(maps))}
    return (keys <= {str} or keys <= {int}) and _PLAIN.issuperset(map(type, chain.from_iterable(map(dict.values, maps))))


def _packed(value: object) -> object:
    """Return what msgpack does not know as what it knows."""
    match value:
        case np.ndarray():
            return _extension(DType.of(value.dtype).value, value.shape, encode_array(value))
        case Numbers(code, shape, content):
            return _extension(code, shape, content)
        case np.integer():
            return int(value)
        case np.floating():
            return float(value)
        case _:
            raise InputError(f"value: a model takes no {type(value).__name__}")


def _extension(code: int, shape: tuple[int, ...], content: BytesLike) -> msgpack.ExtType:
    return msgpack.ExtType(_TENSOR, b"".join([struct.pack(f"<BB{len(shape)}q", code, len(shape), *shape), content]))


def _tensor(kind: int, packed: bytes) -> Array | Numbers:
    """Return the tensor of an extension."""
    start = 2 + 8 * packed[1] if len(packed) > 1 else 2
    if kind != _TENSOR or len(packed) < start:
        raise RemoteProtocolError(f"packed tensor: there is none in extension {kind} of {len(packed)} bytes")
    code, rank, *shape = struct.unpack_from(f"<BB{packed[1]}q", packed)
    if any(extent < 0 for extent in shape):
        raise RemoteProtocolError(f"packed tensor: it cannot have rank {rank} and extents {shape}")
    dtype = DType(code) if code in DType._value2member_map_ else DType.OTHER
    if dtype not in STORABLE:
        return Numbers(code, tuple(shape), packed[start:])
    return decode_array(dtype, tuple(shape), packed[start:])


class _Budget:
    """How many lists and maps more a value may have."""

    def __init__(self, containers: int) -> None:
        self._left = containers

    def counted(self, items: list[T]) -> list[T]:
        """Count a list."""
        self._left -= 1
        if self._left < 0:
            raise RemoteProtocolError("packed value: it has more lists and maps than values of its size have")
        return items

    def map(self, pairs: list[tuple[object, object]]) -> dict[object, object]:
        """Count a map, and return it; no key is there twice."""
        self.counted(pairs)
        made = dict(pairs)
        if len(made) < len(pairs):
            raise RemoteProtocolError("packed map: a key is there twice")
        return made
