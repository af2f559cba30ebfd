"""The paper's planner: what follows a direction, what does not, and shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.compile import compile_plan
from bbgrap.errors import UsageError
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.registry import make_plan
from bbgrap.planners.shares import grid_of, split_by_shares
from bbgrap.program.statistics import statistics_of
from bbgrap.zoo import build


@given(st.integers(0, 200), st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 7))
def test_shares_cover_the_axis_in_whole_units(extent: int, shares: list[int], unit: int) -> None:
    pieces = split_by_shares(extent, shares, unit)
    assert [p.start for p in pieces] == [0, *(p.stop for p in pieces[:-1])]
    assert pieces[-1].stop == extent
    units = -(-extent // unit)
    for piece, share in zip(pieces, shares, strict=True):
        got = 0 if not len(piece) else -(-piece.stop // unit) - piece.start // unit
        assert piece.start % unit == 0 or not len(piece)
        assert abs(got - units * share / sum(shares)) < 1 + 1e-9


@given(st.integers(0, 100), st.integers(1, 9))
def test_equal_shares_are_equation_1(extent: int, parts: int) -> None:
    sizes = [extent // parts + (number < extent % parts) for number in range(parts)]
    assert [len(piece) for piece in split_by_shares(extent, [1.0] * parts)] == sizes


def test_grids_are_as_square_as_they_can_be() -> None:
    assert [grid_of(n) for n in (1, 2, 3, 4, 5, 6, 8, 9, 12)] == [(1, 1), (2, 1), (3, 1), (2, 2), (5, 1), (3, 2), (4, 2), (3, 3), (4, 3)]


def test_a_grid_that_does_not_fit_the_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="3x2 tiles do not fit 4 nodes"):
        make_plan(build("tiny"), Cluster.even(4), PlanOptions(split="grid", grid=(3, 2)))


@pytest.mark.broad
def test_rows_end_at_the_global_pool_and_heavy_products_split_by_features() -> None:
    graph = build("vgg16")
    plan = make_plan(graph, Cluster.even(2), PlanOptions(split="rows"), all_descriptions(graph))
    heavy = [node for node in graph.nodes if node.op == "Gemm"]
    assert [len(plan.tiles[node.name]) for node in heavy] == [2, 2, 2]
    assert [plan.tiles[node.name][1].part is None for node in heavy] == [True, True, False]  # the last one, of 16.4 MB, adds up features
    resnet = build("resnet50")
    tail = make_plan(resnet, Cluster.even(2), PlanOptions(split="rows"), all_descriptions(resnet))
    assert [len(tail.tiles[n.name]) for n in resnet.nodes if n.op in ("GlobalAveragePool", "Gemm")] == [2, 1]
    pool = next(node.name for node in resnet.nodes if node.op == "GlobalAveragePool")
    assert [(tile.device, str(tile.part)) for tile in tail.tiles[pool]] == [(0, "k0 0:4"), (1, "k0 4:7")]


def test_rows_that_a_reshape_joins_with_anchors_stay_where_they_are() -> None:
    graph = build("yolo")
    plan = make_plan(graph, Cluster.even(2), PlanOptions(split="rows"), all_descriptions(graph))
    assert [str(tile.region) for tile in plan.tiles["head5.rows"]] == [
        "[0:1, 0:200,400:600,800:1000, 0:85]",
        "[0:1, 200:400,600:800,1000:1200, 0:85]",
    ]
    assert [tile.region.size for tile in plan.tiles["output"]] == [25_200 * 85 // 2] * 2
    program = compile_plan(plan, all_descriptions(graph)).optimized
    assert not {"Reshape", "Concat", "Transpose"} & statistics_of(program).bytes_by_operator.keys()


@pytest.mark.parametrize(
    ("nodes", "split", "parts"), [(2, "rows", 2), (2, "columns", 2), (4, "grid", 0), (2, "channels", 0), (2, "batch", 0)]
)
def test_a_pool_over_all_that_is_cut_adds_up_partial_results(nodes: int, split: Split, parts: int) -> None:
    plan = make_plan(build("tiny"), Cluster.even(nodes), PlanOptions(split=split))
    (pool,) = (node.name for node in plan.graph.nodes if node.op == "GlobalAveragePool")
    assert sum(tile.part is not None for tile in plan.tiles[pool]) == parts


def test_a_faster_node_gets_more_rows() -> None:
    cluster = Cluster((NodeProfile("fast", share=3), NodeProfile("slow", share=1)))
    plan = make_plan(build("resnet50"), cluster, PlanOptions(split="rows"))
    rows = [tile.region.shape[2] for tile in plan.tiles["layer1.0.conv2"]]
    assert rows == [42, 14]
