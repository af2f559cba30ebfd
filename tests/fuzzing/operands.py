"""Where operands come from: weights in all the forms that exporters write, and values of the model made to fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper, numpy_helper

from bbgrap.graph import Array
from tests.fuzzing.growth import Growth, elem_type, size_of


def normal(growth: Growth, shape: Sequence[int], dtype: type = np.float32, scale: float = 1.0) -> Array:
    """Return normal floats of a scale, or small integers."""
    if np.issubdtype(dtype, np.floating):
        return np.asarray(growth.random.standard_normal(tuple(shape)) * scale).astype(dtype)
    if dtype is np.bool_:
        return growth.random.integers(0, 2, tuple(shape)).astype(np.bool_)
    return growth.random.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -9, 10, tuple(shape)).astype(dtype)


def ints(growth: Growth, *values: int) -> str:
    """Add a 1-D parameter."""
    return parameter(growth, np.array(values, np.int64))


def parameter(growth: Growth, array: Array) -> str:
    """Add an operand that steers an operator: an initializer, seldom in a form that must be folded first."""
    form = growth.random.random()
    if growth.plain:
        return growth.keep(array)
    if form < 0.03 and array.dtype.kind != "O":
        return constant(growth, array)
    name = growth.keep(array)
    if form < 0.05:
        return (growth.add("Identity", [name]) or [name])[0]
    return name


def constant(growth: Growth, array: Array) -> str:
    """Add a Constant node."""
    (name,) = growth.add("Constant", [], value=numpy_helper.from_array(array)) or [growth.keep(array)]
    if name in growth.made:
        growth.made.remove(name)
    return name


def weight(growth: Growth, array: Array) -> str:
    """Add an operand with data: an initializer, a model input, or computed from one; its values may change a little."""
    form = growth.random.random()
    if growth.plain or array.dtype.kind == "O" or form < 0.55:
        return growth.keep(array)
    if form < 0.70:
        return growth.give(array)
    made = growth.one_of(_cast, _transposed, _transposed, _dequantized, _dequantized, _reshaped, _scaled, constant)(growth, array)
    if made is None:
        return growth.keep(array)
    if made in growth.made:
        growth.made.remove(made)
    return made


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


def _stored(growth: Growth, array: Array) -> str:
    return growth.give(array) if growth.chance(0.2) else growth.keep(array)


def _cast(growth: Growth, array: Array) -> str | None:
    if array.dtype.kind != "f":
        return _first(growth.add("Identity", [growth.keep(array)]))
    other = growth.one_of(*{np.float16, np.float32, np.float64} - {array.dtype.type})
    return _first(growth.add("Cast", [_stored(growth, array.astype(other))], to=elem_type(array)))


def _transposed(growth: Growth, array: Array) -> str | None:
    order = [int(axis) for axis in growth.random.permutation(array.ndim)]
    stored = np.ascontiguousarray(array.transpose(np.argsort(order))) if order else array
    return _first(growth.add("Transpose", [_stored(growth, stored)], **({"perm": order} if order else {})))


def _reshaped(growth: Growth, array: Array) -> str | None:
    return _first(growth.add("Reshape", [_stored(growth, array.reshape(-1)), ints(growth, *array.shape)])) if array.ndim else None


def _scaled(growth: Growth, array: Array) -> str | None:
    if array.dtype.kind != "f":
        return None
    factor = growth.keep(np.array(0.5, array.dtype))
    return _first(growth.add("Mul", [_stored(growth, array * 2), factor]))


def _dequantized(growth: Growth, array: Array) -> str | None:
    if array.dtype != np.float32 or not array.size:
        return None
    kind = growth.one_of(np.int8, np.uint8)
    zero = 128 if kind is np.uint8 else 0
    axis = growth.number(0, array.ndim - 1) if array.ndim and growth.chance(0.5) else None
    others = None if axis is None else tuple(a for a in range(array.ndim) if a != axis)
    scale = np.maximum(np.abs(array).max(axis=others, keepdims=axis is not None) / 127, 1e-4).astype(np.float32)
    stored = np.clip(np.round(array / scale) + zero, zero - 127, zero + 127).astype(kind)
    flat = scale.reshape(-1) if axis is not None else np.float32(scale.reshape(()))
    zeros = np.full(np.shape(flat), zero, kind)
    names = [_stored(growth, stored), growth.keep(np.asarray(flat)), growth.keep(zeros)]
    return _first(growth.add("DequantizeLinear", names, **({"axis": axis} if axis is not None else {})))


def fitted(growth: Growth, name: str, shape: Sequence[int], dtype: np.dtype | None = None) -> str | None:
    """Return a value of a shape and type made of another one; None if there is no way."""
    array = growth.values[name]
    if dtype is not None and array.dtype != dtype:
        if "O" in (array.dtype.kind, np.dtype(dtype).kind):
            return None
        found = growth.add("Cast", [name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        if not found:
            return None
        (name,) = found
        array = growth.values[name]
    shape = tuple(shape)
    if array.shape == shape:
        return name
    if not array.size or not size_of(shape):
        return None
    if array.ndim == len(shape) and array.ndim and growth.chance(0.7):
        return _sliced_and_padded(growth, name, shape)
    return _refilled(growth, name, shape)


def _sliced_and_padded(growth: Growth, name: str, shape: tuple[int, ...]) -> str | None:
    array = growth.values[name]
    less = [axis for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True)) if have > want]
    if less:
        starts = [growth.number(0, array.shape[a] - shape[a]) for a in less]
        ends = [start + shape[a] for start, a in zip(starts, less, strict=True)]
        found = growth.add("Slice", [name, ints(growth, *starts), ints(growth, *ends), ints(growth, *less)])
        if not found:
            return None
        (name,) = found
    have = growth.values[name].shape
    if have == shape:
        return name
    if all(h in (1, w) for h, w in zip(have, shape, strict=True)):
        return _first(growth.add("Expand", [name, ints(growth, *shape)]))
    before = [growth.number(0, w - h) for h, w in zip(have, shape, strict=True)]
    after = [w - h - b for h, w, b in zip(have, shape, before, strict=True)]
    mode = growth.one_of("constant", "edge")
    return _first(growth.add("Pad", [name, ints(growth, *before, *after)], mode=mode))


def _refilled(growth: Growth, name: str, shape: tuple[int, ...]) -> str | None:
    have, want = growth.values[name].size, size_of(shape)
    if have != want:
        flat = growth.add("Reshape", [name, ints(growth, -1)])
        if flat and have < want:
            flat = growth.add("Tile", [flat[0], ints(growth, -(-want // have))])
        if flat and growth.values[flat[0]].size != want:
            flat = growth.add("Slice", [flat[0], ints(growth, 0), ints(growth, want), ints(growth, 0)])
        if not flat:
            return None
        (name,) = flat
    return _first(growth.add("Reshape", [name, ints(growth, *shape)])) if growth.values[name].shape != shape else name
