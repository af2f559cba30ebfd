"""Wires that messages share: never more than they carry, never faster than alone, and fat ones are as good as none."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, Network
from bbgrap.cluster.wires import Wiring, tree
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.clock import Act, Await, Busy, Post, run_clock
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.ways import FreeBandwidth, carry, loads
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from tests.partition import compiled
from tests.random_models import networks, plan_options

EDGE = 1000.0
"""Bytes per second of every node's own wire."""

amounts = st.floats(0, 1e4)
rates = st.floats(1.0, 1e4)


class OnlyWires(NetworkModel):
    """Messages take nothing of processors."""

    def handling(self, device: int, source: int, destination: int, size: int, *, in_a_row: bool = False) -> float:
        return 0.0

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return None


def cluster_of(upper: float, nodes: int = 4) -> Cluster:
    """Return nodes in a tree of two ways, whose two upper wires have a bandwidth."""
    names = [f"n{number}" for number in range(nodes)]
    levels = [(2, Link(upper, 0.0)), (nodes // 2, Link(EDGE, 0.0))]
    return Cluster(tuple(NodeProfile(name) for name in names), Network(Link(EDGE, 0.0), wiring=Wiring(tree(names, levels))))


def arrivals(sends: Sequence[tuple[float, int, int, int]], cluster: Cluster) -> list[float]:
    """Return when messages arrive that are given by (seconds, source, destination, bytes)."""
    acts: list[list[Act]] = [[] for _ in range(cluster.host + 1)]
    for message, (seconds, source, destination, size) in enumerate(sends):
        acts[source] += [Busy(seconds, "before"), Post(message, destination, size)]
    for message, (_, source, destination, size) in enumerate(sends):
        acts[destination].append(Await(message, source, size))
    timeline = run_clock([str(device) for device in range(len(acts))], acts, OnlyWires(cluster))
    return [span.start_s for span in sorted(timeline.spans, key=lambda span: span.message or 0) if span.lane == "receive"]


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[float, int, int, int]]:
    pairs = st.permutations(range(4)).map(lambda order: order[:2])
    return [(draw(st.floats(0, 3)), *draw(pairs), draw(st.integers(0, 5000))) for _ in range(draw(st.integers(1, 8)))]


@given(st.lists(st.tuples(st.sets(st.integers(0, 2), min_size=1), amounts, amounts), max_size=8), st.lists(rates, min_size=3, max_size=3))
def test_ways_never_carry_more_than_they_can(asked: list[tuple[set[int], float, float]], bandwidths: list[float]) -> None:
    ways, sent = [(FreeBandwidth(), bandwidth) for bandwidth in bandwidths], [0.0] * 3
    for numbers, start, size in asked:
        stop = carry([ways[number] for number in numbers], start, size)
        assert stop >= start + size / min(bandwidths[number] for number in numbers) * (1 - 1e-9)
        for number in numbers:
            sent[number] += size
    for (way, bandwidth), size in zip(ways, sent, strict=True):
        assert all(0 <= left <= 1 for left in way.parts)
        assert way.parts[-1] == 1, "some day it is free again"
        used = sum(bandwidth * (1 - left) * (stop - start) for left, (start, stop) in zip(way.parts, pairwise(way.times), strict=False))
        assert used == pytest.approx(size, rel=1e-6, abs=1e-3)


def test_whoever_is_later_takes_what_is_left_before_between_and_after() -> None:
    way = FreeBandwidth()
    assert carry([(way, 100.0)], 1.0, 100) == 2.0
    assert carry([(way, 100.0), (FreeBandwidth(), 50.0)], 3.0, 50) == 4.0
    assert carry([(way, 100.0)], 0.0, 225) == 3.5, "a second before, one between, and half of one at half of the speed"


def test_two_messages_share_a_wire() -> None:
    sends = [(0.0, 0, 2, 1000), (0.0, 1, 3, 1000)]
    assert arrivals(sends, cluster_of(upper=EDGE)) == [1.0, 2.0], "the first takes all of it"
    assert arrivals(sends, cluster_of(upper=1500.0)) == pytest.approx([1.0, 1.5]), "half of it is left, then all"
    assert arrivals([(0.0, 0, 2, 1000), (0.0, 2, 0, 1000)], cluster_of(upper=EDGE)) == [1.0, 1.0], "each direction by itself"
    assert arrivals([(0.0, 0, 1, 1000), (0.0, 2, 3, 1000)], cluster_of(upper=1.0)) == [1.0, 1.0], "below it"


@given(messages(), st.sampled_from([1.0, 1.5, 4.0]))
def test_upper_wires_as_fat_as_all_below_them_are_as_good_as_none(sends: list[tuple[float, int, int, int]], spare: float) -> None:
    fat = cluster_of(upper=2 * EDGE * spare)
    none = replace(fat, network=replace(fat.network, wiring=Wiring()))
    assert arrivals(sends, fat) == pytest.approx(arrivals(sends, none))


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=2), st.permutations([0, 1]))
def test_who_is_first_does_not_matter_to_the_last_over_a_thin_wire(sizes: list[int], order: list[int]) -> None:
    sends = [(0.0, source, 2 + source, sizes[source]) for source in order]
    assert max(arrivals(sends, cluster_of(upper=EDGE / 10))) == pytest.approx(10 * sum(sizes) / EDGE)


@given(networks(), plan_options(), st.sampled_from([1.0, 1e2, 1e3]))
def test_programs_are_never_faster_over_shared_wires(graph: Graph, options: PlanOptions, upper: float) -> None:
    shared = cluster_of(upper)
    program = compiled(graph, shared, options).optimized
    predictor = Predictor(shared)
    timeline = predictor.timeline(program)
    assert timeline.total_s >= Predictor(cluster_of(2 * EDGE)).timeline(program).total_s * (1 - 1e-9)
    names = {node.name for node in shared.nodes}
    sent = {span.message: span.bytes for span in timeline.spans if span.lane == "send" and span.device < 4 and span.peer != shared.host}
    assert sum(load.bytes for load in loads(timeline, predictor.network) if load.way.to in names) == sum(sent.values())
    assert predictor.timeline(program) == timeline
