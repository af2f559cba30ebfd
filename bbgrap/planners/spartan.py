"""Spartan (2015), as Tofu compares with it (section 7.3): the largest tensor first, then its neighbours, each along one loop.

A node counts with the largest tensor that it makes or whose elements it alone uses (its output or its weights). It takes the loop by
which its edges cost least, given the nodes that have chosen; those that have not count with what is best for it.

Deviations: those of `tofu`; a weight and its node's output are divided together, by the loop of the node.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.equal_chop import chop_choices
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Tiles
from bbgrap.tdl import Descriptions


def plan_spartan(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Choose greedily, by size."""
    choices = chop_choices(graph, cluster, descriptions)
    chosen: dict[str, int] = {}
    for node in sorted(graph.nodes, key=lambda node: -_largest_tensor(graph, node)):
        chosen[node.name] = int(choices.cost_around(node.name, chosen).argmin())
    return choices.plan_tiles(chosen)


def _largest_tensor(graph: Graph, node: Node) -> int:
    weights = [name for name in node.inputs if name in graph.weights]
    return max(graph.types[name].nbytes for name in (*weights, *filter(None, node.outputs)))
