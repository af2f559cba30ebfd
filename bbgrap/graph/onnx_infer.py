"""Types and shapes as onnx infers them, of files that may come from anybody. One of the files that import onnx (see `onnx_io`).

onnx (1.23) ends the process at some nodes: at a `Slice` of a value with a size below zero (SIGABRT; onnxruntime 1.31 does, too), as a
window makes that is larger than its map; at a few operators of which it does not know the type of what they read, as behind one of
onnxruntime's own (SIGSEGV); at a `Split` into more parts than it says. They are hidden until it is known what they read:

    Conv ──► ?          first pass: what the slice reads is inferred, and no more
    Conv ──► Slice ──►  second pass, if no size was below zero

What stays unknown stays hidden, and nothing is inferred of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from math import prod

import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_tidy import bodies_of, copy_of, graphs_of, reads_of

_OF_SHAPES = frozenset({"Shape", "Size"})
_NEVER_BELOW_ZERO = frozenset(
    (
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant"),
        *("ConstantOfShape", "Cos", "CumSum", "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Einsum", "Equal", "Erf"),
        *("Exp", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool"),
        *(
            "Greater",
            "GreaterOrEqual",
            "GroupNormalization",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "If",
            "InstanceNormalization",
            "IsInf",
        ),
        *("IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "Loop", "MatMul", "MatMulInteger", "Max"),
        *("Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "PRelu", "Pow", "QLinearMatMul", "QuantizeLinear", "Range"),
        *("Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Round", "Scan"),
        *(
            "ScatterElements",
            "ScatterND",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "Shape",
            "Sigmoid",
            "Sign",
            "Sin",
            "Size",
            "Slice",
            "Softmax",
            "Softplus",
            "Sqrt",
            "Squeeze",
        ),
        *("Sub", "Sum", "Tanh", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
    )
)
"""Operators that make no size below zero unless they read one: a slice behind others is looked at before it is shown to onnx."""

_SHAPED_BY_FIRST = frozenset({"ScatterElements", "ScatterND", "Slice"})
"""Operators whose output has a size below zero only if the first of what they read has one."""

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""Operators that make no size below zero either, if their windows fit (`_fits_at_zero`)."""

_BY_NUMBERS = {"Expand": (1, 1), "Pad": (1, 1), "Resize": (2, 3), "Split": (1, 1), "Tile": (1, 1), "TopK": (1, 1)}
"""Operators that make no size below zero either if they are steered by constant numbers of which none is, by the places of those."""
_MOST_NUMBERS = 64
_NUMBERS = frozenset({TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64})
"""So many, of these types, has a constant that is looked at for that."""

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
    others = _hide(_doubtful_others(draft.graph))
    steps = _steps_of(draft.graph, _steering_well(draft.graph))
    slices = _hide(_doubtful(steps, _below_zero(graphs_of(draft.graph))))
    hidden = [*slices, *others]
    while True:
        inferred = onnx.shape_inference.infer_shapes(draft, data_prop=data_prop)
        hidden = [node for node in hidden if node.op_type.startswith(_HIDDEN)]
        if not hidden:
            left = [node for graph in graphs_of(inferred.graph) for node in graph.node if node.op_type.startswith(_LEFT)]
            for node in left:
                node.op_type = node.op_type.removeprefix(_LEFT)
            return inferred, bool(left)
        graphs = [*graphs_of(inferred.graph)] if any(step.bodies for step in steps) else [inferred.graph]
        below, behind = _below_zero(graphs), set[str]()
        _check_slices(hidden, below)
        _show_ready(steps, behind, _typed(graphs))
        still = {id(node) for node in _doubtful(steps, below, behind)}
        for node in slices:
            if id(node) not in still:
                node.op_type = "Slice"


def _hide(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    hidden = [*nodes]
    for node in hidden:
        node.op_type = _HIDDEN + node.op_type
    return hidden


def _check_slices(hidden: Iterable[NodeProto], below: Container[str]) -> None:
    for node in hidden:
        if node.op_type == _HIDDEN + "Slice" and node.input and node.input[0] in below:
            name, read = node.name or node.output[0], node.input[0][:80]
            raise ModelError(f"node '{name}' (Slice): expected sizes of at least 0 of '{read}', got one below")


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
    if not any(node.op_type == "Slice" for inner in graphs_of(graph) for node in inner.node):
        return iter(())
    return _doubtful(_steps_of(graph, _steering_well(graph)), _below_zero(graphs_of(graph)))


def _steering_well(graph: GraphProto) -> set[str]:
    """Return the constants of a graph, not of its bodies, that are a few numbers not below zero."""
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    constants += [(n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    numbers = [(name, t) for name, t in constants if t.data_type in _NUMBERS and 0 < prod(t.dims) <= _MOST_NUMBERS]
    found = {name for name, t in numbers if t.data_location != TensorProto.EXTERNAL and (numpy_helper.to_array(t) >= 0).all()}
    for body in graphs_of(graph):
        if body is not graph:
            found.difference_update(value.name for value in (*body.input, *body.initializer))
            found.difference_update(name for node in body.node for name in node.output)
    return found


def _doubtful(steps: Iterable[_Step], made: set[str], behind: Container[str] | None = None) -> Iterator[NodeProto]:
    """Yield the doubtful slices, and add to `made`, which have a size below zero, the values that may have one.

    Of those that are not `behind` something hidden it is known already.
    """
    for step in steps:
        doubted = not made.isdisjoint(step.shaped_by)
        for body in step.bodies:
            if doubted:
                made.update(body.inputs)
            yield from _doubtful(body.steps, made, behind)
        if step.is_slice:
            if doubted and step.makes:
                yield step.node
        elif doubted or not (step.keeps_above_zero and all(made.isdisjoint(body.outputs) for body in step.bodies)):
            made.update(step.makes if behind is None else (name for name in step.makes if name in behind))


def _keeps_above_zero(node: NodeProto, steering_well: Container[str]) -> bool:
    """Whether a node makes no size below zero unless it reads one, or makes one in a body."""
    if node.domain:
        return False
    if node.op_type in _BY_NUMBERS:
        numbers = [name for place in _BY_NUMBERS[node.op_type] for name in node.input[place : place + 1] if name]
        return all(name in steering_well for name in numbers) if numbers else _splits_evenly(node)
    return node.op_type in _NEVER_BELOW_ZERO or (node.op_type in _WINDOWED and _fits_at_zero(node))


def _splits_evenly(node: NodeProto) -> bool:
    """Whether a node makes equal parts, or two almost equal ones: of more the last may be so much smaller that it is below zero."""
    return node.op_type == "Split" and _parts_said(node) <= 2 and all(attribute.name != "split" for attribute in node.attribute)


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
    """A node, and what is asked of it whenever nodes are shown: what it reads and makes, what gives it its shape, and its bodies."""

    node: NodeProto
    reads: tuple[str, ...]
    shaped_by: tuple[str, ...]
    makes: tuple[str, ...]
    bodies: tuple[_Body, ...]
    is_slice: bool
    keeps_above_zero: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    inputs: tuple[str, ...]
    steps: tuple[_Step, ...]
    outputs: tuple[str, ...]


def _steps_of(graph: GraphProto, steering_well: Container[str]) -> tuple[_Step, ...]:
    return tuple(_step_of(node, steering_well) for node in graph.node)


def _step_of(node: NodeProto, steering_well: Container[str]) -> _Step:
    reads, op = tuple(reads_of(node)), "" if node.domain else node.op_type
    shaped_by = reads[:1] if op in _SHAPED_BY_FIRST else () if op in _OF_SHAPES else reads
    bodies = tuple(_body_of(body, steering_well) for body in bodies_of(node))
    return _Step(node, reads, shaped_by, tuple(node.output), bodies, op == "Slice", _keeps_above_zero(node, steering_well))


def _body_of(graph: GraphProto, steering_well: Container[str]) -> _Body:
    return _Body(tuple(value.name for value in graph.input), _steps_of(graph, steering_well), tuple(value.name for value in graph.output))


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
        found |= {value.name for value in values if any(dim.dim_value < 0 for dim in _tensor_of(value.type).shape.dim)}
        found |= {tensor.name for tensor in graph.initializer if min(tensor.dims, default=0) < 0}
    return found


def _tensor_of(kind: TypeProto) -> TypeProto.Tensor:
    """Return the type of the tensors of which a value consists."""
    while (which := kind.WhichOneof("value")) in {"sequence_type", "optional_type"}:
        kind = (kind.sequence_type if which == "sequence_type" else kind.optional_type).elem_type
    return kind.tensor_type
