"""What is shipped of a segment: its names say nothing, so that equal models have equal bytes, whatever layer, device or shape they are of.

Readable names are for `bbgrap export` (`bbgrap.compiler.segments`); a segment with control flow keeps them, for its bodies read by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bbgrap.graph import Graph

NAME = "segment"


def canonical(graph: Graph) -> Graph:
    """Return a graph with its values, weights and nodes named after their places."""
    if any(node.captured for node in graph.nodes):
        return graph
    names: dict[str, str] = {"": ""}
    _call(names, "in", graph.inputs)
    weights: dict[str, str] = {}
    for node in graph.nodes:
        _call(weights, "weight", (name for name in node.inputs if name in graph.weights))
        _call(names, "value", (name for name in (*node.inputs, *node.outputs) if name not in graph.weights))
    _call(weights, "weight", graph.weights)
    names |= weights
    nodes = tuple(
        replace(node, name=f"node{k}", inputs=tuple(names[n] for n in node.inputs), outputs=tuple(names[n] for n in node.outputs))
        for k, node in enumerate(graph.nodes)
    )
    return replace(
        graph,
        name=NAME,
        nodes=nodes,
        inputs=tuple(names[n] for n in graph.inputs),
        outputs=tuple(names[n] for n in graph.outputs),
        weights={names[n]: replace(weight, name=names[n]) for n, weight in graph.weights.items()},
        types={names[n]: kind for n, kind in graph.types.items() if n in names},
        moving={names[n]: axes for n, axes in graph.moving.items() if n in names},
    )


def _call(names: dict[str, str], kind: str, values: Iterable[str]) -> None:
    """Name values after their kind and the order in which they come; those that have names keep them."""
    for value in values:
        if value not in names:
            names[value] = f"{kind}{len(names):04d}"
