"""Memory as a limit: what does not fit is planned otherwise, or refused with the numbers."""

from __future__ import annotations

import gc

import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.memory import LEAST_STANDBY_BYTES, overfull, standby_bytes
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import prepare_graph
from bbgrap.errors import PlanError
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize
from tests.partition import prepare

SHAPES = {"input": (1, 3, 224, 224)}


TINY = {"input": (1, 3, 32, 32)}


def nodes(count: int, megabytes: float) -> Cluster:
    return Cluster(tuple(NodeProfile(f"node{n}", memory_bytes=round(megabytes * 1_000_000)) for n in range(count)))


def test_room_enough_keeps_the_split() -> None:
    report = prepare(materialize("mobilenet_v2"), SHAPES, nodes(2, 100), PlanOptions(split="rows"))[0].report
    assert report["changed"] == []
    assert max(report["memory_bytes"].values()) < 100e6


def test_a_plan_that_does_not_fit_gives_way_to_one_that_divides_the_weights() -> None:
    (prepared,) = prepare(materialize("resnet50"), SHAPES, nodes(4, 60), PlanOptions(split="rows"))
    assert "needs" in prepared.report["changed"][0]
    assert max(prepared.report["memory_bytes"].values()) <= 60e6
    assert max(device.weight_bytes for device in prepared.artifacts.devices) < 0.3 * 102e6


@pytest.mark.parametrize("planner", ["pipeline", "tofu", "fused-tiles", "data-parallel"])
def test_planners_without_a_split_give_way_to_another_one_that_is_named(planner: str) -> None:
    (prepared,) = prepare(materialize("tiny"), TINY, nodes(2, 0.23), PlanOptions(planner))
    assert (prepared.name, prepared.report["planner"]) == ("bbgrap", "bbgrap")
    refused, instead = prepared.report["changed"]
    assert refused.startswith(f"planner '{planner}': node '")
    assert instead == "planned instead: planner 'bbgrap', split by channels"


def test_planner_single_takes_a_node_with_room() -> None:
    small, roomy = NodeProfile("fast", share=4, memory_bytes=230_000), NodeProfile("a", share=2, memory_bytes=8_000_000)
    (prepared,) = prepare(materialize("tiny"), TINY, Cluster((small, NodeProfile("slow"), roomy)), PlanOptions("single"))
    assert prepared.report["nodes_used"] == ["a"]
    assert prepared.report["changed"] == []


def test_a_model_that_fits_nowhere_is_refused_with_the_numbers() -> None:
    with pytest.raises(PlanError, match=r"node 'node0' needs \d+ MB and has 2 MB"):
        prepare(materialize("mobilenet_v2"), SHAPES, nodes(2, 2), PlanOptions())


def test_where_a_search_has_found_no_room_there_is_no_second_one_with_less() -> None:
    with pytest.raises(PlanError, match="planner 'auto' and planner 'bbgrap', split by channels and") as refused:
        prepare(materialize("tiny"), TINY, nodes(2, 0.02), PlanOptions("auto", search_seconds=0.1))
    assert "with less room" not in str(refused.value)  # a second search would be one of the ways


def test_no_garbage_is_looked_for_while_variants_are_made() -> None:
    """Of a decoder of 515 nodes over sixteen nodes that took a third of the time to prepare, after the search."""
    graph, cluster = load_graph(materialize("tiny"), TINY), Cluster.even(2)
    phases = list[str]()

    def note(phase: str, _: object) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    try:
        assert len(prepare_graph(graph, cluster, PlanOptions("auto", search_seconds=0.1))) > 1
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert phases.count("start") <= 1  # it begins with what was made meanwhile


def test_who_lacks_little_is_told_other_numbers_for_what_it_needs_and_has() -> None:
    small = Cluster((NodeProfile("node0", memory_bytes=20_400_000), NodeProfile("node1")))
    assert overfull(small, (20_400_001, 1)) == ("node 'node0' needs 21 MB and has 20 MB",)
    assert overfull(small, (20_400_000, 1)) == ()


def test_one_node_is_refused_a_model_that_it_would_not_get_as_a_standby() -> None:
    weights = [weight.type for weight in load_graph(materialize("mobilenet_v2"), SHAPES).weights.values()]
    room = (standby_bytes(weights) - LEAST_STANDBY_BYTES) // 1_000_000  # as kernels pack them, and what is copied before
    with pytest.raises(PlanError, match=rf"no split; whole on one node: node 'node0' needs \d+ MB and has {room} MB$"):
        prepare(materialize("mobilenet_v2"), SHAPES, nodes(2, room), PlanOptions("single"))
    prepare(materialize("mobilenet_v2"), SHAPES, nodes(2, room + LEAST_STANDBY_BYTES // 1_000_000), PlanOptions("single"))
