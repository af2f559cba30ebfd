"""Exchanging what is smaller, and there sooner: operations between it and what is read are computed by everybody, for all rows.

    keys and values are sent          norm ─┬─ key ──── ┊ sent ┊ ── scores ──
                                            └─ value ── ┊ sent ┊ ── mixed ───
    what both are made of is sent     norm ── ┊ sent ┊ ─┬─ key ──── scores ──        tiles of `key` and `value` grow by what is read of them
                                                        └─ value ── mixed ───

Within a stretch of layers that exchange nothing, tiles grow back to front as far as that pays, where

    exchange before the stretch that follows = the slowest machine's extra work + the link, and both ends of a message

Laws: tiles only grow; nothing more is read of what is before a stretch; where nothing is cheaper the tiles stay as they are.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from bbgrap.graph import Node
from bbgrap.planners.halo_recomputation import Needs, cut_axis, note_needs, with_need
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, Tiles
from bbgrap.shapemap import ShapeMap


@dataclass(frozen=True, slots=True)
class Prices:
    """What a tile takes, and what an exchange takes: of bytes fetched per device, and of the largest value that is put together."""

    tile: Callable[[Node, Tile], float]
    exchange: Callable[[Sequence[int], int], float]


def exchange_earlier(pieces: Pieces, tiles: Tiles, stretches: Sequence[Sequence[Node]], devices: int, prices: Prices) -> Tiles:
    """Let tiles grow where that is cheaper than to send what they make.

    Args:
        pieces: Of the graph.
        tiles: A plan.
        stretches: Its nodes, front to back; within a stretch nothing is exchanged.
        devices: How many there are.
        prices: What work and exchanges take.
    """
    grown, needs = dict(tiles), dict[tuple[str, int], ShapeMap]()
    for nodes in reversed(stretches):
        grown |= _Stretch(pieces, grown, nodes, devices, prices, ChainMap({}, needs)).end()
        for node in nodes:
            for tile in grown[node.name]:
                note_needs(needs, node, tile, pieces.piece(node, tile)[0])
    return grown


@dataclass(slots=True)
class _Stretch:
    """The end of one stretch, which grows to its front.

    Invariants: `needs` are those of later stretches and of `grown`; `open` has the bytes that devices fetch of every value that a node
    makes which has not been looked at.
    """

    pieces: Pieces
    tiles: Tiles
    nodes: Sequence[Node]
    devices: int
    prices: Prices
    needs: Needs
    grown: dict[str, tuple[Tile, ...]] = field(default_factory=dict)
    open: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    """And the bytes of the largest piece that is put together."""

    def end(self) -> dict[str, tuple[Tile, ...]]:
        """Return the tiles that grow."""
        made = dict.fromkeys(name for node in self.nodes for name in node.outputs if name)
        for value in made:
            self._fetch(value)
        extra = [0.0] * self.devices
        best, least = dict(self.grown), self._seconds(extra)
        for node in reversed(self.nodes):
            if any(name in self.open for name in node.outputs):
                if not self._grow(node, made, extra) or max(extra) > least:
                    break
                if (seconds := self._seconds(extra)) < least:
                    best, least = dict(self.grown), seconds
        return best

    def _seconds(self, extra: Sequence[float]) -> float:
        fetched = [sum(each[device] for each, _ in self.open.values()) for device in range(self.devices)]
        return max(extra) + self.prices.exchange(fetched, max((joined for _, joined in self.open.values()), default=0))

    def _grow(self, node: Node, made: Collection[str], extra: list[float]) -> bool:
        """Let a node's tiles hold all that is read of them; False if they cannot, or if more of what is before would be read."""
        own, axis = self.tiles[node.name], cut_axis(self.tiles[node.name])
        needs = self._needs_of(node.first_output)
        if axis is None or len(node.outputs) > 1 or node.captured or needs.keys() - {tile.device for tile in own}:
            return False
        tiles = tuple(with_need(tile, axis, needs.get(tile.device)) for tile in own)
        if not all(tile.region.issuperset(needs[tile.device]) for tile in tiles if tile.device in needs):
            return False
        for before, tile in zip(own, tiles, strict=True):
            was, reads = self.pieces.piece(node, before)[0], self.pieces.piece(node, tile)[0]
            if any(value not in made and read != held for value, held, read in zip(node.inputs, was, reads, strict=True)):
                return False
            if tile is not before:
                extra[tile.device] += self.prices.tile(node, tile) - self.prices.tile(node, before)
                note_needs(self.needs, node, tile, reads)
        self.grown[node.name] = tiles
        self.open.pop(node.first_output)
        for value in node.inputs:
            if value in made:
                self._fetch(value)
        return True

    def _fetch(self, value: str) -> None:
        """Note what every device fetches of a value."""
        graph = self.pieces.graph
        needs = self._needs_of(value)
        if not needs:
            return
        producer, itemsize = graph.producers[value], graph.types[value].dtype.itemsize
        output = [name for name in producer.outputs if name].index(value)
        held = {t.device: self.pieces.piece(producer, t)[1][output] for t in self.tiles[producer.name] if t.part is None}
        fetched, joined = [0] * self.devices, 0
        for device, need in needs.items():
            if missing := need.size - (need.intersect(held[device]).size if device in held else 0):
                fetched[device] = missing * itemsize
                joined = max(joined, need.size * itemsize)
        if joined:
            self.open[value] = (fetched, joined)

    def _needs_of(self, value: str) -> dict[int, ShapeMap]:
        """Return what devices read of a value."""
        return {device: need for device in range(self.devices) if (need := self.needs.get((value, device))) is not None}
