"""A decoder like Llama (Touvron et al., 2023) with the operators that onnxruntime's tools for language models write.

    input_ids [B, S], attention_mask [B, P + S]     the words of this step; 0 for padding behind a sequence
    past_key_values.N.key, .value [B, G, P, E]      keys and values of layer N so far; P may be 0, or have room for all that come
    logits [B, S, words]
    present.N.key, .value [B, G, T, E]              the same, and those of this step: T is P + S, or P where there is room

One operator per layer turns queries and keys by their places, attends and keeps the cache (`GroupQueryAttention`). It is told by the mask
how many words there are: by its sums, and by its shape the longest. Sums along the residual way are part of the norms. In 4 bits, products
have a scale for every `BLOCK` weights (`MatMulNBits`), and queries, keys and values are one product; in floats, three.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from bbgrap.graph.onnx_io import FreeAxes
from bbgrap.graph.types import Attribute, DType, Graph, Node, TensorType
from bbgrap.zoo.builder import Builder
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.decoder import free_axes as free_axes_of_decoder

TOTAL = "total_sequence_length"
"""The symbol of the axis of all words so far."""

MICROSOFT = "com.microsoft"
BLOCK = 32
"""Weights that share a scale, in 4 bits."""

_MLP_RATIO = 3
_EMBEDDING_DEVIATION = 0.02
_ANGLE_BASE = 10_000.0
_EPSILON = 1e-5
_VARIANCE_OF_4_BITS = (16**2 - 1) / 12
"""Of evenly distributed numbers from 0 to 15."""


def free_axes(graph: Graph) -> FreeAxes:
    """Return the symbols of inputs and outputs."""
    return free_axes_of_decoder(graph, TOTAL)


def llama(name: str, sizes: DecoderSizes, *, bits: int = 32, batch: int = 1, sequence: int = 1, past: int = 31) -> Graph:
    """Build a decoder whose types say these sizes; a file of it may leave them free (`free_axes`). `bits` are 32, or 4."""
    return _Llama(name, sizes, bits, (batch, sequence, past)).graph()


class _Llama:
    def __init__(self, name: str, sizes: DecoderSizes, bits: int, lengths: tuple[int, int, int]) -> None:
        self.b, self.sizes, self.bits = Builder(name), sizes, bits
        self.batch, self.sequence, self.past = lengths
        self.total = self.past + self.sequence

    def graph(self) -> Graph:
        b, sizes = self.b, self.sizes
        b.input("input_ids", (self.batch, self.sequence), DType.INT64)
        b.input("attention_mask", (self.batch, self.total), DType.INT64)
        layers = range(sizes.depth)
        for n in layers:
            for part in ("key", "value"):
                b.input(f"past_key_values.{n}.{part}", (self.batch, sizes.key_heads, self.past, sizes.head))
        words = b.drawn("words", (sizes.words, sizes.width), 2 / _EMBEDDING_DEVIATION**2)
        x = b.node("Gather", "embedding", [words, "input_ids"], (self.batch, self.sequence, sizes.width), {"axis": 0})
        lengths = self._lengths()
        norm: dict[str, Attribute] = {"axis": -1, "epsilon": _EPSILON, "stash_type": 1}
        y = b.node("SimplifiedLayerNormalization", "layer0.norm1", [x, self._scale("layer0.norm1")], b.shape(x), norm)
        for n in layers:
            x, y = self._joined(x, self._attention(y, n, lengths), f"layer{n}.norm2")
            last = n == sizes.depth - 1
            x, y = self._joined(x, self._mlp(y, f"layer{n}.mlp"), "norm" if last else f"layer{n + 1}.norm1", is_last=last)
        logits = self._product(y, "logits", sizes.words)
        return b.graph(logits, *(f"present.{n}.{part}" for n in layers for part in ("key", "value")))

    def _lengths(self) -> list[str]:
        """Add how many words each sequence has, less one, and how many the longest has."""
        b, integers = self.b, DType.INT64
        one, axis = b.weight("one", np.array([1], np.int64)), b.weight("mask.axis", np.array([1], np.int64))
        sums = b.node("ReduceSum", "mask.sums", ["attention_mask", axis], (self.batch, 1), {"keepdims": 1}, integers)
        less = b.node("Sub", "mask.last", [sums, one], (self.batch, 1), None, integers)
        shape = b.node("Shape", "mask.shape", ["attention_mask"], (2,), None, integers)
        longest = b.node("Gather", "mask.length", [shape, b.weight("second", np.array(1, np.int64))], (), {"axis": 0}, integers)
        to: dict[str, Attribute] = {"to": DType.INT32.value}
        kinds = ((less, "words.last", (self.batch, 1)), (longest, "words.total", ()))
        return [b.node("Cast", label, [value], made, to, DType.INT32) for value, label, made in kinds]

    def _attention(self, x: str, n: int, lengths: Sequence[str]) -> str:
        b, sizes, name = self.b, self.sizes, f"layer{n}.attention"
        widths = {"query": sizes.width, "key": sizes.key_heads * sizes.head, "value": sizes.key_heads * sizes.head}
        if self.bits == 32:
            rows = [self._product(x, f"{name}.{part}", width) for part, width in widths.items()]
        else:
            rows = [self._product(x, f"{name}.rows", sum(widths.values())), "", ""]
        turns = np.outer(np.arange(sizes.positions), _ANGLE_BASE ** -(np.arange(0, sizes.head, 2) / sizes.head))
        angles = [b.weight(label, made.astype(np.float32)) for label, made in (("cosines", np.cos(turns)), ("sines", np.sin(turns)))]
        caches = [f"past_key_values.{n}.{part}" for part in ("key", "value")]
        outputs = (f"{name}.mixed", *(f"present.{n}.{part}" for part in ("key", "value")))
        shapes = (b.shape(x), *[(self.batch, sizes.key_heads, self.total, sizes.head)] * 2)
        attributes: dict[str, Attribute] = {"num_heads": sizes.heads, "kv_num_heads": sizes.key_heads, "do_rotary": 1}
        attributes["scale"] = 1 / sqrt(sizes.head)
        operands = (*rows, *caches, *lengths, *angles)
        types = {output: TensorType(DType.FLOAT, shape) for output, shape in zip(outputs, shapes, strict=True)}
        b.append(Node(name, "GroupQueryAttention", operands, outputs, attributes, MICROSOFT), types)
        return self._product(outputs[0], f"{name}.output", sizes.width)

    def _mlp(self, x: str, name: str) -> str:
        b, width = self.b, self.sizes.width
        gate, up = (self._product(x, f"{name}.{part}", _MLP_RATIO * width) for part in ("gate", "up"))
        gate = b.binary("Mul", gate, b.act("Sigmoid", gate, f"{name}.sigmoid"), f"{name}.opened")
        return self._product(b.binary("Mul", gate, up, f"{name}.let"), f"{name}.down", width)

    def _joined(self, x: str, y: str, name: str, *, is_last: bool = False) -> tuple[str, str]:
        """Add the sum of two values, and its norm."""
        made = (name,) if is_last else (name, "", "", f"{name}.sum")
        types = {output: self.b.types[x] for output in made if output}
        inputs = (x, y, self._scale(name))
        self.b.append(Node(name, "SkipSimplifiedLayerNormalization", inputs, made, {"epsilon": _EPSILON}, MICROSOFT), types)
        return made[-1], name

    def _scale(self, name: str) -> str:
        return self.b.uniform(f"{name}.weight", self.sizes.width)

    def _product(self, x: str, name: str, features: int) -> str:
        b = self.b
        *leading, width = b.shape(x)
        if self.bits == 32:
            return b.node("MatMul", name, [x, b.drawn(f"{name}.weight", (width, features), 2 * width)], (*leading, features))
        blocks = width // BLOCK
        weight = b.any_bytes(f"{name}.weight", (features, blocks, BLOCK // 2))
        each = np.full(features * blocks, 1 / sqrt(width * _VARIANCE_OF_4_BITS), np.float32)
        attributes: dict[str, Attribute] = {"K": width, "N": features, "bits": self.bits, "block_size": BLOCK}
        inputs = [x, weight, b.weight(f"{name}.scales", each)]
        return b.node("MatMulNBits", name, inputs, (*leading, features), attributes, domain=MICROSOFT)
