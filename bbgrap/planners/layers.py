"""Layers with weights, and what follows them: how the planners that decide layer by layer reach the other nodes.

A layer is a node that sums over a weight: a convolution, a product with a constant, whatever its operator is called. Its description
says which output axis is its features (the weight has it too), which sum is over its input channels, and which axis is the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import surviving_axis
from bbgrap.planners.made_of_weights import values_of_weights
from bbgrap.planners.placements import ON_ONE, Levels, Partial, Placement, Placements, Shard, sums_of, tiles_of
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.tdl import Description, Descriptions


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with weights, and the loops along which it can be divided; None where it cannot, or where there is nothing to divide."""

    node: Node
    data: str
    """The value that it reads: its largest operand that is no weight."""
    made: str
    """The value that it makes."""
    batch: int | None
    """Output axis."""
    features: int | None
    """Output axis."""
    inner: Partial | None
    """Reduction index of the input channels."""


def layers_of(graph: Graph, descriptions: Descriptions) -> tuple[Layer, ...]:
    """Return the layers of a graph in topological order."""
    made = values_of_weights(graph, descriptions)
    batches = followed(graph, descriptions, dict.fromkeys(graph.inputs, 0))
    return tuple(
        layer
        for node in graph.nodes
        if (description := descriptions[node.name]) is not None
        and (layer := layer_of(graph, node, description, batches.get(node.first_output), made)) is not None
    )


def layer_of(
    graph: Graph, node: Node, description: Description, batch: int | None, parameters: frozenset[str] = frozenset()
) -> Layer | None:
    """Return a node as a layer, None if it is none; `parameters` are values that count as weights: inputs, or made of weights."""
    outputs = {index.name: axis for axis, index in enumerate(description.outputs)}
    names: set[str] = set()
    for access, of in zip(description.accesses, description.indices_of_accesses, strict=True):
        found = {name for subscript in of for name in subscript}
        name = node.inputs[access.operand]
        if (name in graph.weights or name in parameters) and found - outputs.keys():
            names |= found
    operands = [name for name in node.inputs if name and name not in graph.weights and name not in parameters]
    if not names or not operands:
        return None
    allowed = description.splittable_axes
    features = [axis for name, axis in outputs.items() if name in names and axis in allowed and description.shape[axis] > 1]
    inner = [over for over in sums_of(graph, node, description) if over.index in names and over.units > 1]
    return Layer(
        node,
        max(operands, key=lambda name: prod(graph.types[name].shape or ())),
        node.first_output,
        batch if batch is not None and batch in allowed and description.shape[batch] > 1 else None,
        max(features, key=lambda axis: description.shape[axis], default=None),
        max(inner, key=lambda over: over.extent, default=None),
    )


def operands_by_size(graph: Graph, node: Node) -> Iterator[tuple[int, str]]:
    """Yield the operands of a node that are no weights, with their numbers, the largest first."""
    numbered = [(number, name) for number, name in enumerate(node.inputs) if name and name not in graph.weights]
    yield from sorted(numbered, key=lambda item: (-prod(graph.types[item[1]].shape or ()), item[0]))


def followed(graph: Graph, descriptions: Descriptions, start: Mapping[str, int]) -> dict[str, int | None]:
    """Return along which axis of every value a direction runs that starts along given axes of the inputs; None where it has ended."""
    axes: dict[str, int | None] = {name: axis if graph.types[name].shape else None for name, axis in start.items()}
    for node in graph.nodes:
        description = descriptions[node.name]
        found = None if description is None else _carried(graph, node, description, axes)
        axes[node.first_output] = found
    return axes


def _carried(graph: Graph, node: Node, description: Description, axes: Mapping[str, int | None]) -> int | None:
    for number, name in operands_by_size(graph, node):
        axis = axes.get(name)
        if axis is not None and (here := surviving_axis(description, number, axis)) is not None:
            return here
    return None


def follow_layers(
    graph: Graph, descriptions: Descriptions, levels: Levels, placed: Mapping[str, Placements]
) -> dict[str, tuple[Tile, ...]]:
    """Return the tiles of all nodes, given the placements of some, by node name. The others follow their largest input, level by level.

    After partial sums a follower divides the features, so that every part of the sum is taken where it is added up. Where a direction
    ends, and for what cannot be divided, the strongest part of the group computes alone. The model's inputs count as divided by batch.
    """
    handed_on: dict[str, Placements] = {name: (Shard(0),) * len(levels.ways) for name in graph.inputs if graph.types[name].shape}
    tiles: dict[str, tuple[Tile, ...]] = {}
    made = values_of_weights(graph, descriptions)
    for node in graph.nodes:
        description = descriptions[node.name]
        if description is None:
            tiles[node.name] = (Tile(levels.root, whole_output(graph, node)),)
            continue
        placements = placed.get(node.name) or following(levels, graph, node, handed_on, partial(_survives, description))
        tiles[node.name] = tiles_of(levels, description, placements)
        handed_on[node.first_output] = _handed_on(graph, node, description, placements, made)
    return tiles


def following(
    levels: Levels, graph: Graph, node: Node, handed_on: Mapping[str, Placements], survives: Callable[[int, Placement], Placement]
) -> Placements:
    """Place a node as its largest operand of which something carries on, with one sum at most; on one device if there is none.

    `handed_on` has operands and how they are divided, `survives` tells what becomes of a placement of an operand, by its number.
    """
    ends: Placements = (ON_ONE,) * len(levels.ways)
    for number, name in operands_by_size(graph, node):
        placements = tuple(survives(number, placement) for placement in handed_on.get(name, ()))
        if placements not in ((), ends) and len({placement for placement in placements if isinstance(placement, Partial)}) <= 1:
            return placements
    return ends


def _survives(description: Description, operand: int, placement: Placement) -> Placement:
    if isinstance(placement, Shard):
        axis = surviving_axis(description, operand, placement.axis)
        return ON_ONE if axis is None or description.shape[axis] < 2 else Shard(axis)
    return placement


def _handed_on(graph: Graph, node: Node, description: Description, placements: Placements, made: frozenset[str]) -> Placements:
    """Return what those that read a node follow: its placements, but the features instead of partial sums."""
    if not any(isinstance(placement, Partial) for placement in placements):
        return placements
    layer = layer_of(graph, node, description, None, made)
    instead = ON_ONE if layer is None or layer.features is None else Shard(layer.features)
    return tuple(instead if isinstance(placement, Partial) else placement for placement in placements)
