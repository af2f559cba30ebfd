"""What a model computes of its constants and shapes, before anybody computes it. One of the files that import onnx (see `onnx_io`).

onnxruntime folds constants when it loads a model: a file of 200 bytes asks for gigabytes by `Expand` or `Range`. onnx follows the content
of lists when it infers shapes by it, with a hundred bytes for each number, known or not: a sum of two inputs of 2^30 numbers takes 100 GB.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_below_zero import doubtful_slices
from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_limits import MAX_GROWTH, dtype_of
from bbgrap.graph.onnx_tidy import bodies_of, copy_of, reads_of

MAX_COMPUTED_BYTES = 1 << 30
"""All that is computed of constants, beside `MAX_GROWTH` times the weights, which may be packed. Chosen: onnx's tests have a VGG19 whose
weights of 575 MB are computed.
"""

MAX_FOLLOWED = 1 << 20
"""Numbers in lists whose content onnx follows: 100 MB. Chosen: every shape has up to 64, and exported networks make some thousand."""

_NEW = ("Constant", "Shape", "Size")
"""Constant whatever they read; nothing is large that they make."""
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
"""Never folded, but computed whenever the model runs."""
_FOLLOWED = frozenset({"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
"""Operators through which onnx follows content."""
_SHAPE = 8
"""Numbers in a shape, most often."""


def check_computed(proto: ModelProto) -> None:
    """Check how much is computed of constants and shapes in a model whose nodes are sorted and whose large weights are taken out.

    And that its shapes can be inferred: onnxruntime, which is next to see it, ends the process where onnx does.

    Raises:
        ModelError: if it is more than any model needs, or as `infer_shapes` does.
    """
    steps = {t.name for t in proto.graph.initializer if not t.dims and not numpy_helper.to_array(t).any()}
    for node in proto.graph.node:
        if node.op_type == "Range" and node.input[2:3] and node.input[2] in steps:
            # Whoever infers shapes takes it for empty; onnxruntime refuses to run it.
            raise ModelError(f"node '{node.name or node.output[0]}' (Range): expected steps that are not 0, got 0")
    steering = _steering(proto.graph, {})
    if steering > MAX_FOLLOWED:
        raise ModelError(f"it puts {steering} numbers together that steer shapes; expected at most {MAX_FOLLOWED}")
    nodes = _constant_nodes(proto.graph)
    computes = any(node.op_type not in _NEW for node in nodes)
    known = _sizes(proto) if computes or any(doubtful_slices(proto.graph)) else {}
    if not computes:
        return
    sizes = {name: known.get(name, 0) for node in nodes if node.op_type not in _RANDOM for name in node.output}
    most = MAX_COMPUTED_BYTES + MAX_GROWTH * sum(_nbytes(tensor.data_type, tensor.dims) for tensor in proto.graph.initializer)
    total = sum(sizes.values())
    if total > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ModelError(f"{total} bytes are computed of its constants, {sizes[largest]} for '{largest[:80]}'; expected at most {most}")


def infer(proto: ModelProto) -> ModelProto:
    """Return a model with what onnx infers of types and shapes, by the content of shapes unless that would be too much.

    Raises:
        ModelError, InferenceError, RuntimeError: as `infer_shapes` does.
    """
    plain = infer_shapes(proto)
    return plain if _followed(plain.graph, {}) > MAX_FOLLOWED else infer_shapes(proto, data_prop=True)


def _followed(graph: GraphProto, outer: dict[str, int]) -> int:
    """Return how many numbers onnx would follow in a graph and the bodies inside it; `outer` are the lengths of lists outside."""
    lists: dict[str, int] = outer | {tensor.name: prod(tensor.dims) for tensor in graph.initializer if len(tensor.dims) == 1}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if len(value.type.tensor_type.shape.dim) == 1:
            lists[value.name] = max(0, value.type.tensor_type.shape.dim[0].dim_value)
    here = sum(lists.get(name, 0) for node in graph.node if node.op_type in _FOLLOWED for name in (*node.input, *node.output))
    return here + sum(_followed(body, lists) for node in graph.node for body in bodies_of(node))


def _steering(graph: GraphProto, outer: dict[str, int]) -> int:
    """Return how many numbers `Concat` puts together in lists that onnx may follow, at most; `outer` are those of values outside."""
    counts = dict(outer)
    counts |= {t.name: prod(t.dims) for t in graph.initializer if len(t.dims) <= 1 and t.data_location != TensorProto.EXTERNAL}
    total = 0
    for node in graph.node:
        total += sum(_steering(body, counts) for body in bodies_of(node))
        if node.op_type == "Constant":
            count = max((_length(attribute) for attribute in node.attribute), default=0)
        elif node.op_type in _NEW:
            count = _SHAPE
        elif node.op_type == "Concat":
            count = sum(counts.get(name, 0) for name in node.input)
            total += count
        elif node.op_type in _FOLLOWED:
            count = max((counts.get(name, 0) for name in node.input), default=0)
        else:
            count = 0
        if count:
            counts.update((name, count) for name in node.output)
        if total > 1 << 40:
            break  # it only gets longer to write
    return total


def _length(attribute: onnx.AttributeProto) -> int:
    return max(prod(attribute.t.dims) if len(attribute.t.dims) <= 1 else 0, len(attribute.ints), len(attribute.floats), 1)


def _constant_nodes(graph: GraphProto) -> list[NodeProto]:
    """Return the nodes that depend on constants and shapes only."""
    constant = {tensor.name for tensor in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type in _NEW or all(name in constant for name in reads_of(node)):
            found.append(node)
            constant.update(node.output)
    return found


def _sizes(proto: ModelProto) -> dict[str, int]:
    """Return the bytes of the values of a graph, as far as they can be inferred."""
    draft = copy_of(proto)
    del draft.graph.value_info[:]
    for value in draft.graph.output:
        value.ClearField("type")
    try:
        inferred = infer(draft)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}  # whoever computes it has a limit of memory
    known = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in tensor.shape.dim):
            known[value.name] = _nbytes(tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim])
    return known


def _nbytes(code: int, shape: Iterable[int]) -> int:
    return int(prod(shape)) * max(1, dtype_of(code).itemsize)
