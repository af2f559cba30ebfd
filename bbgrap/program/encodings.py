"""What 32-bit floats become on their way between devices: less than all their bits where the user asked for that, or fewer bytes.

    exact     4 bytes a number
    float16   2 bytes: rounded to the nearest; what is too large becomes 65504, the largest
    int8      1 byte and a 16th: blocks of 64 numbers in C order, the last one shorter, share a scale, the largest magnitude / 127.
              First all scales as 32-bit floats, then the numbers as multiples of their scale
    dictionary   exact, and 1 byte where there are few values, as in pictures (`bbgrap.program.dictionaries`); for inputs

Laws: the size of what is sent follows from the number of elements, but for dictionaries; infinities and NaN stay what they are; a float16
number is off by at most half a unit in its last place (2^-11 of it, or 2^-25), an int8 number by half its scale. int8 takes magnitudes
below 1.5e-36 for 0.

A block with infinities or NaN has its scale negative: the codes 127, -127 and -128 are then inf, -inf and NaN, and the finite numbers
have codes from -126 to 126.
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

_LONG = 10_000
"""Numbers from which on float16 is converted by whole-array arithmetic: its dozen of operations take as long as numpy's one for so many."""

_LEVELS = 127
_LEVELS_BESIDE_SPECIALS = 126
_LEAST_SCALE = float(np.finfo(np.float32).tiny)


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
    match wire:
        case "exact":
            return raw.view(np.float32).reshape(shape)
        case "float16":
            return _from_float16(raw.view(np.float16)).reshape(shape)
        case "int8":
            return _from_int8(raw, count).reshape(shape)


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
    if not dense.size or max(dense.max(), -dense.min()) <= LARGEST_FLOAT16:  # false if there is a NaN
        return dense.astype(np.float16) if dense.size < _LONG else _rounded(dense)
    bounded = np.clip(dense, -LARGEST_FLOAT16, LARGEST_FLOAT16)
    return np.where(np.isinf(dense), dense, bounded).astype(np.float16)


def _rounded(dense: Array) -> Array:
    """Return what `astype(np.float16)` does, for magnitudes up to 65504: numpy goes number by number, and takes twice as long.

    Added to 2^13 times its power of two (at least that of the least normal float16), a number is rounded by the processor to a multiple
    of its float16 unit; the last bits of the sum are how often it has it.
    """
    bits = dense.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    exponent = magnitude & np.uint32(0x7F800000)
    np.maximum(exponent, np.uint32(113 << 23), out=exponent)
    large = exponent + np.uint32(13 << 23)
    units = (large.view(np.float32) + magnitude.view(np.float32)).view(np.uint32)
    units -= large
    exponent >>= np.uint32(13)
    units += exponent
    units -= np.uint32(113 << 10)
    found = units.astype(np.uint16)
    found |= (bits >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
    return found.view(np.float16)


def _from_float16(half: Array) -> Array:
    """Return what `astype(np.float32)` does, in a third of the time: shifted, exponents are off by 112; infinities and NaN by more."""
    if half.size < _LONG:
        return half.astype(np.float32)
    bits = half.view(np.int16).astype(np.int32)
    bits <<= np.int32(13)
    bits &= np.int32(~0x70001FFF)
    found = bits.view(np.float32)
    found *= np.float32(2.0**112)
    special = bool(found.size) and max(found.max(), -found.min()) > LARGEST_FLOAT16
    return half.astype(np.float32) if special else found


def _to_int8(dense: Array) -> Array:
    count = dense.size
    encoded = np.empty(wire_bytes(count, "int8"), np.uint8)
    scales, codes = _views(encoded, count)
    whole = _padded(dense)
    largest = np.abs(whole).max(axis=1, initial=0)
    if not np.isfinite(largest).all():
        _encode_with_specials(whole, scales, codes)
        return encoded
    scales[...] = _scales(largest, _LEVELS)
    codes[...] = _multiples(whole, scales).reshape(-1)[:count]
    return encoded


def _padded(dense: Array) -> Array:
    """Return the numbers in rows of a block each; zeros fill the last one."""
    if dense.size % BLOCK == 0:
        return dense.reshape(-1, BLOCK)
    whole = np.zeros(_blocks(dense.size) * BLOCK, np.float32)
    whole[: dense.size] = dense
    return whole.reshape(-1, BLOCK)


def _scales(largest: Array, levels: int) -> Array:
    """Return a scale per block; `levels` times it is finite."""
    limit = np.nextafter(np.float32(np.finfo(np.float32).max / levels), np.float32(0))
    return np.minimum(largest / np.float32(levels), limit)


def _multiples(whole: Array, scales: Array) -> Array:
    """Return the nearest multiples of every block's scale; a scale too small to divide by becomes 0, in place."""
    scales[scales < _LEAST_SCALE] = 0
    divisors = np.where(scales, scales, np.float32(np.inf))
    found = whole / divisors[:, None]
    return np.rint(found, out=found).astype(np.int8)


def _encode_with_specials(whole: Array, scales: Array, codes: Array) -> None:
    special = ~np.isfinite(whole)
    finite = np.where(special, np.float32(0), whole)
    marked = special.any(axis=1)
    largest = np.abs(finite).max(axis=1)
    scales[...] = np.where(marked, _scales(largest, _LEVELS_BESIDE_SPECIALS), _scales(largest, _LEVELS))
    found = _multiples(finite, scales)
    # A scale of 0 has no sign that survives arithmetic; a marked block of zeros gets the least one there is.
    scales[marked] = -np.maximum(scales[marked], np.float32(_LEAST_SCALE))
    found[np.isposinf(whole)], found[np.isneginf(whole)], found[np.isnan(whole)] = 127, -127, -128
    codes[...] = found.reshape(-1)[: codes.size]


def _from_int8(raw: Array, count: int) -> Array:
    scales, codes = _views(raw, count)
    if not np.isfinite(scales).all():
        raise RemoteProtocolError(f"{count} floats as int8: a scale is infinite or no number")
    with np.errstate(over="ignore"):  # a scale from elsewhere may be as large as floats get
        decoded = np.multiply(_padded_codes(codes), np.abs(scales)[:, None], dtype=np.float32).reshape(-1)[:count]
    if (marked := scales < 0).any():
        within = np.repeat(marked, BLOCK)[:count]
        for code, value in ((127, np.inf), (-127, -np.inf), (-128, np.nan)):
            decoded[within & (codes == code)] = value
    return decoded


def _padded_codes(codes: Array) -> Array:
    if codes.size % BLOCK == 0:
        return codes.reshape(-1, BLOCK)
    whole = np.zeros(_blocks(codes.size) * BLOCK, np.int8)
    whole[: codes.size] = codes
    return whole.reshape(-1, BLOCK)


def _views(encoded: Array, count: int) -> tuple[Array, Array]:
    """Return the scales and the codes of an encoding; both are aligned if it begins at a multiple of 4 bytes."""
    cut = 4 * _blocks(count)
    return encoded[:cut].view(np.float32), encoded[cut:].view(np.int8)
