"""Types and shapes as onnx infers them, of files that may come from anybody. One of the files that import onnx (see `onnx_io`).

onnx (1.23) ends the process at some nodes: at a `Slice` of a value with a size below zero (SIGABRT; onnxruntime 1.31 does, too), as a
window makes that is larger than its map; at a few operators of which it does not know the type of what they read, as behind one of
onnxruntime's own (SIGSEGV); at a `Split` into more parts than it says. They are hidden until it is known what they read:

    Conv ──► ?          first pass: what the slice reads is inferred, and no more
    Conv ──► Slice ──►  second pass, if no size was below zero

What stays unknown stays hidden, and nothing is inferred of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""Operators that make no size below zero either, if their windows fit (`_fits_at_zero`)."""

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
    hidden = [*doubtful_slices(draft.graph), *_doubtful_others(draft.graph)]
    for node in hidden:
        node.op_type = _HIDDEN + node.op_type
    steps = _steps_of(draft.graph)
    while True:
        inferred = onnx.shape_inference.infer_shapes(draft, data_prop=data_prop)
        hidden = [node for node in hidden if node.op_type.startswith(_HIDDEN)]
        if not hidden:
            left = [node for graph in graphs_of(inferred.graph) for node in graph.node if node.op_type.startswith(_LEFT)]
            for node in left:
                node.op_type = node.op_type.removeprefix(_LEFT)
            return inferred, bool(left)
        graphs = [*graphs_of(inferred.graph)] if any(step.bodies for step in steps) else [inferred.graph]
        below = _below_zero(graphs)
        for node in hidden:
            if node.op_type == _HIDDEN + "Slice" and node.input and node.input[0] in below:
                name, read = node.name or node.output[0], node.input[0][:80]
                raise ModelError(f"node '{name}' (Slice): expected sizes of at least 0 of '{read}', got one below")
        _show_ready(steps, set(), _typed(graphs))


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
    return _follow(graph, _below_zero(graphs_of(graph))) if has_slices else iter(())


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
        elif (doubted and node.op_type not in _OF_SHAPES) or not _keeps_above_zero(node):
            made.update(node.output)


def _keeps_above_zero(node: NodeProto) -> bool:
    """Whether a node makes no size below zero unless it reads one."""
    return not node.domain and (node.op_type in _NEVER_BELOW_ZERO or (node.op_type in _WINDOWED and _fits_at_zero(node)))


def _fits_at_zero(node: NodeProto) -> bool:
    """Whether a window moves 0 times or more over a map of size 0: it is at most a stride longer than the pads."""
    given = {attribute.name: attribute for attribute in node.attribute}
    kernel = [*given["kernel_shape"].ints] if "kernel_shape" in given else []
    rank = len(kernel)
    strides, dilations = ([*given[name].ints] if name in given else [1] * rank for name in ("strides", "dilations"))
    pads = [*given["pads"].ints] if "pads" in given else [0] * 2 * rank
    if not rank or "auto_pad" in given or [len(strides), len(dilations), len(pads)] != [rank, rank, 2 * rank]:
        return False
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        return False
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    room = [before + after + stride for before, after, stride in zip(pads[:rank], pads[rank:], strides, strict=True)]
    return all(span <= most for span, most in zip(spans, room, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node, and what is asked of it whenever nodes are shown: what it reads and makes, and its bodies."""

    node: NodeProto
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    bodies: tuple[_Body, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    inputs: tuple[str, ...]
    steps: tuple[_Step, ...]
    outputs: tuple[str, ...]


def _steps_of(graph: GraphProto) -> tuple[_Step, ...]:
    return tuple(_Step(node, tuple(reads_of(node)), tuple(node.output), tuple(map(_body_of, bodies_of(node)))) for node in graph.node)


def _body_of(graph: GraphProto) -> _Body:
    return _Body(tuple(value.name for value in graph.input), _steps_of(graph), tuple(value.name for value in graph.output))


def _show_ready(steps: Iterable[_Step], behind: set[str], typed: set[str]) -> None:
    """Show onnx, in place, the hidden nodes that depend on no other one: what they read is as known as it will be.

    `behind` are the values that depend on a hidden node, `typed` those whose types are known: without, a node is left hidden for good.
    The first hidden node is always ready.
    """
    for step in steps:
        node, waits = step.node, not behind.isdisjoint(step.reads)
        for body in step.bodies:
            if waits:
                behind.update(body.inputs)
            _show_ready(body.steps, behind, typed)
            waits = waits or not behind.isdisjoint(body.outputs)
        hidden = node.op_type.startswith(_HIDDEN)
        if waits or hidden:
            behind.update(step.makes)
        if hidden and not waits:
            name = node.op_type.removeprefix(_HIDDEN)
            node.op_type = name if name == "Slice" or (name in _READ_TYPES and node.input and node.input[0] in typed) else _LEFT + name


def _typed(graphs: Iterable[GraphProto]) -> set[str]:
    """Return the values whose types are known."""
    found: set[str] = set()
    for graph in graphs:
        values = (*graph.input, *graph.value_info, *graph.output)
        found |= {value.name for value in values if value.type.WhichOneof("value")}
        found |= {tensor.name for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    return found


def _below_zero(graphs: Iterable[GraphProto]) -> set[str]:
    """Return the values that have a size below zero."""
    found: set[str] = set()
    for graph in graphs:
        values = (*graph.input, *graph.value_info, *graph.output)
        found |= {value.name for value in values if any(dim.dim_value < 0 for dim in value.type.tensor_type.shape.dim)}
        found |= {tensor.name for tensor in graph.initializer if min(tensor.dims, default=0) < 0}
    return found
