"""Inputs of few values: what comes from a picture of 8 bits a colour travels as a byte a number, and nothing is lost.

A picture becomes a network's input by a division, a mean and a deviation per colour, so a colour has at most 256 values, at equal steps up
to rounding. These are sent once, as its *palette*, and every number as its place there. Whether that holds is seen number by number;
what has more values, or others between the steps, is sent as it is.

    palettes: one per colour (0: exact floats follow) | 256 floats each | a byte a number, in C order

Laws: what is decoded has the bits of what was encoded; bytes from elsewhere give floats of the right number, or an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from bbgrap.cluster import Cluster
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.planners.options import InputValues

MOST = 256
"""Values that a byte tells apart."""

LEAST_BYTES = 8 << 10
"""Of floats, for which it is worth the trouble: palettes of three colours are 3 KB. Plans count on a byte a number everywhere."""

LEAST_VALUES = 16
"""That an input has which is taken for a picture: zeros or ones, with which people try things, say nothing about what will come. Chosen."""

SLOW_BYTES_PER_S = 100e6
"""Over faster ways nothing is gained: making the palettes takes the coordinator as long as it saves, on a core that it may share with an
agent (decision 25)."""

ENCODED_PER_S, DECODED_PER_S = 540e6, 1.5e9
"""Numbers per second: a part of a picture of 640 x 640, one core of an AMD EPYC; 1.1 and 0.4 ms of 614,400."""

_SAMPLE = 4096
"""Numbers that are looked at first, evenly spread over rows and columns: most pictures show their smallest step there."""

_FEW_CHANNELS = 4
"""An axis that is not longer may be that of the colours."""

_HEAD = struct.Struct("<Q")

EXACT = _HEAD.pack(0)
"""What stands before floats that are sent as they are."""


def ways_of_palettes(cluster: Cluster, values: InputValues) -> frozenset[int]:
    """Return the devices that get inputs of few values with palettes: those on the far side of a slow way from the coordinator."""
    if values != "few":
        return frozenset()
    host = cluster.host
    return frozenset(
        device
        for device in range(host)
        if cluster.machine(device) != cluster.machine(host) and cluster.link(host, device).bandwidth_bytes_per_s <= SLOW_BYTES_PER_S
    )


def have_few_values(inputs: Sequence[Array]) -> bool:
    """Whether a model's inputs are of few values, all that matter, and likely to be followed by such."""
    large = [array for array in inputs if array.dtype == np.float32 and array.nbytes >= LEAST_BYTES]
    return bool(large) and all(_is_picture(array) for array in large)


def _is_picture(array: Array) -> bool:
    if encode_with_palettes(array) is None:
        return False
    return any(np.unique(_sample(channel)).size >= LEAST_VALUES for channel in _channels(array, _colours(array.shape)))


def encode_with_palettes(array: Array) -> Array | None:
    """Return the bytes (uint8) of 32-bit floats, one each with their palettes; None if they are few, or have too many values.

    Who sends them then puts `EXACT` in front of what they are.
    """
    if array.nbytes < LEAST_BYTES:
        return None
    axis = _colours(array.shape)
    channels = list(_channels(array, axis))
    cut = _HEAD.size + len(channels) * 4 * MOST
    encoded = np.empty(cut + array.size, np.uint8)
    encoded[: _HEAD.size] = np.frombuffer(_HEAD.pack(len(channels)), np.uint8)
    palettes = encoded[_HEAD.size : cut].view(np.float32).reshape(len(channels), MOST)
    places = _channels(encoded[cut:].reshape(array.shape), axis)
    for channel, palette, target in zip(channels, palettes, places, strict=True):
        if not _encode_channel(channel, palette, target):
            return None
    return encoded


def decode_with_palettes(content: bytes | memoryview | Array, shape: tuple[int, ...]) -> Array:
    """Return the 32-bit floats of such bytes: a view of them if they are as they were.

    Raises:
        RemoteProtocolError: if nothing is encoded so.
    """
    raw, count, axis = np.frombuffer(content, np.uint8), prod(shape), _colours(shape)
    (palettes,) = _HEAD.unpack_from(raw.data) if len(raw) >= _HEAD.size else (MOST,)
    colours = 1 if axis is None else shape[axis]
    if palettes not in {0, colours}:
        raise RemoteProtocolError(f"floats {list(shape)} with palettes: expected {colours} of them or none, got {palettes}")
    cut = _HEAD.size + palettes * 4 * MOST
    expected = cut + (count if palettes else 4 * count)
    if len(raw) != expected:
        raise RemoteProtocolError(f"floats {list(shape)} with palettes: expected {expected} bytes, got {len(raw)}")
    if not palettes:
        return raw[cut:].view(np.float32).reshape(shape)
    values = raw[_HEAD.size : cut].view(np.float32).reshape(palettes, MOST)
    codes = raw[cut:].reshape(shape)
    decoded = np.empty(shape, np.float32)
    for palette, places, target in zip(values, _channels(codes, axis), _channels(decoded, axis), strict=True):
        if target.flags.c_contiguous:
            np.take(palette, places, out=target, mode="wrap")  # a place is always in a palette; the check that it is costs a copy
        else:
            target[...] = palette[places]
    return decoded


def _encode_channel(channel: Array, palette: Array, target: Array) -> bool:
    """Fill the palette and the places of one colour; False if it has too many values, or some between the steps."""
    values = np.unique(_sample(channel))
    if values.size > MOST:
        return False
    least = channel.min()
    with np.errstate(all="ignore"):  # infinities and steps too small to divide by give no places
        per_step = np.float32(1) / (np.diff(values).min() if values.size > 1 else np.float32(1))
        steps = channel - least
        steps *= per_step
        np.rint(steps, out=steps)
    if not (steps.size and steps.min() >= 0 and steps.max() < MOST):
        return False
    np.copyto(target, steps, casting="unsafe")
    palette[...] = 0
    palette[np.rint((values - least) * per_step).astype(np.intp)] = values
    differs = _differs(channel, palette, target)
    if differs.any():  # values that the sample does not have
        palette[target[differs]] = channel[differs]
        return not _differs(channel, palette, target).any()
    return True


def _differs(channel: Array, palette: Array, places: Array) -> Array:
    different: Array = palette.view(np.uint32).take(places) != channel.view(np.uint32)
    return different


def _sample(channel: Array) -> Array:
    dense = channel.reshape(-1)
    return dense[:: dense.size // _SAMPLE | 1]  # an odd stride: rows are mostly an even number of columns


def _colours(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the colours: the second of three and more, or the last, if it is short; None if there is none."""
    axes = (1, len(shape) - 1) if len(shape) > 2 else ()
    return next((axis for axis in axes if shape[axis] <= _FEW_CHANNELS), None)


def _channels(array: Array, axis: int | None) -> Iterator[Array]:
    """Yield views of one index each along an axis, or the array."""
    if axis is None:
        yield array
        return
    for index in range(array.shape[axis]):
        yield array[(slice(None),) * axis + (slice(index, index + 1),)]
