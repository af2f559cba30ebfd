"""Stories that real processes under real faults have told (`make campaign`, `make bench-recovery`), with the machines alone."""

from dataclasses import replace

import pytest

from bbgrap.control import agent_events as ae
from bbgrap.control import client as cm
from bbgrap.control import coordinator_events as ce
from bbgrap.control.request_recovery import HOLD_S
from bbgrap.control.stalls import OVERTAKEN
from bbgrap.control.uploads import offer_digest
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import FILE, MODEL
from tests.bbgrap.control.wire import joined_wire, prepare_message, ready_wire, standby_wire


def started(wire):
    """The one request that runs, and the names of its agents."""
    (start,) = wire.started.values()
    return start, tuple(peer.name for peer in wire.parts[start.epoch])


def link_breaks(wire, name):
    member = wire.coordinator.members.by_name[name]
    wire.to_coordinator(ce.HostLinkBroken(member.join.data_address))


def test_what_ends_a_worker_is_not_run_elsewhere_although_its_connection_breaks_before_its_nanny_speaks():
    wire = standby_wire()
    wire.run()
    wire.deliver_all()
    start, (name,) = started(wire)
    link_breaks(wire, name)
    wire.pass_time(0.1)
    assert not wire.started
    wire.say(name, m.WorkerLost("the worker was ended by SIGFPE", start.epoch, start.request, ended_by=m.EndedBy.CRASH))
    for _ in range(5):
        wire.pass_time(0.1)
        assert all(wire.parts[other.epoch] == wire.parts[start.epoch] for other in wire.started.values())


def test_the_second_worker_that_a_request_ends_is_the_last_one():
    wire = standby_wire()
    call = wire.run()
    for breaks_first in (True, False):
        wire.deliver_all()
        start, (name,) = started(wire)
        if breaks_first:
            link_breaks(wire, name)
        wire.say(name, m.WorkerLost("the worker was ended by SIGFPE", start.epoch, start.request, ended_by=m.EndedBy.CRASH))
        wire.wait(0.5)
        if breaks_first:
            wire.say(name, m.Deployed(start.epoch))
    assert "is not run again" in wire.answer(call).reason


def test_what_ran_on_a_worker_that_was_killed_runs_elsewhere_at_once():
    wire = standby_wire()
    wire.run()
    wire.deliver_all()
    start, (name,) = started(wire)
    link_breaks(wire, name)
    wire.say(name, m.WorkerLost("the worker was ended by SIGKILL", start.epoch, start.request, ended_by=m.EndedBy.OUTSIDE))
    assert started(wire)[1] != (name,)


def test_what_ran_over_a_connection_that_broke_for_another_reason_runs_again_shortly():
    wire = standby_wire()
    wire.run()
    wire.deliver_all()
    link_breaks(wire, started(wire)[1][0])
    assert not wire.started
    wire.pass_time(HOLD_S + 0.1)
    assert started(wire)


def test_while_one_request_is_held_others_run():
    wire = standby_wire()
    wire.run()
    wire.deliver_all()
    link_breaks(wire, started(wire)[1][0])
    wire.run()
    wire.deliver_all()
    assert started(wire)


@pytest.mark.parametrize("loads", [True, False])
def test_an_agent_whose_worker_starts_anew_is_not_taken_for_unreachable(loads):
    wire = ready_wire("a", "b")
    epochs = set(wire.coordinator.loading.by_epoch)
    if loads:
        wire.say("a", m.WorkerLost("the worker was ended by SIGKILL", 0, 0, ended_by=m.EndedBy.OUTSIDE))
    wire.cut = {frozenset(("a", "b"))}
    wire.say("b", m.LinkBroken(wire.coordinator.members.by_name["a"].join.data_address, "reset"))
    wire.deliver_all()
    assert bool(wire.coordinator.links.apart) != loads
    assert (epochs <= wire.coordinator.loading.by_epoch.keys()) == loads


def test_a_model_that_has_ended_two_workers_ends_none_after_the_coordinator_was_started_anew():
    wire = standby_wire()
    call = wire.run()
    for _ in range(2):
        wire.deliver_all()
        start, (name,) = started(wire)
        wire.say(name, m.WorkerLost("the worker was ended by SIGFPE", start.epoch, start.request, ended_by=m.EndedBy.CRASH))
        wire.say(name, m.Deployed(start.epoch))
    wire.deliver_all()
    assert "is not run again" in wire.answer(call).reason
    wire.restart_coordinator()
    wire.settle_for(3.0)
    for shape in ((2, 2), (3, 2)):
        plan = wire.call(lambda n, shape=shape: replace(prepare_message(n, wire.options), shapes={"x": shape}, wait=True))
        wire.settle()
        assert "is not run again" in wire.answer(plan).reason
    assert not wire.started


def test_a_new_call_waits_for_as_long_as_it_says_however_long_others_have_waited():
    machine = cm.ClientMachine("tcp://head:7070")
    machine.call(c.ListNodes(1), 0.0, 100.0)
    machine.call(c.ListNodes(2), 30.0, 20.0)
    assert not [done for done in machine.tick(31.0) if isinstance(done, cm.Complete)]
    (done,) = [done for done in machine.tick(51.0) if isinstance(done, cm.Complete)]
    assert done.call == 2


def test_a_variant_on_which_every_request_stalls_is_loaded_anew():
    wire = ready_wire("a")
    before = {epoch for agent in wire.agents.values() for epoch in agent.loaded}
    (agent,) = wire.agents.values()
    broken = set(agent.loaded)
    agent.loaded -= broken  # the agent believes that it has them, and answers nothing
    call = wire.run(deadline_s=60.0)
    wire.wait(20.0)
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert not agent.loaded & before


def test_a_request_has_stalled_where_one_agent_is_idle_and_the_other_at_later_ones():
    wire = ready_wire("a", "b")
    wire.run(deadline_s=60.0)
    wire.deliver_all()
    start, names = started(wire)
    assert names == ("a", "b")
    for _ in range(OVERTAKEN + 10):
        wire.pass_time(0.1)
        wire.deliver_all()
        wire.say("a", m.Heartbeat(0, start.request + 1000, 0.05))  # of another model: never idle for long
        wire.coordinator.members.by_name["a"].finished += 1
    assert any(text.startswith(f"request {start.request} of model") and "has stalled" in text for text in wire.told), wire.told


def test_what_has_ended_a_worker_is_to_blame_for_the_next_one_that_loads_it():
    """Also where that computed something else just then: it was loaded once more, and ended a third worker (seed 2710)."""
    wire = joined_wire("a", "b")
    wire.plan = lambda _: None
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.until_answered(wire.run())
    wire.settle()
    known = dict(wire.coordinator.loading.by_epoch)
    victims, starting = [], []
    carry = wire.carry_agent

    def dies(agent, instruction):
        if isinstance(instruction, m.Deploy) and instruction.epoch not in known:
            computed = next(epoch for epoch, variant in known.items() if agent.name in variant.parts) if victims else 0
            victims.append(agent.name)
            starting.append(agent)
            died = m.WorkerLost("SIGFPE", computed, 7 if computed else 0, m.EndedBy.CRASH, instruction.epoch)
            wire.to_agent(agent, died)
        elif agent not in starting or not isinstance(instruction, ae.CheckWeights):  # a worker that has ended is told nothing
            carry(agent, instruction)

    wire.carry_agent = dies
    files = (c.ModelFile("deadly.onnx", FILE.digest, FILE.size),)
    wire.call(lambda call: c.OfferModel(call, offer_digest(files), files))
    wire.settle()
    wire.call(lambda call: c.PrepareModel(call, offer_digest(files), {"x": (2, 2)}, PlanOptions(), wait=False))
    for _ in range(5):
        wire.wait(1.0)
        for _ in range(len(starting)):
            agent = starting.pop(0)
            wire.to_agent(agent, ae.WorkerReady(agent.machine.join))
    assert len(victims) == 2


@pytest.mark.parametrize("answered", [False, True])
def test_what_has_answered_nothing_and_ended_a_worker_is_to_blame_for_the_next_one_whatever_that_loaded(answered):
    """What the worker loads when it dies again may be released: then nobody ever knows, and it went on until the deadline."""
    wire = standby_wire()
    if answered:
        wire.until_answered(wire.run())
    call = wire.run()
    for loading in (0, 77):
        wire.deliver_all()
        start, (name,) = started(wire)
        wire.say(
            name,
            m.WorkerLost("the worker was ended by SIGFPE", start.epoch, start.request, ended_by=m.EndedBy.CRASH, loading=loading),
        )
        wire.wait(0.5)
        if not loading:
            wire.say(name, m.Deployed(start.epoch))
    assert ["is not run again" in answer.reason for answer in wire.answers[call]] == ([] if answered else [True])
