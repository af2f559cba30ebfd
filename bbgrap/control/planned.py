"""What planning a model for a cluster comes to: values only, so that who gets them needs nothing of what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bbgrap.compiler.artifacts import Artifacts

SCALED_FROM = "scaled_from"
"""The key of a report that says for which input shapes the plan was made that this one is like; none was searched for then."""


@dataclass(frozen=True, slots=True)
class PlannedVariant:
    """One way to run a model on a cluster: its name, what is shipped, and the object that `plan --json` prints (plain values only)."""

    name: str
    artifacts: Artifacts
    report: Mapping[str, Any]
