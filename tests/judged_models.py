"""Small seeded models on which answers are judged: well and ill conditioned, quantized, recurrent, with ties and near zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bbgrap.graph import Array
from bbgrap.graph.onnx_io import save_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import build
from bbgrap.zoo.vit import vit

ROWS, CHANNELS, INPUTS = PlanOptions(), PlanOptions(split="channels"), PlanOptions(split="inputs")


@dataclass(frozen=True, slots=True)
class JudgedModel:
    """A model, what its inputs look like, and the plans that cut it in as many ways."""

    name: str
    write: Callable[[Path], None]
    draw: Callable[[np.random.Generator], Mapping[str, Array]]
    plans: tuple[tuple[PlanOptions, int], ...]


class _Model:
    """An ONNX model under construction, with seeded weights."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, values: Array | Sequence[float] | float, dtype: type[np.generic] = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight(scale * self.random.standard_normal(shape))

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        writes = [name, *(f"{name}.{n}" for n in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), writes, name=f"n{len(self.nodes)}", **attributes))
        return name

    def write(self, path: Path, inputs: Mapping[str, tuple[int, tuple[int, ...]]], outputs: Sequence[str]) -> None:
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        starts = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
        graph = helper.make_graph(self.nodes, path.stem, starts, ends, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _images(size: int) -> Callable[[np.random.Generator], Mapping[str, Array]]:
    return lambda random: {"input": random.standard_normal((1, 3, size, size)).astype(np.float32)}


def _write_tiny(path: Path) -> None:
    save_graph(build("tiny"), path)


def _write_vit(path: Path) -> None:
    save_graph(vit("small_vit", depth=2, width=32, heads=4, size=32, patch=8, classes=10), path)


def _write_recurrent(path: Path) -> None:
    """Features of a sequence by a convolution, an LSTM and a GRU over them, and a label for every step."""
    m = _Model(3)
    x = m.node("Relu", m.node("Conv", "input", m.normal(16, 8, 3, scale=0.3), m.normal(16, scale=0.1), pads=[1, 1]))
    x = m.node("Transpose", x, perm=[2, 0, 1])
    y = m.node("LSTM", x, m.normal(1, 48, 16, scale=0.3), m.normal(1, 48, 12, scale=0.3), m.normal(1, 96, scale=0.1), hidden_size=12)
    y = m.node("Squeeze", y, m.weight([1], np.int64))
    z = m.node("GRU", y, m.normal(1, 30, 12, scale=0.3), m.normal(1, 30, 10, scale=0.3), m.normal(1, 60, scale=0.1), hidden_size=10)
    z = m.node("Squeeze", z, m.weight([1], np.int64))
    z = m.node("Add", m.node("MatMul", z, m.normal(10, 24)), m.normal(24, scale=0.1))
    m.write(path, {"input": (TensorProto.FLOAT, (1, 8, 40))}, [z])


def _write_quantized(path: Path) -> None:
    """Two convolutions between 8-bit integers, as a quantizer for CPUs writes them; the integers and the floats are outputs."""
    m = _Model(4)
    zero, x = m.weight(128, np.uint8), "input"
    for channels, before, scale in ((16, 3, 0.05), (16, 16, 0.04), (16, 16, 0.04)):
        x = m.node("DequantizeLinear", m.node("QuantizeLinear", x, m.weight(0.03), zero), m.weight(0.03), zero)
        filters = m.weight(m.random.integers(-90, 90, (channels, before, 3, 3)), np.int8)
        w = m.node("DequantizeLinear", filters, m.weight(scale / before), m.weight(0, np.int8))
        x = m.node("Conv", x, w, m.normal(channels, scale=0.1), pads=[1, 1, 1, 1])
        x = m.node("Relu", x)
    code = m.node("QuantizeLinear", x, m.weight(0.2), m.weight(0, np.uint8))
    m.write(path, {"input": (TensorProto.FLOAT, (1, 3, 24, 24))}, [code, x])


def _gelu(m: _Model, x: str) -> str:
    cube = m.node("Mul", x, m.node("Mul", x, x))
    inner = m.node("Mul", m.weight(0.79788456), m.node("Add", x, m.node("Mul", m.weight(0.044715), cube)))
    return m.node("Mul", x, m.node("Mul", m.weight(0.5), m.node("Add", m.weight(1.0), m.node("Tanh", inner))))


def _squares_norm(m: _Model, x: str, axis: int, extent: int, shape: tuple[int, ...]) -> str:
    """Normalise by the mean of squares less the square of the mean: where values are nearly equal, nothing but rounding is left."""
    share = m.weight(1 / extent)
    axes = m.weight([axis], np.int64)
    mean = m.node("Mul", m.node("ReduceSum", x, axes, keepdims=1), share)
    squares = m.node("Mul", m.node("ReduceSum", m.node("Mul", x, x), axes, keepdims=1), share)
    variance = m.node("Max", m.weight(0.0), m.node("Sub", squares, m.node("Mul", mean, mean)))
    factor = m.node("Reciprocal", m.node("Sqrt", m.node("Add", variance, m.weight(1e-6))))
    scale, bias = m.weight(m.random.uniform(0.5, 1.5, shape)), m.normal(*shape, scale=0.1)
    return m.node("Add", m.node("Mul", m.node("Sub", x, mean), m.node("Mul", factor, scale)), bias)


def _write_ill_conditioned(path: Path) -> None:
    """A classifier of bytes: embedding, normalisation over nearly equal values, convolution over the sequence, maximum, logits."""
    m = _Model(5)
    ids = m.node("Reshape", "bytes", m.weight([1, 256, 1], np.int64))
    hot = m.node("Cast", m.node("Equal", ids, m.weight(np.arange(17).reshape(1, 1, 17), np.int32)), to=TensorProto.FLOAT)
    table = 1.0 + 0.01 * m.random.uniform(0.5, 1.5, (17, 16)) * np.where(np.arange(17) % 2, 1, -1)[:, None]
    x = _gelu(m, m.node("MatMul", hot, m.weight(table)))
    x = m.node("Reshape", x, m.weight([1, 64, 64], np.int64))
    x = _squares_norm(m, x, 1, 64, (1, 64, 1))
    x = m.node("Conv", m.node("Transpose", x, perm=[0, 2, 1]), m.normal(48, 64, 5, scale=0.05), m.normal(48, scale=0.1))
    x = m.node("Squeeze", m.node("GlobalMaxPool", _gelu(m, x)), m.weight([2], np.int64))
    x = _squares_norm(m, x, 1, 48, (1, 48))
    x = m.node("Add", m.node("MatMul", x, m.normal(48, 20, scale=0.3)), m.normal(20, scale=0.1))
    m.write(path, {"bytes": (TensorProto.INT32, (1, 256))}, [m.node("Softmax", x, axis=1)])


def _write_detector(path: Path) -> None:
    """Scores far below any detection, a map that is the difference of nearly equal ones, and the best places with their scores."""
    m = _Model(6)
    x = m.node("Relu", m.node("Conv", "input", m.normal(16, 3, 3, 3, scale=0.3), m.normal(16, scale=0.1), pads=[1, 1, 1, 1]))
    x = m.node("Relu", m.node("Conv", x, m.normal(16, 16, 3, 3, scale=0.12), m.normal(16, scale=0.1), pads=[1, 1, 1, 1], strides=[2, 2]))
    head = m.random.standard_normal((8, 16, 3, 3)) * 0.1
    moved = head + 1e-6 * m.random.standard_normal(head.shape)
    one, other = (m.node("Conv", x, m.weight(w), pads=[1, 1, 1, 1]) for w in (head, moved))
    near = m.node("Sub", one, other)
    score = m.node("Sigmoid", m.node("Add", one, m.weight(-12.0)))
    flat = m.node("Flatten", score)
    best = m.node("TopK", flat, m.weight([20], np.int64), outputs=2)
    m.write(path, {"input": (TensorProto.FLOAT, (1, 3, 32, 32))}, [near, score, best, f"{best}.1"])


MODELS = (
    JudgedModel("tiny", _write_tiny, _images(32), ((ROWS, 3), (CHANNELS, 2), (INPUTS, 3))),
    JudgedModel("vit", _write_vit, _images(32), ((ROWS, 2), (CHANNELS, 3), (INPUTS, 2))),
    JudgedModel(
        "recurrent",
        _write_recurrent,
        lambda random: {"input": random.standard_normal((1, 8, 40)).astype(np.float32)},
        ((ROWS, 2), (CHANNELS, 2), (INPUTS, 2)),
    ),
    JudgedModel("quantized", _write_quantized, _images(24), ((ROWS, 3), (CHANNELS, 2))),
    JudgedModel(
        "ill_conditioned",
        _write_ill_conditioned,
        lambda random: {"bytes": random.integers(0, 2, (1, 256)).astype(np.int32)},
        ((ROWS, 2), (PlanOptions("fewer-exchanges"), 2), (INPUTS, 2)),
    ),
    JudgedModel("detector", _write_detector, _images(32), ((ROWS, 3), (CHANNELS, 2), (INPUTS, 2))),
)
