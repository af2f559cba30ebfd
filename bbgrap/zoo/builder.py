"""Building a network as a `Graph`, layer by layer: shapes are tracked, weights are drawn from a seeded generator.

Weights are He-initialised (variance 2 / fan-in, which keeps the size of activations through `Relu`) and batch-norm statistics are
random, so that outputs depend on every input and an error in any region of any layer shows in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType, Weight
from bbgrap.graph.weights import make_weight

OPSET = 17
IR_VERSION = 8

_BN_RANGE = (0.5, 1.5)
"""Batch-norm scale and variance; folding them must matter, and no channel may vanish."""


def _out(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1


class Builder:
    """A network under construction; every method adds a layer and returns the name of its output.

    Invariants: `types` knows every value so far, with batch 1 in dimension 0, `weights` the constants among them.
    """

    def __init__(self, name: str, input_shape: tuple[int, ...] | None = None, dtype: DType = DType.FLOAT) -> None:
        """Start a network `name` (which is also the seed), with an input `input` of shape `[1, C, H, W]` if one is given."""
        self.name = name
        self.types: dict[str, TensorType] = {}
        self._inputs: list[str] = []
        if input_shape is not None:
            self.input("input", input_shape, dtype)
        self._nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self._random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))

    def input(self, name: str, shape: tuple[int, ...], dtype: DType = DType.FLOAT) -> str:
        """Add an input of the network."""
        self._inputs.append(name)
        self.types[name] = TensorType(dtype, shape)
        return name

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.types[value].known_shape

    def graph(self, *outputs: str) -> Graph:
        """Return the finished network."""
        opsets = {node.domain: OPSET if not node.domain else 1 for node in self._nodes} | {"": OPSET}
        return Graph(self.name, tuple(self._nodes), tuple(self._inputs), outputs, self.weights, self.types, opsets, IR_VERSION)

    def conv(
        self,
        x: str,
        name: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool = False,
        gain: float = 1.0,
    ) -> str:
        """Add a square convolution; `pad=None` keeps the size at stride 1, `gain` scales its weights."""
        n, c, h, w = self.shape(x)
        pad = kernel // 2 if pad is None else pad
        fan_in = c // groups * kernel * kernel
        inputs = [x, self.drawn(f"{name}.weight", (channels, c // groups, kernel, kernel), fan_in / gain**2)]
        if bias:
            inputs.append(self.bias(f"{name}.bias", channels))
        shape = (n, channels, _out(h, kernel, stride, pad), _out(w, kernel, stride, pad))
        attributes: dict[str, Attribute] = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4, "group": groups}
        return self.node("Conv", name, inputs, shape, attributes)

    def up_conv(self, x: str, name: str, channels: int) -> str:
        """Add a transposed convolution 2x2 of stride 2, with biases: twice the height and width."""
        n, c, h, w = self.shape(x)
        inputs = [x, self.drawn(f"{name}.weight", (c, channels, 2, 2), c), self.bias(f"{name}.bias", channels)]
        return self.node("ConvTranspose", name, inputs, (n, channels, 2 * h, 2 * w), {"kernel_shape": (2, 2), "strides": (2, 2)})

    def norm(self, x: str, name: str, *, gain: float = 1.0) -> str:
        """Add a batch normalisation with random statistics; `gain` scales what it puts out."""
        channels = self.shape(x)[1]
        low, high = _BN_RANGE
        parts = {
            "weight": self._random.uniform(low, high, channels) * gain,
            "bias": self._random.normal(0, 0.1, channels),
            "running_mean": self._random.normal(0, 0.1, channels),
            "running_var": self._random.uniform(low, high, channels),
        }
        inputs = [x, *(self.weight(f"{name}.{part}", values.astype(np.float32)) for part, values in parts.items())]
        return self.node("BatchNormalization", name, inputs, self.shape(x), {"epsilon": 1e-5})

    def act(self, op: str, x: str, name: str) -> str:
        """Add an element-wise function of one input (`Relu`, `Sigmoid`)."""
        return self.node(op, name, [x], self.shape(x))

    def relu6(self, x: str, name: str) -> str:
        """Add a clip to 0..6."""
        bounds = [self.weight(label, np.array(value, np.float32)) for label, value in (("relu6.min", 0), ("relu6.max", 6))]
        return self.node("Clip", name, [x, *bounds], self.shape(x))

    def binary(self, op: str, x: str, y: str, name: str) -> str:
        """Add an element-wise function of two inputs of one shape (`Add`, `Mul`)."""
        return self.node(op, name, [x, y], self.shape(x))

    def max_pool(self, x: str, name: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Add a maximum over square windows."""
        n, c, h, w = self.shape(x)
        shape = (n, c, _out(h, kernel, stride, pad), _out(w, kernel, stride, pad))
        return self.node("MaxPool", name, [x], shape, {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4})

    def mean(self, x: str, name: str) -> str:
        """Add an average over height and width."""
        return self.node("GlobalAveragePool", name, [x], (*self.shape(x)[:2], 1, 1))

    def concat(self, parts: Sequence[str], name: str, axis: int = 1) -> str:
        """Join values along an axis."""
        shape = list(self.shape(parts[0]))
        shape[axis] = sum(self.shape(part)[axis] for part in parts)
        return self.node("Concat", name, list(parts), tuple(shape), {"axis": axis})

    def double(self, x: str, name: str) -> str:
        """Repeat every row and column."""
        n, c, h, w = self.shape(x)
        scales = self.weight("double.scales", np.array([1, 1, 2, 2], np.float32))
        attributes: dict[str, Attribute] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", name, [x, "", scales], (n, c, 2 * h, 2 * w), attributes)

    def reshape(self, x: str, name: str, shape: tuple[int, ...]) -> str:
        """Give a value another shape, keeping the batch; `shape` is without dimension 0."""
        wanted = self.weight(f"{name}.shape", np.array([0, *shape], np.int64))
        return self.node("Reshape", name, [x, wanted], (self.shape(x)[0], *shape))

    def transpose(self, x: str, name: str, order: tuple[int, ...]) -> str:
        """Reorder the axes."""
        return self.node("Transpose", name, [x], tuple(self.shape(x)[axis] for axis in order), {"perm": order})

    def flatten(self, x: str, name: str) -> str:
        """Join all axes but the batch."""
        n, *rest = self.shape(x)
        return self.node("Flatten", name, [x], (n, prod(rest)), {"axis": 1})

    def dense(self, x: str, name: str, features: int, *, bias: bool = True) -> str:
        """Add a fully connected layer."""
        n, width = self.shape(x)
        inputs = [x, self.drawn(f"{name}.weight", (features, width), width)]
        if bias:
            inputs.append(self.bias(f"{name}.bias", features))
        return self.node("Gemm", name, inputs, (n, features), {"transB": 1})

    def linear(self, x: str, name: str, features: int) -> str:
        """Add a linear layer with biases over the last axis, written as a product and a sum."""
        *leading, width = self.shape(x)
        weight = self.drawn(f"{name}.weight", (width, features), width)
        product = self.node("MatMul", f"{name}.product", [x, weight], (*leading, features))
        return self.node("Add", name, [product, self.bias(f"{name}.bias", features)], (*leading, features))

    def layer_norm(self, x: str, name: str, epsilon: float = 1e-6) -> str:
        """Add a normalisation over the last axis with random scale and bias."""
        width = self.shape(x)[-1]
        inputs = [x, self.uniform(f"{name}.weight", width), self.bias(f"{name}.bias", width)]
        return self.node("LayerNormalization", name, inputs, self.shape(x), {"axis": -1, "epsilon": epsilon})

    def scalar(self, op: str, x: str, name: str, value: float) -> str:
        """Add an element-wise function (`Add`, `Mul`, `Div`) of a value and a constant number."""
        return self.node(op, name, [x, self.weight(f"{name}.constant", np.array(value, np.float32))], self.shape(x))

    def node(
        self,
        op: str,
        name: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        attributes: Mapping[str, Attribute] | None = None,
        dtype: DType = DType.FLOAT,
        domain: str = "",
    ) -> str:
        """Add any operator with one output, named like the node."""
        self.append(Node(name, op, tuple(inputs), (name,), attributes or {}, domain), {name: TensorType(dtype, shape)})
        return name

    def append(self, node: Node, types: Mapping[str, TensorType]) -> None:
        """Add any operator; `types` are those of its outputs."""
        self._nodes.append(node)
        self.types |= types

    def weight(self, name: str, array: Array) -> str:
        """Add a constant; asked again for the same name, keep the first."""
        if name not in self.weights:
            self.weights[name] = make_weight(name, array)
            self.types[name] = self.weights[name].type
        return name

    def normal(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a constant of normally distributed numbers."""
        return self.weight(name, self._random.standard_normal(shape, np.float32))

    def drawn(self, name: str, shape: tuple[int, ...], fan_in: float) -> str:
        """Add a constant of normally distributed numbers with variance 2 / `fan_in`."""
        values = self._random.standard_normal(shape, np.float32)
        return self.weight(name, values * np.float32(np.sqrt(2 / fan_in)))

    def uniform(self, name: str, size: int) -> str:
        """Add a constant of scales, as norms have them."""
        return self.weight(name, self._random.uniform(*_BN_RANGE, size).astype(np.float32))

    def any_bytes(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a constant of evenly distributed bytes."""
        return self.weight(name, self._random.integers(0, 256, shape, np.uint8))

    def bias(self, name: str, size: int) -> str:
        """Add a constant of small normally distributed numbers."""
        return self.weight(name, self._random.standard_normal(size, np.float32) * np.float32(0.1))
