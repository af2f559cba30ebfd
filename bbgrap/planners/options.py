"""What a caller may ask of a planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bbgrap.errors import UsageError

Split = Literal["rows", "columns", "grid", "channels", "inputs", "batch"]
SPLITS: tuple[Split, ...] = get_args(Split)

Objective = Literal["latency", "throughput", "memory"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

TransferType = Literal["exact", "float16", "int8"]
TRANSFER_TYPES: tuple[TransferType, ...] = get_args(TransferType)

InputValues = Literal["auto", "any", "few"]
INPUT_VALUES: tuple[InputValues, ...] = get_args(InputValues)

AUTO = "auto"
"""The planner that searches (`bbgrap.auto`): it needs programs and a clock, so it lives above all others."""

MAX_TOP = 1 << 20
"""Elements of an output that are wanted of it. Chosen: more than any vocabulary has words."""

CLOCK_FACTOR = 3.0
"""So many times as long a search may take by the clock, where other programs share its processor. Chosen."""

MAX_SEARCH_SECONDS = 3600.0
"""Chosen: what a person may wait for; a coordinator plans for others meanwhile."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Which planner, and along what it cuts.

    `channels` are output channels (each machine needs the whole input and a slice of the weights), `inputs` input channels (each
    needs a slice of both, and computes a partial sum).

    `grid` is rows x columns for the `grid` split (None: as square as the number of nodes allows).

    `objective` is what the planner `auto` minimises (predicted time of a request, time per request of a stream, memory of the fullest
    node); for `throughput` a deployment by `auto` or `single` has the whole model on every node with room for it. `search_seconds` is how
    long it may look: seconds of a processor, and by the clock `CLOCK_FACTOR` times as many. `transfer_dtype` is what 32-bit floats become
    on their way to an agent. `input_values` are `few` if the model's inputs are of low cardinality, as pictures are: over slow links they
    travel in fewer bytes then, and stay exact (`bbgrap.program.dictionaries`). `auto`: a session looks at the first ones; without any they
    are `any`. `state` pairs inputs with the outputs that they are in the next request of a sequence. `top` names outputs of which only so
    many largest elements are wanted, with their places along the last axis.
    """

    planner: str = "bbgrap"
    split: Split = "rows"
    grid: tuple[int, int] | None = None
    objective: Objective = "latency"
    search_seconds: float = 10.0
    transfer_dtype: TransferType = "exact"
    input_values: InputValues = "auto"
    state: tuple[tuple[str, str], ...] = ()
    top: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Reject what does not exist."""
        for name, value, known in (
            ("split", self.split, SPLITS),
            ("objective", self.objective, OBJECTIVES),
            ("transfer dtype", self.transfer_dtype, TRANSFER_TYPES),
            ("input values", self.input_values, INPUT_VALUES),
        ):
            if value not in known:
                raise UsageError(f"{name}: expected one of {', '.join(known)}, got '{value}'")
        if any(len(set(names)) != len(names) for names in zip(*self.state, strict=True)):
            raise UsageError("state: an input or output is listed twice")
        if len(dict(self.top)) != len(self.top):
            raise UsageError("top: an output is listed twice")
        for name, count in self.top:
            if not 0 < count <= MAX_TOP:
                raise UsageError(f"top '{name}': expected from 1 to {MAX_TOP} elements, got {count}")
        if not 0 < self.search_seconds <= MAX_SEARCH_SECONDS:
            raise UsageError(f"search seconds: expected a number above 0, at most {MAX_SEARCH_SECONDS:g}, got {self.search_seconds}")


def undivided_note(planner: str, used: int, nodes: int) -> str:
    """Return what to say of a planner that was asked to divide a model and gives all of it to one of several nodes; empty otherwise.

    `single` does as it was asked, and `auto` has found that it is fastest so.
    """
    if used != 1 or nodes == 1 or planner in {"single", AUTO}:
        return ""
    return "one node has all of it; 'bbgrap inspect' says what stays whole, and why"
