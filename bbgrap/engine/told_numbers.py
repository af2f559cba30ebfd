"""Numbers that follow from constants and shapes alone, though nobody infers them, and small graphs that are run to find out.

    Shape, Gather, Add, Concat ── sizes

onnx follows the content of lists through few operators, onnxruntime through fewer. Here such a list is computed by onnxruntime, as the run
will. Law: what depends on an input's content is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array, DType, Graph, Node
from bbgrap.graph.weights import make_weight

MOST_NUMBERS = 64
"""In a list of sizes, and in what it is made of. Chosen: no shape is as long."""
MOST_NODES = 256
"""That make such a list. Chosen: exporters write some ten for each size."""

_OF_NUMBERS = frozenset(
    {"Abs", "Add", "And", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"}
    | {"LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Squeeze", "Sub"}
    | {"Unsqueeze", "Where"}
)
"""Operators that make sizes of sizes."""


def run_alone(graph: Graph, feeds: Mapping[str, Array] = MappingProxyType({})) -> list[Array] | None:
    """Return what onnxruntime makes of a small graph, as it is; None if it cannot run that."""
    try:
        session = make_session(write_graph(graph, weights="inline").data, threads=1, optimize=False)
        return [np.asarray(array) for array in session.run(None, dict(feeds))]
    except Exception:  # onnxruntime's exceptions have no common base; the whole model tells what is wrong with it
        return None


def told_numbers(graph: Graph, name: str) -> Array | None:
    """Return what a short list, or a single number, is in every run with these shapes; None if that depends on more than shapes."""
    makers: dict[str, Node] = {}
    known: dict[str, Array] = {}
    left = [name]
    while left:
        value = left.pop()
        if value in known or value in makers:
            continue
        array = _known_now(graph, value)
        if array is not None:
            known[value] = array
            continue
        node = graph.producers.get(value)
        if node is None or node.domain or node.op not in _OF_NUMBERS or len(makers) == MOST_NODES or not _is_short(graph, value):
            return None
        makers[value] = node
        left += node.reads
    if name in known:
        return known[name]
    made = _computed(graph, name, tuple(node for node in graph.nodes if node.first_output in makers), known)
    return None if made is None else made[0]


def _known_now(graph: Graph, name: str) -> Array | None:
    """Return a short weight, or the shape or size of a value, where that is known."""
    if name in graph.weights:
        return graph.weights[name].array if _is_short(graph, name) else None
    node = graph.producers.get(name)
    shape = None if node is None or node.domain or node.op not in {"Shape", "Size"} else graph.types[node.inputs[0]].shape
    if node is None or shape is None:
        return None
    if node.op == "Size":
        return np.array(prod(shape), np.int64)
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(shape))
    return np.array(shape[start:end], np.int64) if isinstance(start, int) and isinstance(end, int) else None


def _is_short(graph: Graph, name: str) -> bool:
    kind = graph.types[name]
    return kind.shape is not None and prod(kind.shape) <= MOST_NUMBERS and kind.dtype is not DType.OTHER


def _computed(graph: Graph, name: str, nodes: tuple[Node, ...], known: Mapping[str, Array]) -> list[Array] | None:
    weights = {value: make_weight(value, array) for value, array in known.items()}
    types = {value: graph.types[value] for node in nodes for value in (*node.reads, *node.outputs) if value}
    types |= {value: weight.type for value, weight in weights.items()}
    return run_alone(Graph(graph.name, nodes, (), (name,), weights, types, graph.opsets, graph.ir_version))
