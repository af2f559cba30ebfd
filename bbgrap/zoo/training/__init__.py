"""One step of training as one ONNX graph of standard operators: forward, loss, backward, and the update by SGD with momentum.

    input, labels, W, W.momentum ...  ->  loss, W.next, W.momentum.next ...        W being every weight of the network, `conv1.weight` say

What a step returns is what the next one begins with: weights and momenta are a state, and `TrainingStep.state` says which output is which
input. Normalisations use the statistics of the batch, and keep none for later.

    step = training.build("alexnet", batch=64)          a network of this package
    step = training.step_of(graph)                      any that `bbgrap.zoo.builder` can build of the operators in `gradients`
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bbgrap.errors import ModelError
from bbgrap.graph.types import Graph
from bbgrap.graph.weights import make_weight
from bbgrap.zoo.training.networks import NETWORKS
from bbgrap.zoo.training.step import MOMENTUM, RATE, TrainingStep, step_of

_LAST = 0.1
"""Chosen: with it AlexNet and VGG learn from the first step on at the default rate."""

__all__ = ["TrainingStep", "build", "names", "step_of"]


def names() -> tuple[str, ...]:
    """Return the names of the networks that `build` knows, sorted."""
    return tuple(sorted(NETWORKS))


def build(name: str, batch: int, *, rate: float = RATE, momentum: float = MOMENTUM) -> TrainingStep:
    """Build the training step of a network with seeded weights.

    Args:
        name: One of `names()`.
        batch: How many samples a step takes.
        rate: The learning rate.
        momentum: Which part of the last update is added to the gradient.

    Raises:
        ModelError: if there is no network of this name, or the batch is not positive.
    """
    if name not in NETWORKS:
        raise ModelError(f"training: there is no network '{name}'; there are {', '.join(names())}")
    if batch < 1:
        raise ModelError(f"training of '{name}': expected a batch of 1 or more, got {batch}")
    return step_of(_calmed(NETWORKS[name](batch)), rate=rate, momentum=momentum)


def _calmed(network: Graph) -> Graph:
    """Make the weights of the last layer smaller: the seeded ones keep the size of maps, so logits and first gradients would be large."""
    name = next(node.inputs[1] for node in reversed(network.nodes) if node.op in ("Conv", "Gemm"))
    array = network.weights[name].array * np.float32(_LAST)
    return replace(network, weights={**network.weights, name: make_weight(name, array)})
