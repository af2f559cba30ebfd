"""DeepThings (2018) and AOFL (2019): stacks of layers fused into one tile per machine, whose borders are computed twice instead of sent.

                rows of one machine
    layer 1     ###############      the halo grows towards the front of the stack:
    layer 2      #############       a machine computes every row that its last rows need
    layer 3       ###########        <- here rows are divided evenly, and exchanged before the next stack

Back to front, a node's tile is its own rows and all that its machine needs of it. A stack ends where what is computed more than once
would exceed `OVERLAP` of the layer: AOFL searches for the depth, this rule follows from its trade-off and needs no profile.

Deviations: rows by shares instead of a grid of more tiles than machines (so no work stealing); at most one tile per machine; what the
rows do not reach (after a global pool, say) is planned as `bbgrap` does.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.halo_recomputation import cut_axis, note_needs, with_need
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tiles
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import Descriptions

OVERLAP = 0.25
"""Work computed twice, as a part of a layer, from which rows are exchanged instead: chosen."""


def plan_fused_tiles(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide rows as `bbgrap` does, then let tiles grow from the back over every stack."""
    tiles = dict(plan_bbgrap(graph, cluster, PlanOptions(split="rows"), descriptions))
    pieces = Pieces(graph, descriptions)
    needs: dict[tuple[str, int], ShapeMap] = {}
    for node in reversed(graph.nodes):
        description = descriptions[node.name]
        if description is None:
            continue
        axis = cut_axis(tiles[node.name])
        if axis is not None:
            grown = tuple(with_need(tile, axis, needs.get((node.first_output, tile.device))) for tile in tiles[node.name])
            if sum(len(tile.region.axes[axis]) for tile in grown) <= (1 + OVERLAP) * description.shape[axis]:
                tiles[node.name] = grown
        for tile in tiles[node.name]:
            note_needs(needs, node, tile, pieces.piece(node, tile)[0])
    return tiles
