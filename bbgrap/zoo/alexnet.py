"""AlexNet in the single-column form of Krizhevsky, arXiv:1404.5997, without dropout."""

from __future__ import annotations

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder


def alexnet(batch: int = 1) -> Graph:
    """Build AlexNet for 224x224 images and 1,000 classes; logits, no softmax."""
    b = Builder("alexnet", (batch, 3, 224, 224))
    x = b.act("Relu", b.conv("input", "conv1", 64, 11, stride=4, pad=2, bias=True), "relu1")
    x = b.max_pool(x, "pool1", 3, 2)
    x = b.act("Relu", b.conv(x, "conv2", 192, 5, bias=True), "relu2")
    x = b.max_pool(x, "pool2", 3, 2)
    for layer, channels in ((3, 384), (4, 256), (5, 256)):
        x = b.act("Relu", b.conv(x, f"conv{layer}", channels, 3, bias=True), f"relu{layer}")
    x = b.flatten(b.max_pool(x, "pool5", 3, 2), "flat")
    for layer in (6, 7):
        x = b.act("Relu", b.dense(x, f"fc{layer}", 4096), f"relu{layer}")
    return b.graph(b.dense(x, "output", 1000))
