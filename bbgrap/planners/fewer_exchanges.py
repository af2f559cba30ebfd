"""Rows (or another direction) as `bbgrap` divides them, with fewer exchanges: halos that are cheap to compute twice are not sent.

    exchange at every phase     ── phase 0 ──┊── phase 1 ──┊── phase 2 ──┊── phase 3 ──
    phases 0 and 1 joined       ── phase 0 ─── phase 1 ──┊── phase 2 ──┊── phase 3 ──      tiles of phase 0 grow by what phase 1 reads

Within a group of joined phases every tile is, back to front, its own rows and all that its machine reads of it in the group; what groups
read of earlier ones is exchanged as before, and may be more. Joining pays early in a network, where a row is cheap, and between layers
that hardly compute (poolings in a row). Which phases to join is a shortest path, exact for these costs:

    group = slowest machine's extra work + exchange before it (two ends of a message, a segment, the copy that joins the halo, the link)

Laws: tiles only grow; with no work to spare (an infinitely slow machine) the plan is the given one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from bbgrap.cluster import Cluster
from bbgrap.cluster.speeds import speeds_of
from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.layers import Descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl.work import Work

Tiles = Mapping[str, tuple[Tile, ...]]

LONGEST = 8
"""Phases that are joined at most: chosen; halos of more layers than this were never worth it."""


def plan_fewer_exchanges(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Plan:
    """Divide every layer as `bbgrap` does along `options.split`, then join phases."""
    tiles = plan_bbgrap(graph, cluster, options, descriptions).tiles
    return Plan("fewer-exchanges", graph, cluster, join_phases(Pieces(graph, descriptions), cluster, tiles))


def join_phases(pieces: Pieces, cluster: Cluster, tiles: Tiles) -> dict[str, tuple[Tile, ...]]:
    """Return tiles that overlap where computing twice takes less time than exchanging; those of a plan without exchanges are its own."""
    joiner = _Joiner(pieces, cluster, tiles)
    last = len(joiner.phases)
    best: list[tuple[float, int]] = [(0.0, 0)]
    """Per number of phases: their least cost, and where their last group begins."""
    for stop in range(1, last + 1):
        best.append(_cheapest_end(joiner, best, stop))
    grown = dict(tiles)
    stop = last
    while stop:
        start = best[stop][1]
        grown |= joiner.group(start, stop).tiles
        stop = start
    return grown


def _cheapest_end(joiner: _Joiner, best: list[tuple[float, int]], stop: int) -> tuple[float, int]:
    """Return the least cost of the phases before `stop`, and where the last group of them begins; of equals the longest group."""
    first = max(0, stop - LONGEST)
    least = (inf, stop - 1)
    for start in range(stop - 1, first - 1, -1):
        group = joiner.group(start, stop)
        least = min(least, (best[start][0] + group.seconds, start))
        if group.extra_s + best[first][0] > least[0]:
            break  # a longer group has at least this much extra work
    return least


@dataclass(frozen=True, slots=True)
class _Group:
    """Joined phases: the tiles of their nodes, and what they cost beyond the work of the given tiles: extra work, and an exchange."""

    tiles: Tiles
    extra_s: float
    seconds: float


class _Joiner:
    """Groups of phases of one plan.

    Invariants: `phases` are the nodes by how many exchanges come before them, in topological order; no phase is empty.
    """

    def __init__(self, pieces: Pieces, cluster: Cluster, tiles: Tiles) -> None:
        self.pieces = pieces
        self.cluster = cluster
        self.tiles = tiles
        self.graph = pieces.graph
        self.speeds = [speeds_of(node) for node in cluster.nodes]
        self.phase_of: dict[str, int] = {}
        for node in self.graph.nodes:
            self.phase_of[node.name] = self._phase(node)
        self.phases: list[list[Node]] = [[] for _ in range(max(self.phase_of.values(), default=-1) + 1)]
        for node in self.graph.nodes:
            self.phases[self.phase_of[node.name]].append(node)
        self._groups: dict[tuple[int, int], _Group] = {}

    def _phase(self, node: Node) -> int:
        """Return the number of exchanges before a node: one more than before what any machine fetches for it."""
        found = 0
        for number, value in enumerate(node.inputs):
            producer = self.graph.producers.get(value)
            if producer is not None:
                fetched = any(self._missing(node, tile, number, self.tiles[producer.name]) for tile in self.tiles[node.name])
                found = max(found, self.phase_of[producer.name] + fetched)
        captured = [self.graph.producers[value] for value in node.captured if value in self.graph.producers]
        return max([found, *(self.phase_of[producer.name] + 1 for producer in captured)])

    def _missing(self, node: Node, tile: Tile, operand: int, held: tuple[Tile, ...]) -> int:
        """Return how many elements of an operand a tile reads that its machine does not hold."""
        read = self.pieces.piece(node, tile)[0][operand]
        if read is None or read.is_empty:
            return 0
        value = node.inputs[operand]
        producer = self.graph.producers[value]
        mine = next((other for other in held if other.device == tile.device and other.part is None), None)
        if mine is None:
            return read.size
        outputs = [name for name in producer.outputs if name]
        return read.size - read.intersect(self.pieces.piece(producer, mine)[1][outputs.index(value)]).size

    def group(self, start: int, stop: int) -> _Group:
        """Return the phases from `start` to `stop` as one; infinitely expensive if they exchange whatever the tiles."""
        known = self._groups.get((start, stop))
        if known is None:
            known = self._groups[start, stop] = self._join(start, stop)
        return known

    def _join(self, start: int, stop: int) -> _Group:
        nodes = [node for phase in self.phases[start:stop] for node in phase]
        members = {node.name for node in nodes}
        tiles = self._grown(nodes) if stop - start > 1 else {node.name: self.tiles[node.name] for node in nodes}
        fetched = [0] * len(self.cluster.nodes)
        joined = 0
        for node in nodes:
            for number, value in enumerate(node.inputs):
                producer = self.graph.producers.get(value)
                if producer is None:
                    continue
                itemsize = self.graph.types[value].dtype.itemsize
                for tile in tiles[node.name]:
                    missing = self._missing(node, tile, number, tiles.get(producer.name, self.tiles[producer.name]))
                    if missing and producer.name in members:
                        return _Group(tiles, inf, inf)
                    fetched[tile.device] += missing * itemsize
                    if missing:
                        read = self.pieces.piece(node, tile)[0][number]
                        joined = max(joined, 0 if read is None else read.size * itemsize)
        extra = [self._seconds(device, nodes, tiles) - self._seconds(device, nodes, self.tiles) for device in range(len(fetched))]
        return _Group(tiles, max(extra), max(extra) + self._exchange_seconds(fetched, joined))

    def _grown(self, nodes: list[Node]) -> Tiles:
        """Let the tiles of some nodes, back to front, hold all that their machines read of them within these nodes."""
        needs: dict[tuple[str, int], ShapeMap] = {}
        grown: dict[str, tuple[Tile, ...]] = {}
        for node in reversed(nodes):
            value = next(name for name in node.outputs if name)
            own = self.tiles[node.name]
            axis = _cut_axis(own)
            made = own if axis is None else tuple(_with_need(tile, axis, needs.get((value, tile.device))) for tile in own)
            grown[node.name] = made
            for tile in made:
                for name, read in zip(node.inputs, self.pieces.piece(node, tile)[0], strict=True):
                    if name and read is not None and not read.is_empty:
                        before = needs.get((name, tile.device))
                        needs[name, tile.device] = read if before is None else before.hull(read)
        return grown

    def _seconds(self, device: int, nodes: list[Node], tiles: Tiles) -> float:
        works = (self.pieces.work(node, tile) for node in nodes for tile in tiles[node.name] if tile.device == device)
        return sum(self._seconds_of(device, work) for work in works if work.flops or work.map_bytes or work.weight_bytes)

    def _seconds_of(self, device: int, work: Work) -> float:
        return self.speeds[device][work.kind].seconds_of(work)

    def _exchange_seconds(self, fetched: list[int], joined: int) -> float:
        """Return what it takes until every machine has what it fetches, and has put the largest map together."""
        if not any(fetched):
            return 0.0
        devices = range(len(fetched))
        links = [self.cluster.link(a, b) for a in devices for b in devices if a != b]
        ends = max(2 * speed["message"].seconds(0, 0, max(fetched)) for speed in self.speeds)
        copies = max(speed["segment"].seconds(0, 0, joined) for speed in self.speeds)
        way = max((link.latency_s + max(fetched) / link.bandwidth_bytes_per_s for link in links), default=0.0)
        return ends + copies + way


def _cut_axis(tiles: tuple[Tile, ...]) -> int | None:
    """Return the one axis along which whole results are divided."""
    first = tiles[0].region
    cut = {axis for tile in tiles for axis in range(first.rank) if tile.region.axes[axis] != first.axes[axis]}
    return cut.pop() if len(cut) == 1 and all(tile.part is None for tile in tiles) else None


def _with_need(tile: Tile, axis: int, need: ShapeMap | None) -> Tile:
    if need is None or tile.region.axes[axis].issuperset(need.axes[axis]):
        return tile
    held = tile.region.axes[axis].union(need.axes[axis])
    if len(tile.region.axes[axis].ranges) == 1:  # gaps between several ranges are other machines'
        held = IntervalSet.of(held.hull)
    return replace(tile, region=tile.region.replace(axis, held))
