"""Small networks of bytes whose kernels are timed: typical layers of quantized models, in the form in which these are cut.

Maps are `[N, H, W, C]` of uint8, weights int8 (`bbgrap.engine.quantized`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt

import numpy as np

from bbgrap.graph.types import Array, Attribute, DType, Graph
from bbgrap.zoo.builder import Builder

_DOMAIN = "com.microsoft"
MAPS = ((64, 56, 56), (64, 28, 56), (128, 28, 28), (128, 14, 28), (256, 14, 14), (256, 7, 14), (512, 7, 7), (512, 4, 7))
"""Channels, rows and columns of maps: those of common image networks, whole and half of the rows."""

_MATRICES = ((128, 768, 3072), (64, 768, 768), (197, 768, 768), (1, 2048, 1000), (16, 256, 1024), (8, 1024, 1024), (1, 768, 3072))
"""Rows, depth and columns of products."""

_SPREAD = 70.0
"""The typical size of a byte around its zero point: results are scaled by it, so that few of them are clipped."""


def byte_networks(entry: str) -> Iterator[Callable[[], Graph]]:
    """Yield what makes the networks; the node named `entry` reads what was in no cache."""
    for channels, rows, columns in MAPS:
        yield partial(_maps, channels, rows, columns, entry)
    for rows, depth, columns in _MATRICES:
        yield partial(_products, rows, depth, columns, entry)


def _maps(channels: int, rows: int, columns: int, entry: str) -> Graph:
    net = Builder(f"bytes{channels}x{rows}x{columns}", (1, rows, columns, channels), DType.UINT8)
    x = _conv(net, "input", entry, channels, 1)
    first = _conv(net, x, "conv3", channels, 3)
    wide = _conv(net, first, "expand", 4 * channels, 1)
    x = _conv(net, wide, "reduce", channels, 1)
    x = _sum(net, x, first, "sum")
    deep = _conv(net, x, "depth3", channels, 3, groups=channels)
    x = _conv(net, deep, "stride", channels, 3, stride=2)
    return net.graph(x, _conv(net, deep, "depth5", channels, 5, groups=channels), _sum(net, wide, wide, "double"))


def _products(rows: int, depth: int, columns: int, entry: str) -> Graph:
    net = Builder(f"matrices{rows}x{depth}x{columns}", (rows, depth), DType.UINT8)
    x = _sum(net, "input", "input", entry)
    return net.graph(_product(net, _product(net, x, "there", columns), "back", depth))


def _conv(net: Builder, x: str, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> str:
    n, height, width, depth = net.shape(x)
    filters = _filters(net, f"{name}.weight", (channels, depth // groups, kernel, kernel))
    shape = (n, -(-height // stride), -(-width // stride), channels)
    pads = (kernel // 2,) * 4
    window: dict[str, Attribute] = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": pads}
    inputs = [x, *_scale(net, 1.0), filters, *_weight_scale(net), *_scale(net, _SPREAD * sqrt(depth // groups * kernel**2))]
    attributes = {**window, "channels_last": 1, "group": groups}
    return net.node("QLinearConv", name, inputs, shape, attributes, DType.UINT8, _DOMAIN)


def _product(net: Builder, x: str, name: str, columns: int) -> str:
    rows, depth = net.shape(x)
    inputs = [x, *_scale(net, 1.0), _filters(net, f"{name}.weight", (depth, columns)), *_weight_scale(net), ""]
    return net.node("QGemm", name, [*inputs, *_scale(net, _SPREAD * sqrt(depth))], (rows, columns), {}, DType.UINT8, _DOMAIN)


def _sum(net: Builder, x: str, y: str, name: str) -> str:
    inputs = [x, *_scale(net, 1.0), y, *_scale(net, 1.0), *_scale(net, 2.0)]
    return net.node("QLinearAdd", name, inputs, net.shape(x), {}, DType.UINT8, _DOMAIN)


def _scale(net: Builder, step: float) -> tuple[str, str]:
    return net.weight(f"step{step:g}", np.array(step, np.float32)), net.weight("zero", np.array(128, np.uint8))


def _weight_scale(net: Builder) -> tuple[str, str]:
    return net.weight("step1", np.array(1.0, np.float32)), net.weight("weight zero", np.array(0, np.int8))


def _filters(net: Builder, name: str, shape: tuple[int, ...]) -> str:
    values: Array = np.random.default_rng(len(name)).integers(-127, 128, shape).astype(np.int8)
    return net.weight(name, values)
