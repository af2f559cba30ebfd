"""Making weights: a constant is known by the hash of its content, so that equal ones are shipped and kept once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bbgrap.graph.types import Array, DType, TensorType, Weight

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where the bytes of a weight lie: a file, relative to the folder of the model, and at which of its bytes they begin."""

    file: str
    offset: int


def begin_digest(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Hash:
    """Return the hash of a tensor before the first byte of its content."""
    name = dtype.name if dtype.kind == "V" else dtype.newbyteorder("<").str  # 'V': bfloat16, float8, int4
    return hashlib.sha256(f"{name}{shape}".encode())


def digest_of(array: Array) -> str:
    """Return the content hash of a tensor: SHA-256 (hex) over dtype, shape and the little-endian bytes in C order."""
    hasher = begin_digest(array.dtype, array.shape)
    if array.dtype == object:
        hasher.update(repr(array.tolist()).encode())
    else:
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def make_weight(name: str, array: Array, dtype: DType | None = None) -> Weight:
    """Make a weight of an array, whose memory it shares and which becomes read-only; `dtype` where numpy's does not say it all."""
    array.flags.writeable = False
    return Weight(name, TensorType(dtype or DType.of(array.dtype), array.shape), digest_of(array), array)
