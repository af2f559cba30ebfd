"""Planner auto divides recurrent layers by their directions, and knows what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.prepare import plan_graph
from bbgrap.graph import Graph
from bbgrap.graph.types import DType, Node, TensorType, Weight
from bbgrap.graph.weights import make_weight
from bbgrap.planners.options import PlanOptions
from tests.partition import plain_outputs

STEPS, SIZE, HIDDEN = 60, 128, 512
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str) -> Graph:
    """A layer of both directions whose outputs, of all steps and of the last one, are those of the model."""
    random = np.random.default_rng(0)
    shapes = {"w": (2, GATES[op] * HIDDEN, SIZE), "r": (2, GATES[op] * HIDDEN, HIDDEN), "b": (2, 2 * GATES[op] * HIDDEN)}
    weights: dict[str, Weight] = {
        name: make_weight(name, (random.standard_normal(shape) / 32).astype(np.float32)) for name, shape in shapes.items()
    }
    node = Node("layer", op, ("x", *shapes), ("y", "h"), {"hidden_size": HIDDEN, "direction": "bidirectional"})
    known = {**shapes, "x": (STEPS, 1, SIZE), "y": (STEPS, 2, 1, HIDDEN), "h": (2, 1, HIDDEN)}
    types = {name: TensorType(DType.FLOAT, shape) for name, shape in known.items()}
    return Graph("layer", (node,), ("x",), ("y", "h"), weights, types, {"": 17})


@pytest.mark.usefixtures("without_a_clock")
@pytest.mark.parametrize("op", GATES)
def test_each_node_has_a_direction_and_half_of_the_weights(op: str) -> None:
    graph = layer(op)
    forecast = plan_graph(graph, Cluster.even(2), PlanOptions("auto", search_seconds=1.0))
    (alone, seconds), compiled = forecast.alone, forecast.compiled
    assert alone == "node0"
    assert forecast.timeline.total_s < 0.7 * seconds
    artifacts = export(compiled.optimized)
    feeds: list[Any] = [np.random.default_rng(1).standard_normal((STEPS, 1, SIZE)).astype(np.float32)]
    for mine, expected in zip(simulate(artifacts, feeds, local_kernels(artifacts)), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
    assert sorted(tile.region.axes[1].ranges[0].start for tile in compiled.plan.tiles["layer"]) == [0, 1]
