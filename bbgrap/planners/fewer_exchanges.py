"""Rows (or another direction) as `bbgrap` divides them, with fewer exchanges: halos that are cheap to compute twice are not sent.

    exchange at every phase     ── phase 0 ──┊── phase 1 ──┊── phase 2 ──┊── phase 3 ──
    phases 0 and 1 joined       ── phase 0 ─── phase 1 ──┊── phase 2 ──┊── phase 3 ──      tiles of phase 0 grow by what phase 1 reads

Within a group of joined phases every tile is, back to front, its own rows and all that its machine reads of it in the group; what groups
read of earlier ones is exchanged as before, and may be more. Joining pays early in a network, where a row is cheap, and between layers
that hardly compute (poolings in a row). Which phases to join is a shortest path, exact for these costs:

    group = slowest machine's extra work + exchange before it (two ends of a message, a segment, the copy that joins the halo, the link)

Before phases are joined, what they exchange is taken from where it is smaller (`earlier_exchanges`).

Laws: tiles only grow; with no work to spare (an infinitely slow machine) the plan is the given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bbgrap.cluster import Cluster
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.earlier_exchanges import Prices, exchange_earlier
from bbgrap.planners.halo_recomputation import cut_axis, note_needs, with_need
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, Tiles
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import Descriptions

LONGEST = 8
"""Phases that are joined at most: chosen; halos of more layers than this were never worth it."""


def plan_fewer_exchanges(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide every layer as `bbgrap` does along `options.split`, then join phases."""
    tiles = plan_bbgrap(graph, cluster, options, descriptions)
    return join_phases(Pieces(graph, descriptions), cluster, tiles)


def join_phases(pieces: Pieces, cluster: Cluster, tiles: Tiles) -> dict[str, tuple[Tile, ...]]:
    """Return tiles that overlap where computing twice takes less time than exchanging; those of a plan without exchanges are its own."""
    phases = _Phases(pieces, cluster, tiles)
    earlier = exchange_earlier(pieces, tiles, phases.nodes, len(cluster.nodes), Prices(phases.seconds, phases.exchange_seconds))
    if earlier != tiles:
        phases = _Phases(pieces, cluster, earlier)
    best: list[tuple[float, int, Tiles]] = [(0.0, 0, {})]
    """Per number of phases: their least cost, where their last group begins, and the tiles of its nodes, and perhaps of others."""
    for stop in range(1, len(phases.nodes) + 1):
        best.append(_cheapest_end(phases, best, stop))
    grown = dict(earlier)
    stop = len(phases.nodes)
    while stop:
        _, start, found = best[stop]
        grown |= {node.name: found[node.name] for phase in phases.nodes[start:stop] for node in phase}
        stop = start
    return grown


def _cheapest_end(phases: _Phases, best: list[tuple[float, int, Tiles]], stop: int) -> tuple[float, int, Tiles]:
    """Return the least cost of the phases before `stop`, where the last group of them begins, its tiles; of equals the longest."""
    first = max(0, stop - LONGEST)
    least = (inf, stop - 1)
    group = _Group(phases, stop)
    for start in range(stop - 1, first - 1, -1):
        group.extend()
        least = min(least, (best[start][0] + group.seconds, start))
        if group.extra_s + best[first][0] > least[0]:
            break  # a longer group has at least this much extra work
    return *least, group.tiles


class _Phases:
    """The phases of one plan, and what its nodes fetch.

    Invariants: `nodes` are the nodes by how many exchanges come before them, in topological order; no phase is empty. `missing` has, for
    every operand that a node makes, the elements that each tile of its reader fetches.
    """

    def __init__(self, pieces: Pieces, cluster: Cluster, tiles: Tiles) -> None:
        self.pieces = pieces
        self.cluster = cluster
        self.tiles = tiles
        self.graph = pieces.graph
        self.missing: dict[tuple[str, int], tuple[int, ...]] = {}
        self.of: dict[str, int] = {}
        for node in self.graph.nodes:
            self.of[node.name] = self._phase(node)
        self.nodes: list[list[Node]] = [[] for _ in range(max(self.of.values(), default=-1) + 1)]
        for node in self.graph.nodes:
            self.nodes[self.of[node.name]].append(node)
        self.axes = {name: cut_axis(of) for name, of in tiles.items()}
        self.network = NetworkModel(cluster)

    def _phase(self, node: Node) -> int:
        """Return the number of exchanges before a node: one more than before what any machine fetches for it."""
        found = 0
        for number, value in enumerate(node.inputs):
            producer = self.graph.producers.get(value)
            if producer is not None:
                held = self.tiles[producer.name]
                fetched = self.missing[node.name, number] = tuple(self.fetched(node, t, number, held) for t in self.tiles[node.name])
                found = max(found, self.of[producer.name] + any(fetched))
        captured = [self.graph.producers[value] for value in node.captured if value in self.graph.producers]
        return max([found, *(self.of[producer.name] + 1 for producer in captured)])

    def fetched(self, node: Node, tile: Tile, operand: int, held: tuple[Tile, ...]) -> int:
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
        region = self.pieces.piece(producer, mine)[1][outputs.index(value)]
        return 0 if region.issuperset(read) else read.size - read.intersect(region).size

    def seconds(self, node: Node, tile: Tile) -> float:
        """Return what a tile takes."""
        return self.network.seconds(tile.device, self.pieces.work(node, tile))

    def exchange_seconds(self, fetched: Sequence[int], joined: int) -> float:
        """Return what it takes until every machine has what it fetches, and has put the largest map together."""
        if not any(fetched):
            return 0.0
        copies = max(speed["segment"].seconds(0, 0, joined) for speed in self.network.speeds[: self.cluster.host])
        return copies + self.network.dearest.seconds(max(fetched))


class _Group:
    """Phases joined to one, from the last one to the front: tiles depend on what is read of them behind, not on what is before.

    Invariants: every tile of `tiles` is its own rows and all that its machine reads of it in the group; `_before` are the operands that
    come from before the group, by the phase that makes them.
    """

    def __init__(self, phases: _Phases, stop: int) -> None:
        """Begin with none, before `stop`."""
        self.phases = phases
        self.start = stop
        self.tiles: dict[str, tuple[Tile, ...]] = {}
        self._extra = [0.0] * len(phases.cluster.nodes)
        self._needs: dict[tuple[str, int], ShapeMap] = {}
        self._before: dict[int, list[tuple[Node, int]]] = {}
        self._is_whole = True
        """Whether nothing is exchanged within the group."""

    @property
    def extra_s(self) -> float:
        """What the group costs beyond the work of the given tiles; infinite if it exchanges whatever the tiles."""
        return max(self._extra) if self._is_whole else inf

    @property
    def seconds(self) -> float:
        """The same with the exchange before it."""
        return self.extra_s + self._exchange_seconds() if self._is_whole else inf

    def extend(self) -> None:
        """Take in the phase before it."""
        self.start -= 1
        nodes = self.phases.nodes[self.start]
        for node in reversed(nodes):
            self._grow(node)
        for node in nodes:
            for number, value in enumerate(node.inputs):
                producer = self.phases.graph.producers.get(value)
                if producer is not None:
                    self._before.setdefault(self.phases.of[producer.name], []).append((node, number))
        self._is_whole &= not any(any(self._fetched(*operand)) for operand in self._before.pop(self.start, ()))

    def _grow(self, node: Node) -> None:
        """Let the tiles of a node hold all that their machines read of them."""
        phases = self.phases
        value, axis = node.first_output, phases.axes[node.name]
        made = own = phases.tiles[node.name]
        if axis is not None:
            made = tuple(with_need(tile, axis, self._needs.get((value, tile.device))) for tile in own)
        self.tiles[node.name] = made
        for before, tile in zip(own, made, strict=True):
            if tile is not before:
                self._extra[tile.device] += phases.seconds(node, tile) - phases.seconds(node, before)
            note_needs(self._needs, node, tile, phases.pieces.piece(node, tile)[0])

    def _fetched(self, node: Node, operand: int) -> Sequence[int]:
        """Return how many elements of an operand every tile of a node fetches."""
        phases = self.phases
        producer = phases.graph.producers[node.inputs[operand]]
        own, tiles = phases.tiles[node.name], self.tiles[node.name]
        held = self.tiles.get(producer.name) or phases.tiles[producer.name]
        known = phases.missing[node.name, operand] if held == phases.tiles[producer.name] else ()
        pairs = enumerate(zip(own, tiles, strict=True))
        return [known[n] if known and now is before else phases.fetched(node, now, operand, held) for n, (before, now) in pairs]

    def _exchange_seconds(self) -> float:
        phases = self.phases
        fetched, joined = [dict[str, int]() for _ in self._extra], 0
        for node, operand in (each for operands in self._before.values() for each in operands):
            value = node.inputs[operand]
            itemsize = phases.graph.types[value].dtype.itemsize
            for tile, missing in zip(self.tiles[node.name], self._fetched(node, operand), strict=True):
                if missing:
                    # Of several that read a value the one that fetches most: it is sent once.
                    fetched[tile.device][value] = max(fetched[tile.device].get(value, 0), missing * itemsize)
                    read = phases.pieces.piece(node, tile)[0][operand]
                    joined = max(joined, 0 if read is None else read.size * itemsize)
        return phases.exchange_seconds([sum(of.values()) for of in fetched], joined)
