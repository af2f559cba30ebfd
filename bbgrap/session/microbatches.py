"""A batch in micro-batches: each goes through the cluster as a request of its own, so that machines compute while the next ones travel.

    batch of 100 ── 10 micro-batches of 10 ── some on their way at once ── answers put together in order

Law: the answers are those of the whole batch; the last micro-batch is filled up with its last image, and what that answers is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from bbgrap.graph.types import Array

MICROBATCHES_PER_AGENT = 4
"""So many micro-batches an agent gets of a batch, or more: chosen. Machines wait for the first one to arrive, and perhaps for each other's
last one; smaller ones cost more requests."""

LEAST_S = 0.02
"""Seconds that a micro-batch takes at least, about: chosen, some twenty times what a request costs besides."""

WASTE = 0.02
"""Part of a batch that may be computed in vain, to fill up the last micro-batch."""


def microbatch_size(images: int, image_s: float, agents: int) -> int | None:
    """Return how many images of a batch make a micro-batch; None if it is not worth dividing.

    Where possible, equal agents get equally many micro-batches.
    """
    least = max(1, ceil(LEAST_S / max(image_s, 1e-9)))
    if agents < 1 or images < 2 * agents * least:
        return None
    sizes = range(max(least, -(-images // (MICROBATCHES_PER_AGENT * agents))), 0, -1)
    counts = {size: -(-images // size) for size in sizes}
    useful = [size for size in sizes if counts[size] * size <= (1 + WASTE) * images]
    return next((size for size in useful if counts[size] % agents == 0), useful[0])


def microbatches_of(feeds: Sequence[Array], size: int) -> list[list[Array]]:
    """Return the micro-batches, each with `size` images of every input (axis 0); views, but for the last one if it is filled up."""
    images = feeds[0].shape[0]
    return [[_filled(array[start : start + size], size) for array in feeds] for start in range(0, images, size)]


def _filled(array: Array, size: int) -> Array:
    rest = size - array.shape[0]
    return np.concatenate([array, np.repeat(array[-1:], rest, axis=0)]) if rest else np.ascontiguousarray(array)


class Answers:
    """The outputs of a batch, as its micro-batches come in."""

    def __init__(self, images: int, size: int) -> None:
        """Start without any; micro-batches have `size` images."""
        self._images, self._size = images, size
        self._outputs: list[Array] = []

    def put(self, number: int, outputs: Sequence[Array]) -> None:
        """Take what a micro-batch answered; the first one tells the outputs' shapes."""
        start = number * self._size
        stop = min(start + self._size, self._images)
        if not self._outputs:
            self._outputs = [np.empty((self._images, *array.shape[1:]), array.dtype) for array in outputs]
        for whole, array in zip(self._outputs, outputs, strict=True):
            whole[start:stop] = array[: stop - start]

    def whole(self) -> list[Array]:
        """Return the outputs of the batch."""
        return self._outputs
