"""EqualChop, which Tofu is compared with (section 7.3): every node over all machines along a single loop. Deviates as `tofu` does."""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import Levels
from bbgrap.planners.plan import Tiles
from bbgrap.planners.search import Choices
from bbgrap.planners.tofu import further_placements
from bbgrap.tdl import Descriptions


def plan_equal_chop(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Choose the loops by Tofu's dynamic programming."""
    choices = chop_choices(graph, cluster, descriptions)
    return choices.plan_tiles(choices.best())


def chop_choices(graph: Graph, cluster: Cluster, descriptions: Descriptions) -> Choices:
    """Return the choice of one loop per node over all machines."""
    levels = Levels.flat(cluster)
    options = {node.name: further_placements(graph, node, descriptions[node.name], (), levels) for node in graph.nodes}
    return Choices(graph, descriptions, levels, options)
