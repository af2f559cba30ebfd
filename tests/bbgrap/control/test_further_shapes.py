"""Plans for further shapes: what `make simulate` has found of them, with the machines alone."""

from dataclasses import replace

import pytest

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions
from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.planned_variant import SCALED_FROM
from bbgrap.control.planning import EARNED, ONE_NODE
from bbgrap.control.stalls import STUCK_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import MODEL, plan_of, standby_of
from tests.bbgrap.control.wire import joined_wire, ready_wire, standby_wire

AUTO = PlanOptions(planner="auto")


def like(job):
    """What a planner makes: only the plan over all nodes, scaled where it is to be like another."""
    (planned, *_) = plan_of(job).variants
    return ce.Planned(job.job, (planned if not job.bases else replace(planned, report={SCALED_FROM: [[2, 2]]}),))


def large(job):
    """The standby of a model that fits no node."""
    return ce.Planned(job.job, tuple(replace(v, report={"memory_bytes": 2 << 30}) for v in standby_of(job).variants))


def key_of(wire, width):
    call = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (width, 2)}, AUTO, wait=False))
    return wire.until_answered(call).plan


def run(wire, key, deadline_s=30.0):
    return wire.call(lambda n: c.RunModel(n, key, deadline_s, (), ()))


def earn(wire, width):
    """Ask for a shape, one request after the other, until a plan is earned."""
    key = key_of(wire, width)
    for _ in range(EARNED):
        call = run(wire, key)
        assert isinstance(wire.until_answered(call), c.RunResult)
    return key


def served_by(wire):
    """The names of what the requests in flight run on."""
    return [wire.coordinator.loading.by_epoch.get(start.epoch).name for start in wire.started.values()]


def test_a_plan_that_was_asked_for_by_name_answers_what_comes_together():  # 4
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    for _ in range(3):
        wire.run()
    wire.deliver_all()
    assert served_by(wire) == ["rows", "rows", "rows"]


def test_one_that_was_chosen_does_not():
    wire = ready_wire("a", "b", options=AUTO)
    for _ in range(3):
        wire.run()
    wire.deliver_all()
    assert served_by(wire).count("standby") >= 2


def test_copies_on_agents_that_are_stuck_answer_nothing_sooner():  # 68: a request waited for them while its plan was idle
    wire = joined_wire("a", "b", "c", options=AUTO)
    wire.plan = lambda job: ce.Planned(job.job, plan_of(replace(job, options=replace(AUTO, objective="throughput"))).variants[2:])
    wire.until_answered(wire.prepare())
    wire.settle_for(1.0)
    (standby,) = wire.coordinator.standbys.by_model.values()
    on = {name for variant in standby.variants for name in variant.parts}
    assert on == {"a", "b"}
    for name in on:
        identity = wire.coordinator.members.by_name[name].identity
        wire.to_coordinator(ce.FromPeer(identity, m.Heartbeat(standby.variants[0].epoch, 999, 0.9, 1, 0)))
    for _ in range(2):
        wire.run()
    wire.deliver_all()
    assert served_by(wire) == ["single on c", "single on c"]


def test_that_one_node_is_the_fastest_refuses_nothing():  # 316: its agent did not reach the coordinator for a while
    wire = ready_wire("a", options=AUTO)
    key = earn(wire, 3)
    wire.settle_for(0.3)
    assert ONE_NODE in wire.coordinator.planning.plans[key].failed.values()
    wire.cut = {frozenset(("a", COORDINATOR))}
    address = wire.coordinator.members.by_name["a"].join.data_address
    wire.to_coordinator(ce.HostLinkBroken(address))
    wire.deliver_all()
    assert wire.coordinator.links.apart
    call = run(wire, key)
    wire.wait(1.0)
    assert not wire.answers[call]
    wire.cut = set()
    assert isinstance(wire.until_answered(call), c.RunResult)


def test_a_further_shape_of_a_model_that_fits_no_node_is_planned_at_once():
    wire = joined_wire("a", "b", options=AUTO)
    wire.standby = large
    wire.until_answered(wire.prepare())
    call = run(wire, key_of(wire, 5))
    assert isinstance(wire.until_answered(call), c.RunResult)


def test_what_waits_for_another_plan_is_made_when_that_is_there():  # nobody asked for it again
    wire = joined_wire("a", "b", options=AUTO)
    wire.plan = lambda job: None
    earn(wire, 2)
    earn(wire, 3)
    (first,) = wire.jobs
    wire.plan = like
    wire.carry_plan(like(first))
    wire.settle_for(1.5)
    assert [job.bases for job in wire.jobs] == [(), (coordinator_instructions.Base(first.job, 0),)]


def test_what_was_searched_for_although_it_was_to_be_like_another_counts_as_such():
    wire = joined_wire("a", "b", options=AUTO)
    wire.plan = lambda job: ce.Planned(job.job, plan_of(job).variants[:1])
    for width in range(2, MAX_LOADED + 6):
        earn(wire, width)
        wire.settle_for(0.5)
    assert any(job.bases for job in wire.jobs)
    assert len(wire.coordinator.loading.by_epoch) <= MAX_LOADED + 1


def test_an_agent_keeps_what_the_coordinator_has_loaded_on_it():  # from the sixteenth shape on it evicted the standby
    wire = joined_wire("a", "b", options=AUTO)
    wire.plan = like
    for width in range(2, 32):
        earn(wire, width)
        wire.settle_for(0.3)
    assert all(plan.serving for plan in wire.coordinator.planning.plans.values())
    for agent in wire.agents.values():
        assert agent.loaded == {variant.epoch for variant in wire.coordinator.loading.of_member(agent.name)}


def test_fewer_copies_than_agents_are_no_reason_to_plan_nothing_while_requests_come_together():
    wire = joined_wire("a", "b", "c", options=AUTO)
    wire.plan = like
    earn(wire, 2)
    wire.settle_for(1.0)
    key = key_of(wire, 3)
    for _ in range(EARNED + 1):
        run(wire, key)
    wire.wait(0.2)
    assert [bool(job.bases) for job in wire.jobs] == [False, True]


def test_the_newest_plan_stays_where_one_for_the_loss_of_an_agent_is_faster():  # 20943: it was planned anew every other second
    wire = joined_wire("a", "b", "c", options=AUTO)
    wire.standby, wire.plan = large, like
    earn(wire, 2)
    wire.settle_for(2.0)
    (plan,) = wire.coordinator.planning.plans.values()
    spare = min(variant.job for variant in plan.variants if variant.job > plan.latest)
    assert spare < max(variant.job for variant in plan.variants)
    wire.coordinator.planning.made.release_others(plan, spare)
    assert {plan.latest, spare} <= {variant.job for variant in plan.variants}


@pytest.mark.parametrize("is_usual", [True, False])
def test_what_waits_behind_a_segment_runs_elsewhere_if_that_takes_longer_than_usual(is_usual):
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"), seconds={("a", "b"): 1.0 if is_usual else 0.01})
    wire.until_answered(wire.run())
    ((variant,),) = (plan.serving for plan in wire.coordinator.planning.plans.values())
    for _ in range(2):
        wire.run()
    wire.deliver_all()
    running = list(variant.queue.running)
    wire.say("a", m.Heartbeat(variant.epoch, running[0], 2 * STUCK_S, 1))
    assert (list(variant.queue.running) == running) == is_usual


def test_a_plan_with_other_inputs_than_its_standby_is_loaded_without_it():
    """As where a client gives what is a weight in the file."""
    wire = standby_wire()
    wire.plan = plan_of
    prepared = wire.until_answered(wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (2, 2), "w": (2, 2)}, wire.options)))
    assert isinstance(prepared, c.ModelPrepared)
    assert prepared.agents == ("a", "b")


def test_further_shapes_of_a_model_without_a_standby_are_planned_for_their_first_request():
    wire = joined_wire("a", "b", options=AUTO)
    wire.standby = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "no node has room")
    for shape in ((2, 2), (2, 3)):
        message = c.PrepareModel(0, MODEL, {"x": shape}, AUTO, wait=False)
        key = wire.until_answered(wire.call(lambda n, message=message: replace(message, call=n))).plan
        call = wire.call(lambda n, key=key: c.RunModel(n, key, 10.0, (), ()))
        assert isinstance(wire.until_answered(call), c.RunResult)


def test_a_request_with_other_inputs_than_its_standby_hears_why_there_is_no_plan():
    wire = standby_wire()
    wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "it cannot be cut")
    asked = c.PrepareModel(0, MODEL, {"x": (2, 2), "w": (2, 2)}, wire.options, wait=False)
    key = wire.until_answered(wire.call(lambda n: replace(asked, call=n))).plan
    assert wire.until_answered(wire.call(lambda n: c.RunModel(n, key, 10.0, (), ()))).reason == "it cannot be cut"
