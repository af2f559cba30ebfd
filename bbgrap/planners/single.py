"""The whole model on one machine: the baseline of every comparison, through the same pipeline."""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, Tiles, whole_output
from bbgrap.tdl import Descriptions


def plan_single(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Put every node whole on the node with the largest share."""
    return next(iter(whole_plans(graph, cluster).values())).tiles


def whole_plans(graph: Graph, cluster: Cluster) -> dict[int, Plan]:
    """Return a plan per device that puts every node of the graph whole on it, largest share first."""
    order = sorted(range(cluster.host), key=lambda device: (-cluster.shares[device], device))
    return {device: plan_whole(graph, cluster, device) for device in order}


def plan_whole(graph: Graph, cluster: Cluster, device: int) -> Plan:
    """Put every node whole on one device."""
    return Plan("single", graph, cluster, {node.name: (Tile(device, whole_output(graph, node)),) for node in graph.nodes})
