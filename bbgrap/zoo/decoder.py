"""A decoder like GPT-2 (Radford et al., 2019) with its cache as inputs and outputs, named as the usual exporters name them.

    input_ids [B, S], position_ids [B, S]           the words of this step and where they stand
    attention_mask [B, P + S]                       0 for what is padding among past and present words
    past_key_values.N.key, .value [B, G, P, E]      keys and values of layer N so far; P may be 0
    logits [B, S, words]
    present.N.key, .value [B, G, P + S, E]          the same, and those of this step

B is the batch, S the words of this step, P those before, G the key heads, E the size of a head. With fewer key heads than query heads
(grouped queries, Ainslie et al., arXiv:2305.13245) every key head serves as many query heads in a row. The last product shares its weight
with the embedding, as GPT-2 does. Unlike it, queries, keys and values are products of their own, so that a cut through heads is a range of
each. Nothing in the network depends on sizes of B, S and P: what must follow them is computed from shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, prod, sqrt

import numpy as np

from bbgrap.graph.onnx_io import FreeAxes
from bbgrap.graph.types import DType, Graph
from bbgrap.zoo.builder import Builder

BATCH, SEQUENCE, PAST = "batch_size", "sequence_length", "past_sequence_length"
TOTAL = f"{PAST} + {SEQUENCE}"
"""The symbols of free axes, as the usual exporters call them."""

_MLP_RATIO = 4
_EMBEDDING_DEVIATION = 0.02
"""GPT-2's own: the sums of the layers are larger by far, or the most likely word would always be the last one."""

_UNLIKELY = float(np.finfo(np.float32).min)
"""Added to the scores of what is not attended to; finite, so that a row of nothing but padding has no NaN."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """What a decoder is made of.

    Invariants: `width` is a multiple of `heads`, and `heads` of `key_heads`; `positions` is the longest sequence.
    """

    depth: int
    width: int
    heads: int
    key_heads: int
    words: int
    positions: int

    @property
    def head(self) -> int:
        """The size of a head."""
        return self.width // self.heads


def free_axes(graph: Graph, total: str = TOTAL) -> FreeAxes:
    """Return the symbols of a decoder's inputs and outputs; `total` is that of all words so far."""
    found = {name: {0: BATCH, 1: SEQUENCE} for name in ("input_ids", "position_ids", "logits")} | {"attention_mask": {0: BATCH, 1: total}}
    caches = {name: PAST if name in graph.inputs else total for name in (*graph.inputs, *graph.outputs) if name not in found}
    return found | {name: {0: BATCH, 2: length} for name, length in caches.items()}


def decoder(name: str, sizes: DecoderSizes, *, batch: int = 1, sequence: int = 1, past: int = 31) -> Graph:
    """Build a decoder whose types say these sizes; a file of it may leave them free (`free_axes`)."""
    b = Builder(name)
    for label, length in (("input_ids", sequence), ("attention_mask", past + sequence), ("position_ids", sequence)):
        b.input(label, (batch, length), DType.INT64)
    layers = range(sizes.depth)
    for n in layers:
        for part in ("key", "value"):
            b.input(f"past_key_values.{n}.{part}", (batch, sizes.key_heads, past, sizes.head))
    words = b.drawn("words", (sizes.words, sizes.width), 2 / _EMBEDDING_DEVIATION**2)
    places = b.drawn("positions", (sizes.positions, sizes.width), 2 / _EMBEDDING_DEVIATION**2)
    shape = (batch, sequence, sizes.width)
    x = b.node("Gather", "words.gathered", [words, "input_ids"], shape, {"axis": 0})
    y = b.node("Gather", "positions.gathered", [places, "position_ids"], shape, {"axis": 0})
    x = b.binary("Add", x, y, "embedding")
    mask = _mask(b, grouped=sizes.key_heads < sizes.heads)
    for n in layers:
        y = _attention(b, b.layer_norm(x, f"layer{n}.norm1", 1e-5), n, sizes, mask)
        x = b.binary("Add", x, y, f"layer{n}.add1")
        x = b.binary("Add", x, _mlp(b, b.layer_norm(x, f"layer{n}.norm2", 1e-5), f"layer{n}.mlp"), f"layer{n}.add2")
    x = b.layer_norm(x, "norm", 1e-5)
    rows = b.weight("logits.rows", np.array([-1, sizes.width], np.int64))
    x = b.node("Reshape", "norm.rows", [x, rows], (batch * sequence, sizes.width))
    x = b.node("Gemm", "logits.flat", [x, words], (batch * sequence, sizes.words), {"transB": 1})
    ends = [b.node("Shape", f"{axis}.size", ["input_ids"], (1,), {"start": k, "end": k + 1}, DType.INT64) for k, axis in enumerate("bs")]
    split = b.node(
        "Concat", "logits.shape", [*ends, b.weight("words.count", np.array([sizes.words], np.int64))], (3,), {"axis": 0}, DType.INT64
    )
    logits = b.node("Reshape", "logits", [x, split], (batch, sequence, sizes.words))
    return b.graph(logits, *(f"present.{n}.{part}" for n in layers for part in ("key", "value")))


def _mask(b: Builder, *, grouped: bool) -> str:
    """Add what is added to scores, [B, 1, S, P + S] (grouped with an axis more): 0 where a word may attend to another, else very small.

    A word attends to itself and to those before it that are no padding. Rows are counted in the cache, not by `position_ids`: with
    padding in front of a shorter sequence of the batch these differ.
    """
    batch, total = b.shape("attention_mask")
    past = b.shape("past_key_values.0.key")[2]

    def scalar(name: str, source: str, axis: int) -> str:
        size = b.node("Shape", f"{name}.size", [source], (1,), {"start": axis, "end": axis + 1}, DType.INT64)
        return b.node("Squeeze", f"{name}.length", [size], (), None, DType.INT64)

    def unsqueezed(x: str, name: str, *axes: int) -> str:
        kind, shape = b.types[x].dtype, list(b.shape(x))
        for axis in axes:
            shape.insert(axis, 1)
        return b.node("Unsqueeze", name, [x, b.weight(f"{name}.axes", np.array(axes, np.int64))], tuple(shape), None, kind)

    first, last = scalar("past", "past_key_values.0.key", 2), scalar("total", "attention_mask", 1)
    one, zero = (b.weight(label, np.array(value, np.int64)) for label, value in (("one", 1), ("zero", 0)))
    rows = unsqueezed(b.node("Range", "rows.numbers", [first, last, one], (total - past,), None, DType.INT64), "rows", 1)
    columns = b.node("Range", "columns", [zero, last, one], (total,), None, DType.INT64)
    before = b.node("LessOrEqual", "mask.causal", [columns, rows], (total - past, total), None, DType.BOOL)
    words = b.node("Cast", "mask.words", ["attention_mask"], (batch, total), {"to": DType.BOOL.value}, DType.BOOL)
    words = unsqueezed(words, "mask.wide", 1, 2, *((3,) if grouped else ()))
    shape = (batch, 1, *((1,) if grouped else ()), total - past, total)
    both = b.node("And", "mask.both", [before, words], shape, None, DType.BOOL)
    levels = [b.weight(label, np.array(value, np.float32)) for label, value in (("likely", 0), ("unlikely", _UNLIKELY))]
    return b.node("Where", "mask", [both, *levels], shape)


def _attention(b: Builder, x: str, n: int, sizes: DecoderSizes, mask: str) -> str:
    batch, sequence, width = b.shape(x)
    name, size, groups = f"layer{n}.attention", sizes.head, sizes.key_heads
    total, per = b.shape(mask)[-1], sizes.heads // groups
    inner = () if per == 1 else (per,)  # grouped, queries have an axis more, along which keys and values are read again
    axes = len(inner) + 4

    def of_heads(part: str, heads: tuple[int, ...]) -> str:
        split = b.weight(f"heads.{'x'.join(map(str, heads))}", np.array([0, 0, *heads, size], np.int64))
        y = b.linear(x, f"{name}.{part}", prod(heads) * size)
        y = b.node("Reshape", f"{name}.{part}.split", [y, split], (batch, sequence, *heads, size))
        order = (0, *range(2, len(heads) + 2), 1, len(heads) + 2)
        return b.transpose(y, f"{name}.{part}.heads", order)

    def with_past(part: str) -> str:
        y = of_heads(part, (groups,))
        y = b.concat([f"past_key_values.{n}.{part}", y], f"present.{n}.{part}", axis=2)
        if not inner:
            return y
        axis = b.weight("groups.axis", np.array([2], np.int64))
        return b.node("Unsqueeze", f"{name}.{part}.grouped", [y, axis], (batch, groups, 1, total, size))

    query = b.scalar("Mul", of_heads("query", (groups, *inner)), f"{name}.query.scaled", 1 / sqrt(size))
    keys = b.transpose(with_past("key"), f"{name}.keys", (*range(axes - 2), axes - 1, axes - 2))
    scores = b.node("MatMul", f"{name}.scores", [query, keys], (batch, groups, *inner, sequence, total))
    y = b.binary("Add", scores, mask, f"{name}.masked")
    y = b.node("Softmax", f"{name}.weights", [y], b.shape(y), {"axis": -1})
    y = b.node("MatMul", f"{name}.mixed", [y, with_past("value")], (batch, groups, *inner, sequence, size))
    y = b.transpose(y, f"{name}.merge", (0, axes - 2, *range(1, axes - 2), axes - 1))
    merged = b.weight("attention.merged.shape", np.array([0, 0, width], np.int64))
    y = b.node("Reshape", f"{name}.merged", [y, merged], (batch, sequence, width))
    return b.linear(y, f"{name}.output", width)


def _mlp(b: Builder, x: str, name: str) -> str:
    """Add the two products with GPT-2's form of Gelu between them: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""
    width = b.shape(x)[-1]
    x = b.linear(x, f"{name}.up", _MLP_RATIO * width)
    y = b.scalar("Mul", b.scalar("Pow", x, f"{name}.cube", 3), f"{name}.bent", 0.044715)
    y = b.scalar("Mul", b.binary("Add", x, y, f"{name}.sum"), f"{name}.scaled", sqrt(2 / pi))
    y = b.scalar("Add", b.act("Tanh", y, f"{name}.tanh"), f"{name}.shifted", 1)
    y = b.binary("Mul", b.scalar("Mul", x, f"{name}.halved", 0.5), y, f"{name}.gelu")
    return b.linear(y, f"{name}.down", width)
