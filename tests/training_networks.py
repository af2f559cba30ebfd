"""Small networks for training steps, and what a step of them takes and gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bbgrap.zoo.builder import Builder
from bbgrap.zoo.convolutional import resnet
from bbgrap.zoo.training.networks import STACKS, ConvBlock, stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from bbgrap.graph import Array, Graph
    from bbgrap.zoo.training import TrainingStep


def branches(batch: int = 3) -> Graph:
    """Build a network with every operator that has a gradient, windows that overlap or leave gaps, and a sum of two branches."""
    b = Builder("branches", (batch, 2, 19, 19))
    x = b.act("Relu", b.norm(b.conv("input", "conv1", 4, 3, stride=2), "norm1"), "relu1")
    x = b.max_pool(x, "pool1", 3, 2, 1)
    y = b.norm(b.conv(x, "conv2", 4, 3), "norm2")
    x = b.act("Relu", b.binary("Add", b.conv(x, "down", 4, 1), y, "add"), "relu2")
    attributes = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0,) * 4}
    x = b.node("AveragePool", "pool2", [x], (batch, 4, 4, 4), attributes)
    x = b.act("Relu", b.conv(x, "conv3", 6, 1, stride=2, bias=True), "relu3")
    x = b.act("Relu", b.dense(b.flatten(b.mean(x, "mean"), "flat"), "fc1", 7), "relu4")
    return b.graph(b.dense(x, "fc2", 4, bias=False))


def remainders(batch: int = 4) -> Graph:
    """Build a network whose last windows do not reach the end of their maps."""
    steps = (ConvBlock(4, 5, stride=3, pool=3), ConvBlock(6, 2, stride=2, pad=1), ConvBlock(5, 2, pool=2))
    return stack("remainders", batch, 2, 36, steps, (6, 3))


def small_alexnet(batch: int) -> Graph:
    """Build AlexNet with fewer channels, for smaller images."""
    steps = (
        ConvBlock(12, 11, stride=4, pool=3),
        ConvBlock(32, 5, 2, pool=3),
        ConvBlock(48, 3, 1),
        ConvBlock(48, 3, 1),
        ConvBlock(32, 3, 1, pool=3),
    )
    return stack("alexnet", batch, 3, 67, steps, (64, 64, 10))


def small_vgg(batch: int, scale: int) -> Graph:
    """Build VGG-A with fewer channels and features, for smaller images."""
    channels, _, steps, features, layers = STACKS["vgg-a"]
    fewer = [replace(step, channels=step.channels // scale) for step in steps]
    return stack("vgg-a", batch, channels, 32, fewer, [width // scale for width in features], layers)


SMALL: dict[str, Callable[[int], Graph]] = {
    "mlp": lambda batch: stack("mlp", batch, 64, 1, (), (128, 96, 10)),
    "alexnet": small_alexnet,
    "vgg": lambda batch: small_vgg(batch, 16),
    "resnet": lambda batch: resnet("resnet", (1, 1, 1), batch=batch, size=16, width=8, classes=4),
}
"""What is trained on agents."""

NETWORKS: dict[str, Callable[[int], Graph]] = {
    "branches": branches,
    "remainders": remainders,
    "perceptron": lambda batch: stack("perceptron", batch, 12, 1, (), (16, 8, 5)),
    "vgg": lambda batch: small_vgg(batch, 32),
}


def batch_of(step: TrainingStep, seed: int = 0) -> dict[str, Array]:
    """Draw samples and labels."""
    random, types = np.random.default_rng(seed), step.graph.types
    (count,) = types["labels"].known_shape
    classes = int(step.graph.weights["classes"].array)
    return {"input": random.standard_normal(types["input"].known_shape, np.float32), "labels": random.integers(0, classes, count)}
