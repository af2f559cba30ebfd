"""Batch normalisation as it is in training, by the statistics of the batch, in elementary operators: forward and backward.

    hat = (x - mean) / deviation        y = hat * scale + bias        m elements per channel
    dbias = sum(dy)                     dscale = sum(dy * hat)        dx = scale / deviation * (dy - dbias / m - hat * dscale / m)

Ioffe and Szegedy, arXiv:1502.03167. Sums over batch and map are `ReduceSum`, so that machines can add up their parts of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from bbgrap.graph.types import Node
from bbgrap.zoo.builder import Builder


def normalized(b: Builder, node: Node) -> str:
    """Add what a normalisation does in training."""
    x, scale, bias = node.inputs[:3]
    (name,) = node.outputs
    shape = b.shape(x)
    epsilon = node.attributes.get("epsilon", 1e-5)
    assert isinstance(epsilon, float), "the builder's own attribute"
    mean = b.scalar("Mul", channel_sums(b, x, f"{name}.sum"), f"{name}.mean", 1 / _count(shape))
    centered = b.node("Sub", f"{name}.centered", [x, mean], shape)
    squares = channel_sums(b, b.binary("Mul", centered, centered, f"{name}.squares"), f"{name}.squares.sum")
    variance = b.scalar("Mul", squares, f"{name}.variance", 1 / _count(shape))
    deviation = b.act("Sqrt", b.scalar("Add", variance, f"{name}.variance.positive", epsilon), f"{name}.deviation")
    hat = b.node("Div", f"{name}.hat", [centered, deviation], shape)
    scaled = b.node("Mul", f"{name}.scaled", [hat, _per_channel(b, scale, f"{name}.scale", len(shape))], shape)
    return b.node("Add", name, [scaled, _per_channel(b, bias, f"{name}.bias.wide", len(shape))], shape)


def gradient_of_norm(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    """Add the gradients of a normalisation's input, scale and bias."""
    (name,) = node.outputs
    shape, channels = b.shape(dy), b.shape(dy)[1]
    hat, each = f"{name}.hat", b.weight("channels.all", np.array([-1], np.int64))
    sums = [
        channel_sums(b, b.binary("Mul", dy, hat, f"{name}.by_hat"), f"{name}.scale.sum"),
        channel_sums(b, dy, f"{name}.bias.sum"),
    ]
    found = {k: b.node("Reshape", names[k], [total, each], (channels,)) for k, total in enumerate(sums, 1)}
    if 0 not in names:
        return found
    by_hat, mean = (b.scalar("Mul", total, f"{total}.mean", 1 / _count(shape)) for total in sums)
    centered = b.node("Sub", f"{name}.error.centered", [dy, mean], shape)
    error = b.binary("Sub", centered, b.node("Mul", f"{name}.along_hat", [hat, by_hat], shape), f"{name}.error")
    factor = b.binary("Div", f"{name}.scale", f"{name}.deviation", f"{name}.factor")
    return found | {0: b.node("Mul", names[0], [error, factor], shape)}


def channel_sums(b: Builder, x: str, name: str) -> str:
    """Add the sums over all but the channels of [N, C, H, W], as [1, C, 1, 1]."""
    shape = b.shape(x)
    axes = b.weight("but_channels", np.array([0, *range(2, len(shape))], np.int64))
    return b.node("ReduceSum", name, [x, axes], (1, shape[1], *(1 for _ in shape[2:])))


def _per_channel(b: Builder, x: str, name: str, rank: int) -> str:
    shape = (1, -1, *(1 for _ in range(rank - 2)))
    wanted = b.weight("channels.wide", np.array(shape, np.int64))
    return b.node("Reshape", name, [x, wanted], (1, b.shape(x)[0], *shape[2:]))


def _count(shape: tuple[int, ...]) -> int:
    return prod(shape) // shape[1]
