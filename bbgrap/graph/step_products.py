"""Products of training steps in a second form, in which sums over the batch are as the formulas of a step write them.

    Gemm(x, dy, m)              onnxruntime makes one operator of x dy + m, where m is what an update adds: decay, or a momentum

    Gemm(x, dy), Add            the sum over the batch is partial on every node; m is added to the share that a node updates, and stays

    Transpose(x), MatMul        a transposed map is a map of its own, which is gathered beside x

    Gemm(transA)                x is gathered once, if its layer has gathered it already, then not at all

Both are for models with state only. What one machine computes whole stays in the first form.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bbgrap.graph.lower import remove_dead
from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import DType, Graph, Node, TensorType

_NO_THIRD = 11
"""The opset from which `Gemm` may have no third input."""
_OF_GEMM = frozenset({DType.FLOAT, DType.DOUBLE})
"""What both operators are for."""


def with_step_products(graph: Graph, kept: Collection[str]) -> Graph:
    """Return a graph with such products in the second form, but for nodes that are `kept`, as their bits change; or the same graph."""
    if not graph.state or graph.opsets.get("", 0) < _NO_THIRD:
        return graph

    def write(writer: Rewriter, node: Node) -> bool:
        if node.name in kept or node.domain or graph.types[node.first_output].dtype not in _OF_GEMM:
            return False
        if node.op == "Gemm" and _adds_a_map(graph, node):
            _write_apart(writer, node)
        else:
            writer.nodes.append(_with_turned_operands(graph, node))
        return True

    made = Rewriter(graph).run(write)
    return graph if made is graph else remove_dead(made)


def _adds_a_map(graph: Graph, node: Node) -> bool:
    """Whether what a Gemm adds is as large as what it makes, and computed, or state."""
    added = node.inputs[2] if len(node.inputs) == 3 else ""
    shape = graph.types[node.first_output].shape
    is_large = bool(added) and shape is not None and graph.types[added].shape == shape
    return is_large and added not in graph.weights and node.attributes.get("beta", 1.0) == 1.0


def _write_apart(writer: Rewriter, node: Node) -> None:
    attributes = {name: value for name, value in node.attributes.items() if name != "beta"}
    product = _with_turned_operands(writer.source, Node(node.name, "Gemm", node.inputs[:2], node.outputs, attributes))
    shape, moving = writer.shape(node.first_output), writer.moves(node.first_output)
    made = writer.made(f"{node.name} product", "Gemm", product.inputs, product.attributes, shape=shape, moving=moving)
    writer.nodes.append(Node(node.name, "Add", (made, node.inputs[2]), node.outputs))


def _with_turned_operands(graph: Graph, node: Node) -> Node:
    """Return a product of matrices that reads them as they were before they were transposed."""
    if node.op not in ("MatMul", "Gemm") or not all(_is_matrix(graph.types[value]) for value in node.inputs[:2]):
        return node
    inputs, attributes = list(node.inputs), dict(node.attributes)
    for place, flag in enumerate(("transA", "transB")):
        if source := _before_transpose(graph, node.inputs[place]):
            inputs[place] = source
            attributes[flag] = 1 - int(bool(attributes.get(flag, 0)))
    return node if inputs == list(node.inputs) else replace(node, op="Gemm", inputs=tuple(inputs), attributes=attributes)


def _is_matrix(kind: TensorType) -> bool:
    return kind.shape is not None and len(kind.shape) == 2


def _before_transpose(graph: Graph, value: str) -> str:
    """Return the matrix that a value is the transpose of; nothing if it is of none."""
    node = graph.producers.get(value)
    is_one = node is not None and node.op == "Transpose" and not node.domain and node.attributes.get("perm", (1, 0)) == (1, 0)
    return node.inputs[0] if node is not None and is_one else ""
