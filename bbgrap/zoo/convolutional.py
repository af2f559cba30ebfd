"""Convolutional networks, without dropout; those for classes return logits, no softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder

_VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions between poolings."""
_MOBILENET_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first block."""
_UNET_WIDTH = 32
_UNET_LEVELS = 4


def alexnet(batch: int = 1) -> Graph:
    """Build AlexNet in the single-column form of Krizhevsky, arXiv:1404.5997, for 224x224 images and 1,000 classes."""
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


def vgg16() -> Graph:
    """Build VGG-16, configuration D of Simonyan and Zisserman, arXiv:1409.1556, for 224x224 images and 1,000 classes."""
    b = Builder("vgg16", (1, 3, 224, 224))
    x = "input"
    for stage, (channels, depth) in enumerate(_VGG_STAGES, 1):
        for layer in range(1, depth + 1):
            x = b.act("Relu", b.conv(x, f"conv{stage}_{layer}", channels, 3, bias=True), f"relu{stage}_{layer}")
        x = b.max_pool(x, f"pool{stage}", 2, 2)
    x = b.flatten(x, "flat")
    for layer in (6, 7):
        x = b.act("Relu", b.dense(x, f"fc{layer}", 4096), f"relu{layer}")
    return b.graph(b.dense(x, "output", 1000))


def resnet(name: str, depths: Sequence[int], *, size: int = 224, width: int = 64, classes: int = 1000, batch: int = 1) -> Graph:
    """Build a ResNet v1.5 with `depths` bottleneck blocks a stage; the stride is in the 3x3 convolution. He et al., arXiv:1512.03385."""
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


def mobilenet_v2() -> Graph:
    """Build MobileNetV2 for 224x224 images and 1,000 classes: inverted residuals. Sandler et al., arXiv:1801.04381."""
    b = Builder("mobilenet_v2", (1, 3, 224, 224))
    x = _conv6(b, "input", "conv1", 32, 3, stride=2)
    number = 0
    for expansion, channels, blocks, first_stride in _MOBILENET_STAGES:
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


def unet() -> Graph:
    """Build a U-Net for 256x256 images and two classes per pixel: four levels, 32 channels at the first one.

    It pads, so that the output has the size of the input. Ronneberger et al., arXiv:1505.04597.
    """
    b = Builder("unet", (1, 3, 256, 256))
    x = "input"
    skips: list[str] = []
    for level in range(_UNET_LEVELS):
        skips.append(_double_conv(b, x, f"down{level}", _UNET_WIDTH << level))
        x = b.max_pool(skips[-1], f"down{level}.pool", 2, 2)
    x = _double_conv(b, x, "bottom", _UNET_WIDTH << _UNET_LEVELS)
    for level in reversed(range(_UNET_LEVELS)):
        x = b.up_conv(x, f"up{level}.up", _UNET_WIDTH << level)
        x = _double_conv(b, b.concat([skips[level], x], f"up{level}.concat"), f"up{level}", _UNET_WIDTH << level)
    return b.graph(b.conv(x, "output", 2, 1, bias=True))


def _double_conv(b: Builder, x: str, name: str, channels: int) -> str:
    for k in (1, 2):
        x = b.act("Relu", b.norm(b.conv(x, f"{name}.conv{k}", channels, 3), f"{name}.bn{k}"), f"{name}.relu{k}")
    return x
