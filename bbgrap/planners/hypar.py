"""HyPar: batch (dp) or input channels (mp) per layer and level, by Algorithms 1 and 2.

A training step is divided by the tables whole (`training_chain`): dp is form b, mp at each level form i, or o where that moves less. For
inference there is what is left of them. Forward, Tables 1 and 2 (per machine, k ways; the paper has k = 2) come down to

    intra   dp 0        mp (k - 1) A(F of the next layer): the partial sums of the others
    inter   dp-dp 0     dp-mp (k - 1)/k² A(F)     mp-mp 0     mp-dp 0

so dp is free, as the paper says of inference (section 3.3): the choice is real only at levels where a batch has run out.

`benchmarks.papers.hypar` recomputes the paper's tables. Deviations: any number of machines, by its prime factors; shares instead of
halves; the layers of a graph with branches count as a chain in topological order. Where neither is possible (one sample and a grouped
convolution, say) a layer is divided by features, and where that is not possible either the strongest machine of the group computes it.
Other nodes follow their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.layers import Layer, follow_layers, layers_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Partial, Placement, Placements, Shard
from bbgrap.planners.plan import Tiles
from bbgrap.planners.training import training_structure
from bbgrap.planners.training_chain import place_by_chain
from bbgrap.tdl import Descriptions

DATA, MODEL = 0, 1


def plan_hypar(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Choose level by level, each time by dynamic programming over the layers."""
    levels, step = Levels.of(cluster), training_structure(graph, descriptions)
    if step is not None:
        return step.tiles(levels, place_by_chain(step, levels, ("i", "o")))
    layers = layers_of(graph, descriptions)
    placed: dict[str, Placements] = {layer.node.name: () for layer in layers}
    for way in levels.ways:
        for layer, choice in zip(layers, partition(graph, layers, placed, way, levels), strict=True):
            placements = placed[layer.node.name]
            placed[layer.node.name] = (*placements, _placement(layer, placements, choice, levels))
    return follow_layers(graph, descriptions, levels, placed)


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


def _size(graph: Graph, value: str) -> int:
    return prod(graph.types[value].shape or ())


def _left(placements: Placements, levels: Levels) -> float:
    """Return the fraction of a tensor that is left after the cuts of its placements."""
    return 1 / prod(way for placement, way in zip(placements, levels.ways, strict=False) if isinstance(placement, Shard | Partial))


def _can_divide(graph: Graph, layer: Layer, placements: Placements, way: int, levels: Levels) -> bool:
    """Tell whether every part would still have a sample."""
    if layer.batch is None:
        return False
    return (graph.types[layer.made].shape or ())[layer.batch] >= levels.divided(placements, Shard(layer.batch)) * way


def _placement(layer: Layer, placements: Placements, choice: int, levels: Levels) -> Placement:
    if choice == DATA and layer.batch is not None:
        return Shard(layer.batch)
    if layer.inner is not None and layer.inner.units >= 2 * levels.divided(placements, layer.inner):
        return layer.inner
    return ON_ONE if layer.features is None else Shard(layer.features)
