"""What small ONNX models for the tests of the command line are made of."""

import numpy as np
from onnx import NodeProto, helper

from bbgrap.graph.types import Array


def convolution() -> tuple[NodeProto, dict[str, Array]]:
    """Return a 3x3 convolution of x to y that keeps the size, with four channels, and its weight."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    return helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), {"w": weight}
