"""Where no node has room for a model: plans over all agents but one are loaded beforehand."""

import json
from dataclasses import replace

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions
from bbgrap.control.planning import SETTLE_S
from bbgrap.control.plans import IN_USE_S, MadeAhead
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.tiny_plans import plan_of, standby_of
from tests.bbgrap.control.wire import joined_wire, prepare_message

AUTO = PlanOptions(planner="auto")


def large_wire(*names, plan=plan_of, wait=True):
    wire = joined_wire(*names, options=AUTO, seconds={(name,): 0.001 for name in names})
    made = standby_of(coordinator_instructions.StartStandby(1, ()))
    large = replace(made.variants[0], report={"planner": "standby", "memory_bytes": 1 << 50})
    wire.standby = lambda job: ce.Planned(job.job, (large,))
    wire.plan = plan
    if wait:
        wire.prepare()
    else:
        wire.call(lambda number: replace(prepare_message(number, AUTO), wait=False))
    wire.settle()
    wire.settle_for(4.0)
    return wire


def report(wire):
    call = wire.prepare()
    wire.settle()
    return json.loads(wire.answer(call).report)


def test_a_request_that_waits_for_a_plan_for_long_gets_one_over_those_that_are_left():
    wire = large_wire("a", "b", "c", plan=lambda job: None if len(job.cluster.nodes) == 3 else plan_of(job), wait=False)
    call = wire.run(deadline_s=300.0)
    for _ in range(int(5 * (IN_USE_S + 2))):
        wire.pass_time(0.2)
        wire.deliver_all()
    wire.crash(wire.agent("c"))
    assert isinstance(wire.until_answered(call), c.RunResult)


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_request_that_loses_an_agent_runs_on_the_plan_without_it_and_nothing_is_planned_for_it(lost):
    wire = large_wire("a", "b", "c")
    jobs = len(wire.jobs)
    assert {len(job.cluster.nodes) for job in wire.jobs} == {2, 3}
    call = wire.run()
    wire.deliver_all()
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == lost))
    wire.wait(1.0)
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert {len(job.cluster.nodes) for job in wire.jobs[jobs:]} == {1}, "only the next loss is planned for"


def test_what_is_made_for_all_agents_and_for_each_loss_stays_over_one():
    wire = large_wire("a", "b", "c")
    jobs = len(wire.jobs)
    wire.crash(wire.agent("c"))
    for number in range(30):
        if number == 15:
            wire.add_agent("c")
        wire.wait(1.0)
        assert isinstance(wire.until_answered(wire.run()), c.RunResult)
    assert report(wire)["nodes_used"] == ["a", "b", "c"]
    assert {len(job.cluster.nodes) for job in wire.jobs[jobs:]} == {1}, "only the next losses were planned for"


def beside_nothing():
    """Plan for all agents; for fewer only when that is asked for again, with the room that the plan over all leaves."""
    asked = set()

    def plan(job):
        names = tuple(node.name for node in job.cluster.nodes)
        if len(names) == 3 or names in asked:
            made = plan_of(job)
            return replace(made, variants=made.variants[:1])  # none on one node
        asked.add(names)
        return ce.PlanFailed(job.job, c.Fault.PLAN, "it fits no two nodes beside what serves")

    return plan


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_what_has_no_room_beside_what_serves_is_made_and_loaded_when_an_agent_is_lost(lost):
    wire = large_wire("a", "b", "c", plan=beside_nothing())
    assert report(wire)["uncovered"] == dict.fromkeys("abc", "it fits no two nodes beside what serves")
    assert all(any(f"a plan without '{name}' is made, and is loaded when that is lost" in text for text in wire.told) for name in "abc")
    jobs = len(wire.jobs)
    call = wire.run()
    wire.deliver_all()
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == lost))
    assert isinstance(wire.until_answered(call), c.RunResult)
    wire.settle()
    assert {len(job.cluster.nodes) for job in wire.jobs[jobs:]} == {1}, "only the next loss is planned for"
    (plan,) = (plan for plan in wire.coordinator.planning.plans.values() if not plan.is_standby)
    assert plan.serving[0].parts.keys() == {*"abc"} - {lost}
    assert not any(lost in made.job.names for made in plan.held.values()), "what was made over it is of the past"


def test_what_is_held_for_a_loss_is_not_loaded_when_an_agent_comes():
    wire = large_wire("a", "b", "c", plan=beside_nothing())
    (plan,) = wire.coordinator.planning.plans.values()
    before, wire.plan = list(plan.variants), lambda job: None
    wire.add_agent("d")
    wire.until_answered(wire.run())
    wire.settle_for(SETTLE_S + 1.0)
    assert len(wire.jobs[-1].cluster.nodes) == 3, "the next loss of an agent that serves"
    wire.carry_plan(ce.PlanFailed(wire.jobs[-1].job, c.Fault.PLAN, "it fits no three nodes"))
    wire.settle()
    assert plan.variants == before
    assert len(wire.jobs[-1].cluster.nodes) == 4


def test_for_agents_that_are_gone_for_good_nothing_is_held():
    wire = large_wire("a", "b", "c", plan=beside_nothing())
    planning = wire.coordinator.planning
    (plan,) = (plan for plan in planning.plans.values() if not plan.is_standby)
    before = plan.held["b"]
    plan.held["gone"] = MadeAhead(replace(plan.held["a"].job, number=98), before.variants)
    done = planning.made._hold_for_loss(plan, MadeAhead(replace(before.job, number=99), before.variants))
    forgotten = {instruction.job for instruction in done if isinstance(instruction, coordinator_instructions.ForgetPlan)}
    assert forgotten == {98, before.job.number}
    assert plan.held.keys() == {*"abc"}


def test_what_is_held_for_a_loss_goes_with_its_plan():
    wire = large_wire("a", "b", "c", plan=beside_nothing())
    planning = wire.coordinator.planning
    (plan,) = (plan for plan in planning.plans.values() if not plan.is_standby)
    held = {made.job.number for made in plan.held.values()}
    assert len(held) == 3
    assert {instruction.job for instruction in planning.made.forget_held(plan)} == held
    assert not plan.held


def test_what_is_not_covered_is_said():
    def only_over_all(job):
        return plan_of(job) if len(job.cluster.nodes) == 3 else ce.PlanFailed(job.job, c.Fault.PLAN, "it fits no two nodes")

    wire = large_wire("a", "b", "c", plan=only_over_all)
    assert report(wire)["uncovered"] == dict.fromkeys("abc", "it fits no two nodes")
    assert sum("requests wait until there is a plan without it: it fits no two nodes" in text for text in wire.told) == 3


def test_a_single_agent_cannot_be_covered():
    wire = large_wire("a")
    assert report(wire)["uncovered"] == {"a": "no other agent is there"}
