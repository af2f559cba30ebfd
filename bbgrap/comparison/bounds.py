"""How far numbers are apart, and how far they may be, element by element.

A bound must come from many numbers: the difference of two roundings of one number says little, their largest difference over a slice of a
tensor says much. It must come from near ones: an ill-conditioned channel excuses nothing in the others. So an element's bound comes
from the tightest of the slices through it (along axis 0: its image, axis 1: its channel, axis 2: its row, ...), of those large enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bbgrap.graph import Array

LEAST_SLICE = 64
"""Elements that a slice needs to say something. Chosen: of 64 differences the largest varies by a factor of 2, not of 10."""


def numeric(array: Array) -> Array:
    """Return numbers in which differences of the given ones do not overflow."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def tightest(values: Array) -> Array:
    """Return for every element of non-negative `values` the least, over the slices through it, of the largest value in the slice.

    The result has an extent of 1 on axes along which it does not change.
    """
    bound: Array = np.max(values, initial=0.0, keepdims=True)
    for axis, extent in enumerate(values.shape):
        if extent > 1 and values.size >= LEAST_SLICE * extent:
            others = tuple(other for other in range(values.ndim) if other != axis)
            bound = np.minimum(bound, np.max(values, axis=others, keepdims=True))
    return bound


def kinds(array: Array) -> Array:
    """Return 0 for finite numbers and another one for each of NaN and the infinities (one for all that are complex)."""
    if array.dtype.kind == "c":
        return (~np.isfinite(array)).astype(np.int8)
    found: Array = (np.isnan(array) + 2 * np.isposinf(array) + 3 * np.isneginf(array)).astype(np.int8)
    return found


def distance(one: Array, other: Array) -> Array:
    """Return the absolute differences; 0 where both have the same infinity or NaN, infinite where only one does."""
    finite = np.isfinite(one) & np.isfinite(other)
    if finite.all():
        plain: Array = np.abs(one - other)
        return plain
    same = kinds(one) == kinds(other)
    known = np.abs(np.where(finite, one, 0) - np.where(finite, other, 0))
    return np.where(same, known, np.inf)


@dataclass(frozen=True, slots=True)
class Excess:
    """Where an answer is worse than its bound by most: index, and the bound there; or that too many elements are off."""

    index: tuple[int, ...]
    allowed: float
    off: int
    own: int
    """Elements that are further off than rounding explains, and as many as are in onnxruntime's own answers."""


def excess(off: Array, floor: Array, noise: Array, factor: float, crowd: float) -> Excess | None:
    """Return where differences are larger than those of onnxruntime with itself; None if nowhere.

    Args:
        off: The differences to judge.
        floor: What rounding explains, per element.
        noise: The largest differences of onnxruntime with itself; infinite ones mean nothing for their neighbours.
        factor: So many times the noise is allowed.
        crowd: So many times as many elements may be off by more than rounding explains; of noise `factor` times as large, that is.
    """
    known = np.where(np.isfinite(noise), noise, 0.0)
    allowed = np.broadcast_to(np.maximum(floor, factor * tightest(known)), off.shape)
    own = int(np.count_nonzero(noise > floor / factor))
    count = int(np.count_nonzero(off > floor))
    over = np.where(off > allowed, off - np.where(off > allowed, allowed, 0.0), 0.0)
    if not over.any() and count <= crowd * own:
        return None
    worst = np.unravel_index(int(np.argmax(over if over.any() else off)), off.shape)
    return Excess(tuple(int(place) for place in worst), float(allowed[worst]), count, own)
