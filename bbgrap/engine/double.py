"""A model's answer in 64-bit floats: nearly what it would be without rounding.

Every operator runs by itself: in onnxruntime where that has a 64-bit kernel, else by its definition in numpy (the ONNX package's
reference implementation, `double_windows`, `double_fused`). That may have faults of its own, so it must agree with onnxruntime's 32-bit
kernel on the same operands, by `AGREEMENT`. Where it does not, or there is no definition, or the model is too large for it, there is no
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bbgrap.engine.sessions import make_session, owned
from bbgrap.graph.onnx_double import Operator, wide, widened
from bbgrap.graph.onnx_io import OnnxModel
from bbgrap.graph.types import Array

AGREEMENT = 1e-3
"""How far a reference implementation may be from onnxruntime in 32 bits, relative to the largest result. Chosen: rounding within one
operator is a hundredth of it, and a fault of the implementation is more."""

MOST_PRODUCTS = 200_000_000_000
"""Multiplications in convolutions that reference implementations compute. Chosen: they take a minute or two, and are asked last of all."""


def double_answer(model: OnnxModel, feeds: Mapping[str, Array]) -> list[Array] | None:
    """Run a model in 64-bit floats; None if that cannot be done here."""
    double = widened(model)
    values = {**double.constants, **{name: np.asarray(array) for name, array in feeds.items()}}
    products = 0
    for operator, freed in zip(double.operators, double.freed, strict=True):
        if any(name not in values for name in operator.reads):
            return None  # an input with a default that nobody gives
        operands = operator.operands(values)
        try:
            results = _in_onnxruntime(operator, operands)
        except Exception:  # no 64-bit kernel: onnxruntime's exceptions have no common base
            results, more = _by_definition(operator, operands, MOST_PRODUCTS - products)
            products += more
        if not results or not all(isinstance(result, np.ndarray) for result in results):
            return None  # a sequence, a map, or nothing
        values.update(zip(operator.writes, results, strict=True))
        for name in freed:
            del values[name]
    return [wide(values[name]) for name in double.outputs]


def _in_onnxruntime(operator: Operator, operands: Mapping[str, Array]) -> Sequence[Array]:
    return owned(make_session(operator.alone(operands), threads=1).run(list(operator.writes), dict(operands)))


def _by_definition(operator: Operator, operands: Mapping[str, Array], budget: int) -> tuple[Sequence[Array], int]:
    """Return what the reference implementation computes, if it agrees with onnxruntime in 32 bits, and its products; else nothing."""
    single = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in operands.items()}
    try:
        wanted = _in_onnxruntime(operator, single)
        products = operator.products(operands, wanted)
        results = [] if products > budget else [np.asarray(result) for result in operator.by_definition(operands, np.shape(wanted[0])[2:])]
    except Exception:  # whatever onnxruntime, numpy and the reference implementations raise
        return [], 0
    agree = len(results) == len(wanted) and all(map(_agree, results, wanted))
    return (results if agree else []), products


def _agree(result: Array, wanted: Array) -> bool:
    if result.shape != wanted.shape or result.dtype.kind != wanted.dtype.kind:
        return False
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(result, wanted))
    largest = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted)))
    return bool(np.allclose(result, wanted, rtol=0.0, atol=AGREEMENT * largest, equal_nan=True))
