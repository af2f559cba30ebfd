"""What a caller may ask of a planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bbgrap.errors import UsageError

Split = Literal["rows", "columns", "grid", "channels", "inputs", "batch"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Which planner, and along what it cuts.

    `channels` are output channels (each machine needs the whole input and a slice of the weights), `inputs` input channels (each
    needs a slice of both, and computes a partial sum).

    `grid` is rows x columns for the `grid` split (None: as square as the number of nodes allows).
    """

    planner: str = "bbgrap"
    split: Split = "rows"
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Reject a split that does not exist."""
        if self.split not in SPLITS:
            raise UsageError(f"split: expected one of {', '.join(SPLITS)}, got '{self.split}'")
