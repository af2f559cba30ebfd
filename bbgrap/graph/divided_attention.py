"""Attention that computes its queries, keys and values itself, as onnxruntime fuses it, in a second form: cut by heads and by words.

    Attention, QAttention      read their packed weights [features, queries | keys | values] whole

    MatMul and Add, or         queries, keys and values in a row, by the same weights
    MatMulIntegerToFloat
    Slice                      each of the three
    MultiHeadAttention         of them, and of keys and values of earlier words, which lie in one tensor

It takes some hundredths longer in one place, so a machine that has the whole model keeps the first form. With a mask or earlier words, or
where words see no later ones, the bits are the same. Without, onnxruntime (1.31) sums in another order, so the caller says which nodes
must keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate

from bbgrap.graph.rewriting import Rewriter, trimmed
from bbgrap.graph.types import DType, Graph, Node

_MICROSOFT = "com.microsoft"
_KEPT_ATTRIBUTES = frozenset({"num_heads", "unidirectional", "scale", "mask_filter_value"})
_DROPPED_ATTRIBUTES = frozenset({"qkv_hidden_sizes", "do_rotary", "rotary_embedding_dim", "past_present_share_buffer"})

_Operands = dict[str, str]
"""What an attention reads, by the names of the standard of onnxruntime."""
_ORDER = {
    "Attention": ("input", "weights", "bias", "mask", "past", "attention_bias", "past_length"),
    "QAttention": ("input", "weights", "bias", "scale", "weights_scale", "mask", "zero", "weights_zero", "past"),
}
_QUANTIZED = ("input", "weights", "scale", "weights_scale", "zero", "weights_zero", "bias")
"""What `MatMulIntegerToFloat` reads, in its order."""


def with_attention_apart(graph: Graph, kept: Collection[str]) -> Graph:
    """Return a graph with such attention in the second form, but for nodes that are `kept` and would get other bits; or the same graph."""

    def write(writer: Rewriter, node: Node) -> bool:
        form = _fused_at(graph, node) if writer.can_slice else None
        if form is None or (node.name in kept and not form.keeps_bits):
            return False
        form.write(writer)
        return True

    return Rewriter(graph).run(write)


@dataclass(frozen=True, slots=True)
class _Fused:
    """An attention over [batch, words, features] whose queries, keys and values have so many elements."""

    node: Node
    operands: _Operands
    widths: tuple[int, ...]

    @property
    def keeps_bits(self) -> bool:
        """Whether both forms answer with the same bits."""
        return bool(self.operands.keys() & {"mask", "past"}) or bool(self.node.attributes.get("unidirectional", 0))

    def write(self, writer: Rewriter) -> None:
        """Write its second form."""
        shape = writer.shape(self.operands["input"])[:-1]
        row, moving = self._in_a_row(writer, (*shape, sum(self.widths))), writer.moves(self.operands["input"])
        parts = zip(("queries", "keys", "values"), self.widths, strict=True)
        names = tuple(writer.new(f"{self.node.name}.{part}", DType.FLOAT, (*shape, width), moving) for part, width in parts)
        attributes = {name: value for name, value in self.node.attributes.items() if name in _KEPT_ATTRIBUTES}
        further = (self.operands.get(name, "") for name in ("", "mask", "attention_bias"))
        writer.slices(f"{row}.parts", row, 2, [0, *accumulate(self.widths)], names)
        inputs, outputs = trimmed((*names, *further, *self._past(writer))), self.node.outputs[:1]
        present = self.node.outputs[1:]
        if present:
            kind, moving = writer.shape(present[0])[1:], frozenset(axis - 1 for axis in writer.moves(present[0]))
            outputs += tuple(writer.new(f"{present[0]}.{part}", DType.FLOAT, kind, moving) for part in ("keys", "values"))
        writer.nodes.append(replace(self.node, op="MultiHeadAttention", inputs=inputs, outputs=outputs, attributes=attributes))
        if present:
            self._join(writer, outputs[1:], present)

    def _past(self, writer: Rewriter) -> tuple[str, ...]:
        """Write what takes keys and values of the words so far apart, if there are any; return them."""
        past = self.operands.get("past")
        if past is None:
            return ()
        shape, moving = (1, *writer.shape(past)[1:]), writer.moves(past)
        names = tuple(writer.new(f"{self.node.name}.past.{part}", DType.FLOAT, shape, moving) for part in ("keys", "values"))
        writer.slices(f"{self.node.name}.past", past, 0, (0, 1, 2), names)
        first, less = writer.integers(f"{self.node.name}.first", (0,)), frozenset(axis - 1 for axis in moving)
        return tuple(writer.made(f"{name}.alone", "Squeeze", (name, first), shape=shape[1:], moving=less) for name in names)

    def _join(self, writer: Rewriter, parts: tuple[str, ...], present: tuple[str, ...]) -> None:
        """Write what puts keys and values of all words into one."""
        first, moving = writer.integers(f"{self.node.name}.before", (0,)), writer.moves(present[0])
        shape = (1, *writer.shape(parts[0]))
        rows = tuple(writer.made(f"{part}.row", "Unsqueeze", (part, first), shape=shape, moving=moving) for part in parts)
        writer.nodes.append(Node(writer.name(f"{self.node.name}.present"), "Concat", rows, present, {"axis": 0}))

    def _in_a_row(self, writer: Rewriter, shape: tuple[int, ...]) -> str:
        """Write what makes queries, keys and values, in a row; return that."""
        row, moving = f"{self.node.name}.row", writer.moves(self.operands["input"])
        if self.node.op == "QAttention":
            operands = trimmed(self.operands.get(name, "") for name in _QUANTIZED)
            name = writer.new(row, DType.FLOAT, shape, moving)
            writer.nodes.append(Node(name, "MatMulIntegerToFloat", operands, (name,), {}, _MICROSOFT))
            return name
        factors = (self.operands["input"], self.operands["weights"])
        product = writer.made(f"{self.node.name}.product", "MatMul", factors, shape=shape, moving=moving)
        return writer.made(row, "Add", (product, self.operands["bias"]))


def _fused_at(graph: Graph, node: Node) -> _Fused | None:
    """Return the attention that a node is; None for other nodes, and where the second form has no like.

    That is: with a past in a buffer, rotated positions, or masks that are begins and ends, or those of pictures. Without a bias
    onnxruntime ends the process.
    """
    if node.domain != _MICROSOFT or node.op not in _ORDER or node.attributes.get("do_rotary", 0):
        return None
    operands = {name: given for name, given in zip(_ORDER[node.op], node.inputs, strict=False) if given}
    if "past_length" in operands or "bias" not in operands or node.attributes.keys() - _KEPT_ATTRIBUTES - _DROPPED_ATTRIBUTES:
        return None
    made, shape, weights = (graph.types[name] for name in (node.first_output, operands["input"], operands["weights"]))
    if made.dtype is not DType.FLOAT or shape.shape is None or len(shape.shape) != 3 or weights.shape is None:
        return None
    mask = graph.types[operands["mask"]].shape or () if "mask" in operands else None
    if mask is not None and not (len(mask) in {2, 3} or mask == shape.shape[:1]):
        return None
    if ("past" in operands) != (len(node.outputs) == 2) or (node.outputs[1:] and len(mask or ()) == 1):
        return None
    said = node.attributes.get("qkv_hidden_sizes")
    widths = tuple(width for width in said if isinstance(width, int)) if isinstance(said, tuple) else (weights.shape[-1] // 3,) * 3
    return _Fused(node, operands, widths) if sum(widths) == weights.shape[-1] else None
