"""Checks B9 to B12 of the paper's figures: what a plan moves before and after optimisation, to the row and to the byte."""

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import Compiled
from bbgrap.graph import Array, Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.program.cases import Case, classify
from bbgrap.program.statistics import statistics_of
from bbgrap.program.steps import Program, Receive
from bbgrap.shapemap import ShapeMap
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.partition import assert_partition_agrees, compiled

ROWS = PlanOptions(split="rows")
HELD = ShapeMap.of((3, 6))


def stack(rows: int, *convs: tuple[int, int, int]) -> Graph:
    """A chain of one-channel convolutions (kernel, stride, pad) over a map of `rows` x 8."""
    builder = Builder("stack", (1, 1, rows, 8))
    x = "input"
    for number, (kernel, stride, pad) in enumerate(convs):
        size = builder.shape(x)
        attributes = {"kernel_shape": (kernel, 1), "strides": (stride, 1), "pads": (pad, 0, pad, 0)}
        weight = builder.weight(f"w{number}", _ones(kernel))
        shape = (1, 1, (size[2] + 2 * pad - kernel) // stride + 1, 8)
        x = builder.node("Conv", f"conv{number}", [x, weight], shape, attributes)
    return builder.graph(x)


def _ones(kernel: int) -> Array:
    return np.ones((1, 1, kernel, 1), np.float32)


def rows_between_nodes(program: Program) -> int:
    return statistics_of(program).bytes // (8 * 4)


def receivers(program: Program) -> list[int]:
    nodes = program.devices[: program.host]
    return [d.device for d in nodes if any(isinstance(s, Receive) and s.source != program.host for s in d.steps)]


@pytest.mark.parametrize(
    ("needed", "case", "missing"),
    [
        ((2, 7), Case.FETCH_AND_CONCAT, [(2, 3), (6, 7)]),
        ((3, 6), Case.IDENTICAL, []),
        ((4, 6), Case.CROP, []),
        ((2, 5), Case.CROP_AND_FETCH, [(2, 3)]),
        ((0, 2), Case.REMOTE, [(0, 2)]),
    ],
)
def test_b9_figure_5_tells_the_cases_apart(needed: tuple[int, int], case: Case, missing: list[tuple[int, int]]) -> None:
    wanted = ShapeMap.of(needed)
    assert classify(HELD, wanted) is case
    assert [(r.start, r.stop) for piece in wanted.subtract(HELD) for r in piece.axes[0].ranges] == missing


def test_b10_figure_6_only_the_middle_node_receives() -> None:
    result = compiled(stack(10, (3, 1, 0), (3, 2, 2)), Cluster.even(3), ROWS)
    assert rows_between_nodes(result.initial) == 16
    assert rows_between_nodes(result.optimized) == 2
    assert receivers(result.optimized) == [1]


def test_b11_toy_of_two_convolutions_moves_16_rows_then_4() -> None:
    result = compiled(stack(8, (3, 1, 1), (3, 1, 1)), Cluster.even(3), ROWS)
    assert rows_between_nodes(result.initial) == 16
    assert rows_between_nodes(result.optimized) == 4


@pytest.mark.parametrize(
    ("graph", "nodes", "initial", "optimized"),
    [
        (stack(224, (3, 1, 1), (3, 1, 1), (3, 1, 1), (3, 1, 1)), 3, 1344, 12),
        (stack(224, (7, 2, 3), (3, 2, 1), (3, 1, 1)), 4, 504, 9),
    ],
)
def test_derived_row_counts_of_longer_stacks(graph: Graph, nodes: int, initial: int, optimized: int) -> None:
    result = compiled(graph, Cluster.even(nodes), ROWS)
    assert rows_between_nodes(result.initial) == initial
    assert rows_between_nodes(result.optimized) == optimized


@pytest.mark.parametrize(("nodes", "megabytes"), [(2, 44.455936), pytest.param(3, 88.911872, marks=pytest.mark.broad)])
def test_b12_resnet50_by_output_channels_synchronises_every_convolution(nodes: int, megabytes: float) -> None:
    result: Compiled = compiled(build("resnet50"), Cluster.even(nodes), PlanOptions(split="channels"))
    assert statistics_of(result.initial).bytes_by_operator["Conv"] == megabytes * 1e6
    assert statistics_of(result.optimized).bytes < statistics_of(result.initial).bytes


@pytest.mark.parametrize("rows", [8, 9, 5])
def test_more_nodes_than_rows_leaves_nodes_out(rows: int) -> None:
    result = assert_partition_agrees(stack(rows, (3, 1, 1), (3, 2, 1)), Cluster.even(7), ROWS)
    assert len(result.plan.tiles["conv1"]) == min(7, (rows - 1) // 2 + 1)
