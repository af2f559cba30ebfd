"""Transposed convolutions and average pools in 64-bit floats, in numpy: the ONNX package's (1.23) take some hundred times as long.

Both go through the offsets inside a window and do all windows at once; on one axis, p counts windows and k elements inside one:

    ConvTranspose   full[p * S + k * D] += x[p] W[k], of which padding is cropped
    AveragePool     sum over k of padded x[p * S + k * D], over the number of those that count

S and D are stride and dilation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from bbgrap.graph.types import Array

Attributes = Mapping[str, Any]

_Index = tuple[Any, ...]


def transposed_convolution(data: Array, weight: Array, bias: Array | None, attributes: Attributes, sizes: Sequence[int]) -> Array:
    """Return `ConvTranspose` of `data` [N, C, *] by `weight` [C, M/G, *kernel]: [N, M, *sizes]."""
    spatial, (images, channels) = data.shape[2:], (data.shape[0], weight.shape[1])
    groups, windows = attributes.get("group", 1), _windows(attributes, spatial, weight.shape[2:])
    extents = np.add(windows.extents, attributes.get("output_padding") or 0)
    begins = [begin for begin, _ in _pads(attributes, np.maximum(0, extents - sizes).tolist())]
    ends = np.add(begins, sizes)
    full = np.zeros((images, groups, channels, *np.maximum(extents, ends)))
    per_group, weights = data.reshape(images, groups, -1, prod(spatial)), weight.reshape(groups, -1, *weight.shape[1:])
    for offset, where in windows:
        index: _Index = (..., *offset)
        part = np.einsum("ngcp,gcm->ngmp", per_group, weights[index], optimize=True)
        full[where] += part.reshape(images, groups, channels, *spatial)
    kept: _Index = (..., *map(slice, begins, ends))
    found: Array = full[kept].reshape(images, groups * channels, *sizes)
    return found if bias is None else found + bias.reshape(-1, *[1] * len(sizes))


def average_pool(data: Array, attributes: Attributes, sizes: Sequence[int]) -> Array:
    """Return `AveragePool` of `data` [N, C, *]: [N, C, *sizes]. What `ceil_mode` adds at the end counts for nothing."""
    windows = _windows(attributes, sizes, attributes["kernel_shape"])
    padded = _padded(data, windows, attributes, 0.0)
    counted = _padded(np.ones(data.shape[2:]), windows, attributes, float(attributes.get("count_include_pad", 0)))
    total, count = np.zeros((*data.shape[:2], *sizes)), np.zeros(tuple(sizes))
    for _, where in windows:
        total += padded[where]
        count += counted[where]
    found: Array = total / count
    return found


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows of a kernel, axis by axis: how many there are, elements in one, strides and dilations."""

    counts: Sequence[int]
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]

    @property
    def extents(self) -> list[int]:
        """The elements from the first of the first window to the last of the last one."""
        axes = zip(self.counts, self.kernel, self.strides, self.dilations, strict=True)
        return [stride * (count - 1) + dilation * (size - 1) + 1 for count, size, stride, dilation in axes]

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], _Index]]:
        """Yield each offset inside a window, and the index of what all windows have there."""
        for offset in np.ndindex(*self.kernel):
            axes = zip(offset, self.counts, self.strides, self.dilations, strict=True)
            yield offset, (..., *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, n, s, d in axes))


def _windows(attributes: Attributes, counts: Sequence[int], kernel: Sequence[int]) -> _Windows:
    ones = [1] * len(kernel)
    return _Windows(counts, kernel, attributes.get("strides") or ones, attributes.get("dilations") or ones)


def _pads(attributes: Attributes, total: Sequence[int]) -> list[tuple[int, int]]:
    """Return the elements before and after each axis; `total` is their sum, where it follows from the sizes. Below 0 they are cropped."""
    kind = attributes.get("auto_pad", b"NOTSET")
    if kind == b"SAME_UPPER":
        return [(int(both / 2), both - int(both / 2)) for both in total]
    if kind == b"SAME_LOWER" or attributes.get("output_shape"):
        return [(int((both + 1) / 2), both - int((both + 1) / 2)) for both in total]
    pads = attributes.get("pads") or [0] * 2 * len(total)
    return list(zip(pads[: len(total)], pads[len(total) :], strict=True))


def _padded(array: Array, windows: _Windows, attributes: Attributes, value: float) -> Array:
    """Return an array with its padding, of `value`, and as many zeros behind it as the last window needs."""
    sizes = array.shape[array.ndim - len(windows.kernel) :]
    framed = _framed(array, _pads(attributes, np.subtract(windows.extents, sizes).tolist()), value)
    return _framed(framed, [(0, need - have) for need, have in zip(windows.extents, framed.shape[-len(sizes) :], strict=True)], 0.0)


def _framed(array: Array, pads: Sequence[tuple[int, int]], value: float) -> Array:
    """Return an array with elements around its last axes, or without some of its own where there are less than 0."""
    every = [*[(0, 0)] * (array.ndim - len(pads)), *pads]
    more = np.pad(array, [(max(0, before), max(0, after)) for before, after in every], constant_values=value)
    return more[tuple(slice(max(0, -before), size - max(0, -after)) for (before, after), size in zip(every, more.shape, strict=True))]
