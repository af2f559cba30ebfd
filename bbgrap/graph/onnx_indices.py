"""Which inputs of a model are indices into its tables, for whoever draws inputs at random.

One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from bbgrap.graph.onnx_read import OnnxModel

_SAME_VALUES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that only convert or rearrange their first input."""


def index_limits(model: OnnxModel) -> dict[str, int]:
    """Return, for inputs that choose rows of weights (words of a vocabulary, kinds of tokens), below what their numbers must stay."""
    rows = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    origin = {item.name: item.name for item in model.inputs}
    limits: dict[str, int] = {}
    for node in model.proto.graph.node:
        if node.op_type in _SAME_VALUES and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type == "Gather" and node.input[1] in origin and rows.get(node.input[0]):
            name, table = origin[node.input[1]], rows[node.input[0]]
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            limits[name] = min(limits.get(name, table[axis]), table[axis])
    return limits
