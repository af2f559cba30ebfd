"""Graphs as onnxruntime takes them, made such that every later step can: sorted, dense, without weights that nobody reads.

One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import TypeVar

import numpy as np
import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from bbgrap.errors import ModelError

T = TypeVar("T")

_LENGTHS = frozenset({TensorProto.INT32, TensorProto.INT64})


def copy_of(proto: ModelProto) -> ModelProto:
    """Return a copy of a model, to be changed."""
    draft = ModelProto()
    draft.CopyFrom(proto)
    return draft


def refill(field: MutableSequence[T], items: Iterable[T]) -> None:
    """Let a repeated field have these items only, in place; they may be some of its own."""
    kept = list(items)
    del field[:]
    field.extend(kept)


def serialized(proto: ModelProto) -> bytes:
    """Return the bytes of a model: the same for equal ones."""
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def forget_shapes(graph: GraphProto) -> None:
    """Drop the shapes that are told of outputs and of values inside, in place: shape inference would keep them, right or wrong."""
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for body in graphs_of(graph):
        del body.value_info[:]


def standard_domain(domain: str) -> str:
    """Return '' for the standard operators, which may also be written 'ai.onnx'."""
    return "" if domain == "ai.onnx" else domain


def name_standard_domain(proto: ModelProto) -> None:
    """Write '' for the standard operators' domain, in place: where a node says 'ai.onnx' and the imports do not, onnx infers nothing.

    Of a domain that is imported twice the last version counts, as for onnxruntime; the ONNX converter would change the first.
    """
    for named in (*proto.opset_import, *(node for graph in graphs_of(proto.graph) for node in graph.node)):
        named.domain = standard_domain(named.domain)
    refill(proto.opset_import, {entry.domain: entry for entry in proto.opset_import}.values())


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs_of(body)


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that are attributes of a node."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def graph_of(function: FunctionProto) -> GraphProto:
    """Return all that a function holds, as a graph to look at: its nodes, and one more with the defaults of its attributes."""
    return GraphProto(node=[*function.node, NodeProto(attribute=function.attribute_proto)])


def inlined(proto: ModelProto) -> ModelProto:
    """Return a model with the bodies of its functions in place of their calls; defaults that functions declare are written into calls.

    onnx (1.23) forgets them: what is inside would take those of its own operators. Callers go first, for what they leave out is only known
    of their own calls. The model itself may be changed.

    Operators inside are of the model's opset, whatever their function imports: so onnxruntime (1.32) takes them. Functions that import
    another one onnx leaves as they are, or refuses.
    """
    opsets = {standard_domain(entry.domain): entry.version for entry in proto.opset_import}
    for entry in (entry for function in proto.functions for entry in function.opset_import):
        entry.version = opsets.get(standard_domain(entry.domain), entry.version)
    while any(function.attribute_proto for function in proto.functions):
        _fill_in_defaults(proto)
        inner = {(node.domain, node.op_type) for function in proto.functions for node in _nodes_of(function.node)}
        outer = [(f.domain, f.name) for f in proto.functions if (f.domain, f.name) not in inner]
        before, proto = len(proto.functions), onnx.inliner.inline_selected_functions(proto, outer)
        if len(proto.functions) == before:
            break
    return onnx.inliner.inline_local_functions(proto)


def _fill_in_defaults(proto: ModelProto) -> None:
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions}
    for node in _nodes_of(proto.graph.node):
        given = {attribute.name for attribute in node.attribute}
        declared = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(attribute for attribute in declared if attribute.name not in given)


def _nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those of all their bodies."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from _nodes_of(body.node)


def captured_by(body: GraphProto) -> dict[str, None]:
    """Return the outer names that a body reads, in order (the values of the dict mean nothing)."""
    found: dict[str, None] = {}
    defined = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    defined |= {name for node in body.node for name in node.output}
    for node in body.node:
        found |= dict.fromkeys(name for name in reads_of(node) if name not in defined)
    return found | dict.fromkeys(value.name for value in body.output if value.name not in defined)


def reads_of(node: NodeProto) -> Iterator[str]:
    """Yield every name that a node reads: its inputs, then what its bodies capture."""
    yield from (name for name in node.input if name)
    for body in bodies_of(node):
        yield from captured_by(body)


def sort_nodes(graph: GraphProto) -> None:
    """Put the nodes of a graph in topological order, in place; nodes keep their order where it is one.

    Raises:
        ModelError: if nodes depend on each other in a circle.
    """
    made = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    before = [{made[name] for name in reads_of(node) if name in made} for node in graph.node]
    if all(all(other < place for other in others) for place, others in enumerate(before)):
        return
    try:
        order = [*TopologicalSorter(dict(enumerate(before))).static_order()]
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise ModelError(f"graph '{graph.name}': node '{node.name or node.op_type}' depends on its own output") from None
    nodes = []
    for place in order:
        node = NodeProto()
        node.CopyFrom(graph.node[place])
        nodes.append(node)
    refill(graph.node, nodes)


def free_sizes_below_zero(graph: GraphProto) -> None:
    """Forget the sizes below zero that a graph declares, in place: some exporters write -1 for any size, and onnxruntime reads it so."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the tensors of a graph that are constant, by name, without those of its bodies: weights, and what its constants hold."""
    told = (node for node in graph.node if node.op_type == "Constant")
    values = {name: a.t for node in told for name in node.output[:1] for a in node.attribute if a.name == "value"}
    return {tensor.name: tensor for tensor in graph.initializer} | values


def leave_out_single_splits(graph: GraphProto, outer: ChainMap[str, TensorProto] | None = None) -> None:
    """Let every `SplitToSequence` into pieces of one have no `split`, in place; `outer` are constants outside of the graph.

    To onnxruntime that is the same, to onnx it is not: with a `split` it infers that the axis stays, whatever `keepdims` says.
    """
    constants = constant_tensors(graph)
    known = ChainMap(constants) if outer is None else outer.new_child(constants)
    for node in graph.node:
        for body in bodies_of(node):
            leave_out_single_splits(body, known)
        if node.op_type == "SplitToSequence" and len(node.input) > 1 and _is_one(known.get(node.input[1])):
            del node.input[1]


def _is_one(tensor: TensorProto | None) -> bool:
    if tensor is None or tensor.dims or tensor.data_type not in _LENGTHS or tensor.data_location == TensorProto.EXTERNAL:
        return False
    return int(numpy_helper.to_array(tensor)) == 1


def drop_unread(graph: GraphProto) -> None:
    """Remove the weights that nothing reads, in place: onnxruntime does, and then misses their content."""
    read = {value.name for value in graph.output}.union(*(reads_of(node) for node in graph.node))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        unread = {tensor.name for tensor in graph.initializer} - read
        refill(graph.initializer, kept)
        refill(graph.input, (value for value in graph.input if value.name not in unread))


def drop_unread_places(graph: GraphProto) -> None:
    """Let every `MaxPool` of whose maxima nobody reads the places have no such output, in place: with several, a node stays whole."""
    parts = list(graphs_of(graph))
    pools = [node for part in parts for node in part.node if node.op_type == "MaxPool" and len(node.output) > 1]
    if not pools:
        return
    read = {value.name for part in parts for value in part.output}.union(*(node.input for part in parts for node in part.node))
    for node in pools:
        if node.output[1] not in read:
            del node.output[1:]


def make_dense(graph: GraphProto, load: Callable[[TensorProto], None]) -> None:
    """Replace the sparse weights of a graph and of its constants by dense ones, in place; `load` reads bytes that are elsewhere.

    Raises:
        ModelError: if their indices are not such.
    """
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, load))
    del graph.sparse_initializer[:]
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "sparse_value":
            dense = _dense(node.attribute[0].sparse_tensor, load)
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, load: Callable[[TensorProto], None]) -> TensorProto:
    load(sparse.values)
    load(sparse.indices)
    name, shape = sparse.values.name, tuple(sparse.dims)
    values, indices = (numpy_helper.to_array(part) for part in (sparse.values, sparse.indices))
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    if len(flat) != values.size or (len(flat) and (flat.min() < 0 or flat.max() >= prod(shape))):
        raise ModelError(f"weight '{name}': its sparse form has indices that do not fit its shape {list(shape)}")
    array = np.zeros(prod(shape), values.dtype)
    array[flat] = values
    return numpy_helper.from_array(array.reshape(shape), name)
