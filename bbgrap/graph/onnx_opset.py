"""A model's opset is made current: of an old model, and of one newer than onnxruntime. One of the files that import onnx (see `onnx_io`).

The ONNX converter (1.23) does not say what some operators used to mean. It is said here, as onnxruntime's kernels have it:

    Resize, Upsample    until opset 10, places are asymmetric; the nearest element is the one before where a map grows, else the one after
    Hardmax             until opset 12, the axes from `axis` on are one
    Dropout             until opset 11, the mask tells nothing and may have another type: a model that reads it stays as it is
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from bbgrap.graph.onnx_external import is_external
from bbgrap.graph.onnx_infer import ends_who_infers
from bbgrap.graph.onnx_read import LEAST_IR_VERSION, OnnxModel, array_of, describe
from bbgrap.graph.onnx_tidy import bodies_of, constant_tensors, copy_of, graphs_of, refill, standard_domain

OLDEST_OPSET = 13
"""Older models are converted: from here on, parameters such as the axes of `Squeeze` are inputs."""

TARGET_OPSET = 17
"""What older models are converted to; every supported onnxruntime has kernels for it."""

NEWEST_OPSET = 25
"""Of which every supported onnxruntime has all kernels. In newer ones it may lack those of operators that dividing a model adds."""

_SCAN_WITHOUT_BATCH = 9
"""The opset in which `Scan` lost its batch axis."""
_RESIZE_WITH_MODES = 11
_DROPOUT_WITH_TRUE_MASK = 12


def normalize_opset(model: OnnxModel) -> OnnxModel:
    """Convert a model older than opset 13 to 17; keep it as it is if it is newer or cannot be converted."""
    opset = model.opsets.get("", TARGET_OPSET)
    if opset >= OLDEST_OPSET or _is_unsaid(model, opset):
        return model
    try:
        if ends_who_infers(model.proto):
            return model
        proto = onnx.version_converter.convert_version(model.proto, TARGET_OPSET)
        _restore(proto.graph, opset, {})
    except Exception:  # the C++ converter raises whatever an operator's adapter throws; operands may be missing
        return model
    if {tensor.name for tensor in proto.graph.initializer if is_external(tensor)} - set(model.weights):
        return model  # it renamed a weight that was taken out
    proto.ir_version = max(proto.ir_version, LEAST_IR_VERSION)
    return describe(model.name, proto, model.weights)


def as_old_as_its_operators(model: OnnxModel) -> OnnxModel:
    """Return a model newer than `NEWEST_OPSET` in the oldest opset from there on in which all of its operators are the same."""
    opset, ops = model.opsets.get("", 0), [op for domain, op in model.operators if not domain]
    if opset <= NEWEST_OPSET or not all(onnx.defs.has(op, opset) for op in ops):
        return model
    needed = max((onnx.defs.get_schema(op, opset).since_version for op in ops), default=0)
    if needed == opset:
        return model
    proto = copy_of(model.proto)
    for entry in proto.opset_import:
        if not standard_domain(entry.domain):
            entry.version = max(needed, NEWEST_OPSET)
    return describe(model.name, proto, model.weights)


def _is_unsaid(model: OnnxModel, opset: int) -> bool:
    """Whether the converter passes an operator on that means something else since then."""
    if ("", "Scan") in model.operators and opset < _SCAN_WITHOUT_BATCH:
        return True
    if ("", "Dropout") not in model.operators or opset >= _DROPOUT_WITH_TRUE_MASK:
        return False
    graphs = list(graphs_of(model.proto.graph))
    masks = {name for graph in graphs for node in graph.node if node.op_type == "Dropout" for name in node.output[1:] if name}
    read = {name for graph in graphs for node in graph.node for name in node.input}
    return not masks.isdisjoint(read.union(value.name for graph in graphs for value in graph.output))


def _restore(graph: GraphProto, opset: int, outer: Mapping[str, TensorProto]) -> None:
    """Say in a converted graph, in place, what its operators meant in an opset; `outer` are constants outside of it."""
    constants = {**outer, **constant_tensors(graph)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in bodies_of(node):
            _restore(body, opset, constants)
        if standard_domain(node.domain):
            nodes.append(node)
        elif node.op_type == "Hardmax":
            nodes += _flattened(node)
        elif node.op_type == "Resize" and opset < _RESIZE_WITH_MODES:
            nodes += _asymmetric(node, constants.get(node.input[2]))
        else:
            nodes.append(node)
    refill(graph.node, nodes)


def _flattened(node: NodeProto) -> tuple[NodeProto, ...]:
    (x,), (y,) = node.input, node.output
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return (
        helper.make_node("Shape", [x], [f"{y}.bbgrap.shape"]),
        helper.make_node("Flatten", [x], [f"{y}.bbgrap.flat"], axis=axis),
        helper.make_node("Hardmax", [f"{y}.bbgrap.flat"], [f"{y}.bbgrap.hard"], node.name, axis=-1),
        helper.make_node("Reshape", [f"{y}.bbgrap.hard", f"{y}.bbgrap.shape"], [y], allowzero=1),
    )


def _asymmetric(node: NodeProto, known: TensorProto | None) -> tuple[NodeProto, ...]:
    """Return a Resize as it was before it had modes; where it may make some axes larger and others smaller, one after the other."""
    scales = None if known is None or is_external(known) else array_of(known)
    x, given, y = node.input[0], node.input[2], node.output[0]
    mode = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "mode"), "nearest")

    def resize(source: str, factors: str, result: str, nearest: str) -> NodeProto:
        modes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
        return helper.make_node("Resize", [source, "", factors], [result], f"{node.name or y}.{nearest}", **modes)

    if mode != "nearest" or (scales is not None and (scales >= 1).all()):
        return (resize(x, given, y, "floor"),)
    if scales is not None and (scales <= 1).all():
        return (resize(x, given, y, "ceil"),)
    one, larger, smaller, middle = (f"{y}.bbgrap.{part}" for part in ("one", "larger", "smaller", "middle"))
    return (
        helper.make_node("Constant", [], [one], value=numpy_helper.from_array(np.ones((), np.float32))),
        helper.make_node("Max", [given, one], [larger]),
        helper.make_node("Min", [given, one], [smaller]),
        resize(x, larger, middle, "floor"),
        resize(middle, smaller, y, "ceil"),
    )
