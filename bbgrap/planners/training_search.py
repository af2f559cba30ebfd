"""How every layer of a training step is divided so that the fewest bytes travel: Tofu's objective, counted exactly from regions.

    bytes = sum over values v and devices d of   parts(v) * |need(v, d)|  -  |need(v, d) ∩ held(v, d)|

`need` is all that the tiles of d read of v; of a state it is read in the next request, as what its output keeps. Level by level, the search
starts from the best chain (`training_chain`) and from every layer in the same form, and changes one layer at a time while that helps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from bbgrap.graph.state import kept_region, uncut
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.placements import Levels, Placement, Placements
from bbgrap.planners.plan import Tile
from bbgrap.planners.training import TrainingStructure
from bbgrap.planners.training_chain import Form, chained, forms_of
from bbgrap.shapemap import ShapeMap, subtract_all

LOOKED_AT = 10_000
"""Nodes of the plans that are looked at per level: some seconds. Chosen."""
LEAST_PLANS = 8
"""Plans that are looked at however many nodes they have."""

Chosen = tuple[Placement, ...]
"""Of all layers, at one level."""


def place_by_bytes(step: TrainingStructure, levels: Levels) -> dict[str, Placements]:
    """Return the placements of all layers, by the names of their nodes, chosen level by level."""
    pieces = Pieces(step.graph, step.descriptions)
    placed: dict[str, Placements] = {layer.node.name: () for layer in step.layers}
    for depth, way in enumerate(levels.ways, 1):
        for layer, placement in zip(step.layers, _Level(step, pieces, placed, way, levels.upper(depth)).best(), strict=True):
            placed[layer.node.name] += (placement,)
    return placed


class _Level:
    """The choice at one level, given those above."""

    def __init__(self, step: TrainingStructure, pieces: Pieces, placed: Mapping[str, Placements], way: int, levels: Levels) -> None:
        self.step, self.pieces, self.placed, self.levels = step, pieces, placed, levels
        self.forms = [forms_of(step, layer, placed[layer.node.name], way, levels) for layer in step.layers]
        self.chain = tuple(chained(step, placed, way, levels)[1])
        self.known: dict[Chosen, int] = {}
        self.left = max(LEAST_PLANS, LOOKED_AT // len(step.graph.nodes))

    def best(self) -> Chosen:
        """Return the choice that moves the fewest bytes of all that were looked at; of equals the first."""
        every: tuple[Form, ...] = ("b", "o", "i")
        starts = [self.chain, *(tuple(of.get(form, next(iter(of.values()))) for of in self.forms) for form in every)]
        best = min(starts, key=self.moved)
        while (better := self._improved(best)) != best:
            best = better
        return best

    def _improved(self, best: Chosen) -> Chosen:
        for number, of in enumerate(self.forms):
            for placement in of.values():
                other = (*best[:number], placement, *best[number + 1 :])
                if (other in self.known or self.left > 0) and self.moved(other) < self.moved(best):
                    best = other
        return best

    def moved(self, chosen: Chosen) -> int:
        if chosen not in self.known:
            self.left -= 1
            layers = (layer.node.name for layer in self.step.layers)
            placed = {name: (*self.placed[name], placement) for name, placement in zip(layers, chosen, strict=True)}
            self.known[chosen] = bytes_moved(self.pieces, self.step.tiles(self.levels, placed))
        return self.known[chosen]


def bytes_moved(pieces: Pieces, tiles: Mapping[str, tuple[Tile, ...]]) -> int:
    """Return the bytes that devices send each other in a further request."""
    graph = pieces.graph
    needs: defaultdict[str, defaultdict[int, list[ShapeMap]]] = defaultdict(lambda: defaultdict(list))
    for node in graph.nodes:
        for tile in tiles[node.name]:
            for name, region in zip(node.inputs, pieces.piece(node, tile)[0], strict=True):
                if region is None or region.is_empty:
                    continue
                if graph.state.get(name) in graph.producers:
                    needs[graph.state[name]][tile.device].append(kept_region(graph, name, uncut(graph, name, region)))
                elif name in graph.producers:
                    needs[name][tile.device].append(region)
    for name in graph.answered:  # partial results are added up by an agent before they leave
        if (made := tiles[graph.producers[name].name])[0].part is not None:
            needs[name][made[0].device].append(ShapeMap.full(graph.types[name].known_shape))
    return sum(
        _missing(regions, [tile.region for tile in made if tile.device == device], len({tile.part for tile in made}))
        * graph.types[name].dtype.itemsize
        for name, devices in needs.items()
        if graph.producers[name].first_output == name
        for made in (tiles[graph.producers[name].name],)
        for device, regions in devices.items()
    )


def _missing(needed: list[ShapeMap], held: list[ShapeMap], parts: int) -> int:
    """Return the elements that a device fetches of a value, of which it holds a part or, of sums, a partial result."""
    apart: list[ShapeMap] = []
    for region in dict.fromkeys(needed):
        apart += subtract_all(region, apart)
    size = sum(region.size for region in apart)
    return parts * size - (size - sum(rest.size for region in apart for rest in subtract_all(region, held)))
