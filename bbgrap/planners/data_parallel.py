"""Data parallelism: every node by batch, weights on all machines.

Deviation: the batch is what the caller gives at once. Where a direction that started along the batch ends, or the batch is one sample,
there is nothing to divide: the machine with the largest share computes alone, so a model of batch 1 runs as with `single`.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.layers import follow_layers
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.training import training_structure
from bbgrap.tdl import Descriptions


def plan_data_parallel(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide the batch by shares, and follow it."""
    step, levels = training_structure(graph, descriptions), Levels.flat(cluster)
    if step is not None:
        placed = {layer.node.name: (ON_ONE if layer.batch is None else Shard(layer.batch),) for layer in step.layers}
        return step.tiles(levels, placed)
    return follow_layers(graph, descriptions, levels, {})
