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

from collections.abc import Mapping

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.layers import Descriptions, first_output
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import Description, input_regions, site_of

OVERLAP = 0.25
"""Work computed twice, as a part of a layer, from which rows are exchanged instead: chosen."""


def plan_fused_tiles(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Plan:
    """Divide rows as `bbgrap` does, then let tiles grow from the back over every stack."""
    rows = plan_bbgrap(graph, cluster, PlanOptions(split="rows"), descriptions).tiles
    return Plan("fused-tiles", graph, cluster, grow_tiles(graph, rows, descriptions, OVERLAP))


def grow_tiles(
    graph: Graph, given: Mapping[str, tuple[Tile, ...]], descriptions: Descriptions, overlap: float
) -> dict[str, tuple[Tile, ...]]:
    """Return tiles that overlap by up to a part of each layer, so that what they need of each other they compute themselves."""
    tiles = dict(given)
    needs: dict[str, dict[int, ShapeMap]] = {}
    for node in reversed(graph.nodes):
        description = descriptions[node.name]
        if description is None:
            continue
        axis = _cut_axis(tiles[node.name], description)
        if axis is not None:
            tiles[node.name] = _grown(tiles[node.name], axis, description, needs.get(first_output(node), {}), overlap)
        _add_needs(graph, node, description, tiles[node.name], needs)
    return tiles


def _cut_axis(tiles: tuple[Tile, ...], description: Description) -> int | None:
    """Return the one axis along which tiles are divided."""
    whole = ShapeMap.full(description.shape)
    cut = {axis for tile in tiles for axis in range(whole.rank) if tile.region.axes[axis] != whole.axes[axis]}
    return cut.pop() if len(cut) == 1 else None


def _grown(tiles: tuple[Tile, ...], axis: int, description: Description, needed: dict[int, ShapeMap], overlap: float) -> tuple[Tile, ...]:
    """Return tiles that hold all that their machines need, or the tiles themselves if that overlaps too much."""
    grown = []
    for tile in tiles:
        need = needed.get(tile.device)
        held = tile.region.axes[axis] if need is None else tile.region.axes[axis].union(need.axes[axis])
        if len(tile.region.axes[axis].ranges) == 1:  # gaps between several ranges are other machines'
            held = IntervalSet.of(held.hull)
        grown.append(Tile(tile.device, tile.region.replace(axis, held), tile.part))
    total = sum(len(tile.region.axes[axis]) for tile in grown)
    return tuple(grown) if total <= (1 + overlap) * description.shape[axis] else tiles


def _add_needs(graph: Graph, node: Node, description: Description, tiles: tuple[Tile, ...], needs: dict[str, dict[int, ShapeMap]]) -> None:
    shapes = site_of(graph, node).input_shapes
    for tile in tiles:
        parts = {} if tile.part is None else {tile.part.index: tile.part.interval}
        for name, region in zip(node.inputs, input_regions(description, tile.region, shapes, parts), strict=True):
            if region is not None and not region.is_empty:
                of = needs.setdefault(name, {})
                of[tile.device] = region if tile.device not in of else of[tile.device].hull(region)
