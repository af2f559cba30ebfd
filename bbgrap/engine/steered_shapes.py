"""Shapes that follow from lists which are made of shapes alone (`told_numbers`), though nobody infers them.

    Shape, Gather, Add, Concat ── sizes ──► Equal to -1, Where ──► Expand
    Shape, Gather, Neg, Max    ── first ──────────────────────────► Slice
    Shape, Add, Reshape, Concat ── sizes ─────────────────────────► Reshape
    Shape, Add                 ── last ───────────────────────────► Range

PyTorch's exporters write the first for each `expand`, the second for tables of places that are cut to all words, the third for keys that
several heads share, the last for the places of words.

So are those of what onnxruntime's own quantizers make of scalars, which it declares like tensors of unknown rank.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np

from bbgrap.engine.told_numbers import told_numbers
from bbgrap.graph.types import DType, Graph, Node, TensorType


def steered_shapes(graph: Graph, declared: Container[str] = ()) -> dict[str, TensorType]:
    """Return the types of what is expanded, repeated or sliced by lists that can be computed now, and of what is quantized or was.

    Of what nobody knows a shape, and none was `declared` of.
    """
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.op in _QUANTIZERS:
            found |= _as_read(graph, node)
        if not node.domain and node.first_output not in declared and graph.types[node.first_output].shape is None:
            found |= _counted(graph, node) if node.op == "Range" else _steered(graph, node) if node.op in _STEERED else {}
    return found


def _steered(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Return the type of what a node makes of a value by lists, if these can be computed now."""
    before = graph.types[node.inputs[0]]
    lists = [told_numbers(graph, name) if name else None for name in node.inputs[1:]]
    if before.shape is None or any(name and array is None for name, array in zip(node.inputs[1:], lists, strict=True)):
        return {}
    told = [None if array is None else array.reshape(-1).tolist() for array in lists]
    try:
        if node.op == "Reshape" and not node.attributes.get("allowzero"):
            told = [[size or before.shape[axis] for axis, size in enumerate(told[0] or ())]]
        return {node.first_output: TensorType(before.dtype, _STEERED[node.op](before.shape, *told))}
    except (IndexError, TypeError, ValueError):  # the run will say so
        return {}


def _as_read(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Return the type of what a quantizer makes, if nobody knows its shape but that of what it reads."""
    made, shape = graph.types[node.first_output], graph.types[node.inputs[0]].shape
    unknown = made.shape is None and made.dtype is not DType.OTHER
    return {node.first_output: TensorType(made.dtype, shape)} if unknown and shape is not None else {}


def _counted(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Return the type of whole numbers in a row, if where they begin and end can be computed now."""
    kind = graph.types[node.inputs[0]].dtype
    numbers = [told_numbers(graph, name) for name in node.inputs]
    if kind is not DType.INT64 or any(number is None or number.size != 1 for number in numbers):
        return {}
    start, limit, step = (int(number.item()) for number in numbers if number is not None)
    return {node.first_output: TensorType(kind, (len(range(start, limit, step)),))} if step else {}


def _expanded(before: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
    return np.broadcast_shapes(before, tuple(sizes))


def _reshaped(before: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
    return np.broadcast_to(np.False_, before).reshape(sizes).shape


def _tiled(before: tuple[int, ...], counts: list[int]) -> tuple[int, ...]:
    return tuple(size * count for size, count in zip(before, counts, strict=True))


def _sliced(
    before: tuple[int, ...], starts: list[int], ends: list[int], axes: list[int] | None = None, steps: list[int] | None = None
) -> tuple[int, ...]:
    sizes = list(before)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = place if axes is None else axes[place]
        step = 1 if steps is None else steps[place]
        extent = before[axis]
        lowest, highest = (0, extent) if step > 0 else (-1, extent - 1)
        first = min(max(start + extent if start < 0 else start, 0), highest)
        last = min(max(end + extent if end < 0 else end, lowest), highest)
        sizes[axis] = len(range(first, last, step))
    return tuple(sizes)


_QUANTIZERS = frozenset({"DequantizeLinear", "QuantizeLinear"})

_STEERED: Mapping[str, Callable[..., tuple[int, ...]]] = {"Expand": _expanded, "Reshape": _reshaped, "Slice": _sliced, "Tile": _tiled}
"""What an operator makes of a shape, by the lists that are its further operands."""
