"""What is sent in a row: the same messages, halos before outputs, those over slow links first."""

from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import LOCAL, Link, LinkProfile, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.passes import DEFAULT_PASSES, SlowestFirst, optimize
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import Send
from bbgrap.zoo import build
from tests.program_laws import run_passes
from tests.random_models import networks, plan_options

SLOW, FAST = Link(1e6, 1e-4), Link(1e9, 1e-4)


def rows(device):
    """Return what a device sends in a row, one list each."""
    return [list(row) for sending, row in groupby(device.steps, lambda step: isinstance(step, Send)) if sending]


@st.composite
def unequal_clusters(draw):
    """Every pair of nodes, and the coordinator, have a link of their own."""
    count = draw(st.integers(2, 4))
    nodes = Cluster.even(count).nodes
    rates = st.sampled_from((1e6, 1e7, 1e8))
    linked = [
        replace(
            node,
            links=tuple(LinkProfile(peer, draw(rates), 1e-4) for peer in (*(other.name for other in nodes[number + 1 :]), "coordinator")),
        )
        for number, node in enumerate(nodes)
    ]
    return Cluster(tuple(linked), Network(between=FAST))


@given(networks(), plan_options(), unequal_clusters())
def test_the_same_messages_leave_and_slow_ones_first(graph, options, cluster):
    descriptions = all_descriptions(graph)
    before = compile_plan(make_plan(graph, Cluster.even(len(cluster.nodes)), options, descriptions), descriptions).optimized
    after = run_passes(before, [SlowestFirst(cluster)])
    for was, now in zip(before.devices, after.devices, strict=True):
        assert [step for step in now.steps if not isinstance(step, Send)] == [step for step in was.steps if not isinstance(step, Send)]
        for row, ordered in zip(rows(was), rows(now), strict=True):
            assert sorted(row, key=lambda send: send.message) == sorted(ordered, key=lambda send: send.message)
            keys = [(s.destination == after.host, cluster.link(now.device, s.destination).bandwidth_bytes_per_s) for s in ordered]
            assert all(a <= b for a, b in pairwise(keys))
            for peer in {send.destination for send in row}:
                assert [s for s in row if s.destination == peer] == [s for s in ordered if s.destination == peer]


@pytest.mark.parametrize("between", [SLOW, LOCAL, Link(10 * LOCAL.bandwidth_bytes_per_s, LOCAL.latency_s)])
def test_the_input_leaves_for_the_others_before_the_agent_beside_the_coordinator_gets_its_own(between):
    graph = build("tiny")
    cluster = replace(Cluster.even(3), network=Network(between=between, coordinator_on=Cluster.even(3).nodes[0].name))
    assert cluster.link(cluster.host, 0) == LOCAL
    descriptions = all_descriptions(graph)
    compiled = compile_plan(make_plan(graph, cluster, PlanOptions("bbgrap"), descriptions), descriptions)
    in_device_order = optimize(compiled.initial, DEFAULT_PASSES)
    assert [send.destination for send in rows(in_device_order.devices[cluster.host])[0]] == [0, 1, 2]
    assert [send.destination for send in rows(compiled.optimized.devices[cluster.host])[0]] == [1, 2, 0]


def test_over_equal_links_everybody_begins_with_the_device_after_its_own():
    graph, cluster = build("tiny"), Cluster.even(4)
    descriptions = all_descriptions(graph)
    compiled = compile_plan(make_plan(graph, cluster, PlanOptions("bbgrap", split="channels"), descriptions), descriptions)
    for device in compiled.optimized.devices[: cluster.host]:
        halos = [[send.destination for send in row if send.destination != cluster.host] for row in rows(device)]
        assert [device.device, *max(halos, key=len)] == [(device.device + step) % 4 for step in range(4)]
