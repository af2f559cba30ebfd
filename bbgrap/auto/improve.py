"""Local improvement against the clock: stretches of the model get other tiles, as long as the request gets shorter.

A move changes a stretch of consecutive layers, from the whole model down to a single one: it takes the tiles of another candidate, or
shifts the border between two nodes. A move that helps is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bbgrap.auto.evaluate import Evaluator, Score
from bbgrap.planners.halo_recomputation import cut_axis
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.shapemap import Interval, IntervalSet

SHIFTS = (1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Parts of an axis by which borders move."""


@dataclass(frozen=True)
class Improved:
    """Where improvement ended."""

    tiles: Tiles
    score: Score
    moves: int


def improve(evaluator: Evaluator, start: Tiles, score: Score, ingredients: Sequence[Tiles]) -> Improved:
    """Return the plan that one try of every move leads to, or at which the budget ended."""
    best = Improved(start, score, 0)
    for stretch in _stretches(layers(evaluator)):
        for tiles in _moves(best.tiles, stretch, ingredients):
            if evaluator.spent:
                return best
            now = evaluator.score(tiles)
            if now < best.score:
                best = Improved(tiles, now, best.moves + 1)
    return best


def _stretches(parts: Sequence[list[str]]) -> Iterator[list[str]]:
    """Yield the names of the nodes of stretches of layers, long ones first."""
    count = width = len(parts)
    while width:
        for first in range(0, count, width):
            yield [name for layer in parts[first : first + width] for name in layer]
        width = 0 if width == 1 else (width + 1) // 2


def _moves(tiles: Tiles, stretch: list[str], ingredients: Sequence[Tiles]) -> Iterator[Tiles]:
    """Yield what a stretch can be changed to."""
    for change in _changes(tiles, stretch, ingredients):
        if any(change[name] != tiles[name] for name in stretch):
            yield {**tiles, **change}


def _changes(tiles: Tiles, stretch: list[str], ingredients: Sequence[Tiles]) -> Iterator[dict[str, tuple[Tile, ...]]]:
    for ingredient in ingredients:
        yield {name: ingredient[name] for name in stretch}
    borders = max((len(tiles[name]) for name in stretch), default=1) - 1
    for border in range(borders):
        for part in SHIFTS:
            for by in (part, -part):
                yield {name: shifted(tiles[name], border, by) for name in stretch}


def layers(evaluator: Evaluator) -> list[list[str]]:
    """Return the nodes of a graph in order, those that cost nothing together with the one before them."""
    graph, pieces = evaluator.pieces.graph, evaluator.pieces
    found: list[list[str]] = []
    for node in graph.nodes:
        work = pieces.work(node, Tile(0, whole_output(graph, node)))
        if found and not (work.flops or work.map_bytes or work.weight_bytes):
            found[-1].append(node.name)
        else:
            found.append([node.name])
    return found


def shifted(tiles: tuple[Tile, ...], border: int, by: float) -> tuple[Tile, ...]:
    """Move the border between two neighbouring tiles by a part of the axis, at least one row; else return them as they are.

    Args:
        tiles: cut along one axis.
        border: its number along the axis, from 0.
        by: part of the axis; negative towards its beginning. The tile that nothing is left of goes.
    """
    axis = cut_axis(tiles)
    if axis is None or border + 1 >= len(tiles) or any(len(tile.region.axes[axis].ranges) > 1 for tile in tiles):
        return tiles
    order = sorted(range(len(tiles)), key=lambda number: tiles[number].region.axes[axis].hull.start)
    hulls = [tiles[number].region.axes[axis].hull for number in order]
    extent = max(hull.stop for hull in hulls)
    rows = max(1, round(abs(by) * extent)) * (1 if by > 0 else -1)
    left, right = hulls[border], hulls[border + 1]
    if not right.start <= left.stop <= right.stop:
        return tiles  # where much is computed twice: one within the other, or a third one between them; moving would leave a gap
    stop = min(max(left.stop + rows, left.start), right.stop)
    start = min(max(right.start + rows, left.start), right.stop)
    moved = dict(zip(order, hulls, strict=True))
    moved[order[border]], moved[order[border + 1]] = Interval(left.start, stop), Interval(start, right.stop)
    pieces = ((tile, IntervalSet.of(moved[number])) for number, tile in enumerate(tiles))
    return tuple(replace(tile, region=tile.region.replace(axis, piece)) for tile, piece in pieces if piece.ranges)
