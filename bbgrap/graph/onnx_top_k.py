"""The largest elements of outputs of a file as it is, with its free dimensions. One of the files that import onnx (see `onnx_io`).

logits ── TopK ──► logits.values, logits.indices            the same as `bbgrap.graph.top_k`, in one piece: for one node
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_read import ModelInput, OnnxModel
from bbgrap.graph.onnx_tidy import copy_of, refill
from bbgrap.graph.top_k import ORDERED, check_top, top_names
from bbgrap.graph.types import DType


def with_top_outputs(model: OnnxModel, top: Mapping[str, int]) -> OnnxModel:
    """Return a model whose outputs named in `top` are replaced by their so many largest elements along the last axis, and their places.

    Raises:
        ModelError: if a name is none of the outputs, or there is nothing that could be ordered.
    """
    if not top:
        return model
    known = {item.name: item for item in model.outputs}
    proto = copy_of(model.proto)
    for name, count in top.items():
        if name not in known:
            raise ModelError(f"top '{name}' of model '{model.name}': it is no output; the outputs are {', '.join(known)}")
        item = known[name]
        check_top(model.name, name, item.dtype, None if item.shape is None else len(item.shape), model.opsets.get("", 0))
        _add(proto.graph, item, count)
    outputs = tuple(made for item in model.outputs for made in (_made(item, top[item.name]) if item.name in top else (item,)))
    values = {value.name: value for value in proto.graph.output}
    refill(proto.graph.output, (values.get(item.name) or _value(item) for item in outputs))
    return replace(model, proto=proto, outputs=outputs)


def _add(graph: onnx.GraphProto, item: ModelInput, count: int) -> None:
    """Add the nodes in place. Where the axis may be shorter than `count`, its size is asked for when the model runs."""
    name, size = item.name, (item.shape or (None,))[-1]
    least = min(count, size) if isinstance(size, int) else count
    k, last = f"{name}.top.k", f"{name}.top.last"
    graph.initializer.append(numpy_helper.from_array(np.array([least], np.int64), k))
    if not isinstance(size, int):
        graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), last))
        graph.node.append(helper.make_node("Shape", [name], [f"{name}.top.shape"], f"{name}.top.shape"))
        graph.node.append(helper.make_node("Gather", [f"{name}.top.shape", last], [f"{name}.top.size"], f"{name}.top.size"))
        graph.node.append(helper.make_node("Min", [k, f"{name}.top.size"], [f"{name}.top.most"], f"{name}.top.most"))
        k = f"{name}.top.most"
    ordered, (values, indices) = ORDERED[item.dtype], top_names(name)
    source, best = (name, values) if ordered is item.dtype else (f"{name}.top.float", f"{name}.top.values")
    if source != name:
        graph.node.append(helper.make_node("Cast", [name], [source], source, to=ordered.value))
    graph.node.append(helper.make_node("TopK", [source, k], [best, indices], f"{name}.top.best", axis=-1))
    if best != values:
        graph.node.append(helper.make_node("Cast", [best], [values], best, to=item.dtype.value))


def _made(item: ModelInput, count: int) -> tuple[ModelInput, ModelInput]:
    size = (item.shape or (None,))[-1]
    shape = (*(item.shape or ())[:-1], min(count, size) if isinstance(size, int) else None)
    values, indices = top_names(item.name)
    return ModelInput(values, item.dtype, shape), ModelInput(indices, DType.INT64, shape)


def _value(item: ModelInput) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(item.name, item.dtype.value, item.shape)
