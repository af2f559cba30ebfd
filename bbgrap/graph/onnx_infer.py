"""Types and shapes as onnx infers them, of files that may come from anybody. One of the files that import onnx (see `onnx_io`).

onnx (1.23) ends the process at some nodes: at a `Slice` of a value with a size below zero (SIGABRT; onnxruntime 1.31 does, too), as a
window makes that is larger than its map; at a few operators of which it does not know the type of what they read, as behind one of
onnxruntime's own (SIGSEGV); at a `Split` into more parts than it says. They are hidden until it is known what they read:

    Conv ──► ?          first pass: what the slice reads is inferred, and no more
    Conv ──► Slice ──►  second pass, if no size was below zero

What stays unknown stays hidden, and nothing is inferred of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_tidy import bodies_of, copy_of, graphs_of, reads_of

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

_READ_TYPES = frozenset({"EyeLike", "RegexFullMatch", "DictVectorizer", "LabelEncoder", "TreeEnsemble"})
"""Operators of which onnx believes that the type of what they read is known. Found by random calls of all operators."""

_HIDDEN, _LEFT = "Hidden:", "Left:"
"""Before the name of an operator that onnx shall not know: it infers nothing of it, and goes on. What is left is not looked at again."""


def infer_shapes(proto: ModelProto, *, data_prop: bool = False) -> ModelProto:
    """Return a model with what onnx infers of types and shapes, also by the content of shapes if `data_prop`.

    Raises:
        ModelError: if a `Slice` reads a value with a size below zero: nobody can run that.
        InferenceError, RuntimeError: as onnx does.
    """
    return _inferred(proto, data_prop=data_prop)[0]


def ends_who_infers(proto: ModelProto) -> bool:
    """Whether onnx would end the process if it inferred shapes by itself, as its version converter does.

    Raises:
        ModelError, InferenceError, RuntimeError: as `infer_shapes` does.
    """
    return _is_doubtful(proto.graph) and _inferred(proto, data_prop=False)[1]


def _inferred(proto: ModelProto, *, data_prop: bool) -> tuple[ModelProto, bool]:
    """Do what `infer_shapes` does; return also whether some nodes had to stay hidden."""
    if not _is_doubtful(proto.graph):
        return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop), False
    draft = copy_of(proto)
    strangers = {node.domain for graph in graphs_of(draft.graph) for node in graph.node} - {entry.domain for entry in draft.opset_import}
    for domain in sorted(strangers):
        draft.opset_import.add(domain=domain, version=1)  # else onnx infers nothing at all; onnxruntime does, up to there
    for node in [*doubtful_slices(draft.graph), *_doubtful_others(draft.graph)]:
        node.op_type = _HIDDEN + node.op_type
    while True:
        inferred = onnx.shape_inference.infer_shapes(draft, data_prop=data_prop)
        hidden = [node for graph in graphs_of(draft.graph) for node in graph.node if node.op_type.startswith(_HIDDEN)]
        if not hidden:
            left = [node for graph in graphs_of(inferred.graph) for node in graph.node if node.op_type.startswith(_LEFT)]
            for node in left:
                node.op_type = node.op_type.removeprefix(_LEFT)
            return inferred, bool(left)
        below = _below_zero(inferred.graph)
        for node in hidden:
            if node.op_type == _HIDDEN + "Slice" and node.input and node.input[0] in below:
                name, read = node.name or node.output[0], node.input[0][:80]
                raise ModelError(f"node '{name}' (Slice): expected sizes of at least 0 of '{read}', got one below")
        _show_ready(draft.graph, set(), _typed(inferred.graph))


def _is_doubtful(graph: GraphProto) -> bool:
    return any(doubtful_slices(graph)) or any(_doubtful_others(graph))


def _doubtful_others(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes besides slices at which onnx may end the process, those in bodies included."""
    for inner in graphs_of(graph):
        for node in inner.node:
            if node.op_type in _READ_TYPES or (node.op_type == "Split" and _parts_said(node) not in {0, len(node.output)}):
                yield node


def _parts_said(split: NodeProto) -> int:
    """Return into how many parts a split says that it divides; 0 if it does not."""
    return next((attribute.i for attribute in split.attribute if attribute.name == "num_outputs"), 0)


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


def _show_ready(graph: GraphProto, behind: set[str], typed: set[str]) -> None:
    """Show onnx, in place, the hidden nodes that depend on no other one: what they read is as known as it will be.

    `behind` are the values that depend on a hidden node, `typed` those whose types are known: without, a node is left hidden for good.
    The first hidden node is always ready.
    """
    for node in graph.node:
        waits = any(name in behind for name in reads_of(node))
        for body in bodies_of(node):
            if waits:
                behind.update(value.name for value in body.input)
            _show_ready(body, behind, typed)
            waits = waits or any(value.name in behind for value in body.output)
        hidden = node.op_type.startswith(_HIDDEN)
        if waits or hidden:
            behind.update(node.output)
        if hidden and not waits:
            name = node.op_type.removeprefix(_HIDDEN)
            node.op_type = name if name == "Slice" or (name in _READ_TYPES and node.input and node.input[0] in typed) else _LEFT + name


def _typed(graph: GraphProto) -> set[str]:
    """Return the values whose types are known, those in bodies included."""
    found: set[str] = set()
    for inner in graphs_of(graph):
        values = (*inner.input, *inner.value_info, *inner.output)
        found |= {value.name for value in values if value.type.WhichOneof("value")}
        found |= {tensor.name for tensor in (*inner.initializer, *(sparse.values for sparse in inner.sparse_initializer))}
    return found


def _below_zero(graph: GraphProto) -> set[str]:
    """Return the values that have a size below zero, those in bodies included."""
    found: set[str] = set()
    for inner in graphs_of(graph):
        values = (*inner.input, *inner.value_info, *inner.output)
        found |= {value.name for value in values if any(dim.dim_value < 0 for dim in value.type.tensor_type.shape.dim)}
        found |= {tensor.name for tensor in inner.initializer if min(tensor.dims, default=0) < 0}
    return found
