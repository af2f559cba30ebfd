"""Hierarchical cuts: a node has one placement per level, and these together give every device its tile.

The devices form a tree: level by level a group divides into a number of ways. Its first levels are those of the cluster's wires or groups,
so that first cuts are between subtrees. Below, the largest prime factor comes first (Tofu, section 5.2; two ways at every level are HyPar's
and SoyBean's). A placement says what a group's parts do at that level:

    Shard(axis)      each part computes its share of an axis of the output
    Partial(index)   each part computes a partial result over its share of a reduction index (the shares are the same in all groups)
    REPLICATE        each part computes the same
    ON_ONE           only the part with the largest share computes, the first of equals

Shares are those of the cluster, in whole units of the axis. Divisions need not come out even: parts for which nothing is left compute
nothing. So `Shard(0), Shard(1)` over four devices is a grid of two by two, in which every half of the rows is divided by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from itertools import pairwise
from math import prod

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Tile
from bbgrap.planners.shares import split_axis, split_by_shares, strongest
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Description, Part, part_unit, reducible


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


def sums_of(graph: Graph, node: Node, description: Description | None) -> tuple[Partial, ...]:
    """Return the reduction indices along which a node can be divided, as placements; of some there is one unit only."""
    return tuple(Partial(index.name, index.extent, part_unit(node)) for index in reducible(graph, node, description))


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
    """The tree of devices: `prod(ways)` leaves, one share each, neighbours in a group.

    `devices` are the numbers of the leaves; empty: 0, 1, 2 ...
    """

    ways: tuple[int, ...]
    shares: tuple[float, ...]
    devices: tuple[int, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Levels:
        """Return the tree over all nodes of a cluster: as they are wired or grouped, elsewhere by the factors of their number."""
        nested = [parts for parts in _nested(cluster) if len(set(map(parts.count, parts))) == 1]
        sizes = [len(cluster.nodes), *(parts.count(parts[0]) for parts in nested), 1]
        ways = tuple(factor for whole, part in pairwise(sizes) for factor in factors(whole // part))
        devices = tuple(sorted(range(len(cluster.nodes)), key=lambda device: [parts[device] for parts in nested]))
        return cls(ways, tuple(cluster.shares[device] for device in devices), devices)

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
        return self.device(max(range(self.count), key=lambda leaf: (self.shares[leaf], -self.device(leaf))))

    def device(self, leaf: int) -> int:
        """Return the device at a leaf."""
        return self.devices[leaf] if self.devices else leaf

    def divided(self, placements: Placements, by: Placement | None) -> int:
        """Return over how many ways a placement divides, among those of the first levels."""
        return prod(way for used, way in zip(placements, self.ways, strict=False) if used == by)

    def upper(self, levels: int) -> Levels:
        """Return the first levels, each group below them as one device with the sum of its shares."""
        width = prod(self.ways[levels:])
        shares = tuple(sum(self.shares[at : at + width]) for at in range(0, self.count, width))
        return Levels(self.ways[:levels], shares, self.devices if width == 1 else ())


def _nested(cluster: Cluster) -> list[list[int]]:
    """Return how wires or groups divide the nodes into parts, coarsest first: of every node, the number of its part.

    Nodes are in one part if at most so many wires are between them, where this is so of all of a part; that is how subtrees are found. A
    part's number is that of its first node.
    """
    devices, found = range(len(cluster.nodes)), []
    if cluster.network.wiring.wires:
        between = [[len(cluster.route(a, b)) for b in devices] for a in devices]
    else:
        groups = [node.group or device for device, node in enumerate(cluster.nodes)]
        between = [[groups[a] != groups[b] for b in devices] for a in devices]
    for most in sorted({count for row in between for count in row}, reverse=True)[1:]:
        parts = [next(b for b in devices if between[a][b] <= most) for a in devices]
        if all((between[a][b] <= most) == (parts[a] == parts[b]) for a in devices for b in devices):
            found.append(parts)
    return found


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
        tiles = [Tile(levels.device(group.first), group.region) for group in groups]
    else:
        whole = Interval(0, over.extent)
        tiles = [Tile(levels.device(group.first), group.region, Part(over.index, group.part or whole)) for group in groups]
    return tuple(sorted(tiles, key=lambda tile: tile.device))


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
            pieces = split_axis(description, axis, shares, group.region.axes[axis].hull)
            regions = [group.region.replace(axis, IntervalSet.of(piece)) for piece in pieces]
            return [_Group(f, width, region, group.part) for f, region in zip(firsts, regions, strict=True) if not region.is_empty]
        case Partial(extent=extent, unit=unit):
            whole = group.part or Interval(0, extent)
            parts = [piece.shift(whole.start) for piece in split_by_shares(len(whole), across, unit)]
            return [_Group(f, width, group.region, part) for f, part in zip(firsts, parts, strict=True) if len(part)]
        case Undivided.REPLICATE:
            return [_Group(first, width, group.region, group.part) for first in firsts]
        case Undivided.ON_ONE:
            return [_Group(firsts[strongest(shares)], width, group.region, group.part)]
