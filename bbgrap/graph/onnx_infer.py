"""Types and shapes as onnx infers them, of files that may come from anybody. One of the files that import onnx (see `onnx_io`).

onnx ends the process (1.23, SIGABRT; onnxruntime 1.31 does, too) at a `Slice` of a value with a size below zero, as a window makes that
is larger than its map. So a slice behind an operator that may make such sizes is hidden until the sizes of what it reads are known:

    Conv ──► ?          first pass: what the slice reads is inferred, and no more
    Conv ──► Slice ──►  second pass, if no size was below zero
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_tidy import bodies_of, graphs_of, reads_of

_OF_SHAPES = frozenset({"Shape", "Size"})
_NEVER_BELOW_ZERO = frozenset(
    (
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant"),
        *("ConstantOfShape", "Cos", "CumSum", "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Einsum", "Equal", "Erf"),
        *("Exp", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool"),
        *("Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "IsInf"),
        *("IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "MatMulInteger", "Max"),
        *("Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "PRelu", "Pow", "QLinearMatMul", "QuantizeLinear", "Range"),
        *("Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Round"),
        *("ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Softplus", "Sqrt", "Squeeze"),
        *("Sub", "Sum", "Tanh", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
    )
)
"""Operators that make no size below zero unless they read one: a slice behind others is looked at before it is shown to onnx."""

_HIDDEN = "SliceOfUnknownSizes"
"""An operator that onnx does not know: it infers nothing of it, and goes on."""


def infer_shapes(proto: ModelProto, *, data_prop: bool = False) -> ModelProto:
    """Return a model with what onnx infers of types and shapes, also by the content of shapes if `data_prop`.

    Raises:
        ModelError: if a `Slice` reads a value with a size below zero: nobody can run that.
        InferenceError, RuntimeError: as onnx does.
    """
    if not any(doubtful_slices(proto.graph)):
        return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop)
    draft = ModelProto()
    draft.CopyFrom(proto)
    strangers = {node.domain for graph in graphs_of(draft.graph) for node in graph.node} - {entry.domain for entry in draft.opset_import}
    for domain in sorted(strangers):
        draft.opset_import.add(domain=domain, version=1)  # else onnx infers nothing at all; onnxruntime does, up to there
    for node in list(doubtful_slices(draft.graph)):
        node.op_type = _HIDDEN
    while True:
        inferred = onnx.shape_inference.infer_shapes(draft, data_prop=data_prop)
        hidden = [node for graph in graphs_of(draft.graph) for node in graph.node if node.op_type == _HIDDEN]
        if not hidden:
            return inferred
        below = _below_zero(inferred.graph)
        for node in hidden:
            if node.input and node.input[0] in below:
                name, read = node.name or node.output[0], node.input[0][:80]
                raise ModelError(f"node '{name}' (Slice): expected sizes of at least 0 of '{read}', got one below")
        _show_ready(draft.graph, set())


def doubtful_slices(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the slices, in order, that may read a size below zero, here and in bodies; the nodes of the graph are sorted."""
    has_slices = any(node.op_type == "Slice" for inner in graphs_of(graph) for node in inner.node)
    return _follow(graph, _below_zero(graph)) if has_slices else iter(())


def _follow(graph: GraphProto, made: set[str]) -> Iterator[NodeProto]:
    """Yield the doubtful slices, and add to `made` the values that may have a size below zero."""
    for node in graph.node:
        doubted = any(name in made for name in reads_of(node))
        for body in bodies_of(node):
            if doubted:
                made.update(value.name for value in body.input)
            yield from _follow(body, made)
        if node.op_type == "Slice" and not node.domain:
            if doubted and node.output:
                yield node
        elif node.domain or node.op_type not in _NEVER_BELOW_ZERO or (doubted and node.op_type not in _OF_SHAPES):
            made.update(node.output)


def _show_ready(graph: GraphProto, behind: set[str]) -> None:
    """Show onnx, in place, the hidden slices that depend on no other one: the sizes of what they read are as known as they will be.

    `behind` are the values that depend on a hidden slice. The first hidden slice is always ready.
    """
    for node in graph.node:
        waits = any(name in behind for name in reads_of(node))
        for body in bodies_of(node):
            if waits:
                behind.update(value.name for value in body.input)
            _show_ready(body, behind)
            waits = waits or any(value.name in behind for value in body.output)
        hidden = node.op_type == _HIDDEN
        if waits or hidden:
            behind.update(node.output)
        if hidden and not waits:
            node.op_type = "Slice"


def _below_zero(graph: GraphProto) -> set[str]:
    """Return the values that have a size below zero, those in bodies included."""
    found: set[str] = set()
    for inner in graphs_of(graph):
        values = (*inner.input, *inner.value_info, *inner.output)
        found |= {value.name for value in values if any(dim.dim_value < 0 for dim in value.type.tensor_type.shape.dim)}
        found |= {tensor.name for tensor in inner.initializer if min(tensor.dims, default=0) < 0}
    return found
