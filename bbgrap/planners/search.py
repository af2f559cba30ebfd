"""Choosing placements for every node so that little is fetched: Tofu's search, on any graph.

What a node fetches is exact: per machine, the region that its tile reads (from the description) less the region that it holds; partial
results count once per part, since a machine needs all parts of what it reads. Weights are where they are used, and inputs of the model
come from the coordinator whatever the plan: both cost nothing. A region of several ranges counts as its hull.

    bytes[p, c] = sum over machines d of   parts(p) * |need(c, d)|  -  |need(c, d) ∩ held(p, d)|

The best choice on a tree is exact: every node with its largest input as its parent, from the leaves to the root. What a tree leaves out
(a second input, as of a residual sum) is then seen to by passes over all nodes in which each takes the choice that is best given all its
neighbours. The passes also start from the uniform choices, the commonest placements wherever a node has them, and the best result counts.
Of equals the first is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from bbgrap.graph import Graph, Node
from bbgrap.planners.layers import operands_by_size
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.placements import Levels, Placements, tiles_of
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import Descriptions

Integers = NDArray[np.int64]

PASSES = 3
"""Passes over all nodes from every start: chosen; the third one rarely changes anything."""

STARTS = 4
"""Uniform choices to start from, besides the tree: chosen, one per axis of a map."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that one node makes and another reads."""

    producer: str
    consumer: str
    value: str


class Choices:
    """Options of every node, and the bytes that each pair of options of neighbours fetches.

    Options are placements: those of every described node; one without any computes whole on the strongest machine.
    """

    def __init__(self, graph: Graph, descriptions: Descriptions, levels: Levels, options: Mapping[str, Sequence[Placements]]) -> None:
        self.graph = graph
        self.descriptions = descriptions
        self.levels = levels
        self.options = options
        self.pieces = Pieces(graph, descriptions)
        self.count = levels.count
        self.tiles = {node.name: self._tiles(node) for node in graph.nodes}
        self.cost = cache(self._edge_cost)

    def _tiles(self, node: Node) -> tuple[tuple[Tile, ...], ...]:
        description = self.descriptions[node.name]
        if description is None:
            return ((Tile(self.levels.root, whole_output(self.graph, node)),),)
        return tuple(tiles_of(self.levels, description, placements) for placements in self.options[node.name])

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges between nodes, in topological order of the consumers, the largest value first."""
        producers = self.graph.producers
        return tuple(
            Edge(producers[value].name, node.name, value)
            for node in self.graph.nodes
            for value in dict.fromkeys(name for _, name in operands_by_size(self.graph, node))
            if value in producers
        )

    @cached_property
    def around(self) -> Mapping[str, tuple[Edge, ...]]:
        """The edges of every node."""
        found: dict[str, list[Edge]] = {node.name: [] for node in self.graph.nodes}
        for edge in self.edges:
            found[edge.producer].append(edge)
            found[edge.consumer].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    def _edge_cost(self, edge: Edge) -> Integers:
        """Return the bytes that all devices have to fetch over an edge: [option of the producer, option of the consumer]."""
        kind = self.graph.types[edge.value]
        if not kind.shape:
            return np.zeros((len(self.tiles[edge.producer]), len(self.tiles[edge.consumer])), dtype=np.int64)
        held = self._boxes([self._held(edge, tiles) for tiles in self.tiles[edge.producer]], len(kind.shape))
        need = self._boxes(list(self._needs(edge)), len(kind.shape))
        low = np.maximum(held[:, None, :, :, 0], need[None, :, :, :, 0])
        high = np.minimum(held[:, None, :, :, 1], need[None, :, :, :, 1])
        common = np.clip(high - low, 0, None).prod(3)
        wanted = (need[..., 1] - need[..., 0]).prod(2)
        parts = np.array([len({tile.part for tile in tiles}) for tiles in self.tiles[edge.producer]])
        return np.asarray((parts[:, None, None] * wanted[None, :, :] - common).sum(2) * kind.dtype.itemsize)

    def _held(self, edge: Edge, tiles: tuple[Tile, ...]) -> dict[int, ShapeMap]:
        """Return what every device holds of the value: its tile, or the whole of an output that is not the first."""
        first = self.graph.node_by_name[edge.producer].first_output
        whole = ShapeMap.full(self.graph.types[edge.value].known_shape)
        return {tile.device: tile.region if edge.value == first else whole for tile in tiles}

    def _needs(self, edge: Edge) -> Iterator[dict[int, ShapeMap]]:
        """Yield, per option of the consumer, what every device reads of the value."""
        node = self.graph.node_by_name[edge.consumer]
        numbers = [number for number, name in enumerate(node.inputs) if name == edge.value]
        for tiles in self.tiles[edge.consumer]:
            found: dict[int, ShapeMap] = {}
            for tile in tiles:
                regions, _ = self.pieces.piece(node, tile)
                for region in (regions[number] for number in numbers):
                    if region is not None and not region.is_empty:
                        found[tile.device] = region if tile.device not in found else found[tile.device].hull(region)
            yield found

    def _boxes(self, regions: Sequence[Mapping[int, ShapeMap]], rank: int) -> Integers:
        """Return regions by device as bounds: [option, device, axis, start or stop]; zeros where a device has none."""
        boxes = np.zeros((len(regions), self.count, rank, 2), dtype=np.int64)
        for number, of in enumerate(regions):
            for device, region in of.items():
                boxes[number, device] = [(axis.hull.start, axis.hull.stop) for axis in region.axes]
        return boxes

    def best(self) -> dict[str, int]:
        """Return the number of the option for every node: of all starts, the one from which the passes get furthest."""
        tree = self._on_tree()
        return min(map(self._improved, (tree, *self._uniform(tree))), key=self.total)

    def _uniform(self, tree: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield choices of the same placements for all nodes that have them, the commonest first."""
        common = Counter(placements for of in self.options.values() for placements in of)
        for placements, _ in common.most_common(STARTS):
            yield {name: self._number_of(name, placements, number) for name, number in tree.items()}

    def _number_of(self, name: str, placements: Placements, otherwise: int) -> int:
        options = self.options.get(name, ())
        return options.index(placements) if placements in options else otherwise

    def _on_tree(self) -> dict[str, int]:
        parents: dict[str, Edge] = {}
        for edge in self.edges:
            parents.setdefault(edge.consumer, edge)
        below = {name: self._nothing(name) for name in self.tiles}
        for node in reversed(self.graph.nodes):
            if node.name in parents:
                edge = parents[node.name]
                below[edge.producer] = below[edge.producer] + (self.cost(edge) + below[node.name]).min(1)
        chosen: dict[str, int] = {}
        for node in self.graph.nodes:
            costs = below[node.name]
            if node.name in parents:
                edge = parents[node.name]
                costs = costs + self.cost(edge)[chosen[edge.producer]]
            chosen[node.name] = int(costs.argmin())
        return chosen

    def _improved(self, start: Mapping[str, int]) -> dict[str, int]:
        chosen = dict(start)
        for _ in range(PASSES):
            before = dict(chosen)
            for node in self.graph.nodes:
                costs = self._cost_around(node.name, chosen)
                if costs.min() < costs[chosen[node.name]]:
                    chosen[node.name] = int(costs.argmin())
            if chosen == before:
                break
        return chosen

    def _cost_around(self, name: str, chosen: Mapping[str, int]) -> Integers:
        """Return what the edges of a node cost for each of its options, given what its neighbours have chosen."""
        total = self._nothing(name)
        for edge in self.around[name]:
            total = total + (self.cost(edge)[chosen[edge.producer]] if edge.consumer == name else self.cost(edge)[:, chosen[edge.consumer]])
        return total

    def _nothing(self, name: str) -> Integers:
        return np.zeros(len(self.tiles[name]), dtype=np.int64)

    def total(self, chosen: Mapping[str, int]) -> int:
        """Return the bytes that a whole choice fetches."""
        return int(sum(self.cost(edge)[chosen[edge.producer], chosen[edge.consumer]] for edge in self.edges))

    def plan_tiles(self, chosen: Mapping[str, int]) -> dict[str, tuple[Tile, ...]]:
        """Return the tiles of a choice."""
        return {name: self.tiles[name][number] for name, number in chosen.items()}
