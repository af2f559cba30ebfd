"""Krizhevsky's "one weird trick" (2014), the baseline of HyPar and Tofu: convolutions by batch, products by output features.

Deviations: layers between them follow; a convolution whose batch is one sample runs on the machine with the largest share, so that of
a model of batch 1 only the products are divided.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.layers import Layer, follow_layers, layers_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Placement, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.training import training_structure
from bbgrap.tdl import Descriptions


def plan_one_weird_trick(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide convolutions by batch and products by features, by shares."""
    step, levels = training_structure(graph, descriptions), Levels.flat(cluster)
    if step is not None:
        return step.tiles(levels, {n.node.name: (_placement(n),) for n in step.layers})
    placed = {layer.node.name: (_placement(layer),) for layer in layers_of(graph, descriptions)}
    return follow_layers(graph, descriptions, levels, placed)


def _placement(layer: Layer) -> Placement:
    axis = layer.batch if "Conv" in layer.node.op else layer.features
    return ON_ONE if axis is None else Shard(axis)
