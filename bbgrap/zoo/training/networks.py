"""The networks that training steps are built of: an MLP, AlexNet, a small ResNet, and the ten of HyPar (Song et al., HPCA 2019).

HyPar's have no biases, and are those whose bytes come out as the paper prints them (`benchmarks/papers/networks.py`): its AlexNet has half
the width, VGG-C has 1x1 convolutions in the third place of its last stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder
from bbgrap.zoo.convolutional import alexnet, resnet


@dataclass(frozen=True, slots=True)
class ConvBlock:
    """A convolution, an activation, and a pooling by maxima if `pool` is not 0."""

    channels: int
    kernel: int
    pad: int = 0
    stride: int = 1
    pool: int = 0
    pool_stride: int = 2


StackForm = tuple[int, int, Sequence[ConvBlock], Sequence[int], Sequence[str]]
"""Channels (or features) and pixels of the input, convolutions, fully connected layers, and names of convolutions if not conv1, ..."""


def stack(
    name: str, batch: int, channels: int, size: int, steps: Sequence[ConvBlock], features: Sequence[int], layers: Sequence[str] = ()
) -> Graph:
    """Build convolutions over maps of `size` pixels square, then fully connected layers, all without biases; logits, no softmax."""
    b = Builder(name, (batch, channels, size, size) if steps else (batch, channels))
    x = "input"
    for number, step in enumerate(steps):
        layer = layers[number] if layers else f"conv{number + 1}"
        x = b.conv(x, layer, step.channels, step.kernel, stride=step.stride, pad=step.pad)
        if features or number + 1 < len(steps):
            x = b.act("Relu", x, f"{layer}.relu")
        if step.pool:
            x = b.max_pool(x, f"{layer}.pool", step.pool, step.pool_stride)
    if steps:
        x = b.flatten(x, "flat")
    for number, width in enumerate(features, 1):
        x = b.dense(x, f"fc{number}", width, bias=False)
        if number < len(features):
            x = b.act("Relu", x, f"fc{number}.relu")
    return b.graph(x)


_VGG = {
    "a": ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    "b": ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    "c": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "d": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "e": ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


def _vgg(variant: str) -> StackForm:
    steps, layers = [], []
    for stage, widths in enumerate(_VGG[variant], 1):
        for number, width in enumerate(widths, 1):
            kernel = 1 if variant == "c" and number == 3 else 3
            steps.append(ConvBlock(width, kernel, kernel // 2, pool=2 if number == len(widths) else 0))
            layers.append(f"conv{stage}_{number}")
    return 3, 224, steps, (4096, 4096, 1000), layers


_ALEXNET_HALF = (
    ConvBlock(48, 11, stride=4, pool=3),
    ConvBlock(128, 5, 2, pool=3),
    ConvBlock(192, 3, 1),
    ConvBlock(192, 3, 1),
    ConvBlock(128, 3, 1, pool=3),
)
STACKS: Mapping[str, StackForm] = {
    "mlp": (784, 1, (), (2048, 2048, 10), ()),
    "sfc": (784, 1, (), (8192, 8192, 8192, 10), ()),
    "sconv": (1, 28, (ConvBlock(20, 5), ConvBlock(50, 5, pool=2), ConvBlock(50, 5), ConvBlock(10, 5, pool=2)), (), ()),
    "lenet-c": (1, 28, (ConvBlock(20, 5, pool=2), ConvBlock(50, 5, pool=2)), (500, 10), ()),
    "cifar-c": (3, 32, tuple(ConvBlock(width, 5, 2, pool=2) for width in (32, 32, 64)), (64, 10), ()),
    "alexnet-half": (3, 227, _ALEXNET_HALF, (2048, 2048, 1000), ()),
    **{f"vgg-{variant}": _vgg(variant) for variant in _VGG},
}
"""By name. VGG-A to VGG-E are those of Simonyan and Zisserman, arXiv:1409.1556."""


def _stack(name: str, batch: int) -> Graph:
    return stack(name, batch, *STACKS[name])


def small_resnet(batch: int) -> Graph:
    """Build a ResNet of six bottleneck blocks for 32x32 images and ten classes."""
    return resnet("resnet", (2, 2, 2), batch=batch, size=32, width=16, classes=10)


NETWORKS: Mapping[str, Callable[[int], Graph]] = {
    **{name: partial(_stack, name) for name in STACKS},
    "alexnet": alexnet,
    "resnet": small_resnet,
}
"""By name; each is built for a batch."""
