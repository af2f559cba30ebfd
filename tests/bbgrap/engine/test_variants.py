"""Other routes of a model: which there are, that they answer the same, and that the nodes have room for all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.prepare import prepare
from bbgrap.engine.prepared import Alternative, Prepared
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize

SHAPES = {"input": (1, 3, 32, 32)}
AUTO = PlanOptions(planner="auto", search_seconds=2.0)
STREAM = replace(AUTO, objective="throughput")
FAST = Cluster((NodeProfile("slow"), NodeProfile("fast", share=3.0)))


def routes_of(prepared: Prepared) -> tuple[Alternative, ...]:
    return (Alternative(prepared.name, prepared.artifacts, prepared.report), *prepared.alternatives)


@pytest.mark.parametrize("options", [AUTO, STREAM])
def test_every_route_answers_like_plain_onnxruntime(options: PlanOptions) -> None:
    model = materialize("tiny")
    feed = np.random.default_rng(0).random(SHAPES["input"], dtype=np.float32)
    (want,) = Reference(model).run({"input": feed})
    routes = routes_of(prepare(model, SHAPES, Cluster.even(3), options))
    assert len(routes) > 1
    for route in routes:
        (got,) = simulate(route.artifacts, [feed], local_kernels(route.artifacts))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_stream_has_the_whole_model_on_every_node_the_fastest_first() -> None:
    routes = routes_of(prepare(materialize("tiny"), SHAPES, FAST, STREAM))
    assert [(route.name, route.report["nodes_used"]) for route in routes] == [("single on fast", ["fast"]), ("single on slow", ["slow"])]
    assert [route.report["optimized"]["transfers"] for route in routes] == [0, 0]


def test_a_plan_over_several_nodes_is_tried_against_the_best_one() -> None:
    cluster = Cluster((NodeProfile("a"), NodeProfile("b")))
    prepared = prepare(materialize("vgg16"), {"input": (1, 3, 224, 224)}, cluster, AUTO)
    assert prepared.report["nodes_used"] == ["a", "b"]
    assert prepared.alternatives[0].name == "single on a"
    assert prepared.alternatives[0].report["nodes_used"] == ["a"]
    plans = prepared.alternatives[1:]
    assert 1 <= len(plans) <= 2
    assert all(set(other.report["nodes_used"]) == {"a", "b"} for other in plans)
    assert re.fullmatch(r"planner '[a-z-]+'|[a-z]+ over all nodes", plans[-1].name), "the last one is another planner's own"


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(planner="single"), PlanOptions(objective="throughput")])
def test_who_names_a_planner_gets_its_plan_and_nothing_else(options: PlanOptions) -> None:
    assert prepare(materialize("tiny"), SHAPES, Cluster.even(2), options).alternatives == ()


def test_a_node_without_room_for_the_whole_model_gets_no_route() -> None:
    model, shapes = materialize("mobilenet_v2"), {"input": (1, 3, 224, 224)}
    nodes = (NodeProfile("a"), NodeProfile("b", memory_bytes=10_000_000), NodeProfile("c"))
    routes = routes_of(prepare(model, shapes, Cluster(nodes), STREAM))
    assert [route.name for route in routes] == ["single on a", "single on c"]


def test_where_most_nodes_have_no_room_the_stream_takes_a_plan_over_all() -> None:
    model, shapes = materialize("mobilenet_v2"), {"input": (1, 3, 224, 224)}
    small = tuple(NodeProfile(f"s{n}", memory_bytes=15_000_000) for n in range(3))
    cluster = Cluster((*small, NodeProfile("a")))
    (joint,) = routes_of(prepare(model, shapes, cluster, STREAM))
    assert joint.report["planner"] != "single"
    (single,) = routes_of(prepare(model, shapes, cluster, replace(STREAM, planner="single")))
    assert single.report["nodes_used"] == ["a"], "planner single has no other plan"


def test_the_nodes_have_room_for_all_routes_together() -> None:
    """Room for the plan and not for the whole model besides: the plan stays alone."""
    model, shapes = materialize("resnet50"), {"input": (1, 3, 224, 224)}
    plenty = prepare(model, shapes, Cluster.even(2), AUTO)
    assert plenty.alternatives
    needed = max(max(route.report["memory_bytes"].values()) for route in routes_of(plenty))
    tight = Cluster(tuple(NodeProfile(f"node{n}", memory_bytes=round(1.2 * needed)) for n in range(2)))
    routes = routes_of(prepare(model, shapes, tight, AUTO))
    for node in tight.nodes:
        assert sum(route.report["memory_bytes"][node.name] for route in routes) <= node.memory_bytes
