"""What a model consists of and how it can be split, as plain values: the object of `bbgrap inspect --json`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from bbgrap.graph import Array, DType, Graph, Node
from bbgrap.planners.plan import whole_output
from bbgrap.tdl import Description, describe, described_operators, reducible
from bbgrap.tdl.operators.undescribed import SHAPE_OF_A_RUN, SPLIT_ON_ENTRY, UNDESCRIBED, why_whole
from bbgrap.tdl.rule import MINIMUM_OPSET
from bbgrap.tdl.work import operations_of


def inspect_graph(graph: Graph) -> dict[str, Any]:
    """Return inputs, outputs, parameters, work, and per operator what splits along what; nodes that stay whole with the reason.

    `flops` counts an addition and a multiplication as one each; nodes without a description count nothing. Of `parameters` that are packed
    several into a byte each byte is one.
    """
    descriptions = {node.name: describe(graph, node) for node in graph.nodes}
    work = {node.name: operations_of(node, descriptions[node.name], whole_output(graph, node)) for node in graph.nodes}
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for node in graph.nodes:
        label = f"{node.domain}.{node.op}" if node.domain else node.op
        counts = by_operator[label]
        counts["nodes"] += 1
        counts["flops"] += work[node.name]
        counts["weight_bytes"] += sum(graph.weights[v].type.nbytes for v in node.reads if v in graph.weights)
        counts["whole"] += descriptions[node.name] is None
    return {
        "schema": 1,
        "model": graph.name,
        "opset": graph.opsets.get("", 0),
        "inputs": {name: str(graph.types[name]) for name in graph.inputs},
        "outputs": {name: str(graph.types[name]) for name in graph.outputs},
        "nodes": len(graph.nodes),
        "parameters": sum(w.array.size for w in graph.weights.values() if _is_parameter(w.array)),
        "weight_bytes": sum({w.digest: w.type.nbytes for w in graph.weights.values()}.values()),
        "flops": sum(work.values()),
        "operators": [{"operator": op, **counts} for op, counts in sorted(by_operator.items(), key=lambda item: -item[1]["flops"])],
        "layers": [_layer(graph, node, descriptions[node.name], work[node.name]) for node in graph.nodes],
    }


def _is_parameter(array: Array) -> bool:
    """Whether a weight is of floats, or of numbers quantized to 16 bits or fewer; integers of more are indices and extents."""
    return array.dtype.kind in "fV" or (array.dtype.kind in "iu" and array.dtype.itemsize <= 2)


def _layer(graph: Graph, node: Node, description: Description | None, work: int) -> dict[str, Any]:
    axes = [] if description is None else [a for a in description.splittable_axes if description.shape[a] > 1]
    return {
        "name": node.name,
        "operator": node.op,
        "output": str(graph.types[node.first_output]),
        "flops": work,
        "splits_along": axes,
        "reduces_over": [index.name for index in reducible(graph, node, description)],
        "whole_because": reason_of(graph, node) if description is None else None,
    }


def _without_shape(graph: Graph, name: str) -> str:
    """Return why a value has no shape that could be divided."""
    kind = graph.types[name]
    if kind.dtype is DType.OTHER and kind.onnx:
        return f"numpy has no array for '{name}': it is a sequence, an optional or a map, or of 8-bit floats or fewer bits"
    return f"the shape of '{name}' is only known when the model runs"


def reason_of(graph: Graph, node: Node) -> str:
    """Return why a node without a description runs whole on one machine, in a few words."""
    opset = graph.opsets.get("", MINIMUM_OPSET)
    if opset < MINIMUM_OPSET:
        return f"its opset {opset} cannot be converted"
    if node.captured or node.op in ("If", "Loop", "Scan"):
        return "control flow"
    unknown = [name for name in (*node.reads, *filter(None, node.outputs)) if graph.types[name].shape is None]
    if unknown:
        why = UNDESCRIBED.get((node.domain, node.op), SHAPE_OF_A_RUN)
        return _without_shape(graph, unknown[0]) if why in (SHAPE_OF_A_RUN, SPLIT_ON_ENTRY) else why
    empty = [name for name in (*node.outputs, *node.reads) if name and 0 in graph.types[name].known_shape]
    if empty:
        return f"'{empty[0]}' has no elements"
    if sum(map(bool, node.outputs)) > 1:
        return "several of its outputs are used"
    return (
        "this operator has no description for these attributes"
        if (node.domain, node.op) in described_operators()
        else why_whole(node.domain, node.op)
    )
