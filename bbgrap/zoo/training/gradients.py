"""How a gradient goes backward through each operator, in standard operators that machines can divide.

A rule adds nodes that compute, from the gradient `dy` of a node's output, those of its inputs that are asked for by name.

    Conv      data: the transposed convolution with the same weights
              weights: a convolution of the data with dy as the weights, batch and channels exchanged, strides become dilations; sums over
              the batch are then sums over input channels
    MaxPool   a convolution with constant weights takes every window apart, [N, C*K, H', W']; dy stands where an element is the maximum;
              the transposed convolution puts it back (where windows do not overlap, DepthToSpace). Of a window with two maxima both get
              dy; torch gives it to the first. Behind a Relu, where most such windows are, they are zero and get nothing in the end.

Batch normalisation is by the statistics of the batch, forward, too (Ioffe and Szegedy, arXiv:1502.03167); sums over batch and map are
`ReduceSum`, so that machines can add up their parts of them:

    hat = (x - mean) / deviation        y = hat * scale + bias        m elements per channel
    dbias = sum(dy)                     dscale = sum(dy * hat)        dx = scale / deviation * (dy - dbias / m - hat * dscale / m)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from bbgrap.errors import ModelError
from bbgrap.graph.types import Attribute, DType, Node
from bbgrap.zoo.builder import Builder

GradientRule = Callable[[Builder, Node, str, Mapping[int, str]], Mapping[int, str]]
"""Builder, node, gradient of its output, names by input number for the gradients to be made; returns the gradients' values."""

RowsColumns = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Window:
    """The windows of a convolution or a pooling over maps: kernel, stride and padding in front, by rows and columns."""

    kernel: RowsColumns
    strides: RowsColumns
    pads: RowsColumns

    @classmethod
    def of(cls, b: Builder, node: Node) -> _Window:
        kernel, strides, pads = (_pair(node, name, count) for name, count in (("kernel_shape", 0), ("strides", 1), ("pads", 0)))
        rest = {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": (1, 1), "group": 1, "storage_order": 0, "count_include_pad": 0}
        if any(node.attributes.get(name, usual) != usual for name, usual in rest.items()):
            raise ModelError(f"training: node '{node.name}' ({node.op}): expected no groups, dilations, ceil_mode or auto_pad")
        return cls(kernel, strides, pads)

    def ends(self, made: tuple[int, ...], read: tuple[int, ...]) -> RowsColumns:
        """Return how far the last window reaches behind maps that were read; negative where it does not reach their end."""
        parts = zip(made[2:], read[2:], self.kernel, self.strides, self.pads, strict=True)
        rows, columns = ((out - 1) * stride + kernel - pad - size for out, size, kernel, stride, pad in parts)
        return rows, columns


def _pair(node: Node, name: str, usual: int) -> RowsColumns:
    value = node.attributes.get(name, (usual, usual))
    numbers = np.asarray(value).tolist()
    if len(numbers) == 4 and numbers[:2] == numbers[2:]:
        numbers = numbers[:2]
    if len(numbers) != 2:
        raise ModelError(f"training: node '{node.name}' ({node.op}): expected equal {name} on both sides of maps, got {value!r}")
    return numbers[0], numbers[1]


def _relu(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    return {0: b.binary("Mul", dy, b.act("Sign", node.outputs[0], f"{node.name}.sign"), names[0])}


def _add(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    if any(b.shape(name) != b.shape(dy) for name in node.inputs):
        raise ModelError(f"training: node '{node.name}' (Add): expected operands of one shape")
    return dict.fromkeys(names, dy)


def _flatten(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    shape = b.shape(node.inputs[0])
    return {0: b.node("Reshape", names[0], [dy, b.weight(f"{names[0]}.shape", np.array(shape, np.int64))], shape)}


def _gemm(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    if dict(node.attributes) != {"transB": 1} or any(len(b.shape(bias)) != 1 for bias in node.inputs[2:]):
        raise ModelError(f"training: node '{node.name}' (Gemm): expected transB alone, and biases [features]")
    x, weight = node.inputs[:2]
    found = {}
    if 0 in names:
        found[0] = b.node("Gemm", names[0], [dy, weight], b.shape(x))
    if 1 in names:
        found[1] = b.node("Gemm", names[1], [dy, x], b.shape(weight), {"transA": 1})
    return found | _bias(b, dy, names)


def _bias(b: Builder, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    if 2 not in names:
        return {}
    _, channels, *rest = b.shape(dy)
    axes = b.weight(f"sum_of_{len(rest)}", np.array([0, *range(2, len(rest) + 2)], np.int64))
    return {2: b.node("ReduceSum", names[2], [dy, axes], (channels,), {"keepdims": 0})}


def _conv(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    x, weight = node.inputs[:2]
    window = _Window.of(b, node)
    found = {}
    if 0 in names:
        found[0] = _scattered(b, dy, weight, names[0], b.shape(x), window)
    if 1 in names:
        found[1] = _weight_gradient(b, x, dy, names[1], b.shape(weight), window)
    return found | _bias(b, dy, names)


def _scattered(b: Builder, dy: str, weight: str, name: str, shape: tuple[int, ...], window: _Window, group: int = 1) -> str:
    """Add the transposed convolution that makes maps of a shape."""
    kernel = tuple(max(sizes) for sizes in zip(window.kernel, window.strides, strict=True))
    if kernel != window.kernel:  # between windows there is nothing: with zeros, every element has a window
        more = [after - before for after, before in zip(kernel, window.kernel, strict=True)]
        pads = b.weight(f"{name}.zeros", np.array([0, 0, 0, 0, 0, 0, *more], np.int64))
        weight = b.node("Pad", f"{name}.filters", [weight, pads], (*b.shape(weight)[:2], *kernel))
        window = _Window((kernel[0], kernel[1]), window.strides, window.pads)
    ends = window.ends(b.shape(dy), shape)
    attributes: dict[str, Attribute] = {
        "kernel_shape": window.kernel,
        "strides": window.strides,
        "pads": (*window.pads, *(max(0, end) for end in ends)),
        "output_padding": tuple(max(0, -end) for end in ends),
        "group": group,
    }
    return b.node("ConvTranspose", name, [dy, weight], shape, attributes)


def _weight_gradient(b: Builder, x: str, dy: str, name: str, shape: tuple[int, ...], window: _Window) -> str:
    exchange = (1, 0, 2, 3)
    data, filters = b.transpose(x, f"{name}.data", exchange), b.transpose(dy, f"{name}.filters", exchange)
    ends = window.ends(b.shape(dy), b.shape(x))
    attributes: dict[str, Attribute] = {
        "kernel_shape": b.shape(dy)[2:],
        "dilations": window.strides,
        "pads": (*window.pads, *(max(0, end) for end in ends)),
    }
    more = tuple(size + max(0, -end) for size, end in zip(window.kernel, ends, strict=True))
    y = b.node("Conv", f"{name}.exchanged", [data, filters], (shape[1], shape[0], *more), attributes)
    if more != window.kernel:  # the last windows do not reach the end
        bounds = [b.weight(f"{name}.{label}", np.array(value, np.int64)) for label, value in (("from", (0, 0)), ("to", window.kernel))]
        y = b.node(
            "Slice", f"{name}.cut", [y, *bounds, b.weight("rows_columns", np.array([2, 3], np.int64))], (shape[1], shape[0], *window.kernel)
        )
    return b.transpose(y, name, exchange)


def _max_pool(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    window, count = _Window.of(b, node), prod(_Window.of(b, node).kernel)
    (x,), (y,) = node.inputs, node.outputs
    (n, c, h, w), (rows, columns) = b.shape(x), b.shape(y)[2:]
    apart = np.tile(np.eye(count, dtype=np.float32).reshape(count, 1, *window.kernel), (c, 1, 1, 1))
    filters = b.weight(f"windows.{'x'.join(map(str, window.kernel))}.{c}", apart)
    attributes: dict[str, Attribute] = {"kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads * 2, "group": c}
    pieces = b.node("Conv", f"{names[0]}.apart", [x, filters], (n, c * count, rows, columns), attributes)
    split, joined = ((n, c, count, rows, columns), (n, c * count, rows, columns))
    to_split, to_joined = (b.weight(f"{names[0]}.{label}", np.array(s, np.int64)) for label, s in (("split", split), ("joined", joined)))
    axis = b.weight("windows.axis", np.array([2], np.int64))
    pieces = b.node("Reshape", f"{names[0]}.windows", [pieces, to_split], split)
    most, wide = (
        b.node("Unsqueeze", f"{names[0]}.{label}", [v, axis], (n, c, 1, rows, columns)) for label, v in (("most", y), ("wide", dy))
    )
    chosen = b.node("Equal", f"{names[0]}.is_most", [pieces, most], split, None, DType.BOOL)
    chosen = b.node("Cast", f"{names[0]}.chosen", [chosen], split, {"to": DType.FLOAT.value})
    spread = b.node("Mul", f"{names[0]}.spread", [chosen, wide], split)
    spread = b.node("Reshape", f"{names[0]}.pieces", [spread, to_joined], joined)
    side = window.kernel[0]
    if window == _Window((side, side), (side, side), (0, 0)) and (h, w) == (side * rows, side * columns):  # windows side by side: a copy
        return {0: b.node("DepthToSpace", names[0], [spread], (n, c, h, w), {"blocksize": side, "mode": "CRD"})}
    return {0: _scattered(b, spread, filters, names[0], (n, c, h, w), window, group=c)}


def _average_pool(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    window, shape = _Window.of(b, node), b.shape(node.inputs[0])
    if any(window.pads):
        raise ModelError(f"training: node '{node.name}' (AveragePool): expected no padding, got {window.pads}")
    parts = np.full((shape[1], 1, *window.kernel), 1 / prod(window.kernel), np.float32)
    return {0: _scattered(b, dy, b.weight(f"{names[0]}.parts", parts), names[0], shape, window, group=shape[1])}


def _mean(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    shape = b.shape(node.inputs[0])
    parts = b.weight(f"{names[0]}.parts", np.full((1, 1, *shape[2:]), 1 / prod(shape[2:]), np.float32))
    return {0: b.node("Mul", names[0], [dy, parts], shape)}


def normalized(b: Builder, node: Node) -> str:
    """Add what a normalisation does in training."""
    x, scale, bias = node.inputs[:3]
    (name,) = node.outputs
    shape = b.shape(x)
    epsilon = node.attributes.get("epsilon", 1e-5)
    assert isinstance(epsilon, float), "the builder's own attribute"
    mean = b.scalar("Mul", channel_sums(b, x, f"{name}.sum"), f"{name}.mean", 1 / _count(shape))
    centered = b.node("Sub", f"{name}.centered", [x, mean], shape)
    squares = channel_sums(b, b.binary("Mul", centered, centered, f"{name}.squares"), f"{name}.squares.sum")
    variance = b.scalar("Mul", squares, f"{name}.variance", 1 / _count(shape))
    deviation = b.act("Sqrt", b.scalar("Add", variance, f"{name}.variance.positive", epsilon), f"{name}.deviation")
    hat = b.node("Div", f"{name}.hat", [centered, deviation], shape)
    scaled = b.node("Mul", f"{name}.scaled", [hat, _per_channel(b, scale, f"{name}.scale", len(shape))], shape)
    return b.node("Add", name, [scaled, _per_channel(b, bias, f"{name}.bias.wide", len(shape))], shape)


def gradient_of_norm(b: Builder, node: Node, dy: str, names: Mapping[int, str]) -> dict[int, str]:
    """Add the gradients of a normalisation's input, scale and bias."""
    (name,) = node.outputs
    shape, channels = b.shape(dy), b.shape(dy)[1]
    hat, each = f"{name}.hat", b.weight("channels.all", np.array([-1], np.int64))
    sums = [
        channel_sums(b, b.binary("Mul", dy, hat, f"{name}.by_hat"), f"{name}.scale.sum"),
        channel_sums(b, dy, f"{name}.bias.sum"),
    ]
    found = {k: b.node("Reshape", names[k], [total, each], (channels,)) for k, total in enumerate(sums, 1)}
    if 0 not in names:
        return found
    by_hat, mean = (b.scalar("Mul", total, f"{total}.mean", 1 / _count(shape)) for total in sums)
    centered = b.node("Sub", f"{name}.error.centered", [dy, mean], shape)
    error = b.binary("Sub", centered, b.node("Mul", f"{name}.along_hat", [hat, by_hat], shape), f"{name}.error")
    factor = b.binary("Div", f"{name}.scale", f"{name}.deviation", f"{name}.factor")
    return found | {0: b.node("Mul", names[0], [error, factor], shape)}


def channel_sums(b: Builder, x: str, name: str) -> str:
    """Add the sums over all but the channels of [N, C, H, W], as [1, C, 1, 1]."""
    shape = b.shape(x)
    axes = b.weight("but_channels", np.array([0, *range(2, len(shape))], np.int64))
    return b.node("ReduceSum", name, [x, axes], (1, shape[1], *(1 for _ in shape[2:])))


def _per_channel(b: Builder, x: str, name: str, rank: int) -> str:
    shape = (1, -1, *(1 for _ in range(rank - 2)))
    wanted = b.weight("channels.wide", np.array(shape, np.int64))
    return b.node("Reshape", name, [x, wanted], (1, b.shape(x)[0], *shape[2:]))


def _count(shape: tuple[int, ...]) -> int:
    return prod(shape) // shape[1]


RULES: Mapping[str, GradientRule] = {
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": gradient_of_norm,
    "Conv": _conv,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _mean,
    "MaxPool": _max_pool,
    "Relu": _relu,
}
"""By operator."""
