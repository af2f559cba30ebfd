"""Sizes of a decoder's caches that its file calls by a symbol, and that its nodes tell. One of the files that import onnx.

    cache [B, G, P, E],  H heads  ──►  answer [.., H * E], gated or not  ──►  product with a weight [H * E, ..]

Writers of decoders for onnxruntime call E, the elements of a head, `kv_cache_dim`, as if it were free. It is not: the product behind the
attention tells it. P is free, but where a cache keeps the last words only, there is room for these at least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_CACHING = ("com.microsoft", "GroupQueryAttention")
_PAST, _WORDS, _AXIS = (3, 4), 2, 3
_GATING = frozenset({"Cast", "Mul"})


def tell_head_sizes(graph: GraphProto) -> None:
    """Write the number wherever inputs and outputs have a symbol for the elements of a head; where nodes disagree, it stays."""
    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    told: dict[str, set[int]] = {}
    for node, size in _sizes(graph):
        for name in (node.input[place] for place in _PAST if place < len(node.input)):
            dims = declared.get(name, ())
            if len(dims) > _AXIS and dims[_AXIS].dim_param:
                told.setdefault(dims[_AXIS].dim_param, set()).add(size)
    for value in (*graph.input, *graph.output) if told else ():
        for dim in value.type.tensor_type.shape.dim:
            if len(sizes := told.get(dim.dim_param, set())) == 1:
                (dim.dim_value,) = sizes


def rolling_windows(graph: GraphProto) -> dict[str, int]:
    """Return the symbols of the lengths of caches that keep the last words only, and how many words these are."""
    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    found: dict[str, int] = {}
    for node in (node for node in graph.node if (node.domain, node.op_type) == _CACHING):
        told = {attribute.name: attribute.i for attribute in node.attribute}
        if told.get("sliding_window_cache"):
            for dims in (declared.get(name, ()) for name in node.input[_PAST[0] : _PAST[1] + 1]):
                if len(dims) > _WORDS and (symbol := dims[_WORDS].dim_param):
                    found[symbol] = max(found.get(symbol, 0), told.get("local_window_size", 0))
    return found


def _sizes(graph: GraphProto) -> Iterator[tuple[NodeProto, int]]:
    """Yield attentions with the elements of their heads, as the product that reads their answer tells it."""
    attentions = {node.output[0]: node for node in graph.node if (node.domain, node.op_type) == _CACHING and node.output}
    if not attentions:
        return
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        attention = next((attentions[name] for name in node.input if name in attentions), None)
        if attention is None:
            continue
        if node.op_type in _GATING and not node.domain:  # as a gate between the attention and the product is
            attentions[node.output[0]] = attention
        elif (features := _features(node, shapes)) is not None:
            heads = next((a.i for a in attention.attribute if a.name == "num_heads"), 0)
            if heads > 0 and features > 0 and features % heads == 0:
                yield attention, features // heads


def _features(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Return over how many elements of its first operand a product adds; None of what is none, or has no weight."""
    if node.op_type == "MatMulNBits":
        return next((attribute.i for attribute in node.attribute if attribute.name == "K"), None)
    shape = shapes.get(node.input[1], ()) if node.op_type == "MatMul" and len(node.input) > 1 else ()
    return shape[0] if len(shape) == 2 else None
