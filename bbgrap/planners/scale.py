"""From a plan for some input shapes to one of the same kind for others: the cuts move with the sizes, the overlaps stay.

A layer of 56 rows is cut at 28, its pieces overlap by 5 rows. With 64 rows it is cut at 32, and its pieces overlap by 5 rows. All cuts of
a model follow one fraction of the extent, rounded alike, so that layers that fitted each other still do: offsets between them are the same,
and so are the models that are shipped. An axis that holds others one after another, as lines of text that were flattened with their
columns, is cut within each of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import floor
from statistics import median_low

from bbgrap.errors import PlanError
from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.shapemap import Interval, IntervalSet
from bbgrap.tdl import Description, reducible

_FAR = 0.1
"""Part of an extent: a cut that is further from where the model's others are follows a fraction of its own. Chosen."""

_Fractions = Mapping[tuple[int, int], float]
"""Where the k-th of n cuts lies, as a part of the extent, by (n, k)."""

_Extents = Mapping[int, Sequence[int]]
"""What extents of axes become with the other shapes; what most of them become first."""


def scaled(plan: Plan, graph: Graph, descriptions: Mapping[str, Description | None]) -> Plan:
    """Return a plan for the same model with other input shapes; `descriptions` are those of its nodes with these, by name.

    Raises:
        PlanError: if the model has other nodes with these shapes, or is cut in a way that does not scale.
    """
    if graph.node_by_name.keys() != plan.tiles.keys():
        strangers = sorted(graph.node_by_name.keys() ^ plan.tiles.keys())
        raise PlanError(f"model '{graph.name}': with other shapes it has other nodes: {', '.join(strangers[:5])}")
    fractions, extents = _fractions(plan), _extents(plan.graph, graph)
    made = {}
    for node in graph.nodes:
        tiles = _tiles(plan, graph, node, fractions, extents)
        made[node.name] = _parts(graph, node, descriptions[node.name], tiles, fractions)
    return Plan(plan.planner, graph, plan.cluster, made)


def _tiles(plan: Plan, graph: Graph, node: Node, fractions: _Fractions, extents: _Extents) -> tuple[Tile, ...]:
    before, whole, tiles = whole_output(plan.graph, plan.graph.node_by_name[node.name]), whole_output(graph, node), plan.tiles[node.name]
    if before.rank != whole.rank:
        raise PlanError(f"node '{node.name}': with other shapes it makes {whole}, expected {before.rank} axes")
    regions = [tile.region for tile in tiles]
    for axis, (old, new) in enumerate(zip(before.axes, whole.axes, strict=True)):
        pieces = [region.axes[axis] for region in regions]
        if repeats := _repeats(pieces, len(old)):
            pieces = _moved_within(pieces, len(old), len(new), repeats, fractions, extents)
            regions = [region.replace(axis, piece) for region, piece in zip(regions, pieces, strict=True)]
        elif old != new:
            pieces = _moved(pieces, len(old), len(new), fractions)
            regions = [region.replace(axis, piece) for region, piece in zip(regions, pieces, strict=True)]
    return tuple(replace(tile, region=region) for tile, region in zip(tiles, regions, strict=True) if not region.is_empty or whole.is_empty)


def _parts(graph: Graph, node: Node, described: Description | None, tiles: tuple[Tile, ...], fractions: _Fractions) -> tuple[Tile, ...]:
    """Return the tiles with the ranges of their reduction moved as well."""
    parts = sorted({tile.part for tile in tiles if tile.part is not None}, key=lambda part: part.interval)
    extents = {index.name: index.extent for index in reducible(graph, node, described)} if parts and described is not None else {}
    if not parts or extents.get(parts[0].index) == parts[-1].interval.stop:
        return tiles
    if parts[0].index not in extents:
        raise PlanError(f"node '{node.name}': with other shapes it cannot be summed up in parts")
    moved = _moved([IntervalSet.of(part.interval) for part in parts], parts[-1].interval.stop, extents[parts[0].index], fractions)
    by_part = {part: replace(part, interval=piece.hull) for part, piece in zip(parts, moved, strict=True)}
    return tuple(replace(tile, part=None if tile.part is None else by_part[tile.part]) for tile in tiles)


def _moved(pieces: Sequence[IntervalSet], old: int, new: int, fractions: _Fractions) -> list[IntervalSet]:
    """Return the pieces of an axis for another extent."""
    spans = _spans(pieces)
    shifts = [_shift(place, number, len(spans) - 1, old, new, fractions) for number, place in enumerate(_cuts(spans))]
    made: dict[Interval, Interval] = {}
    for span, left, right in zip(spans, [0, *shifts], [*shifts, new - old], strict=True):
        start, stop = (0 if span.start == 0 else span.start + left), (new if span.stop == old else span.stop + right)
        low, high = min(max(start, 0), new), min(max(stop, 0), new)
        made[span] = Interval(low, max(low, high))
    return [IntervalSet.of(made[piece.hull]) for piece in pieces]


def _repeats(pieces: Sequence[IntervalSet], extent: int) -> int:
    """Return how many axes of one length an axis holds one after another, if its pieces are cut alike within each of them; else 0."""
    count = max((len(piece.ranges) for piece in pieces), default=0)
    if count < 2 or extent % count:
        return 0
    period = extent // count
    return count if all(piece == _repeated(piece.clip(period), count, period) for piece in pieces) else 0


def _repeated(piece: IntervalSet, count: int, period: int) -> IntervalSet:
    return IntervalSet.of(*(each.shift(number * period) for number in range(count) for each in piece.ranges))


def _moved_within(
    pieces: Sequence[IntervalSet], old: int, new: int, repeats: int, fractions: _Fractions, extents: _Extents
) -> list[IntervalSet]:
    """Return the pieces of an axis that holds others one after another, as long as those of the model that had their length are now.

    Raises:
        PlanError: if no such length fits.
    """
    period = old // repeats
    length = next((length for length in extents.get(period, ()) if length and new % length == 0), None)
    if length is None:
        raise PlanError(f"an axis of {repeats} times {period}: no part of {new} is as long now, so other sizes cannot be cut alike")
    return [_repeated(piece, new // length, length) for piece in _moved([p.clip(period) for p in pieces], period, length, fractions)]


def _extents(before: Graph, after: Graph) -> _Extents:
    """Return what extents of axes become: those that nodes make, of as many axes."""
    found: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for node in after.nodes:
        old, new = whole_output(before, before.node_by_name[node.name]).shape, whole_output(after, node).shape
        if len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                found[one][other] += 1
    return {one: [other for other, _ in those.most_common()] for one, those in found.items()}


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
