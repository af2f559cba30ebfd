"""What tiles of a graph's nodes read, make and cost: looked up once per kind of node and region, for planners that look at many plans."""

from __future__ import annotations

from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Tile
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl import Descriptions, Part, input_regions, output_regions
from bbgrap.tdl.work import WorkCounter
from bbgrap.work import Work

Regions = tuple[ShapeMap | None, ...]
PieceRegions = tuple[Regions, tuple[ShapeMap, ...]]
"""Regions read and made."""


class Pieces:
    """What all plans of a graph have in common: what regions read and make, and the work of pieces; every answer is remembered.

    Nodes with equal descriptions and shapes, such as those of repeated blocks, share their answers.
    """

    def __init__(self, graph: Graph, descriptions: Descriptions) -> None:
        """Look up once what does not depend on the plan."""
        self.graph = graph
        self.descriptions = descriptions
        self.counter = WorkCounter(graph, descriptions)
        alike: dict[str, int] = {}
        self._alike: dict[str, int] = {}
        self._shapes: dict[str, tuple[tuple[int, ...] | None, ...]] = {}
        self._made: dict[str, tuple[tuple[int, ...] | None, ...]] = {}
        for node in graph.nodes:
            shapes = self._shapes[node.name] = tuple(graph.types[name].shape if name else None for name in node.inputs)
            made = self._made[node.name] = tuple(graph.types[name].shape for name in node.outputs if name)
            self._alike[node.name] = alike.setdefault(repr((descriptions[node.name], shapes, made)), len(alike))
        self._pieces: dict[tuple[int, ShapeMap, Part | None], tuple[PieceRegions, dict[str, Work]]] = {}
        """By what nodes are alike in; and the works of those that were asked for, which need not be alike."""
        self._works: dict[tuple[int, int], tuple[Tile, PieceRegions, Work]] = {}
        """By node and tile object, which is kept alive: looking at a region is slower than at an object."""

    def piece(self, node: Node, tile: Tile) -> PieceRegions:
        """Return what a tile reads, per operand (None: not as data), and what it makes, per output in use."""
        return self._known(node, tile)[1]

    def work(self, node: Node, tile: Tile) -> Work:
        """Return the work of a tile."""
        return self._known(node, tile)[2]

    def _known(self, node: Node, tile: Tile) -> tuple[Tile, PieceRegions, Work]:
        key = (id(node), id(tile))
        known = self._works.get(key)
        if known is None:
            place = (self._alike[node.name], tile.region, tile.part)
            found = self._pieces.get(place)
            if found is None:
                found = self._pieces[place] = (self._look(node, tile), {})
            piece, works = found
            if node.name not in works:
                works[node.name] = self.counter.work(node, *piece, reduction_of(tile))
            known = self._works[key] = (tile, piece, works[node.name])
        return known

    def _look(self, node: Node, tile: Tile) -> PieceRegions:
        description, shapes = self.descriptions[node.name], self._shapes[node.name]
        if description is None:
            reads: Regions = tuple(ShapeMap.full(shape or ()) if name else None for name, shape in zip(node.inputs, shapes, strict=True))
        else:
            reads = input_regions(description, tile.region, shapes, reduction_of(tile))
        return reads, output_regions(description, tile.region, self._made[node.name])


def reduction_of(tile: Tile) -> dict[str, Interval]:
    """Return the range of the reduction index that a partial tile runs over, by name; none for one that is not partial."""
    return {} if tile.part is None else {tile.part.index: tile.part.interval}
