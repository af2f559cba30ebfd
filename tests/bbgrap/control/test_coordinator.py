"""Stories of a coordinator, its agents and a client: events in, answers out, no socket and no clock."""

import pytest

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.request_recovery import MAX_LOSSES
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import CLIENT, Wire, introduction, joined_wire, prepare_message, ready_wire

SETTINGS = coordinator_settings.Settings("0.1.0", "tcp://head:1")


def test_a_request_runs_on_both_agents():
    wire = ready_wire("a", "b")
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    assert wire.nodes_of(start) == ("a", "b")
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert all(start.epoch in agent.loaded for agent in wire.agents.values())


def lose(wire, name):
    """Let an agent lose power, and time pass until its silence is noticed."""
    wire.crash(wire.agent(name))
    wire.wait(1.0)


def test_a_request_on_a_lost_agent_runs_again_on_those_that_are_left():
    """Agent b loses power while a request runs on both; within a second it runs on the standby of the survivor, and nothing was planned."""
    wire = ready_wire("a", "b")
    (a,) = [agent for agent in wire.agents.values() if agent.name == "a"]
    before, jobs = set(a.loaded), len(wire.jobs)
    call = wire.run()
    wire.deliver_all()
    (first,) = wire.started.values()
    lose(wire, "b")
    assert wire.answers[call] == []
    (again,) = wire.started.values()
    assert (wire.nodes_of(again), again.epoch in before, len(wire.jobs)) == (("a",), True, jobs)
    assert again.request > first.request
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)


def test_a_request_that_loses_its_agents_run_after_run_is_given_up_and_no_other():
    wire = ready_wire("a", "b")
    call, lost = wire.run(), []
    wire.deliver_all()
    while not wire.answers[call]:
        (start,) = wire.started.values()
        agent = wire.agent(wire.nodes_of(start)[0])
        lost.append(agent.name)
        # Not by anything it computes, and it is back at once.
        wire.to_agent(agent, m.WorkerLost("the worker was ended by SIGKILL", 0, 0, m.EndedBy.OUTSIDE))
        wire.to_agent(agent, ae.WorkerReady(introduction(agent.name)))
        wire.deliver_all()
    assert len(lost) == MAX_LOSSES
    answer = wire.answer(call)
    assert answer.fault is c.Fault.EXECUTION
    names = ", ".join(f"'{name}'" for name in lost)
    assert answer.reason.endswith(f"agents {names} were lost while it ran; it may be what ends them, so it is not run again")
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


def test_a_request_that_runs_again_keeps_its_deadline():
    wire = ready_wire("a", "b")
    call = wire.run(deadline_s=5.0)
    wire.deliver_all()
    # The one agent that is left computes, as its heartbeats say, and does not end.
    lose(wire, "b")
    (start,) = wire.started.values()
    for _ in range(45):
        wire.to_coordinator(ce.FromPeer(wire.agent("a").identity, m.Heartbeat(start.epoch, start.request, wire.now, 1)))
        wire.wait(0.1)
    assert wire.answer(call).reason.partition(": ")[2] == "its deadline of 5 s passed while it ran"


def test_heartbeats_look_at_no_plan(monkeypatch):
    wire = ready_wire("a", "b")
    wire.wait(3.0)  # the agents have settled
    looked = []
    monkeypatch.setattr(wire.coordinator.requests, "_go_on", lambda plan, now: looked.append(plan) or [])
    for _ in range(5):
        wire.pass_time(0.5)
        wire.deliver_all()
    assert looked == []


def test_exact_instructions_of_a_loss():
    coordinator = CoordinatorMachine(SETTINGS)
    welcome, told, *_ = coordinator.handle(ce.FromPeer(b"1", introduction("a")), 0.0)
    assert (welcome, told) == (
        coordinator_instructions.ToAgent(b"1", m.Welcome(2, 0.1, 0.6, (), 1)),
        coordinator_instructions.Log("agent 'a' joined; agents: 1", event="joined", node="a"),
    )
    assert coordinator.handle(ce.Tick(), 0.1)[0] == coordinator_instructions.ToAgent(b"1", m.Measure(1))  # nothing else goes on
    assert coordinator.handle(ce.Tick(), 0.6) == []
    assert coordinator.handle(ce.Tick(), 0.7) == [
        coordinator_instructions.Log("agent 'a' was lost; agents: 0", event="lost", node="a"),
        coordinator_instructions.Audit("lost", {"agent": "a", "id": "31"}),
        coordinator_instructions.Log(
            "in the background: agent 'a' was lost before it was measured; the next try is in 30 s",
            node="a",
        ),
        coordinator_instructions.HostPings(()),
    ]
    assert coordinator.handle(ce.FromPeer(b"1", m.Heartbeat()), 0.8) == [coordinator_instructions.ToAgent(b"1", m.Rejoin())]
    welcome, *_ = coordinator.handle(ce.FromPeer(b"1", introduction("a")), 0.9)
    # The same process was silent for 0.9 s, and may be for twice as long.
    assert welcome == coordinator_instructions.ToAgent(b"1", m.Welcome(3, 0.1, 1.8, (), 2))
    left, *_ = coordinator.handle(ce.FromPeer(b"1", m.Leave("SIGTERM")), 1.0)
    assert left == coordinator_instructions.Log("agent 'a' left (SIGTERM); agents: 0", event="left", node="a")


def test_refusals_are_readable():
    coordinator = CoordinatorMachine(SETTINGS)
    coordinator.handle(ce.FromPeer(b"1", introduction("a")), 0.0)
    taken, _, told = coordinator.handle(ce.FromPeer(b"2", introduction("a")), 0.1)
    assert taken == coordinator_instructions.ToAgent(
        b"2", m.Refused("the name 'a' is taken by a live agent; choose another with --name", retry=True)
    )
    assert told == coordinator_instructions.Audit("refused", {"agent": "a", "id": "32"}, {"reason": taken.message.reason})


def test_a_restarted_agent_waits_until_its_old_name_is_free():
    wire = ready_wire("a")
    (old,) = wire.agents.values()
    wire.crash(old)
    new = wire.add_agent("a")
    for _ in range(8):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert new.quit is None
    assert new.machine.state == "joined"


def test_a_second_agent_of_the_same_name_gives_up():
    wire = ready_wire("a")
    second = wire.add_agent("a")
    for _ in range(40):
        wire.settle()
        wire.pass_time(0.5)
    assert second.quit == "the name 'a' is taken by a live agent; choose another with --name"


def test_no_agent_is_called_like_the_coordinator():
    wire = Wire()
    agent = wire.add_agent("coordinator")
    wire.settle()
    assert agent.quit == "the name 'coordinator' is that of the coordinator in links; choose another with --name"
    assert wire.coordinator.status.nodes() == ()


def test_a_profile_by_hand_goes_over_what_was_measured_field_by_field():
    wire = ready_wire("a")
    (agent,) = wire.agents.values()
    fast, slow, guess = Speed("conv3x3", 2e9), Speed("matmul", 1e9), Speed("conv3x3", 5.0)
    wire.call(lambda n: c.MeasureNodes(n, ""))
    wire.settle()
    wire.to_agent(agent, m.Measured(1, NodeProfile("a", threads=4, work=(guess, slow)), ""))
    wire.settle()
    wire.to_agent(agent, m.LinksMeasured(2, (LinkProfile("b", 1e9, 1e-4),), ""))
    wire.settle()
    for profile in (NodeProfile("a", 0.5, group="left", work=(fast,)), NodeProfile("later", 3.0)):
        wire.call(lambda n, profile=profile: c.SetProfile(n, profile))
    wire.settle()
    (status,) = wire.coordinator.status.nodes()
    assert status.profile == NodeProfile("a", 0.5, threads=4, links=(LinkProfile("b", 1e9, 1e-4),), group="left", work=(fast, slow))
    wire.add_agent("later")
    wire.settle()
    assert [status.profile.share for status in wire.coordinator.status.nodes()] == [0.5, 3.0]


def test_a_joined_agent_is_used_for_the_next_preparation():
    wire = ready_wire("a")
    wire.add_agent("b")
    wire.settle()
    call = wire.prepare()
    wire.settle()
    prepared = wire.answer(call)
    assert isinstance(prepared, c.ModelPrepared)
    assert prepared.agents == ("a", "b")
    assert all(prepared.epoch in agent.loaded for agent in wire.agents.values())


def test_the_same_preparation_is_not_deployed_twice():
    wire = ready_wire("a")
    (agent,) = wire.agents.values()
    before = set(agent.loaded)
    call = wire.prepare()
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert agent.loaded == before


@pytest.mark.parametrize(("bandwidth", "plans"), [(1e9, 1), (1e7, 2)])
def test_what_inputs_are_like_makes_another_plan_only_where_a_way_is_slow(bandwidth, plans):
    wire = joined_wire("a", "b")
    wire.call(lambda n: c.SetProfile(n, NodeProfile("b", links=(LinkProfile("coordinator", bandwidth, 1e-4),))))
    wire.settle()
    keys = set()
    for values in ("auto", "any", "few"):
        call = wire.call(lambda n, values=values: prepare_message(n, PlanOptions(input_values=values)))
        wire.settle()
        keys.add(wire.answer(call).plan)
    assert len(keys) == plans


def test_weights_that_are_there_are_not_sent_again():
    wire = ready_wire("a")
    wire.add_agent("b")
    wire.settle()
    wire.prepare()
    (a, _) = wire.agents
    seen = []
    while wire.pending():
        for key in wire.pending():
            if key == (b"", a):
                seen += [b"WeightChunk" in bytes(frames[0]) for frames in wire.queues[key]]
            wire.deliver(key)
    assert seen
    assert not any(seen)


def test_preparing_without_agents_or_model_is_refused():
    wire = Wire()
    unknown = wire.prepare()
    wire.settle()
    assert wire.answer(unknown).fault is c.Fault.UNKNOWN_MODEL
    wire.offer()
    nobody = wire.prepare()
    wire.settle()
    assert wire.answer(nobody).fault is c.Fault.UNAVAILABLE


def test_requests_wait_for_agents_that_were_there_until_their_deadline():
    """A cluster that has had agents gets them back; one that never had any refuses at once."""
    wire = ready_wire("a")
    wire.crash(wire.agent("a"))
    patient, hasty = wire.run(), wire.run(deadline_s=3.0)
    wire.wait(4.0)
    assert wire.answers[patient] == []
    assert wire.answer(hasty).reason.partition(": ")[2] == "its deadline of 3 s passed while it waited"
    wire.add_agent("a")
    assert isinstance(wire.until_answered(patient), c.RunResult)
    assert len(wire.jobs) == 1


def test_a_deadline_ends_a_request_everywhere():
    wire = ready_wire("a")
    agent = wire.agent("a")
    call = wire.run(deadline_s=0.3)
    wire.deliver_all()
    (start,) = wire.started.values()
    agent.dropped.clear()
    wire.now += 0.35
    wire.to_coordinator(ce.Tick())
    wire.deliver_all()
    assert wire.answer(call).reason == f"request {start.request}: its deadline of 0.3 s passed while it ran"
    assert agent.dropped == {(start.epoch, start.request)}
    assert wire.coordinator.requests.open == {}
    assert wire.started == {}


def test_cancel_ends_a_request_without_an_answer():
    wire = ready_wire("a")
    agent = wire.agent("a")
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    agent.dropped.clear()
    wire.carry_client(wire.client.cancel(call))
    wire.deliver_all()
    wire.settle()
    assert wire.answers[call] == []
    assert wire.coordinator.requests.open == {}
    assert agent.dropped == {(start.epoch, start.request)}


def test_a_kernel_error_names_the_agent():
    wire = ready_wire("a")
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    wire.to_agent(wire.agent("a"), m.RequestFailed(start.epoch, start.request, "segment 's': broken"))
    wire.deliver_all()
    assert wire.answer(call).reason == "agent 'a': segment 's': broken"


def test_an_error_of_an_agent_that_has_no_part_in_a_request_is_not_believed():
    """Bug 14 of the review: the epoch fits, but the sender is none of its agents."""
    wire = ready_wire("a", "b", options=PlanOptions(planner="auto", objective="throughput"))
    call = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    (name,) = wire.nodes_of(start)
    other = wire.agent("b" if name == "a" else "a")
    wire.to_coordinator(ce.FromPeer(other.identity, m.RequestFailed(start.epoch, start.request, "a lie")))
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)


def test_a_new_coordinator_adopts_what_the_agents_hold():
    """It is started again while a request runs: the client says that again, the plan serves as before, and nothing is planned or loaded."""
    wire = ready_wire("a", "b")
    loaded = {agent.name: set(agent.loaded) for agent in wire.agents.values()}
    call = wire.run()
    wire.deliver_all()
    wire.restart_coordinator()
    for _ in range(30):
        wire.wait(0.1)
        if wire.started:
            break
    (start,) = wire.started.values()
    assert wire.nodes_of(start) == ("a", "b")
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert {agent.name: agent.loaded for agent in wire.agents.values()} == loaded
    assert len(wire.jobs) == 1


def test_deployments_are_bounded_and_the_least_recently_used_one_goes():
    wire = ready_wire("a")
    (agent,) = wire.agents.values()
    for width in range(3, MAX_LOADED + 18):
        wire.now += 1
        wire.to_agent(agent, ae.AgentTick())
        wire.call(lambda n, width=width: c.PrepareModel(n, wire_model(wire), {"x": (width,)}, plan_options()))
        wire.settle()
    assert len(agent.loaded) == MAX_LOADED
    assert len(wire.coordinator.loading.by_epoch) == MAX_LOADED
    assert min(agent.loaded) > 1


def wire_model(wire):
    return next(iter(wire.coordinator.uploads._offers))


def plan_options():
    from bbgrap.planners.options import PlanOptions

    return PlanOptions()


def test_messages_of_strangers_change_nothing():
    wire = ready_wire("a")
    before = wire.coordinator.status.nodes()
    for message in (
        m.Deployed(1),
        m.WeightsMissing(1, ()),
        m.RequestFailed(1, 1, "x"),
        m.Leave("bye"),
        m.Measured(1, None, ""),
        m.LinksMeasured(1, (), ""),
    ):
        done = wire.coordinator.handle(ce.FromPeer(b"stranger", message), wire.now)
        assert done == [coordinator_instructions.ToAgent(b"stranger", m.Rejoin())]
    assert wire.coordinator.status.nodes() == before
    assert wire.coordinator.handle(ce.FromPeer(CLIENT, c.Cancel(99)), wire.now) == []


def test_a_slow_transfer_is_neither_begun_again_nor_given_up():
    """Weights that trickle in for ten minutes are sent once; an agent that loses a chunk asks after ten silent seconds."""
    wire = Wire()
    wire.add_agent("a")
    wire.settle()
    wire.offer()
    call = wire.prepare()
    (key,) = wire.agents
    chunks = 0
    for _ in range(40):
        for queue in wire.pending():
            frames = wire.queues[queue]
            held = [f for f in frames if b"WeightChunk" in bytes(f[0])]
            chunks = max(chunks, len(held))
            wire.queues[queue] = held
            for other in [f for f in frames if f not in held]:
                wire.queues[queue].insert(0, other)
                wire.deliver(queue)
        wire.to_coordinator(ce.FromPeer(key, m.WeightStored("ab" * 32, 1)))
        wire.pass_time(0.5)
    assert chunks <= 3
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
