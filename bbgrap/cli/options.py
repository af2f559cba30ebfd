"""Arguments and options that several commands share, and groups of them: a command takes each group as one value.

@takes(options=plan_options)
def submit(model: Model, options: PlanOptions, ...)        bbgrap submit MODEL --planner P --split S ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bbgrap.cli import completion
from bbgrap.cli.input_options import GivenInputs, Layout, Normalize, PictureOptions, parse_numbers, parse_size
from bbgrap.errors import UsageError
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:  # numpy and the rest, which `--help` can do without
    from bbgrap.cluster import Cluster
    from bbgrap.session import Connection

R = TypeVar("R")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, or zoo:NAME ('bbgrap zoo' lists the names).",
        show_default=False,
        autocompletion=completion.models,
    ),
]

MAX_AGENTS = 256
"""Chosen: clusters are of some tens of nodes; with thousands, planning takes minutes."""

Agents = Annotated[int | None, typer.Option(min=1, max=MAX_AGENTS, help="Plan for this many equal nodes.", show_default=False)]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each agent that is started.")]
ClusterFile = Annotated[Path | None, typer.Option(help="Plan for the nodes of this cluster file (YAML).", show_default=False)]
Shares = Annotated[str, typer.Option(help="Relative parts of the work, a number per node: 2,1,1.", show_default=False)]
_WHO = "default: auto, which looks for the fastest plan, or bbgrap with --split."
PlannerName = Annotated[
    str, typer.Option(help=f"Who plans: auto, bbgrap, single, ...; {_WHO}", show_default=False, autocompletion=completion.planners)
]
Contenders = Annotated[
    str,
    typer.Option(
        help=f"Who plans; several, separated by commas, take turns; {_WHO}", show_default=False, autocompletion=completion.planners
    ),
]
ObjectiveName = Annotated[str, typer.Option(help="What planner auto minimises: latency, throughput (of streams), memory.")]
SearchSeconds = Annotated[float, typer.Option(help="How long planner auto may search.")]
TransferDtype = Annotated[
    str,
    typer.Option(
        help="What 32-bit floats become on their way to an agent: exact, float16 or int8 (lossy). The answer itself returns exact; its"
        " error is measured, and verified within 1e-2 (float16) or 1e-1 (int8) of the largest magnitude instead of rounding."
    ),
]
SplitName = Annotated[
    str, typer.Option(help="Along what layers are cut: rows (default), columns, grid, channels, inputs, batch.", show_default=False)
]
Grid = Annotated[str, typer.Option(metavar="RxC", help="Rows and columns of the grid, 2x3; implies --split grid.", show_default=False)]
Batch = Annotated[int | None, typer.Option(min=1, help="Batch size; default: what the model fixes, or 1.", show_default=False)]
GivenInput = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]VALUE",
        help="An input: a shape (x=1x3x224x224, drawn at random), an array (x=x.npy, x=all.npz:KEY), or a picture (x=cat.jpg; given"
        " again, a batch). NAME= may be left out for the only input. Default: random, in the shape that the model declares.",
        show_default=False,
    ),
]
Size = Annotated[
    str,
    typer.Option(metavar="WxH", help="Resize pictures to width x height; default: the model's size, else their own.", show_default=False),
]
Normalizing = Annotated[
    Normalize | None,
    typer.Option(
        help="Pictures as floats: 0..1, 0..255, or imagenet, which is 0..1 less ImageNet's mean, over its deviation; default: imagenet"
        " for 3 colours, 0..1 for one, or with --mean or --std. Inputs of integers get 0..255.",
        show_default=False,
    ),
]
Mean = Annotated[
    str,
    typer.Option(
        metavar="R,G,B", help="Subtract this from what --normalize 0..1 or 0..255 makes; one number is for all colours.", show_default=False
    ),
]
Std = Annotated[str, typer.Option(metavar="R,G,B", help="Divide by this after --mean.", show_default=False)]
PictureLayout = Annotated[
    Layout | None, typer.Option(help="Where an input has its colours, if its shape does not say so.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")]
Coordinator = Annotated[
    str,
    typer.Option(
        is_eager=True,  # `LocalAgents` asks for it
        envvar="BBGRAP_COORDINATOR",
        metavar="tcp://HOST:PORT",
        help="Where the coordinator is; mdns: it announces itself.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="BBGRAP_TOKEN_FILE",
        metavar="FILE",
        help="The token for the coordinator; or set BBGRAP_TOKEN. Your own coordinator on this machine needs none.",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="For a coordinator that runs with --insecure: nobody is known, nothing encrypted.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")]


def _unless_said_nearer(context: typer.Context, agents: int | None) -> int | None:
    """Let a coordinator go first that was named as near as the number of agents or nearer: a project's file must not replace it."""
    if agents is None or not context.params.get("coordinator"):
        return agents
    order = ("DEFAULT", "DEFAULT_MAP", "ENVIRONMENT", "COMMANDLINE")
    nearness = [order.index(getattr(context.get_parameter_source(name), "name", "DEFAULT")) for name in ("agents", "coordinator")]
    if nearness == [3, 3]:
        raise UsageError("expected --agents or --coordinator, got both: the first starts a cluster on this machine")
    return agents if nearness[0] > nearness[1] else None


LocalAgents = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_AGENTS,
        help="Start a cluster of this many agents on this machine for the call.",
        show_default=False,
        callback=_unless_said_nearer,
    ),
]


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


def options_of(
    split: SplitName = "",
    grid: Grid = "",
    objective: ObjectiveName = "latency",
    search_seconds: SearchSeconds = 10.0,
    transfer_dtype: TransferDtype = "exact",
) -> Callable[[str], PlanOptions]:
    """Return what makes of a planner's name what is asked of it; it raises UsageError if there is no such planner, split or grid."""
    from bbgrap.planners.options import AUTO
    from bbgrap.planners.registry import NAMES

    def options(planner: str) -> PlanOptions:
        planner = planner or ("bbgrap" if split or grid else AUTO)
        along = split or _DEFAULT_SPLIT
        if planner not in NAMES:
            raise UsageError(f"planner: expected one of {', '.join(NAMES)}, got '{planner}'")
        more: dict[str, Any] = {"objective": objective, "search_seconds": search_seconds, "transfer_dtype": transfer_dtype}
        if not grid:
            return PlanOptions(planner, along, **more)  # type: ignore[arg-type]  # it looks itself
        if along not in ("grid", _DEFAULT_SPLIT):
            raise UsageError(f"grid: it goes with --split grid, got --split {along}")
        rows, _, columns = grid.lower().partition("x")
        if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
            raise UsageError(f"grid: expected rows x columns, like 2x3, got '{grid}'")
        return PlanOptions(planner, "grid", (int(rows), int(columns)), **more)

    return options


@takes(options=options_of)
def plan_options(planner: PlannerName = "", *, options: Callable[[str], PlanOptions]) -> PlanOptions:
    """Return what is asked of one planner: `auto`, unless another one or a split is named; it raises what `options_of` says."""
    return options(planner)


@takes(options=options_of)
def contenders(planner: Contenders = "", *, options: Callable[[str], PlanOptions]) -> list[PlanOptions]:
    """Return what is asked of each of several planners; it raises what `options_of` says."""
    return [options(name.strip()) for name in planner.split(",")]


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


def offline_cluster(agents: int | None, file: Path | None, shares: str, options: PlanOptions) -> Cluster:
    """Return the nodes to plan for without a cluster.

    Raises:
        UsageError: if the options contradict each other or say nothing.
        ClusterFileError: if the file is wrong.
    """
    from bbgrap.cluster import Cluster
    from bbgrap.cluster.files import read_cluster

    parts = parse_numbers("--shares", shares, above_0=True)
    if agents is not None and file is not None:
        raise UsageError("expected --agents or --cluster, got both")
    if agents is None and file is None and not parts:
        raise UsageError("for how many nodes? give --agents N, --shares 2,1,... or --cluster FILE")
    cluster = Cluster.even(agents or len(parts)) if file is None else read_cluster(file)
    if parts and len(parts) != len(cluster.nodes):
        raise UsageError(f"shares: expected one for each of {len(cluster.nodes)} nodes, got {len(parts)}")
    if parts:
        cluster = replace(cluster, nodes=tuple(replace(node, share=part) for node, part in zip(cluster.nodes, parts, strict=True)))
    if options.grid and options.grid[0] * options.grid[1] != len(cluster.nodes):
        raise UsageError(f"grid: {options.grid[0]}x{options.grid[1]} is not {len(cluster.nodes)} nodes")
    return cluster


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster a command works with, as a command line says it."""

    coordinator: str
    token_file: Path | None
    insecure: bool

    def open(self, agents: int | None = None, threads: int = 1) -> AbstractContextManager[Connection]:
        """Connect to it, or start one with so many agents; see `open_cluster`."""
        from bbgrap.cli.clusters import open_cluster

        return open_cluster(self.coordinator, agents, threads, token_file=self.token_file, insecure=self.insecure)


def where_is(context: typer.Context, coordinator: Coordinator = "", token_file: TokenFile = None, insecure: Insecure = False) -> Where:
    """Return what is said of a cluster after a command, or before it, where it is one of several under a name."""
    before = context.parent.params if context.parent else {}
    said = coordinator or before.get("coordinator", ""), token_file or before.get("token_file")
    return Where(*said, insecure=insecure or bool(before.get("insecure")))
