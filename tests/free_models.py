"""Models whose inputs may have other shapes, made of graphs that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from hypothesis import strategies as st

from bbgrap.graph.onnx_io import write_graph

if TYPE_CHECKING:
    from pathlib import Path

    from bbgrap.graph import Graph

MAPS = (0, 2, 3)
"""Batch, height and width of [N, C, H, W]."""


def save_free(graph: Graph, path: Path, axes: tuple[int, ...] = MAPS) -> Path:
    """Write a graph whose inputs are free in these axes, and whose outputs have any sizes there."""
    model = onnx.load_from_string(write_graph(graph, weights="inline").data)
    for value in model.graph.input:
        for axis in axes:
            value.type.tensor_type.shape.dim[axis].dim_param = f"{value.name}{axis}"
    for value in model.graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}{axis}"
    onnx.save(model, path)
    return path


@st.composite
def other_shapes(draw: st.DrawFn, graph: Graph) -> dict[str, tuple[int, ...]]:
    """Draw another batch, height and width for the inputs of a graph; ones are frequent."""
    found = {}
    for name in graph.inputs:
        batch, channels, height, width = graph.types[name].known_shape
        sizes = (draw(st.sampled_from((size, 1, size + 1, size + 4, 2 * size, max(1, size - 1)))) for size in (height, width))
        found[name] = (draw(st.sampled_from((batch, 1, 2, 4))), channels, *sizes)
    return found
