"""What a model is for all sizes of the axes that move. One of the files that import onnx (see `onnx_io`).

shapes_at     the shapes of its values for some sizes, as far as it can be run with these
free_form     the model with symbols for these sizes
common_form   besides, what an optimiser may conclude from the sizes: models of equal forms are optimised alike
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx
import onnx.shape_inference
from onnx import helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_read import BROKEN
from bbgrap.graph.onnx_tidy import serialized

ELEMENTWISE = (
    *("Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max", "Min"),
    *("Mish", "Mul", "Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh"),
)
"""Operators whose output has the sizes of what they read, broadcast."""
_OF_FLOATS = (
    *("AveragePool", "BatchNormalization", "Concat", "Conv", "ConvTranspose", "Flatten", "Gemm", "GlobalAveragePool", "GlobalMaxPool"),
    *("InstanceNormalization", "LayerNormalization", "MatMul", "MaxPool", "Pad", "ReduceMean", "ReduceSum", "Softmax"),
)
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_WINDOWS = frozenset({"AveragePool", "Conv", "MaxPool"})
_SIZELESS = frozenset((*ELEMENTWISE, *_OF_FLOATS, *_RESHAPES, "Transpose"))
"""Operators of which onnxruntime looks at no sizes but whether operands have equal ones, and which are 1. Of others it may: it computes the
scales of a `Resize` from them, and folds a `Shape`. Of `_RESHAPES` in a row it makes one, with the sizes written out."""


def shapes_at(data: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's values for these shapes of its inputs.

    Raises:
        ModelError: if one of them is not known, or no model should be run with them: of a map that is smaller than a window onnxruntime
            makes one without rows, and a pooling of that ends the process (1.31, SIGFPE).
    """
    proto = onnx.ModelProto.FromString(data)
    kinds = {tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in proto.graph.initializer}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer if not is_external(tensor)}
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
        kinds[value.name] = value.type
    found = {name: _shape_of(kind) for name, kind in kinds.items()}
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    # One node after the other: of a size below zero, onnx makes an end of the process at the next `Slice` (1.23, SIGABRT).
    for node in proto.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
            read = {name: kinds[name] for name in node.input if name}
            made = onnx.shape_inference.infer_node_outputs(schema, node, read, constants, opset_imports=list(proto.opset_import))
        except (*BROKEN, KeyError, onnx.defs.SchemaError) as error:
            raise ModelError(f"model '{proto.graph.name}': node '{node.name}' takes no inputs of these sizes: {error}") from None
        kinds |= made
        found |= {name: _shape_of(kind) for name, kind in made.items() if kind.tensor_type.HasField("shape")}
        if not all(name in found and min(found[name], default=1) > 0 for name in node.output if name) or not _windows_fit(node, found):
            raise ModelError(f"model '{proto.graph.name}': node '{node.name}' makes nothing of inputs of these sizes")
    return found


def _shape_of(kind: onnx.TypeProto) -> tuple[int, ...]:
    """Return the sizes of a type, zero where they are not known."""
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)


def _windows_fit(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the windows of a node are no larger than what they go over, padding included."""
    if node.op_type not in _WINDOWS:
        return True
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("auto_pad", b"NOTSET") not in {b"NOTSET", b"VALID"}:
        return True
    sizes = shapes[node.input[0]][2:]
    windows = attributes.get("kernel_shape") or shapes[node.input[1]][2:]
    pads, dilations = attributes.get("pads") or [0] * 2 * len(sizes), attributes.get("dilations") or [1] * len(sizes)
    return all(
        size + pads[axis] + pads[axis + len(sizes)] > dilation * (window - 1)
        for axis, (size, window, dilation) in enumerate(zip(sizes, windows, dilations, strict=True))
    )


def free_form(data: bytes, moving: Mapping[str, frozenset[int]]) -> bytes:
    """Return a model with symbols for the sizes of moving axes: the same one for equal sizes of an axis, and another one for ones."""
    proto = onnx.ModelProto.FromString(data)
    symbols: dict[tuple[int, int], str] = {}
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in sorted(moving.get(value.name, ())):
            dim = value.type.tensor_type.shape.dim[axis]
            dim.dim_param = "one" if dim.dim_value == 1 else symbols.setdefault((axis, dim.dim_value), f"size{len(symbols)}")
    return serialized(proto)


def common_form(data: bytes, moving: Mapping[str, frozenset[int]]) -> bytes:
    """Return what models with concrete sizes have in common that are optimised alike; the model itself, if it may be like no other."""
    if not any(moving.values()):
        return data
    proto = onnx.ModelProto.FromString(data)
    reshaped = {node.output[0] for node in proto.graph.node if node.op_type in _RESHAPES}
    if not all(_is_sizeless(node, reshaped) for node in proto.graph.node):
        return data
    try:
        # The sizes of a segment are known, and none is below zero.
        relations = list(_relations(onnx.shape_inference.infer_shapes(proto).graph))
    except (*BROKEN, KeyError):
        return data
    return free_form(data, moving) + repr(relations).encode()


def _is_sizeless(node: onnx.NodeProto, reshaped: Collection[str]) -> bool:
    by_scales = node.op_type == "Resize" and not any(node.input[3:4])
    sliced = node.op_type == "Slice"  # it means the same of all sizes: bounds are constants
    in_a_row = node.op_type in _RESHAPES and node.input[0] in reshaped
    return not node.domain and not in_a_row and (node.op_type in _SIZELESS or by_scales or sliced)


def _relations(graph: onnx.GraphProto) -> Iterator[tuple[tuple[object, ...], ...]]:
    """Yield of every node, per operand, whether it is shaped like the first one, and which of its sizes are 1; `KeyError` if unknown."""
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        operands = [shapes[name] for name in node.input if name]
        yield tuple((shape == operands[0], *(size == 1 for size in shape)) for shape in operands)
