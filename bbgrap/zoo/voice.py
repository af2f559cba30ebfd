"""A recurrent voice activity model with its state as input and output, like Silero VAD: 512 samples at a time, the probability of speech.

input [N, 512], state [2, N, 128]    the samples, and hidden and cell state after those before; zeros in the beginning
output [N, 1], stateN [2, N, 128]
"""

from __future__ import annotations

import numpy as np

from bbgrap.graph.onnx_io import FreeAxes
from bbgrap.graph.types import DType, Graph, Node, TensorType
from bbgrap.zoo.builder import Builder

SAMPLES, HIDDEN = 512, 128

_FRONT = ((64, 64, 32, 16), (64, 3, 2, 1), (128, 3, 2, 1))
"""Channels, kernel, stride and padding of the convolutions: four frames of 128 features remain of 512 samples."""


def voice() -> Graph:
    """Build the model for one sound."""
    b = Builder("voice", (1, SAMPLES))
    b.input("state", (2, 1, HIDDEN))
    x = b.node("Unsqueeze", "samples", ["input", b.weight("samples.axis", np.array([1], np.int64))], (1, 1, SAMPLES))
    for n, (channels, kernel, stride, pad) in enumerate(_FRONT, 1):
        _, before, length = b.shape(x)
        inputs = [x, b.drawn(f"conv{n}.weight", (channels, before, kernel), before * kernel), b.bias(f"conv{n}.bias", channels)]
        shape = (1, channels, (length + 2 * pad - kernel) // stride + 1)
        y = b.node("Conv", f"conv{n}", inputs, shape, {"kernel_shape": (kernel,), "strides": (stride,), "pads": (pad, pad)})
        x = b.act("Relu", y, f"relu{n}")
    hidden, cell = _lstm(b, b.transpose(x, "frames", (2, 0, 1)))
    b.concat([hidden, cell], "stateN", axis=0)
    y = b.node("Squeeze", "hidden.only", [hidden, b.weight("hidden.axis", np.array([0], np.int64))], (1, HIDDEN))
    y = b.dense(b.act("Relu", y, "hidden.relu"), "logit", 1)
    return b.graph(b.act("Sigmoid", y, "output"), "stateN")


def free_axes(graph: Graph) -> FreeAxes:
    """Return the symbol of the batch of a model's inputs and outputs."""
    return {name: {1 if "state" in name else 0: "N"} for name in (*graph.inputs, *graph.outputs)}


def _lstm(b: Builder, x: str) -> tuple[str, str]:
    """Add a layer over frames [T, N, features] that starts with `state`, and return its last hidden and cell state, [1, N, HIDDEN] each."""
    features, kind = b.shape(x)[2], TensorType(DType.FLOAT, (1, 1, HIDDEN))
    bounds = [b.weight(f"bound{k}", np.array([k], np.int64)) for k in range(3)]
    first = [b.node("Slice", f"state.{k}", ["state", *bounds[k : k + 2], bounds[0]], (1, 1, HIDDEN)) for k in range(2)]
    weights = [b.drawn(f"lstm.{name}", (1, 4 * HIDDEN, width), 2 * width) for name, width in (("weight", features), ("recurrence", HIDDEN))]
    biases = b.normal("lstm.bias", (1, 8 * HIDDEN))
    node = Node("lstm", "LSTM", (x, *weights, biases, "", *first), ("", "hidden", "cell"), {"hidden_size": HIDDEN})
    b.append(node, {"hidden": kind, "cell": kind})
    return "hidden", "cell"
