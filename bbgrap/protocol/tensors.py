"""The content of tensors as bytes: C order, little endian; strings are a list of msgpack's.

Laws: `decode_array` of what `encode_array` made is the same tensor; it raises nothing but `RemoteProtocolError`.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import msgpack
import numpy as np

from bbgrap.errors import ModelError, RemoteProtocolError
from bbgrap.graph.types import Array, DType
from bbgrap.protocol.decoded_size import check_growth
from bbgrap.protocol.limits import MAX_MESSAGE_BYTES, MAX_TENSOR_BYTES
from bbgrap.protocol.messages import BytesLike, TensorHeader
from bbgrap.runtime.schedule import Schedule

_STRINGS_GROWTH = 40
"""A text of two letters takes 3 bytes, and 72 as one of Python's."""

UNTOUCHED_BYTES = 16 << 20
"""From here on synthetic floats are zeros. Chosen: only weights and caches are as large, and a gigabyte of ones takes 0.8 s to write."""

MAX_ONES_BYTES = 256 << 20
"""Of synthetic inputs that are not zeros. Chosen: they are written in 0.2 s, in which a coordinator does nothing else."""

Inputs = tuple[tuple[TensorHeader, ...], tuple[BytesLike, ...]]
"""The inputs of a request, and their contents."""


def synthetic_inputs(host: Schedule) -> Inputs | None:
    """Return inputs of the right types for a host's schedule; None if they are not numbers, or are so large that none are made.

    All are ones (integers may be divisors), but large ones of floats are zeros, for which the system takes no memory. A client may ask for
    a plan of any shapes: what none could send is not made.
    """
    specs = [host.buffers[buffer] for buffer in host.feeds]
    shapes = [spec.shape for spec in specs if spec.shape is not None and spec.dtype is not DType.STRING]
    if len(shapes) < len(specs):
        return None
    headers = tuple(TensorHeader(spec.name, spec.dtype, shape) for spec, shape in zip(specs, shapes, strict=True))
    sizes = [prod(header.shape) * header.dtype.itemsize for header in headers]
    ones_bytes = sum(size for size, header in zip(sizes, headers, strict=True) if not _is_zeros(header))
    if max(sizes, default=0) > MAX_TENSOR_BYTES or sum(sizes) > MAX_MESSAGE_BYTES or ones_bytes > MAX_ONES_BYTES:
        return None
    return headers, tuple(encode_array(_synthetic(header)) for header in headers)


def _synthetic(header: TensorHeader) -> Array:
    return (np.zeros if _is_zeros(header) else np.ones)(header.shape, header.dtype.numpy)


def _is_zeros(header: TensorHeader) -> bool:
    return header.dtype.numpy.kind == "f" and prod(header.shape) * header.dtype.itemsize >= UNTOUCHED_BYTES


def given_bytes(host: Schedule) -> int:
    """Return the bytes of a host's inputs, as far as their shapes are known before a run."""
    specs = [host.buffers[buffer] for buffer in host.feeds]
    return sum(prod(spec.shape) * spec.dtype.itemsize for spec in specs if spec.shape is not None)


def encode_array(array: Array) -> BytesLike:
    """Return the content of a tensor: C order, little endian; a view where it already is that."""
    if array.dtype.kind in "OUST":
        items = [item if isinstance(item, bytes) else str(item) for item in array.reshape(-1).tolist()]
        return cast("bytes", msgpack.packb(items, use_bin_type=False))
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return dense.reshape(-1).view(np.uint8).data


def decode_array(dtype: DType, shape: tuple[int, ...], content: BytesLike) -> Array:
    """Return the tensor of some bytes: a read-only view where they are aligned, else a copy.

    Raises:
        RemoteProtocolError: if the bytes are not that tensor.
    """
    count = prod(shape)
    if dtype is DType.STRING:
        return _decode_strings(shape, content)
    try:
        kind: np.dtype[Any] = dtype.numpy
    except ModelError as error:
        raise RemoteProtocolError(str(error)) from error
    if count * kind.itemsize != len(content) or count > MAX_TENSOR_BYTES:
        raise RemoteProtocolError(f"tensor {dtype.name.lower()}{list(shape)}: expected {count * kind.itemsize} bytes, got {len(content)}")
    try:
        return view_of(kind, shape, content, 0, len(content))
    except ValueError as error:  # without elements, but of extents that numpy cannot multiply
        raise RemoteProtocolError(f"tensor {dtype.name.lower()}{list(shape)}: {error}") from error


def _decode_strings(shape: tuple[int, ...], content: BytesLike) -> Array:
    count = prod(shape)
    if count > len(content):
        raise RemoteProtocolError(f"strings {list(shape)}: they are not in these {len(content)} bytes")
    try:
        check_growth(content, _STRINGS_GROWTH)
        texts = msgpack.unpackb(content, use_list=False, max_array_len=count, max_map_len=0, max_ext_len=0)
    except (ValueError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"strings {list(shape)}: {error}") from error
    if not isinstance(texts, tuple) or len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise RemoteProtocolError(f"strings {list(shape)}: they are not in these {len(content)} bytes")
    array: Array = np.empty(len(texts), object)
    array[:] = texts
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise RemoteProtocolError(f"strings {list(shape)}: {error}") from error


def view_of(dtype: np.dtype[Any], shape: tuple[int, ...], content: BytesLike, start: int, nbytes: int) -> Array:
    """Return the array that begins at a byte of a content: a view where it is aligned, else a copy."""
    array: Array = np.ndarray(shape, dtype, content, start) if nbytes else np.empty(shape, dtype)
    # Kernels are compiled for aligned elements; a vectorised loop over others may fault.
    return array if array.flags.aligned else array.copy()
