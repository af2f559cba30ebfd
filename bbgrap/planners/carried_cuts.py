"""Cuts that nodes carry on from what they read: elements keep the device that has them when axes are joined, divided or concatenated.

    [1, 3, 400, 85], cut at 200 of 400 ── Reshape ──► [1, 1200, 85], cut into 0:200,400:600,800:1000 and the rest

Such cuts are no parts of an extent: for other shapes they follow from those of the operand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import Description, computable, describe
from bbgrap.tdl.operators.shapes import RENAME_AXES

_MOST_RANGES = 4096
"""That an axis of a carried cut may have: more are not cut alike. Many follow from a few with other shapes, those of a batch say."""

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
        may_begin = _may_begin(node)
        for names in [node.inputs] if node.op == "Concat" else [(name,) for name in node.inputs[: 1 if may_begin else None]]:
            producers = [self._after.producers.get(name) for name in names]
            read = tuple(made.name for made, name in zip(producers, names, strict=True) if made is not None and made.outputs[0] == name)
            if len(read) == len(names) and (may_begin or self._carriers.issuperset(read)):
                yield read


def _may_begin(node: Node) -> bool:
    """Whether a node joins, divides or concatenates axes: it makes elements of those that it reads, each of one."""
    return node.op in RENAME_AXES or node.op == "Concat"


def _by_device(tiles: Sequence[Tile]) -> RegionOfDevice | None:
    """Return what devices compute, if each has one tile at most, and no partial sums."""
    found = {tile.device: tile.region for tile in tiles if tile.part is None}
    return found if len(found) == len(tiles) else None


def _carried(graph: Graph, node: Node, read: tuple[str, ...], tiles: Tiles) -> RegionOfDevice | None:
    """Return what each device has of a node's output if it has that of these nodes; None if that cannot be said."""
    parts = [regions for name in read if (regions := _by_device(tiles[name])) is not None]
    if len(parts) < len(read) or any(part.keys() != parts[0].keys() for part in parts):
        return None
    description = describe(graph, node) if _may_begin(node) else None
    found = {}
    for device in parts[0]:
        there = [part[device] for part in parts]
        image = _kept(graph, node, read[0], there[0]) if description is None else _moved_elements(graph, node, description, there)
        if image is None:
            return None
        found[device] = image
    return found


def _kept(graph: Graph, node: Node, read: str, region: ShapeMap) -> ShapeMap | None:
    """Return the region of what has the shape of what is read, or is computed from the whole last axis of it, as by a matrix product."""
    before, after = (whole_output(graph, each).shape for each in (graph.node_by_name[read], node))
    if before == after:
        return region
    if len(before) != len(after) or not after or before[:-1] != after[:-1] or len(region.axes[-1]) != before[-1]:
        return None
    return region.replace(len(after) - 1, IntervalSet.full(after[-1]))


def _moved_elements(graph: Graph, node: Node, description: Description, there: list[ShapeMap]) -> ShapeMap | None:
    """Return where the elements of these regions of a node's first operands are in its output, if they are all of one region."""
    if all(region.is_empty for region in there):
        return ShapeMap(tuple(IntervalSet(()) for _ in description.shape))
    shapes = [graph.types[name].shape if name else None for name in node.inputs]
    image = computable(description, [*there, *[None] * (len(shapes) - len(there))], shapes, _MOST_RANGES)
    return image if image is not None and image.size == sum(region.size for region in there) else None
