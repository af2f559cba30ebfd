"""Between onnxruntime's `OrtValue` and the values that a session takes and gives; memory is shared where numpy has the type."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from bbgrap.errors import InputError, UnsupportedError
from bbgrap.graph.onnx_types import array_of_content
from bbgrap.graph.types import STORABLE, Array, DType

_STRING, _BFLOAT16 = 8, 16
_BYTES = range(17, 21)
"""ONNX's codes of numbers of one byte that numpy lacks."""


def values_of(feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a feed in which nothing is an `OrtValue`.

    Raises:
        UnsupportedError: if one of them holds no numbers.
    """
    if not any(isinstance(value, ort.OrtValue | ort_state.OrtValue) for value in feed.values()):
        return feed
    return {name: _value_of(name, value) for name, value in feed.items()}


def _value_of(name: str, value: Any) -> Any:  # noqa: ANN401 - whatever a session takes
    inner = value._ortvalue if isinstance(value, ort.OrtValue) else value
    if not isinstance(inner, ort_state.OrtValue):
        return value
    if not inner.is_tensor() or inner.element_type() == _STRING:
        raise UnsupportedError(
            f"'{name}': expected an OrtValue with a tensor of numbers, got {inner.data_type()}; give it as a Python value"
        )
    # What is seen keeps the OrtValue, which keeps its memory, or the array to which that belongs.
    return array_at(inner.data_ptr(), inner.element_type(), inner.shape(), f"'{name}'", owner=value)


def ortvalue_of(name: str, value: Any) -> ort.OrtValue:  # noqa: ANN401 - whatever a session gives
    """Return an output as an `OrtValue` that shares its memory.

    Raises:
        UnsupportedError: if it is no tensor of numbers: onnxruntime has no way to make an `OrtValue` of it.
    """
    if _code_of(name, value) == _BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(np.uint16), _BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))


def inner_value_of(name: str, value: Any) -> Any:  # noqa: ANN401 - onnxruntime ships no types
    """Return a copy of an output as what is in an `OrtValue`; it has memory of its own, since it could not keep an array alive.

    Raises:
        UnsupportedError: if it is no tensor of numbers.
    """
    code = _code_of(name, value)
    inner = ort_state.OrtValue.ortvalue_from_shape_and_onnx_type(value.shape, code, ort.OrtDevice.make("cpu", 0)._get_c_device())
    array_at(inner.data_ptr(), code, value.shape, f"output '{name}'")[...] = value
    return inner


def _code_of(name: str, value: Any) -> int:  # noqa: ANN401 - whatever a session gives
    """Return ONNX's code of an output's elements."""
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return _BFLOAT16
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return DType.of(value.dtype).value
    what = f"{value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise UnsupportedError(f"output '{name}': only numbers can be given as an OrtValue, not {what}; `run` gives it as a Python value")


def array_at(pointer: int, element_type: object, shape: Sequence[int], who: str, owner: object = None) -> Array:
    """Return the array that lies at an address; `owner` is kept alive with it.

    Args:
        pointer: Address of the first element.
        element_type: numpy's, or ONNX's number of it.
        shape: Lengths of the axes, in elements.
        who: What messages call it.
        owner: What the memory belongs to.

    Raises:
        UnsupportedError: if the elements are texts, or take less than a byte each.
    """
    dtype = _dtype_of(element_type, who)
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.empty(tuple(shape), dtype)
    memory = (ctypes.c_char * size).from_address(pointer)
    memory.owner = owner  # type: ignore[attr-defined]  # any attribute can be set
    array: Array = np.frombuffer(memoryview(memory), dtype).reshape(tuple(shape))
    return array


def _dtype_of(element_type: object, who: str) -> np.dtype[Any]:
    dtype: np.dtype[Any]
    if not isinstance(element_type, int):
        dtype = np.dtype(element_type)  # type: ignore[call-overload]  # whatever numpy makes one of
    elif element_type in {each.value for each in STORABLE}:
        dtype = DType(element_type).numpy
    elif element_type == _BFLOAT16 or element_type in _BYTES:
        dtype = array_of_content(element_type, (0,), b"").dtype
    else:
        raise UnsupportedError(f"{who}: elements of ONNX's type {element_type} cannot be bound; give them to `run` as an array")
    if dtype.kind in "OSU":
        raise UnsupportedError(f"{who}: texts cannot be bound by their address; give them to `run` as an array")
    return dtype


def write_into(place: Array, value: Any, name: str) -> None:  # noqa: ANN401 - whatever a session gives
    """Copy an output into memory that was bound for it.

    Raises:
        InputError: if type or shape do not fit.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and place.dtype.itemsize == 1:
        value = value.view(place.dtype)  # how a session gives numbers of one byte that numpy lacks
    if not isinstance(value, np.ndarray) or value.dtype != place.dtype or value.shape != place.shape:
        got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"output '{name}': memory for {place.dtype}{list(place.shape)} is bound, but the model gives {got}")
    place[...] = value
