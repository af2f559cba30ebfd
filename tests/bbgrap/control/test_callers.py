"""Stories of those who wait for a plan."""

from dataclasses import replace

from bbgrap.control import coordinator_events as ce
from bbgrap.control.callers import CALLER_UNASKED_S
from bbgrap.control.coordinator_instructions import ForgetPlan
from bbgrap.control.planning import MAX_PLANS
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.tiny_plans import plan_of, standby_of
from tests.bbgrap.control.wire import CLIENT, joined_wire, prepare_message


def test_a_caller_hears_at_its_deadline_that_there_is_no_plan_yet():
    wire = joined_wire("a")
    wire.plan = lambda _: None
    hasty, patient = (
        wire.call(lambda n, seconds=seconds: replace(prepare_message(n, wire.options), deadline_s=seconds)) for seconds in (0.5, 2.0)
    )
    wire.wait(1.0)
    answer = wire.answer(hasty)
    assert (answer.fault, answer.reason.partition(": ")[2]) == (
        c.Fault.EXECUTION,
        "the deadline passed before it served; what was done last: planning",
    )
    (plan,) = wire.coordinator.planning.plans.values()
    assert "plan of model" in answer.reason
    assert list(plan.callers) == [(CLIENT, patient)]
    assert wire.cancelled == []
    wire.wait(1.5)
    assert isinstance(wire.answer(patient), c.Failed)
    assert wire.cancelled == [wire.jobs[-1].job]
    # Its answer was on its way: what it has made is forgotten, nothing else happens.
    assert wire.coordinator.handle(plan_of(wire.jobs[-1]), wire.now) == [ForgetPlan(wire.cancelled[0])]
    # Asked again, it is planned again.
    again = wire.prepare()
    wire.deliver_all()
    wire.carry_plan(plan_of(wire.jobs[-1]))
    assert isinstance(wire.until_answered(again), c.ModelPrepared)


def test_a_caller_is_told_why_there_is_no_plan():
    wire = joined_wire("a")
    wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "it cannot be cut")
    answer = wire.until_answered(wire.prepare())
    assert (answer.fault, answer.reason) == (c.Fault.PLAN, "it cannot be cut")


def test_callers_that_are_gone_are_forgotten_and_their_plans_with_them():
    wire = joined_wire("a")
    wire.plan = lambda _: None
    plans = wire.coordinator.planning.plans
    for n in range(MAX_PLANS + 10):
        message = replace(prepare_message(n, wire.options), shapes={"x": (3, n)}, deadline_s=1e9)
        wire.to_coordinator(ce.FromPeer(b"gone", message))
    patient = wire.call(lambda n: replace(prepare_message(n, wire.options), deadline_s=1e9))
    wire.wait(CALLER_UNASKED_S + 1.0)
    assert len(plans) == MAX_PLANS
    (plan,) = [plan for plan in plans.values() if plan.callers or plan.job]
    assert list(plan.callers) == [(CLIENT, patient)]
    assert wire.cancelled == [job.job for job in wire.jobs if job.job != plan.job.number]
    assert not wire.answers[patient]


def test_planners_know_whose_jobs_they_do():
    wire = joined_wire("a", "b")
    standbys = []
    wire.standby = lambda job: standbys.append(job) or standby_of(job)
    wire.until_answered(wire.prepare())
    assert [job.client for job in (*standbys, *wire.jobs)] == [CLIENT, CLIENT]
