"""What planning a model for a cluster comes to: values only, so that who gets them needs nothing of what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bbgrap.compiler.artifacts import Artifacts


@dataclass(frozen=True)
class Alternative:
    """A route of a model: its name, what is shipped, and its report."""

    name: str
    artifacts: Artifacts
    report: Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A planned model, ready to be deployed.

    `report` is the object that `plan --json` prints (plain values only). `alternatives` are other routes of the same model, to be
    deployed besides; `name` is what this one is called among them (empty: as its planner).
    """

    report: Mapping[str, Any]
    artifacts: Artifacts
    name: str = ""
    alternatives: tuple[Alternative, ...] = ()
