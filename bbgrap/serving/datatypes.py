"""The protocol's tensors and numpy's: names of types, and contents as raw bytes or as lists.

Raw contents are in C order, little endian; each text of `BYTES` follows its length in 4 bytes. Laws: what came as bytes is a view of them,
never a copy; contents that are not the tensor that was announced are refused, nothing else is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from bbgrap.graph.onnx_types import array_of_content
from bbgrap.graph.types import Array, DType
from bbgrap.serving.refusals import malformed

BodyBytes = bytes | bytearray | memoryview

BF16 = array_of_content(DType.BFLOAT16.value, (0,), b"").dtype
"""`bfloat16` of `ml_dtypes`, of whichever version onnx brings."""

NUMPY: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{name: np.dtype(name.lower()) for name in ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")},
    "FP16": np.dtype(np.float16),
    "BF16": BF16,
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(object),
}
"""The protocol's types."""

_OF_ONNX = {f"tensor({name.lower()})": name for name in NUMPY} | {
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_MAX_RANK = 64
"""numpy's."""

_FROM = {"b": "b", "i": "iu", "u": "iuO", "f": "iuf", "V": "iuf"}
"""Of what kinds of numbers in a list a tensor of a kind may be made."""


def datatype_of(onnx_type: str) -> str | None:
    """Return the protocol's name of a type, `tensor(float)`; None if it has none."""
    return _OF_ONNX.get(onnx_type)


def datatype_of_array(array: Array) -> str:
    """Return the protocol's name of the type of an output."""
    if array.dtype.kind in "OUST":
        return "BYTES"
    return next(name for name, dtype in NUMPY.items() if dtype == array.dtype)


def check_shape(name: str, datatype: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """Return type and shape of an input as announced.

    Raises:
        RefusedError: if the protocol has no such type, or it is no shape.
    """
    if not isinstance(datatype, str) or datatype not in NUMPY:
        raise malformed(f"input '{name}': datatype: expected one of {', '.join(NUMPY)}, got {_shown(datatype)}")
    sizes = list(shape) if isinstance(shape, Iterable) and not isinstance(shape, str | Mapping) else None
    if sizes is None or len(sizes) > _MAX_RANK or not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise malformed(f"input '{name}': shape: expected a list of sizes, got {_shown(shape)}")
    return datatype, tuple(sizes)


def of_bytes(name: str, datatype: str, shape: tuple[int, ...], content: BodyBytes) -> Array:
    """Return the tensor of raw bytes.

    Raises:
        RefusedError: if they are not that tensor.
    """
    if datatype == "BYTES":
        return _shaped(name, _texts(name, prod(shape), memoryview(content)), shape)
    dtype = NUMPY[datatype]
    expected = prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise malformed(f"input '{name}': {datatype}{list(shape)} takes {expected} bytes, got {len(content)}")
    if datatype == "BOOL" and (np.frombuffer(content, np.uint8) > 1).any():
        raise malformed(f"input '{name}': a BOOL is a byte 0 or 1")
    # numpy knows foreign types only by their views
    flat = np.frombuffer(content, np.uint16).view(dtype) if datatype == "BF16" else np.frombuffer(content, dtype)
    return _shaped(name, flat, shape)


def _texts(name: str, count: int, content: memoryview) -> Array:
    if 4 * count > len(content):
        raise malformed(f"input '{name}': {count} texts are not in {len(content)} bytes")
    texts: Array = np.empty(count, object)
    start = 0
    try:
        for number in range(count):
            (length,) = struct.unpack_from("<I", content, start)
            start += 4 + length
            if start > len(content):
                raise malformed(f"input '{name}': text {number} of {count} ends behind the content")
            texts[number] = str(content[start - length : start], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise malformed(f"input '{name}': it is no list of {count} texts in UTF-8, each behind its length: {error}") from None
    if start != len(content):
        raise malformed(f"input '{name}': {len(content) - start} bytes follow the last of {count} texts")
    return texts


def of_list(name: str, datatype: str, shape: tuple[int, ...], data: Sequence[Any]) -> Array:
    """Return the tensor of a list, flat or nested.

    Raises:
        RefusedError: if it is not that tensor.
    """
    dtype = NUMPY[datatype]
    try:
        if dtype.kind != "O" and (text := _text_in(data)) is not None:  # numpy would make texts of all, each as long as the longest
            raise malformed(f"input '{name}': data: expected numbers of {datatype}, got {_shown(text)} among others")
        array = _of_kind(dtype.kind, data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise malformed(f"input '{name}': data: {error}") from None
    if array.size != prod(shape):
        raise malformed(f"input '{name}': {datatype}{list(shape)} has {prod(shape)} elements, got {array.size}")
    flat = array.reshape(-1)
    if datatype == "BYTES":
        return _shaped(name, _list_of_texts(name, flat), shape)
    if flat.size and flat.dtype.kind not in _FROM[dtype.kind]:
        raise malformed(f"input '{name}': data: expected numbers of {datatype}, got {_shown(flat.tolist()[0])} among others")
    if dtype.kind in "iu" and flat.size:
        if flat.dtype.kind == "O" and not all(type(item) is int for item in flat):
            raise malformed(f"input '{name}': data: expected numbers of {datatype}, got {_shown(flat[0])} among others")
        least, most = int(flat.min()), int(flat.max())
        if least < np.iinfo(dtype).min or most > np.iinfo(dtype).max:
            raise malformed(f"input '{name}': data: expected numbers of {datatype}, got {least} to {most}")
    with np.errstate(over="ignore"):
        converted = flat.astype(dtype)
    if dtype.kind in "fV" and flat.size and not np.array_equal(np.isfinite(converted.astype(np.float64)), np.isfinite(flat)):
        raise malformed(f"input '{name}': data: a number is too large for {datatype}")
    return _shaped(name, converted, shape)


def _of_kind(kind: str, data: Sequence[Any]) -> Array:
    """Return a list as what numpy makes of it, but for numbers that are another kind to it than they are to JSON."""
    array = np.array(data, object) if kind == "O" else np.array(data)
    if kind == "u" and array.dtype.kind == "f":  # small integers beside such from 2 ** 63 on
        whole = np.array(data, object)
        return whole if all(type(item) is int for item in whole.flat) else array
    if kind in "fV" and array.dtype.kind == "O" and all(type(item) in (int, float) for item in array.flat):  # integers from 2 ** 64 on
        return array.astype(np.float64)
    return array


def _text_in(data: Sequence[Any]) -> str | bytes | None:
    kinds = set(map(type, data))
    if not kinds.isdisjoint((str, bytes)):
        return next(item for item in data if isinstance(item, str | bytes))
    inner = (_text_in(item) for item in data if type(item) is list) if list in kinds else ()
    return next((text for text in inner if text is not None), None)


def _list_of_texts(name: str, flat: Array) -> Array:
    texts: Array = np.empty(flat.size, object)
    for number, item in enumerate(flat):
        if not isinstance(item, str | bytes):
            raise malformed(f"input '{name}': data: expected texts, got {_shown(item)}")
        try:
            texts[number] = (item.encode() if isinstance(item, str) else item).decode()  # JSON may have halves of characters
        except UnicodeError as error:
            raise malformed(f"input '{name}': text {number}: {error}") from None
    return texts


def _shaped(name: str, flat: Array, shape: tuple[int, ...]) -> Array:
    try:
        return flat.reshape(shape)
    except ValueError as error:  # without elements, but of extents that numpy cannot multiply
        raise malformed(f"input '{name}': shape {list(shape)}: {error}") from None


def to_bytes(array: Array) -> BodyBytes:
    """Return the raw content of an output: a view, unless it is of texts."""
    if array.dtype.kind in "OUST":
        encoded = [str(item).encode() for item in array.reshape(-1).tolist()]
        return b"".join(part for text in encoded for part in (struct.pack("<I", len(text)), text))
    dense = np.ascontiguousarray(array)
    return dense.reshape(-1).view(np.uint8).data if dense.size else b""


def to_list(array: Array) -> list[Any]:
    """Return the elements of an output, flat."""
    plain = array.astype(np.float32) if array.dtype == BF16 else array
    return plain.reshape(-1).tolist()


def _shown(value: object) -> str:
    """Return what a message shows of anything that a stranger sent."""
    text = repr(value[:80] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
