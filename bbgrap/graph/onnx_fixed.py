"""Sizes that are the same whatever those that are open come to, as constants. One of the files that import onnx (see `onnx_io`).

    q [B, H, words, 16] ──► Shape ──► Gather 3 ──► Div by 2 ──► Slice       what is gathered is 16

onnxruntime folds what follows from a shape if all of it is known. PyTorch's exporter asks for a shape and takes one size of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx.helper
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_free import Sizes, fixed_sizes
from bbgrap.graph.onnx_read import OnnxModel, array_of
from bbgrap.graph.onnx_tidy import constant_tensors, copy_of, standard_domain
from bbgrap.graph.types import Array

_MOST_NUMBERS = 64
"""In a list of sizes. Chosen: no shape is as long."""
_MOST_COUNTED = 1 << 20
"""Elements of a weight whose places are made constant: 8 MB for each axis."""
_CHOOSING = frozenset({"Gather", "Slice"})
_TAKING = _CHOOSING | {"Concat", "Shape", "Squeeze", "Unsqueeze"}
"""Operators that make a list of sizes of a shape, or of such lists."""


def with_fixed_sizes(model: OnnxModel) -> OnnxModel:
    """Return a model with constants for sizes that are taken of shapes, and that all shapes of its inputs leave as they are.

    The very same one if there are none.
    """
    return _with_constants(model, _told(model.proto.graph, fixed_sizes(model)))


def with_known_places(model: OnnxModel) -> OnnxModel:
    """Return a model with constants for what `NonZero` finds in weights, which onnxruntime does not fold.

    PyTorch's older exporter counts so, by places of ones, wherever a slice is assigned to. The very same model if there are none.
    """
    nodes = enumerate(model.proto.graph.node)
    read = {place: node.input[0] for place, node in nodes if node.op_type == "NonZero" and not standard_domain(node.domain)}
    tensors = constant_tensors(model.proto.graph) if read else {}
    told: dict[int, Array] = {}
    for place, name in read.items():
        tensor = tensors.get(name)
        weight = array_of(tensor) if tensor is not None and not is_external(tensor) else model.weights.get(name)
        if weight is not None and weight.ndim and weight.size <= _MOST_COUNTED:
            told[place] = np.array(np.nonzero(weight))
    return _with_constants(model, told)


def _with_constants(model: OnnxModel, told: Mapping[int, Array]) -> OnnxModel:
    """Return a model with constants in place of nodes; the very same one if there are none."""
    if not told:
        return model
    proto = copy_of(model.proto)
    for place, made in told.items():
        node = proto.graph.node[place]
        value = numpy_helper.from_array(made)
        node.CopyFrom(onnx.helper.make_node("Constant", [], [node.output[0]], name=node.name, value=value))
    return replace(model, proto=proto)


def _told(graph: GraphProto, known: Sizes) -> dict[int, Array]:
    """Return what nodes take of shapes, by their places, where all of that is known."""
    lists = {
        name: array_of(tensor).astype(object)
        for name, tensor in constant_tensors(graph).items()
        if tensor.data_type == TensorProto.INT64 and not is_external(tensor) and len(tensor.dims) <= 1 and sum(tensor.dims) <= _MOST_NUMBERS
    }
    found: dict[int, Array] = {}
    for place, node in enumerate(graph.node):
        if standard_domain(node.domain) or node.op_type not in _TAKING:
            continue
        if node.op_type == "Shape":
            made = _sizes(node, known)
        else:
            given = [lists[name] for name in node.input if name in lists]
            made = _taken(node, given) if len(given) == len(node.input) else None
        if made is None or made.size > _MOST_NUMBERS:
            continue
        lists[node.output[0]] = made
        if node.op_type in _CHOOSING and None not in made.ravel().tolist():
            found[place] = made.astype(np.int64)
    return found


def _sizes(node: NodeProto, known: Sizes) -> Array | None:
    """Return what a Shape tells: numbers, and None for sizes that differ."""
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    sizes = known.get(node.input[0])
    return None if sizes is None else np.array(sizes, object)[bounds.get("start", 0) : bounds.get("end")]


def _taken(node: NodeProto, given: Sequence[Array]) -> Array | None:
    """Return the list that a node makes of one; None if it wants others, or is in error, which the run will tell."""
    numbers, *how = given
    try:
        match node.op_type:
            case "Gather":
                return np.asarray(numbers[how[0].astype(np.int64)], object)
            case "Slice":
                start, end, *more = (int(array.item()) for array in how)
                return numbers[start:end] if more[1:] in ([], [1]) else None
            case "Concat":
                return np.concatenate(given)
            case "Unsqueeze":
                return numbers.reshape(1)
            case _:
                return numbers.reshape(())
    except (IndexError, TypeError, ValueError):
        return None
