"""Nodes are measured for clients while no plan is made, loaded or timed; what is as it was changes no plan."""

from dataclasses import replace

import pytest

from bbgrap.cluster.types import Speed
from bbgrap.control.planning import SETTLE_S
from bbgrap.control.profiling import QUIET_WITHIN_S
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.test_profiling import answer, measure, measuring
from tests.bbgrap.control.test_spare_plans import large_wire
from tests.bbgrap.control.tiny_plans import plan_of
from tests.bbgrap.control.wire import Wire, joined_wire, ready_wire


def finish_all(wire: Wire, flops: float = 1e9) -> None:
    """Let everybody answer what is asked, as fast as that."""
    while names := measuring(wire):
        agent = wire.agent(next(iter(names)))
        told = answer(agent)
        if isinstance(told, m.Measured):
            told = replace(told, profile=replace(told.profile, work=(Speed("matmul", flops),)))
        wire.to_agent(agent, told)
        wire.settle()


def test_a_call_waits_until_a_plan_is_made_loaded_and_timed_but_not_for_ever():
    """What was measured beside that was too slow by half, and all models got plans of it."""
    wire = joined_wire("a", "b")
    made, plan = [], wire.plan
    wire.plan = lambda job: made.append(job)
    wire.prepare()
    wire.settle_for(0.5)
    (job,) = made
    nothing_known, call = measure(wire, again=False), measure(wire)
    wire.settle_for(QUIET_WITHIN_S - 1.0)
    assert measuring(wire) == {}
    wire.carry_plan(plan(job))
    wire.settle_for(2.0)
    assert measuring(wire) == dict.fromkeys("ab", "Measure")
    finish_all(wire)
    assert all(isinstance(wire.answer(number), c.Profiles) for number in (nothing_known, call))
    wire.run()
    wire.settle_for(2 * SETTLE_S)
    assert len(made) == 2, "the plan is made anew with what is known now"
    late, known_already = measure(wire), measure(wire, again=False)
    wire.settle_for(QUIET_WITHIN_S + 1.0)
    assert measuring(wire) == dict.fromkeys("ab", "Measure")
    finish_all(wire)
    assert wire.answer(known_already) == c.Profiles(known_already, ())
    assert wire.answer(late)


def test_no_plan_is_begun_while_nodes_are_measured_for_a_client():
    wire = joined_wire("a", "b")
    call = measure(wire)
    prepared = wire.prepare()
    wire.settle_for(3.0)
    assert wire.jobs == []
    finish_all(wire)
    assert wire.answer(call)
    wire.until_answered(prepared)
    assert [{node.work for node in job.cluster.nodes} for job in wire.jobs] == [{(Speed("matmul", 1e9),)}]


@pytest.mark.parametrize(("flops", "is_news"), [(1.2e9, True), (0.8e9, True), (1.05e9, False), (0.95e9, False)])
def test_plans_are_not_made_anew_where_nodes_are_as_fast_as_they_were(flops, is_news):
    """Every call made all plans anew, which were loaded and timed beside each other."""
    wire = ready_wire("a", "b")
    for speed in (1e9, flops):
        measure(wire)
        finish_all(wire, speed)
        wire.until_answered(wire.run())
        wire.settle_for(2 * SETTLE_S)
    assert len(wire.jobs) == 2 + is_news


def test_no_plan_for_a_loss_is_begun_either():
    held = []
    wire = large_wire("a", "b", "c", plan=lambda job: plan_of(job) if len(job.cluster.nodes) == 3 else held.append(job))
    assert len(held) == 1
    call = measure(wire)
    wire.settle_for(QUIET_WITHIN_S + 1.0)
    assert set(measuring(wire)) == {"a", "b", "c"}
    wire.carry_plan(plan_of(held[0]))
    wire.settle_for(2.0)
    assert len(held) == 1
    finish_all(wire)
    assert wire.answer(call)
    wire.settle_for(2.0)
    assert len(held) > 1


def test_how_long_a_call_waited_that_was_given_up_is_nothing_to_the_next_one():
    wire = joined_wire("a", "b")
    wire.plan = lambda _: None
    wire.prepare()
    wire.settle_for(0.5)
    first = measure(wire)
    wire.settle_for(1.0)
    wire.carry_client(wire.client.cancel(first))
    wire.settle_for(2 * QUIET_WITHIN_S)
    measure(wire)
    wire.settle_for(0.5 * QUIET_WITHIN_S)
    assert measuring(wire) == {}
    wire.settle_for(QUIET_WITHIN_S)
    assert measuring(wire) == dict.fromkeys("ab", "Measure")
