"""Relayed broadcasts: the same answer to the bit, the same bytes in all, and no wire busier than before."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, LinkProfile, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.passes import DEFAULT_PASSES, RelayBroadcasts, optimize
from bbgrap.compiler.passes.relay import broadcasts_of, cut, message_levels
from bbgrap.compiler.passes.relayed import rewrite
from bbgrap.compiler.predict import Predictor
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.program.statistics import statistics_of, traffic_bytes
from bbgrap.program.steps import Program, Receive, Send, check_program
from bbgrap.runtime.schedule import check_schedule
from bbgrap.shapemap import ShapeMap, covers
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.partition import all_values, assert_close, compiled, run_checked
from tests.random_models import networks, plan_options, plans, random_feeds
from tests.strategies import shape_maps

SLOW = Network(Link(1e4, 1e-6))
"""So slow that tiny maps are worth a relay."""
GIGABIT = Network(Link(125e6, 150e-6))


def even(count: int, network: Network) -> Cluster:
    return replace(Cluster.even(count), network=network)


def sent_bytes(program: Program) -> list[int]:
    return [sum(sum(program.part_bytes(d.device, s)) for s in d.steps if isinstance(s, Send)) for d in program.devices]


def assert_no_exchange_has_a_busier_wire(before: Program, after: Program) -> None:
    """What the busiest device sends, and then passes on, is at most what the busiest one sent; by exchange."""
    levels = message_levels(before)
    was, direct, passed_on = Counter(), Counter(), Counter()
    for device, changed in zip(before.devices, after.devices, strict=True):
        for step in device.steps:
            if isinstance(step, Send):
                was[levels[step.message], device.device] += sum(before.part_bytes(device.device, step))
        filled = {b: step.message for step in changed.steps if isinstance(step, Receive) for b in step.buffers}
        for step in changed.steps:
            if isinstance(step, Send):
                relayed = step.message not in levels
                level = levels[filled[step.parts[0].buffer] if relayed else step.message]
                (passed_on if relayed else direct)[level, device.device] += sum(after.part_bytes(device.device, step))
    for level in set(levels.values()):
        most = [max(busy[level, device.device] for device in before.devices) for busy in (was, direct, passed_on)]
        assert most[1] + most[2] <= most[0]


def answers(program: Program, graph: Graph) -> list[np.ndarray]:
    artifacts = export(program)
    for schedule in (*(d.schedule for d in artifacts.devices), artifacts.host):
        assert not check_schedule(schedule)
    return simulate(artifacts, random_feeds(graph), local_kernels(artifacts))


def assert_only_faster(before: Program, cluster: Cluster, graph: Graph) -> bool:
    """Relay, check every law, and say whether anything was relayed."""
    after = RelayBroadcasts(cluster).run(before)
    assert not check_program(after)
    assert traffic_bytes(after) <= traffic_bytes(before)
    assert_no_exchange_has_a_busier_wire(before, after)
    for got, want in zip(answers(after, graph), answers(before, graph), strict=True):
        assert np.array_equal(got, want)
    return after is not before


def assert_all_can_be_relayed(before: Program, graph: Graph) -> None:
    """Whether it pays or not: no deadlock, the same bytes in all, the same answer to the bit."""
    levels = message_levels(before)
    found = list(broadcasts_of(before, levels))
    assume(found)
    after = rewrite(before, levels, found)
    assert not check_program(after)
    assert traffic_bytes(after) == traffic_bytes(before)
    for got, want in zip(answers(after, graph), answers(before, graph), strict=True):
        assert np.array_equal(got, want)


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(networks(), st.integers(3, 5), st.sampled_from(["channels", "inputs", "grid", "rows"]), st.sampled_from(["exact", "float16"]))
def test_all_broadcasts_of_the_planner(graph: Graph, nodes: int, split, transfers) -> None:
    assert_all_can_be_relayed(compiled(graph, Cluster.even(nodes), PlanOptions(split=split), transfers).optimized, graph)


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_all_broadcasts_of_any_legal_plan(data: st.DataObject) -> None:
    graph = data.draw(networks())
    plan = data.draw(plans(graph, data.draw(st.integers(3, 5))))
    assert_all_can_be_relayed(compile_plan(plan, all_descriptions(graph), verify=True).optimized, graph)


@given(networks(), st.integers(2, 5), plan_options(), st.sampled_from(["exact", "float16"]))
def test_the_answer_is_the_same_to_the_bit(graph: Graph, nodes: int, options: PlanOptions, transfers) -> None:
    cluster = even(nodes, SLOW)
    before = compiled(graph, Cluster.even(nodes), options, transfers).optimized
    if assert_only_faster(before, cluster, graph) and transfers == "exact":
        run_checked(RelayBroadcasts(cluster).run(before), random_feeds(graph), all_values(graph, random_feeds(graph)))


@given(st.data())
def test_any_legal_plan(data: st.DataObject) -> None:
    graph = data.draw(networks())
    before = compile_plan(data.draw(plans(graph)), all_descriptions(graph), verify=True).optimized
    assert_only_faster(before, even(4, SLOW), graph)


@given(networks(), st.permutations(range(4)), st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_layers_on_one_node_that_all_others_read(graph: Graph, order: list[int], kinds: list[int]) -> None:
    """Whole layers on single nodes before layers that all nodes compute whole: nothing but broadcasts."""
    tiles = {
        node.name: tuple(Tile(d, whole_output(graph, node)) for d in (range(4) if kind == 0 else (order[kind - 1],)))
        for node, kind in zip(graph.nodes, (kinds * len(graph.nodes))[: len(graph.nodes)], strict=True)
    }
    plan = Plan("whole", graph, Cluster.even(4), tiles)
    assert_only_faster(compile_plan(plan, all_descriptions(graph), verify=True).optimized, even(4, SLOW), graph)


def test_an_input_for_all_goes_once_through_the_hosts_wire() -> None:
    graph = build("resnet50")
    cluster = even(4, GIGABIT)
    before = compiled(graph, Cluster.even(4), PlanOptions(split="channels")).optimized
    after = compiled(graph, cluster, PlanOptions(split="channels")).optimized
    whole = 4 * 3 * 224 * 224
    assert sent_bytes(before)[4] == 4 * whole
    assert sent_bytes(after)[4] == whole
    assert [a - b for a, b in zip(sent_bytes(after)[:4], sent_bytes(before)[:4], strict=True)] == 4 * [3 * whole // 4]
    assert traffic_bytes(after) == traffic_bytes(before)
    assert statistics_of(after).transfers == statistics_of(before).transfers + 12
    predictor = Predictor(cluster)
    saved = predictor.timeline(before).total_s - predictor.timeline(after).total_s
    assert saved > 0.4 * 4 * whole / 125e6


def test_an_all_gather_stays_as_it_is() -> None:
    """Every device sends its tile to all: relayed, every wire would be as busy."""
    graph = build("vgg16")
    program = compiled(graph, Cluster.even(4), PlanOptions(split="channels")).optimized
    after = RelayBroadcasts(even(4, GIGABIT)).run(program)
    levels = message_levels(program)
    assert {m: s for m, (_, s) in after.senders.items() if levels.get(m, 0) > 0} == {
        m: s for m, (_, s) in program.senders.items() if levels[m] > 0
    }


def broadcast(elements: int = 1 << 20) -> Program:
    """One layer on the first node; all four compute the next ones from it."""
    builder = Builder("broadcast", (1, 16, 16, elements // 256))
    first = builder.act("Relu", "input", "first")
    graph = builder.graph(builder.conv(first, "second", 64, 1))
    tiles = {
        node.name: (Tile(0, whole_output(graph, node)),)
        if node.op == "Relu"
        else tuple(Tile(d, part) for d, part in enumerate(cut(whole_output(graph, node), 4)))
        for node in graph.nodes
    }
    plan = Plan("broadcast", graph, Cluster.even(4), tiles)
    return optimize(compile_plan(plan, all_descriptions(graph)).initial, DEFAULT_PASSES)


def test_one_layer_on_one_node_goes_once_through_its_wire() -> None:
    before = broadcast()
    after = RelayBroadcasts(even(4, GIGABIT)).run(before)
    returned = sent_bytes(before)[1]
    assert sent_bytes(before)[0] - returned == 3 * (4 << 20)
    assert sent_bytes(after)[0] - returned == pytest.approx(4 << 20, rel=0.2)
    assert assert_only_faster(before, even(4, GIGABIT), before.graph)


def test_int8_is_relayed_only_if_its_scales_stay_as_many() -> None:
    even_pieces = replace(broadcast(3 << 18), transfers="int8")  # pieces of whole blocks
    after = RelayBroadcasts(even(4, GIGABIT)).run(even_pieces)
    assert after is not even_pieces
    assert traffic_bytes(after) == traffic_bytes(even_pieces)
    for got, want in zip(answers(after, after.graph), answers(even_pieces, after.graph), strict=True):
        assert_close(got, want, "output", 0.05)
    odd = replace(broadcast(256 * 4099), transfers="int8")
    assert RelayBroadcasts(even(4, GIGABIT)).run(odd) is odd


@pytest.mark.parametrize(
    ("cluster", "elements"),
    [
        (Cluster.even(4), 1 << 20),
        (Cluster(tuple(replace(node, machine="box") for node in Cluster.even(4).nodes), GIGABIT), 1 << 20),
        (even(4, GIGABIT), 1 << 10),
    ],
    ids=["links that nobody knows", "one machine", "small"],
)
def test_what_is_left_alone(cluster: Cluster, elements: int) -> None:
    before = broadcast(elements)
    assert RelayBroadcasts(cluster).run(before) is before


def test_a_slow_way_between_receivers_is_left_alone() -> None:
    names = ("a", "b", "c", "d")
    fast = [NodeProfile("a", links=tuple(LinkProfile(n, 125e6, 1e-4) for n in names[1:]))]
    slow = [NodeProfile(n, links=tuple(LinkProfile(m, 1e6, 1e-2) for m in names[1:] if m != n)) for n in names[1:]]
    before = broadcast()
    assert RelayBroadcasts(Cluster((*fast, *slow))).run(before) is before


def test_a_second_time_changes_nothing() -> None:
    once = RelayBroadcasts(even(4, GIGABIT)).run(broadcast())
    assert RelayBroadcasts(even(4, GIGABIT)).run(once) is once


@given(shape_maps((40, 9, 70)), st.integers(2, 5))
def test_pieces_are_disjoint_and_cover(region: ShapeMap, parts: int) -> None:
    pieces = cut(region, parts)
    if not pieces:
        assert all(len(axis) < parts for axis in region.axes)
        return
    assert len(pieces) == parts
    assert covers(pieces, region)
    assert sum(piece.size for piece in pieces) == region.size
    (axis,) = {n for piece in pieces for n in range(region.rank) if piece.axes[n] != region.axes[n]}
    lengths = [len(piece.axes[axis]) for piece in pieces]
    assert max(lengths) - min(lengths) <= 1


def test_levels_count_what_was_received_before() -> None:
    program = compiled(build("tiny"), Cluster.even(3), PlanOptions(split="rows")).optimized
    levels = message_levels(program)
    assert levels.keys() == program.senders.keys()
    for device in program.devices:
        highest = -1
        for step in device.steps:
            if isinstance(step, Receive):
                highest = max(highest, levels[step.message])
            elif isinstance(step, Send):
                assert levels[step.message] == highest + 1
