"""Shapes that follow from lists of sizes which are made of shapes alone, though nobody infers them.

    Shape, Gather, Add, Concat ── sizes ──► Equal to -1, Where ──► Expand

onnx follows the content of lists through few operators, onnxruntime through fewer; PyTorch's exporter writes the above for each of its
`expand`. Here such a list is computed by onnxruntime, as the run will.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array, DType, Graph, Node, TensorType
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


def steered_shapes(graph: Graph, declared: Container[str] = ()) -> dict[str, TensorType]:
    """Return the types of what is expanded to sizes that can be computed now; of what nobody knows a shape, and none was `declared` of."""
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.op != "Expand" or node.domain or node.first_output in declared or graph.types[node.first_output].shape is not None:
            continue
        before, sizes = graph.types[node.inputs[0]].shape, _content(graph, node.inputs[1])
        if before is None or sizes is None:
            continue
        try:
            shape = np.broadcast_shapes(before, tuple(sizes.reshape(-1).tolist()))
        except ValueError:  # the run will say so
            continue
        found[node.first_output] = TensorType(graph.types[node.inputs[0]].dtype, shape)
    return found


def _content(graph: Graph, name: str) -> Array | None:
    """Return what a list has in every run with these shapes; None if that depends on more than shapes."""
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
    return _computed(graph, name, tuple(node for node in graph.nodes if node.first_output in makers), known)


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


def _computed(graph: Graph, name: str, nodes: tuple[Node, ...], known: dict[str, Array]) -> Array | None:
    weights = {value: make_weight(value, array) for value, array in known.items()}
    types = {value: graph.types[value] for node in nodes for value in (*node.reads, *node.outputs) if value}
    types |= {value: weight.type for value, weight in weights.items()}
    alone = Graph(graph.name, nodes, (), (name,), weights, types, graph.opsets, graph.ir_version)
    try:
        (content,) = make_session(write_graph(alone, weights="inline").data, threads=1, optimize=False).run([name], {})
    except Exception:  # onnxruntime's exceptions have no common base; the whole model tells what is wrong with it
        return None
    return np.asarray(content)
