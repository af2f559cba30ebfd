"""How a region is put together from pieces: as `Slice` and `Concat` nodes inside a segment, or as copies on the host.

Pieces are disjoint and cover the region, but need not form a grid. Along one axis the region is cut where the set of touching pieces
changes, at the axis where that cuts through the fewest pieces; each part is put together in the same way, and the parts are
concatenated. Halo rows above and below a tile are one `Concat` of three, with no `Slice` at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bbgrap.program.steps import Piece
from bbgrap.runtime.schedule import Box
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap


def divided(target: ShapeMap, pieces: Sequence[Piece]) -> tuple[int, list[tuple[ShapeMap, list[Piece]]]]:
    """Return along which axis a region is put together from several disjoint pieces that cover it, and its parts with their pieces."""
    axis, groups = min(
        ((a, g) for a in range(target.rank) if len(g := _groups(target.axes[a], [p.region.axes[a] for p in pieces])) > 1),
        key=lambda choice: (_crossings(choice[1], [p.region.axes[choice[0]] for p in pieces]), choice[0]),
    )
    parts = []
    for group in groups:
        inside = [Piece(p.buffer, p.region.replace(axis, p.region.axes[axis].intersect(group))) for p in pieces]
        parts.append((target.replace(axis, group), [p for p in inside if not p.region.is_empty]))
    return axis, parts


def _groups(axis: IntervalSet, members: Sequence[IntervalSet]) -> list[IntervalSet]:
    """Cut an axis wherever the set of touching pieces changes, in ascending order."""
    marks = sorted({bound for member in members for r in member.ranges for bound in (r.start, r.stop)})
    found: list[tuple[tuple[int, ...], list[Interval]]] = []
    for start, stop in pairwise(marks):
        if start not in axis:
            continue
        touching = tuple(n for n, member in enumerate(members) if start in member)
        if found and found[-1][0] == touching:
            found[-1][1].append(Interval(start, stop))
        else:
            found.append((touching, [Interval(start, stop)]))
    return [IntervalSet.of(*runs) for _, runs in found]


def _crossings(groups: Sequence[IntervalSet], members: Sequence[IntervalSet]) -> int:
    return sum(sum(bool(member.intersect(group).ranges) for group in groups) - 1 for member in members)


def box_within(region: ShapeMap, outer: ShapeMap) -> Box | None:
    """Return where a region lies in the dense tensor of another, in local coordinates; None if it is all of it."""
    if region == outer:
        return None
    return tuple(tuple((r.start, r.stop) for r in ranges) for ranges in region.slices_within(outer))
