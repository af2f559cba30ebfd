"""Which part of every layer each device computes, and what it fetches for it: what the map of rows and channels is drawn of.

A layer is cut along one axis as a rule, so a range along it says where a device's tile is. Where two axes are cut (a grid), the ranges
are those of the first one, and tiles of one range lie side by side along the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Graph
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.program.cases import Need
from bbgrap.shapemap import ShapeMap

GlobalRanges = tuple[tuple[int, int], ...]
"""Half-open ranges along one axis, in global coordinates."""

_IMAGE = ("batch", "channels", "rows", "columns")


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a device needs of a value and does not hold: `ranges` of the `extent` of one axis, `elements` in all."""

    value: str
    axis: str
    extent: int
    ranges: GlobalRanges
    elements: int


@dataclass(frozen=True, slots=True)
class LayerTile:
    """A device's tile of a layer: the ranges it computes along the layer's axis, and what it fetches for them."""

    device: int
    computes: GlobalRanges
    fetches: tuple[Fetch, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A node of the graph, cut along `axis` (a name for people) of `extent` elements; a whole layer has one range, all of it."""

    name: str
    operator: str
    axis: str
    extent: int
    tiles: tuple[LayerTile, ...]


def layers_of(plan: Plan, needs: Iterable[Need]) -> tuple[LayerReport, ...]:
    """Return all layers of a plan, in the order of the graph; `needs` are those of its program."""
    fetches: defaultdict[tuple[str, int], list[Fetch]] = defaultdict(list)
    for need in needs:
        if need.missing:
            fetches[need.node, need.device].append(_fetch(plan.graph, need))
    layers = []
    for node in plan.graph.nodes:
        tiles = plan.tiles[node.name]
        axis, extent, ranges = _cut(whole_output(plan.graph, node), tiles)
        parts = (LayerTile(tile.device, part, tuple(fetches[node.name, tile.device])) for tile, part in zip(tiles, ranges, strict=True))
        layers.append(LayerReport(node.name, node.op, axis, extent, tuple(parts)))
    return tuple(layers)


def _cut(whole: ShapeMap, tiles: tuple[Tile, ...]) -> tuple[str, int, list[GlobalRanges]]:
    parts = [tile.part for tile in tiles if tile.part is not None]
    if parts:
        return f"sum over {parts[0].index}", max(p.interval.stop for p in parts), [((p.interval.start, p.interval.stop),) for p in parts]
    axis = _first_cut(whole, (tile.region for tile in tiles))
    if axis is None:
        return "whole", 1, [((0, 1),) for _ in tiles]
    return _axis_name(whole.rank, axis), whole.shape[axis], [_ranges(tile.region, axis) for tile in tiles]


def _fetch(graph: Graph, need: Need) -> Fetch:
    whole = ShapeMap.full(graph.types[need.value].shape or ())
    elements = sum(region.size for region in need.missing)
    axis = _first_cut(whole, need.missing)
    if axis is None:
        return Fetch(need.value, "whole", 1, ((0, 1),), elements)
    ranges = {part for region in need.missing for part in _ranges(region, axis)}
    return Fetch(need.value, _axis_name(whole.rank, axis), whole.shape[axis], tuple(sorted(ranges)), elements)


def _first_cut(whole: ShapeMap, regions: Iterable[ShapeMap]) -> int | None:
    cut = {axis for region in regions for axis in range(whole.rank) if region.axes[axis] != whole.axes[axis]}
    return min(cut, default=None)


def _ranges(region: ShapeMap, axis: int) -> GlobalRanges:
    return tuple((part.start, part.stop) for part in region.axes[axis].ranges)


def _axis_name(rank: int, axis: int) -> str:
    return _IMAGE[axis] if rank == len(_IMAGE) else f"axis {axis}"


def read_layers(plain: object) -> tuple[LayerReport, ...]:
    """Return the layers of a plan's report, where they are plain values.

    Raises:
        RemoteProtocolError: if they are anything else.
    """
    try:
        return tuple(_layer(entry) for entry in _list(plain))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"report: its layers are not as expected: {type(error).__name__} {error}") from error


def _layer(plain: Mapping[str, Any]) -> LayerReport:
    tiles = (
        LayerTile(int(tile["device"]), _pairs(tile["computes"]), tuple(_fetched(fetch) for fetch in _list(tile["fetches"])))
        for tile in _list(plain["tiles"])
    )
    return LayerReport(str(plain["name"]), str(plain["operator"]), str(plain["axis"]), int(plain["extent"]), tuple(tiles))


def _fetched(plain: Mapping[str, Any]) -> Fetch:
    return Fetch(str(plain["value"]), str(plain["axis"]), int(plain["extent"]), _pairs(plain["ranges"]), int(plain["elements"]))


def _pairs(plain: object) -> GlobalRanges:
    return tuple((int(start), int(stop)) for start, stop in _list(plain))


def _list(plain: object) -> Iterable[Any]:
    if not isinstance(plain, list | tuple):
        raise TypeError(f"expected a list, got {type(plain).__name__}")
    return plain
