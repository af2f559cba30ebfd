"""Halo recomputation: tiles grow by what their machines read of them, so that it is computed twice instead of sent."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

from bbgrap.graph import Node
from bbgrap.planners.plan import Tile
from bbgrap.shapemap import IntervalSet, ShapeMap

Needs = MutableMapping[tuple[str, int], ShapeMap]
"""What devices read of values, by name and device."""


def cut_axis(tiles: tuple[Tile, ...]) -> int | None:
    """Return the one axis along which whole results are divided; None if there is none, or more than one."""
    first = tiles[0].region
    cut = {axis for tile in tiles for axis in range(first.rank) if tile.region.axes[axis] != first.axes[axis]}
    return cut.pop() if len(cut) == 1 and all(tile.part is None for tile in tiles) else None


def note_needs(needs: Needs, node: Node, tile: Tile, reads: Sequence[ShapeMap | None]) -> None:
    """Add what a tile of a node reads to what devices need of values, by name and device."""
    for name, read in zip(node.inputs, reads, strict=True):
        if read is not None and not read.is_empty:
            known = needs.get((name, tile.device))
            needs[name, tile.device] = read if known is None else known.hull(read)


def with_need(tile: Tile, axis: int, need: ShapeMap | None) -> Tile:
    """Return a tile that holds along an axis what its machine needs, too; the tile itself if it does already."""
    if need is None or tile.region.axes[axis].issuperset(need.axes[axis]):
        return tile
    held = tile.region.axes[axis].union(need.axes[axis])
    if len(tile.region.axes[axis].ranges) == 1:  # gaps between several ranges are other machines'
        held = IntervalSet.of(held.hull)
    return replace(tile, region=tile.region.replace(axis, held))
