"""What is kept of a plan fits what its job made, or is not used: a database may be damaged."""

from dataclasses import replace

import pytest

from bbgrap.planners.options import PlanOptions
from tests.bbgrap.control.wire import joined_wire, ready_wire


@pytest.fixture(scope="module")
def kept():
    wire = ready_wire("a", "b")
    return [(plan, wire.made[job]) for job, plan in wire.kept.items()]


def test_what_a_coordinator_keeps_fits(kept):
    assert {plan.options is None for plan, _ in kept} == {True, False}, "a standby and a plan"
    assert all(plan.fits(made) for plan, made in kept)


ODD = {
    "no such variant": lambda old: replace(old, place=8),
    "a negative one": lambda old: replace(old, place=-1),
    "a node less": lambda old: replace(old, nodes=old.nodes[:-1]),
    "a node more": lambda old: replace(old, nodes=(*old.nodes, ("c", "tcp://c:1"))),
    "a node twice": lambda old: replace(old, nodes=(old.nodes[0],) * 2),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_what_does_not_fit_is_found(kept, change):
    for plan, made in kept:
        assert not replace(plan, variants=tuple(map(change, plan.variants))).fits(made)


def test_a_plan_is_kept_when_it_is_known_which_variant_serves():
    wire = joined_wire("a", "b", options=PlanOptions("auto"))
    wire.prepare()
    while not any(plan.timing for plan in wire.coordinator.planning.plans.values()):
        wire.deliver_all()
        wire.finish_requests()
    assert [plan.options for plan in wire.kept.values()] == [None]
    wire.settle()
    assert [[variant.median_s is not None for variant in plan.variants] for plan in wire.kept.values() if plan.options] == [[True, True]]
