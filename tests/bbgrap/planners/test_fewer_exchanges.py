"""Phases are joined where computing a halo twice is cheaper than an exchange, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, Network, Speed
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.fewer_exchanges import join_phases
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import check_plan
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import statistics_of
from bbgrap.work import KINDS
from bbgrap.zoo import build
from tests.program_laws import compile_checked

SLOW = Network(Link(1e12, 1.0))
FAST = Network(Link(1e15, 0.0))


IDLE = ("message", "segment")
NO_TIME = tuple(Speed(kind, 0.0, 0.0, 1e15 if kind in IDLE else 1.0) for kind in KINDS)
"""A machine that exchanges at once and takes for ever to compute."""


def plans(name, network, work=()):
    graph = build(name)
    cluster = Cluster(tuple(NodeProfile(f"node{n}", work=work) for n in range(2)), network)
    descriptions = all_descriptions(graph)
    rows, grown = (make_plan(graph, cluster, PlanOptions(planner), descriptions) for planner in ("bbgrap", "fewer-exchanges"))
    return rows, grown, descriptions


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2"])
def test_where_messages_take_long_tiles_grow_until_hardly_any_is_left(name):
    rows, grown, descriptions = plans(name, SLOW)
    assert check_plan(grown, descriptions) == ()
    before, after = (statistics_of(compile_checked(plan, descriptions).optimized) for plan in (rows, grown))
    assert after.transfers < before.transfers / 2
    for node in rows.graph.nodes:
        for tile, larger in zip(rows.tiles[node.name], grown.tiles[node.name], strict=True):
            assert larger.device == tile.device
            assert larger.region.issuperset(tile.region)


def test_machines_without_time_to_spare_keep_their_tiles():
    rows, grown, _ = plans("tiny", FAST, NO_TIME)
    assert grown.tiles == rows.tiles


def test_a_plan_without_exchanges_is_its_own():
    graph = build("tiny")
    descriptions = all_descriptions(graph)
    cluster = replace(Cluster.even(2), network=SLOW)
    batch = make_plan(graph, cluster, PlanOptions(split="batch"), descriptions)
    assert join_phases(Pieces(graph, descriptions), cluster, batch.tiles) == dict(batch.tiles)


def test_the_same_question_has_the_same_answer():
    assert plans("tiny", SLOW)[1].tiles == plans("tiny", SLOW)[1].tiles
