"""Which axes of a model's values have sizes that follow from free dimensions of its inputs. One of the files that import onnx.

Law: an axis that is not moving has the same size for all shapes of the inputs that the file allows; where nobody can tell, it moves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

import onnx
import onnx.helper

from bbgrap.graph.onnx_computed import infer
from bbgrap.graph.onnx_forms import ELEMENTWISE
from bbgrap.graph.onnx_read import BROKEN, OnnxModel
from bbgrap.graph.onnx_tidy import copy_of, forget_shapes, refill, serialized
from bbgrap.graph.types import DType, Graph, Node

Sizes = Mapping[str, tuple[int | None, ...]]
"""Of values, the sizes that are the same for all shapes of the inputs."""

_AS_FIRST = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear"})
"""Operators whose output has the sizes of their first operand."""
_COPIES = (re.compile(r"InsertedPrecisionFreeCast_(.+?)(_token_\d+)?"), re.compile(r"(.+)/duplicated(_token_\d+)?"))
"""What onnxruntime calls a value in another type of floats, where it has no kernel for float16, and one that it dequantizes once more."""
_IN_ROWS = re.compile(r"(InsertedPrecisionFreeCast_)?gemm_input_reshape_arg(_token_\d+)?")
"""What it calls a value whose axes but the last it makes one, for a product with a bias in one operator."""


def has_free_inputs(model: OnnxModel) -> bool:
    """Whether inputs of a model may have several shapes."""
    return any(item.concrete is None for item in model.inputs if item.dtype is not DType.OTHER)


def moving_axes(known: Sizes, graph: Graph) -> Mapping[str, frozenset[int]]:
    """Return which axes of a graph's values move, by what is `known` of the model with free inputs; values with none are left out."""
    found: dict[str, frozenset[int]] = {}
    for name, kind in graph.types.items():
        if name not in graph.weights and kind.shape:
            sizes = known.get(_original(name, known), ())
            moving = frozenset(range(len(kind.shape)))
            if len(sizes) == len(kind.shape):
                moving = frozenset(axis for axis, size in enumerate(sizes) if size != kind.shape[axis])
            if moving:
                found[name] = moving
    for node in graph.nodes:
        if _original(node.first_output, known) not in known and (axes := _following(graph, node, found)) is not None:
            found[node.first_output] = axes
    return {name: axes for name, axes in found.items() if axes}


def _original(name: str, known: Sizes) -> str:
    """Return the value of which onnxruntime has made another of the same sizes, if that is known; else the name itself."""
    copies = (form.fullmatch(name) for form in _COPIES) if name not in known else ()
    return next((copy[1] for copy in copies if copy is not None and copy[1] in known), name)


def _following(graph: Graph, node: Node, moving: Mapping[str, frozenset[int]]) -> frozenset[int] | None:
    """Return which axes move of what an optimiser has named anew, by those of what it is made of; None where that tells nothing."""
    shapes = [graph.types[name].shape for name in (node.first_output, *filter(None, node.inputs))]
    of_first = moving.get(node.inputs[0], frozenset()) if node.inputs else frozenset()
    if node.op in _AS_FIRST or (node.op == "Slice" and _is_known_part(graph, node)):
        return of_first
    if node.op == "Gemm" or _IN_ROWS.fullmatch(node.first_output):
        return _rows_and_columns(graph, node, moving)
    if node.op == "Transpose":
        order = node.attributes.get("perm")
        return frozenset(axis for axis, of in enumerate(order) if of in of_first) if isinstance(order, tuple) else None
    if node.op in ELEMENTWISE and not node.domain and None not in shapes:
        ranks = [len(shape or ()) for shape in shapes]
        beyond = [(name, rank - ranks[0]) for name, rank in zip(filter(None, node.inputs), ranks[1:], strict=True)]
        return frozenset(axis - more for name, more in beyond for axis in moving.get(name, ()) if axis >= more)
    return None


def _rows_and_columns(graph: Graph, node: Node, moving: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """Return which axes move of a product of matrices, or of a value in rows."""
    of_first = moving.get(node.inputs[0], frozenset())
    if node.op == "Gemm":
        row, column = (1 if node.attributes.get("transA") else 0), (0 if node.attributes.get("transB") else 1)
        moves = (row in of_first, column in moving.get(node.inputs[1], ()))
    else:
        last = len(graph.types[node.inputs[0]].known_shape) - 1
        moves = (bool(of_first - {last}), last in of_first)
    return frozenset(axis for axis, is_moving in enumerate(moves) if is_moving)


def _is_known_part(graph: Graph, node: Node) -> bool:
    """Whether a slice, which stands for a part that the file has packed, is the same for all shapes but along axes that move."""
    return graph.types[node.inputs[0]].shape is not None and all(name in graph.weights for name in node.inputs[1:] if name)


def fixed_sizes(model: OnnxModel) -> Sizes:
    """Return what follows for values from the free inputs; sizes that are told of values inside and of outputs are not believed."""
    proto = copy_of(model.proto)
    forget_shapes(proto.graph)
    try:
        inferred = infer(proto)
    except BROKEN:
        return {}
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    shapes = ((value.name, value.type.tensor_type.shape.dim) for value in values if value.type.tensor_type.HasField("shape"))
    return {name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims) for name, dims in shapes}


def asking(model: OnnxModel, known: Sizes, caching: Set[str]) -> tuple[bytes, Set[str]]:
    """Return a model that puts out what nothing is known of, and the names of that: who loads it is told what they are like.

    Large weights are inputs: their numbers steer no shapes. What `caching` operators put out behind their answer is not asked for:
    onnxruntime takes a cache for as long as its past.
    """
    nodes = model.proto.graph.node
    made = (name for node in nodes for name in (node.output[:1] if node.op_type in caching else node.output))
    unknown = [name for name in made if name and name not in known]
    if not unknown:
        return b"", frozenset()
    proto = copy_of(model.proto)
    forget_shapes(proto.graph)
    outputs = {value.name for value in proto.graph.output}
    for tensor in proto.graph.initializer:
        if tensor.name in model.weights:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    refill(proto.graph.initializer, (tensor for tensor in proto.graph.initializer if tensor.name not in model.weights))
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in unknown if name not in outputs)
    return serialized(proto), frozenset(unknown)
