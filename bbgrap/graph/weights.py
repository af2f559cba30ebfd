"""Making weights: a constant is known by the hash of its content, so that equal ones are shipped and kept once."""

from __future__ import annotations

import hashlib

import numpy as np

from bbgrap.graph.types import Array, DType, TensorType, Weight


def digest_of(array: Array) -> str:
    """Return the content hash of a tensor: SHA-256 (hex) over dtype, shape and the little-endian bytes in C order."""
    dtype = array.dtype.name if array.dtype.kind == "V" else array.dtype.newbyteorder("<").str  # 'V': bfloat16, float8, int4
    hasher = hashlib.sha256(f"{dtype}{array.shape}".encode())
    if array.dtype == object:
        hasher.update(repr(array.tolist()).encode())
    else:
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def make_weight(name: str, array: Array, dtype: DType | None = None) -> Weight:
    """Make a weight of an array, whose memory it shares and which becomes read-only; `dtype` where numpy's does not say it all."""
    array.flags.writeable = False
    return Weight(name, TensorType(dtype or DType.of(array.dtype), array.shape), digest_of(array), array)
