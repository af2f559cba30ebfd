"""Regions of tensors: intervals, sets of intervals, and one such set per axis.

A `ShapeMap` (BBGraP, section 3.1, figure 2) names a region of a tensor in the *global* coordinates of the unpartitioned model:

         columns 2:6
        +--+-------+--+
        |  |       |  |        ShapeMap.of((0, 1), (0, 64), (1, 3), (2, 6))
    rows|  |#######|  |          N = 1 image, C = 64 channels,
     1:3|  |#######|  |          H rows 1 and 2, W columns 2 to 5
        +--+-------+--+

An axis may hold several ranges (`0:2,6:8`), so a region is a product of sets, and so is the intersection of two regions.
The dense local tensor of a region keeps its elements in global order with the gaps closed up; `ShapeMap.slices_within`
says where a sub-region lies in it.

Laws: every bound is half-open; an `IntervalSet` is sorted, disjoint and not touching, so equal sets are equal values;
a region of a rank-0 tensor is its single element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The integers `start <= i < stop`.

    Invariants: `start <= stop`; an empty interval is allowed and has length 0.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        """Reject reversed bounds."""
        if self.start > self.stop:
            raise ValueError(f"interval: expected start <= stop, got [{self.start}, {self.stop})")

    def __len__(self) -> int:
        """Count the integers inside."""
        return self.stop - self.start

    def __contains__(self, index: int) -> bool:
        """Tell whether an index lies inside."""
        return self.start <= index < self.stop

    def __str__(self) -> str:
        """Write as `start:stop`."""
        return f"{self.start}:{self.stop}"

    def intersect(self, other: Interval) -> Interval:
        """Return the common part; empty (at `start`) where there is none."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def shift(self, offset: int) -> Interval:
        """Return the interval moved by `offset`."""
        return Interval(self.start + offset, self.stop + offset)


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """A set of integers as sorted, disjoint, non-touching, non-empty ranges.

    Invariants: established by `IntervalSet.of`; the constructor checks them.
    """

    ranges: tuple[Interval, ...]

    def __post_init__(self) -> None:
        """Check the normal form."""
        before: int | None = None
        for interval in self.ranges:
            if interval.start == interval.stop:
                raise ValueError("interval set: empty range")
            if before is not None and before >= interval.start:
                raise ValueError(f"interval set: range {interval} touches, overlaps or precedes the one that ends at {before}")
            before = interval.stop

    @classmethod
    def of(cls, *intervals: Interval | tuple[int, int]) -> IntervalSet:
        """Build the normal form of any intervals: empty ones dropped, overlapping and touching ones merged."""
        if len(intervals) == 1:  # nearly always
            only = intervals[0] if isinstance(intervals[0], Interval) else Interval(*intervals[0])
            return cls((only,)) if only.start < only.stop else _EMPTY
        bounds = sorted((i.start, i.stop) if isinstance(i, Interval) else i for i in intervals)
        merged: list[Interval] = []
        for start, stop in bounds:
            if start >= stop:
                continue
            if merged and start <= merged[-1].stop:
                merged[-1] = Interval(merged[-1].start, max(stop, merged[-1].stop))
            else:
                merged.append(Interval(start, stop))
        return cls(tuple(merged))

    @classmethod
    def full(cls, extent: int) -> IntervalSet:
        """Return `[0, extent)`."""
        return _full(extent)

    def __len__(self) -> int:
        """Count the integers inside."""
        if len(self.ranges) == 1:  # nearly always
            return self.ranges[0].stop - self.ranges[0].start
        return sum(r.stop - r.start for r in self.ranges)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the integers in ascending order."""
        for interval in self.ranges:
            yield from range(interval.start, interval.stop)

    def __contains__(self, index: int) -> bool:
        """Tell whether an index lies inside."""
        return any(index in interval for interval in self.ranges)

    def __str__(self) -> str:
        """Write as `0:2,6:8`; an empty set as `-`."""
        return ",".join(str(r) for r in self.ranges) or "-"

    @property
    def hull(self) -> Interval:
        """The smallest interval around the set; `[0, 0)` for the empty set."""
        if len(self.ranges) == 1:  # nearly always
            return self.ranges[0]
        return Interval(self.ranges[0].start, self.ranges[-1].stop) if self.ranges else Interval(0, 0)

    def union(self, other: IntervalSet) -> IntervalSet:
        """Return the integers in either set."""
        return self if self == other else IntervalSet.of(*self.ranges, *other.ranges)

    def intersect(self, other: IntervalSet) -> IntervalSet:
        """Return the integers in both sets."""
        if self is other:
            return self
        if len(self.ranges) == 1 and len(other.ranges) == 1:  # nearly always
            mine, theirs = self.ranges[0], other.ranges[0]
            start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
            if start >= stop:
                return _EMPTY
            if start == mine.start and stop == mine.stop:
                return self
            if start == theirs.start and stop == theirs.stop:
                return other
            return IntervalSet((Interval(start, stop),))
        return IntervalSet.of(*(a.intersect(b) for a in self.ranges for b in other.ranges))

    def subtract(self, other: IntervalSet) -> IntervalSet:
        """Return the integers in this set and not in the other."""
        if len(self.ranges) == 1 and len(other.ranges) == 1:  # nearly always
            mine, hole = self.ranges[0], other.ranges[0]
            if mine.start >= hole.start and mine.stop <= hole.stop:
                return _EMPTY
            if mine.stop <= hole.start or mine.start >= hole.stop:
                return self
        kept = [(r.start, r.stop) for r in self.ranges]
        for hole in other.ranges:
            kept = [
                piece
                for start, stop in kept
                for piece in ((start, min(stop, hole.start)), (max(start, hole.stop), stop))
                if piece[0] < piece[1]
            ]
        return IntervalSet.of(*kept)

    def issuperset(self, other: IntervalSet) -> bool:
        """Tell whether every integer of the other set lies in this one."""
        if len(self.ranges) == 1 and len(other.ranges) == 1:  # nearly always
            return self.ranges[0].start <= other.ranges[0].start and other.ranges[0].stop <= self.ranges[0].stop
        return self == other or all(any(a.start <= b.start and b.stop <= a.stop for a in self.ranges) for b in other.ranges)

    def shift(self, offset: int) -> IntervalSet:
        """Return the set moved by `offset`."""
        return IntervalSet(tuple(r.shift(offset) for r in self.ranges))

    def clip(self, extent: int) -> IntervalSet:
        """Return the part inside `[0, extent)`."""
        return self.intersect(IntervalSet.full(extent))

    def position_of(self, index: int) -> int:
        """Return how many members are smaller than `index`: its place in the dense local tensor."""
        return sum(min(r.stop, index) - r.start for r in self.ranges if r.start < index)

    def ranges_within(self, outer: IntervalSet) -> tuple[Interval, ...]:
        """Return where this set lies in the dense layout of `outer`, as merged local ranges.

        Raises:
            ValueError: if `outer` does not hold every member.
        """
        if not outer.issuperset(self):
            raise ValueError(f"interval set {self} does not lie within {outer}")
        local = ((outer.position_of(r.start), len(r)) for r in self.ranges)
        return IntervalSet.of(*((start, start + length) for start, length in local)).ranges


_EMPTY = IntervalSet(())


@lru_cache(maxsize=4096)
def _full(extent: int) -> IntervalSet:
    return IntervalSet((Interval(0, extent),)) if extent else _EMPTY


@dataclass(frozen=True)
class ShapeMap:
    """A region of a tensor: one `IntervalSet` per axis, in global coordinates; the region is their product.

    Invariants: rank is `len(axes)`; empty as soon as one axis is empty; a rank-0 region is one element and never empty.
    """

    axes: tuple[IntervalSet, ...]

    @classmethod
    def full(cls, shape: Sequence[int]) -> ShapeMap:
        """Return the whole tensor of a shape."""
        return cls(tuple(IntervalSet.full(extent) for extent in shape))

    @classmethod
    def of(cls, *axes: IntervalSet | Interval | tuple[int, int]) -> ShapeMap:
        """Build a region from one set, interval or pair of bounds per axis."""
        return cls(tuple(a if isinstance(a, IntervalSet) else IntervalSet.of(a) for a in axes))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dense local tensor of this region, in elements."""
        return tuple(len(axis) for axis in self.axes)

    @cached_property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether the region has no element."""
        for axis in self.axes:  # noqa: SIM110 - planners ask this often, and `any` takes twice as long
            if not axis.ranges:
                return True
        return False

    def __str__(self) -> str:
        """Write as `[0:1, 0:64, 27:57, 0:56]`."""
        return f"[{', '.join(str(axis) for axis in self.axes)}]"

    def replace(self, axis: int, interval_set: IntervalSet) -> ShapeMap:
        """Return the region with one axis exchanged."""
        return ShapeMap((*self.axes[:axis], interval_set, *self.axes[axis + 1 :]))

    def intersect(self, other: ShapeMap) -> ShapeMap:
        """Return the common region of two regions of one tensor."""
        return ShapeMap(tuple(a.intersect(b) for a, b in zip(self.axes, other.axes, strict=True)))

    def issuperset(self, other: ShapeMap) -> bool:
        """Tell whether every element of the other region lies in this one."""
        if self is other or other.is_empty:
            return True
        for mine, theirs in zip(self.axes, other.axes, strict=True):  # noqa: SIM110 - as above
            if mine is not theirs and not mine.issuperset(theirs):
                return False
        return True

    def is_apart_from(self, other: ShapeMap) -> bool:
        """Tell whether the hulls of two non-empty regions are disjoint: a quick look before anything is cut."""
        for a, b in zip(self.axes, other.axes, strict=True):
            if a is not b and a.ranges and b.ranges and (a.ranges[-1].stop <= b.ranges[0].start or b.ranges[-1].stop <= a.ranges[0].start):
                return True
        return False

    def hull(self, other: ShapeMap) -> ShapeMap:
        """Return the smallest product of sets that covers both regions; equal to the union if they differ along one axis."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        return ShapeMap(tuple(a.union(b) for a, b in zip(self.axes, other.axes, strict=True)))

    def subtract(self, other: ShapeMap) -> tuple[ShapeMap, ...]:
        """Return this region minus another, as disjoint non-empty regions in a fixed order (later axes peeled last)."""
        if self.is_empty:
            return ()
        if self.is_apart_from(other):
            return (self,)
        pieces: list[ShapeMap] = []
        core = self
        for axis, holes in enumerate(other.axes):
            outside = core.axes[axis].subtract(holes)
            if outside.ranges:
                pieces.append(core.replace(axis, outside))
            inside = core.axes[axis].intersect(holes)
            if not inside.ranges:
                return (self,)
            core = core.replace(axis, inside)
        return tuple(pieces)

    def slices_within(self, outer: ShapeMap) -> tuple[tuple[Interval, ...], ...]:
        """Return, per axis, where this region lies in the dense local tensor of `outer` (local coordinates).

        Raises:
            ValueError: if this region does not lie within `outer`.
        """
        return tuple(a.ranges_within(b) for a, b in zip(self.axes, outer.axes, strict=True))


def subtract_all(region: ShapeMap, holes: Iterable[ShapeMap]) -> tuple[ShapeMap, ...]:
    """Return `region` minus every hole, as disjoint non-empty regions in a fixed order."""
    pieces: tuple[ShapeMap, ...] = () if region.is_empty else (region,)
    for hole in holes:
        if not pieces:
            break
        pieces = tuple(rest for piece in pieces for rest in piece.subtract(hole))
    return pieces


def covers(pieces: Iterable[ShapeMap], region: ShapeMap) -> bool:
    """Tell whether the pieces together hold every element of `region`."""
    return not subtract_all(region, pieces)
