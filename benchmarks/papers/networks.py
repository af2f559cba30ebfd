"""The networks that the papers report on, as lists of layers with weights.

Sizes are in elements; an element has 4 bytes (fp32); no layer has biases (HyPar's totals only come out without them). A layer is a
matrix product or a convolution with

    c_in, c_out      input and output channels (or features)
    kernel           edge of the square kernel, 1 for a product
    size_in          edge of the square input map, 1 for a product
    size_out         edge of the output map after the pooling that follows, if any, 1 for a product: what the next layer reads

HyPar (section 6.1) names its nets but prints no layer list; the ones here reproduce its data-parallel column (figure 8) to the printed
digits. Fitted: its AlexNet is the half-width single tower; Cifar-c is Caffe's `cifar10_quick`; SCONV pools after layers 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bbgrap.zoo.training.networks import STACKS, ConvBlock

BYTES = 4
"""Bytes per element."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer with weights; see the module for the units."""

    name: str
    c_in: int
    c_out: int
    kernel: int = 1
    size_in: int = 1
    size_out: int = 1

    @property
    def weights(self) -> int:
        """Elements of the kernel."""
        return self.c_in * self.c_out * self.kernel**2

    @property
    def reads(self) -> int:
        """Elements of the input map of one sample."""
        return self.c_in * self.size_in**2

    @property
    def makes(self) -> int:
        """Elements of the output map of one sample, after pooling."""
        return self.c_out * self.size_out**2


Network = tuple[Layer, ...]


def stack(channels: int, size: int, steps: Sequence[ConvBlock], features: Sequence[int], names: Sequence[str] = ()) -> Network:
    """Return convolutions over a `size` x `size` map of `channels` channels, then products with the given numbers of features."""
    layers = []
    for number, step in enumerate(steps):
        out = (size + 2 * step.pad - step.kernel) // step.stride + 1
        pooled = -(-(out - step.pool) // step.pool_stride) + 1 if step.pool else out  # the last window may stick out, as in Caffe
        name = names[number] if names else f"conv{number + 1}"
        layers.append(Layer(name, channels, step.channels, step.kernel, size, pooled))
        channels, size = step.channels, pooled
    width = channels * size * size
    for number, out in enumerate(features):
        layers.append(Layer(f"fc{number + 1}", width, out))
        width = out
    return tuple(layers)


def mlp(*widths: int) -> Network:
    """Return a chain of matrix products: `mlp(784, 8192, 10)` has two."""
    return stack(widths[0], 1, (), widths[1:])


HYPAR = {  # as the paper calls them, and as the zoo does
    "SFC": "sfc",
    "SCONV": "sconv",
    "Lenet-c": "lenet-c",
    "Cifar-c": "cifar-c",
    "AlexNet": "alexnet-half",
    "VGG-A": "vgg-a",
    "VGG-B": "vgg-b",
    "VGG-C": "vgg-c",
    "VGG-D": "vgg-d",
    "VGG-E": "vgg-e",
}


def hypar_networks() -> dict[str, Network]:
    """Return HyPar's ten networks, in the order of its figures."""
    return {name: stack(*STACKS[ours]) for name, ours in HYPAR.items()}


def alexnet() -> Network:
    """Return AlexNet as a single tower without groups, of its full width; HyPar's has half of it."""
    channels, size, steps, _, _ = STACKS["alexnet-half"]
    return stack(channels, size, [replace(step, channels=2 * step.channels) for step in steps], (4096, 4096, 1000))


def convolutions(size: int, filters: int, layers: int = 5) -> Network:
    """Return SoyBean's figure 9: 3 x 3 convolutions of `filters` channels over maps that keep their size."""
    return stack(filters, size, [ConvBlock(filters, 3, 1)] * layers, ())


_RESNET = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def wresnet(depth: int, width: int) -> Network:
    """Return Tofu's Wide ResNet: bottleneck ResNet whose channels, the stem's included, are `width` times as many.

    The three input channels and the 1000 classes are not widened; a stage's first 1 x 1 convolution has the stride, as in the original
    ResNet (fitted: with it in the 3 x 3 one the traffic is 3 % higher). Projections of the residual branch come last in their block;
    they count as weights, `main_path` leaves them out.
    """
    channels, size = 64 * width, 56
    layers = [Layer("stem", 3, channels, 7, 224, 56)]
    for stage, blocks in enumerate(_RESNET[depth]):
        inner = 64 * width * 2**stage
        for block in range(blocks):
            out = size // 2 if stage and not block else size
            name = f"stage{stage + 1}.{block}"
            layers += [
                Layer(f"{name}.conv1", channels, inner, 1, size, out),
                Layer(f"{name}.conv2", inner, inner, 3, out, out),
                Layer(f"{name}.conv3", inner, 4 * inner, 1, out, out),
            ]
            if not block:
                layers.append(Layer(f"{name}.project", channels, 4 * inner, 1, size, out))
            channels, size = 4 * inner, out
    return (*layers, Layer("fc", channels, 1000))


def main_path(network: Network) -> Network:
    """Return a network without its projections: the chain that Tofu's coarsened search walks."""
    return tuple(layer for layer in network if not layer.name.endswith(".project"))


def lstm(depth: int, hidden: int) -> Network:
    """Return Tofu's RNN: per layer the product of its inputs and its state (2 x hidden) with the four gates (4 x hidden)."""
    return tuple(Layer(f"lstm{number + 1}", 2 * hidden, 4 * hidden) for number in range(depth))


def lstm_weights(depth: int, hidden: int) -> int:
    """Return the weights that table 2 counts: of the first layer only the recurrent matrix [fitted], no embedding, no softmax."""
    return 4 * hidden**2 + (depth - 1) * 8 * hidden**2
