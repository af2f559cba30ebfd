"""How far an answer may be from plain onnxruntime's: as far as onnxruntime is from itself, and a little for the order of sums.

`onnxruntime_answers` runs a model in several honest ways: every level of graph optimisation, one and two threads. Elements on which these
disagree in kind (finite or not) or, for integers, in value, bind nobody. `excess` is the one function that decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from bbgrap.graph import Array

ROUNDING = {2: 2e-3, 4: 1e-5, 8: 1e-5}
"""Allowed in any case, relative to the largest magnitude of the output, by bytes per number."""

TIMES_SPREAD = 4.0
"""Allowed in multiples of what onnxruntime differs from itself."""

ULP = {2: 1e-3, 4: 1.2e-7, 8: 2.3e-16}


class PlainFailureError(Exception):
    """Plain onnxruntime does not load or run the model: nothing to compare with."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What onnxruntime makes of a model: first as users run it (all optimisations, one thread), then in other ways."""

    plain: list[Any]
    others: tuple[list[Any], ...]
    least_bytes: int = 8
    """Bytes of the narrowest float inside the model: wider outputs are rounded as that is, wherever a model is cut."""


def onnxruntime_answers(model: bytes, feeds: Mapping[str, Array]) -> Answers:
    """Run a model in all ways.

    Raises:
        PlainFailureError: if it fails at all optimisations, one thread.
    """
    level = ort.GraphOptimizationLevel
    try:
        plain = _run(model, feeds, level.ORT_ENABLE_ALL, 1)
    except Exception as error:  # its exceptions have no common base
        raise PlainFailureError(" ".join(str(error).split())[:300]) from None
    others = []
    for optimisation, threads in (
        (level.ORT_DISABLE_ALL, 1), (level.ORT_ENABLE_BASIC, 1), (level.ORT_ENABLE_EXTENDED, 1), (level.ORT_ENABLE_ALL, 2),
    ):  # fmt: skip
        try:
            others.append(_run(model, feeds, optimisation, threads))
        except Exception:  # noqa: S112 - some models run at some levels only
            continue
    return Answers(plain, tuple(others), least_float(model))


def least_float(model: bytes) -> int:
    """Return the bytes of the narrowest float that a model declares, holds or casts to; 8 if it has none that is narrower."""
    graph = onnx.load_from_string(model).graph
    kinds = {tensor.data_type for tensor in graph.initializer} | {value.type.tensor_type.elem_type for value in graph.input}
    kinds |= {attribute.i for node in graph.node if node.op_type == "Cast" for attribute in node.attribute if attribute.name == "to"}
    kinds |= {attribute.t.data_type for node in graph.node for attribute in node.attribute if attribute.HasField("t")}
    if kinds & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}:
        return 2
    return 4 if onnx.TensorProto.FLOAT in kinds else 8


def _run(model: bytes, feeds: Mapping[str, Array], level: Any, threads: int) -> list[Any]:  # noqa: ANN401 - onnxruntime has no types
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return list(ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


def excess(got: Sequence[Any], answers: Answers) -> tuple[float, str]:
    """Return the worst difference over what is allowed (at most 1: agreed) and, if that is more than 1, what differs."""
    if len(got) != len(answers.plain):
        return np.inf, f"{len(answers.plain)} outputs expected, got {len(got)}"
    worst, words = 0.0, ""
    for number, (mine, plain) in enumerate(zip(got, answers.plain, strict=True)):
        if not isinstance(plain, np.ndarray):
            found = _excess_of_maps(mine, plain, answers.least_bytes)
        else:
            found = _excess_of(np.asarray(mine), plain, [other[number] for other in answers.others], answers.least_bytes)
        if found[0] > worst:
            worst, words = found[0], f"output {number}: {found[1]}" if found[0] > 1 else ""
    return worst, words


def _excess_of_maps(mine: Any, plain: Any, least_bytes: int) -> tuple[float, str]:  # noqa: ANN401 - whatever onnxruntime returns
    """Compare lists of maps from classes to probabilities; anything else that is no tensor must be written alike."""
    if isinstance(plain, list) and plain and all(isinstance(row, dict) for row in plain) and [*map(list, plain)] == [*map(list, mine)]:
        ours, theirs = (np.array([[*row.values()] for row in rows], np.float32) for rows in (mine, plain))
        return _excess_of(ours, theirs, [], least_bytes)
    return (0.0, "") if repr(mine) == repr(plain) else (np.inf, "values that are no tensors differ")


def _excess_of(mine: Array, plain: Array, others: Sequence[Array], least_bytes: int) -> tuple[float, str]:
    if mine.dtype != plain.dtype or mine.shape != plain.shape:
        return np.inf, f"expected {plain.dtype}{list(plain.shape)}, got {mine.dtype}{list(mine.shape)}"
    alike = [other for other in others if other.shape == plain.shape and other.dtype == plain.dtype]
    if plain.dtype.kind != "f":
        return _excess_of_exact(mine, plain, alike)
    settled = np.isfinite(plain)
    agreed_kind = np.ones(plain.shape, np.bool_)
    for other in alike:
        agreed_kind &= (np.isfinite(other) == settled) & (settled | (other == plain) | (np.isnan(other) & np.isnan(plain)))
    odd = agreed_kind & ~settled
    if not np.array_equal(mine[odd], plain[odd], equal_nan=True):
        return np.inf, "infinities or NaN differ"
    known = agreed_kind & settled
    if not np.isfinite(mine[known]).all():
        return np.inf, "infinities or NaN where onnxruntime has numbers"
    return _excess_of_finite(mine[known], plain[known], [other[known] for other in alike], least_bytes)


def _excess_of_finite(mine: Array, plain: Array, others: Sequence[Array], least_bytes: int) -> tuple[float, str]:
    wide = plain.astype(np.float64)
    largest, error = (float(np.abs(array).max(initial=0.0)) for array in (wide, mine.astype(np.float64) - wide))
    if not error:
        return 0.0, ""
    spread = max((float(np.abs(other.astype(np.float64) - wide).max(initial=0.0)) for other in others), default=0.0)
    allowed = max(ROUNDING[min(plain.dtype.itemsize, least_bytes)] * largest, TIMES_SPREAD * spread)
    times = error / allowed if allowed else np.inf
    return times, f"off by {error:.2g} where the largest is {largest:.2g}, {times:.2g} times what is allowed"


def _excess_of_exact(mine: Array, plain: Array, others: Sequence[Array]) -> tuple[float, str]:
    settled = np.ones(plain.shape, np.bool_)
    for other in others:
        settled &= np.asarray(other == plain)
    wrong = np.asarray(mine != plain) & settled
    if not wrong.any():
        return 0.0, ""
    return np.inf, f"{int(wrong.sum())} of {plain.size} values of {plain.dtype} differ"


def is_shaky(model: bytes, feeds: Mapping[str, Array], got: Sequence[Any], answers: Answers, tries: int = 6) -> bool:
    """Whether plain onnxruntime moves as far as the answer is off when its float inputs move in their last bits.

    Such a model amplifies rounding (a comparison of equals, a quantization at half a step): no plan can do better.
    """
    random = np.random.default_rng(0)
    moved = []
    for _ in range(tries):
        nudged = {name: _nudged(array, random) for name, array in feeds.items()}
        try:
            moved.append(_run(model, nudged, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, 1))
        except Exception:  # not even that runs
            return False
    return excess(got, replace(answers, others=(*answers.others, *moved)))[0] <= 1


def _nudged(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    return np.asarray(array * (1 + 2 * ULP[array.dtype.itemsize] * random.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
