"""Weights of products that are subnormal, below 1.2e-38: training leaves them in channels that it has given up.

Processors take some hundred cycles for each product with one, where a product takes half of one: a text detector that people use has
63 % such weights in one layer, and ran three times as fast without. Law: each product changes by less than 1.2e-38 of the other factor, so
an answer keeps its bits unless all that is added up in an element is that small, or the other factor is huge or infinite. A weight that
something else reads, too, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from bbgrap.graph.onnx_read import OnnxModel
from bbgrap.graph.onnx_tidy import reads_of
from bbgrap.graph.types import Array

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_EXPONENT, _MAGNITUDE = np.uint32(0x7F80_0000), np.uint32(0x7FFF_FFFF)
"""The bits of a float32 that are its exponent, and all but its sign."""
_CHUNK = 1 << 16
"""So many numbers are looked at at a time: they fit into caches."""


def without_subnormal_weights(model: OnnxModel) -> OnnxModel:
    """Return a model with `flushed_weights`."""
    return replace(model, weights=flushed_weights(model.proto.graph, model.weights))


def flushed_weights(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return weights with 0 for each subnormal number in float32 ones that only products read, or sums right behind a product."""
    made = {name: _flushed(weights[name]) for name in _factors(graph) & weights.keys()}
    return {**weights, **{name: array for name, array in made.items() if array is not None}}


def _factors(graph: onnx.GraphProto) -> set[str]:
    """Return the names of values that are factors of products, or added right behind one, and nothing else."""
    products = {name for node in graph.node if _is_product(node) for name in node.output}
    found: set[str] = set()
    others = {output.name for output in graph.output}
    for node in graph.node:
        if _is_product(node) or (node.op_type == "Add" and not node.domain and not products.isdisjoint(node.input)):
            found.update(node.input)
        else:
            others.update(reads_of(node))
    return found - others


def _is_product(node: onnx.NodeProto) -> bool:
    return node.op_type in _PRODUCTS and not node.domain


def _flushed(array: Array) -> Array | None:
    """Return an array with 0 for its subnormal numbers; None if it has none, or is of another type than float32."""
    if array.dtype != np.float32:
        return None
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    if not any(_are_subnormal(bits[start : start + _CHUNK]).any() for start in range(0, bits.size, _CHUNK)):
        return None
    return np.where(_are_subnormal(bits), np.float32(0), array.reshape(-1)).reshape(array.shape)


def _are_subnormal(bits: Array) -> Array:
    found: Array = ((bits & _EXPONENT) == 0) & ((bits & _MAGNITUDE) != 0)
    return found
