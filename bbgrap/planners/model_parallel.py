"""Model parallelism as HyPar and SoyBean define it (T_model, section 4.1): weights and inputs by input channels, outputs partial sums.

What follows a layer is divided by features. Deviations, since inference has layers that the papers do not: a layer whose sum cannot be
divided (grouped and depthwise convolutions) is divided by features, one without either is computed by the machine with the largest share.
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


def plan_model_parallel(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide every layer's input channels by shares."""
    step, levels = training_structure(graph, descriptions), Levels.flat(cluster)
    if step is not None:
        return step.tiles(levels, {n.node.name: (model_placement(n),) for n in step.layers})
    placed = {layer.node.name: (model_placement(layer),) for layer in layers_of(graph, descriptions)}
    return follow_layers(graph, descriptions, levels, placed)


def model_placement(layer: Layer) -> Placement:
    """Return how a layer is divided by model: its input channels, else its features, else not at all."""
    return layer.inner or (ON_ONE if layer.features is None else Shard(layer.features))
