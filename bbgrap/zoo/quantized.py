"""A network of the zoo in 8 bits: the QDQ form in which models are served on CPUs, weights per channel and signed, maps unsigned.

    x -- QuantizeLinear -- DequantizeLinear -- Conv -- Relu -- QuantizeLinear -- ...
                  weight: int8 -- DequantizeLinear --'   a batch normalisation is folded into it before

Every map has one scale and zero point, from the range of its values over seeded inputs (`ranges.json`). What only selects or
renames values keeps those of its input; an activation has no map before it. Biases are int32, by the scales of input and weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from bbgrap.graph.types import Array, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.zoo.builder import Builder

Range = tuple[float, float]
"""The smallest and the largest value of a map."""

_KEEPS_SCALE = frozenset({"MaxPool", "Flatten", "Reshape", "Transpose"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})
_WITH_WEIGHTS = frozenset({"Conv", "Gemm"})


def measured_ranges(network: str) -> Mapping[str, Range]:
    """Return the ranges of a network's values, as `tools/measure_ranges.py` has measured them."""
    measured = json.loads(Path(__file__).with_name("ranges.json").read_text(encoding="utf-8"))
    return cast("Mapping[str, Range]", measured[network])


def quantized(graph: Graph, name: str, ranges: Mapping[str, Range]) -> Graph:
    """Return a network of convolutions, sums, pools and products in 8 bits.

    Args:
        graph: Of float32, as `Builder` makes it; a batch normalisation follows a convolution.
        name: Of the network that is made.
        ranges: Of the values named by `mapped_values`.
    """
    return _Quantizer(_with_folded_norms(graph), name, ranges).run()


def mapped_values(graph: Graph) -> tuple[str, ...]:
    """Return the values that get a range of their own, in order: the inputs, and what is neither a selection nor about to be activated."""
    folded = _with_folded_norms(graph)
    made = [node.outputs[0] for node in folded.nodes if node.op not in _KEEPS_SCALE and not _is_activated(folded, node.outputs[0])]
    return (*folded.inputs, *made)


def _is_activated(graph: Graph, value: str) -> bool:
    readers = graph.consumers.get(value, ())
    return len(readers) == 1 and readers[0].op in _ACTIVATIONS and value not in graph.outputs


def _with_folded_norms(graph: Graph) -> Graph:
    """Fold every batch normalisation into the convolution before it: `w * s` and `(b - mean) * s + shift`, s = scale / deviation."""
    weights, nodes, renamed = dict(graph.weights), list[Node](), dict[str, str]()
    norms = {node.inputs[0]: node for node in graph.nodes if node.op == "BatchNormalization"}
    for node in graph.nodes:
        if node.op == "BatchNormalization":
            continue
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        norm = norms.get(node.outputs[0])
        if norm is not None:
            scale, shift, mean, variance = (weights[operand].array for operand in norm.inputs[1:])
            epsilon = norm.attributes["epsilon"]
            assert isinstance(epsilon, float), "the builder's own attribute"
            factor = (scale / np.sqrt(variance + np.float32(epsilon))).astype(np.float32)
            folded = weights[node.inputs[1]].array * factor.reshape(-1, 1, 1, 1)
            weights |= {w.name: w for w in (make_weight(inputs[1], folded), make_weight(f"{node.name}.bias", shift - mean * factor))}
            inputs = (inputs[0], inputs[1], f"{node.name}.bias")
            renamed[norm.outputs[0]] = node.outputs[0]
        nodes.append(Node(node.name, node.op, inputs, node.outputs, node.attributes, node.domain))
    read = {name for node in nodes for name in node.inputs}
    kept = {name: weight for name, weight in weights.items() if name in read}
    types = {**graph.types, **{name: weight.type for name, weight in kept.items()}}
    return Graph(graph.name, tuple(nodes), graph.inputs, graph.outputs, kept, types, graph.opsets, graph.ir_version)


class _Quantizer:
    """Rewrites a folded network node by node.

    Invariants: `_scales` knows scale and zero point of every value that was quantized, `_stand_in` its value behind the pair.
    """

    def __init__(self, graph: Graph, name: str, ranges: Mapping[str, Range]) -> None:
        self._graph = graph
        self._made = Builder(name)
        self._ranges = ranges
        self._scales: dict[str, tuple[str, str]] = {}
        self._stand_in: dict[str, str] = {}

    def run(self) -> Graph:
        for name in self._graph.inputs:
            self._made.input(name, self._graph.types[name].known_shape)
            self._pair(name, self._own_scale(name), name)
        for node in self._graph.nodes:
            self._node(node)
        return self._made.graph(*self._graph.outputs)

    def _node(self, node: Node) -> None:
        (value,) = node.outputs
        made = f"{value}.exact" if value in self._graph.outputs else value
        inputs = [self._operand(node, k) for k in range(len(node.inputs))]
        self._made.append(Node(node.name, node.op, tuple(inputs), (made,), node.attributes), {made: self._graph.types[value]})
        if _is_activated(self._graph, value):
            self._stand_in[value] = made
            return
        scale = self._scales[node.inputs[0]] if node.op in _KEEPS_SCALE else self._own_scale(value)
        self._pair(value, scale, made)

    def _operand(self, node: Node, number: int) -> str:
        name = node.inputs[number]
        if name in self._stand_in:
            return self._stand_in[name]
        if node.op not in _WITH_WEIGHTS:
            return self._made.weight(name, self._graph.weights[name].array)  # a parameter: the bounds of a Clip
        filters = self._graph.weights[node.inputs[1]].array
        each = np.abs(filters).reshape(len(filters), -1).max(axis=1) / np.float32(127)
        if number == 1:
            rows = each.reshape(-1, *(1 for _ in filters.shape[1:]))
            return self._constant(name, np.clip(np.rint(filters / rows), -127, 127).astype(np.int8), each)
        steps = self._made.weights[self._scales[node.inputs[0]][0]].array * each
        return self._constant(name, np.rint(self._graph.weights[name].array / steps).astype(np.int32), steps)

    def _constant(self, name: str, values: Array, steps: Array) -> str:
        """Add a constant in integers, with a scale per element of axis 0, and return the float behind it."""
        inputs = (
            self._made.weight(f"{name}.quantized", values),
            self._made.weight(f"{name}.scale", steps.astype(np.float32)),
            self._made.weight(f"{name}.zero", np.zeros(len(values), values.dtype)),
        )
        kind = TensorType(DType.FLOAT, values.shape)
        self._made.append(Node(f"{name}.dequantize", "DequantizeLinear", inputs, (name,), {"axis": 0}), {name: kind})
        return name

    def _own_scale(self, value: str) -> tuple[str, str]:
        low, high = min(self._ranges[value][0], 0.0), max(self._ranges[value][1], 0.0)
        step = np.float32((high - low) / 255)
        zero = np.array(np.clip(np.rint(-low / step), 0, 255), np.uint8)
        return self._made.weight(f"{value}.scale", np.array(step)), self._made.weight(f"{value}.zero", zero)

    def _pair(self, value: str, scale: tuple[str, str], made: str) -> None:
        """Add the pair behind a value, of which `made` is the exact form."""
        bytes_, behind = f"{value}.bytes", value if value in self._graph.outputs else f"{value}.rounded"
        shape = self._graph.types[value].shape
        self._made.append(Node(f"{value}.quantize", "QuantizeLinear", (made, *scale), (bytes_,)), {bytes_: TensorType(DType.UINT8, shape)})
        dequantize = Node(f"{value}.dequantize", "DequantizeLinear", (bytes_, *scale), (behind,))
        self._made.append(dequantize, {behind: TensorType(DType.FLOAT, shape)})
        self._scales[value], self._stand_in[value] = scale, behind
