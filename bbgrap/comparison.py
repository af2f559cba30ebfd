"""Answers of a cluster against those of plain onnxruntime: how far apart they are, and whether that is rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bbgrap.graph import Array
from bbgrap.planners.options import TransferType

TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-4}
"""Relative error up to which answers count as equal, by bytes per number: sums in another order change single operators by up to 2e-6
(float32, measured), which deep models add up; a wrong row changes answers by more than 1e-3."""

LOSSY_TOLERANCE: dict[TransferType, float] = {"exact": 0.0, "float16": 1e-2, "int8": 1e-1}
"""The same where floats travelled in fewer bits, as the user asked. Chosen: about ten times the errors of ResNet50 cut by channels (an
exchange after every layer, 4 nodes, measured: 2e-4 and 7e-3), with room for deeper models. The error itself is always reported."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far answers are from those of plain onnxruntime.

    `max_rel_err` is relative to the largest magnitude in the same output. `fault` says what is wrong beyond numbers, if anything.
    `transfer_dtype` is what floats were on their way, which decides how far they may be.
    """

    max_abs_err: float
    max_rel_err: float
    bit_identical: bool
    within_tolerance: bool
    fault: str = ""
    transfer_dtype: TransferType = "exact"

    @property
    def verified(self) -> bool:
        """Whether the answers are the same up to rounding; that of the transfers, too, where these are lossy."""
        return self.within_tolerance and not self.fault

    @property
    def text(self) -> str:
        """One line for people."""
        errors = f"max absolute error {self.max_abs_err:.3g}, relative {self.max_rel_err:.3g}"
        found = self.fault or ("identical to the bit" if self.bit_identical else errors)
        verdict = "verified" if self.verified else "NOT verified"
        if self.transfer_dtype == "exact":
            return f"{verdict} against plain onnxruntime: {found}"
        bound = LOSSY_TOLERANCE[self.transfer_dtype]
        return f"{verdict} within {bound:g} against plain onnxruntime, floats travelling as {self.transfer_dtype} (lossy): {found}"

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of `bench --json`."""
        return {
            "max_abs_err": self.max_abs_err,
            "max_rel_err": self.max_rel_err,
            "bit_identical": self.bit_identical,
            "transfer_dtype": self.transfer_dtype,
        }

    def worse(self, other: Comparison) -> Comparison:
        """Return the worst of two comparisons with the same transfers, number by number."""
        return Comparison(
            max(self.max_abs_err, other.max_abs_err),
            max(self.max_rel_err, other.max_rel_err),
            self.bit_identical and other.bit_identical,
            self.within_tolerance and other.within_tolerance,
            self.fault or other.fault,
            self.transfer_dtype,
        )


SAME = Comparison(0.0, 0.0, bit_identical=True, within_tolerance=True)


def compare(got: Sequence[Any], expected: Sequence[Any], transfers: TransferType = "exact") -> Comparison:
    """Compare all outputs of a model with those of plain onnxruntime, floats having travelled as `transfers`.

    Of lists and dictionaries every value is compared.
    """
    result = replace(SAME, transfer_dtype=transfers)
    if len(got) != len(expected):
        return replace(result, bit_identical=False, within_tolerance=False, fault=f"{len(got)} outputs instead of {len(expected)}")
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        found, wanted = dict(_arrays(f"output {number}", mine)), dict(_arrays(f"output {number}", theirs))
        if found.keys() != wanted.keys():
            fault = f"output {number}: expected {len(wanted)} values inside, got {len(found)}, or others"
            return replace(result, bit_identical=False, within_tolerance=False, fault=fault)
        for who, array in wanted.items():
            result = result.worse(_compare_one(who, found[who], array, LOSSY_TOLERANCE[transfers]))
    return result


def _arrays(who: str, value: object) -> Iterator[tuple[str, Array]]:
    """Yield the arrays that a value consists of, each with where it is."""
    match value:
        case list():
            for place, item in enumerate(value):
                yield from _arrays(f"{who}, {place}", item)
        case dict():
            for key, item in value.items():
                yield from _arrays(f"{who}, {key!r}", item)
        case _:
            yield who, np.asarray(value)


def _compare_one(who: str, mine: Array, theirs: Array, lossy: float) -> Comparison:
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        fault = f"{who}: expected {theirs.dtype}{list(theirs.shape)}, got {mine.dtype}{list(mine.shape)}"
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=fault)
    if theirs.dtype.kind == "O":
        identical = bool(np.array_equal(mine, theirs))
    else:
        identical = np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes()
    if identical:
        return SAME
    if theirs.dtype.kind not in "fc":
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=f"{who}: {theirs.dtype} values differ")
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    known = np.isfinite(theirs)
    if not np.array_equal(mine[~known], theirs[~known], equal_nan=True) or not np.isfinite(mine[known]).all():
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=f"{who}: infinities or NaN differ")
    error = float(np.max(np.abs(mine[known].astype(wide) - theirs[known].astype(wide)), initial=0.0))
    largest = float(np.max(np.abs(theirs[known].astype(wide)), initial=0.0))
    relative = error / largest if largest else float(error > 0)
    allowed = max(lossy, TOLERANCE.get(theirs.dtype.itemsize, 1e-4))
    return Comparison(error, relative, bit_identical=False, within_tolerance=relative <= allowed)
