"""How every layer of a training step is divided at one level: dynamic programming over the layers, by what programs move.

A layer runs in one of three forms, which are SoyBean's (figure 6); over k ways it moves, forward and backward together,

    b   by batch             2 (k - 1) A(W)      gradients are scattered, new weights gathered
    i   by input channels    2 (k - 1) A(y)      partial sums of y, and all of dy
    o   by features          2 (k - 1) A(x)      all of x, and partial sums of dx; nothing for the model's input

and between a layer in one form and the next, whose input is x,

    b -> i, o -> b           2 (k - 1)/k A(x)

and nothing elsewhere: what is gathered or scattered anyway comes from and goes to where it is wanted. The layers of a graph with branches
count as a chain in topological order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

from bbgrap.planners.layers import Layer
from bbgrap.planners.placements import ON_ONE, Levels, Placement, Placements, Shard
from bbgrap.planners.training import TrainingStructure

Form = Literal["b", "i", "o"]
Forms = Mapping[Form, Placement]
ModelSplit = Literal["i", "o"] | None
"""How weights are divided, where HyPar has one such choice; None: either way."""

CONVERTED: frozenset[tuple[Form, Form]] = frozenset({("b", "i"), ("o", "b")})
"""Between which forms maps and their gradients are divided anew."""


def place_by_chain(step: TrainingStructure, levels: Levels, models: Sequence[ModelSplit] = (None,)) -> dict[str, Placements]:
    """Return the placements of all layers, by the names of their nodes, chosen level by level: with the best of these models for each."""
    placed: dict[str, Placements] = {layer.node.name: () for layer in step.layers}
    for way in levels.ways:
        _, chosen = min((chained(step, placed, way, levels, model) for model in models), key=lambda found: found[0])
        for layer, placement in zip(step.layers, chosen, strict=True):
            placed[layer.node.name] += (placement,)
    return placed


def chained(
    step: TrainingStructure, placed: Mapping[str, Placements], way: int, levels: Levels, model: ModelSplit = None
) -> tuple[float, list[Placement]]:
    """Return the placement of every layer at one level that move the least, and how many elements; of equals b, then i.

    `placed` has those of the levels above; with a `model` that is the only form but b of a layer that can run in both.
    """
    graph, spread = step.graph, (way - 1) / way
    best: dict[Form, tuple[float, list[Placement]]] = {}
    for number, layer in enumerate(step.layers):
        placements = placed[layer.node.name]
        batches, inner, features = (levels.divided(placements, of) for of in (_shard(layer.batch), layer.inner, _shard(layer.features)))
        weights = prod(graph.types[step.weights[layer.node.name]].known_shape) / (inner * features)
        reads = prod(graph.types[layer.data].known_shape) / (batches * inner)
        makes = prod(graph.types[layer.made].known_shape) / (batches * features)
        moves: dict[Form, float] = {"b": weights, "i": makes, "o": reads if number else 0.0}
        found: dict[Form, tuple[float, list[Placement]]] = {}
        for form, placement in forms_of(step, layer, placements, way, levels, model).items():
            before = [(cost + 2 * spread * reads * ((last, form) in CONVERTED), path) for last, (cost, path) in best.items()]
            cost, path = min(before, key=lambda item: item[0], default=(0.0, []))
            found[form] = cost + 2 * (way - 1) * moves[form], [*path, placement]
        best = found
    return min(best.values(), key=lambda item: item[0])


def forms_of(step: TrainingStructure, layer: Layer, placements: Placements, way: int, levels: Levels, model: ModelSplit = None) -> Forms:
    """Return the forms in which every part of a layer has something to do; where there is none, one device computes it as if in form o."""
    shape = step.graph.types[layer.made].known_shape
    batch, features = _shard(layer.batch), _shard(layer.features)
    found: dict[Form, Placement] = {}
    if batch is not None and shape[batch.axis] >= way * levels.divided(placements, batch):
        found["b"] = batch
    if layer.inner is not None and layer.inner.units >= way * levels.divided(placements, layer.inner):
        found["i"] = layer.inner
    if features is not None and shape[features.axis] >= way * levels.divided(placements, features):
        found["o"] = features
    if model in found:
        found = {form: placement for form, placement in found.items() if form in ("b", model)}
    return found or {"o": ON_ONE}


def _shard(axis: int | None) -> Shard | None:
    return None if axis is None else Shard(axis)
