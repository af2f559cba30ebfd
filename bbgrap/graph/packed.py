"""Operators whose operands are put together in one are given them apart: what is packed cannot be cut through, its parts can."""

from __future__ import annotations

from dataclasses import replace

from bbgrap.graph.types import Graph, Node, TensorType

_PACKED = ("com.microsoft", "GroupQueryAttention")


def unpack_queries(graph: Graph) -> Graph:
    """Put a `Split` before every attention that reads queries, keys and values in one, [batch, words, (H + 2 G) * E].

    Packed ones of unknown width stay; so does an attention inside the body of a control-flow node.
    """
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        widths = _widths(graph, node) if (node.domain, node.op) == _PACKED else None
        if widths is None:
            nodes.append(node)
            continue
        packed = node.inputs[0]
        names = tuple(f"{packed}.{part} of {node.name}" for part in ("queries", "keys", "values"))
        kind = graph.types[packed]
        types |= {name: TensorType(kind.dtype, (*kind.known_shape[:-1], width)) for name, width in zip(names, widths, strict=True)}
        nodes.append(Node(f"unpack {node.name}", "Split", (packed,), names, {"axis": 2}))
        nodes.append(replace(node, inputs=(*names, *node.inputs[3:])))
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), types=types)


def _widths(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return the elements of queries, keys and values in a packed operand; None if they are apart, or do not fill it."""
    shape = graph.types[node.inputs[0]].shape
    heads, groups = node.attributes.get("num_heads"), node.attributes.get("kv_num_heads")
    if any(node.inputs[1:3]) or shape is None or len(shape) != 3 or not isinstance(heads, int) or not isinstance(groups, int):
        return None
    size, rest = divmod(shape[2], heads + 2 * groups)
    return None if rest or not size else (heads * size, groups * size, groups * size)
