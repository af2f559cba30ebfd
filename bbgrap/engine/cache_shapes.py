"""How long the caches are that an attention puts out, which neither onnx nor onnxruntime infers: the longer of the past and of all words.

    past [B, G, P, E], words so far T     ──► present [B, G, max(P, T), E]
    the same of the last words only       ──► present [B, G, P, E]

onnxruntime's inference takes the past's shape for it, which is so only where there is room for all words, or (from 1.32 on) says nothing.
T is an operand, which exporters compute from the shape of a mask. Law: a length that depends on an input's content stays unknown.
"""

from __future__ import annotations

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array, Graph, Node, TensorType, Weight
from bbgrap.graph.weights import make_weight

CACHING = frozenset({"GroupQueryAttention"})
"""Operators with such caches; a past is operand 3, the number of words operand 6."""

_PAST, _TOTAL = 3, 6

MOST_NODES = 64
"""Nodes that compute the number of words from shapes. Chosen: exporters write up to ten."""


def cached_shapes(graph: Graph, node: Node) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of a node's outputs in use; None for caches if how many words there are is not known before the run."""
    names = [name for name in node.outputs if name]
    past = graph.types[node.inputs[_PAST]].shape if node.inputs[_PAST] else None
    total = told_by_shapes(graph, node.inputs[_TOTAL])
    first, *inferred = (graph.types[name].shape for name in names)
    like = [shape if past is None else past for shape in inferred]
    if past is not None and node.attributes.get("sliding_window_cache", 0):
        return (first, *like)
    if total is None:
        return (first, *(None for _ in like))
    length = max(total, 0 if past is None else past[2])
    return (first, *(shape and (shape[0], shape[1], length, shape[3]) for shape in like))


def told_by_shapes(graph: Graph, name: str) -> int | None:
    """Return the one number that a value is, if it follows from constants and shapes; else None."""
    nodes: dict[str, Node] = {}
    weights: dict[str, Weight] = {}
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        producer = graph.producers.get(value)
        if value in graph.weights:
            weights[value] = graph.weights[value]
        elif producer is None or producer.captured or len(nodes) == MOST_NODES:
            return None
        elif producer.op == "Shape" and (shape := graph.types[producer.inputs[0]].shape) is not None:
            weights[value] = make_weight(value, np.array(_sizes(producer, shape), np.int64))
        else:
            nodes[producer.name] = producer
            waiting += [operand for operand in producer.inputs if operand and operand not in seen]
            seen.update(producer.inputs)
    if not nodes:
        return _number(weights[name].array)
    made = tuple(node for node in graph.nodes if node.name in nodes)
    types = {o: TensorType(graph.types[o].dtype, None) for node in made for o in node.outputs if o} | {
        n: w.type for n, w in weights.items()
    }
    alone = Graph(graph.name, made, (), (name,), weights, types, graph.opsets, graph.ir_version)
    try:
        (array,) = make_session(write_graph(alone, weights="inline").data, threads=1).run([name], {})
    except Exception:  # onnxruntime's exceptions have no common base; the whole model tells what is wrong with it
        return None
    return _number(array)


def _sizes(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes that a `Shape` tells."""
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(shape))
    return shape[start:end] if isinstance(start, int) and isinstance(end, int) else ()


def _number(array: Array) -> int | None:
    return int(array.reshape(-1)[0]) if array.size == 1 else None
