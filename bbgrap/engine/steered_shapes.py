"""Shapes of what is expanded to sizes that are made of shapes alone (`told_numbers`), though nobody infers them.

    Shape, Gather, Add, Concat ── sizes ──► Equal to -1, Where ──► Expand

PyTorch's exporter writes the above for each of its `expand`.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from bbgrap.engine.told_numbers import told_numbers
from bbgrap.graph.types import Graph, TensorType


def steered_shapes(graph: Graph, declared: Container[str] = ()) -> dict[str, TensorType]:
    """Return the types of what is expanded to sizes that can be computed now; of what nobody knows a shape, and none was `declared` of."""
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        if node.op != "Expand" or node.domain or node.first_output in declared or graph.types[node.first_output].shape is not None:
            continue
        before, sizes = graph.types[node.inputs[0]].shape, told_numbers(graph, node.inputs[1])
        if before is None or sizes is None:
            continue
        try:
            shape = np.broadcast_shapes(before, tuple(sizes.reshape(-1).tolist()))
        except ValueError:  # the run will say so
            continue
        found[node.first_output] = TensorType(graph.types[node.inputs[0]].dtype, shape)
    return found
