"""Every node on its own, along its longest axis that can be split: no regard for what travels.

Slow by design. It splits whatever can be split, so it is what the conformance suite runs, and a way to see that a model's every
operator survives being cut.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.shares import split_axis
from bbgrap.shapemap import IntervalSet
from bbgrap.tdl import Descriptions


def plan_widest(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Cut every described node by shares along its longest splittable axis; the others run whole on the first node."""
    tiles: dict[str, tuple[Tile, ...]] = {node.name: (Tile(0, whole_output(graph, node)),) for node in graph.nodes}
    for name, description in descriptions.items():
        axes = [a for a in description.splittable_axes if description.shape[a] > 1] if description is not None else []
        if description is None or not axes:
            continue
        axis = max(axes, key=lambda a: (description.shape[a], -a))
        pieces, whole = split_axis(description, axis, cluster.shares), tiles[name][0].region
        tiles[name] = tuple(Tile(d, whole.replace(axis, IntervalSet.of(piece))) for d, piece in enumerate(pieces) if len(piece))
    return tiles
