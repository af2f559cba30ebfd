"""AllRow-Greedy (Tofu, section 7.3): every tensor by its first dimension, every operator the best it can do with that.

The first dimension is the first axis that has a row for every machine: the batch if it is large enough, else the channels.

Deviations: those of `tofu`; where no axis is long enough, or the operator cannot be split along it, the node takes the loop by which it
fetches least of what the nodes before it hold.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import Levels, Placements, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.search import Choices
from bbgrap.planners.tofu import further_placements
from bbgrap.tdl import Description, Descriptions


def plan_allrow_greedy(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Take the first dimension everywhere."""
    levels = Levels.flat(cluster)
    alternatives: dict[str, tuple[Placements, ...]] = {}
    for node in graph.nodes:
        row = _first_axis(descriptions[node.name], levels.count)
        alternatives[node.name] = further_placements(graph, node, descriptions[node.name], (), levels) if row is None else ((Shard(row),),)
    choices = Choices(graph, descriptions, levels, alternatives)
    chosen: dict[str, int] = {}
    for node in graph.nodes:
        earlier = [edge for edge in choices.around[node.name] if edge.consumer == node.name]
        costs = sum((choices.cost(edge)[chosen[edge.producer]] for edge in earlier), start=choices.node_cost(node.name))
        chosen[node.name] = int(costs.argmin())
    return choices.plan_tiles(chosen)


def _first_axis(description: Description | None, parts: int) -> int | None:
    if description is None:
        return None
    return next((axis for axis in description.splittable_axes if description.shape[axis] >= max(2, parts)), None)
