"""Which slices of a file may read a value with a size below zero: onnx ends the process there (see `onnx_infer`).

Looked at by the operators alone: some make no such size unless they read one, some if constant numbers steer them well, and what may
have one puts all in doubt that takes its shape from it. Law: a slice that is not doubtful reads no size below zero, whatever is inferred.
One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from bbgrap.graph.onnx_limits import MAX_EXTENT
from bbgrap.graph.onnx_tidy import bodies_of, constant_tensors, graphs_of, reads_of

_OF_SHAPES = frozenset({"Shape", "Size"})
_NEVER_BELOW_ZERO = frozenset(
    (
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "Cast", "CastLike", "Ceil", "Clip", "Concat"),
        *("Constant", "ConstantOfShape", "Cos", "CumSum", "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear"),
        *("Einsum", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm"),
        *("GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid", "HardSwish"),
        *("Identity", "If", "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less"),
        *("LessOrEqual", "Log", "LogSoftmax", "Loop", "MatMul", "MatMulInteger", "Max", "Mean", "Min", "Mod", "Mul", "Neg"),
        *("NonZero", "Not", "Or", "PRelu", "Pow", "QLinearMatMul", "QuantizeLinear", "Range", "Reciprocal", "ReduceL2"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Round", "Scan"),
        *("ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
        *("SequenceInsert", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Softplus", "Sqrt", "Squeeze"),
        *("Sub", "Sum", "Tanh", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
    )
)
"""Operators that make no size below zero unless they read one, or have one in a body: a slice behind others is looked at before it is shown
to onnx."""

_SHAPED_BY_FIRST = frozenset({"ScatterElements", "ScatterND", "Slice"})
"""Operators whose output has a size below zero only if the first of what they read has one."""

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""Operators that make no size below zero either, if their windows fit (`_fits_at_zero`)."""

_BY_NUMBERS = {"Expand": (1,), "Pad": (1,), "Resize": (2, 3), "Split": (1,), "Tile": (1,), "TopK": (1,)}
"""Operators that make no size below zero either if they are steered by constant numbers of which none is, by the places of those."""
_MOST_NUMBERS = 64
_NUMBERS = frozenset({TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64})
"""So many, of these types and up to `MAX_EXTENT`, has a constant that steers well: a size times a larger one may be below zero again."""


def doubtful_slices(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the slices, in order, that may read a size below zero, here and in bodies; the nodes of the graph are sorted."""
    if not any(node.op_type == "Slice" for inner in graphs_of(graph) for node in inner.node):
        return iter(())
    return doubtful(steps_of(graph), below_zero(graphs_of(graph)))


@dataclass(frozen=True, slots=True, eq=False)
class InferredStep:
    """A node, and what is asked of it whenever nodes are shown: what it reads and makes, what gives it its shape, and its bodies."""

    node: NodeProto
    reads: tuple[str, ...]
    shaped_by: tuple[str, ...]
    makes: tuple[str, ...]
    bodies: tuple[InferredBody, ...]
    is_slice: bool
    keeps_above_zero: bool


@dataclass(frozen=True, slots=True, eq=False)
class InferredBody:
    """The steps of a graph inside a node, and the values by which it hangs together with that."""

    inputs: tuple[str, ...]
    steps: tuple[InferredStep, ...]
    outputs: tuple[str, ...]


def steps_of(graph: GraphProto) -> tuple[InferredStep, ...]:
    """Return the nodes of a model's graph, in order, as they are looked at."""
    return _steps(graph, _steering_well(graph))


def _steps(graph: GraphProto, steering_well: Container[str]) -> tuple[InferredStep, ...]:
    return tuple(_step_of(node, steering_well) for node in graph.node)


def _step_of(node: NodeProto, steering_well: Container[str]) -> InferredStep:
    reads, op = tuple(reads_of(node)), "" if node.domain else node.op_type
    shaped_by = reads[:1] if op in _SHAPED_BY_FIRST else () if op in _OF_SHAPES else reads
    bodies = tuple(
        InferredBody(tuple(value.name for value in body.input), _steps(body, steering_well), tuple(value.name for value in body.output))
        for body in bodies_of(node)
    )
    return InferredStep(node, reads, shaped_by, tuple(node.output), bodies, op == "Slice", _keeps_above_zero(node, steering_well))


def doubtful(steps: Iterable[InferredStep], made: set[str], behind: Container[str] | None = None) -> Iterator[NodeProto]:
    """Yield the doubtful slices, and add to `made`, which have a size below zero, the values that may have one.

    Of those that are not `behind` something hidden it is known already.
    """
    for step in steps:
        doubted = not made.isdisjoint(step.shaped_by)
        for body in step.bodies:
            if doubted:
                made.update(body.inputs)
            yield from doubtful(body.steps, made, behind)
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
    return node.op_type == "Split" and parts_said(node) <= 2 and all(attribute.name != "split" for attribute in node.attribute)


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


def parts_said(split: NodeProto) -> int:
    """Return into how many parts a split says that it divides; 0 if it does not."""
    return next((attribute.i for attribute in split.attribute if attribute.name == "num_outputs"), 0)


def _steering_well(graph: GraphProto) -> set[str]:
    """Return the constants of a graph, not of its bodies, that are a few numbers from zero on, and nothing else by their name."""
    named = Counter(name for each in graphs_of(graph) for node in each.node for name in node.output)
    named.update(tensor.name for each in graphs_of(graph) for tensor in each.initializer)
    named.update(value.name for each in graphs_of(graph) if each is not graph for value in each.input)
    constants = ((name, tensor) for name, tensor in constant_tensors(graph).items() if named[name] == 1)
    small = ((name, tensor) for name, tensor in constants if tensor.data_type in _NUMBERS and 0 < prod(tensor.dims) <= _MOST_NUMBERS)
    arrays = ((name, numpy_helper.to_array(t)) for name, t in small if t.data_location != TensorProto.EXTERNAL)
    return {name for name, array in arrays if ((array >= 0) & (array <= MAX_EXTENT)).all()}


def below_zero(graphs: Iterable[GraphProto]) -> set[str]:
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
