"""Dictionary encoding of low-cardinality inputs: where a channel has at most 256 values a byte a number travels, and nothing is lost.

A picture of 8 bits a colour becomes a network's input by a division, a mean and a deviation per colour, so a channel has at most 256
values, at equal steps up to rounding. These are sent once, as its *dictionary*, and every number as its place there. Whether that holds is
seen number by number; what has more values, or others between the steps, is sent as it is.

    dictionaries: one per colour (0: exact floats follow) | 256 floats each | a byte a number, in C order

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
"""Of floats, for which it is worth the trouble: dictionaries of three colours are 3 KB. Plans count on a byte a number everywhere."""

LEAST_VALUES = 16
"""That an input of low cardinality has: zeros or ones, with which people try things, say nothing about what will come. Chosen."""

SLOW_BYTES_PER_S = 100e6
"""Over faster links nothing is gained: at 1 Gbit/s a chunked input hides behind work already, and the coordinator, which makes the
dictionaries, shares a core with an agent (decision 25)."""

ENCODED_PER_S, DECODED_PER_S = 540e6, 1.5e9
"""Numbers per second: a part of a picture of 640 x 640, one core of an AMD EPYC; 1.1 and 0.4 ms of 614,400."""

_SAMPLE = 4096
"""Numbers that are looked at first, evenly spread over rows and columns: most pictures show their smallest step there."""

_BLOCK = 1 << 18
"""Numbers that are looked at together: some sixteen bytes for each are taken meanwhile, and stay in caches."""

_FEW_CHANNELS = 4
"""An axis that is not longer may be that of the colours."""

_HEAD = struct.Struct("<Q")

EXACT = _HEAD.pack(0)
"""What stands before floats that are sent as they are."""


def dictionary_devices_of(cluster: Cluster, values: InputValues) -> frozenset[int]:
    """Return the devices that get low-cardinality inputs encoded: those on the far side of a slow link from the coordinator."""
    if values != "few":
        return frozenset()
    host = cluster.host
    return frozenset(
        device
        for device in range(host)
        if cluster.machine(device) != cluster.machine(host) and cluster.link(host, device).bandwidth_bytes_per_s <= SLOW_BYTES_PER_S
    )


def have_few_values(inputs: Sequence[Array]) -> bool:
    """Whether a model's inputs are of low cardinality, all that matter, and likely to be followed by such."""
    large = [array for array in inputs if array.dtype == np.float32 and array.nbytes >= LEAST_BYTES]
    return bool(large) and all(_is_low_cardinality(array) for array in large)


def _is_low_cardinality(array: Array) -> bool:
    samples = (np.unique(_sample(channel)) for channel in _channels(array, _colours(array.shape)))
    return any(values.size >= LEAST_VALUES for values in samples) and encode_with_dictionary(array) is not None


def encode_with_dictionary(array: Array) -> Array | None:
    """Return the bytes (uint8) of 32-bit floats, one each after their dictionaries; None if they are few, or have too many values.

    Who sends them then puts `EXACT` in front of what they are.
    """
    if array.nbytes < LEAST_BYTES:
        return None
    axis = _colours(array.shape)
    channels = list(_channels(array, axis))
    cut = _HEAD.size + len(channels) * 4 * MOST
    encoded = np.empty(cut + array.size, np.uint8)
    encoded[: _HEAD.size] = np.frombuffer(_HEAD.pack(len(channels)), np.uint8)
    dictionaries = encoded[_HEAD.size : cut].view(np.float32).reshape(len(channels), MOST)
    places = _channels(encoded[cut:].reshape(array.shape), axis)
    for channel, dictionary, target in zip(channels, dictionaries, places, strict=True):
        if not _encode_channel(channel, dictionary, target):
            return None
    return encoded


def decode_with_dictionary(content: bytes | memoryview | Array, shape: tuple[int, ...]) -> Array:
    """Return the 32-bit floats of such bytes: a view of them if they are as they were.

    Raises:
        RemoteProtocolError: if nothing is encoded so.
    """
    raw, count, axis = np.frombuffer(content, np.uint8), prod(shape), _colours(shape)
    (dictionaries,) = _HEAD.unpack_from(raw.data) if len(raw) >= _HEAD.size else (MOST,)
    colours = 1 if axis is None else shape[axis]
    if dictionaries not in {0, colours}:
        raise RemoteProtocolError(f"floats {list(shape)} with dictionaries: expected {colours} of them or none, got {dictionaries}")
    cut = _HEAD.size + dictionaries * 4 * MOST
    expected = cut + (count if dictionaries else 4 * count)
    if len(raw) != expected:
        raise RemoteProtocolError(f"floats {list(shape)} with dictionaries: expected {expected} bytes, got {len(raw)}")
    try:
        if not dictionaries:
            return raw[cut:].view(np.float32).reshape(shape)
        codes = raw[cut:].reshape(shape)
        decoded = np.empty(shape, np.float32)
    except ValueError as error:  # without elements, but of extents that numpy cannot multiply
        raise RemoteProtocolError(f"floats {list(shape)} with dictionaries: {error}") from error
    values = raw[_HEAD.size : cut].view(np.float32).reshape(dictionaries, MOST)
    for dictionary, places, target in zip(values, _channels(codes, axis), _channels(decoded, axis), strict=True):
        if target.flags.c_contiguous:
            np.take(dictionary, places, out=target, mode="wrap")  # a place is always in a dictionary; the check that it is costs a copy
        else:
            target[...] = dictionary[places]
    return decoded


def _encode_channel(channel: Array, dictionary: Array, target: Array) -> bool:
    """Fill the dictionary and the places of one colour; False if it has too many values, or some between the steps."""
    values = np.unique(_sample(channel))
    if not 0 < values.size <= MOST:
        return False
    least, blocks = channel.min(), list(_blocks(channel, target))
    with np.errstate(all="ignore"):  # infinities and steps too small to divide by give no places
        per_step = np.float32(1) / (np.diff(values).min() if values.size > 1 else np.float32(1))
        for block, places in blocks:
            steps = block - least
            steps *= per_step
            np.rint(steps, out=steps)
            if not (steps.min() >= 0 and steps.max() < MOST):
                return False
            np.copyto(places, steps, casting="unsafe")
    dictionary[...] = 0
    dictionary[np.rint((values - least) * per_step).astype(np.intp)] = values
    is_as_sampled = True
    for block, places in blocks:
        differs = _differs(block, dictionary, places)
        if differs.any():  # values that the sample does not have
            dictionary[places[differs]] = block[differs]
            is_as_sampled = False
    return is_as_sampled or not any(_differs(block, dictionary, places).any() for block, places in blocks)


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield parts of arrays of one shape, cut along their longest axis."""
    shape = arrays[0].shape
    axis = int(np.argmax(shape))
    step = max(1, _BLOCK * shape[axis] // arrays[0].size)
    for start in range(0, shape[axis], step):
        yield tuple(array[(slice(None),) * axis + (slice(start, start + step),)] for array in arrays)


def _differs(channel: Array, dictionary: Array, places: Array) -> Array:
    different: Array = dictionary.view(np.uint32).take(places) != channel.view(np.uint32)
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
