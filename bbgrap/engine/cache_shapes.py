"""How long the caches are that an attention puts out, which neither onnx nor onnxruntime infers: the longer of the past and of all words.

    past [B, G, P, E], words so far T     ──► present [B, G, max(P, T), E]
    the same of the last words only       ──► present [B, G, P, E]

onnxruntime's inference takes the past's shape for it, which is so only where there is room for all words, or (from 1.32 on) says nothing.
T is an operand, which exporters compute from the shape of a mask. Law: a length that depends on an input's content stays unknown.
"""

from __future__ import annotations

from bbgrap.engine.told_numbers import told_numbers
from bbgrap.graph.types import Graph, Node

CACHING = frozenset({"GroupQueryAttention"})
"""Operators with such caches; a past is operand 3, the number of words operand 6."""

_PAST, _TOTAL = 3, 6


def cached_shapes(graph: Graph, node: Node) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of a node's outputs in use; None for caches if how many words there are is not known before the run."""
    names = [name for name in node.outputs if name]
    past = graph.types[node.inputs[_PAST]].shape if node.inputs[_PAST] else None
    total = told_numbers(graph, node.inputs[_TOTAL])
    first, *inferred = (graph.types[name].shape for name in names)
    like = [shape if past is None else past for shape in inferred]
    if past is not None and node.attributes.get("sliding_window_cache", 0):
        return (first, *like)
    if total is None or total.size != 1:
        return (first, *(None for _ in like))
    length = max(int(total.item()), 0 if past is None else past[2])
    return (first, *(shape and (shape[0], shape[1], length, shape[3]) for shape in like))
