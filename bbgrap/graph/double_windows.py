"""Transposed convolutions and average pools in 64-bit floats, in numpy: the ONNX package's (1.23) take microseconds an element.

Both go through the offsets inside a window and do all windows at once; on one axis, p counts windows and k elements inside one:

    ConvTranspose   full[p * S + k * D] += x[p] W[k], of which padding is cropped
    AveragePool     sum over k of padded x[p * S + k * D], over the number of those that count

S and D are stride and dilation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from bbgrap.graph.types import Array

Attributes = Mapping[str, Any]

_Index = tuple[Any, ...]


def transposed_convolution(data: Array, weight: Array, bias: Array | None, attributes: Attributes, sizes: Sequence[int]) -> Array:
    """Return `ConvTranspose` of `data` [N, C, *] by `weight` [C, M/G, *kernel]: [N, M, *sizes]."""
    spatial, kernel = data.shape[2:], weight.shape[2:]
    groups, strides, dilations = attributes.get("group", 1), *_steps(attributes, len(spatial))
    extra = attributes.get("output_padding") or [0] * len(spatial)
    axes = zip(strides, spatial, dilations, kernel, extra, strict=True)
    extents = [stride * (count - 1) + dilation * (size - 1) + 1 + more for stride, count, dilation, size, more in axes]
    begins = [begin for begin, _ in _pads(attributes, [max(0, have - size) for have, size in zip(extents, sizes, strict=True)])]
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    images, channels = data.shape[0], weight.shape[1]
    full = np.zeros((images, groups, channels, *map(max, extents, ends)))
    per_group, weights = data.reshape(images, groups, -1, prod(spatial)), weight.reshape(groups, -1, *weight.shape[1:])
    for offset, where in _windows(kernel, spatial, strides, dilations):
        index: _Index = (..., *offset)
        part = np.einsum("ngcp,gcm->ngmp", per_group, weights[index], optimize=True)
        full[where] += part.reshape(images, groups, channels, *spatial)
    kept: _Index = (..., *map(slice, begins, ends))
    found: Array = full[kept].reshape(images, groups * channels, *sizes)
    return found if bias is None else found + bias.reshape(-1, *[1] * len(sizes))


def average_pool(data: Array, attributes: Attributes, sizes: Sequence[int]) -> Array:
    """Return `AveragePool` of `data` [N, C, *]: [N, C, *sizes]. What `ceil_mode` adds at the end counts for nothing."""
    spatial, kernel = data.shape[2:], attributes["kernel_shape"]
    strides, dilations = _steps(attributes, len(spatial))
    axes = zip(strides, sizes, dilations, kernel, strict=True)
    extents = [stride * (count - 1) + dilation * (size - 1) + 1 for stride, count, dilation, size in axes]
    pads = _pads(attributes, [need - size for need, size in zip(extents, spatial, strict=True)])
    padded = _framed(data, [(0, 0), (0, 0), *pads], 0.0)
    counts = _framed(np.ones(spatial), pads, float(attributes.get("count_include_pad", 0)))
    missing = [(0, need - have) for need, have in zip(extents, counts.shape, strict=True)]
    padded, counts = _framed(padded, [(0, 0), (0, 0), *missing], 0.0), _framed(counts, missing, 0.0)
    total, count = np.zeros((*data.shape[:2], *sizes)), np.zeros(tuple(sizes))
    for _, where in _windows(kernel, sizes, strides, dilations):
        total += padded[where]
        count += counts[where]
    found: Array = total / count
    return found


def _steps(attributes: Attributes, axes: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return strides and dilations."""
    return attributes.get("strides") or [1] * axes, attributes.get("dilations") or [1] * axes


def _pads(attributes: Attributes, total: Sequence[int]) -> list[tuple[int, int]]:
    """Return the elements before and after each axis; `total` is their sum, where it follows from the sizes. Below 0 they are cropped."""
    kind = attributes.get("auto_pad", b"NOTSET")
    if kind == b"SAME_UPPER":
        return [(int(both / 2), both - int(both / 2)) for both in total]
    if kind == b"SAME_LOWER" or attributes.get("output_shape"):
        return [(int((both + 1) / 2), both - int((both + 1) / 2)) for both in total]
    pads = attributes.get("pads") or [0] * 2 * len(total)
    return list(zip(pads[: len(total)], pads[len(total) :], strict=True))


def _framed(array: Array, pads: Sequence[tuple[int, int]], value: float) -> Array:
    """Return an array with elements around it, or without some of its own where there are less than 0."""
    more = np.pad(array, [(max(0, before), max(0, after)) for before, after in pads], constant_values=value)
    return more[tuple(slice(max(0, -before), size - max(0, -after)) for (before, after), size in zip(pads, more.shape, strict=True))]


def _windows(
    kernel: Sequence[int], windows: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], _Index]]:
    """Yield each offset inside a window, and the index of what all windows have there."""
    for offset in np.ndindex(*kernel):
        axes = zip(offset, dilations, windows, strides, strict=True)
        yield offset, (Ellipsis, *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, d, n, s in axes))
