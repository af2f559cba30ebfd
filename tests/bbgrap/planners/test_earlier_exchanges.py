"""What is smaller is exchanged, and what is made of it is computed by everybody, where that is cheaper, and only there."""

from __future__ import annotations

import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, Network, Speed
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import check_plan
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import statistics_of
from bbgrap.work import KINDS
from bbgrap.zoo.vit import vit
from tests.program_laws import compile_checked

BLOCKS = vit("blocks", depth=3, width=64, heads=4, size=224, patch=16, classes=10)
DESCRIPTIONS = all_descriptions(BLOCKS)
CORE = (Speed("matmul", 1e9, 1e12, 1e12, 0.0), *(Speed(kind, 1e12, 1e12, 1e12, 0.0) for kind in KINDS if kind != "matmul"))
"""Of a processor that hardly does anything but multiply matrices: to send a row takes as long as two or three products of its own."""


def planned(planner, link, nodes=2):
    cluster = Cluster(tuple(NodeProfile(f"node{number}", work=CORE) for number in range(nodes)), Network(link))
    plan = make_plan(BLOCKS, cluster, PlanOptions(planner), DESCRIPTIONS)
    assert check_plan(plan, DESCRIPTIONS) == ()
    return plan, statistics_of(compile_checked(plan, DESCRIPTIONS).optimized)


@pytest.mark.parametrize("nodes", [2, 3])
def test_over_a_slow_link_what_keys_and_values_are_made_of_is_sent_instead_of_both(nodes):
    """One exchange a block as before, of rows of the normalised tokens: of all others', to everybody."""
    slow = Link(5e6, 1e-4)
    rows, before = planned("bbgrap", slow, nodes)
    grown, after = planned("fewer-exchanges", slow, nodes)
    assert 0 < 2 * after.bytes <= before.bytes
    assert after.transfers >= before.transfers - nodes * (nodes - 1)
    larger = {name for name, tiles in grown.tiles.items() if tiles != rows.tiles[name]}
    assert larger
    assert not any("query" in name or "scores" in name or "mlp" in name for name in larger)


def test_over_a_fast_link_tiles_stay_as_they_are():
    fast = Link(1e12, 0.0)
    assert planned("fewer-exchanges", fast)[0].tiles == planned("bbgrap", fast)[0].tiles
