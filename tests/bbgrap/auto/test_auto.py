"""Planner auto: legal, deterministic, never predicted to be slower than any other planner or the best node, within memory."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.auto.evaluate import Evaluator
from bbgrap.auto.explain import explain_forecast
from bbgrap.auto.improve import shifted
from bbgrap.auto.search import plan_auto
from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, LinkProfile, Network, NodeProfile
from bbgrap.cluster.wires import NO_WIRES, Wire, Wiring, tree
from bbgrap.costmodel.clock import Busy
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.engine.prepare import fit, plan_graph
from bbgrap.errors import PlanError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import SPLITS, PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, check_plan, whole_output
from bbgrap.planners.registry import PLANNERS, make_plan
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from benchmarks.planning import exhaustive_gap
from tests.examples import examples
from tests.partition import all_values, assert_close, run_checked
from tests.program_laws import compile_checked
from tests.random_models import networks, plan_options, random_feeds

AUTO = PlanOptions("auto")
BRIEF = PlanOptions("auto", search_seconds=1.0)


class HandlingOnly(NetworkModel):
    """Messages take nothing of processors besides their handling."""

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return None


@st.composite
def unequal(draw: st.DrawFn) -> Cluster:
    """Draw one to four nodes so slow that small models are worth dividing, over links of all kinds."""
    speed = 10 ** draw(st.floats(-5, -2))
    shares = [speed * draw(st.sampled_from((1.0, 0.5, 0.25))) for _ in range(draw(st.integers(1, 4)))]
    nodes = tuple(NodeProfile(f"node{n}", share=share) for n, share in enumerate(shares))
    link = Link(10 ** draw(st.floats(5, 9)), 10 ** draw(st.floats(-5, -3)))
    wires = tree([node.name for node in nodes], [(1, Link(draw(st.sampled_from((1e6, 1e9))), 1e-5)), (len(nodes), link)])
    wiring = draw(st.sampled_from((NO_WIRES, Wiring(wires))))
    return Cluster(nodes, Network(link, coordinator_on=draw(st.sampled_from(("", "node0"))), wiring=wiring))


@settings(max_examples=examples(15))
@given(networks(), unequal())
def test_legal_right_and_never_predicted_slower_than_the_others(graph: Graph, cluster: Cluster) -> None:
    descriptions = all_descriptions(graph)
    found = plan_auto(graph, cluster, AUTO, descriptions)
    assert not check_plan(found.plan, descriptions)
    evaluator = Evaluator(Pieces(graph, descriptions), cluster, AUTO)
    for device in range(len(cluster.nodes)):
        alone = evaluator.score({node.name: (Tile(device, whole_output(graph, node)),) for node in graph.nodes})
        assert found.score.seconds <= alone.seconds
    for name, planner in PLANNERS.items():
        for split in SPLITS if name == "bbgrap" else ("rows",):
            other = evaluator.score(planner(graph, cluster, PlanOptions(name, split), descriptions))
            assert found.score.seconds <= other.seconds * (1 + 1e-9), f"{name} by {split}"
    feeds = random_feeds(graph)
    values = all_values(graph, feeds)
    program = compile_checked(found.plan, descriptions).optimized
    for name, got in zip(graph.outputs, run_checked(program, feeds, values), strict=True):
        assert_close(got, values[name], name)


@pytest.mark.broad
@settings(max_examples=examples(5))
@given(networks(), unequal())
def test_deterministic(graph: Graph, cluster: Cluster) -> None:
    descriptions = all_descriptions(graph)
    first, second = (plan_auto(graph, cluster, AUTO, descriptions) for _ in range(2))
    assert first.plan.tiles == second.plan.tiles
    assert first.score == second.score


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.broad) for seed in (1, 2, 3))])
def test_as_good_as_the_best_of_all_plans(seed: int) -> None:
    assert exhaustive_gap(seed, layers=2) <= 0.02


def test_a_node_twice_as_fast_gets_about_twice_the_rows() -> None:
    graph = build("unet")
    cluster = Cluster((NodeProfile("big"), NodeProfile("half", share=0.5)), Network(Link(1.25e9, 5e-5), coordinator_on="big"))
    found = plan_auto(graph, cluster, BRIEF, all_descriptions(graph))
    rows = [len(tile.region.axes[2]) for tile in found.plan.tiles["down1.conv1"]]
    assert 1.6 <= rows[0] / rows[1] <= 2.4
    even = plan_auto(graph, replace(cluster, nodes=tuple(replace(n, share=1.0) for n in cluster.nodes)), BRIEF, all_descriptions(graph))
    rows = [len(tile.region.axes[2]) for tile in even.plan.tiles["down1.conv1"]]
    assert 0.9 <= rows[0] / rows[1] <= 1.1


@pytest.mark.broad
def test_on_a_network_too_slow_one_node_does_it_all() -> None:
    graph = build("mobilenet_v2")
    cluster = Cluster(Cluster.even(3).nodes, Network(Link(1e6, 1e-3), coordinator_on="node1"))
    found = plan_auto(graph, cluster, AUTO, all_descriptions(graph))
    assert found.plan.devices_used == (1,)


@pytest.mark.broad
def test_of_equal_nodes_the_one_with_the_better_link_or_the_memory_works_alone() -> None:
    graph = build("mobilenet_v2")
    slow, fast = (LinkProfile("coordinator", bandwidth, 1e-3) for bandwidth in (1e6, 1e8))
    nodes = (NodeProfile("far", links=(slow,)), NodeProfile("near", links=(fast,)))
    found = plan_auto(graph, Cluster(nodes, Network(Link(1e6, 1e-3))), BRIEF, all_descriptions(graph))
    assert found.plan.devices_used == (1,)
    small = (NodeProfile("small", memory_bytes=5_000_000), NodeProfile("roomy", memory_bytes=500_000_000))
    found = plan_auto(graph, Cluster(small, Network(Link(1e6, 1e-3))), BRIEF, all_descriptions(graph))
    assert found.plan.devices_used == (1,)
    assert not found.score.excess


@pytest.mark.broad
def test_nodes_of_one_rack_are_kept_together() -> None:
    graph = build("resnet50")
    nodes = tuple(NodeProfile(f"node{n}", group="ab"[n % 2]) for n in range(4))
    within = Link(1.25e9, 5e-5)
    cluster = Cluster(nodes, Network(Link(2e6, 2e-3), (("a", within), ("b", within)), coordinator_on="node1"))
    found = plan_auto(graph, cluster, AUTO, all_descriptions(graph))
    assert found.plan.devices_used == (1, 3)


def two_switches(between: Link) -> Cluster:
    """Return four nodes, the even and the odd ones at a switch each."""
    near = [Wire(f"wire{n}", (f"node{n}", "ab"[n % 2]), Link(1.25e9, 1e-5)) for n in range(4)]
    return Cluster(Cluster.even(4).nodes, Network(coordinator_on="node1", wiring=Wiring((*near, Wire("between", ("a", "b"), between)))))


@pytest.mark.broad
@pytest.mark.parametrize(("between", "used"), [(Link(2e6, 2e-3), (1, 3)), (Link(1.25e10, 0.0), (0, 1, 2, 3))])
def test_nodes_of_one_switch_are_kept_together_where_they_share_a_thin_wire_to_others(between: Link, used: tuple[int, ...]) -> None:
    graph = build("resnet50")
    found = plan_auto(graph, two_switches(between), AUTO, all_descriptions(graph))
    assert found.plan.devices_used == used


@pytest.mark.broad
def test_one_more_node_is_wired_as_the_best_one_and_faster_links_are_faster_wires() -> None:
    forecast = plan_graph(build("tiny"), two_switches(Link(2e6, 2e-3)), BRIEF)
    changes = [seconds for _, seconds in forecast.what_if(BRIEF)]
    assert len(changes) == 2
    assert forecast.alone is not None
    assert max(changes) <= forecast.alone[1] * (1 + 1e-9)


@pytest.mark.broad
def test_one_more_node_is_as_near_to_the_one_that_it_is_like_as_others_are() -> None:
    """Else a third node would be predicted to gain less than where the network says the same of all links."""
    quick = [LinkProfile(peer, 1.25e9, 6e-5) for peer in ("node0", "node1", "coordinator")]
    graph, slow = build("unet"), Network(Link(1e6, 1e-2))
    measured = Cluster(tuple(NodeProfile(f"node{n}", links=tuple(k for k in quick if k.peer != f"node{n}")) for n in range(2)), slow)
    declared = Cluster(Cluster.even(2).nodes, Network(Link(1.25e9, 3e-5)))
    forecasts = [plan_graph(graph, cluster, PlanOptions()) for cluster in (measured, declared)]
    one, other = (next(seconds for _, seconds in forecast.what_if(BRIEF)) for forecast in forecasts)
    assert one == pytest.approx(other)


@pytest.mark.broad
def test_a_node_with_a_slow_link_to_the_coordinator_gets_less() -> None:
    graph = build("unet")
    descriptions = all_descriptions(graph)
    beside = Cluster(Cluster.even(2).nodes, Network(Link(1.25e8, 1e-4), coordinator_on="node0"))
    found = plan_auto(graph, beside, AUTO, descriptions)
    by_link = [c for c in found.candidates if "by speed and link" in c.name]
    even = next(c for c in found.candidates if c.name == "rows over all nodes")
    assert min(c.score for c in by_link) < even.score
    for candidate in by_link:
        near, far = (sum(t.region.size for tiles in candidate.tiles.values() for t in tiles if t.device == device) for device in (0, 1))
        assert near > far
    assert len({c.kind for c in by_link}) == 2, "along another direction it may be worth more"
    apart = Cluster(Cluster.even(2).nodes, Network(Link(1.25e8, 1e-4)))
    assert not any("by speed and link" in c.name for c in plan_auto(graph, apart, AUTO, descriptions).candidates)


@pytest.mark.broad
def test_of_output_heads_a_node_with_a_slow_link_makes_little() -> None:
    b = Builder("grows", (1, 16, 64, 64))
    x = "input"
    for number in range(4):
        x = b.conv(x, f"body{number}", 32, 3, pad=1)
    graph = b.graph(b.act("Sigmoid", b.conv(x, "head", 128, 1), "output"))
    descriptions = all_descriptions(graph)
    beside = Cluster(Cluster.even(2).nodes, Network(Link(1.25e8, 1e-4), coordinator_on="node0"))
    light = [c for c in plan_auto(graph, beside, AUTO, descriptions).candidates if ", by link in output heads" in c.name]
    assert light
    for candidate in light:
        body, head, output = (_part_of(1, candidate.tiles[name]) for name in ("body3", "head", "output"))
        assert output == head < 0.5 * body


def _part_of(device: int, tiles: Sequence[Tile]) -> float:
    """Return which part of the elements is a device's."""
    return sum(tile.region.size for tile in tiles if tile.device == device) / sum(tile.region.size for tile in tiles)


@pytest.mark.broad
def test_a_model_is_found_room_for_on_the_slowest_of_many_nodes() -> None:
    graph = build("tiny")
    small = [NodeProfile(f"node{n}", share=3 - n / 10, memory_bytes=100_000 + n) for n in range(9)]
    cluster = Cluster((*small, NodeProfile("roomy", memory_bytes=8_000_000_000)))
    found = plan_auto(graph, cluster, BRIEF, all_descriptions(graph))
    assert found.plan.devices_used == (9,)
    assert not found.score.excess


@pytest.mark.broad
def test_memory_is_a_hard_limit() -> None:
    graph = build("alexnet")
    roomy = Cluster(Cluster.even(4).nodes, Network(Link(1.25e8, 1e-4)))
    tight = replace(roomy, nodes=tuple(replace(node, memory_bytes=120_000_000) for node in roomy.nodes))
    report = fit(graph, tight, BRIEF)[1].report
    assert all(bytes_ <= 120_000_000 for bytes_ in report["memory_bytes"].values())
    with pytest.raises(PlanError, match=r"fits the memory of these nodes in no split.*needs .* MB and has 20 MB") as refused:
        fit(graph, replace(roomy, nodes=tuple(replace(node, memory_bytes=20_000_000) for node in roomy.nodes)), BRIEF)
    said = str(refused.value).split("; ")
    assert len({way.partition(": ")[2] for way in said[1:]}) == len(said) - 1, "ways that lack the same are told once"


@pytest.mark.broad
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_objectives(objective: str) -> None:
    graph = build("alexnet")
    cluster = Cluster(Cluster.even(3).nodes, Network(Link(1.25e9, 5e-5)))
    descriptions = all_descriptions(graph)
    found = {
        o: plan_auto(graph, cluster, PlanOptions("auto", objective=o, search_seconds=4.0), descriptions) for o in (objective, "latency")
    }
    evaluator = Evaluator(Pieces(graph, descriptions), cluster, PlanOptions("auto", objective=objective))
    values = {o: evaluator.score(f.plan.tiles).value for o, f in found.items()}
    assert values[objective] <= values["latency"] * (1 + 1e-9)


@given(networks(), unequal(), plan_options())
def test_the_busiest_node_or_way_is_busy_for_a_part_of_a_request_at_most(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    """Where messages take nothing besides: then no node is busy for longer than the request lasts, nor for less than its work."""
    descriptions = all_descriptions(graph)
    evaluator = Evaluator(Pieces(graph, descriptions), cluster, PlanOptions("auto", objective="throughput"))
    evaluator.predictor.network = HandlingOnly(cluster)
    tiles = make_plan(graph, cluster, options, descriptions).tiles
    score = evaluator.score(tiles)
    works = [sum(act.seconds for act in acts if isinstance(act, Busy)) for acts in evaluator.predictor.acts(evaluator.program(tiles))]
    assert max(works) <= score.value <= score.seconds * (1 + 1e-9)


def test_one_node_is_enough() -> None:
    graph = build("tiny")
    for options in (AUTO, *(PlanOptions(name) for name in PLANNERS)):
        forecast = plan_graph(graph, Cluster.even(1), options)
        assert forecast.compiled.plan.devices_used == (0,)
        assert forecast.alone == ("node0", pytest.approx(forecast.timeline.total_s))


@pytest.mark.broad
def test_a_node_alone_is_predicted_with_inputs_in_parts_as_its_plan_is() -> None:
    graph = build("resnet50")
    cluster = Cluster((NodeProfile("slow", share=0.5), NodeProfile("fast")))
    single = plan_graph(graph, cluster, PlanOptions("single"))
    divided = plan_graph(graph, cluster, PlanOptions())
    assert single.timeline.total_s < 0.98 * min(single.single_s), "else this shows nothing"
    assert single.alone == ("fast", single.timeline.total_s)
    assert divided.alone == ("fast", pytest.approx(single.timeline.total_s))


def test_time_that_is_up_ends_the_search_with_a_plan() -> None:
    graph = build("resnet50")
    found = plan_auto(graph, Cluster.even(4), AUTO, all_descriptions(graph), time_is_up=lambda: True)
    assert found.plans <= 4
    assert not check_plan(found.plan)


def with_memory(*memory: int) -> Cluster:
    """Return nodes of which each is half as fast as the one before it, with these bytes of memory."""
    return Cluster(tuple(NodeProfile(f"node{n}", share=0.5**n, memory_bytes=bytes_) for n, bytes_ in enumerate(memory)))


def test_the_best_single_node_is_one_that_has_room() -> None:
    graph = build("tiny")
    forecast = plan_graph(graph, with_memory(100_000, 8_000_000, 8_000_000), PlanOptions())
    assert forecast.alone == ("node1", forecast.single_s[1])
    assert "; 'node1' alone" in next(explain_forecast(forecast, PlanOptions()))
    assert forecast.report()["predicted_single_node_ms"] == pytest.approx(1e3 * forecast.single_s[1], abs=1e-4)
    assert forecast.best_single((0, 7_900_000, 0)) == 2, "room for more than the model"
    nowhere = plan_graph(graph, with_memory(100_000, 100_000), PlanOptions())
    assert nowhere.alone is None
    assert next(explain_forecast(nowhere, PlanOptions())).endswith("; no single node has room for the whole model")
    assert nowhere.report()["predicted_single_node_ms"] is None


@pytest.mark.broad
def test_other_programs_on_the_processor_change_nothing_until_a_search_takes_three_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = build("tiny"), Cluster.even(3)

    def plans(by_the_clock_s: float) -> int:
        passed = chain([0.0, 0.0], repeat(by_the_clock_s))
        monkeypatch.setattr("time.perf_counter", lambda: next(passed))
        monkeypatch.setattr("time.thread_time", lambda: 0.0)
        found = plan_graph(graph, cluster, BRIEF).found
        assert found is not None
        return found.plans

    assert plans(0.0) == plans(2.9) > plans(3.1)


@pytest.mark.broad
def test_explanation_names_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", time.thread_time)  # on a busy machine the clock would end a search before it found that
    forecast = plan_graph(build("alexnet"), Cluster((NodeProfile("big"), NodeProfile("small", share=0.5))), BRIEF)
    text = "\n".join(explain_forecast(forecast, BRIEF))
    for part in ("times as fast", "rows ", "The bottleneck is '", "alone", "one more node", "links 10 times as fast", "planner '"):
        assert part in text


@given(st.integers(2, 20), st.integers(1, 19), st.floats(-1, 1).filter(bool))
def test_a_shifted_border_still_covers(extent: int, at: int, by: float) -> None:
    from bbgrap.shapemap import IntervalSet, ShapeMap, covers

    whole = ShapeMap.full((3, extent))
    at = min(at, extent - 1)
    tiles = tuple(Tile(d, whole.replace(1, IntervalSet.of(piece))) for d, piece in enumerate(((0, at), (at, extent))))
    moved = shifted(tiles, 0, by)
    assert covers((tile.region for tile in moved), whole)
    assert moved != tiles
    assert 1 <= len(moved) <= 2


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(7, 12)), min_size=1, max_size=3), st.integers(0, 2), st.floats(-1, 1).filter(bool))
def test_shifting_leaves_no_gap_beside_a_tile_of_everything(pieces: list[tuple[int, int]], border: int, by: float) -> None:
    from bbgrap.shapemap import IntervalSet, ShapeMap, covers

    whole = ShapeMap.full((3, 12))
    tiles = tuple(Tile(device, whole.replace(1, IntervalSet.of(piece))) for device, piece in enumerate([*pieces, (0, 12)]))
    assert covers((tile.region for tile in shifted(tiles, border, by)), whole)


@pytest.mark.slow
def test_as_good_as_the_best_of_all_plans_often() -> None:
    cases = int(os.environ.get("BBGRAP_CASES", "200"))
    assert sum(exhaustive_gap(seed) <= 0.02 for seed in range(cases)) == cases
