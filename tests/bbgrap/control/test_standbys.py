"""Standbys of more models than may be loaded: who is asked keeps its own, and whoever waits gets one again."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bbgrap.cluster.types import LinkProfile, NodeProfile
from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.planning import STANDBY_FIRST_S, standby_key
from bbgrap.control.plans import FIRST_AGAIN_S, IN_USE_S, MAX_DEATHS
from bbgrap.control.standby import MAX_STANDBYS, MUCH_TO_LOAD
from bbgrap.control.uploads import offer_digest
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.messages import Deploy, DeploymentFailed, EndedBy, WorkerLost
from tests.bbgrap.control.tiny_plans import FILE, MODEL, standby_of
from tests.bbgrap.control.wire import Wire, joined_wire, prepare_message, ready_wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = ready_wire("a", "b")
    answered = wire.run()
    wire.until_answered(answered)
    yield wire
    assert not any(wire.answers[call][0:1] and isinstance(wire.answers[call][0], c.Failed) for call in wire.answers)


def bring(wire: Wire, number: int) -> None:
    """Another model, that somebody asks for a plan and then leaves alone."""
    files = (c.ModelFile(f"m{number}.onnx", FILE.digest, FILE.size),)
    model = offer_digest(files)
    wire.call(lambda call: c.OfferModel(call, model, files))
    wire.settle()
    wire.call(lambda call: c.PrepareModel(call, model, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.settle()


def standbys_of(wire: Wire) -> set[str]:
    """The models that are loaded whole somewhere, or will be."""
    return {standby.model for standby in wire.coordinator.standbys.by_model.values() if standby.variants}


def test_a_model_that_is_asked_keeps_its_standby(wire):
    for number in range(2 * MAX_STANDBYS):
        wire.pass_time(0.1)
        wire.until_answered(wire.run())
        bring(wire, number)
    assert MODEL in standbys_of(wire)
    assert len(standbys_of(wire)) <= MAX_STANDBYS


def test_what_was_asked_of_an_earlier_coordinator_does_not_make_room_at_once(wire):
    """The models in use were those that had been brought first: what was brought before they were asked for again took their places."""
    wire.until_answered(wire.run())
    for number in range(MAX_STANDBYS - 1):
        bring(wire, number)
    known = standbys_of(wire)
    assert len(known) == MAX_STANDBYS
    wire.restart_coordinator()
    wire.wait(5.0)
    assert standbys_of(wire) == known
    for number in range(2):
        bring(wire, 100 + number)
    assert standbys_of(wire) > known
    wire.until_answered(wire.run())
    wire.wait(IN_USE_S)
    bring(wire, 102)
    assert len(standbys_of(wire)) == MAX_STANDBYS
    assert MODEL in standbys_of(wire)


def test_one_that_made_room_is_made_again_when_its_plan_is_lost(wire):
    for number in range(MAX_STANDBYS):
        wire.pass_time(0.1)
        bring(wire, number)
    assert MODEL not in standbys_of(wire)
    wire.crash(wire.agent("b"))
    wire.until_answered(wire.run())
    assert MODEL in standbys_of(wire)


def test_nothing_is_made_of_one_that_made_room_while_nobody_waits(wire):
    asked = []
    carry = wire.carry_coordinator

    def watch(instruction):
        if isinstance(instruction, coordinator_instructions.StartStandby):
            asked.append(instruction.files[0].name)
        carry(instruction)

    wire.carry_coordinator = watch
    for number in range(MAX_STANDBYS):
        wire.pass_time(0.1)
        bring(wire, number)
    wire.pass_time(100.0)
    wire.settle()
    assert FILE.name not in asked
    assert len(asked) == MAX_STANDBYS


def test_a_second_agent_loads_a_model_that_is_asked_for_once_that_has_answered():
    wire = joined_wire("a", "b")
    wire.plan = lambda _: None
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    call = wire.run()
    wire.deliver_all()
    (standby,) = wire.coordinator.standbys.by_model.values()
    wire.wait(1.0)
    assert [list(variant.parts) for variant in standby.variants] == [list(standby.variants[0].parts)]
    assert not wire.answers[call]
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert {name for variant in standby.variants for name in variant.parts} == {"a", "b"}


def test_a_node_whose_worker_ends_of_a_copy_is_left_alone_for_a_while_though_its_connections_broke_with_it():
    """In a container with too little memory its worker was ended every eight seconds: its links were in doubt, and nothing counted."""
    wire = ready_wire("a", "b")
    wire.until_answered(wire.run())
    (standby,) = wire.coordinator.standbys.by_model.values()
    standby.is_proven = True
    for _ in range(MAX_DEATHS):
        assert not standby.refused
        (copy,) = [variant for variant in standby.variants if "b" in variant.parts]
        wire.to_coordinator(ce.HostLinkBroken(wire.coordinator.members.by_name["b"].join.data_address))
        wire.say("b", WorkerLost("out of memory", 0, 0, EndedBy.MEMORY, copy.epoch))
        wire.say("b", DeploymentFailed(copy.epoch, "out of memory"))
        assert copy not in standby.variants
    assert standby.refused == {"b": "agent 'b' cannot run the deployment: out of memory"}
    assert [list(variant.parts) for variant in standby.variants] == [["a"]]
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    assert standby.refused
    wire.add_agent("b")
    wire.settle()
    assert not standby.refused, "a newcomer may have more"
    assert {name for variant in standby.variants for name in variant.parts} == {"a", "b"}


@pytest.mark.parametrize("others", [MUCH_TO_LOAD - 1, MUCH_TO_LOAD])
def test_a_model_that_is_asked_for_does_not_wait_behind_what_one_agent_loads(others):
    """What that agent loads first may end its worker again and again."""
    wire = joined_wire("a")
    wire.plan = lambda _: None
    carry = wire.carry_agent

    def load_nothing(agent, instruction):
        if agent.name != "a" or not isinstance(instruction, Deploy):
            carry(agent, instruction)

    wire.carry_agent = load_nothing
    for number in range(others):
        bring(wire, number)
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    call = wire.run()
    wire.wait(0.5)
    wire.add_agent("b")
    wire.wait(0.5)
    (standby,) = (standby for standby in wire.coordinator.standbys.by_model.values() if standby.model == MODEL)
    assert [list(variant.parts) for variant in standby.variants] == [["a"], ["b"]][: 1 + (others == MUCH_TO_LOAD)]
    if others == MUCH_TO_LOAD:
        wire.settle()
        assert isinstance(wire.answer(call), c.RunResult)


@pytest.mark.parametrize("ended_by", [EndedBy.CRASH, EndedBy.OUTSIDE])
def test_what_may_have_ended_a_worker_is_not_loaded_elsewhere_before_that_is_known(ended_by):
    """It ended a worker more than it may: the agent had much to load again, so another one was to load it meanwhile."""
    wire = joined_wire("a")
    wire.plan = lambda _: None
    for number in range(MUCH_TO_LOAD):
        bring(wire, number)
    known, carry = dict(wire.coordinator.loading.by_epoch), wire.carry_agent
    wire.carry_agent = lambda agent, told: None if agent.name == "a" and isinstance(told, Deploy | ae.CheckWeights) else carry(agent, told)
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.run()
    wire.deliver_all()
    (new,) = set(wire.coordinator.loading.by_epoch) - known.keys()
    agent = wire.agent("a")
    wire.to_agent(agent, ae.WeightsChecked(new, ()))
    wire.to_agent(agent, WorkerLost("it ended", min(known), 7, ended_by, new))
    wire.to_agent(agent, ae.WorkerReady(agent.machine.join))
    wire.add_agent("b")
    wire.wait(0.5)
    (standby,) = (standby for standby in wire.coordinator.standbys.by_model.values() if standby.model == MODEL)
    assert wire.coordinator.loading.to_load("a") > MUCH_TO_LOAD
    assert [list(variant.parts) for variant in standby.variants] == [["a"], ["b"]][: 1 + (ended_by is EndedBy.OUTSIDE)]


def test_an_answer_of_a_plan_proves_its_model():
    wire = ready_wire("a", "b")
    wire.kept = {job: plan for job, plan in wire.kept.items() if plan.options is not None}
    wire.restart_coordinator()
    wire.wait(5.0)
    (standby,) = wire.coordinator.standbys.by_model.values()
    assert not standby.is_proven
    wire.until_answered(wire.run())
    assert standby.is_proven
    assert {name for variant in standby.variants for name in variant.parts} == {"a", "b"}


def test_a_model_that_was_loaded_but_never_answered_takes_one_agent_after_a_restart_too():
    wire = joined_wire("a", "b")
    wire.plan = lambda _: None
    for restarts in (True, False):
        wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
        wire.settle()
        if restarts:
            wire.restart_coordinator()
            wire.wait(5.0)
    calls = [wire.run() for _ in range(3)]
    wire.wait(1.0)
    assert {name for start in wire.started.values() for name in wire.nodes_of(start)} in ({"a"}, {"b"})
    for call in calls:
        assert isinstance(wire.until_answered(call), c.RunResult)


def test_what_has_ended_a_worker_is_not_tried_next_where_another_model_has_its_last_copy():
    wire = joined_wire("a", "b", "c")
    wire.plan = lambda _: None
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.until_answered(wire.run())
    wire.settle()
    for number in range(MUCH_TO_LOAD + 1):  # a worker that is started anew has these to load
        bring(wire, 2 + number)
    known = set(wire.coordinator.loading.by_epoch)
    copies = {name for variant in wire.coordinator.standbys.by_model[standby_key(MODEL)].variants for name in variant.parts}
    victims = []
    carry = wire.carry_agent

    def dies(agent, instruction):
        if isinstance(instruction, Deploy) and instruction.epoch not in known:
            victims.append(agent.name)
            epoch = instruction.epoch
            wire.to_agent(agent, WorkerLost("the worker was ended by SIGFPE", 0, 0, EndedBy.CRASH, epoch))
        else:
            carry(agent, instruction)

    wire.carry_agent = dies
    bring(wire, 1)
    wire.wait(1.0)
    assert len(victims) == len(copies) == 2
    assert copies - set(victims)


def test_a_new_plan_begins_when_its_standby_answers():
    wire = joined_wire("a", "b")
    begun: list[bool] = []

    def plan(job: coordinator_instructions.StartPlanning) -> None:
        (standby,) = wire.coordinator.standbys.by_model.values()
        begun.append(bool(standby.open_variants))

    wire.plan = plan
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.until_answered(wire.run())
    wire.wait(0.2)
    assert begun == [True]


@pytest.mark.parametrize("wait", [False, True])
def test_a_new_plan_does_not_wait_long_for_its_standby_nor_while_somebody_waits_for_it(wait):
    wire = joined_wire("a", "b")
    wire.standby = lambda _: None  # it is being made, and that does not end
    wire.plan = lambda _: None
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=wait))
    if not wait:
        wire.run()
        wire.wait(STANDBY_FIRST_S - 0.5)
        assert not wire.jobs
        wire.wait(1.0)
    wire.deliver_all()
    assert len(wire.jobs) == 1


def test_a_plan_does_not_wait_for_a_standby_that_cannot_be():
    wire = joined_wire("a", "b")
    wire.standby = lambda job: ce.PlanFailed(job.job, c.Fault.MODEL, "no room")
    wire.plan = lambda _: None
    wire.call(lambda call: c.PrepareModel(call, MODEL, {"x": (2, 2)}, PlanOptions(), wait=False))
    wire.run()
    wire.wait(0.2)
    assert len(wire.jobs) == 1


def test_of_nodes_that_are_as_fast_the_one_beside_the_coordinator_comes_first():
    wire = ready_wire("a", "b", "head", settings=Settings("0.1.0", "tcp://head:7"))
    wire.until_answered(wire.run())
    (standby,) = wire.coordinator.standbys.by_model.values()
    assert "head" in standby.variants[0].parts
    assert sorted(name for variant in standby.variants for name in variant.parts) == ["a", "head"]


@pytest.mark.parametrize(("bytes_per_s", "first"), [(1e9, "far"), (1.0, "near")])
def test_who_waits_for_a_model_does_not_wait_until_it_is_behind_a_slow_link(bytes_per_s, first):
    """A model of 102 MB went to the faster node first, for 19 s over 50 Mbit/s; the one beside the coordinator has it in one."""
    wire = joined_wire("far", "near")
    wire.call(lambda n: c.SetProfile(n, NodeProfile("far", share=2.0, links=(LinkProfile("coordinator", bytes_per_s, 1e-4),))))
    wire.settle()
    wire.until_answered(wire.prepare())
    (standby,) = wire.coordinator.standbys.by_model.values()
    assert list(standby.variants[0].parts) == [first]


def test_an_agent_that_comes_back_loads_first_what_was_asked_for_last(wire):
    for number in range(4):
        bring(wire, number)
    wire.wait(1.0)
    wire.until_answered(wire.run())
    wire.crash(wire.agent("b"))
    wire.pass_time(2.0)
    loaded = []
    carry = wire.carry_agent

    def watch(agent, instruction):
        if isinstance(instruction, Deploy) and agent.name == "b":
            variant = wire.coordinator.loading.by_epoch.get(instruction.epoch)
            loaded.append((variant.plan.model, variant.plan.is_standby))
        carry(agent, instruction)

    wire.carry_agent = watch
    wire.add_agent("b")
    wire.settle()
    assert len(loaded) > 4
    assert loaded[0] == (MODEL, True)
    assert {model for model, _ in loaded[: sum(model == MODEL for model, _ in loaded)]} == {MODEL}


def test_a_standby_that_cannot_be_kept_for_now_is_made_again():
    """Where the coordinator's disk is full: what waits is told to come again, and who does is answered."""
    wire = joined_wire("a", "b")

    def full(start):
        return ce.PlanFailed(start.job, c.Fault.BUSY, "no space left")

    wire.plan, wire.standby = full, full
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    assert wire.until_answered(wire.run()).fault is c.Fault.BUSY
    wire.standby = standby_of
    wire.wait(FIRST_AGAIN_S + 0.5)
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


def test_a_standby_that_nobody_can_load_is_made_anew():
    """Its weights on the coordinator's disk are damaged, say: whoever gets them refuses them, for ever."""
    wire, made = joined_wire("a", "b"), []

    def make(job):
        made.append(job.job)
        return standby_of(job)

    def carry(agent, instruction):
        if isinstance(instruction, Deploy) and len(made) < 2:
            wire.to_agent(agent, ae.DeploymentLoaded(instruction.epoch, "a weight has another digest"))
        else:
            Wire.carry_agent(wire, agent, instruction)

    wire.standby, wire.plan, wire.carry_agent = make, lambda _: None, carry
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    wire.settle_for(1.0)
    assert len(made) == 1
    assert wire.kept == {}
    wire.settle_for(5.0)
    assert len(made) == 2
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)
    wire.settle_for(60.0)
    assert len(made) == 2


def test_failures_in_a_row_end_with_what_is_loaded():
    """A standby could not be made five times in a minute; every later failure was waited for as the sixth, for ever longer."""
    wire = joined_wire("a")
    wire.plan = lambda _: None
    left = list(range(3))

    def standby(job):
        return ce.PlanFailed(job.job, c.Fault.EXECUTION, "its process was ended") if left and left.pop() >= 0 else standby_of(job)

    wire.standby = standby
    for _ in range(20):
        wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
        wire.settle_for(1.0)
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)
    (made,) = wire.coordinator.standbys.by_model.values()
    assert not left
    assert made.failures == 0
    made.fails("", c.Fault.EXECUTION, "it is made anew, and was ended again", wire.now)
    assert made.again_at == wire.now + FIRST_AGAIN_S
