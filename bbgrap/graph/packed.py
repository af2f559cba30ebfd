"""Operators whose operands are packed are given them spread out: what is packed cannot be cut through, its parts can.

- Queries, keys and values that an attention reads in one are split.
- Scales and zero points of a product of few bits get a row for every column of the product: [N * blocks] becomes [N, blocks].
- Weights of less than a byte, which no numpy array holds, get one for each number where they are dequantized: the numbers are the same.
- So do numbers that are rounded to less than a byte, and cut off beyond the ends of that, where all who read them dequantize them.
- Tables of four bits that words are looked up in have two numbers in a byte.
- Weights of float8, which none holds either, are in float16, and become floats by a cast and a product: the numbers are the same, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import numpy as np

from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import Array, DType, Graph, Node

_PACKED = ("com.microsoft", "GroupQueryAttention")
_FEW_BITS = ("com.microsoft", "MatMulNBits")
_SCALES, _ZEROS = 2, 3
_IN_BYTES = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}
"""Of the types of `ml_dtypes` that have less than a byte, by name, those of numpy with the same numbers."""
_ENDS = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}
_OF_CODES: Mapping[object, str] = {21: "uint4", 22: "int4", 25: "uint2", 26: "int2"}
"""The same types by the codes that ONNX has for them."""
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
"""Of those, the ones all of whose numbers float16 has."""


def _unpack_queries(writer: Rewriter, node: Node) -> bool:
    """Slice what an attention reads as queries, keys and values in one, [batch, words, (H + 2 G) * E].

    Packed ones of unknown width stay; so does an attention inside the body of a control-flow node.
    """
    widths = _widths(writer.source, node) if writer.can_slice and (node.domain, node.op) == _PACKED else None
    if widths is None:
        return False
    packed, kind = node.inputs[0], writer.types[node.inputs[0]]
    parts = zip(("queries", "keys", "values"), widths, strict=True)
    names = tuple(writer.new(f"{packed}.{part} of {node.name}", kind.dtype, (*kind.known_shape[:-1], width)) for part, width in parts)
    writer.slices(f"unpack {node.name}", packed, 2, [0, *accumulate(widths)], names)
    writer.nodes.append(replace(node, inputs=(*names, *node.inputs[3:])))
    return True


def _widths(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return the elements of queries, keys and values in a packed operand; None if they are apart, or do not fill it."""
    shape = graph.types[node.inputs[0]].shape
    heads, groups = node.attributes.get("num_heads"), node.attributes.get("kv_num_heads")
    if any(node.inputs[1:3]) or shape is None or len(shape) != 3 or not isinstance(heads, int) or not isinstance(groups, int):
        return None
    size, rest = divmod(shape[2], heads + 2 * groups)
    return None if rest or not size else (heads * size, groups * size, groups * size)


def _scales_in_rows(writer: Rewriter, node: Node) -> bool:
    """Give the scales and zero points of a product of few bits, where they are weights and flat, a row for every column of the product."""
    columns, inputs, weights = node.attributes.get("N"), list(node.inputs), writer.source.weights
    if (node.domain, node.op) != _FEW_BITS or not isinstance(columns, int):
        return False
    for place in (_SCALES, _ZEROS):
        flat = weights.get(inputs[place]) if place < len(inputs) else None
        if flat is not None and len(flat.type.known_shape) == 1 and not flat.type.known_shape[0] % columns:
            how = f"in {columns} rows"
            inputs[place] = writer.derived(flat.name, how, lambda array: array.reshape(columns, -1), flat.type.dtype)
    writer.nodes.append(replace(node, inputs=tuple(inputs)) if inputs != list(node.inputs) else node)
    return True


def _few_bits_in_bytes(writer: Rewriter, node: Node) -> bool:
    """Let a dequantizer of weights of less than a byte read bytes; its zero points are of the same type."""
    narrow = {name for name in (*node.inputs[:1], *node.inputs[2:]) if name} if node.op == "DequantizeLinear" else set[str]()
    if not narrow or any(_kind_of(writer.source, name) not in _IN_BYTES for name in narrow):
        return False
    writer.nodes.append(replace(node, inputs=tuple(_wide(writer, name) if name in narrow else name for name in node.inputs)))
    return True


def _table_in_bytes(writer: Rewriter, node: Node) -> bool:
    """Let a lookup in rows of four bits read bytes of two numbers each, as onnxruntime also takes them: counted from 8 if nothing is said.

    Numbers without a sign are counted from 0 then, so they stay.
    """
    packed, weights = {name for name in (*node.inputs[:1], *node.inputs[3:]) if name}, writer.source.weights
    kinds = {_kind_of(writer.source, name) for name in packed} if node.op == "GatherBlockQuantized" else set()
    if kinds != {"int4"} and (kinds != {"uint4"} or len(packed) != 2):
        return False
    shape = weights[node.inputs[0]].type.known_shape
    if shape[-1] % 2 or node.attributes.get("gather_axis", 0) or node.attributes.get("quantize_axis", 1) not in {-1, len(shape) - 1}:
        return False
    inputs = tuple(_in_twos(writer, name) if name in packed else name for name in node.inputs)
    writer.nodes.append(replace(node, inputs=inputs, attributes={**node.attributes, "bits": 4}))
    return True


def _in_twos(writer: Rewriter, name: str) -> str:
    """Return the name of a weight's numbers of four bits in bytes of two, the first in the lower half; signed ones from 0 on."""

    def pack(array: Array) -> Array:
        numbers = (array.astype(np.int8) + 8 * (array.dtype.name == "int4")).astype(np.uint8)
        even = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, numbers.shape[-1] % 2)])
        packed: Array = even[..., ::2] | even[..., 1::2] << 4
        return packed

    return writer.derived(name, "in bytes of two", pack, DType.UINT8)


def _rounded_in_bytes(writer: Rewriter, node: Node) -> bool:
    """Let a quantizer to less than a byte make bytes, which are cut off as its own would be, if only dequantizers read these."""
    kind = _rounded_to(writer.source, node)
    if kind is not None:
        writer.instead[node.first_output] = _cut_off(writer, node, kind)
        return True
    if node.op != "DequantizeLinear" or node.inputs[0] not in writer.instead:
        return False
    zeros = [_wide(writer, name) for name in node.inputs[2:]]
    writer.nodes.append(replace(node, inputs=(writer.instead[node.inputs[0]], node.inputs[1], *zeros)))
    return True


def _rounded_to(graph: Graph, node: Node) -> str | None:
    """Return the name of the type of less than a byte that a quantizer makes for dequantizers alone; None if it does not."""
    if node.op != "QuantizeLinear" or graph.types[node.inputs[0]].shape is None or node.first_output in graph.outputs:
        return None
    kind = _kind_of(graph, node.inputs[2]) if node.inputs[2:] else _OF_CODES.get(node.attributes.get("output_dtype", 0), "")
    alone = all(
        reader.op == "DequantizeLinear" and all(name in graph.weights for name in reader.inputs[2:])
        for reader in graph.consumers.get(node.first_output, ())
    )
    return kind if kind in _IN_BYTES and alone else None


def _cut_off(writer: Rewriter, node: Node, kind: str) -> str:
    """Write a quantizer that makes bytes, and return what is left of these between the ends of a smaller type."""
    wide = np.dtype(_IN_BYTES[kind])
    code = DType.INT8 if wide == np.int8 else DType.UINT8
    inputs = (*node.inputs[:2], *(_wide(writer, name) for name in node.inputs[2:]))
    attributes = {**node.attributes, **({"output_dtype": code.value} if node.attributes.get("output_dtype") else {})}
    shape, q = writer.shape(node.inputs[0]), node.first_output
    rounded = writer.made(f"{q} rounded", "QuantizeLinear", inputs, attributes, dtype=code, shape=shape, domain=node.domain)
    low, high = (writer.constant(f"{q} from {end}", np.array(end, wide)) for end in _ENDS[kind])
    return writer.made(f"{q} in bytes", "Clip", (rounded, low, high))


def _wide(writer: Rewriter, name: str) -> str:
    """Return the name of a weight's numbers in bytes."""
    return writer.derived(name, "in bytes", lambda array: array.astype(_IN_BYTES[array.dtype.name]))


def _float8_in_float16(writer: Rewriter, node: Node) -> bool:
    """Let a cast and a product stand for a dequantizer of weights of float8, of a tensor or of channels, whose zero points are zeros."""
    scales = _scales_of_float8(writer.source, node)
    if scales is None:
        return False
    stored = writer.derived(node.inputs[0], "in float16", lambda array: array.astype(np.float16))
    cast = writer.made(f"{node.name}.cast", "Cast", (stored,), {"to": DType.FLOAT.value}, dtype=DType.FLOAT)
    factors = writer.constant(f"{node.name}.scales", scales)
    writer.nodes.append(Node(node.name, "Mul", (cast, factors), node.outputs))
    return True


def _scales_of_float8(graph: Graph, node: Node) -> Array | None:
    """Return what a weight of float8 is multiplied by, as it is broadcast; None if that is something else."""
    if node.op != "DequantizeLinear" or _kind_of(graph, node.inputs[0]) not in _FLOAT8:
        return None
    array, scales = graph.weights[node.inputs[0]].array, graph.weights.get(node.inputs[1])
    is_plain = not node.attributes.get("block_size") and all(_is_zero(graph, name) for name in node.inputs[2:] if name)
    if scales is None or scales.array.dtype != np.float32 or not is_plain or graph.types[node.first_output].dtype is not DType.FLOAT:
        return None
    if scales.array.size == 1:
        return scales.array.reshape(())
    axis = node.attributes.get("axis", 1)
    if not isinstance(axis, int) or scales.array.shape != (array.shape[axis],):
        return None
    return scales.array.reshape([-1 if number == axis % array.ndim else 1 for number in range(array.ndim)])


def _is_zero(graph: Graph, name: str) -> bool:
    return name in graph.weights and not graph.weights[name].array.astype(np.float32).any()


def _kind_of(graph: Graph, name: str) -> str:
    """Return the name of the type of a weight's numbers; empty for what is no weight."""
    return graph.weights[name].array.dtype.name if name in graph.weights else ""


PACKED = (_unpack_queries, _scales_in_rows, _rounded_in_bytes, _few_bits_in_bytes, _table_in_bytes, _float8_in_float16)
"""Rules for a `Rewriter`."""
