"""The searches that Tofu compares itself with (section 7.3). Deviations of all: those of `tofu`."""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import Levels, Placements, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.search import Choices
from bbgrap.planners.tofu import further_placements
from bbgrap.tdl import Description, Descriptions

LIMIT = 24
"""Options of a node for `icml18`: chosen; 20 are all there are for a map over eight machines."""


def plan_equal_chop(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """EqualChop: Tofu's dynamic programming, but every node over all machines along a single loop."""
    choices = chop_choices(graph, cluster, descriptions)
    return choices.plan_tiles(choices.best())


def plan_spartan(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Spartan (2015): greedily, the largest tensor first, then its neighbours, each along one loop.

    A node counts with the largest tensor that it makes or whose elements it alone uses (its output or its weights). It takes the loop by
    which its edges cost least, given the nodes that have chosen; those that have not count with what is best for it.

    Deviation: a weight and its node's output are divided together, by the loop of the node.
    """
    choices = chop_choices(graph, cluster, descriptions)
    chosen: dict[str, int] = {}
    for node in sorted(graph.nodes, key=lambda node: -_largest_tensor(graph, node)):
        chosen[node.name] = int(choices.cost_around(node.name, chosen).argmin())
    return choices.plan_tiles(chosen)


def chop_choices(graph: Graph, cluster: Cluster, descriptions: Descriptions) -> Choices:
    """Return the choice of one loop per node over all machines."""
    levels = Levels.flat(cluster)
    options = {node.name: further_placements(graph, node, descriptions[node.name], (), levels) for node in graph.nodes}
    return Choices(graph, descriptions, levels, options)


def _largest_tensor(graph: Graph, node: Node) -> int:
    weights = [name for name in node.inputs if name in graph.weights]
    return max(graph.types[name].nbytes for name in (*weights, *filter(None, node.outputs)))


def plan_allrow_greedy(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """AllRow-Greedy: every tensor by its first dimension, every operator the best it can do with that.

    The first dimension is the first axis that has a row for every machine: the batch if it is large enough, else the channels.

    Deviations: where no axis is long enough, or the operator cannot be split along it, the node takes the loop by which it fetches least
    of what the nodes before it hold.
    """
    levels = Levels.flat(cluster)
    alternatives: dict[str, tuple[Placements, ...]] = {}
    for node in graph.nodes:
        row = _first_axis(descriptions[node.name], levels.count)
        alternatives[node.name] = further_placements(graph, node, descriptions[node.name], (), levels) if row is None else ((Shard(row),),)
    choices = Choices(graph, descriptions, levels, alternatives)
    chosen: dict[str, int] = {}
    for node in graph.nodes:
        chosen[node.name] = int(choices.cost_of_earlier(node.name, chosen).argmin())
    return choices.plan_tiles(chosen)


def _first_axis(description: Description | None, parts: int) -> int | None:
    if description is None:
        return None
    return next((axis for axis in description.splittable_axes if description.shape[axis] >= max(2, parts)), None)


def plan_icml18(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """ICML18 (Jia et al. 2018): all divisions of output axes over all machines in one search, but no partial sums.

    A node's options are all ways of dividing its axes by the prime factors of the number of machines, whatever their order (20 for four
    axes and eight machines); they grow fast, and the search with them, which is what Tofu's recursion is for.

    Deviation: more than `LIMIT` options are cut off, those that divide the first axes are kept.
    """
    levels = Levels.of(cluster)
    alternatives = {node.name: _options(graph, node, descriptions[node.name], levels) for node in graph.nodes}
    choices = Choices(graph, descriptions, levels, alternatives)
    return choices.plan_tiles(choices.best())


def _options(graph: Graph, node: Node, description: Description | None, levels: Levels) -> tuple[Placements, ...]:
    """Return one option for every way of dividing; the same placements for the same factors are one way."""
    found: tuple[Placements, ...] = ((),)
    for depth in range(1, len(levels.ways) + 1):
        upper = levels.upper(depth)
        longer = [
            further for placements in found for further in further_placements(graph, node, description, placements, upper, sums=False)
        ]
        distinct = {tuple(sorted(zip(levels.ways, map(str, placements), strict=False))): placements for placements in reversed(longer)}
        found = tuple(reversed(distinct.values()))[:LIMIT]
    return found
