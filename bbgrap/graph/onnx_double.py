"""A model in 64-bit floats, operator by operator. One of the files that import onnx (see `onnx_io`).

Weights, constants and the targets of casts become 64-bit floats; whoever runs it gives 64-bit inputs. Each operator is a model of its own:
onnxruntime has 64-bit kernels for many, and the ONNX package has reference implementations for most others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from bbgrap.graph.double_fused import fused
from bbgrap.graph.double_windows import average_pool, transposed_convolution
from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_read import OnnxModel, array_of
from bbgrap.graph.onnx_tidy import bodies_of, copy_of, graphs_of, reads_of
from bbgrap.graph.types import Array

_NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})

_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype", "SequenceEmpty": "dtype"}
"""The attributes that say the element type of a result."""

_SINGLE_OPERANDS = {
    "QuantizeLinear": (0, 1),
    "DequantizeLinear": (1,),
    "DynamicQuantizeLinear": (0,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "Resize": (2,),
    "Upsample": (1,),
}
"""Operands that are 32-bit floats by definition: scales, and what is quantized."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One node of a model in 64-bit floats.

    `reads` are its operands and what its bodies capture, without those left out; `writes` its results without those left out.
    """

    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    node: NodeProto = field(repr=False)
    opsets: tuple[tuple[str, int], ...]
    ir_version: int

    def operands(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return what it reads, in the element types that it takes: weights become 64-bit floats only here, one operator's at a time."""
        single = {self.node.input[place] for place in _SINGLE_OPERANDS.get(self.kind, ()) if place < len(self.node.input)}
        return {name: arrays[name].astype(np.float32) if name in single else wide(arrays[name]) for name in self.reads}

    def alone(self, operands: Mapping[str, Array]) -> bytes:
        """Return a model of this operator only, which takes `operands`."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in operands.items()
        ]
        graph = helper.make_graph([self.node], "operator", inputs, [ValueInfoProto(name=name) for name in self.writes])
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version).SerializeToString())

    def by_definition(self, operands: Mapping[str, Array], sizes: Sequence[int]) -> Sequence[Array]:
        """Return what the reference implementation of the ONNX package computes, or one here where that is missing or takes too long.

        `sizes` are the extents of the first result behind its first two axes.

        Raises:
            Exception: of many kinds, if there is none, or if it fails.
        """
        attributes = {item.name: helper.get_attribute_value(item) for item in self.node.attribute}
        given = [operands[name] if name else None for name in self.node.input]
        if self.node.domain == "com.microsoft":
            return [made for made, name in zip(fused(self.kind, given, attributes), self.node.output, strict=False) if name]
        match self.kind, given:
            case "GlobalMaxPool", [np.ndarray() as data]:  # the ONNX package's (1.23) fails unless there are four axes
                return [data.max(axis=tuple(range(2, data.ndim)), keepdims=True)]
            case "ConvTranspose", [np.ndarray() as data, np.ndarray() as weight, *bias]:
                return [transposed_convolution(data, weight, bias[0] if bias else None, attributes, sizes)]
            case "AveragePool", [np.ndarray() as data]:
                return [average_pool(data, attributes, sizes)]
            case _:
                from onnx.reference import ReferenceEvaluator  # slow to import, and seldom needed

                evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(self.alone(operands)))
                return list(evaluator.run(None, dict(operands)))

    def products(self, operands: Mapping[str, Array], results: Sequence[Array]) -> int:
        """Return the multiplications of a convolution; of other operators 0, they take no time beside it."""
        if self.kind not in _WEIGHTED:
            return 0
        weight, data = operands[self.node.input[1]], operands[self.node.input[0]]
        positions = results[0] if self.kind == "Conv" else data
        return positions.size * prod(weight.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class DoubleModel:
    """A model in 64-bit floats: its operators in an order in which they can run, and its constants by name, as the file has them."""

    operators: tuple[Operator, ...]
    constants: Mapping[str, Array] = field(repr=False)
    outputs: tuple[str, ...]

    @property
    def freed(self) -> list[tuple[str, ...]]:
        """For each operator, the values that nothing reads after it."""
        kept, freed = set(self.outputs), []
        for operator in reversed(self.operators):
            done = tuple(name for name in dict.fromkeys((*operator.reads, *operator.writes)) if name not in kept)
            kept.update(done)
            freed.append(done)
        return freed[::-1]


def widened(model: OnnxModel) -> DoubleModel:
    """Return a model with 64-bit floats in the place of all others."""
    proto = copy_of(model.proto)
    constants = {t.name: model.weights[t.name] if is_external(t) else array_of(t) for t in proto.graph.initializer}
    opsets = tuple((item.domain, item.version) for item in proto.opset_import)
    operators = []
    for node in proto.graph.node:
        _widen(node)
        for body in bodies_of(node):
            for graph in graphs_of(body):
                _widen_body(graph)
        writes = tuple(name for name in node.output if name)
        operators.append(Operator(node.op_type, tuple(dict.fromkeys(reads_of(node))), writes, node, opsets, proto.ir_version))
    return DoubleModel(tuple(operators), constants, tuple(item.name for item in proto.graph.output))


def wide(array: Array) -> Array:
    """Return an array in 64-bit floats, if it holds floats."""
    narrow = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if narrow else array


def _widen(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name == _TYPE_ATTRIBUTES.get(node.op_type) and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        elif attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(_wide_tensor(attribute.t))
        elif node.op_type == "Constant" and attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
            value = np.array(attribute.f if attribute.type == AttributeProto.FLOAT else list(attribute.floats), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_body(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        tensor.CopyFrom(_wide_tensor(tensor))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del graph.value_info[:]
    for node in graph.node:
        _widen(node)


def _wide_tensor(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(wide(array_of(tensor)), tensor.name) if tensor.data_type in _NARROW else tensor
