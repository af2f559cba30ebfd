"""Every planner: legal plans for random networks on random clusters, whose simulated answers are those of plain onnxruntime."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.compile import compile_plan
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, check_plan, whole_output
from bbgrap.planners.registry import PLANNERS, make_plan
from bbgrap.program.statistics import statistics_of
from bbgrap.tdl import Descriptions
from bbgrap.tdl.work import operations_of
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.examples import examples
from tests.partition import assert_partition_agrees
from tests.random_models import clusters, networks

FROM_PAPERS = [name for name in PLANNERS if name not in ("bbgrap", "single", "widest", "auto")]  # those have tests of their own

BRIEF = ("fused-tiles", "pipeline", "tofu")
"""What divides a deep model in the default suite: along rows, between layers, and along every axis. The others are slow tests."""

ROUNDING = 1e-4
"""Of the largest output: sums over parts round otherwise than one sum, and outputs that cancel to a hundredth of their terms show it."""

DEEP = 1e-3
"""Over the 52 layers of MobileNetV2, whose clips at 6 cut values that are far larger; rows alone show 1.2e-4."""


def slow_unless_brief(planner: str, *before: str):
    return pytest.param(*before, planner, marks=() if planner in BRIEF else pytest.mark.slow)


KNOWN = [*(("tiny", planner) for planner in FROM_PAPERS), *(slow_unless_brief(planner, "mobilenet_v2") for planner in FROM_PAPERS)]


def unequal(count: int) -> Cluster:
    return Cluster(tuple(NodeProfile(f"node{number}", share=(3, 1, 7, 2, 2)[number]) for number in range(count)))


@cache
def known(model: str) -> tuple[Graph, Descriptions]:
    graph = build(model)
    return graph, all_descriptions(graph)


def bytes_moved(planner: str, model: str, nodes: int) -> int:
    graph, descriptions = known(model)
    plan = make_plan(graph, Cluster.even(nodes), PlanOptions(planner=planner), descriptions)
    return statistics_of(compile_plan(plan, descriptions).optimized).bytes


@pytest.mark.parametrize("planner", FROM_PAPERS)
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_answers_are_those_of_the_whole_model(planner: str, data: st.DataObject) -> None:
    graph, cluster = data.draw(networks()), data.draw(clusters())
    assert_partition_agrees(graph, cluster, PlanOptions(planner=planner), ROUNDING)


@pytest.mark.parametrize(("model", "planner"), KNOWN)
def test_plans_of_known_models_are_legal(planner: str, model: str) -> None:
    graph, descriptions = known(model)
    for cluster in (Cluster.even(2), Cluster.even(4), *map(unequal, (3, 5))):
        tiles = PLANNERS[planner](graph, cluster, PlanOptions(planner=planner), descriptions)
        assert check_plan(Plan(planner, graph, cluster, tiles), descriptions) == ()


@pytest.mark.broad
@pytest.mark.parametrize("planner", FROM_PAPERS)
def test_answers_of_a_known_model(planner: str) -> None:
    for cluster in map(unequal, (2, 5)):
        assert_partition_agrees(known("tiny")[0], cluster, PlanOptions(planner=planner), ROUNDING)


@pytest.mark.parametrize("planner", [slow_unless_brief(planner) for planner in FROM_PAPERS])
def test_answers_of_a_deep_model(planner: str) -> None:
    assert_partition_agrees(known("mobilenet_v2")[0], unequal(3), PlanOptions(planner=planner), DEEP)


@pytest.mark.parametrize("planner", FROM_PAPERS)
def test_one_node_gets_the_whole_model(planner: str) -> None:
    graph, descriptions = known("tiny")
    plan = make_plan(graph, Cluster.even(1), PlanOptions(planner=planner), descriptions)
    assert plan.devices_used == (0,)
    assert all(len(tiles) == 1 and tiles[0].part is None for tiles in plan.tiles.values())


@pytest.mark.broad
def test_tofu_fetches_less_than_along_single_loops() -> None:
    assert bytes_moved("tofu", "mobilenet_v2", 4) < bytes_moved("equal-chop", "mobilenet_v2", 4)


def test_partial_sums_are_what_model_parallelism_adds_up() -> None:
    graph, descriptions = known("tiny")
    plan = make_plan(graph, Cluster.even(3), PlanOptions(planner="model-parallel"), descriptions)
    convolutions = [node for node in graph.nodes if node.op == "Conv" and graph.types[node.inputs[0]].known_shape[1] >= 3]
    assert convolutions
    assert all([tile.part is not None for tile in plan.tiles[node.name]] == [True] * 3 for node in convolutions)


def test_a_batch_is_divided_for_nothing() -> None:
    builder = Builder("batch", (4, 3, 8, 8))
    graph = builder.graph(builder.conv(builder.act("Relu", builder.conv("input", "first", 6, 3), "relu"), "second", 4, 3))
    descriptions = all_descriptions(graph)
    for name in ("data-parallel", "hypar", "soybean", "one-weird-trick", "tofu"):
        plan = make_plan(graph, Cluster.even(4), PlanOptions(planner=name), descriptions)
        assert [tile.region.shape[0] for tile in plan.tiles["second"]] == [1, 1, 1, 1], name
        assert statistics_of(compile_plan(plan, descriptions).optimized).bytes == 0


def test_fused_tiles_exchange_less_often_than_rows() -> None:
    graph, descriptions = known("mobilenet_v2")
    syncs = {}
    for name in ("bbgrap", "fused-tiles", "layerwise"):
        plan = make_plan(graph, Cluster.even(2), PlanOptions(planner=name), descriptions)
        syncs[name] = statistics_of(compile_plan(plan, descriptions).optimized).syncs
    assert syncs["fused-tiles"] < syncs["bbgrap"] < syncs["layerwise"]


def test_a_pipeline_sends_forward_only() -> None:
    graph, descriptions = known("mobilenet_v2")
    plan = make_plan(graph, unequal(5), PlanOptions(planner="pipeline"), descriptions)
    devices = [plan.tiles[node.name][0].device for node in graph.nodes]
    assert devices == sorted(devices)
    assert plan.devices_used == (0, 1, 2, 3, 4)


def test_a_pipeline_halves_the_work_of_a_decoder_whatever_its_vocabulary() -> None:
    graph, descriptions = known("tiny-decoder")
    plan = make_plan(graph, Cluster.even(2), PlanOptions(planner="pipeline"), descriptions)
    work = {node.name: operations_of(node, descriptions[node.name], whole_output(graph, node)) for node in graph.nodes}
    first = sum(work[name] for name, tiles in plan.tiles.items() if tiles[0].device == 0)
    assert abs(2 * first - sum(work.values())) <= max(work.values())
