"""GroupNormalization of operator set 21 as exporters write it for older ones. One of the files that import onnx (see `onnx_io`).

onnxruntime (1.32) has no kernel for it. It computes ONNX's function in its place, some twenty operators with shapes that it does not know;
nothing divides these, and they take longer than one kernel that normalises groups:

    GroupNormalization(x, scale, bias)    x [N, C, *], scale and bias [C]

    Reshape                               [N, G, -1]
    InstanceNormalization                 by scales of 1 and biases of 0, one for each group
    Reshape                               [N, C, *]
    Mul, Add                              scale and bias as [C, 1, ...]

Law: answers are as close to 64-bit floats as those of onnxruntime's function. But they have other bits, so a model with an operator that
jumps keeps the function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_read import BROKEN, OnnxModel
from bbgrap.graph.onnx_tidy import copy_of, graphs_of, refill
from bbgrap.graph.rewriting import unique_name

_SINCE = 21
"""The operator set from which scale and bias are those of channels."""
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def with_plain_group_norms(model: OnnxModel, jumps: Collection[str]) -> OnnxModel:
    """Return a model with its group normalisations in 32 bits written out, unless it has one of the operators `jumps`; else the same one.

    Casts to other types than floats jump, too. A model of which onnx infers nothing stays as it is: whether it runs is not said here.
    """
    proto = model.proto
    if model.opsets.get("", 0) < _SINCE or not any(_is_norm(node) for node in proto.graph.node) or _jumps(model, jumps):
        return model
    try:
        inferred = infer_shapes(proto).graph
    except (ModelError, *BROKEN):
        return model
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in (*inferred.input, *inferred.value_info)}
    kinds = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 1}
    made = copy_of(proto)
    taken = {name for node in proto.graph.node for name in node.output}
    taken |= {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    nodes: list[NodeProto] = []
    for node in made.graph.node:
        rank = ranks.get(node.input[0], 0) if _is_norm(node) else 0
        if rank > 2 and all(name in kinds for name in node.input[1:]):
            weights, written = _written_out(node, rank, kinds[node.input[1]].dims[0], taken)
            made.graph.initializer.extend(weights)
            nodes += written
        else:
            nodes.append(node)
    refill(made.graph.node, nodes)
    return replace(model, proto=made)


def _is_norm(node: NodeProto) -> bool:
    return node.op_type == "GroupNormalization" and not node.domain


def _jumps(model: OnnxModel, jumps: Collection[str]) -> bool:
    return any(kind in jumps for _, kind in model.operators) or any(code not in _FLOATS for code in _cast_to(model))


def _cast_to(model: OnnxModel) -> Iterator[int]:
    """Yield what casts make; 0 where another tensor says it."""
    for graph in graphs_of(model.proto.graph):
        for node in graph.node:
            if node.op_type in ("Cast", "CastLike"):
                yield next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)


def _written_out(node: NodeProto, rank: int, channels: int, taken: set[str]) -> tuple[list[TensorProto], list[NodeProto]]:
    """Return weights and nodes that do what a normalisation of a map of this rank does, and add their names to those that are taken."""
    given: dict[str, AttributeProto] = {attribute.name: attribute for attribute in node.attribute}
    groups, epsilon = given["num_groups"].i, given["epsilon"].f if "epsilon" in given else 1e-5
    arrays = {
        "grouped": np.array([0, groups, -1]),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
        "channels": np.array([channels, *[1] * (rank - 2)]),
    }
    made = ("groups", "normal", "shape", "map", "scale", "bias", "scaled")
    names = {part: unique_name(f"{node.output[0]}_{part}", taken) for part in (*arrays, *made)}
    taken.update(names.values())
    x, scale, bias = node.input
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Reshape", [x, names["grouped"]], names["groups"], {}),
        ("InstanceNormalization", [names["groups"], names["ones"], names["zeros"]], names["normal"], {"epsilon": epsilon}),
        ("Shape", [x], names["shape"], {}),
        ("Reshape", [names["normal"], names["shape"]], names["map"], {}),
        ("Reshape", [scale, names["channels"]], names["scale"], {}),
        ("Mul", [names["map"], names["scale"]], names["scaled"], {}),
        ("Reshape", [bias, names["channels"]], names["bias"], {}),
        ("Add", [names["scaled"], names["bias"]], node.output[0], {}),
    ]
    weights = [numpy_helper.from_array(array, names[part]) for part, array in arrays.items()]
    return weights, [helper.make_node(kind, reads, [writes], name=f"{writes}_node", **more) for kind, reads, writes, more in steps]
