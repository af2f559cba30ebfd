"""A model that grows node by node: every node is run by onnxruntime when it is added, and left out if that fails.

Every value of the model is therefore known while it grows, with its shape and its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from bbgrap.graph import Array

MOST_ELEMENTS = 20_000
"""Larger values would make thousands of models slow."""

LARGEST = {2: 500.0, 4: 1e5, 8: 1e5}
"""Floats beyond this magnitude are mostly left out, by bytes per number: they overflow in the layers that follow."""

IR_VERSION = 10


def elem_type(array: Array) -> int:
    """Return the ONNX type of an array's elements."""
    return onnx.TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def _quiet() -> Any:  # noqa: ANN401 - onnxruntime has no types
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


@dataclass(frozen=True)
class Call:
    """A node to add; outputs that are not `wanted` stay unnamed."""

    op: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Any]
    domain: str = ""
    wanted: tuple[bool, ...] = (True,)


class Growth:
    """A model under construction.

    `values` holds every value by name, `inputs` those that are model inputs, `weights` those that are initializers.
    """

    def __init__(self, random: np.random.Generator, opset: int, *, plain: bool = False) -> None:
        """Start without a node; `plain`: all weights are initializers."""
        self.plain = plain
        self.random = random
        self.opset = opset
        self.values: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.made: list[str] = []
        """Values that later nodes should read: inputs with data, and results; no weights."""

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self.random.random() < probability)

    def one_of(self, *choices: Any) -> Any:  # noqa: ANN401 - whatever is given
        """Return one of the arguments."""
        return choices[int(self.random.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return int(self.random.integers(low, high + 1))

    def give(self, array: Array) -> str:
        """Add a model input."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = array
        return name

    def keep(self, array: Array) -> str:
        """Add an initializer."""
        name = f"w{len(self.weights)}"
        self.weights[name] = self.values[name] = np.asarray(array)
        return name

    def add(self, op: str, operands: Sequence[str | None], *, domain: str = "", outputs: int = 1, **attributes: Any) -> list[str]:  # noqa: ANN401
        """Add a node with its attributes; return its outputs, or nothing if onnxruntime does not run it."""
        call = Call(op, tuple(name or "" for name in operands), attributes, domain, (True,) * outputs)
        return self.call(call)

    def call(self, call: Call) -> list[str]:
        """Add a node; return its wanted outputs, or nothing if onnxruntime does not run it or its values are of no use."""
        names = [f"v{len(self.nodes)}_{n}" if wanted else "" for n, wanted in enumerate(call.wanted)]
        node = helper.make_node(call.op, list(call.operands), names, name=f"n{len(self.nodes)}", domain=call.domain, **call.attributes)
        results = self._run(node)
        if not results or not all(self._useful(array) for array in results):
            return []
        named = [name for name in names if name]
        self.nodes.append(node)
        self.values.update(zip(named, results, strict=True))
        self.made += named
        return named

    def _run(self, node: onnx.NodeProto) -> list[Array]:
        read = {name: self.values[name] for name in node.input if name}
        for attribute in node.attribute:  # bodies read values from outside
            if attribute.HasField("g"):
                read |= {name: self.values[name] for inner in attribute.g.node for name in inner.input if name in self.values}
        feeds = {name: array for name, array in read.items() if name not in self.weights}
        constants = {name: array for name, array in read.items() if name in self.weights}
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        try:
            session = ort.InferenceSession(
                self._model([node], feeds, constants, outputs).SerializeToString(), _quiet(), ["CPUExecutionProvider"]
            )
            return [array for array in session.run(None, feeds) if isinstance(array, np.ndarray)]
        except Exception:  # its exceptions have no common base
            return []

    def _useful(self, array: Array) -> bool:
        if array.size > MOST_ELEMENTS or array.ndim > 6 or array.dtype.kind not in "fiubO" or (array.size == 0 and self.chance(0.9)):
            return False
        if array.dtype.kind != "f":
            return True
        tame = bool(np.isfinite(array).all()) and float(np.abs(array).max(initial=0)) < LARGEST[array.dtype.itemsize]
        return tame or self.chance(0.03)

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        feeds: Mapping[str, Array],
        constants: Mapping[str, Array],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(name, elem_type(array), array.shape) for name, array in feeds.items()]
        initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
        graph = helper.make_graph(list(nodes), "random", inputs, list(outputs), initializers)
        domains = sorted({node.domain for node in nodes if node.domain})
        versions = {"ai.onnx.ml": 5 if any(node.op_type == "TreeEnsemble" for node in nodes) else 3}
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, versions.get(domain, 1)) for domain in domains)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    def finish(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model of what the outputs depend on."""
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(name for name in node.input if name)
                needed.update(name for a in node.attribute if a.HasField("g") for inner in a.g.node for name in inner.input)
                nodes.append(node)
        inputs = {name: array for name, array in self.inputs.items() if name in needed}
        weights = {name: array for name, array in self.weights.items() if name in needed}
        declared = [self._declared(name) for name in outputs]
        return self._model(nodes[::-1], inputs, weights, declared)

    def _declared(self, name: str) -> onnx.ValueInfoProto:
        array = self.values[name]
        return helper.make_tensor_value_info(name, elem_type(array), array.shape if self.chance(0.6) else None)


def size_of(shape: Sequence[int]) -> int:
    """Return the number of elements."""
    return prod(shape)
