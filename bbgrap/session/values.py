"""Inputs and outputs that are no arrays: lists, dictionaries, None, and numbers that numpy lacks, checked against their ONNX types."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np

from bbgrap.errors import InputError
from bbgrap.graph import onnx_types as kinds
from bbgrap.graph.types import Array, DType
from bbgrap.protocol.values import Numbers, Value, pack_value, unpack_value

_FLOAT8 = range(17, 21)
"""ONNX's codes of numbers whose bytes onnxruntime gives as uint8."""


def packed_input(name: str, serialized: bytes, value: object) -> Array:
    """Return a value for an input of a type, packed.

    Raises:
        InputError: if it is no value of that type.
    """
    try:
        return pack_value(_fitted(kinds.kind_of(serialized), value))
    except _MisfitError as misfit:
        raise InputError(f"input '{name}': expected {kinds.text_of(serialized)}, got {misfit}") from None


def unpacked_output(packed: Array) -> Value:
    """Return a packed output as onnxruntime gives it; numbers that it cannot give become arrays of `ml_dtypes`."""
    return _shown(unpack_value(packed))


class _MisfitError(Exception):
    """A value is not of a type; the message is what it is."""


def _shown(value: Value) -> Value:
    match value:
        case Numbers(code, shape, content):
            array = kinds.array_of_content(code, shape, content)
            return array.view(np.uint8) if code in _FLOAT8 else array
        case np.ndarray():
            return value if value.flags.writeable else value.copy()
        case list():
            return [_shown(item) for item in value]
        case _:
            return value


def _fitted(kind: kinds.ValueKind, value: object) -> Value:
    match kind:
        case kinds.OptionalOf(item=item):
            return None if value is None else _fitted(item, value)
        case kinds.SequenceOf(item=item):
            if not isinstance(value, list | tuple):
                raise _MisfitError(f"{_what(value)}; give a list")
            return [_fitted(item, inner) for inner in value]
        case kinds.MapOf(key=key, item=item):
            return _fitted_map(key, item, value)
        case kinds.TensorOf():
            return _fitted_tensor(kind, value)
        case kinds.Unknown():
            raise _MisfitError(f"{_what(value)}; such values cannot be given")
        case _:
            assert_never(kind)


def _fitted_map(key: DType, item: kinds.ValueKind, value: object) -> Value:
    if not isinstance(value, dict):
        raise _MisfitError(f"{_what(value)}; give a dictionary")
    scalar = _SCALARS.get(item.dtype.numpy.kind) if isinstance(item, kinds.TensorOf) and item.dtype is not DType.OTHER else None
    if scalar is None:
        raise _MisfitError("a dictionary; only those of numbers and texts can be given")
    made: dict[Any, Any] = {}
    as_key = _text if key is DType.STRING else operator.index
    for name, inner in value.items():
        try:
            made[as_key(name)] = scalar(inner)
        except (TypeError, ValueError, OverflowError):
            raise _MisfitError(f"a dictionary with {reprlib.repr(name)}: {reprlib.repr(inner)}") from None
    return made


def _number(value: Any) -> float:  # noqa: ANN401 - whatever float() takes, but for texts, which onnxruntime refuses, too
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_SCALARS: dict[str, Callable[[Any], Any]] = {"f": _number, "i": operator.index, "u": operator.index, "O": _text}
"""What makes the values of a map, by the kind of numpy's type; onnxruntime does not convert either."""


def _fitted_tensor(kind: kinds.TensorOf, value: object) -> Value:
    if value is None or isinstance(value, dict):
        raise _MisfitError(f"{_what(value)}; give an array")
    array: Array = np.asarray(value)
    if kind.dtype is DType.OTHER:
        content = kinds.content_of(array, kind.code)
        if content is None:
            raise _MisfitError(f"{_what(array)}; give an array of the type of that name in `ml_dtypes`")
        return Numbers(kind.code, array.shape, content)
    if DType.of(array.dtype) is kind.dtype:
        return array
    if isinstance(value, np.ndarray | np.generic) and not (array.size == 0 and array.ndim):
        raise _MisfitError(f"{_what(array)}; convert it with .astype")
    try:
        return np.asarray(value, kind.dtype.numpy)  # lists have no element type of their own
    except (TypeError, ValueError, OverflowError) as error:
        raise _MisfitError(f"{_what(value)}: {error}") from None


def _what(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
