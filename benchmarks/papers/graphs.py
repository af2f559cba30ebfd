"""Bytes of training steps counted in the programs of the zoo's graphs, beside the papers' closed forms.

What a plan moves between agents in one step: tiles of forward, gradients and update, and state that the next step reads elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
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

PLANNERS = ("data-parallel", "one-weird-trick", "model-parallel", "hypar", "soybean")
NETWORKS = {  # as the paper calls them, and as the zoo does
    "SFC": "sfc",
    "SCONV": "sconv",
    "Lenet-c": "lenet-c",
    "Cifar-c": "cifar-c",
    "AlexNet": "alexnet-half",
    "VGG-A": "vgg-a",
    "VGG-B": "vgg-b",
    "VGG-C": "vgg-c",
    "VGG-D": "vgg-d",
    "VGG-E": "vgg-e",
}
REASON = (
    "figure 8 charges nothing between two mp layers, a program gathers dy there; dx of the first layer is not made; maps are counted "
    "before pooling where they travel before it"
)


class Counted:
    """A training step of a network, whose plans are counted."""

    def __init__(self, name: str, batch: int = 256) -> None:
        """Build the graph."""
        step = training.build(name, batch=batch)
        self.graph: Graph = with_state(step.graph, step.state)
        self.descriptions: dict[str, Description | None] = all_descriptions(self.graph)
        self._pieces = Pieces(self.graph, self.descriptions)

    def bytes(self, planner: str, nodes: int) -> int:
        """Return what agents send each other in one step."""
        plan = make_plan(self.graph, Cluster.even(nodes), PlanOptions(planner=planner), self.descriptions)
        return between_agents(build_direct(plan, self._pieces))


def between_agents(program: Program) -> int:
    """Return the bytes that agents send each other."""
    return sum(
        sum(program.part_bytes(device.device, step))
        for device in program.devices[: program.host]
        for step in device.steps
        if isinstance(step, Send) and step.destination != program.host
    )


def counted(networks: Sequence[str] = tuple(NETWORKS), nodes: int = 16) -> dict[str, Any]:
    """Return GB per step of every planner, by the paper's names of networks."""
    found: dict[str, Any] = {}
    for name in networks:
        of = Counted(NETWORKS[name])
        found[name] = {**{planner: of.bytes(planner, nodes) / 1e9 for planner in PLANNERS}, "reason": REASON}
    return found
