"""Models that call a random operator of any version on values of random types: onnx reads what nobody would write."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema

from tests.fuzzing.readers.reader import LONGEST

_SCHEMAS = sorted(
    (schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain in {"", "ai.onnx.ml"}),
    key=lambda schema: (schema.domain, schema.name, schema.since_version),
)
_ARRAYS: list[Any] = [
    *(
        np.array(values, np.int64)
        for values in ([], [0], [-1], [1, 1], [3, -5, 2], 7, [1 << 62], [1, 2, 3, 4, 5, 6, 7, 8], [-1, -2, -3, -4])
    ),
    *(np.array(values, np.float32) for values in ([0.5], [1, 2, 1, 1])),
    np.array([[1, 2], [3, 4]], np.int64),
    np.array([2, 2], np.int32),
    np.array([True]),
]
_SHAPES: list[Any] = [None, [], [0], [3], [20], [2, 3], ["a", "b"], [None, None, 4], [1, 3, 5, 5], [1] * 5, [-3, 4], [1 << 40, 3]]
_KINDS = (1, 1, 1, 2, 3, 6, 7, 8, 9, 10, 11, 16, 0, 99)
"""Element types, also such as there are none."""
_VALUES: dict[Any, list[Any]] = {
    OpSchema.AttrType.INT: [0, 1, -1, 2, 7, 9, 10, -2, 100, 1 << 40, -(1 << 40)],
    OpSchema.AttrType.FLOAT: [0.0, 1.0, -1.0, float("nan"), 1e30],
    OpSchema.AttrType.STRING: ["", "a", "ij->ji", "...i,ij->...j", "->", "NOTSET", "SAME_UPPER", "VALID", "linear", "reflect"],
    OpSchema.AttrType.INTS: [[0], [1], [1, 1], [2, 2], [-1], [0, 1, 2, 3], [1] * 4, [0, 0], [-5, 9], [3, 0], [1 << 40] * 2, [7] * 9],
    OpSchema.AttrType.FLOATS: [[1.0], [0.0, 2.0], [1.0, 1.0, 2.0, 2.0]],
    OpSchema.AttrType.STRINGS: [["a"], ["a", "b"]],
    OpSchema.AttrType.TENSOR: [numpy_helper.from_array(array, "t") for array in _ARRAYS],
}


def calls_any_operator(_: bytes, chance: Random) -> bytes:
    """Return a model with a call that has little to do with what the operator takes."""
    while len(data := _model(chance).SerializeToString()) > LONGEST:
        pass
    return data


def _model(chance: Random) -> ModelProto:
    schema = chance.choice(_SCHEMAS)
    opset = schema.since_version if schema.domain == "" else chance.choice([9, 11, 17, 21])
    graph = GraphProto(name="g")
    graph.input.append(helper.make_value_info("x", _type(chance, "tensor")))
    graph.node.append(helper.make_node("NoSuchOperator", ["x"], ["unknown"], domain="strange"))
    count = chance.choice([schema.min_input, max(0, schema.min_input - 1), min(schema.max_input, schema.min_input + chance.randrange(4))])
    operands = [_operand(graph, number, chance) for number in range(count)]
    results = chance.choice([schema.min_output, max(0, schema.min_output - 1), min(schema.max_output, 4)])
    call = helper.make_node(schema.name, operands, [f"y{number}" for number in range(results)], domain=schema.domain)
    for name, attribute in sorted(schema.attributes.items()):
        if chance.random() < (0.95 if attribute.required else 0.4) and (value := _attribute(attribute.type, chance)) is not None:
            call.attribute.append(helper.make_attribute(name, value))
    graph.node.append(call)
    if results:
        reader = chance.choice(["Shape", "Identity", "Slice", "Reshape", "Concat", "Squeeze", "Gather", "Unsqueeze"])
        graph.node.append(helper.make_node(reader, ["y0", *operands[:2]][: chance.choice([1, 2, 3])], ["z"]))
        graph.output.append(helper.make_value_info("y0", _type(chance, "tensor") if chance.random() < 0.3 else TypeProto()))
    imports = [helper.make_opsetid("", max(7, opset)), helper.make_opsetid("strange", 1)]
    if schema.domain:
        imports.append(helper.make_opsetid(schema.domain, max(1, schema.since_version)))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _operand(graph: GraphProto, number: int, chance: Random) -> str:
    """Add what makes an operand, and return its name."""
    kind = chance.choice(["unknown", "absent", "weight", "weight", "size", *["input"] * 5])
    name = f"{kind}{number}"
    match kind:
        case "unknown":
            return "unknown"
        case "absent":
            return ""
        case "weight":
            graph.initializer.append(numpy_helper.from_array(chance.choice(_ARRAYS), name))
        case "size":
            graph.node.append(helper.make_node("Shape", ["x"], [name]))
        case _:
            kind = chance.choice([*["tensor"] * 6, "sequence", "optional", "map", "sparse"])
            graph.input.append(helper.make_value_info(name, _type(chance, kind)))
    return name


def _type(chance: Random, kind: str) -> TypeProto:
    match kind:
        case "sequence":
            return helper.make_sequence_type_proto(_type(chance, "tensor"))
        case "optional":
            return helper.make_optional_type_proto(_type(chance, chance.choice(["tensor", "sequence"])))
        case "map":
            return helper.make_map_type_proto(7, _type(chance, "tensor"))
        case "sparse":
            return helper.make_sparse_tensor_type_proto(1, [3, 4])
        case _:
            return helper.make_tensor_type_proto(chance.choice(_KINDS), chance.choice(_SHAPES))


def _attribute(kind: OpSchema.AttrType, chance: Random) -> Any:  # noqa: ANN401 - attributes are of any type
    """Return a value for an attribute; None if there is none of its type."""
    if kind == OpSchema.AttrType.GRAPH:
        return _body(chance)
    if kind == OpSchema.AttrType.TYPE_PROTO:
        return _type(chance, chance.choice(["tensor", "sequence", "optional"]))
    return chance.choice(_VALUES[kind]) if kind in _VALUES else None


def _body(chance: Random) -> GraphProto:
    inputs = [helper.make_value_info(f"in{number}", _type(chance, "tensor")) for number in range(chance.choice([0, 0, 1, 2, 3]))]
    made: list[NodeProto] = [helper.make_node("Identity", [chance.choice(["x", "in0"])], ["made"])]
    outputs = [helper.make_value_info("made", TypeProto()) for _ in range(chance.choice([0, 1, 1, 2]))]
    return helper.make_graph(made, "body", inputs, outputs)
