"""What has ended a worker, as the coordinator concludes it."""

import gc
from dataclasses import replace

import pytest

from bbgrap.control import blame
from bbgrap.control import coordinator_events as ce
from bbgrap.control.blame import FIRST_QUARANTINE_S, FORGIVEN_S, LONGEST_QUARANTINE_S
from bbgrap.control.plans import MAX_DEATHS
from bbgrap.control.request import Request
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import MODEL, plan_of
from tests.bbgrap.control.wire import joined_wire, prepare_message, ready_wire, standby_wire


def crashes(wire, name, variant):
    """The worker of an agent ends while it loads a variant."""
    wire.say(name, m.WorkerLost(f"it crashed in {variant.epoch}", 0, 0, m.EndedBy.CRASH, variant.epoch))


def test_plans_of_a_model_that_have_answered_nothing_count_together():  # 2022492: six of them ended twelve workers, and others never loaded
    wire = ready_wire("a", "b")
    for width in (3, 4):
        wire.until_answered(wire.call(lambda n, width=width: c.PrepareModel(n, MODEL, {"x": (width, 2)}, wire.options)))
    proven, one, other = wire.coordinator.planning.plans.values()
    proven.is_proven = True
    for plan in (proven, one):
        crashes(wire, "a", plan.variants[0])
    assert not any(plan.quarantine for plan in (proven, one, other))
    crashes(wire, "b", other.variants[0])
    assert one.quarantine == other.quarantine != ""
    assert not one.variants
    assert not proven.quarantine
    assert proven.variants


def test_who_waits_for_a_plan_that_is_made_is_told_at_once_that_those_for_other_shapes_have_ended_workers():
    wire = joined_wire("a", "b")
    wire.standby = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "no node has room")
    wire.until_answered(wire.prepare())
    (plan,) = wire.coordinator.planning.plans.values()
    wire.plan = lambda _: None
    waits = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options))
    wire.deliver_all()
    for name in "ab":
        assert not wire.answers[waits]
        crashes(wire, name, plan.variants[0])
        wire.deliver_all()
    assert "has ended the workers of agents and is not run again" in wire.answer(waits).reason


@pytest.mark.parametrize("ended_by", [m.EndedBy.MEMORY, m.EndedBy.CRASH])
def test_a_node_without_memory_for_a_model_does_not_take_it_from_another_one_that_has_it(ended_by):
    """A container with too little memory, and a machine with much: nobody answered for a minute."""
    wire = standby_wire()
    (standby,) = wire.coordinator.standbys.by_model.values()
    for _ in range(MAX_DEATHS):
        (well,), (copy,) = ([each for each in standby.variants if name in each.parts] for name in "ab")
        wire.say("b", m.WorkerLost("it ended", 0, 0, ended_by, copy.epoch))
        wire.say("b", m.DeploymentFailed(copy.epoch, "it ended"))
    assert (well in standby.variants) != bool(standby.quarantine) == (ended_by is m.EndedBy.CRASH)


def test_a_worker_that_ended_once_is_not_counted_twice():  # 50194: its control connection repeated what it said
    wire = ready_wire("a", "b")
    (plan,) = wire.coordinator.planning.plans.values()
    lost = m.WorkerLost("out of memory", 0, 0, m.EndedBy.MEMORY, plan.variants[0].epoch)
    wire.say("a", lost)
    wire.say("a", lost)
    assert len(plan.deaths) == 1
    assert not plan.quarantine


@pytest.mark.parametrize("computes", [True, False])
def test_who_reads_of_a_worker_that_ended_learns_what_models_it_had(computes):
    wire = ready_wire("a", "b")
    (plan,) = wire.coordinator.planning.plans.values()
    (copy, *_), (variant, *_) = plan.standby.variants, plan.variants
    wire.told.clear()
    wire.say("a", m.WorkerLost("it ended", copy.epoch if computes else 0, 0, m.EndedBy.CRASH, variant.epoch))
    owned = [f"epoch {epoch} is of {plan.called}" for epoch in ((copy.epoch, variant.epoch) if computes else (variant.epoch,))]
    assert f"the worker of agent 'a' ended: it ended; {'; '.join(owned)}" in wire.told


@pytest.mark.parametrize("before", [m.EndedBy.CRASH, m.EndedBy.MEMORY])
def test_what_wanted_memory_once_is_not_to_blame_for_a_crash_beside_it(before):
    """34115419: another model, computed meanwhile, was the killer; the one that was loaded was run no more."""
    wire = ready_wire("a", "b")
    wire.until_answered(wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options)))
    computed, loaded = wire.coordinator.planning.plans.values()
    computed.is_proven = True
    wire.say("a", m.WorkerLost("it ended", 0, 0, before, loaded.variants[0].epoch))
    assert not loaded.quarantine
    wire.say("b", m.WorkerLost("it crashed", computed.variants[0].epoch, 77, m.EndedBy.CRASH, loaded.variants[0].epoch))
    assert bool(loaded.quarantine) == (before is m.EndedBy.CRASH)
    assert not computed.quarantine


@pytest.mark.parametrize("ended_by", [m.EndedBy.CRASH, m.EndedBy.MEMORY])
def test_what_crashes_again_when_it_is_loaded_alone_has_ended_the_worker_before_as_well(ended_by):
    """A third worker was ended by it: the first death, in doubt, was counted for nobody."""
    wire = ready_wire("a", "b")
    wire.until_answered(wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options)))
    computed, loaded = wire.coordinator.planning.plans.values()
    computed.is_proven = True
    wire.say("a", m.WorkerLost("it ended", computed.variants[0].epoch, 77, ended_by, loaded.variants[0].epoch))
    assert not loaded.deaths
    wire.say("a", m.WorkerLost("it ended again", 0, 0, ended_by, loaded.variants[0].epoch))
    assert bool(loaded.quarantine) == (ended_by is m.EndedBy.CRASH)
    assert not computed.quarantine
    assert not computed.deaths


def test_what_the_next_worker_has_loaded_before_it_computed_has_not_ended_the_last_one():
    """38051316: it was not said to be loaded, for its peers had lost their workers, too; one request ended eight workers."""
    wire = ready_wire("a", "b")
    for width in (3, 4):
        wire.until_answered(wire.call(lambda n, width=width: c.PrepareModel(n, MODEL, {"x": (width, 2)}, wire.options)))
    computed, one, other = wire.coordinator.planning.plans.values()
    computed.is_proven = True
    for request, loaded in ((77, one), (78, other)):
        assert not computed.deaths
        wire.say("a", m.WorkerLost("it crashed", computed.variants[0].epoch, request, m.EndedBy.CRASH, loaded.variants[0].epoch))
    assert len(computed.deaths) == 1
    assert not one.deaths
    assert not other.deaths


def ends_two_workers(wire):
    """Run a request that ends the worker of whoever computes it; return the reason that its client is told."""
    call = wire.run()
    for _ in range(2):
        wire.deliver_all()
        (start,) = wire.started.values()
        (name,) = wire.nodes_of(start)
        wire.say(name, m.WorkerLost("out of memory", start.epoch, start.request, m.EndedBy.MEMORY))
        wire.say(name, m.Deployed(start.epoch))
    wire.deliver_all()
    return wire.answer(call).reason


def test_what_has_answered_before_is_tried_again_after_a_while_longer_each_time():
    """A request may have been too large for these machines: the model was dead for everybody, until the coordinator lost its state."""
    wire = standby_wire()
    wire.until_answered(wire.run())
    for seconds in (FIRST_QUARANTINE_S, 4 * FIRST_QUARANTINE_S):
        assert ends_two_workers(wire).endswith(f"since it has answered before, only for {seconds:g} s")
        loaded = dict(wire.coordinator.loading.by_epoch)
        refused = wire.run()
        wire.deliver_all()
        assert "is not run again" in wire.answer(refused).reason
        wire.wait(seconds - 1.0)
        refused = wire.run()
        wire.deliver_all()
        assert "is not run again" in wire.answer(refused).reason
        wire.wait(1.5)
        assert isinstance(wire.until_answered(wire.run()), c.RunResult)
        assert wire.coordinator.loading.by_epoch == loaded


def end_a_worker(wire):
    """Let a request want more memory than there is, once; it is answered by its second run."""
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    (name,) = wire.nodes_of(start)
    wire.say(name, m.WorkerLost("out of memory", start.epoch, start.request, m.EndedBy.MEMORY))
    wire.say(name, m.Deployed(start.epoch))
    return call


def test_a_run_that_ends_the_workers_of_all_its_agents_counts_once():
    wire = ready_wire("a", "b")
    (plan,) = wire.coordinator.planning.plans.values()
    (variant,) = plan.serving
    wire.until_answered(wire.run())
    call = wire.run()
    wire.deliver_all()
    (number,) = variant.queue.running
    for name in variant.parts:
        wire.say(name, m.WorkerLost("it crashed", variant.epoch, number, m.EndedBy.CRASH))
    assert (len(variant.parts), len(plan.deaths), plan.quarantine) == (2, 1, "")
    assert isinstance(wire.until_answered(call), c.RunResult), "it runs once more"


@pytest.mark.parametrize("is_long", [False, True])
def test_a_model_that_has_ended_no_worker_for_long_begins_anew(monkeypatch, is_long):
    """Two requests of two months ended a worker each, and for an hour nobody was answered."""
    assert FORGIVEN_S > LONGEST_QUARANTINE_S, "what is in quarantine ends none"
    monkeypatch.setattr(blame, "FORGIVEN_S", 10.0)
    wire = standby_wire()
    wire.until_answered(wire.run())
    (standby,) = wire.coordinator.standbys.by_model.values()
    assert isinstance(wire.until_answered(end_a_worker(wire)), c.RunResult)
    standby.quarantines = 3
    wire.settle_for(12.0 if is_long else 8.0)
    assert isinstance(wire.until_answered(end_a_worker(wire)), c.RunResult) == is_long
    assert (bool(standby.quarantine), standby.quarantines) == ((False, 0) if is_long else (True, 4))


def test_a_plan_is_not_tried_again_sooner_since_its_standby_is():
    wire = ready_wire("a", "b")
    (plan,), (standby,) = wire.coordinator.planning.plans.values(), wire.coordinator.standbys.by_model.values()
    plan.is_proven = standby.is_proven = True
    plan.quarantine, plan.quarantine_ends = "it has ended workers twice", wire.now + 4 * FIRST_QUARANTINE_S
    ends = plan.quarantine_ends
    for request in (77, 78):
        wire.say("a", m.WorkerLost("it crashed", standby.variants[0].epoch, request, m.EndedBy.CRASH))
    assert standby.quarantine
    assert (plan.quarantine, plan.quarantine_ends) == ("it has ended workers twice", ends)


def test_that_it_is_not_run_for_a_while_ends_with_the_coordinator():
    wire = standby_wire()
    wire.until_answered(wire.run())
    assert "is not run again" in ends_two_workers(wire)
    wire.restart_coordinator()
    wire.until_answered(wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False)))
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


@pytest.mark.parametrize("answered", [False, True])
def test_loads_for_which_memory_is_missing_do_not_condemn_what_answers_elsewhere(answered):
    wire = standby_wire()
    if answered:
        wire.until_answered(wire.run())
    (standby,) = wire.coordinator.standbys.by_model.values()
    epoch = standby.variants[0].epoch
    for name in "ab":
        wire.say(name, m.WorkerLost("out of memory", 0, 0, m.EndedBy.MEMORY, epoch))
    assert bool(standby.quarantine) != answered


@pytest.mark.parametrize("ended_by", [m.EndedBy.MEMORY, m.EndedBy.CRASH])
def test_a_model_that_no_node_can_load_whole_for_want_of_memory_is_planned_in_parts(ended_by):
    """Maps inside a model count for plans alone: its standby ended two workers, and whoever asked was refused though a plan fitted."""
    wire = standby_wire()
    (standby,) = wire.coordinator.standbys.by_model.values()
    run = wire.run()
    for name in "ab":
        (epoch,) = [variant.epoch for variant in standby.variants if name in variant.parts]
        wire.say(name, m.WorkerLost("out of memory", 0, 0, ended_by, epoch))
    assert standby.quarantine
    wire.settle()
    if ended_by is m.EndedBy.CRASH:
        assert "is not run again" in wire.answer(run).reason
        return
    later = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options))
    wire.plan = plan_of
    wire.carry_plan(plan_of(wire.jobs[-1]))
    assert isinstance(wire.until_answered(run), c.RunResult)
    assert isinstance(wire.until_answered(later), c.ModelPrepared)


def test_a_request_that_has_ended_one_worker_each_on_the_plan_and_its_standby_is_not_run_again():
    wire = ready_wire("a", "b")
    wire.until_answered(wire.run())
    plans = (*wire.coordinator.planning.plans.values(), *wire.coordinator.standbys.by_model.values())
    for plan in plans:
        plan.is_proven = True
    call, epochs = wire.run(), []
    for _ in range(2):
        wire.deliver_all()
        (start,) = wire.started.values()
        epochs.append(start.epoch)
        name = wire.nodes_of(start)[0]
        wire.say(name, m.WorkerLost("it crashed", start.epoch, start.request, m.EndedBy.CRASH))
        for variant in plans[1].variants:
            if name in variant.parts:
                wire.say(name, m.Deployed(variant.epoch))
    wire.deliver_all()
    assert [any(variant.epoch == epoch for variant in plan.variants) for plan, epoch in zip(plans, epochs, strict=True)] == [True, True]
    assert "has ended the workers of agents and is not run again: 'a': it crashed; 'a': it crashed" in wire.answer(call).reason
    assert not any(plan.quarantine for plan in plans)


def test_a_request_is_not_kept_for_a_doubt_of_an_agent_that_is_gone():
    """Each machine that was short of memory, and never came back, kept a request with all its inputs."""
    wire = ready_wire("a", "b")
    wire.until_answered(wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options)))
    computed, loaded = wire.coordinator.planning.plans.values()
    call = wire.run(payload=(b"inputs of doubt",))
    wire.deliver_all()
    (request,) = wire.started
    ended = m.WorkerLost("out of memory", computed.variants[0].epoch, request, m.EndedBy.MEMORY, loaded.variants[0].epoch)
    wire.say("a", ended)
    wire.say("a", m.Leave("for good"))
    wire.until_answered(call)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Request) and each.message.payload == (b"inputs of doubt",)]


def test_a_request_that_has_ended_a_worker_waits_for_that_agents_copy_rather_than_run_on_a_plan_with_another():
    wire = ready_wire("a", "b")
    wire.until_answered(wire.run())
    (plan,), (standby,) = wire.coordinator.planning.plans.values(), wire.coordinator.standbys.by_model.values()
    (over_both,) = (variant for variant in plan.variants if set(variant.parts) == {"a", "b"})
    (copy,) = (variant for variant in standby.variants if set(variant.parts) == {"a"})
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    assert start.epoch == over_both.epoch
    wire.say("a", m.WorkerLost("it crashed", start.epoch, start.request, m.EndedBy.CRASH))
    wire.say("a", m.Deployed(over_both.epoch))
    wire.deliver_all()
    assert over_both.is_ready
    assert not wire.started
    wire.say("a", m.Deployed(copy.epoch))
    wire.deliver_all()
    assert [again.epoch for again in wire.started.values()] == [copy.epoch]
    assert isinstance(wire.until_answered(call), c.RunResult)


def run_on_a_copy(wire, deadline_s):
    """Start a request on a standby whose plan goes on; return its call, what was started, and what a worker's end by it is."""
    wire.until_answered(wire.run())
    (plan,) = wire.coordinator.planning.plans.values()
    plan.serves = False
    call = wire.run(deadline_s)
    wire.deliver_all()
    (start,) = wire.started.values()
    plan.serves = plan.is_proven = True

    def ends(agent, request):
        wire.say(agent, m.WorkerLost("it crashed", start.epoch, request, m.EndedBy.CRASH))
        for variant in plan.variants:
            wire.say(agent, m.Deployed(variant.epoch))

    (name,) = wire.nodes_of(start)
    return call, start, ends, (name, *({"a", "b"} - {name}))


def test_a_request_that_ends_two_workers_of_one_copy_is_not_run_again_when_its_model_may_be():
    wire = ready_wire("a", "b")
    call, start, ends, (name, _) = run_on_a_copy(wire, 10 * FIRST_QUARANTINE_S)
    for _ in range(MAX_DEATHS):
        (start,) = wire.started.values()
        ends(name, start.request)
        wire.say(name, m.Deployed(start.epoch))
        wire.deliver_all()
    assert "has ended the workers of agents and is not run again" in wire.answer(call).reason


def test_a_request_that_ends_two_workers_is_not_run_again_though_its_model_is_not_run_anyway():
    wire = ready_wire("a", "b")
    call, start, ends, (name, other) = run_on_a_copy(wire, 300.0)
    ends(other, 77)
    ends(other, 78)
    ends(name, start.request)
    ends(other, start.request)
    wire.deliver_all()
    assert f"has ended the workers of agents and is not run again: '{name}': it crashed; '{other}': it crashed" in wire.answer(call).reason


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("deadline_s", [40.0, 300.0])
def test_a_request_that_has_ended_a_worker_does_not_wait_for_a_model_that_is_not_run_before_its_deadline(deadline_s, is_first):
    """37736634: its plan went on, and it waited for the copy where it had ended a worker until its deadline."""
    wire = ready_wire("a", "b")
    call, start, ends, (name, other) = run_on_a_copy(wire, deadline_s)
    (plan,), (standby,) = wire.coordinator.planning.plans.values(), wire.coordinator.standbys.by_model.values()
    if is_first:
        ends(name, start.request)
    ends(other, 77)
    ends(other, 78)
    if not is_first:
        ends(name, start.request)
    wire.deliver_all()
    assert standby.quarantine
    assert not plan.quarantine
    if deadline_s < FIRST_QUARANTINE_S:
        assert "has ended a worker: this model, whole, has ended the workers of agents and is not run again" in wire.answer(call).reason
    else:
        assert not wire.answers.get(call)
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


def test_what_memory_was_missing_for_is_tried_again_after_a_while_for_whom_asks():
    """Two workers without memory took a model from everybody, until the coordinator lost its state."""
    wire = standby_wire()
    (standby,) = wire.coordinator.standbys.by_model.values()
    for seconds in (FIRST_QUARANTINE_S, 4 * FIRST_QUARANTINE_S):
        assert ends_two_workers(wire).endswith(f"since there may be more memory later, only for {seconds:g} s")
        assert not standby.variants
        refused = wire.run()
        wire.deliver_all()
        assert "out of memory" in wire.answer(refused).reason
        wire.wait(seconds + 1.0)
        assert not standby.quarantine
        assert not standby.variants  # nobody has asked
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)
    assert [tuple(variant.parts) for variant in standby.variants] == [("a",), ("b",)]


def test_what_has_ended_a_worker_otherwise_is_not_tried_again_though_memory_was_missing_too():
    wire = standby_wire()
    (standby,) = wire.coordinator.standbys.by_model.values()
    for name, ended_by in (("a", m.EndedBy.MEMORY), ("b", m.EndedBy.CRASH)):
        wire.say(name, m.WorkerLost("it ended", 0, 0, ended_by, standby.variants[0].epoch))
    assert standby.is_condemned
