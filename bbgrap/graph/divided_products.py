"""Products of rows in which all axes but the last are one, in a second form that leaves these as they were.

    Reshape [batch, words, n] -> [batch * words, n]      of a range of words there are several ranges of rows
    Gemm
    Reshape -> [batch, words, m]

    MatMul [batch, words, n], Add                        words are cut as before

So exporters write a product with a bias, as in GPT-2. A machine that has the whole model keeps the first form, which is an operator less.
Where onnxruntime joins both again the bits are the same; elsewhere they may be others, so the caller says which nodes must keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from bbgrap.graph.lower import remove_dead, remove_wires
from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import DType, Graph, Node

_PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
"""The attributes of a `Gemm` that is a product and a bias."""


def with_products_apart(graph: Graph, kept: Collection[str]) -> Graph:
    """Return a graph with such products in the second form, but for nodes that are `kept`, as their bits may change; or the same graph."""

    def write(writer: Rewriter, node: Node) -> bool:
        if node.name not in kept and (axes := _joined_axes(graph, node)):
            writer.instead[node.first_output] = _write_apart(writer, node, axes)
        elif node.op == "Reshape" and node.inputs[0] in writer.instead and graph.types[node.first_output].shape is not None:
            writer.nodes.append(_of_apart(writer, node, writer.instead[node.inputs[0]]))
        else:
            return False
        return True

    made = Rewriter(graph).run(write)
    return graph if made is graph else remove_dead(remove_wires(made))


def _joined_axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the extents of the axes that are one in what a `Gemm` with a bias of its columns reads; of one that is longer than 1 none."""
    if node.op != "Gemm" or any(node.attributes.get(name, value) != value for name, value in _PLAIN.items()):
        return ()
    joined = graph.producers.get(node.inputs[0])
    shapes = [graph.types[name].shape for name in (*node.inputs, node.first_output) if name]
    if joined is None or joined.op != "Reshape" or None in shapes or graph.types[node.first_output].dtype is not DType.FLOAT:
        return ()
    rows, before = graph.types[node.inputs[0]].known_shape[0], graph.types[joined.inputs[0]].shape or ()
    bias = graph.types[node.inputs[2]].known_shape if node.inputs[2:] and node.inputs[2] else ()
    axes = next((before[:rank] for rank in range(len(before)) if prod(before[:rank]) == rows), ())
    return axes if sum(extent > 1 for extent in axes) > 1 and prod(bias[:-1]) == 1 else ()


def _write_apart(writer: Rewriter, node: Node, axes: tuple[int, ...]) -> str:
    """Write a product of rows over these axes, and one with them joined under the name of the first form; return the former."""
    source = writer.source.producers[node.inputs[0]].inputs[0]
    depth, columns = writer.shape(node.inputs[0])[-1], writer.shape(node.first_output)[-1]
    moving = frozenset(axis for axis in writer.moves(source) if axis < len(axes))
    rows = source
    if writer.shape(source) != (*axes, depth):
        shape = writer.integers(f"{node.name}.axes", (*axes, depth))
        rows = writer.made(f"{node.name}.rows", "Reshape", (source, shape), shape=(*axes, depth), moving=moving)
    made = writer.made(f"{node.name}.product", "MatMul", (rows, node.inputs[1]), shape=(*axes, columns), moving=moving)
    if node.inputs[2:] and node.inputs[2]:
        made = writer.made(f"{node.name}.sum", "Add", (made, node.inputs[2]))
    shape = writer.integers(f"{node.name}.shape", writer.shape(node.first_output))
    writer.nodes.append(Node(node.name, "Reshape", (made, shape), node.outputs))
    return made


def _of_apart(writer: Rewriter, node: Node, product: str) -> Node:
    """Return a `Reshape` of joined rows as one of what they are made of; of the same shape it is none."""
    wanted = writer.shape(node.first_output)
    if wanted == writer.shape(product):
        return replace(node, op="Identity", inputs=(product,), attributes={})
    return replace(node, inputs=(product, writer.integers(f"{node.name}.shape", wanted)), attributes={})
