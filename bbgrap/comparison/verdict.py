"""The verdict on all outputs of a model, and how it is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np

from bbgrap.comparison.bounds import distance, numeric
from bbgrap.comparison.rules import LOSSY_TOLERANCE, OutputVerdict, Rule, judge_output
from bbgrap.graph import Array
from bbgrap.planners.options import TransferType

_WORDS = {
    Rule.IDENTICAL: "identical to the bit",
    Rule.ROUNDING: "within rounding",
    Rule.SPREAD: "within onnxruntime's spread",
    Rule.FLOAT64: "no further from float64 than onnxruntime",
    Rule.LOSSY: "within the loss of the transfers",
}


class Evidence(Protocol):
    """What else is known of the right answer; asked only where an answer is not within rounding."""

    def variants(self) -> Sequence[Sequence[Any]]:
        """Return onnxruntime's answers to the same inputs at other levels of optimisation and with other numbers of threads."""

    def nearby(self) -> Sequence[Sequence[Any]]:
        """Return onnxruntime's answers to inputs that differ in their last bit."""

    def exact(self) -> Sequence[Any] | None:
        """Return the model's answer in 64-bit floats; None if nothing here can compute it."""

    def step(self, output: int) -> float:
        """Return the eps of the coarsest 16-bit floats computed before an output; 0.0 if there were none, or nobody knows."""

    def grain(self, output: int) -> float:
        """Return how far rounding may take every element of an output, however small they are; 0.0 if nobody knows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far answers are from those of plain onnxruntime, and by which of `rules` they are the same.

    `max_rel_err` is relative to the largest magnitude in the same output. `fault` says what is wrong with the worst output; it is there
    if and only if `rule` is `NONE`. `transfer_dtype` is what floats were on their way, which decides how far they may be. `own_err` is
    how far onnxruntime is from itself, or from 64-bit floats, where that was the rule: as large as the answer, it verifies little.
    """

    max_abs_err: float
    max_rel_err: float
    bit_identical: bool
    rule: Rule
    fault: str = ""
    transfer_dtype: TransferType = "exact"
    own_err: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether the answers are the same by any rule."""
        return self.rule is not Rule.NONE

    @property
    def text(self) -> str:
        """One line for people."""
        verdict = "verified" if self.verified else "NOT verified"
        said = f"{verdict} against plain onnxruntime"
        if self.transfer_dtype != "exact":
            bound = LOSSY_TOLERANCE[self.transfer_dtype]
            said = f"{verdict} within {bound:g} against plain onnxruntime, floats travelling as {self.transfer_dtype} (lossy)"
        errors = f"max absolute error {self.max_abs_err:.3g}, relative {self.max_rel_err:.3g}"
        own = f" ({self.own_err:.3g})" if self.own_err else ""
        how = self.fault or _WORDS[self.rule] + own
        return f"{said}: {errors}, {how}" if self.max_abs_err else f"{said}: {how}"

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of `bench --json`."""
        return {
            "max_abs_err": self.max_abs_err,
            "max_rel_err": self.max_rel_err,
            "bit_identical": self.bit_identical,
            "transfer_dtype": self.transfer_dtype,
            "same_by": self.rule.name.lower(),
            "onnxruntime_err": self.own_err,
        }

    def worse(self, other: Comparison) -> Comparison:
        """Return the worst of two comparisons with the same transfers, number by number."""
        return Comparison(
            max(self.max_abs_err, other.max_abs_err),
            max(self.max_rel_err, other.max_rel_err),
            self.bit_identical and other.bit_identical,
            max(self.rule, other.rule),
            max(self, other, key=_severity).fault,
            self.transfer_dtype,
            max(self.own_err, other.own_err),
        )


def _severity(one: Comparison) -> tuple[bool, bool, float]:
    """Return what orders comparisons by their faults: one that no number measures (a shape, an integer) is the worst."""
    return bool(one.fault), one.max_rel_err == 0, one.max_rel_err


SAME = Comparison(0.0, 0.0, bit_identical=True, rule=Rule.IDENTICAL)


def compare(got: Sequence[Any], expected: Sequence[Any], transfers: TransferType = "exact", evidence: Evidence | None = None) -> Comparison:
    """Compare all outputs of a model with those of plain onnxruntime, floats having travelled as `transfers`.

    Without `evidence`, differences that are more than rounding are faults. Of lists and dictionaries every value is compared.
    """
    result = replace(SAME, transfer_dtype=transfers)
    if len(got) != len(expected):
        return replace(result, bit_identical=False, rule=Rule.NONE, fault=f"{len(got)} outputs instead of {len(expected)}")
    mine, theirs = _leaves(got), _leaves(expected)
    if mine.keys() != theirs.keys():
        strange = ", ".join(who for _, who in sorted(mine.keys() ^ theirs.keys())[:3])
        return replace(result, bit_identical=False, rule=Rule.NONE, fault=f"values inside that only one of both has: {strange}")
    for (number, who), array in theirs.items():
        result = result.worse(_compare_one(number, who, mine[number, who], array, transfers, evidence))
    return result


def _leaves(answers: Sequence[Any]) -> dict[tuple[int, str], Array]:
    """Return the arrays that answers consist of, by the number of the output and where in it they are."""
    return {(number, who): array for number, answer in enumerate(answers) for who, array in _arrays(f"output {number}", answer)}


def _arrays(who: str, value: object) -> Iterator[tuple[str, Array]]:
    match value:
        case list():
            yield f"{who}, length", np.array(len(value))
            for place, item in enumerate(value):
                yield from _arrays(f"{who}, {place}", item)
        case dict():
            for key, item in value.items():
                yield from _arrays(f"{who}, {key!r}", item)
        case _:
            yield who, np.asarray(value)


def _compare_one(number: int, who: str, mine: Array, theirs: Array, transfers: TransferType, evidence: Evidence | None) -> Comparison:
    found = judge_output(who, mine, theirs, transfers=transfers)
    if found.rule is Rule.NONE and evidence is not None:
        found = _with_evidence(number, who, mine, theirs, transfers, evidence)
    error, largest = 0.0, 0.0
    if mine.dtype == theirs.dtype and mine.shape == theirs.shape and theirs.dtype.kind in "fc":
        apart = distance(numeric(mine), numeric(theirs))
        error = float(np.max(apart, initial=0.0, where=np.isfinite(apart)))
        largest = float(np.max(np.abs(theirs), initial=0, where=np.isfinite(theirs)))
    relative = error / largest if largest else float(error > 0)
    return Comparison(error, relative, found.rule is Rule.IDENTICAL, found.rule, found.fault, transfers, found.own_err)


def _with_evidence(number: int, who: str, mine: Array, theirs: Array, transfers: TransferType, evidence: Evidence) -> OutputVerdict:
    """Judge again: by what floats were on the way, by inputs one bit off, by the variants, by 64-bit floats: the quickest first."""
    step, grain = evidence.step(number), evidence.grain(number)
    found = judge_output(who, mine, theirs, transfers=transfers, step=step, grain=grain)
    if found.rule is not Rule.NONE:
        return found
    variants: list[Array] = []
    for answers in (evidence.nearby, evidence.variants):
        variants += [leaves[number, who] for answer in answers() if (number, who) in (leaves := _leaves(answer))]
        found = judge_output(who, mine, theirs, variants, None, transfers, step, grain)
        if found.rule is not Rule.NONE:
            return found
    exact = evidence.exact()
    if exact is None:
        return found
    return judge_output(who, mine, theirs, variants, _leaves(exact)[number, who], transfers, step, grain)


class Judge:
    """Many answers to the same inputs: the cheap test as they come, the rest once nobody's time is measured any more.

    Invariants: `_found` are the comparisons of answers that are the same by the cheap test, `_doubtful` the other answers, each once.
    """

    def __init__(self, expected: Sequence[Any], transfers: TransferType = "exact") -> None:
        """Compare with the answer of plain onnxruntime, floats travelling as `transfers`."""
        self._expected = expected
        self._transfers: TransferType = transfers
        self._found: set[Comparison] = set()
        self._doubtful: dict[tuple[bytes, ...], Sequence[Any]] = {}

    def count(self, answers: Sequence[Any]) -> None:
        """Compare an answer; threads may call it."""
        found = compare(answers, self._expected, self._transfers)
        if found.verified:
            self._found.add(found)
        else:
            self._doubtful[tuple(array.tobytes() for array in _leaves(answers).values())] = answers

    def verdict(self, evidence: Evidence) -> Comparison:
        """Return the worst comparison of all answers."""
        doubtful = (compare(answers, self._expected, self._transfers, evidence) for answers in self._doubtful.values())
        return reduce(Comparison.worse, (*self._found, *doubtful), replace(SAME, transfer_dtype=self._transfers))
