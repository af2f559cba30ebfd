"""Surgery on one segment for the memory layout of a machine's own convolutions. One of the files that import onnx (see `onnx_io`).

On the CPU, onnxruntime keeps feature maps in blocks of b channels: a tensor of nominal shape [N, C, H, W] is [N, C/b, H, W, b] in memory.
It converts where a graph begins and ends, and assemblies of halos at the front (`Concat`, `Slice`) keep it from blocking at all. So:

    split_front       the assemblies leave the graph: what they make becomes an input
    with_stand_ins    a pooling of 1x1, which does nothing, before an input: the optimiser then sees a blocked producer
    boundary_of       reads in what onnxruntime made of it which inputs and outputs can be blocked
    cut_boundary      removes stand-ins and conversions there: these inputs and outputs are blocked in memory now

Law: the nominal shapes and the names of inputs and outputs never change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx
from onnx import NodeProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_forms import free_form
from bbgrap.graph.onnx_read import OnnxModel
from bbgrap.graph.onnx_tidy import copy_of, graphs_of, refill, serialized
from bbgrap.graph.types import Array

Extents = tuple[int, ...]

_STAND_IN = ".blocked"


@dataclass(frozen=True, slots=True)
class Patch:
    """A box of `shape` that lies at `start` in the input `source` and at `at` in what is put together; local coordinates."""

    source: str
    start: Extents
    at: Extents
    shape: Extents


_FLATTENS = frozenset({"Flatten", "Reshape"})
"""Operators that blocks of channels are of no use to."""

_QUANTIZES = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})


@dataclass(frozen=True, slots=True)
class Front:
    """A model without the assemblies at its front.

    Invariants: `inputs` are those of `data`, in its order; the patches of each of `joined`, which are among them, cover it.
    """

    data: bytes
    inputs: tuple[str, ...]
    joined: Mapping[str, tuple[Patch, ...]]
    maps: Mapping[str, Extents]
    """Shapes of the inputs and outputs that have four axes and 32-bit floats."""
    flattened: frozenset[str]
    """The inputs among them that are only flattened."""
    moving: Mapping[str, frozenset[int]]
    """The axes of inputs and outputs that the model does not fix."""
    weights: frozenset[str]
    """Names of the weights outside that are still read."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Inputs whose stand-ins are read in blocks, and outputs that are made in blocks of channels without a remainder."""

    inputs: frozenset[str]
    outputs: frozenset[str]


def split_front(data: bytes, shapes: Mapping[str, Extents] = MappingProxyType({})) -> Front:
    """Take `Concat` and `Slice` of inputs out of a model, where they make feature maps.

    `shapes` are those that its inputs and outputs have, as far as they are known; in `Front.data` they are fixed.

    Raises:
        ModelError: if the model has control flow, which could read inputs unseen, quantizes, or returns an input.
    """
    proto = onnx.ModelProto.FromString(data)
    graph = proto.graph
    if any(node.op_type in _QUANTIZES for node in graph.node) or _has_range(graph.node):
        raise ModelError(f"model '{graph.name}': it quantizes, and a step of that may show what a kernel adds in another order")
    if sum(1 for _ in graphs_of(graph)) > 1:
        raise ModelError(f"model '{graph.name}': it has control flow")
    moving = {value.name: axes for value in (*graph.input, *graph.output) if (axes := _fix(value, shapes.get(value.name)))}
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not is_external(t)}
    extents = _map_shapes(graph.input)
    values: dict[str, tuple[Patch, ...]] = {name: (Patch(name, (0,) * 4, (0,) * 4, shape),) for name, shape in extents.items()}
    front: dict[str, NodeProto] = {}
    rest: list[NodeProto] = []
    for node in graph.node:
        made = _assembled(node, values, extents, constants)
        if made is None:
            rest.append(node)
        else:
            name = node.output[0]
            extents[name], values[name] = made
            front[name] = node
    outputs = {value.name for value in graph.output}
    if not outputs.isdisjoint(value.name for value in graph.input):
        raise ModelError(f"model '{graph.name}': it returns one of its inputs")
    live = outputs.union(*(node.input for node in rest))
    for name in [name for name in front if name in outputs]:  # a result is left as it is
        rest.insert(0, front.pop(name))
        live.update(rest[0].input)
    joined = {name: values[name] for name in front if name in live}
    declared = {value.name: value for value in graph.input}
    inputs = (*(name for name in declared if name in live), *joined)
    del graph.value_info[:]
    value_of = onnx.helper.make_tensor_value_info
    refill(graph.input, (declared.get(name) or value_of(name, onnx.TensorProto.FLOAT, extents[name]) for name in inputs))
    refill(graph.node, rest)
    weights = [tensor for tensor in graph.initializer if tensor.name in live]
    refill(graph.initializer, weights)
    readers = _readers(rest)
    taken = {name: extents[name] for name in inputs if name in extents}
    flattened = frozenset(name for name in taken if all(node.op_type in _FLATTENS for node in readers.get(name, ())))
    moving |= {name: frozenset().union(*(moving.get(patch.source, ()) for patch in patches)) for name, patches in joined.items()}
    read = frozenset(tensor.name for tensor in weights if is_external(tensor))
    return Front(serialized(proto), inputs, joined, _map_shapes(graph.output) | taken, flattened, moving, read)


def _has_range(nodes: Iterable[NodeProto]) -> bool:
    """Whether a value's least and largest element are looked for: it is quantized then, here or elsewhere (`dynamic_ranges`)."""
    found = [{node.input[0] for node in nodes if node.op_type == op} for op in ("ReduceMin", "ReduceMax")]
    return not found[0].isdisjoint(found[1])


def _fix(value: onnx.ValueInfoProto, shape: Extents | None) -> frozenset[int]:
    """Write sizes where the declaration of a value has none, and return where that was."""
    dims = value.type.tensor_type.shape.dim
    if shape is None or len(shape) != len(dims):
        return frozenset()
    moving = frozenset(axis for axis, dim in enumerate(dims) if not dim.HasField("dim_value"))
    for axis in moving:
        dims[axis].dim_value = shape[axis]
    return moving


def with_stand_ins(data: bytes, inputs: Iterable[str]) -> bytes:
    """Put a pooling of 1x1 between some inputs and all their readers."""
    proto = onnx.ModelProto.FromString(data)
    chosen = sorted(inputs)
    _rename_inputs(proto.graph.node, {name: name + _STAND_IN for name in chosen})
    pools = [onnx.helper.make_node("MaxPool", [name], [name + _STAND_IN], name + _STAND_IN, kernel_shape=[1, 1]) for name in chosen]
    refill(proto.graph.node, (*pools, *proto.graph.node))
    return serialized(proto)


def boundary_of(model: OnnxModel, inputs: Iterable[str], block: int) -> Boundary:
    """Tell what can be blocked in an optimised model whose `inputs` have stand-ins."""
    nodes = model.proto.graph.node
    readers = _readers(nodes)
    stand_ins = {name: pool.output[0] for name in inputs if (pool := _stand_in(name, readers)) is not None}
    read = frozenset(n for n, value in stand_ins.items() if any(r.op_type != "ReorderOutput" for r in readers.get(value, ())))
    return Boundary(read, frozenset(_reordered_outputs(model.proto.graph, block, set(stand_ins.values()))))


def cut_boundary(
    model: OnnxModel,
    boundary: Boundary,
    block: int,
    moving: Mapping[str, frozenset[int]] = MappingProxyType({}),
) -> bytes:
    """Remove the stand-ins of the boundary's inputs, which are all that the model has, and the conversions of its outputs.

    The sizes of `moving` axes are left open.

    Raises:
        ModelError: if the model is not such that `boundary_of` offers them.
    """
    proto = copy_of(model.proto)
    graph = proto.graph
    readers = _readers(graph.node)
    pools = {name: _stand_in(name, readers) for name in boundary.inputs}
    values = {pool.output[0]: name for name, pool in pools.items() if pool is not None}
    reorders = _reordered_outputs(graph, block, set(values))
    if len(values) != len(pools) or not reorders.keys() >= boundary.outputs:
        raise ModelError(f"model '{model.name}': its inputs and outputs cannot be blocked as asked")
    gone = {node.output[0] for name in pools for node in (readers[name][0], pools[name]) if node is not None}
    names = dict(values)
    for output in sorted(boundary.outputs):
        node = reorders[output]
        names[node.input[0]] = output
        if output in readers:  # read inside as well: there it stays as it is
            names[output] = node.output[0] = f"{output}.plain"
        else:
            gone.add(output)
    kept = [node for node in graph.node if node.output[0] not in gone]
    _rename_inputs(kept, names)
    for node in kept:
        for place, name in enumerate(node.output):
            node.output[place] = names.get(name, name)
    del graph.value_info[:]
    refill(graph.node, kept)
    return free_form(serialized(proto), moving)


def _assembled(
    node: NodeProto, values: Mapping[str, tuple[Patch, ...]], shapes: Mapping[str, Extents], constants: Mapping[str, Array]
) -> tuple[Extents, tuple[Patch, ...]] | None:
    """Return shape and patches of what a node puts together from known values; None if it does something else."""
    if node.op_type == "Slice" and node.input[0] in values:
        bounds = _slice_bounds(node, shapes[node.input[0]], constants)
        return None if bounds is None else _cropped(values[node.input[0]], bounds)
    if node.op_type == "Concat" and all(name in values for name in node.input):
        axis = next(a.i for a in node.attribute if a.name == "axis") % 4
        patches: list[Patch] = []
        extent = 0
        for name in node.input:
            for patch in values[name]:
                at = tuple(offset + (extent if k == axis else 0) for k, offset in enumerate(patch.at))
                patches.append(Patch(patch.source, patch.start, at, patch.shape))
            extent += shapes[name][axis]
        first = shapes[node.input[0]]
        return (*first[:axis], extent, *first[axis + 1 :]), tuple(patches)
    return None


def _map_shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those values that are feature maps: with four axes, and of 32-bit floats."""
    floats = [value for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    shapes = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in floats}
    return {name: shape for name, shape in shapes.items() if len(shape) == 4 and min(shape) > 0}


def _slice_bounds(node: NodeProto, shape: tuple[int, ...], constants: Mapping[str, Array]) -> list[tuple[int, int]] | None:
    """Return what a `Slice` keeps of every axis of a value; None if that is nothing, has gaps, or does not follow from constants."""
    if len(node.input) < 3 or any(name not in constants for name in node.input[1:] if name):
        return None
    starts, ends, axes, steps = ([int(i) for i in constants[name]] if name else None for name in (*node.input[1:], "", "")[:4])
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        return None
    bounds = [(0, extent) for extent in shape]
    for start, end, axis in zip(starts, ends, range(len(starts)) if axes is None else axes, strict=True):
        low, high, _ = slice(start, end).indices(shape[axis])
        bounds[axis] = (low, high)
    return None if any(low >= high for low, high in bounds) else bounds


def _cropped(patches: Iterable[Patch], bounds: Sequence[tuple[int, int]]) -> tuple[Extents, tuple[Patch, ...]]:
    kept = []
    for patch in patches:
        inside = [(max(a, low), min(a + n, high)) for a, n, (low, high) in zip(patch.at, patch.shape, bounds, strict=True)]
        if all(low < high for low, high in inside):
            origin = tuple(s + low - a for s, a, (low, _) in zip(patch.start, patch.at, inside, strict=True))
            at = tuple(low - first for (low, _), (first, _) in zip(inside, bounds, strict=True))
            kept.append(Patch(patch.source, origin, at, tuple(high - low for low, high in inside)))
    return tuple(end - start for start, end in bounds), tuple(kept)


def _readers(nodes: Iterable[NodeProto]) -> dict[str, list[NodeProto]]:
    found: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def _stand_in(name: str, readers: Mapping[str, list[NodeProto]]) -> NodeProto | None:
    """Return the pooling before an input, if it works on blocks and does nothing."""
    found: list[NodeProto] = []
    for kind in ("ReorderInput", "MaxPool"):
        found = readers.get(name, [])
        if len(found) != 1 or found[0].op_type != kind:
            return None
        name = found[0].output[0]
    return found[0]


def _reordered_outputs(graph: onnx.GraphProto, block: int, stand_ins: Collection[str]) -> dict[str, NodeProto]:
    """Return, for each graph output that is made in whole blocks, the node that converts it back; a source serves one output."""
    outputs = {value.name for value in graph.output}
    found: dict[str, NodeProto] = {}
    taken = set(stand_ins)
    for node in graph.node:
        if node.op_type == "ReorderOutput" and node.output[0] in outputs and node.input[0] not in taken:
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            if attributes["channels"] % block == 0 and not attributes.get("channels_last"):
                found[node.output[0]] = node
                taken.add(node.input[0])
    return found


def _rename_inputs(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
