"""HyPar: batch (dp) or input channels (mp) per layer and level, by Algorithms 1 and 2.

A training step is divided by the tables whole, for k ways, with what a layer moves that is divided by its features instead:

    intra   dp 2 (k - 1) A(W)     mp by input channels 2 (k - 1) A(y)     mp by features 2 (k - 1) A(x), nothing for the model's input
    inter   dp-dp, mp-mp 0        dp-mp, mp-dp 2 (k - 1)/k A(x), less where that is gathered anyway

For inference there is what is left of them. Forward, Tables 1 and 2 (per machine, k ways; the paper has k = 2) come down to

    intra   dp 0        mp (k - 1) A(F of the next layer): the partial sums of the others
    inter   dp-dp 0     dp-mp (k - 1)/k² A(F)     mp-mp 0     mp-dp 0

so dp is free, as the paper says of inference (section 3.3): the choice is real only at levels where a batch has run out.

`papers.hypar` recomputes the paper's tables. Deviations: any number of machines, by its prime factors; shares instead of halves; the
layers of a graph with branches count as a chain in topological order. Where neither is possible (one sample and a grouped convolution,
say) a layer is divided by features, and where that is not possible either the strongest machine of the group computes it. Other nodes
follow their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.layers import Descriptions, Layer, follow_layers, layers_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Partial, Placement, Placements, Shard
from bbgrap.planners.plan import Plan
from bbgrap.planners.training import TrainingStep, training_step

DATA, MODEL = 0, 1


def plan_hypar(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Plan:
    """Choose level by level, each time by dynamic programming over the layers."""
    levels, step = Levels.of(cluster), training_step(graph, descriptions)
    layers = layers_of(graph, descriptions) if step is None else step.layers
    placed: dict[str, Placements] = {layer.node.name: () for layer in layers}
    for way in levels.ways:
        found = partition(graph, layers, placed, way, levels) if step is None else partition_training(step, placed, way, levels)
        for layer, choice in zip(layers, found, strict=True):
            placements = placed[layer.node.name]
            placed[layer.node.name] = (*placements, _placement(layer, placements, choice, way, levels))
    tiles = follow_layers(graph, descriptions, levels, placed) if step is None else step.tiles(levels, placed)
    return Plan("hypar", graph, cluster, tiles)


def partition(graph: Graph, layers: Sequence[Layer], placed: Mapping[str, Placements], way: int, levels: Levels) -> list[int]:
    """Algorithm 1 with the forward costs, in elements, on the shapes that the levels above left; of equals dp."""
    costs: tuple[float, float] = (0.0, 0.0)
    paths: tuple[list[int], list[int]] = ([], [])
    for layer in layers:
        placements = placed[layer.node.name]
        reads = _size(graph, layer.data) * _left(placements, levels)
        makes = _size(graph, layer.made) * _left(tuple(ON_ONE if isinstance(u, Partial) else u for u in placements), levels)
        intra = (0.0 if _can_divide(graph, layer, placements, way, levels) else inf, (way - 1) * makes)
        to_data = min((costs[DATA], DATA), (costs[MODEL], MODEL))
        to_model = min((costs[DATA] + (way - 1) / way**2 * reads, DATA), (costs[MODEL], MODEL))
        costs = (to_data[0] + intra[DATA], to_model[0] + intra[MODEL])
        paths = ([*paths[to_data[1]], DATA], [*paths[to_model[1]], MODEL])
    return paths[DATA if costs[DATA] <= costs[MODEL] else MODEL]


def partition_training(step: TrainingStep, placed: Mapping[str, Placements], way: int, levels: Levels) -> list[int]:
    """Algorithm 1 with the costs of a training step, in elements; of equals dp."""
    graph, spread = step.graph, (way - 1) / way
    costs: tuple[float, float] = (0.0, 0.0)
    paths: tuple[list[int], list[int]] = ([], [])
    by_channels = False
    for number, layer in enumerate(step.layers):
        placements = placed[layer.node.name]
        batches = prod(w for p, w in zip(placements, levels.ways, strict=False) if p == Shard(layer.batch or 0))
        models = prod(w for p, w in zip(placements, levels.ways, strict=False) if p not in {Shard(layer.batch or 0), ON_ONE})
        weights = _size(graph, step.weights[layer.node.name]) / models
        reads, makes = (_size(graph, value) / batches for value in (layer.data, layer.made))
        divides = _placement(layer, placements, MODEL, way, levels)
        inner = isinstance(divides, Partial)
        moved = makes if inner else 0.0 if number == 0 else reads / models
        can = _can_divide(graph, layer, placements, way, levels)
        intra = (2 * (way - 1) * weights if can else inf, inf if divides is ON_ONE and can else 2 * (way - 1) * moved)
        # From dp to mp by features nothing is added: x is gathered, and dx scattered, from wherever they are.
        to_model = 2 * spread * reads / models if inner else 0.0
        # Behind mp by input channels dy is gathered from wherever it is.
        to_data = (1 if by_channels else 2) * spread * reads / models
        into_data = min((costs[DATA], DATA), (costs[MODEL] + to_data, MODEL))
        into_model = min((costs[DATA] + to_model, DATA), (costs[MODEL], MODEL))
        if number == 0:
            into_data, into_model = (0.0, DATA), (0.0, MODEL)
        costs = (into_data[0] + intra[DATA], into_model[0] + intra[MODEL])
        paths = ([*paths[into_data[1]], DATA], [*paths[into_model[1]], MODEL])
        by_channels = inner
    return paths[DATA if costs[DATA] <= costs[MODEL] else MODEL]


def _size(graph: Graph, value: str) -> int:
    return prod(graph.types[value].shape or ())


def _left(placements: Placements, levels: Levels) -> float:
    """Return the fraction of a tensor that is left after the cuts of its placements."""
    return 1 / prod(way for placement, way in zip(placements, levels.ways, strict=False) if isinstance(placement, Shard | Partial))


def _can_divide(graph: Graph, layer: Layer, placements: Placements, way: int, levels: Levels) -> bool:
    """Tell whether every part would still have a sample."""
    if layer.batch is None:
        return False
    parts = prod(w for placement, w in zip(placements, levels.ways, strict=False) if placement == Shard(layer.batch))
    return (graph.types[layer.made].shape or ())[layer.batch] >= parts * way


def _placement(layer: Layer, placements: Placements, choice: int, way: int, levels: Levels) -> Placement:
    if choice == DATA and layer.batch is not None:
        return Shard(layer.batch)
    if layer.inner is not None:
        parts = prod(w for placement, w in zip(placements, levels.ways, strict=False) if placement == layer.inner)
        if layer.inner.units >= 2 * parts:
            return layer.inner
    return ON_ONE if layer.features is None else Shard(layer.features)
