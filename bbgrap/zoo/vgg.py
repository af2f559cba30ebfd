"""VGG-16, configuration D without dropout. Simonyan and Zisserman, arXiv:1409.1556."""

from __future__ import annotations

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions between poolings."""


def vgg16() -> Graph:
    """Build VGG-16 for 224x224 images and 1,000 classes; logits, no softmax."""
    b = Builder("vgg16", (1, 3, 224, 224))
    x = "input"
    for stage, (channels, depth) in enumerate(_STAGES, 1):
        for layer in range(1, depth + 1):
            x = b.act("Relu", b.conv(x, f"conv{stage}_{layer}", channels, 3, bias=True), f"relu{stage}_{layer}")
        x = b.max_pool(x, f"pool{stage}", 2, 2)
    x = b.flatten(x, "flat")
    for layer in (6, 7):
        x = b.act("Relu", b.dense(x, f"fc{layer}", 4096), f"relu{layer}")
    return b.graph(b.dense(x, "output", 1000))
