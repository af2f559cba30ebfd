"""Training steps of the zoo's graphs as programs: their bytes, beside the papers' closed forms, and HyPar's figures in simulated seconds.

What a plan moves between agents in one step: tiles of forward, gradients and update, and state that the next step reads elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bbgrap.cluster import Cluster
from bbgrap.compiler.direct import build_direct
from bbgrap.graph import Graph
from bbgrap.graph.state import with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import Program, Send
from bbgrap.tdl import Description
from bbgrap.zoo import training
from bbgrap.zoo.training.networks import NETWORKS, ConvBlock, stack
from benchmarks.papers.accelerators import TOPOLOGIES, step_seconds
from benchmarks.papers.networks import HYPAR

PLANNERS = ("data-parallel", "one-weird-trick", "model-parallel", "hypar", "soybean")
COUNTS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (32, 256, 4096)
LAYERS: Mapping[str, Callable[[int], Graph]] = {
    "VGG-E": NETWORKS["vgg-e"],
    "conv5": lambda batch: stack("conv5", batch, 512, 14, (*[ConvBlock(512, 3, 1)] * 3, ConvBlock(512, 3, 1, pool=14, pool_stride=14)), ()),
    "fc3": lambda batch: stack("fc3", batch, 4096, 1, (), (4096, 1000)),
}
"""What figure 13 looks at: VGG-E, its last stage of convolutions, and its last two products."""
REASON = (
    "figure 8 charges nothing between two mp layers, a program gathers dy there; dx of the first layer is not made; maps are counted "
    "before pooling where they travel before it"
)


class Counted:
    """A training step of a network, whose plans are counted."""

    def __init__(self, step: training.TrainingStep) -> None:
        """Describe the graph."""
        self.graph: Graph = with_state(step.graph, step.state)
        self.descriptions: dict[str, Description | None] = all_descriptions(self.graph)
        self._pieces = Pieces(self.graph, self.descriptions)

    def program(self, planner: str, nodes: int) -> Program:
        """Return the program of one step."""
        plan = make_plan(self.graph, Cluster.even(nodes), PlanOptions(planner=planner), self.descriptions)
        return build_direct(plan, self._pieces)


def between_agents(program: Program) -> int:
    """Return the bytes that agents send each other."""
    return sum(
        sum(program.part_bytes(device.device, step))
        for device in program.devices[: program.host]
        for step in device.steps
        if isinstance(step, Send) and step.destination != program.host
    )


def alone_seconds(of: Counted) -> float:
    """Return what a step takes on one accelerator."""
    return step_seconds(of.program("data-parallel", 1), "tree")


def built(name: str, batch: int = 256) -> Counted:
    """Return the training step of a network that the paper names."""
    return Counted(training.build(HYPAR[name], batch=batch))


def counted(networks: Sequence[str] = tuple(HYPAR), nodes: int = 16, topologies: Sequence[str] = TOPOLOGIES) -> dict[str, Any]:
    """Return GB, and seconds in every topology and on one accelerator, of a step by planner, by the paper's names of networks."""
    found: dict[str, Any] = {}
    for name in networks:
        of = built(name)
        programs = {planner: of.program(planner, nodes) for planner in PLANNERS}
        found[name] = {
            **{planner: between_agents(program) / 1e9 for planner, program in programs.items()},
            "seconds": {planner: {t: step_seconds(program, t) for t in topologies} for planner, program in programs.items()},
            "alone_s": alone_seconds(of) if topologies else None,
            "reason": REASON,
        }
    return found


def scaling(name: str = "VGG-A", counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """Return figure 11: GB and seconds of a step by number of accelerators, in an H-tree."""
    of = built(name)
    found: dict[str, Any] = {}
    for count in counts:
        programs = {planner: of.program(planner, count) for planner in ("data-parallel", "model-parallel", "hypar")}
        found[str(count)] = {
            planner: {"gb": between_agents(program) / 1e9, "s": step_seconds(program, "tree")} for planner, program in programs.items()
        }
    return found


def batches(
    layers: Mapping[str, Callable[[int], Graph]] = LAYERS, sizes: Sequence[int] = BATCHES, counts: Sequence[int] = (4, 8, 16)
) -> dict[str, Any]:
    """Return figure 13: how many times as fast as with the trick a step is with HyPar, by layers, batch and number of accelerators.

    Layers are networks of their own here, so the gradient of their input is not made.
    """
    found: dict[str, Any] = {}
    for name, build in layers.items():
        for batch in sizes:
            of = Counted(training.step_of(build(batch)))
            for count in counts:
                seconds = {planner: step_seconds(of.program(planner, count), "tree") for planner in ("one-weird-trick", "hypar")}
                found[f"{name}, batch {batch}, {count} accelerators"] = seconds["one-weird-trick"] / seconds["hypar"]
    return found
