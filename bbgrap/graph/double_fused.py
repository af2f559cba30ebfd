"""onnxruntime's fused operators of transformers in 64-bit floats, in numpy: there are no 64-bit kernels of them, and no reference ones.

What is here is what graphs have without caches of their own. Planners divide `Attention` in another form (`divided_attention`); what judges
them is written apart from it. Whoever asks compares the results with those of the 32-bit kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from bbgrap.graph.double_windows import Attributes
from bbgrap.graph.types import Array

Operands = Sequence[Array | None]

_MASKED = -10000.0
"""What is added to the score of a masked word, unless `mask_filter_value` says otherwise."""


def fused(kind: str, operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """Return the results of an operator of `com.microsoft` in the order of its outputs; the last ones may be missing.

    Raises:
        KeyError: if there is no such operator here.
        NotImplementedError: if it has operands that are not considered here.
    """
    return _DEFINITIONS[kind](operands, attributes)


def _attention(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """X [B, T, C] times [C, D + D + Dv] is queries, keys and values."""
    x, weight, bias, mask, past, scores = _first(operands, 6)
    if x is None or weight is None or past is not None or attributes.get("do_rotary"):
        raise NotImplementedError("Attention with a cache, or with rotary places")
    made = x @ weight + (0.0 if bias is None else bias)
    widths = attributes.get("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    q, k, v = np.split(made, list(accumulate(widths))[:2], axis=-1)
    return (_attend(q, k, v, mask, scores, attributes),)


def _multi_head_attention(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """Queries [B, T, D], keys [B, S, D] and values [B, S, Dv], each with its part of the bias [D + D + Dv]."""
    q, k, v, bias, mask, scores, *caches = _first(operands, 8)
    if q is None or k is None or v is None or k.ndim != 3 or any(cache is not None for cache in caches):
        raise NotImplementedError("MultiHeadAttention of packed operands, or with a cache")
    parts = [0.0] * 3 if bias is None else np.split(bias, list(accumulate((q.shape[-1], k.shape[-1]))))
    return (_attend(q + parts[0], k + parts[1], v + parts[2], mask, scores, attributes),)


def _attend(q: Array, k: Array, v: Array, mask: Array | None, scores: Array | None, attributes: Attributes) -> Array:
    """Return softmax(q k^T * scale + scores, masked) v, head by head, [B, T, Dv]; a mask is [B, S] or [B, T, S], 0 where nobody looks."""
    if mask is not None and (mask.ndim not in (2, 3) or mask.shape[-1] != k.shape[1]):
        raise NotImplementedError("a mask of lengths")
    heads = attributes["num_heads"]
    q, k, v = (part.reshape(*part.shape[:2], heads, -1).swapaxes(1, 2) for part in (q, k, v))
    found = q @ k.swapaxes(-1, -2) * (attributes.get("scale") or 1.0 / math.sqrt(q.shape[-1]))
    found = found + (0.0 if scores is None else scores)
    if mask is not None:
        masked = (1.0 - mask) * attributes.get("mask_filter_value", _MASKED)
        found = found + (masked[:, None, None] if mask.ndim == 2 else masked[:, None])
    if attributes.get("unidirectional"):
        words, seen = found.shape[-2:]
        found = np.where(np.tri(words, seen, seen - words, dtype=bool), found, -np.inf)
    shares = np.exp(found - found.max(axis=-1, keepdims=True))
    made = shares / shares.sum(axis=-1, keepdims=True) @ v
    return np.asarray(made.swapaxes(1, 2).reshape(made.shape[0], made.shape[2], -1))


def _embedding(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """Words, places and segments, added up and normalised; the number of words that the mask lets pass; the sum."""
    words, segments, word_table, place_table, segment_table, gamma, beta, mask, places = _first(operands, 9)
    if words is None or word_table is None or place_table is None or gamma is None or beta is None:
        raise NotImplementedError("EmbedLayerNormalization without a table")
    total = word_table[words] + place_table[np.arange(words.shape[1]) if places is None else places]
    total = total if segments is None or segment_table is None else total + segment_table[segments]
    counts = np.zeros(words.shape[0]) if mask is None else mask.sum(axis=-1)
    return _normalized(total, attributes)[0] * gamma + beta, counts.astype(np.int32), total


def _skip_norm(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """Two values and a bias, added up and normalised; what they were normalised by; the sum."""
    x, skip, gamma, beta, bias = _first(operands, 5)
    if x is None or skip is None or gamma is None:
        raise NotImplementedError("SkipLayerNormalization without operands")
    total = _sum((x, skip, bias))
    made, mean, inverse = _normalized(total, attributes)
    return made * gamma + (0.0 if beta is None else beta), mean, inverse, total


def _skip_simple_norm(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    """The same, but for the mean, which stays."""
    x, skip, gamma, bias = _first(operands, 4)
    if x is None or skip is None or gamma is None:
        raise NotImplementedError("SkipSimplifiedLayerNormalization without operands")
    total = _sum((x, skip, bias))
    inverse = _inverse_deviation(total, attributes)
    return total * inverse * gamma, np.zeros_like(inverse), inverse, total


def _normalized(total: Array, attributes: Attributes) -> tuple[Array, Array, Array]:
    """Return a value with mean 0 and variance 1 along its last axis, its mean, and the inverse of its deviation."""
    mean = total.mean(axis=-1, keepdims=True)
    inverse = _inverse_deviation(total - mean, attributes)
    return (total - mean) * inverse, mean, inverse


def _inverse_deviation(centred: Array, attributes: Attributes) -> Array:
    return np.asarray(1.0 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + attributes.get("epsilon", 1e-12)))


def _gelu(operands: Operands, _: Attributes) -> tuple[Array, ...]:
    x = _sum(operands)
    return (0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0))),)


def _fast_gelu(operands: Operands, _: Attributes) -> tuple[Array, ...]:
    x = _sum(operands)
    return (0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),)


def _quick_gelu(operands: Operands, attributes: Attributes) -> tuple[Array, ...]:
    x = _sum(operands)
    return (x / (1.0 + np.exp(-attributes.get("alpha", 1.702) * x)),)


def _sum(operands: Operands) -> Array:
    """Return a value and its bias added up."""
    return np.asarray(sum(operand for operand in operands if operand is not None))


def _first(operands: Operands, count: int) -> Operands:
    return [*operands, *[None] * count][:count]


_DEFINITIONS: Mapping[str, Callable[[Operands, Attributes], tuple[Array, ...]]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "EmbedLayerNormalization": _embedding,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_simple_norm,
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
}
