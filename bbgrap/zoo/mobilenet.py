"""MobileNetV2: inverted residuals with depthwise convolutions. Sandler et al., arXiv:1801.04381."""

from __future__ import annotations

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first block."""


def mobilenet_v2() -> Graph:
    """Build MobileNetV2 for 224x224 images and 1,000 classes; logits, no softmax."""
    b = Builder("mobilenet_v2", (1, 3, 224, 224))
    x = _conv6(b, "input", "conv1", 32, 3, stride=2)
    number = 0
    for expansion, channels, blocks, first_stride in _STAGES:
        for block in range(blocks):
            number += 1
            x = _inverted_residual(b, x, f"block{number}", expansion, channels, first_stride if block == 0 else 1)
    x = _conv6(b, x, "conv2", 1280, 1)
    return b.graph(b.dense(b.flatten(b.mean(x, "pool"), "flat"), "output", 1000))


def _inverted_residual(b: Builder, x: str, name: str, expansion: int, channels: int, stride: int) -> str:
    width = b.shape(x)[1] * expansion
    y = x if expansion == 1 else _conv6(b, x, f"{name}.expand", width, 1)
    y = _conv6(b, y, f"{name}.depthwise", width, 3, stride=stride, groups=width)
    y = b.norm(b.conv(y, f"{name}.project", channels, 1), f"{name}.bn")
    return b.binary("Add", x, y, f"{name}.add") if b.shape(x) == b.shape(y) else y


def _conv6(b: Builder, x: str, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> str:
    x = b.norm(b.conv(x, name, channels, kernel, stride=stride, groups=groups), f"{name}.bn")
    return b.relu6(x, f"{name}.relu6")
