"""What planning a model for a cluster comes to: values only, so that who gets them needs nothing of what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bbgrap.compiler.artifacts import Artifacts
from bbgrap.graph.weights import WeightPlace

SCALED_FROM = "scaled_from"
"""The key of a report that says for which input shapes the plan was made that this one is like; none was searched for then."""


@dataclass(frozen=True, slots=True)
class PlannedVariant:
    """One way to run a model on a cluster: its name, what is shipped, and the object that `plan --json` prints (plain values only)."""

    name: str
    artifacts: Artifacts
    report: Mapping[str, Any]
    held: Mapping[str, WeightPlace] = field(default_factory=dict, compare=False)
    """Weights that lie in the model's own files, by digest, while these are there."""

    @property
    def predicted_s(self) -> float:
        """How long a request is predicted to take, in seconds; 0 where nothing is predicted."""
        return self._seconds("predicted_ms")

    @property
    def predicted_alone_s(self) -> float:
        """The same on the best node alone, or that of the plan where none has room for the whole model."""
        return self._seconds("predicted_single_node_ms") or self.predicted_s

    def _seconds(self, key: str) -> float:
        predicted = self.report.get(key, 0.0)
        return float(predicted) / 1e3 if isinstance(predicted, int | float) else 0.0
