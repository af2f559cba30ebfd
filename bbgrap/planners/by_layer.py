"""The planners that divide each layer by its kind, whatever travels: data and model parallelism, and "one weird trick".

What is between the layers follows them. Where there is nothing to divide, the machine with the largest share computes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.layers import Layer, follow_layers, layers_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Placement, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.training import training_structure
from bbgrap.tdl import Descriptions


def plan_data_parallel(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide every node by batch, by shares, weights on all machines.

    Deviation: the batch is what the caller gives at once. Where a direction that started along the batch ends, or the batch is one sample,
    there is nothing to divide, so a model of batch 1 runs as with `single`.
    """
    step = training_structure(graph, descriptions)
    if step is not None:
        return step.tiles(Levels.flat(cluster), {layer.node.name: (_along(layer.batch),) for layer in step.layers})
    return follow_layers(graph, descriptions, Levels.flat(cluster), {})


def plan_model_parallel(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide as HyPar and SoyBean define it (T_model, section 4.1): weights and inputs by input channels, outputs partial sums.

    What follows a layer is divided by features. Deviations, since inference has layers that the papers do not: a layer whose sum cannot be
    divided (grouped and depthwise convolutions) is divided by features, one without either is computed by one machine.
    """
    return _divided(graph, cluster, descriptions, lambda layer: layer.inner or _along(layer.features))


def plan_one_weird_trick(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide as Krizhevsky (2014), the baseline of HyPar and Tofu: convolutions by batch, products by output features.

    Deviation: a convolution whose batch is one sample runs on one machine, so that of a model of batch 1 only the products are divided.
    """
    return _divided(graph, cluster, descriptions, lambda layer: _along(layer.batch if "Conv" in layer.node.op else layer.features))


def _divided(graph: Graph, cluster: Cluster, descriptions: Descriptions, placement: Callable[[Layer], Placement]) -> Tiles:
    step, levels = training_structure(graph, descriptions), Levels.flat(cluster)
    if step is not None:
        return step.tiles(levels, {layer.node.name: (placement(layer),) for layer in step.layers})
    return follow_layers(graph, descriptions, levels, {layer.node.name: (placement(layer),) for layer in layers_of(graph, descriptions)})


def _along(axis: int | None) -> Placement:
    return ON_ONE if axis is None else Shard(axis)
