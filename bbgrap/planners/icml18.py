"""ICML18 (Jia et al. 2018), as Tofu compares with it (section 7.3): all divisions over all machines in one search, but no partial sums.

A node's options are all ways of dividing its axes by the prime factors of the number of machines, whatever their order (20 for four axes
and eight machines); they grow fast, and the search with them, which is what Tofu's recursion is for.

Deviations: those of `tofu`; more than `LIMIT` options are cut off, those that divide the first axes are kept.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import Levels, Placements
from bbgrap.planners.plan import Tiles
from bbgrap.planners.search import Choices
from bbgrap.planners.tofu import further_placements
from bbgrap.tdl import Description, Descriptions

LIMIT = 24
"""Options of a node: chosen; 20 are all there are for a map over eight machines."""


def plan_icml18(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Choose among all divisions of output axes at once."""
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
