"""From a plan for some input shapes to one of the same kind for others: the cuts move with the sizes, the overlaps stay.

A layer of 56 rows is cut at 28, its pieces overlap by 5 rows. With 64 rows it is cut at 32, and its pieces overlap by 5 rows. All cuts of
a model follow one fraction of the extent, rounded alike, so that layers that fitted each other still do: offsets between them are the same,
and so are the models that are shipped. Where axes are joined, divided or concatenated, devices keep what they have (`carried_cuts`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor
from statistics import median_low

from bbgrap.errors import PlanError
from bbgrap.graph import Graph, Node
from bbgrap.planners.carried_cuts import CarriedCuts
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.shapemap import Interval, IntervalSet
from bbgrap.tdl import Description, Descriptions, reducible

_FAR = 0.1
"""Part of an extent: a cut that is further from where the model's others are follows a fraction of its own. Chosen."""

_Fractions = Mapping[tuple[int, int], float]
"""Where the k-th of n cuts lies, as a part of the extent, by (n, k)."""


def scaled(plan: Plan, graph: Graph, descriptions: Descriptions) -> Plan:
    """Return a plan for the same model with other input shapes; `descriptions` are those of its nodes with these, by name.

    Raises:
        PlanError: if the model has other nodes with these shapes, or is cut in a way that does not scale.
    """
    if graph.node_by_name.keys() != plan.tiles.keys():
        strangers = sorted(graph.node_by_name.keys() ^ plan.tiles.keys())
        raise PlanError(f"model '{graph.name}': with other shapes it has other nodes: {', '.join(strangers[:5])}")
    fractions, carried = _fractions(plan), CarriedCuts(plan.graph, graph)
    made: dict[str, tuple[Tile, ...]] = {}
    for node in graph.nodes:
        regions = carried.regions(node, plan.tiles, made)
        if regions is not None:
            made[node.name] = tuple(Tile(device, region) for device, region in regions.items())
        else:
            made[node.name] = _parts(graph, node, descriptions[node.name], _tiles(plan, graph, node, fractions), fractions)
    return Plan(plan.planner, graph, plan.cluster, made)


def _tiles(plan: Plan, graph: Graph, node: Node, fractions: _Fractions) -> tuple[Tile, ...]:
    before, whole, tiles = whole_output(plan.graph, plan.graph.node_by_name[node.name]), whole_output(graph, node), plan.tiles[node.name]
    if before.rank != whole.rank:
        raise PlanError(f"node '{node.name}': with other shapes it makes {whole}, expected {before.rank} axes")
    regions = [tile.region for tile in tiles]
    for axis, (old, new) in enumerate(zip(before.axes, whole.axes, strict=True)):
        if old != new:
            pieces = _moved([region.axes[axis] for region in regions], len(old), len(new), fractions)
            regions = [region.replace(axis, piece) for region, piece in zip(regions, pieces, strict=True)]
    return tuple(replace(tile, region=region) for tile, region in zip(tiles, regions, strict=True) if not region.is_empty or whole.is_empty)


def _parts(graph: Graph, node: Node, described: Description | None, tiles: tuple[Tile, ...], fractions: _Fractions) -> tuple[Tile, ...]:
    """Return the tiles with the ranges of their reduction moved as well, without those that are left none."""
    parts = sorted({tile.part for tile in tiles if tile.part is not None}, key=lambda part: part.interval)
    extents = {index.name: index.extent for index in reducible(graph, node, described)} if parts and described is not None else {}
    if not parts or extents.get(parts[0].index) == parts[-1].interval.stop:
        return tiles
    if parts[0].index not in extents:
        raise PlanError(f"node '{node.name}': with other shapes it cannot be summed up in parts")
    moved = _moved([IntervalSet.of(part.interval) for part in parts], parts[-1].interval.stop, extents[parts[0].index], fractions)
    by_part = {part: replace(part, interval=piece.hull) for part, piece in zip(parts, moved, strict=True) if piece.ranges}
    if len(by_part) < 2:  # one device has all that is left to sum up, or there is nothing
        kept = next(iter(by_part), parts[0])
        return tuple(replace(tile, part=None) for tile in tiles if tile.part == kept)
    return tuple(replace(tile, part=by_part[tile.part]) for tile in tiles if tile.part in by_part)


def _moved(pieces: Sequence[IntervalSet], old: int, new: int, fractions: _Fractions) -> list[IntervalSet]:
    """Return the pieces of an axis for another extent."""
    spans = _spans(pieces)
    shifts: list[int] = []
    last = 0.0
    for number, place in enumerate(_cuts(spans)):
        # Not beyond the cut before it: of few elements, another fraction may be ahead.
        shifts.append(max(_shift(place, number, len(spans) - 1, old, new, fractions), ceil(last - place)))
        last = place + shifts[-1]
    made: dict[Interval, Interval] = {}
    for span, left, right in zip(spans, [0, *shifts], [*shifts, new - old], strict=True):
        start, stop = (0 if span.start == 0 else span.start + left), (new if span.stop == old else span.stop + right)
        low, high = min(max(start, 0), new), min(max(stop, 0), new)
        made[span] = Interval(low, max(low, high))
    return [IntervalSet.of(made[piece.hull]) for piece in pieces]


def _spans(pieces: Sequence[IntervalSet]) -> list[Interval]:
    """Return the different ranges of an axis from its beginning to its end; wide overlaps may begin or end together, at a border.

    Raises:
        PlanError: if a piece has gaps, or one lies inside another.
    """
    spans = sorted({piece.hull for piece in pieces})
    if any(len(piece.ranges) != 1 for piece in pieces) or any(a.stop > b.stop for a, b in pairwise(spans)):
        raise PlanError(f"pieces {', '.join(map(str, spans))}: they do not follow one another, so other sizes cannot be cut alike")
    return spans


def _cuts(spans: Sequence[Interval]) -> list[float]:
    """Return where neighbours meet: in the middle of what both have."""
    return [(left.stop + right.start) / 2 for left, right in pairwise(spans)]


def _shift(place: float, number: int, count: int, old: int, new: int, fractions: _Fractions) -> int:
    """Return how far a cut moves."""
    usual = fractions.get((count, number), place / old)
    fraction = usual if abs(place - usual * old) <= max(1.0, _FAR * old) else place / old
    return floor(fraction * new + 0.5) - floor(fraction * old + 0.5)


def _fractions(plan: Plan) -> _Fractions:
    """Return where the model's cuts usually are."""
    found: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for node in plan.graph.nodes:
        whole = whole_output(plan.graph, node)
        for axis, extent in enumerate(whole.shape):
            pieces = [tile.region.axes[axis] for tile in plan.tiles[node.name]]
            if extent > 1 and all(len(piece.ranges) == 1 for piece in pieces) and len({piece.hull for piece in pieces}) > 1:
                spans = sorted({piece.hull for piece in pieces})
                for number, place in enumerate(_cuts(spans)):
                    found[len(spans) - 1, number].append(place / extent)
    return {key: median_low(places) for key, places in found.items()}
