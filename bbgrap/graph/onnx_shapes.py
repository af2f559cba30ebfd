"""The input shapes of a model are made concrete, before it becomes a `Graph`.

One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from bbgrap.errors import InputError
from bbgrap.graph.onnx_computed import check_computed
from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_read import ModelInput, OnnxModel, array_of, describe
from bbgrap.graph.onnx_tidy import constant_tensors, copy_of, forget_shapes, graphs_of, refill, serialized
from bbgrap.graph.rewriting import unique_name
from bbgrap.graph.types import Array, DType


def with_input_shapes(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    """Fix the shapes of all inputs that are tensors of numbers or strings; what is said of others is ignored.

    A weight that the file lists as an input too becomes one if it has a shape here: the caller gives another.

    A dimension that the file fixes must be the one given, except the first one: where that differs, the file hard-codes a batch
    size (exporters do), and the constants of `Reshape` that repeat it become 0, 'as in the input'. What it calls a scalar may be of any
    shape, as for onnxruntime, which does not tell scalars from tensors of unknown rank.

    Raises:
        InputError: if a shape is for no input, has the wrong rank, or differs from a dimension that is fixed; or if one is missing
            for an input with free dimensions.
        ModelError: if too much is computed of constants with these shapes.
    """
    model = without_weights(model, shapes)
    strangers = sorted(set(shapes) - {item.name for item in model.inputs})
    if strangers:
        names = ", ".join(sorted(item.name for item in model.inputs))
        raise InputError(f"input '{strangers[0]}': the model has no such input, it has {names}")
    tensors = [item for item in model.inputs if item.dtype is not DType.OTHER]
    fixed = {item.name: _fixed_shape(item, shapes.get(item.name)) for item in tensors}
    if all(item.shape == fixed[item.name] for item in tensors):
        return model
    proto = copy_of(model.proto)
    leading = {item.name: item.shape[0] for item in tensors if item.shape}
    old_batches = {size for name, size in leading.items() if isinstance(size, int) and size != fixed[name][0]}
    if old_batches:
        _free_reshapes(proto.graph, old_batches)
    for value in proto.graph.input:
        if value.name not in fixed:
            continue
        value.type.tensor_type.shape.SetInParent()
        del value.type.tensor_type.shape.dim[:]
        for size in fixed[value.name]:
            value.type.tensor_type.shape.dim.add().dim_value = size
    forget_shapes(proto.graph)
    check_computed(proto)  # again: constants may have followed from shapes that were free
    return describe(model.name, proto, model.weights)


def with_open_axes(model: OnnxModel, declared: Mapping[str, tuple[int | str | None, ...]], axes: Mapping[str, Container[int]]) -> OnnxModel:
    """Return a model with concrete input shapes whose sizes along some axes are open again, called as the file `declared` them."""
    proto = copy_of(model.proto)
    for value in proto.graph.input:
        symbols = declared.get(value.name, ())
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis in axes.get(value.name, ()):
                symbol = symbols[axis] if axis < len(symbols) else None
                dim.dim_param = symbol if isinstance(symbol, str) else f"{value.name}.{axis}"
    forget_shapes(proto.graph)
    return describe(model.name, proto, model.weights)


def with_weights_as_inputs(model: OnnxModel) -> bytes:
    """Return a model with concrete input shapes that reads its large weights from further inputs: an optimiser leaves them as they are."""
    proto = copy_of(model.proto)
    for tensor in filter(is_external, proto.graph.initializer):
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    refill(proto.graph.initializer, (tensor for tensor in proto.graph.initializer if not is_external(tensor)))
    return serialized(proto)


def with_inputs_as_weights(model: OnnxModel, before: OnnxModel) -> OnnxModel:
    """Return a model with the weights again that `with_weights_as_inputs` took from it, those of the model `before`."""
    weights = {tensor.name: tensor for tensor in before.proto.graph.initializer if is_external(tensor)}
    proto = copy_of(model.proto)
    refill(proto.graph.input, (value for value in proto.graph.input if value.name not in weights))
    read = {name for body in graphs_of(proto.graph) for node in body.node for name in node.input}
    kept = [tensor for name, tensor in weights.items() if name in read or any(name == value.name for value in proto.graph.output)]
    proto.graph.initializer.extend(kept)
    return describe(model.name, proto, {**model.weights, **{tensor.name: before.weights[tensor.name] for tensor in kept}})


def with_sizes_of_shapes(model: OnnxModel) -> OnnxModel:
    """Return a model with every `Size` as the product of a `Shape`; the same one if it has none.

    onnxruntime (1.32) folds what follows from a shape that it knows, but no `Size`, and decides no `If` by it.
    """
    if ("", "Size") not in model.operators:
        return model
    proto = copy_of(model.proto)
    parts = list(graphs_of(proto.graph))
    taken = {name for part in parts for node in part.node for name in (*node.input, *node.output)}
    taken |= {value.name for part in parts for value in (*part.input, *part.initializer)} | model.weights.keys()
    for part in parts:
        refill(part.node, [written for node in part.node for written in _of_shapes(node, taken)])
    return describe(model.name, proto, model.weights)


def _of_shapes(node: NodeProto, taken: set[str]) -> list[NodeProto]:
    if node.op_type != "Size" or node.domain:
        return [node]
    extents = unique_name(f"{node.output[0]}.extents", taken)
    taken.add(extents)
    shape = helper.make_node("Shape", node.input, [extents])
    return [shape, helper.make_node("ReduceProd", [extents], node.output, node.name, keepdims=0)]


def without_weights(model: OnnxModel, names: Container[str]) -> OnnxModel:
    """Make inputs, after all others, of the weights of these names that may be overridden."""
    chosen = [item for item in model.overridable if item.name in names]
    if not chosen:
        return model
    proto = copy_of(model.proto)
    gone = {item.name for item in chosen}
    refill(proto.graph.initializer, (tensor for tensor in proto.graph.initializer if tensor.name not in gone))
    for item in chosen:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(item.name, item.dtype.value, item.shape))
    given = describe(model.name, proto, {name: array for name, array in model.weights.items() if name not in gone})
    return replace(given, outputs=model.outputs)


def defaults_of(model: OnnxModel, names: Container[str]) -> dict[str, Array]:
    """Return what the weights of these names are that may be overridden."""
    chosen = {item.name for item in model.overridable if item.name in names}
    small = {tensor.name: array_of(tensor) for tensor in model.proto.graph.initializer if tensor.name in chosen - model.weights.keys()}
    return {name: model.weights[name] for name in chosen & model.weights.keys()} | small


def _fixed_shape(item: ModelInput, given: tuple[int, ...] | None) -> tuple[int, ...]:
    declared = item.shape
    if given is None:
        if item.concrete is None:
            raise InputError(f"input '{item.name}': its shape {_shape_text(declared)} has free dimensions; give a concrete shape")
        return item.concrete
    expected = f"input '{item.name}': expected {_shape_text(declared)}, got {_shape_text(given)}"
    if any(size < 0 for size in given):
        raise InputError(f"{expected}; sizes cannot be negative")
    if not declared:
        return given  # instead of a scalar, too: onnxruntime takes what comes, and computes with its shape
    if len(declared) != len(given):
        raise InputError(f"{expected}; the ranks differ")
    pairs = enumerate(zip(declared, given, strict=True))
    different = [axis for axis, (size, wanted) in pairs if axis > 0 and isinstance(size, int) and size != wanted]
    if different:
        raise InputError(f"{expected}; dimension {different[0]} is fixed by the model")
    return given


def _shape_text(shape: tuple[int | str | None, ...] | None) -> str:
    return "a tensor of any rank" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _free_reshapes(graph: onnx.GraphProto, batches: set[int]) -> None:
    """Let every `Reshape` whose constant shape begins with an old batch size take that size from its input."""
    constants = {name: array_of(tensor) for name, tensor in constant_tensors(graph).items() if not is_external(tensor)}
    for node in graph.node:
        shape = constants.get(node.input[1]) if node.op_type == "Reshape" and len(node.input) > 1 else None
        literal_zero = any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)
        if shape is None or shape.ndim != 1 or not len(shape) or int(shape[0]) not in batches or literal_zero:
            continue
        if node.input[0] in constants:
            continue  # a reshaped parameter has no batch
        patched = np.concatenate([np.zeros(1, np.int64), shape[1:].astype(np.int64)])
        node.input[1] = f"{node.output[0]}.shape"
        graph.initializer.append(numpy_helper.from_array(patched, node.input[1]))
