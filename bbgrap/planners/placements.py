"""Hierarchical cuts: a node has one placement per level, and these together give every device its tile.

The devices form a tree: level by level a group divides into a number of ways, the largest prime factor of their number first (Tofu,
section 5.2; two ways at every level are HyPar's and SoyBean's). A placement says what a group's parts do at that level:

    Shard(axis)      each part computes its share of an axis of the output
    Partial(index)   each part computes a partial result over its share of a reduction index (the shares are the same in all groups)
    REPLICATE        each part computes the same
    ON_ONE           only the part with the largest share computes, the first of equals

Shares are those of the cluster, in whole units of the axis. Divisions need not come out even: parts for which nothing is left compute
nothing. So `Shard(0), Shard(1)` over four devices is a grid of two by two, in which every half of the rows is divided by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from math import prod

from bbgrap.cluster import Cluster
from bbgrap.planners.plan import Tile
from bbgrap.planners.shares import split_by_shares
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Description, Part, granularity


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Divide an axis of the output."""

    axis: int


@dataclass(frozen=True, slots=True, order=True)
class Partial:
    """Divide a reduction index of a given extent, in whole units: partial results."""

    index: str
    extent: int
    unit: int = 1

    @property
    def units(self) -> int:
        """Into how many parts it can be divided at most."""
        return -(-self.extent // self.unit)


class Undivided(Enum):
    """The placements that divide nothing."""

    REPLICATE = auto()
    ON_ONE = auto()


REPLICATE, ON_ONE = Undivided.REPLICATE, Undivided.ON_ONE
Placement = Shard | Partial | Undivided
Placements = tuple[Placement, ...]


def factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, largest first: 12 is 3 * 2 * 2; 1 has none."""
    found, rest, prime = [], number, 2
    while rest > 1:
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
        prime += 1
    return tuple(reversed(found))


@dataclass(frozen=True)
class Levels:
    """The tree of devices: `prod(ways)` leaves, one share each, neighbours in a group."""

    ways: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Levels:
        """Return the tree over all nodes of a cluster, by the factors of their number."""
        return cls(factors(len(cluster.nodes)), cluster.shares)

    @classmethod
    def flat(cls, cluster: Cluster) -> Levels:
        """Return a tree of one level."""
        return cls((len(cluster.nodes),), cluster.shares)

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.shares)

    @cached_property
    def root(self) -> int:
        """The device that does what cannot be divided: the one with the largest share, the first of equals."""
        return max(range(self.count), key=lambda device: (self.shares[device], -device))

    def upper(self, levels: int) -> Levels:
        """Return the first levels, each group below them as one device with the sum of its shares."""
        width = prod(self.ways[levels:])
        return Levels(self.ways[:levels], tuple(sum(self.shares[at : at + width]) for at in range(0, self.count, width)))


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring devices that still have one region, and one part of the sum, between them."""

    first: int
    count: int
    region: ShapeMap
    part: Interval | None = None


def tiles_of(levels: Levels, description: Description, placements: Placements) -> tuple[Tile, ...]:
    """Return the tiles of a node under its placements, in device order; at most one reduction index may occur in it."""
    groups = [_Group(0, levels.count, ShapeMap.full(description.shape))]
    for level, (placement, way) in enumerate(zip(placements, levels.ways, strict=True)):
        across = _shares_across(levels, level)
        groups = [part for group in groups for part in _divide(levels, description, group, placement, way, across)]
    over = next((placement for placement in placements if isinstance(placement, Partial)), None)
    if over is None or all(group.part is None or len(group.part) == over.extent for group in groups):
        return tuple(Tile(group.first, group.region) for group in groups)
    whole = Interval(0, over.extent)
    return tuple(Tile(group.first, group.region, Part(over.index, group.part or whole)) for group in groups)


def _shares_across(levels: Levels, level: int) -> list[float]:
    """Return the shares of a level's ways, over all groups: those by which sums are divided, since all groups need the same parts."""
    way, width = levels.ways[level], prod(levels.ways[level + 1 :])
    return [sum(share for device, share in enumerate(levels.shares) if device // width % way == number) for number in range(way)]


def _divide(levels: Levels, description: Description, group: _Group, placement: Placement, way: int, across: list[float]) -> list[_Group]:
    width = group.count // way
    firsts = [group.first + number * width for number in range(way)]
    shares = [sum(levels.shares[first : first + width]) for first in firsts]
    match placement:
        case Shard(axis=axis):
            pieces = _pieces(description, axis, group.region.axes[axis].hull, shares)
            regions = [group.region.replace(axis, IntervalSet.of(piece)) for piece in pieces]
            return [_Group(f, width, region, group.part) for f, region in zip(firsts, regions, strict=True) if not region.is_empty]
        case Partial(extent=extent, unit=unit):
            whole = group.part or Interval(0, extent)
            parts = [piece.shift(whole.start) for piece in split_by_shares(len(whole), across, unit)]
            return [_Group(f, width, group.region, part) for f, part in zip(firsts, parts, strict=True) if len(part)]
        case Undivided.REPLICATE:
            return [_Group(first, width, group.region, group.part) for first in firsts]
        case Undivided.ON_ONE:
            best = max(range(way), key=lambda number: (shares[number], -number))
            return [_Group(firsts[best], width, group.region, group.part)]


def _pieces(description: Description, axis: int, of: Interval, shares: Sequence[float]) -> list[Interval]:
    unit = granularity(description, axis)
    usable = unit if 2 * unit <= len(of) and of.start % unit == 0 else 1
    return [piece.shift(of.start) for piece in split_by_shares(len(of), shares, usable)]
