"""What is asked of a `Loop` before it runs: its turns. One of the files that import onnx (see `onnx_io`).

Loop(M, go, state...) ──► body(i, go, state...)   one turn: which shapes it hands on
                      ──► body'(i, go, count...)  what decides alone whether there is another turn, where that follows from constants
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import prod

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from bbgrap.graph.onnx_read import OnnxModel, array_of, describe
from bbgrap.graph.onnx_tidy import bodies_of, captured_by, serialized
from bbgrap.graph.types import Array

MOST_TURNS = 4096
"""That are counted, some milliseconds. Chosen: sequences are shorter."""
FIRST_STATE = 2
"""Where what is carried begins, among the inputs of a loop and of its body: the number of the turn and the condition come before."""
_MOST, _NUMBER, _NUMBERS = "counted turns", "number of a turn", "numbers of turns"
"""Names of ours."""

_STEERING = frozenset(
    {
        *("Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max", "Cast", "Identity", "Squeeze", "Unsqueeze"),
        *("And", "Or", "Xor", "Not", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Where"),
    }
)
"""Operators that make one element of ones, and nothing else: whatever a file says, counting takes no memory, and divides nothing by 0."""


@dataclass(frozen=True, slots=True)
class _Steering:
    """What decides whether there is another turn: nodes of the body, and the places of what they carry from turn to turn."""

    nodes: tuple[NodeProto, ...]
    carried: tuple[int, ...]


def turn_of(loop: bytes, weights: Mapping[str, Array]) -> OnnxModel:
    """Return one turn of a loop that is alone in its model: from the number of the turn, the condition and what is carried."""
    proto = ModelProto.FromString(loop)
    (node,) = proto.graph.node
    body = _body(node)
    kinds = {value.name: value.type for value in proto.graph.input}
    kinds |= {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in proto.graph.initializer}
    counted = (helper.make_tensor_type_proto(TensorProto.INT64, []), helper.make_tensor_type_proto(TensorProto.BOOL, []))
    for value, kind in zip(body.input, (*counted, *(kinds[name] for name in node.input[FIRST_STATE:])), strict=True):
        value.type.CopyFrom(kind)
    captured = set(captured_by(body))
    turn = GraphProto(name="turn", node=body.node, input=body.input, output=body.output, initializer=body.initializer)
    turn.input.extend(value for value in proto.graph.input if value.name in captured)
    turn.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in captured)
    return describe("turn", ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, graph=turn), weights)


def counting(loop: bytes) -> bytes | None:
    """Return a model that makes the numbers of a loop's turns, of `MOST_TURNS` and one at most; None if they may depend on inputs."""
    proto = ModelProto.FromString(loop)
    (node,) = proto.graph.node
    stored = {tensor.name: tensor for tensor in proto.graph.initializer if prod(tensor.dims) == 1}
    body = _body(node)
    own = {tensor.name: tensor for tensor in body.initializer if prod(tensor.dims) == 1}
    steering = _steering(body, stored.keys() | own)
    most, go = node.input[:FIRST_STATE]
    state = [] if steering is None else [node.input[place] for place in steering.carried]
    if steering is None or not {most, go, *state} <= {"", *stored}:
        return None
    inner = GraphProto(name="turn", initializer=own.values())
    inner.node.extend([*steering.nodes, helper.make_node("Identity", [body.input[0].name], [_NUMBER])])
    inner.input.extend(body.input[place] for place in (0, 1, *steering.carried))
    inner.output.extend([*(body.output[place - 1] for place in (1, *steering.carried)), onnx.ValueInfoProto(name=_NUMBER)])
    graph = GraphProto(name="counting", initializer=stored.values(), output=[onnx.ValueInfoProto(name=_NUMBERS)])
    graph.initializer.append(helper.make_tensor(_MOST, TensorProto.INT64, [], [_at_most(stored.get(most))]))
    makes = [*(f"{_NUMBER}{place}" for place in steering.carried), _NUMBERS]
    graph.node.append(helper.make_node("Loop", [_MOST, go, *state], makes, body=inner))
    return serialized(ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, graph=graph))


def _at_most(most: TensorProto | None) -> int:
    return MOST_TURNS + 1 if most is None else min(int(array_of(most).item()), MOST_TURNS + 1)


def _body(node: NodeProto) -> GraphProto:
    (body,) = bodies_of(node)
    return body


def _steering(body: GraphProto, constants: Set[str]) -> _Steering | None:
    """Return what decides about another turn; None if anything does that is not one element or does not follow from constants."""
    places = {value.name: place for place, value in enumerate(body.input)}
    producers = {name: node for node in body.node for name in node.output}
    wanted, seen = [body.output[0].name], set[str]()
    while wanted:
        name = wanted.pop()
        if not name or name in constants or name in seen:
            continue
        seen.add(name)
        if places.get(name, 0) >= FIRST_STATE:
            wanted.append(body.output[places[name] - 1].name)
        elif name not in places:
            node = producers.get(name)
            if node is None or not _makes_one_element(node):
                return None
            wanted += node.input
    nodes = tuple(node for node in body.node if not seen.isdisjoint(node.output))
    return _Steering(nodes, tuple(place for name, place in places.items() if place >= FIRST_STATE and name in seen))


def _makes_one_element(node: NodeProto) -> bool:
    if node.op_type == "Constant":
        (value,) = node.attribute
        return value.name in ("value_int", "value_float") or (value.name == "value" and prod(value.t.dims) == 1)
    return node.op_type in _STEERING and not node.domain
