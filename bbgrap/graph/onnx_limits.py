"""What a model file may not be: checked before libraries that trust files look at it. One of the files that import onnx (see `onnx_io`).

A file of a few hundred bytes can ask for terabytes, for hours, or for a division by zero in a kernel, which ends the process. Laws: the
checks take time and memory in proportion to the file, whatever is in it; what they refuse, no model that people run has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_tidy import bodies_of, graph_of, standard_domain
from bbgrap.graph.types import LONG, DType

MAX_NODES = 200_000
"""Nodes of a model, those in bodies included, once its functions are put in their places. Chosen: the largest exported networks have
about 50,000; planning takes a tenth of a millisecond or more of each."""

MAX_RANK = 64
"""Axes of a tensor: what numpy holds."""

MAX_NAME_BYTES = 64 << 10
"""Names of values, nodes, operators and files. They go into messages, whose texts are as long at most."""

MAX_OUTER_NAME_BYTES = 1024
"""Names of inputs and outputs of the model: every request has them."""

MAX_BODIES = 16
"""Bodies inside bodies. Chosen: exporters write three or four; protobuf itself ends near 30."""

MAX_CALLS = 100
"""Functions that call functions, as deep as onnx's own inliner goes."""

MAX_GROWTH = 16
"""How often the bytes of a file may be used: by functions that are called, and by weights that share the content of a file."""

FREE_BYTES = 64 << 20
"""So large a model may get in any case, however small its file is."""

MAX_SPARSE_BYTES = 512 << 20
"""All sparse weights together as dense ones, which is what they become. Chosen: an embedding of 100,000 words with 768 numbers each takes
300 MB, and larger ones are not exported as sparse."""

MAX_STRINGS = 2 << 20
"""Texts in weights, and different ones in lists that are attributes, together. Chosen: above the largest vocabularies; each takes some 60
bytes more than in the file."""

MAX_ENTRIES = 8 << 20
"""Numbers in short lists that are attributes, together. Each takes 36 bytes in Python."""

MAX_LONG_ENTRIES = 64 << 20
"""Numbers in long lists, and texts, that are attributes, together. Chosen: a node of a tree has ten, and forests have some million nodes;
each takes 8 bytes, and as much again in each copy of a model."""

MAX_ATTRIBUTES = 400_000
"""Of all nodes together: two for each, were there as many nodes as there may be; some milliseconds for a thousand of them."""

MAX_WEIGHTS = 200_000
"""As many as nodes."""

MAX_VALUES = 1_000_000
"""Inputs, outputs and declarations of graphs, and what their nodes read and make, together: five for each node."""

MAX_OPSETS = 1000
"""Domains of operators that a model imports. Chosen: exporters write up to six."""

MAX_METADATA_BYTES = 64 << 20
"""All that a model says of itself. Chosen: above any vocabulary that is kept there."""

MAX_FILE_BYTES = 2 << 30
"""A model's file without its weight files: what protobuf reads."""

MAX_EXTENT = 2**31 - 1
"""Pads, strides, dilations and windows: kernels compute with products of them in 64 bits."""

_STRINGS = "texts in weights and attributes"
_ENTRIES = "numbers in short lists that are attributes"
_LONG_ENTRIES = "numbers and texts in lists that are attributes"
_DENSE = "bytes in sparse weights, as dense ones, which they become"
_MOST = {
    _STRINGS: MAX_STRINGS,
    _ENTRIES: MAX_ENTRIES,
    _LONG_ENTRIES: MAX_LONG_ENTRIES,
    _DENSE: MAX_SPARSE_BYTES,
    "attributes": MAX_ATTRIBUTES,
    "weights": MAX_WEIGHTS,
    "values and declarations": MAX_VALUES,
}

_EXTENTS = frozenset({"pads", "strides", "dilations", "kernel_shape", "output_padding"})

_DIVISORS = {
    "Conv": ("group",),
    "ConvInteger": ("group",),
    "ConvTranspose": ("group",),
    "DeformConv": ("group", "offset_group"),
    "FusedConv": ("group",),
    "NhwcFusedConv": ("group",),
    "QLinearConv": ("group",),
    "Attention": ("q_num_heads", "kv_num_heads"),
    "GroupNormalization": ("num_groups",),
}
"""Attributes that something divides by; onnxruntime 1.31 dies of some that are 0 (SIGFPE) when it infers shapes."""

_PER_ELEMENT = {DType.COMPLEX64: 2, DType.COMPLEX128: 2}
"""Numbers that an element takes in the fields for numbers, where it is not one."""

_Key = tuple[str, str, str]


def check_limits(proto: ModelProto) -> None:
    """Check a model as its file has it.

    Raises:
        ModelError: if it is larger than any model, or would become so; the message does not name the file.
    """
    graphs = [proto.graph, *map(graph_of, proto.functions)]
    _check_counts(proto, graphs)
    _check_growth(proto)
    names = [proto.graph.name, *(name for f in proto.functions for name in (f.name, f.domain, *f.input, *f.output, *f.attribute))]
    for graph in graphs:
        for body in _bodies(graph):
            names += _names_of(body)
    longest = max(names, key=len)
    if bytes in map(type, names):
        raise _no_text(names)
    if len(longest.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ModelError(f"the name '{longest[:40]}...' has more than {MAX_NAME_BYTES} bytes")
    for side, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if len(value.name.encode()) > MAX_OUTER_NAME_BYTES:
                raise ModelError(f"{side} '{value.name[:40]}...': its name has more than {MAX_OUTER_NAME_BYTES} bytes; rename it")
    found: Counter[str] = Counter()
    for graph in graphs:
        for body in _bodies(graph):
            _check_declared(body)
            found.update(_weighed(body))
    _check_most(found)


def _check_counts(proto: ModelProto, graphs: Iterable[GraphProto]) -> None:
    """Check what takes no time to count, before anything that takes time for each of them."""
    if len(proto.opset_import) > MAX_OPSETS or len(proto.functions) > MAX_NODES:
        has = f"it imports {len(proto.opset_import)} domains and has {len(proto.functions)} functions"
        raise ModelError(f"{has}; expected at most {MAX_OPSETS} and {MAX_NODES}")
    said = sum(len(entry.key) + len(entry.value) for entry in proto.metadata_props[:MAX_STRINGS])
    if said > MAX_METADATA_BYTES or len(proto.metadata_props) > MAX_STRINGS:
        raise ModelError(f"its metadata has {said} letters in {len(proto.metadata_props)} entries; expected at most {MAX_METADATA_BYTES}")
    found: Counter[str] = Counter()
    for graph in graphs:
        for body in _bodies(graph):
            found["weights"] += len(body.initializer) + len(body.sparse_initializer)
            found["values and declarations"] += sum(map(len, (body.input, body.output, body.value_info)))
            for node in body.node:
                found["attributes"] += len(node.attribute)
                found["values and declarations"] += len(node.input) + len(node.output)
            _check_most(found)  # before the bodies of its nodes are looked for


def _weighed(graph: GraphProto) -> dict[str, int]:
    """Return what a graph has of that is large by itself, bodies not included, once its weights are checked."""
    found = Counter[str]()
    for tensor in _tensors_of(graph):
        check_tensor(tensor)
        found[_STRINGS] += len(tensor.string_data)
    for node in graph.node:
        for attribute in node.attribute:
            found[_STRINGS] += len(set(attribute.strings))
            found[_LONG_ENTRIES] += len(attribute.strings)
            for numbers in (attribute.ints, attribute.floats):
                found[_ENTRIES if len(numbers) < LONG else _LONG_ENTRIES] += len(numbers)
    found[_DENSE] = sum(map(_check_sparse, sparse_tensors(graph)))
    return found


def _check_most(found: Mapping[str, int]) -> None:
    for what, got in found.items():
        if got > _MOST[what]:
            raise ModelError(f"it has {got} {what}; expected at most {_MOST[what]}")


def check_nodes(graph: GraphProto) -> None:
    """Check the attributes that kernels trust, in a graph and its bodies, once functions are in their places.

    Raises:
        ModelError: if a node divides by zero, or has an extent that overflows.
    """
    for body in _bodies(graph):
        for node in body.node:
            positive = _DIVISORS.get(node.op_type, ())
            for attribute in node.attribute:
                who = f"node '{node.name or next(iter(node.output), '')}' ({node.op_type}): attribute '{attribute.name}'"
                if attribute.name in positive and attribute.type == AttributeProto.INT and attribute.i < 1:
                    raise ModelError(f"{who}: expected at least 1, got {attribute.i}")
                if attribute.name in _EXTENTS and any(abs(extent) > MAX_EXTENT for extent in attribute.ints):
                    raise ModelError(f"{who}: expected numbers up to {MAX_EXTENT}, got {max(attribute.ints, key=abs)}")


def check_tensor(tensor: TensorProto) -> None:
    """Check that a tensor has the content that its shape takes; that of one outside the file is not looked at.

    Raises:
        ModelError: if it has not, or no array has such a shape.
    """
    who, shape = f"weight '{tensor.name}'", list(tensor.dims)
    if len(shape) > MAX_RANK or min(shape, default=0) < 0:
        raise ModelError(f"{who}: expected up to {MAX_RANK} sizes that are not negative, got {len(shape)}: {str(shape)[:80]}")
    kind = dtype_of(tensor.data_type)
    if tensor.data_location == TensorProto.EXTERNAL or kind is DType.OTHER:
        return
    count = prod(shape)
    if tensor.HasField("raw_data") and kind is not DType.STRING:
        unit, expected, got = "bytes", count * kind.itemsize, len(tensor.raw_data)
    else:
        fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data, tensor.string_data)
        unit, expected, got = "numbers", count * _PER_ELEMENT.get(kind, 1), sum(map(len, fields))
    if expected != got:
        raise ModelError(f"{who}: its shape {str(shape)[:80]} takes {expected} {unit}, but it has {got}")


def dtype_of(code: int) -> DType:
    """Return the element type of an ONNX type code; `OTHER` if it is none that can leave its machine."""
    return DType(code) if code in DType._value2member_map_ else DType.OTHER


def sparse_tensors(graph: GraphProto) -> Iterator[SparseTensorProto]:
    """Yield the sparse weights of a graph and of its nodes, without those of bodies."""
    yield from graph.sparse_initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from ([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else [])
            yield from attribute.sparse_tensors


def _check_sparse(sparse: SparseTensorProto) -> int:
    """Return the bytes of a sparse weight as a dense one."""
    check_tensor(sparse.values)
    check_tensor(sparse.indices)
    shape = list(sparse.dims)
    if len(shape) > MAX_RANK or min(shape, default=0) < 0:
        raise ModelError(f"weight '{sparse.values.name}': its sparse form has the shape {str(shape)[:80]}")
    return int(prod(shape)) * max(1, dtype_of(sparse.values.data_type).itemsize)


def _check_growth(proto: ModelProto) -> None:
    """Check how many nodes and bytes there are when every function stands where it is called."""
    functions = {_key(f.domain, f.name, f.overload): f for f in proto.functions}
    known: dict[_Key, tuple[int, int]] = {}
    nodes, size = _grown(proto.graph, functions, known, ())
    if nodes > MAX_NODES:
        raise ModelError(f"it has {_rough(nodes)} nodes, those in bodies and functions included; expected at most {MAX_NODES}")
    if not proto.functions:
        return  # and the bytes are not counted, which takes long
    most = max(FREE_BYTES, MAX_GROWTH * proto.ByteSize())
    if size > most:
        raise ModelError(f"its functions make {_rough(size)} bytes of it; expected at most {most}")


def _grown(
    graph: GraphProto, functions: dict[_Key, FunctionProto], known: dict[_Key, tuple[int, int]], path: tuple[_Key, ...]
) -> tuple[int, int]:
    """Return the nodes of a graph and their bytes, with those of the functions it calls; `path` are the calls that lead here."""
    nodes = size = 0
    for body in _bodies(graph):
        nodes += len(body.node)
        if not functions:
            continue
        for node in body.node:
            key = _key(node.domain, node.op_type, node.overload)
            if key not in functions:
                size += 0 if body is not graph else node.ByteSize()  # that of a node has its bodies in it
                continue
            if key in path:
                raise ModelError(f"function '{node.op_type[:80]}' calls itself; functions must not be recursive")
            if len(path) > MAX_CALLS:
                raise ModelError(f"function '{node.op_type[:80]}': functions call each other more than {MAX_CALLS} deep")
            if key not in known:
                inside, added = _grown(GraphProto(node=functions[key].node), functions, known, (*path, key))
                known[key] = inside, added + _default_bytes(functions[key])
            nodes, size = nodes + known[key][0], size + known[key][1]
    return nodes, size


def _default_bytes(function: FunctionProto) -> int:
    """Return the bytes of a function's defaults, once for a call and once for each node that takes one."""
    nodes = (node for body in _bodies(GraphProto(node=function.node)) for node in body.node)
    taken = Counter(attribute.ref_attr_name for node in nodes for attribute in node.attribute)
    return sum(attribute.ByteSize() * (1 + taken[attribute.name]) for attribute in function.attribute_proto)


def _key(domain: str, name: str, overload: str) -> _Key:
    return standard_domain(domain), name, overload


def _rough(number: int) -> str:
    return str(number) if number < 10**12 else f"about 10^{len(str(number)) - 1}"


def _bodies(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all bodies inside it, refusing what is too deep."""
    level = [graph]
    for _ in range(MAX_BODIES + 1):
        yield from level
        level = [body for outer in level for node in outer.node for body in bodies_of(node)]
        if not level:
            return
    raise ModelError(f"its nodes have bodies inside bodies, more than {MAX_BODIES} deep")


def _names_of(graph: GraphProto) -> Iterator[str]:
    """Yield the longest name of each node, weight, input and output: one of them is the longest of all."""
    for node in graph.node:
        named = (node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute))
        if bytes in map(type, named):
            raise _no_text(named)
        yield max(named, key=len)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in _tensors_of(graph):
        yield tensor.name
        yield from (entry.value for entry in tensor.external_data)


def _no_text(names: Iterable[str | bytes]) -> ModelError:
    """Return what is said of names that are no Unicode: protobuf gives them as bytes."""
    wrong = next(name for name in names if isinstance(name, bytes))
    return ModelError(f"the name {wrong[:40]!r} is no text in UTF-8")


def _tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from attribute_tensors(graph)


def attribute_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the tensors that are attributes of the nodes of a graph, without those of bodies."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from ([attribute.t] if attribute.HasField("t") else [])
            yield from attribute.tensors


def _check_declared(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        rank = len(value.type.tensor_type.shape.dim)
        if rank > MAX_RANK:
            raise ModelError(f"value '{value.name[:80]}': expected up to {MAX_RANK} axes, got {rank}")


def check_shared(used: Iterable[tuple[str, int, int]]) -> None:
    """Check how often weights use the content of files: name, bytes used, and bytes of the file.

    Raises:
        ModelError: if they use a file's content many times over: each use is hashed and sent.
    """
    for name, taken, size in used:
        if taken > max(FREE_BYTES, MAX_GROWTH * size):
            raise ModelError(f"its weights use {_rough(taken)} bytes of '{name[:80]}', which has {size}; expected {MAX_GROWTH} times that")
