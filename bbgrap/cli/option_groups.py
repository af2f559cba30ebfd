"""Groups of options that several commands share: a command takes each group as one value.

@takes(options=plan_options)
def submit(model: Model, options: PlanOptions, ...)        bbgrap submit MODEL --planner P --split S ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from bbgrap.cli.input_options import GivenInputs, PictureOptions, parse_numbers, parse_size
from bbgrap.cli.options import (
    Agents,
    Batch,
    ClusterFile,
    Contenders,
    GivenInput,
    Grid,
    Mean,
    Normalizing,
    ObjectiveName,
    PictureLayout,
    PlannerName,
    SearchSeconds,
    Shares,
    Size,
    SplitName,
    Std,
    TransferDtype,
)
from bbgrap.errors import UsageError
from bbgrap.planners.options import PlanOptions

R = TypeVar("R")

_DEFAULT_SPLIT = "rows"


def takes(**groups: Callable[..., object]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function take, in place of each parameter named here, the parameters of the function that makes its value.

    Typer reads signatures, so the command line has the options of the group where the command has the parameter.
    """

    def widen(command: Callable[..., R]) -> Callable[..., R]:
        members = {name: inspect.signature(make, eval_str=True).parameters for name, make in groups.items()}
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def widened(**given: Any) -> R:  # noqa: ANN401 - whatever the command line has
            made = {name: make(**{key: given.pop(key) for key in members[name]}) for name, make in groups.items()}
            return command(**given, **made)

        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, mine in own.parameters.items()
            for parameter in (members[name].values() if name in members else (mine,))
        ]
        widened.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # `inspect` and Typer read it
        widened.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return widened

    return widen


def plan_options(
    planner: PlannerName = "",
    split: SplitName = "",
    grid: Grid = "",
    objective: ObjectiveName = "latency",
    search_seconds: SearchSeconds = 10.0,
    transfer_dtype: TransferDtype = "exact",
) -> PlanOptions:
    """Return what is asked of one planner: `auto`, unless another one or a split is named.

    Raises:
        UsageError: if there is no such planner or split, or the grid is none.
    """
    from bbgrap.planners.options import AUTO
    from bbgrap.planners.registry import NAMES

    planner = planner or ("bbgrap" if split or grid else AUTO)
    split = split or _DEFAULT_SPLIT
    if planner not in NAMES:
        raise UsageError(f"planner: expected one of {', '.join(NAMES)}, got '{planner}'")
    more: dict[str, Any] = {"objective": objective, "search_seconds": search_seconds, "transfer_dtype": transfer_dtype}
    if not grid:
        return PlanOptions(planner, split, **more)  # type: ignore[arg-type]  # it looks itself
    if split not in ("grid", _DEFAULT_SPLIT):
        raise UsageError(f"grid: it goes with --split grid, got --split {split}")
    rows, _, columns = grid.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise UsageError(f"grid: expected rows x columns, like 2x3, got '{grid}'")
    return PlanOptions(planner, "grid", (int(rows), int(columns)), **more)


def contenders(
    planner: Contenders = "",
    split: SplitName = "",
    grid: Grid = "",
    objective: ObjectiveName = "latency",
    search_seconds: SearchSeconds = 10.0,
    transfer_dtype: TransferDtype = "exact",
) -> list[PlanOptions]:
    """Return what is asked of each of several planners.

    Raises:
        UsageError: as `plan_options`.
    """
    return [plan_options(name.strip(), split, grid, objective, search_seconds, transfer_dtype) for name in planner.split(",")]


def given_inputs(
    texts: GivenInput = None,
    batch: Batch = None,
    size: Size = "",
    normalize: Normalizing = None,
    mean: Mean = "",
    std: Std = "",
    layout: PictureLayout = None,
) -> GivenInputs:
    """Return what is said of a model's inputs.

    Raises:
        UsageError: if a size or a number is none, or options contradict each other.
    """
    numbers = parse_numbers("--mean", mean, above_0=False), parse_numbers("--std", std, above_0=True)
    return GivenInputs(tuple(texts or ()), batch, PictureOptions(parse_size(size), normalize, *numbers, layout))


@dataclass(frozen=True, slots=True)
class OfflineCase:
    """Inputs and nodes that are planned for without a cluster, as a command line says them."""

    inputs: GivenInputs
    agents: int | None
    cluster: Path | None
    shares: str


@takes(inputs=given_inputs)
def offline_case(inputs: GivenInputs, agents: Agents = None, cluster: ClusterFile = None, shares: Shares = "") -> OfflineCase:
    """Return what is said of inputs and nodes."""
    return OfflineCase(inputs, agents, cluster, shares)
