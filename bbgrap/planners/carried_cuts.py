"""Cuts that nodes carry on from what they read: elements keep the device that has them when axes are joined, divided or concatenated.

    [1, 3, 400, 85], cut at 200 of 400 ── Reshape ──► [1, 1200, 85], cut into 0:200,400:600,800:1000 and the rest

Such cuts are no parts of an extent: for other shapes they follow from those of the operand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl.operators.shapes import RENAME_AXES, groups_of

_MOST_RANGES = 4096
"""That a set of a carried cut may have: more are not cut alike."""

RegionOfDevice = Mapping[int, ShapeMap]
"""What each device computes of a node."""


class CarriedCuts:
    """Finds which nodes of a plan carry a cut on, one after the other in the order of its graph, and carries it on for other shapes.

    Invariant: `_carriers` are the nodes whose cuts are carried on, from where axes are joined, divided or concatenated.
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        """Start for a graph that is planned, and the same one with other shapes."""
        self._before = before
        self._after = after
        self._carriers: set[str] = set()

    def regions(self, node: Node, planned: Tiles, made: Tiles) -> RegionOfDevice | None:
        """Return what each device computes of a node with the other shapes, if it carries a cut on; None if it has one of its own.

        `planned` are all tiles, `made` those with the other shapes of the nodes before it.
        """
        wanted = _by_device(planned[node.name])
        for read in self._reads(node) if wanted is not None else ():
            if _carried(self._before, self._before.node_by_name[node.name], read, planned) != wanted:
                continue
            found = _carried(self._after, node, read, made)
            if found is not None:
                self._carriers.add(node.name)
                return {device: region for device, region in found.items() if not region.is_empty}
        return None

    def _reads(self, node: Node) -> Iterator[tuple[str, ...]]:
        """Yield by name the nodes that a cut may come from: all that a concatenation reads, else one after the other."""
        may_begin = node.op in RENAME_AXES or node.op == "Concat"
        for names in [node.inputs] if node.op == "Concat" else [(name,) for name in node.inputs[: 1 if may_begin else None]]:
            producers = [self._after.producers.get(name) for name in names]
            read = tuple(made.name for made, name in zip(producers, names, strict=True) if made is not None and made.outputs[0] == name)
            if len(read) == len(names) and (may_begin or self._carriers.issuperset(read)):
                yield read


def _by_device(tiles: Sequence[Tile]) -> RegionOfDevice | None:
    """Return what devices compute, if each has one tile at most, and no partial sums."""
    found = {tile.device: tile.region for tile in tiles if tile.part is None}
    return found if len(found) == len(tiles) else None


def _carried(graph: Graph, node: Node, read: tuple[str, ...], tiles: Tiles) -> RegionOfDevice | None:
    """Return what each device has of a node's output if it has that of these nodes; None if that cannot be said."""
    parts = []
    for name in read:
        regions = _by_device(tiles[name])
        if regions is None:
            return None
        parts.append(regions)
    if any(part.keys() != parts[0].keys() for part in parts):
        return None
    shapes = [whole_output(graph, graph.node_by_name[name]).shape for name in read]
    after = whole_output(graph, node).shape
    found = {}
    for device in parts[0]:
        regions_there = [part[device] for part in parts]
        if node.op in RENAME_AXES:
            image = _renamed(shapes[0], after, regions_there[0])
        elif node.op == "Concat":
            image = _concatenated(shapes, regions_there, node.attributes.get("axis"))
        else:
            image = regions_there[0] if shapes[0] == after else _but_the_last(shapes[0], after, regions_there[0])
        if image is None:
            return None
        found[device] = image
    return found


def _but_the_last(before: tuple[int, ...], after: tuple[int, ...], region: ShapeMap) -> ShapeMap | None:
    """Return the region of what is computed from the whole last axis, as by a matrix product."""
    if len(before) != len(after) or not after or before[:-1] != after[:-1] or len(region.axes[-1]) != before[-1]:
        return None
    return region.replace(len(after) - 1, IntervalSet.full(after[-1]))


def _concatenated(shapes: list[tuple[int, ...]], regions: list[ShapeMap], axis: object) -> ShapeMap | None:
    if not isinstance(axis, int):
        return None
    axis %= len(shapes[0])
    ranges: list[Interval] = []
    offset = 0
    for shape, region in zip(shapes, regions, strict=True):
        ranges += region.axes[axis].shift(offset).ranges
        offset += shape[axis]
    made = {region.replace(axis, IntervalSet.of(*ranges)) for region in regions}
    return made.pop() if len(made) == 1 else None


def _renamed(before: tuple[int, ...], after: tuple[int, ...], region: ShapeMap) -> ShapeMap | None:
    if not 0 < prod(before) == prod(after):
        return None
    axes = [IntervalSet.full(extent) for extent in after]
    if region.is_empty:
        return ShapeMap(tuple(IntervalSet.of() for _ in axes)) if axes else None
    for ins, outs in groups_of(before, after):
        joined = _joined([region.axes[axis] for axis in ins], [before[axis] for axis in ins])
        divided = None if joined is None else _divided(joined, [after[axis] for axis in outs])
        if divided is None:
            return None
        for axis, piece in zip(outs, divided, strict=True):
            axes[axis] = piece
    return ShapeMap(tuple(axes))


def _joined(pieces: list[IntervalSet], extents: list[int]) -> IntervalSet | None:
    """Return the places of a product of pieces along one axis, in row-major order."""
    found, unit = pieces[-1], extents[-1]
    for piece, extent in zip(reversed(pieces[:-1]), reversed(extents[:-1]), strict=True):
        if len(found) == unit:
            found = IntervalSet.of(*(Interval(r.start * unit, r.stop * unit) for r in piece.ranges))
        elif len(piece) * len(found.ranges) > _MOST_RANGES:
            return None
        else:
            found = IntervalSet.of(*(r.shift(place * unit) for place in piece for r in found.ranges))
        unit *= extent
    return found


def _divided(piece: IntervalSet, extents: list[int]) -> list[IntervalSet] | None:
    """Return the pieces of several axes whose product is a piece of one; None if an axis but the outermost would be cut: it cannot be."""
    unit = prod(extents[1:])
    if any(r.start % unit or r.stop % unit for r in piece.ranges):
        return None
    outer = IntervalSet.of(*(Interval(r.start // unit, r.stop // unit) for r in piece.ranges))
    return [outer, *(IntervalSet.full(extent) for extent in extents[1:])]
