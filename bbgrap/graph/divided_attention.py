"""Attention that computes its queries, keys and values itself, as onnxruntime fuses it, in a second form: cut by heads and by words.

    Attention, QAttention      read their packed weights [features, queries | keys | values] whole

    MatMul and Add, or         queries, keys and values in a row, by the same weights
    MatMulIntegerToFloat
    Slice                      each of the three
    MultiHeadAttention         of them

It takes some hundredths longer in one place, so a machine that has the whole model keeps the first form. With a mask, or where words see no
later ones, the bits are the same. Without, onnxruntime (1.31) sums in another order, so the caller says which nodes must keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from bbgrap.graph.lower import split_to_slices, trimmed, unique_name
from bbgrap.graph.types import DType, Graph, Node, TensorType

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
    forms = {node.name: form for node in graph.nodes if (form := _fused_at(graph, node)) and (form.keeps_bits or node.name not in kept)}
    if not forms:
        return graph
    nodes = tuple(part for node in graph.nodes for part in (forms[node.name].apart() if node.name in forms else (node,)))
    types, moving = dict(graph.types), dict(graph.moving)
    for form in forms.values():
        types |= form.types
        moving |= dict.fromkeys(form.types, graph.moving.get(form.operands["input"], frozenset()))
    moving = {name: axes for name, axes in moving.items() if axes}
    return split_to_slices(replace(graph, nodes=nodes, types=types, moving=moving))


@dataclass(frozen=True, slots=True)
class _Fused:
    """An attention over [batch, words, features] whose queries, keys and values have so many elements."""

    graph: Graph
    node: Node
    operands: _Operands
    widths: tuple[int, ...]
    types: dict[str, TensorType] = field(default_factory=dict)
    """Of the values between the nodes of its second form."""

    @property
    def keeps_bits(self) -> bool:
        """Whether both forms answer with the same bits."""
        return "mask" in self.operands or bool(self.node.attributes.get("unidirectional", 0))

    def apart(self) -> tuple[Node, ...]:
        """Return its second form."""
        *products, row = self._in_a_row()
        names = tuple(self._value(part, width) for part, width in zip(("queries", "keys", "values"), self.widths, strict=True))
        attributes = {name: value for name, value in self.node.attributes.items() if name in _KEPT_ATTRIBUTES}
        further = (self.operands.get(name, "") for name in ("", "mask", "attention_bias"))
        return (
            *products,
            row,
            Node(f"{row.name}.parts", "Split", row.outputs, names, {"axis": 2}),
            replace(self.node, op="MultiHeadAttention", inputs=trimmed((*names, *further)), attributes=attributes),
        )

    def _in_a_row(self) -> tuple[Node, ...]:
        """Return the nodes of which the last one makes queries, keys and values."""
        row = self._value("row", sum(self.widths))
        if self.node.op == "QAttention":
            operands = trimmed(self.operands.get(name, "") for name in _QUANTIZED)
            return (Node(row, "MatMulIntegerToFloat", operands, (row,), {}, _MICROSOFT),)
        product = self._value("product", sum(self.widths))
        return (
            Node(product, "MatMul", (self.operands["input"], self.operands["weights"]), (product,)),
            Node(row, "Add", (product, self.operands["bias"]), (row,)),
        )

    def _value(self, wanted: str, width: int) -> str:
        name = unique_name(f"{self.node.name}.{wanted}", self.graph.types, self.graph.node_by_name)
        shape = self.graph.types[self.operands["input"]].known_shape
        self.types[name] = TensorType(DType.FLOAT, (*shape[:-1], width))
        return name


def _fused_at(graph: Graph, node: Node) -> _Fused | None:
    """Return the attention that a node is; None for other nodes, and where the second form has no like.

    That is: with a past, rotated positions, or masks that are begins and ends, or those of pictures. Without a bias onnxruntime ends
    the process.
    """
    if node.domain != _MICROSOFT or node.op not in _ORDER or node.outputs[1:] or node.attributes.get("do_rotary", 0):
        return None
    operands = {name: given for name, given in zip(_ORDER[node.op], node.inputs, strict=False) if given}
    if (
        operands.keys() & {"past", "past_length"}
        or "bias" not in operands
        or node.attributes.keys() - _KEPT_ATTRIBUTES - _DROPPED_ATTRIBUTES
    ):
        return None
    made, shape, weights = (graph.types[name] for name in (node.first_output, operands["input"], operands["weights"]))
    if made.dtype is not DType.FLOAT or shape.shape is None or len(shape.shape) != 3 or weights.shape is None:
        return None
    mask = graph.types[operands["mask"]].shape or () if "mask" in operands else None
    if mask is not None and not (len(mask) in {2, 3} or mask == shape.shape[:1]):
        return None
    said = node.attributes.get("qkv_hidden_sizes")
    widths = tuple(width for width in said if isinstance(width, int)) if isinstance(said, tuple) else (weights.shape[-1] // 3,) * 3
    return _Fused(graph, node, operands, widths) if sum(widths) == weights.shape[-1] else None
