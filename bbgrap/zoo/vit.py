"""Vision Transformer, as exporters write it: Gelu and attention in elementary operators. Dosovitskiy et al., arXiv:2010.11929."""

from __future__ import annotations

from math import sqrt

import numpy as np

from bbgrap.graph.types import DType, Graph
from bbgrap.zoo.builder import Builder

_MLP_RATIO = 4


def vit(name: str, *, depth: int, width: int, heads: int, size: int, patch: int, classes: int) -> Graph:
    """Build a classifier of `depth` layers on patches of `patch` pixels square; `width` is a multiple of `heads`."""
    b = Builder(name, (1, 3, size, size))
    x = _embedding(b, width, patch)
    for layer in range(depth):
        x = b.binary(
            "Add", x, _attention(b, b.layer_norm(x, f"layer{layer}.norm1"), f"layer{layer}.attention", heads), f"layer{layer}.add1"
        )
        x = b.binary("Add", x, _mlp(b, b.layer_norm(x, f"layer{layer}.norm2"), f"layer{layer}.mlp"), f"layer{layer}.add2")
    x = b.layer_norm(x, "norm")
    x = b.node("Gather", "first", [x, b.weight("first.index", np.array(0, np.int64))], (1, width), {"axis": 1})
    return b.graph(b.dense(x, "output", classes))


def _embedding(b: Builder, width: int, patch: int) -> str:
    """Add one token per patch, a class token before them, and their positions."""
    x = b.conv("input", "patches", width, patch, stride=patch, pad=0, bias=True)
    count = b.shape(x)[2] * b.shape(x)[3]
    x = b.transpose(b.reshape(x, "patches.flat", (width, count)), "tokens", (0, 2, 1))
    batch = b.node("Shape", "batch", [x], (1,), {"start": 0, "end": 1}, DType.INT64)
    rest = b.weight("class_token.rest", np.array([1, width], np.int64))
    shape = b.node("Concat", "class_token.shape", [batch, rest], (3,), {"axis": 0}, DType.INT64)
    token = b.node("Expand", "class_token.all", [b.normal("class_token", (1, 1, width)), shape], (1, 1, width))
    x = b.concat([token, x], "sequence", axis=1)
    return b.binary("Add", x, b.normal("positions", (1, count + 1, width)), "embedding")


def _attention(b: Builder, x: str, name: str, heads: int) -> str:
    count, width = b.shape(x)[1:]
    size = width // heads

    def of_heads(part: str, order: tuple[int, ...]) -> str:
        split = b.reshape(b.linear(x, f"{name}.{part}", width), f"{name}.{part}.split", (count, heads, size))
        return b.transpose(split, f"{name}.{part}.heads", order)

    query, key, value = of_heads("query", (0, 2, 1, 3)), of_heads("key", (0, 2, 3, 1)), of_heads("value", (0, 2, 1, 3))
    scores = b.node("MatMul", f"{name}.scores", [query, key], (1, heads, count, count))
    y = b.scalar("Div", scores, f"{name}.scaled", sqrt(size))
    y = b.node("Softmax", f"{name}.weights", [y], b.shape(y), {"axis": -1})
    y = b.node("MatMul", f"{name}.mixed", [y, value], (1, heads, count, size))
    y = b.reshape(b.transpose(y, f"{name}.merge", (0, 2, 1, 3)), f"{name}.merged", (count, width))
    return b.linear(y, f"{name}.output", width)


def _mlp(b: Builder, x: str, name: str) -> str:
    width = b.shape(x)[-1]
    x = b.linear(x, f"{name}.up", _MLP_RATIO * width)
    y = b.act("Erf", b.scalar("Div", x, f"{name}.halved", sqrt(2)), f"{name}.erf")
    y = b.binary("Mul", x, b.scalar("Add", y, f"{name}.shifted", 1), f"{name}.product")
    return b.linear(b.scalar("Mul", y, f"{name}.gelu", 0.5), f"{name}.down", width)
