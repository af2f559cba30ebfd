"""DEFER (2022): whole layers on consecutive machines, each about as much work as its share.

One request passes the machines one after the other, so a single request gains nothing; a stream of requests keeps them all busy.

Deviations: nodes are taken in topological order and a machine's part ends where its share of the floating point operations is reached,
so branches are cut as they come; DEFER's compression is not part of a plan.
"""

from __future__ import annotations

from itertools import accumulate

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.tdl import Descriptions
from bbgrap.tdl.work import operations_of


def plan_pipeline(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Put every node whole on the machine whose part of the work its middle falls into."""
    work = [operations_of(node, descriptions[node.name], whole_output(graph, node)) for node in graph.nodes]
    total, shares = sum(work), sum(cluster.shares)
    ends = [total * share / shares for share in accumulate(cluster.shares)]
    tiles = {}
    for node, own, until in zip(graph.nodes, work, accumulate(work), strict=True):
        middle = until - own / 2
        device = next((device for device, end in enumerate(ends) if middle <= end), cluster.host - 1)
        tiles[node.name] = (Tile(device, whole_output(graph, node)),)
    return tiles
