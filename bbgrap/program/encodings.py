"""What 32-bit floats become on their way between devices: less than all their bits where the user asked for that, or fewer bytes.

    exact     4 bytes a number
    float16   2 bytes: rounded to the nearest; what is too large becomes 65504, the largest
    int8      1 byte and a 16th: blocks of 64 numbers in C order, the last one shorter, share a scale, the largest magnitude / 126.
              First all scales as 32-bit floats, then the numbers as multiples of their scale; 127, -127 and -128 are inf, -inf and NaN
    dictionary   exact, and 1 byte where there are few values, as in pictures (`bbgrap.program.dictionaries`); for inputs

Laws: the size of what is sent follows from the number of elements, but for dictionaries; infinities and NaN stay what they are; a float16
number is off by at most half a unit in its last place (2^-11 of it, or 2^-25), an int8 number by half its scale. int8 takes magnitudes
below 1.5e-36 for 0.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array, DType
from bbgrap.planners.options import TransferType
from bbgrap.program.dictionaries import decode_with_dictionary, encode_with_dictionary

WireType = Literal[TransferType, "dictionary"]
"""How 32-bit floats travel in one message: as was asked for, or what became of `exact`."""

BLOCK = 64
"""Numbers that share a scale. Chosen: a scale costs 1/16 of them, and a row of a feature map has 7 to 224."""

LARGEST_FLOAT16 = 65504.0

_LEVELS = 126
_LEAST_SCALE = np.finfo(np.float32).tiny
_LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(_LEVELS), np.float32(0))
"""So many levels of it are finite."""
_SPECIAL = ((127, np.inf), (-127, -np.inf), (-128, np.nan))
"""The codes of what is no finite number."""


def wire_of(dtype: DType, asked: WireType) -> WireType:
    """Return how a tensor travels: only 32-bit floats are converted."""
    return asked if dtype is DType.FLOAT else "exact"


def wire_bytes(count: int, wire: WireType) -> int:
    """Return the bytes that so many 32-bit floats take; with dictionaries where they are of use, and without these themselves."""
    match wire:
        case "exact":
            return 4 * count
        case "float16":
            return 2 * count
        case "int8":
            return 4 * _blocks(count) + count
        case "dictionary":
            return count


def encode_floats(array: Array, wire: TransferType) -> Array:
    """Return the bytes (uint8) of an array of 32-bit floats: a view of it where it is dense and stays exact."""
    dense = np.ascontiguousarray(array).reshape(-1)
    match wire:
        case "exact":
            return dense.view(np.uint8)
        case "float16":
            return _to_float16(dense).view(np.uint8)
        case "int8":
            return _to_int8(dense)


def decode_floats(content: bytes | memoryview | Array, shape: tuple[int, ...], wire: TransferType) -> Array:
    """Return the 32-bit floats that `encode_floats` made such bytes of: a view of them if exact.

    Raises:
        RemoteProtocolError: if nothing is encoded so.
    """
    count = prod(shape)
    raw = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
    if len(raw) != wire_bytes(count, wire):
        raise RemoteProtocolError(f"floats {list(shape)} as {wire}: expected {wire_bytes(count, wire)} bytes, got {len(raw)}")
    try:
        return _dense(raw, count, wire).reshape(shape)
    except ValueError as error:  # without elements, but of extents that numpy cannot multiply
        raise RemoteProtocolError(f"floats {list(shape)} as {wire}: {error}") from error


def _dense(raw: Array, count: int, wire: TransferType) -> Array:
    match wire:
        case "exact":
            return raw.view(np.float32)
        case "float16":
            return raw.view(np.float16).astype(np.float32)
        case "int8":
            return _from_int8(raw, count)


def carried(array: Array, wire: WireType) -> Array:
    """Return a copy of a tensor as its receiver sees it."""
    if wire == "exact" or array.dtype != np.float32:
        return array.copy()
    if wire == "dictionary":
        encoded = encode_with_dictionary(array)
        return array.copy() if encoded is None else decode_with_dictionary(encoded, array.shape)
    return decode_floats(encode_floats(array, wire), array.shape, wire)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _to_float16(dense: Array) -> Array:
    bounded = np.clip(dense, -LARGEST_FLOAT16, LARGEST_FLOAT16)
    return np.where(np.isinf(dense), dense, bounded).astype(np.float16)


def _to_int8(dense: Array) -> Array:
    whole = _in_blocks(dense)
    finite = np.where(np.isfinite(whole), whole, np.float32(0))
    largest = np.abs(finite).max(axis=1, initial=0)
    scales = np.minimum(largest / np.float32(_LEVELS), _LARGEST_SCALE)
    scales[scales < _LEAST_SCALE] = 0
    codes = np.rint(finite / np.where(scales, scales, np.float32(np.inf))[:, None]).astype(np.int8)
    codes[np.isposinf(whole)], codes[np.isneginf(whole)], codes[np.isnan(whole)] = (code for code, _ in _SPECIAL)
    return np.concatenate([scales.view(np.uint8), codes.reshape(-1)[: dense.size].view(np.uint8)])


def _from_int8(raw: Array, count: int) -> Array:
    cut = 4 * _blocks(count)
    scales, codes = raw[:cut].view(np.float32), _in_blocks(raw[cut:].view(np.int8))
    if not ((scales >= 0) & (scales < np.inf)).all():
        raise RemoteProtocolError(f"{count} floats as int8: a scale is negative, infinite or no number")
    with np.errstate(over="ignore"):  # a scale from elsewhere may be as large as floats get
        decoded = np.multiply(codes, scales[:, None], dtype=np.float32)
    for code, value in _SPECIAL:
        decoded[codes == code] = value
    return decoded.reshape(-1)[:count]


def _in_blocks(dense: Array) -> Array:
    """Return numbers in rows of a block each; zeros fill the last one."""
    whole = np.zeros(_blocks(dense.size) * BLOCK, dense.dtype)
    whole[: dense.size] = dense
    return whole.reshape(-1, BLOCK)
