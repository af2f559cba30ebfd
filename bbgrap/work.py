"""Kinds of work, and a piece of it: what planners count, machines are measured by, and cost models multiply with speeds.

Kinds are what a machine does at different speeds, not operators: a convolution of one point is a matrix product that reads blocked
maps, a product with one row reads its weights and hardly computes. `bbgrap.tdl.work` says of which kind a node is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS: Mapping[str, str] = {
    "conv1x1": "convolutions of one point",
    "conv3x3": "convolutions 3 x 3",
    "conv": "convolutions with other kernels, transposed ones, and those of fewer than four input channels",
    "depthwise": "convolutions with few channels per group",
    "conv_int8": "convolutions of bytes",
    "depthwise_int8": "convolutions of bytes with few channels per group",
    "matmul": "matrix products with many rows",
    "matvec": "matrix products with few rows, which mostly read their weights",
    "matmul_int8": "matrix products of bytes",
    "transform": "Fourier transforms",
    "scalar": "loops over single numbers: trees, support vectors, functions that nothing computes in vectors",
    "pool": "maxima and means over windows or whole maps",
    "normalize": "softmax, layer normalisation and the like",
    "elementwise": "functions of single elements",
    "elementwise_int8": "functions of single elements of bytes, each with its scale",
    "move": "transposes, concatenations, paddings, resizings: bytes that change place",
    "other": "everything else",
    "segment": "starting a segment, and copying the maps at its borders, by bytes that enter",
    "message": "packing, sending, receiving and unpacking one message, per end",
}
"""Kinds of work, and what they are."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: floating point operations, bytes of weights read, bytes of maps read and written."""

    kind: str
    flops: int = 0
    weight_bytes: int = 0
    map_bytes: int = 0


NO_WORK = Work("elementwise")
