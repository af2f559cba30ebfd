"""Wires: what messages of several pairs of machines share on their way. Trees and tori of them.

A wire joins two points, which are nodes or switches, and has a way in each direction. A message takes the route with the fewest
wires; of several such routes the one whose wires are listed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

ROOT = "switch"
"""What the topmost switch of a tree is called; those below it have their number after the name: switch.0, switch.0.1."""


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two points: bytes per second, and seconds until the first byte is there."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A cable between two points; `link` is what it does in each direction."""

    name: str
    ends: tuple[str, str]
    link: Link


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of a wire: towards one of its ends."""

    wire: Wire
    to: str


Route = tuple[Way, ...]


@dataclass(frozen=True)
class Wiring:
    """All wires of a cluster, none if nothing is known of them. Laws: their names are unique; no wire has one point at both ends."""

    wires: tuple[Wire, ...] = ()

    @cached_property
    def ways_from(self) -> Mapping[str, tuple[Way, ...]]:
        """The ways that leave every point, in the order of the wires."""
        found: dict[str, list[Way]] = {point: [] for wire in self.wires for point in wire.ends}
        for wire in self.wires:
            one, other = wire.ends
            found[one].append(Way(wire, other))
            found[other].append(Way(wire, one))
        return {point: tuple(ways) for point, ways in found.items()}

    @cached_property
    def _arrivals(self) -> dict[str, Mapping[str, tuple[str, Way]]]:
        return {}

    def reached_from(self, start: str) -> Mapping[str, tuple[str, Way]]:
        """Return all points that messages from one reach, each with the last way of the route and the point where that begins."""
        known = self._arrivals.get(start)
        if known is None:
            found: dict[str, tuple[str, Way]] = {}
            points = [start]
            for point in points:
                for way in self.ways_from.get(point, ()):
                    if way.to != start and way.to not in found:
                        found[way.to] = (point, way)
                        points.append(way.to)
            known = self._arrivals[start] = found
        return known

    def route(self, source: str, destination: str) -> Route:
        """Return the ways from one point to another; none if no wires lead there."""
        arrivals, found, point = self.reached_from(source), list[Way](), destination
        while point in arrivals:
            point, way = arrivals[point]
            found.append(way)
        return tuple(reversed(found))

    def apart(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the nodes that no wires join to the first one."""
        if self.wires:
            reached = self.reached_from(names[0])
            yield from (name for name in names[1:] if name not in reached)

    def loose_ends(self, wire: Wire, known: Sequence[str]) -> Iterator[str]:
        """Yield a wire's ends that are neither of the known points nor a switch, which has two wires at least."""
        yield from (end for end in wire.ends if end not in known and len(self.ways_from[end]) < 2)


NO_WIRES = Wiring()
"""Nothing is known of what links share."""


def tree(names: Sequence[str], levels: Sequence[tuple[int, Link]]) -> tuple[Wire, ...]:
    """Return the wires of a tree whose leaves are nodes, in their order, and all other points switches.

    Args:
        names: As many as the product of the ways.
        levels: From the root down: into how many ways every switch divides, and the link that leads to each.
    """
    assert len(names) == prod(ways for ways, _ in levels), "every leaf is a node"
    found: list[Wire] = []
    above = [ROOT]
    for depth, (ways, link) in enumerate(levels, 1):
        below = list(names) if depth == len(levels) else [f"{point}.{number}" for point in above for number in range(ways)]
        found += [_wire(above[number // ways], point, link) for number, point in enumerate(below)]
        above = below
    return tuple(found)


def torus(names: Sequence[str], sides: Sequence[int], link: Link) -> tuple[Wire, ...]:
    """Return the wires of a torus of nodes, numbered along its last axis first: one to the next node along every axis, round its end.

    Args:
        names: As many as the product of the sides.
        sides: Nodes along every axis; two along an axis are joined by one wire.
        link: Of every wire.
    """
    assert len(names) == prod(sides), "every place is a node's"
    found: list[Wire] = []
    for axis, side in enumerate(sides):
        step = prod(sides[axis + 1 :])
        # Every other wire first: half of the messages to the opposite side then go round one side, half the other.
        for number in sorted(range(len(names)), key=lambda number: number // step % side % 2):
            at = number // step % side
            if side > 2 or at + 1 < side:
                found.append(_wire(names[number], names[number + ((at + 1) % side - at) * step], link))
    return tuple(found)


def _wire(one: str, other: str, link: Link) -> Wire:
    return Wire(f"{one}-{other}", (one, other), link)
