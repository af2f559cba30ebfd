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

import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_below_zero import InferredStep, below_zero, doubtful, doubtful_slices, parts_said, steps_of
from bbgrap.graph.onnx_tidy import copy_of, graphs_of

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
    steps = steps_of(draft.graph)
    slices = _hide(doubtful(steps, below_zero(graphs_of(draft.graph))))
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
        below, behind = below_zero(graphs), set[str]()
        _check_slices(hidden, below)
        _show_ready(steps, behind, _typed(graphs))
        still = {id(node) for node in doubtful(steps, below, behind)}
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
            if node.op_type in _READ_TYPES or (node.op_type == "Split" and parts_said(node) not in {0, len(node.output)}):
                yield node


def _show_ready(steps: Iterable[InferredStep], behind: set[str], typed: set[str]) -> None:
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
