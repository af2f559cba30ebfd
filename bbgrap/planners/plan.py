"""A plan: which machine computes which region of every node's output. The one type that every planner produces.

Laws (`check_plan`): the tiles of a node lie inside its output and cover it; a node without a description has one tile, the whole;
tiles cut only axes that the operator can split, and have several ranges only of axes along which a piece with gaps can be made. Either no
tile of a node is partial or all are: then they cut one reduction index, the ranges are disjoint and cover it, none is empty, they begin at
multiples of the node's unit, and the tiles of every range cover the output. Tiles may overlap (computed twice instead of sent), leave
devices out, or put a whole layer on one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from bbgrap.cluster import Cluster
from bbgrap.errors import PlanError
from bbgrap.graph import Graph, Node
from bbgrap.shapemap import Interval, ShapeMap, subtract_all
from bbgrap.tdl import Description, Descriptions, Part, can_make, describe, part_unit, reducible


@dataclass(frozen=True, slots=True)
class Tile:
    """A device computes a region (global coordinates) of a node's first output; its other outputs, if any, whole.

    With `part` it computes a partial result, over a range of a reduction index; the parts are summed where they are needed.
    """

    device: int
    region: ShapeMap
    part: Part | None = None


Tiles = Mapping[str, tuple[Tile, ...]]
"""Of nodes, by name."""


@dataclass(frozen=True)
class Plan:
    """Tiles of every node, by node name, in device order; devices are numbered as in `cluster.nodes`."""

    planner: str
    graph: Graph = field(repr=False)
    cluster: Cluster
    tiles: Tiles = field(repr=False)

    @cached_property
    def devices_used(self) -> tuple[int, ...]:
        """Devices that compute anything, ascending."""
        return tuple(sorted({tile.device for tiles in self.tiles.values() for tile in tiles}))


def whole_output(graph: Graph, node: Node) -> ShapeMap:
    """Return the region of a node's whole first output; that of an unknown shape is one indivisible point."""
    return ShapeMap.full(graph.types[node.first_output].shape or ())


def cuts_moving(graph: Graph, node: Node, tiles: tuple[Tile, ...]) -> bool:
    """Tell whether tiles cut an axis of a node's first output whose size moves."""
    moving = graph.moving.get(node.first_output, ())
    whole = whole_output(graph, node)
    return any(tile.region.axes[axis] != whole.axes[axis] for axis in moving for tile in tiles)


def check_plan(plan: Plan, descriptions: Descriptions | None = None) -> tuple[str, ...]:
    """List every breach of the laws of this module; empty if the plan keeps them."""
    faults: list[str] = []
    for node in plan.graph.nodes:
        tiles = plan.tiles.get(node.name, ())
        described = descriptions[node.name] if descriptions is not None else describe(plan.graph, node)
        faults += [f"node '{node.name}' ({node.op}): {fault}" for fault in _tile_faults(plan, node, tiles, described)]
    return tuple(faults)


def _tile_faults(plan: Plan, node: Node, tiles: tuple[Tile, ...], described: Description | None) -> list[str]:
    whole = whole_output(plan.graph, node)
    outside = [t for t in tiles if not whole.issuperset(t.region) or (t.region.is_empty and t.region != whole)]
    if outside:
        return [f"device {t.device}: tile {t.region} is empty or not inside {whole}" for t in outside]
    faults = [f"device {t.device} does not exist" for t in tiles if not 0 <= t.device < plan.cluster.host]
    if len({t.device for t in tiles}) != len(tiles):
        faults.append("a device has two tiles")
    if described is None and (len(tiles) != 1 or tiles[0].region != whole):
        return [*faults, "it cannot be split, so it needs one tile, the whole"]
    uncovered = ((part, subtract_all(whole, (t.region for t in tiles if t.part == part))) for part in dict.fromkeys(t.part for t in tiles))
    faults += [
        f"no tile covers {', '.join(map(str, missing))}{f' for part {part}' if part else ''}" for part, missing in uncovered if missing
    ]
    if described is not None:
        faults += _part_faults(plan, node, tiles, described)
        allowed = described.splittable_axes
        cut = {axis for t in tiles for axis in range(whole.rank) if t.region.axes[axis] != whole.axes[axis]}
        faults += [f"axis {axis} is cut, but the operator cannot be split there" for axis in sorted(cut - set(allowed))]
        if not faults:
            gaps = (t for t in tiles if not can_make(plan.graph, node, described, t.region))
            faults += [f"device {t.device}: the operator makes no piece with gaps, but the tile is {t.region}" for t in gaps]
    return faults


def _part_faults(plan: Plan, node: Node, tiles: tuple[Tile, ...], described: Description) -> list[str]:
    parts = sorted({t.part for t in tiles if t.part is not None}, key=lambda p: (p.index, p.interval))
    if not parts:
        return []
    if any(t.part is None for t in tiles) or len({part.index for part in parts}) != 1:
        return ["some of its tiles are partial and some are not, or they are over different indices"]
    extent = next((i.extent for i in reducible(plan.graph, node, described) if i.name == parts[0].index), None)
    if extent is None:
        return [f"it has no partial results along '{parts[0].index}'"]
    bounds = [0, *(part.interval.stop for part in parts)]
    expected = [Interval(start, stop) for start, stop in pairwise(bounds)]
    if bounds[-1] != extent or [part.interval for part in parts] != expected or not all(map(len, expected)):
        return [f"its parts {', '.join(map(str, parts))} do not divide 0:{extent}"]
    unit = part_unit(node)
    return [f"part {part} does not begin at a multiple of {unit}" for part in parts if part.interval.start % unit]


def verify_plan(plan: Plan, descriptions: Descriptions | None = None) -> None:
    """Raise if a plan breaks a law.

    Raises:
        PlanError: with every fault.
    """
    if faults := check_plan(plan, descriptions):
        raise PlanError(f"plan of '{plan.planner}': " + "; ".join(faults[:20]))
