"""Operators with several outputs in use, over several devices: every output agrees with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.graph import Array, Attribute, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.options import PlanOptions
from tests.partition import assert_partition_agrees

RANDOM = np.random.default_rng(2)


def graph_of(
    op: str, shape: tuple[int, ...], weights: dict[str, Array], outputs: dict[str, tuple[int, ...]], **attributes: Attribute
) -> Graph:
    """The operator, and a reader of each of its outputs."""
    held = {name: make_weight(name, array) for name, array in weights.items()}
    types = {"x": TensorType(DType.FLOAT, shape)} | {name: w.type for name, w in held.items()}
    nodes = [Node("n", op, ("x", *weights), tuple(outputs), attributes)]
    for name, extents in outputs.items():
        if name:
            types |= dict.fromkeys((name, f"{name}.abs"), TensorType(DType.FLOAT, extents))
            nodes.append(Node(f"abs {name}", "Abs", (name,), (f"{name}.abs",)))
    return Graph("g", tuple(nodes), ("x",), tuple(f"{name}.abs" for name in outputs if name), held, types, {"": 17})


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


LSTM = {"w": floats(1, 20, 6), "r": floats(1, 20, 5)}
CASES = {
    "lstm": graph_of("LSTM", (7, 4, 6), LSTM, {"y": (7, 1, 4, 5), "h": (1, 4, 5), "c": (1, 4, 5)}, hidden_size=5),
    "lstm states": graph_of("LSTM", (7, 4, 6), LSTM, {"": (), "h": (1, 4, 5), "c": (1, 4, 5)}, hidden_size=5),
    "gru": graph_of("GRU", (7, 4, 6), {"w": floats(1, 15, 6), "r": floats(1, 15, 5)}, {"y": (7, 1, 4, 5), "h": (1, 4, 5)}, hidden_size=5),
    "layer norm": graph_of(
        "LayerNormalization", (4, 6, 8), {"s": floats(8), "b": floats(8)}, {"y": (4, 6, 8), "m": (4, 6, 1), "d": (4, 6, 1)}, axis=-1
    ),
}


@pytest.mark.parametrize("options", [PlanOptions(planner="widest"), PlanOptions(split="batch"), PlanOptions(split="rows")], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_output_agrees(name: str, options: PlanOptions) -> None:
    compiled = assert_partition_agrees(CASES[name], Cluster.even(3), options)
    if options.planner == "widest":
        assert len(compiled.plan.tiles["n"]) == 3
