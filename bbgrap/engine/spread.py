"""What onnxruntime says of one model and one set of inputs in all its ways, and the judgement of answers by it (`comparison.rules`).

The variants are what a user of onnxruntime may choose without another answer in mind: every level of optimisation, one thread or two.
They round in other places, add up in another order, fuse other operators. Each is one more session on the whole model, so they are
run only when an answer is not within rounding, and once.

They share many roundings: where few places of a map are ill-conditioned, all of them may be right there by chance. So inputs that differ
in their last bit are answered, too, as if the first operator had rounded otherwise: they tell how much that is at every place.

A model that draws random numbers answers otherwise when it is asked again; then its answers say nothing of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bbgrap.comparison import Comparison, Rule, compare
from bbgrap.engine.double import double_answer
from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import open_session, owned, session_options
from bbgrap.errors import BbgrapError, ExecutionError
from bbgrap.graph import Array
from bbgrap.graph.onnx_io import read_model
from bbgrap.graph.onnx_narrow import narrow_steps, sigmoid_grains
from bbgrap.planners.options import TransferType

_LEVEL = ort.GraphOptimizationLevel

VARIANTS = (
    (_LEVEL.ORT_DISABLE_ALL, 1),
    (_LEVEL.ORT_ENABLE_BASIC, 1),
    (_LEVEL.ORT_ENABLE_EXTENDED, 1),
    (_LEVEL.ORT_ENABLE_ALL, 2),
    (_LEVEL.ORT_DISABLE_ALL, 2),
    (_LEVEL.ORT_ENABLE_BASIC, 2),
    (_LEVEL.ORT_ENABLE_EXTENDED, 2),
)
"""Levels of optimisation and numbers of threads; what answers are compared with is all optimisations on one thread."""


NEARBY = 4
"""How many answers to inputs that differ in their last bit are asked for. Measured on a table detector with six ill-conditioned places:
onnxruntime's own answer is 24 times as far from its others as these from each other; with 1, 2 and 4 such answers beside them 6.7, 4.3 and
2.2 times. `SPREAD` times are allowed."""


class ReferenceAnswers:
    """Answers of onnxruntime, and of the model in 64-bit floats, to one set of inputs; each is computed when it is first asked for."""

    def __init__(self, model: Path, feeds: Mapping[str, Array], expected: Sequence[Array] | None = None) -> None:
        """Speak about a model file; `expected` is the answer of `Reference` to these inputs, if it is there already."""
        self._model = model
        self.feeds = feeds
        self._expected = expected

    @cached_property
    def expected(self) -> Sequence[Array]:
        """The answer of plain onnxruntime, at all optimisations on one thread."""
        return owned(self._reference.run(self.feeds)) if self._expected is None else self._expected

    def variants(self) -> Sequence[Sequence[Array]]:
        """Return the answers of `VARIANTS`, without those that onnxruntime cannot run."""
        return self._variants

    def nearby(self) -> Sequence[Sequence[Array]]:
        """Return the answers to `NEARBY` inputs of which every number is one of its neighbours; nothing if there are none such."""
        return self._nearby

    def exact(self) -> Sequence[Array] | None:
        """Return the answer in 64-bit floats, if it can be computed here."""
        return None if self._draws else self._exact

    def step(self, output: int) -> float:
        """Return the eps of the coarsest 16-bit floats computed before an output; 0.0 if there were none, or nobody knows."""
        return self._coarseness[output][0] if self._coarseness else 0.0

    def grain(self, output: int) -> float:
        """Return how far rounding may take every element of an output, however small they are; 0.0 if nobody knows."""
        return self._coarseness[output][1] if self._coarseness else 0.0

    def judge(self, answers: Sequence[Any], transfers: TransferType = "exact") -> Comparison:
        """Compare an answer with plain onnxruntime's, floats having travelled as `transfers`.

        Raises:
            BbgrapError: if plain onnxruntime itself fails.
        """
        return compare(answers, self.expected, transfers, self)

    @cached_property
    def _reference(self) -> Reference:
        return Reference(self._model)

    @cached_property
    def _variants(self) -> tuple[Sequence[Array], ...]:
        answers = () if self._draws else (self._answer(level, threads) for level, threads in VARIANTS)
        return tuple(answer for answer in answers if answer is not None)

    @cached_property
    def _nearby(self) -> tuple[Sequence[Array], ...]:
        random = np.random.default_rng(0)
        moved = [{name: _moved(value, random) for name, value in self.feeds.items()} for _ in range(NEARBY)]
        if self._draws or all(value is self.feeds[name] for name, value in moved[0].items()):
            return ()
        try:
            return tuple(owned(self._reference.run(feeds)) for feeds in moved)
        except ExecutionError:
            return ()  # one bit off, an input may be out of a range

    @cached_property
    def _draws(self) -> bool:
        """Whether one session answers the same question in two ways."""
        first, again = self._reference.run(self.feeds), self._reference.run(self.feeds)
        return compare(again, first).rule > Rule.ROUNDING

    def _answer(self, level: ort.GraphOptimizationLevel, threads: int) -> Sequence[Array] | None:
        options = session_options(threads=threads)
        options.graph_optimization_level = level
        try:
            return owned(open_session(self._model, options, {}).run(None, dict(self.feeds)))
        except Exception:  # for some models kernels are missing without optimisation; onnxruntime's exceptions have no common base
            return None

    @cached_property
    def _coarseness(self) -> Sequence[tuple[float, float]]:
        """Step and grain of every output; none if nobody knows."""
        try:
            model = read_model(self._model)
        except BbgrapError:
            return ()  # as for `_exact`
        return tuple(zip(narrow_steps(model), sigmoid_grains(model), strict=True))

    @cached_property
    def _exact(self) -> Sequence[Array] | None:
        try:
            return double_answer(read_model(self._model), self.feeds)
        except BbgrapError:
            return None  # a model that cannot be read here has been run uncut, and has no need of it


def _moved(value: Array, random: np.random.Generator) -> Array:
    """Return numbers one bit off; those that are whole stay, for they may be words, places or flags. Other values stay as they are."""
    if getattr(value, "dtype", None) not in (np.float32, np.float64):
        return value
    broken = np.isfinite(value) & (value != np.rint(value))
    if not broken.any():
        return value
    towards = np.where(random.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
    return np.where(broken, np.nextafter(value, towards), value)
