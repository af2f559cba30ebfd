"""What counts as the same answer as plain onnxruntime's: the one place that says so.

An output, `got`, is judged against that of plain onnxruntime at all optimisations on one thread, `expected`. Element types and
shapes must be equal, unless onnxruntime itself answers with another shape at another level. It is the same answer by the first of these
rules that holds:

    identical   the bits are equal
    rounding    every difference is at most R eps m: eps of the element type, m the largest magnitude in the tightest slice of
                the tensor through the element (`bounds`), R = 64 for floats of 32 and 64 bits, 8 for 16; of 16 bits, too, where
                some value on the way to the output is of 16 bits; 3 eps where an element may be a sigmoid of 32 bits, which
                onnxruntime computes as 0.5 and something
    spread      `got` is within rounding of what onnxruntime answers at another level of optimisation, with another number of threads
                or to inputs that differ in their last bit (the variants); or every difference is at most `SPREAD` times the largest
                one between the variants and `expected` in the tightest slice
    float64     the same with the model's answer in 64-bit floats in the place of `expected`: `got` is at most `FURTHER` times further
                from it than onnxruntime's answers
    lossy       floats travelled in fewer bits, as the user asked, and no difference is more than `LOSSY_TOLERANCE` of the largest
                magnitude

By spread and float64 no more than `CROWD` times as many elements may be off as in onnxruntime's own answers: a tie between two detections
explains one row of a table, and no other. Integers and booleans are equal, or no further apart than onnxruntime's own. A string is one
that onnxruntime answers at that place. NaN and infinities are where onnxruntime has them, in one of its answers.

Why 64 eps. Adding up n numbers in another order changes the sum by up to (n - 1) eps/2 of the sum of magnitudes, on average by about
sqrt(n) eps/2; terms of one tensor are as large as its largest element, unless they cancel. Layers add up their errors like steps
of a random walk. Single operators were measured to differ by up to 2e-6 (17 eps). Where terms cancel, the output does not show
how large they were: spread and float64 do. 16-bit floats are computed as 32-bit ones and rounded; what differs is how often.

Why slices and not single elements: the difference of two roundings is often 0 by chance (`bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bbgrap.comparison.bounds import Excess, distance, excess, kinds, numeric, tightest
from bbgrap.graph import Array
from bbgrap.planners.options import TransferType

ROUNDING = {2: 8, 4: 64, 8: 64}
"""How many eps of the magnitudes around it an element may be off, by bytes per real number; why, the module says."""

SPREAD = 4.0
"""How many times the spread of onnxruntime's own answers an answer may be from them. Chosen: the variants share many roundings, so their
spread is less than the rounding of one of them; a cut model rounds in places where no variant does."""

FURTHER = 3.0
"""How many times further from the answer in 64-bit floats than onnxruntime an answer may be. Measured: up to 2.4 times in 670 answers of
seven models, two of them ill-conditioned; half of the answers are nearer to it than onnxruntime's."""

CROWD = 4.0
"""How many times as many elements may be further off than rounding explains as in onnxruntime's own answers. Chosen, as `SPREAD`."""

LOSSY_TOLERANCE: dict[TransferType, float] = {"exact": 0.0, "float16": 1e-2, "int8": 1e-1}
"""The relative error up to which answers count as equal where floats travelled in fewer bits, as the user asked. Chosen: about ten times
the errors of ResNet50 cut by channels (an exchange after every layer, 4 nodes, measured: 2e-4 and 7e-3), with room for deeper
models. The error itself is always reported."""


class Rule(IntEnum):
    """By which rule answers are the same, the strictest first."""

    IDENTICAL = 0
    ROUNDING = 1
    SPREAD = 2
    FLOAT64 = 3
    LOSSY = 4
    NONE = 5


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """By which rule one output is the same, and if by none, what is wrong with it.

    `own_err` is how far onnxruntime's answers are from each other (`SPREAD`), or from that in 64-bit floats (`FLOAT64`).
    """

    rule: Rule
    fault: str = ""
    own_err: float = 0.0


def judge_output(
    who: str,
    got: Array,
    expected: Array,
    variants: Sequence[Array] = (),
    exact: Array | None = None,
    transfers: TransferType = "exact",
    step: float = 0.0,
    grain: float = 0.0,
) -> OutputVerdict:
    """Judge one output; without variants and without `exact`, by rounding only.

    Args:
        who: What to call the output.
        got: The answer to judge.
        expected: That of plain onnxruntime.
        variants: Other answers of onnxruntime to the same inputs.
        exact: The answer of the model in 64-bit floats.
        transfers: What floats were on their way.
        step: The eps of the coarsest 16-bit floats that were computed before it; 0.0 if there were none, or nobody knows.
        grain: How far rounding may take every element, however small they are.
    """
    if identical(got, expected):
        return OutputVerdict(Rule.IDENTICAL)
    if _within_rounding(got, expected, step, grain):
        return OutputVerdict(Rule.ROUNDING)
    if any(identical(got, other) or _within_rounding(got, other, step, grain) for other in variants):
        return OutputVerdict(Rule.SPREAD, own_err=_largest_difference(got, expected))
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return OutputVerdict(Rule.NONE, f"{who}: expected {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}")
    alike = [other for other in variants if (other.dtype, other.shape) == (got.dtype, got.shape)]
    if got.dtype.kind not in "fciub" or _beyond_doubles(got, expected):
        return _judge_words(who, got, expected, alike)
    return _judge_numbers(who, got, [expected, *alike], exact, transfers, rounding(expected, step, grain))


def identical(one: Array, other: Array) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype.kind == "O":
        return bool(np.array_equal(one, other))
    # Without a copy, and without keeping other threads from their work: answers may be large.
    mine, theirs = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return bool(np.array_equal(mine, theirs))


def rounding(array: Array, step: float = 0.0, grain: float = 0.0) -> Array:
    """Return how far rounding may take every element: an array that broadcasts against the given one; 0 for what does not round.

    `step` is the eps of the coarsest 16-bit floats that were computed before it, `grain` what it may be off in any case, unless it is of
    64 bits.
    """
    if array.dtype.kind not in "fc":
        return np.zeros((1,) * array.ndim)
    limits = np.finfo(array.dtype)
    magnitudes = np.abs(array)  # of the narrow type: the largest of many is as large in any
    finite = np.isfinite(magnitudes)
    bound = tightest(magnitudes if finite.all() else np.where(finite, magnitudes, 0))
    relative = max(ROUNDING[limits.dtype.itemsize] * float(limits.eps), ROUNDING[2] * step)
    return np.maximum(relative * numeric(bound), max(float(limits.tiny), grain if limits.dtype.itemsize < 8 else 0.0))


def _within_rounding(got: Array, expected: Array, step: float, grain: float) -> bool:
    if (got.dtype, got.shape) != (expected.dtype, expected.shape) or got.dtype.kind not in "fc":
        return False
    return bool((distance(numeric(got), numeric(expected)) <= rounding(expected, step, grain)).all())


def _largest_difference(one: Array, other: Array) -> float:
    if one.shape != other.shape or one.dtype.kind not in "fciub":
        return 0.0
    apart = distance(numeric(one), numeric(other))
    return float(np.max(apart, initial=0.0, where=np.isfinite(apart)))


def _beyond_doubles(*arrays: Array) -> bool:
    """Whether integers are so large that differences of 64-bit floats would miss some of theirs."""
    return any(
        array.dtype.kind in "iu" and array.dtype.itemsize == 8 and bool((np.abs(array.astype(float)) >= 2.0**53).any()) for array in arrays
    )


def _judge_words(who: str, got: Array, expected: Array, variants: Sequence[Array]) -> OutputVerdict:
    known = np.asarray(got == expected)
    for other in variants:
        known |= np.asarray(got == other)
    if known.all():
        return OutputVerdict(Rule.SPREAD)
    place = tuple(int(index) for index in np.argwhere(~known)[0])
    return OutputVerdict(
        Rule.NONE, f"{who}: {expected.dtype} values differ, at {list(place)}: got {got[place]!r}, expected {expected[place]!r}"
    )


def _judge_numbers(who: str, got: Array, own: Sequence[Array], exact: Array | None, transfers: TransferType, floor: Array) -> OutputVerdict:
    """Judge numbers by spread, float64 and lossy transfers; `own` are all answers of onnxruntime, the expected one first.

    `floor` is what rounding explains.
    """
    mine, theirs = numeric(got), [numeric(answer) for answer in own]
    rounds = got.dtype.kind in "fc"
    witnesses = [*theirs, *([] if exact is None or exact.shape != got.shape else [numeric(exact)])]
    if (strange := _strange(who, mine, witnesses)) is not None:
        return strange
    found, own_err = _against(mine, _as_finite(mine, theirs), theirs, floor, SPREAD if rounds else 1.0)
    if found is None:
        return OutputVerdict(Rule.SPREAD, own_err=own_err)
    if len(witnesses) > len(theirs):
        centre = _as_finite(mine, witnesses[::-1])
        further, own_err = _against(mine, centre, theirs, floor, FURTHER if rounds else 1.0)
        if further is None:
            return OutputVerdict(Rule.FLOAT64, own_err=own_err)
    if rounds and _within_loss(mine, theirs[0], LOSSY_TOLERANCE[transfers]):
        return OutputVerdict(Rule.LOSSY)
    return OutputVerdict(Rule.NONE, _told(who, got, own[0], found, len(own) > 1))


def _within_loss(mine: Array, theirs: Array, allowed: float) -> bool:
    largest = float(np.max(np.abs(theirs), initial=0.0, where=np.isfinite(theirs)))
    return float(np.max(distance(mine, theirs), initial=0.0)) <= allowed * largest


def _against(mine: Array, centre: Array, theirs: Sequence[Array], floor: Array, factor: float) -> tuple[Excess | None, float]:
    """Compare the distance of an answer from `centre` with those of onnxruntime's answers; also return the largest of these."""
    noise = np.max([distance(answer, centre) for answer in theirs], axis=0)
    largest = float(np.max(noise, initial=0.0, where=np.isfinite(noise)))
    return excess(distance(mine, centre), floor, noise, factor, CROWD), largest


def _strange(who: str, mine: Array, witnesses: Sequence[Array]) -> OutputVerdict | None:
    """Return a fault if somewhere a number is finite, infinite or NaN and in no other answer it is."""
    known = np.any([kinds(mine) == kinds(answer) for answer in witnesses], axis=0)
    if known.all():
        return None
    place = tuple(int(index) for index in np.argwhere(~known)[0])
    return OutputVerdict(
        Rule.NONE, f"{who}: infinities or NaN differ, at {list(place)}: got {mine[place]:.6g}, expected {witnesses[0][place]:.6g}"
    )


def _as_finite(mine: Array, answers: Sequence[Array]) -> Array:
    """Return the first answer, with the number of the first other one where only that is as finite as `mine`."""
    chosen = answers[0].copy()
    for other in answers[1:]:
        chosen = np.where((kinds(chosen) != kinds(mine)) & (kinds(other) == kinds(mine)), other, chosen)
    return chosen


def _told(who: str, got: Array, expected: Array, found: Excess, varied: bool) -> str:
    """Say where an output is worst."""
    mine, theirs, place = got[found.index], expected[found.index], list(found.index)
    if got.dtype.kind in "fc":
        said = f"{who}: at {place} got {mine:.9g}, expected {theirs:.9g}, bound {found.allowed:.3g}"
    else:
        said = f"{who}: {got.dtype} values differ, {found.off} of {got.size}; at {place} got {mine}, expected {theirs}"
    return said + (f"; {found.off} elements differ by more than rounding, in onnxruntime's own answers {found.own}" if varied else "")
