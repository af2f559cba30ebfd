"""The best mixture of candidates: for every node the tiles of one of them, so that computing and fetching together take least time.

Time is counted here as if all nodes went in step: a graph node takes as long as its slowest machine, an edge as long as the machine that
fetches most. So costs add up, and the choice is exact on a tree (dynamic programming from the leaves to the root); what a tree leaves
out is seen to by passes (`bbgrap.planners.search`). The clock then says what the mixture is really worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from bbgrap.auto.evaluate import Evaluator
from bbgrap.planners.plan import Tiles
from bbgrap.planners.search import Costs, Edge, TileChoices
from bbgrap.work import Work


def mixtures(evaluator: Evaluator, ingredients: Sequence[Tiles]) -> Iterator[Tiles]:
    """Yield mixtures of whole plans: the fastest, and where memory counts, others in which weights have a price."""
    graph = evaluator.pieces.graph
    choices = _TimedChoices(evaluator, ingredients)
    best = choices.best()
    yield choices.plan_tiles(best)
    if evaluator.objective == "memory" or any(node.memory_bytes for node in evaluator.cluster.nodes):
        weights = sum(weight.type.nbytes for weight in graph.weights.values()) or 1
        for times in PRICES:
            dear = _TimedChoices(evaluator, ingredients, times * choices.total(best) / weights)
            yield dear.plan_tiles(dear.best())


PRICES = (0.5, 2.0, 8.0)
"""Prices of holding all weights on one machine, in times of the fastest mixture."""


class _TimedChoices(TileChoices):
    """Choices among the tiles of whole plans, in seconds; `price` are seconds per byte of weights on the machine that holds most."""

    def __init__(self, evaluator: Evaluator, ingredients: Sequence[Tiles], price: float = 0.0) -> None:
        tiles = {node.name: [of[node.name] for of in ingredients] for node in evaluator.pieces.graph.nodes}
        super().__init__(evaluator.pieces, len(evaluator.cluster.nodes), tiles)
        self.ingredients = len(ingredients)
        self.price = price
        self.network = evaluator.predictor.network

    def starts(self, tree: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield every ingredient as it is."""
        for number in range(self.ingredients):
            yield dict.fromkeys(tree, number)

    @cached_property
    def node_costs(self) -> Mapping[str, Costs]:
        """The seconds of the slowest machine for each of every node's options."""
        work = self.pieces.work
        return {
            node.name: np.array([max(self._seconds(tile.device, work(node, tile)) for tile in tiles) for tiles in self.tiles[node.name]])
            for node in self.graph.nodes
        }

    def _seconds(self, device: int, work: Work) -> float:
        return self.network.seconds(device, work) + self.price * work.weight_bytes

    def edge_cost(self, edge: Edge) -> Costs:
        """Return the seconds that fetching over an edge takes: [option of the producer, option of the consumer]."""
        missing = self.missing(edge)
        price = self.network.dearest
        most = missing.max(2, initial=0)
        return np.asarray(np.where(most > 0, price.fixed_s + most * price.s_per_byte, 0.0))
