"""ResNet v1.5 with bottleneck blocks: the stride is in the 3x3 convolution. He et al., arXiv:1512.03385."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder


def resnet50() -> Graph:
    """Build ResNet-50 for 224x224 images and 1,000 classes; logits, no softmax."""
    return resnet("resnet50", (3, 4, 6, 3))


def resnet152() -> Graph:
    """Build ResNet-152 for 224x224 images and 1,000 classes; logits, no softmax."""
    return resnet("resnet152", (3, 8, 36, 3))


def tiny() -> Graph:
    """Build a network for tests: 32x32 images, three blocks, ten classes, 13 convolutions."""
    return resnet("tiny", (1, 1, 1), size=32, width=8, classes=10)


def resnet(name: str, depths: Sequence[int], *, size: int = 224, width: int = 64, classes: int = 1000, batch: int = 1) -> Graph:
    """Build a network of `depths` bottleneck blocks a stage; logits, no softmax."""
    b = Builder(name, (batch, 3, size, size))
    gain = 0.8 / sqrt(sum(depths))  # a sum over all blocks stays of the order of one, however deep the network
    x = b.conv("input", "conv1", width, 7, stride=2)
    x = b.act("Relu", b.norm(x, "bn1"), "relu1")
    x = b.max_pool(x, "pool1", 3, 2, 1)
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _bottleneck(b, x, f"layer{stage}.{block}", width * 2 ** (stage - 1), stride, gain)
    x = b.flatten(b.mean(x, "pool2"), "flat")
    return b.graph(b.dense(x, "output", classes))


def _bottleneck(b: Builder, x: str, name: str, width: int, stride: int, gain: float) -> str:
    y = b.act("Relu", b.norm(b.conv(x, f"{name}.conv1", width, 1), f"{name}.bn1"), f"{name}.relu1")
    y = b.act("Relu", b.norm(b.conv(y, f"{name}.conv2", width, 3, stride=stride), f"{name}.bn2"), f"{name}.relu2")
    y = b.norm(b.conv(y, f"{name}.conv3", 4 * width, 1), f"{name}.bn3", gain=gain)
    if b.shape(x) != b.shape(y):
        x = b.norm(b.conv(x, f"{name}.down", 4 * width, 1, stride=stride), f"{name}.down_bn")
    return b.act("Relu", b.binary("Add", x, y, f"{name}.add"), f"{name}.relu3")
