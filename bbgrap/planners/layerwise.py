"""MoDNN (2017): every layer's rows over all machines, everything brought together after each layer.

The group owner (here the machine with the largest share) collects what the others computed, does what is between the layers (activations
and pools), and hands out the inputs of the next layer. Large products are divided by features, small ones are its own.

Deviations: rows by shares instead of one- or two-dimensional partitions; two layers with nothing between them exchange border rows
directly, since no node of a plan can collect them; batch normalisation that is folded away on loading is part of its layer.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.layers import layers_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import Levels
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.tdl import Descriptions


def plan_layerwise(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide the layers by rows, and do everything else on one machine."""
    rows = plan_bbgrap(graph, cluster, PlanOptions(split="rows"), descriptions)
    root = Levels.flat(cluster).root
    layers = {layer.node.name for layer in layers_of(graph, descriptions)}
    return {node.name: rows[node.name] if node.name in layers else (Tile(root, whole_output(graph, node)),) for node in graph.nodes}
