"""After something went wrong and is well again, the cluster is as good as it was: the same nodes serve, and nothing is left over."""

from dataclasses import replace

import pytest

from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, loading
from bbgrap.control.plan_trial import TRIALS
from bbgrap.control.planning import EARNED, plan_key
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import inspection, messages
from tests.bbgrap.control.shapes import FIRST, SECOND, Story, planned
from tests.bbgrap.control.test_spare_plans import large_wire
from tests.bbgrap.control.test_standbys import bring
from tests.bbgrap.control.wire import joined_wire, prepare_message

AUTO = PlanOptions(planner="auto")
A, BOTH, EVERY = ("a",), ("a", "b"), ("a", "b", "c")


def plan_of(wire):
    (plan,) = wire.coordinator.planning.plans.values()
    return plan


def goes_on(wire, seconds):
    """Let a request run every second; the nodes of the variant that serves then."""
    for _ in range(round(seconds)):
        wire.wait(1.0)
        call = wire.run()
        wire.settle()
        assert isinstance(wire.answer(call), c.RunResult)
    (serving,) = plan_of(wire).serving
    return tuple(serving.parts)


def auto_wire(names, seconds):
    """A wire with a plan of `auto` whose variants take that long, by their nodes."""
    wire = joined_wire(*names, options=AUTO, seconds=seconds)
    wire.prepare()
    return wire


def cut(wire, first, other):
    """Break what is between two agents, and let one of them say so."""
    wire.cut = {frozenset((first, other))}
    wire.to_coordinator(ce.FromPeer(wire.agent(first).identity, messages.LinkBroken(f"tcp://{other}:1", "reset")))


def lose_worker(wire, agent):
    """End an agent's worker; another one is there at once."""
    wire.to_agent(agent, messages.WorkerLost("SIGKILL", 0, 0, messages.EndedBy.OUTSIDE))
    wire.to_agent(agent, ae.WorkerReady(agent.machine.join))


def load_badly(wire, times, name="b"):
    """Let an agent fail to load its part of variants over several so often."""
    left, carry = [None] * times, wire.carry_agent

    def carry_agent(agent, instruction):
        if isinstance(instruction, messages.Deploy) and len(instruction.peers) >= 3 and agent.name == name and left:
            left.pop()
            wire.to_agent(agent, ae.DeploymentLoaded(instruction.epoch, "out of memory"))
        else:
            carry(agent, instruction)

    wire.carry_agent = carry_agent


def test_after_a_link_was_cut_for_a_while_the_faster_variant_serves_again():
    """What its plan had besides it stood for the agents, so that nothing was made anew, ever."""
    wire = auto_wire(BOTH, {BOTH: 0.01, A: 0.02})
    assert goes_on(wire, 2.0) == BOTH
    cut(wire, "a", "b")
    assert goes_on(wire, 10.0) == A
    wire.cut = set()
    assert goes_on(wire, 15.0) == BOTH


@pytest.mark.parametrize(("times", "serves", "jobs"), [(1, BOTH, 0), (1000, A, 5)])
def test_a_variant_that_could_not_be_loaded_is_tried_again_later_and_later(times, serves, jobs):
    """It was given up for good where its plan had another one."""
    wire = auto_wire(BOTH, {BOTH: 0.01, A: 0.02})
    load_badly(wire, times)
    assert goes_on(wire, 10.0) == serves
    before = len(wire.jobs)
    assert goes_on(wire, 90.0) == serves
    assert len(wire.jobs) - before <= jobs


def test_what_serves_stays_while_a_new_agent_can_load_nothing():
    wire = auto_wire(BOTH, {BOTH: 0.02, A: 0.04, ("b",): 0.04, ("c",): 0.04, EVERY: 0.01})
    assert goes_on(wire, 3.0) == BOTH
    load_badly(wire, 1000, "c")
    wire.add_agent("c")
    assert {goes_on(wire, 1.0) for _ in range(60)} == {BOTH}


def test_a_variant_that_could_not_be_loaded_and_went_when_it_was_tried_again_is_not_given_up():
    """What had been planned first, without it, stood for what was planned then."""
    wire = joined_wire(*BOTH, options=AUTO, seconds={BOTH: 0.01, A: 0.02, ("b",): 0.02})
    load_badly(wire, 1)
    loads, carry = [], wire.carry_agent

    def carry_agent(agent, instruction):
        if isinstance(instruction, messages.Deploy) and len(instruction.peers) == 3 and agent.name == "b":
            loads.append(instruction)
        if len(loads) == 2 and agent is wire.agents.get(agent.identity) and agent.name == "b":
            wire.crash(agent)
        else:
            carry(agent, instruction)

    wire.carry_agent = carry_agent
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    goes_on(wire, 8.0)
    wire.carry_agent = carry
    assert len(loads) == 2
    wire.add_agent("b")
    assert goes_on(wire, 15.0) == BOTH


def test_agents_that_come_and_go_again_and_again_are_used_each_time():
    """What had been gone back to when one went was not left when it came back."""
    wire = auto_wire(BOTH, {BOTH: 0.02, A: 0.04, EVERY: 0.01})
    assert goes_on(wire, 3.0) == BOTH
    for _ in range(2):
        wire.add_agent("c")
        assert goes_on(wire, 8.0) == EVERY
        wire.crash(wire.agent("c"))
        assert goes_on(wire, 8.0) == BOTH
    assert len(wire.jobs) == 2


def test_of_what_was_made_for_fewer_agents_the_one_over_most_stays():
    alone, four = {(name,): 0.04 for name in "abcd"}, (*EVERY, "d")
    wire = auto_wire(BOTH, {BOTH: 0.03, EVERY: 0.02, four: 0.01} | alone)
    for name, nodes in (("c", EVERY), ("d", four)):
        wire.add_agent(name)
        assert goes_on(wire, 8.0) == nodes
    wire.crash(wire.agent("d"))
    assert goes_on(wire, 8.0) == EVERY
    assert len(wire.jobs) == 3


def test_after_a_restart_of_the_coordinator_the_fastest_of_all_that_is_loaded_serves():
    """The fastest of what was planned last did, for good."""
    wire = auto_wire(BOTH, {BOTH: 0.01, A: 0.04, EVERY: 0.02})
    assert goes_on(wire, 2.0) == BOTH
    wire.add_agent("c")
    assert goes_on(wire, 10.0) == BOTH
    assert {tuple(variant.parts) for variant in plan_of(wire).variants} >= {BOTH, EVERY}
    wire.restart_coordinator()
    wire.wait(2.0)
    assert goes_on(wire, 5.0) == BOTH


def test_what_was_released_is_not_loaded_again_after_a_restart_of_the_coordinator():
    wire = auto_wire(BOTH, {BOTH: 0.02, A: 0.01})
    assert goes_on(wire, 2.0) == A
    machine = wire.coordinator
    (gone,) = (variant for variant in plan_of(wire).variants if tuple(variant.parts) == BOTH)
    for instruction in machine.recovery.drop(gone):
        wire.carry_coordinator(instruction)
    wire.settle()
    wire.restart_coordinator()
    wire.wait(2.0)
    assert goes_on(wire, 3.0) == A
    assert {tuple(variant.parts) for variant in plan_of(wire).variants} == {A}
    assert len(wire.jobs) == 1, "what was slower is not missed"


@pytest.mark.parametrize("away_s", [0.0, 5.0])
@pytest.mark.parametrize("place", [1, 3, 9, 17])
@pytest.mark.parametrize("what", ["agent", "worker", "agent, then the coordinator"])
def test_a_variant_that_goes_while_it_is_timed_is_timed_when_it_is_there_again(what, place, away_s):
    """The slower one that stayed served for good."""
    wire = joined_wire(*BOTH, options=AUTO, seconds={BOTH: 0.01, A: 0.02, ("b",): 0.02})
    started, carry = [], wire.carry_coordinator

    def carry_coordinator(instruction):
        if isinstance(instruction, coordinator_instructions.StartRequest) and plan_of(wire).timing is not None:
            started.append(instruction)
            if len(started) == place and what == "worker":
                lose_worker(wire, wire.agent("b"))
            elif len(started) == place:
                wire.crash(wire.agent("b"))
        carry(instruction)

    wire.carry_coordinator = carry_coordinator
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    goes_on(wire, 3.0 + away_s)
    if what.endswith("coordinator"):
        wire.restart_coordinator()
        wire.wait(2.0)
    if what != "worker":
        wire.add_agent("b")
    assert len(started) >= place
    assert goes_on(wire, 8.0) == BOTH


def test_a_scaled_plan_is_not_given_up_for_a_node_that_has_gone():
    """It was compared with what the standby took there, and lost for good."""
    story, rest = Story(alone=0.02), ("c", "d")
    wire = story.wire
    wire.seconds |= {("a", "b", *rest): 0.01, rest: 0.01, ("c",): 0.02, ("d",): 0.02}
    for name in rest:
        wire.add_agent(name)
    wire.settle()
    story.prepare(FIRST)
    wire.seconds |= {A: 0.005, ("b",): 0.005}
    assert story.served(SECOND, EARNED + 2 * TRIALS)[-1] in {A, ("b",)}, "they are faster, as long as they are there"
    wire.plan = lambda job: planned(job) if job.bases or job.shapes["x"] == FIRST else ce.PlanFailed(job.job, c.Fault.PLAN, "not now")
    for name in BOTH:
        wire.crash(wire.agent(name))
    for shape in (FIRST, FIRST, SECOND):
        wire.wait(3.0)
        story.served(shape, 2)
    assert story.served(SECOND, 2 * TRIALS) == [rest] * 2 * TRIALS


@pytest.mark.parametrize("was_there", [True, False])
def test_what_was_made_while_the_fastest_node_was_away_does_not_serve_for_good(was_there):
    """For another shape one node was the fastest, so no plan was looked for with it; the slower one went on."""
    story = Story(both=0.04, alone=0.02)
    wire = story.wire
    wire.seconds[("b",)] = 0.03

    def served(seconds):
        for _ in range(seconds):
            wire.wait(1.0)
            for shape in (FIRST, SECOND):
                story.prepare(shape, wait=False)
                wire.until_answered(story.begin(shape))
        return [story.served(shape)[-1] for shape in (FIRST, SECOND)]

    if was_there:  # else nothing is known that was made for both
        assert served(8) == [A, A]
    wire.crash(wire.agent("a"))
    assert served(8) == [("b",), ("b",)]
    wire.add_agent("a")
    assert served(15) == [A, A]


def test_profiles_that_change_leave_no_plans_for_losses_behind():
    """Each change made one more for each loss, up to the most that agents have loaded."""
    wire = large_wire(*EVERY)
    loaded = len(plan_of(wire).variants)
    for cores in (2, 4, 8):
        wire.call(lambda n, cores=cores: c.SetProfile(n, NodeProfile("a", cores=cores)))
        goes_on(wire, 1.0)
        wire.call(lambda n: inspection.ForgetProfile(n, "a", measured=False))
        goes_on(wire, 3.0)
    assert len(plan_of(wire).variants) == loaded == 5


def test_an_agent_that_heard_nothing_while_another_one_came_answers_its_pings():
    """37750423: until it was found apart, and then again by each plan; the newcomer computed with nobody for ten seconds."""
    wire = joined_wire("a")
    agent = wire.agent("a")
    while agent.machine.state == "joined":
        wire.now += 1.0
        wire.to_agent(agent, ae.AgentTick())
    asked = wire.queues.pop((agent.identity, b""))
    wire.add_agent("b")
    wire.settle()
    assert agent.machine.state == "joining"
    wire.queues[agent.identity, b""] = asked
    wire.settle()
    assert agent.machine.state == "joined"
    assert agent.answering == {"b", COORDINATOR}


def slowly_loading(wire, name):
    """An agent that has said to have nothing and loads nothing: what its worker is told to look at, in turn."""
    told, carry = [], wire.carry_agent

    def carry_agent(agent, instruction):
        if agent.name == name and isinstance(instruction, ae.CheckWeights):
            told.append(instruction.epoch)
        else:
            carry(agent, instruction)

    wire.carry_agent = carry_agent
    return told


def ask(wire, model):
    """Let a client that waits for no plan ask a model."""
    prepare = c.PrepareModel(0, model, {"x": (2, 2)}, PlanOptions(), wait=False)
    wire.call(lambda call: replace(prepare, call=call))
    wire.call(lambda call: c.RunModel(call, plan_key(replace(prepare, options=replace(PlanOptions(), input_values="any"))), 30.0, (), ()))
    wire.deliver_all()


def models_of(wire, epochs):
    return [wire.coordinator.loading.by_epoch[epoch].plan.model for epoch in epochs]


@pytest.mark.parametrize("place", range(0, 11, 5))
@pytest.mark.parametrize("loses", ["all", "its worker"])
def test_what_somebody_waits_for_is_loaded_next_by_an_agent_that_loads_all_it_had(place, loses):
    """After all machines had been without power it was loaded in its turn, however many there were."""
    wire = joined_wire("a")
    wire.plan = lambda _: None
    for number in range(12):
        bring(wire, number)
    agent = wire.agent("a")
    told = slowly_loading(wire, "a")
    if loses == "all":
        wire.crash(agent)
        wire.restart_coordinator()
        agent = wire.add_agent("a")
    else:
        lose_worker(wire, agent)
    wire.deliver_all()
    first, *_ = models_of(wire, told)
    others = [variant.plan for variant in wire.coordinator.loading.of_member("a") if variant.plan.model != first]
    assert len(told) == 1
    assert len(others) == 11
    model = others[place].model
    ask(wire, model)
    assert models_of(wire, told) == [first, model]
    ask(wire, model)
    wire.wait(1.0)
    assert models_of(wire, told) == [first, model]


def test_what_waits_for_its_turn_on_an_agent_is_not_taken_for_too_slow(monkeypatch):
    """Of many large models the last ones were given up, and begun anew."""
    monkeypatch.setattr(loading, "DEPLOY_WITHIN_S", 10.0)
    wire = joined_wire("a")
    wire.plan = lambda _: None
    for number in range(6):
        bring(wire, number)
    agent = wire.agent("a")
    known = set(wire.coordinator.loading.by_epoch)
    told = slowly_loading(wire, "a")
    lose_worker(wire, agent)
    for turn in range(6):
        wire.wait(6.0)
        assert len(told) == turn + 1
        wire.to_agent(agent, ae.WeightsChecked(told[turn], ()))
    wire.wait(1.0)
    assert set(told) == known == {variant.epoch for variant in wire.coordinator.loading.by_epoch.values() if variant.is_ready}
    # One whose turn does not end is.
    lose_worker(wire, agent)
    wire.wait(11.0)
    assert wire.coordinator.loading.by_epoch.keys().isdisjoint(known)


def test_what_agents_had_that_never_come_back_is_released():
    """On disk it counted as loaded until the next start of the coordinator, beyond all bounds."""
    wire = auto_wire(BOTH, {BOTH: 0.1, A: 0.3})
    goes_on(wire, 2.0)
    kept = {variant.epoch for plan in wire.kept.values() for variant in plan.variants}
    assert len(kept) >= 3
    for name in BOTH:
        wire.crash(wire.agent(name))
    wire.restart_coordinator()
    assert wire.coordinator.loading.by_epoch.keys() == kept
    released, carry = set(), wire.carry_coordinator

    def carry_coordinator(instruction):
        if isinstance(instruction, coordinator_instructions.HostRelease):
            released.add(instruction.epoch)
        carry(instruction)

    wire.carry_coordinator = carry_coordinator
    wire.pass_time(loading.KEEP_AWAY_S + 1.0)
    wire.settle()
    assert released == kept


def test_restarts_and_names_that_change_leave_no_more_copies_than_so_many(monkeypatch):
    """How long their nodes were away began anew with every coordinator: one more was kept each time, for ever."""
    monkeypatch.setattr(loading, "MAX_AWAY", 4)
    wire, kept, stays = auto_wire(BOTH, {}), list[int](), set[int]()
    for turn in range(8):
        wire.crash(next(agent for agent in wire.agents.values() if agent.name != "a"))
        wire.add_agent(f"b{turn}")
        goes_on(wire, 3.0)
        wire.restart_coordinator()
        wire.pass_time(0.1)  # nobody is back yet
        wire.wait(2.0)
        wire.prepare()
        wire.wait(loading.BACK_WITHIN_S)
        (standby,) = wire.coordinator.standbys.by_model.values()
        kept.append(sum(bool(variant.away) for variant in standby.variants))
        stays |= {variant.epoch for variant in standby.variants if "a" in variant.parts}
    assert max(kept) <= 4, kept
    assert len(stays) == 1  # what the one that is there has loaded is not given up for those that are not
    goes_on(wire, 3.0)


def test_a_request_under_which_links_break_again_and_again_runs_on_one_node():
    """The two answer each other's pings, and no tensor comes through: it was tried for as long as its client waited."""
    wire = auto_wire(BOTH, {BOTH: 0.02, A: 0.04})
    assert goes_on(wire, 3.0) == BOTH
    (serving,), finish = plan_of(wire).serving, wire.finish_requests

    def finish_others():
        held = {number: start for number, start in wire.started.items() if start.epoch == serving.epoch}
        for number in held:
            del wire.started[number]
        done = finish()
        wire.started |= held
        return done

    wire.finish_requests = finish_others
    call, breaks = wire.run(), 0
    while not wire.answers[call] and breaks < 10:
        wire.settle()
        if serving.queue.running:
            breaks += 1
            wire.to_coordinator(ce.FromPeer(wire.agent("a").identity, messages.LinkBroken("tcp://b:1", "reset")))
            wire.settle()
        wire.wait(0.3)
    assert isinstance(wire.answer(call), c.RunResult)
    assert breaks == 2
