"""Stories that `make simulate` has told, with the machines alone; each names its seed."""

from dataclasses import replace

from bbgrap.control import agent_events as ae
from bbgrap.control import client as cm
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.agent import AgentMachine
from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.loading import RESEND_S
from bbgrap.control.open_requests import UNASKED_S
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.planning import EARNED, SETTLE_S
from bbgrap.control.plans import FIRST_AGAIN_S, IN_USE_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import MODEL, artifacts, whole
from tests.bbgrap.control.wire import Wire, introduction, joined_wire, ready_wire


def told(wire, name):
    """What is on its way to an agent."""
    seen = []
    identity = wire.coordinator.members.by_name[name].identity
    carry = wire.carry_coordinator

    def watch(instruction):
        if isinstance(instruction, coordinator_instructions.ToAgent) and instruction.identity == identity:
            seen.append(instruction.message)
        carry(instruction)

    wire.carry_coordinator = watch
    return seen


def held_agent(epoch):
    """An agent that was asked to load an epoch, and checks its weights."""
    agent = AgentMachine(introduction("a"), 0.0)
    agent.handle(ae.Received(m.Welcome(1, 0.1, 0.6)), 0.0)
    part = artifacts(1).devices[0]
    deploy = m.Deploy(epoch, (m.Peer(0, "a", "tcp://a:1"),), part.schedule, part.segments)
    agent.handle(ae.Received(deploy), 0.0)
    return agent, deploy


def test_whoever_is_tried_is_told_again_whose_pings_to_answer():  # 300961: said while its control connection lost messages
    wire = ready_wire("a", "b")
    seen = told(wire, "b")
    wire.say("a", m.LinkBroken(wire.coordinator.members.by_name["b"].join.data_address, "reset"))
    assert any(isinstance(message, m.AnswerPings) and "a" in {p.name for p in message.peers} for message in seen)


def test_who_joins_again_hears_whom_it_tries():  # 37797272: said on a connection of before, it was tried anew four seconds later
    wire = ready_wire("a", "b")
    seen = told(wire, "b")
    wire.say("b", m.LinkBroken(wire.coordinator.members.by_name["a"].join.data_address, "reset"))
    (asked,) = [message for message in seen if isinstance(message, m.TryLinks)]
    seen.clear()
    wire.say("b", replace(introduction("b"), holds=tuple(wire.coordinator.loading.by_epoch)))
    assert asked in seen
    wire.say("b", m.LinksTried(asked.trial, ()))
    seen.clear()
    wire.say("b", replace(introduction("b"), holds=tuple(wire.coordinator.loading.by_epoch)))
    assert not any(isinstance(message, m.TryLinks) for message in seen)


def test_who_joins_again_hears_what_ends_something():  # 301032: a coordinator that had been stopped gave up a request first
    agent, deploy = held_agent(7)
    agent.handle(ae.AgentTick(m.Heartbeat()), 10.0)
    assert agent.state == "joining"
    assert m.Abandon(7, 8, 60.0) in agent.handle(ae.Received(m.Abandon(7, 8, 60.0)), 10.0)
    assert m.Release(7) in agent.handle(ae.Received(m.Release(7)), 10.0)
    assert agent.handle(ae.Received(deploy), 10.0) == []


def test_a_kernel_of_a_deployment_that_is_gone_ends_too():  # 320102: it hung, and the next membership kept nothing
    agent, _ = held_agent(7)
    done = agent.handle(ae.Received(m.Welcome(2, 0.1, 0.6, (), 9)), 0.0)
    assert m.Release(7) in done
    assert ae.DropBefore(9) in done
    assert m.Abandon(7, 10, 0.5) in agent.handle(ae.Received(m.Abandon(7, 10, 0.5)), 0.0)


def test_answers_of_two_loads_of_an_epoch_are_not_confused():  # 310666: the first one's came last, and the epoch seemed to be loaded
    agent, deploy = held_agent(7)
    assert agent.handle(ae.WeightsChecked(7, ()), 0.0) == [deploy]
    agent.handle(ae.Received(m.Release(7)), 0.0)
    assert agent.handle(ae.Received(deploy), 0.0) == []
    unload, check = agent.handle(ae.DeploymentLoaded(7), 0.0)
    assert unload == m.Release(7)
    assert isinstance(check, ae.CheckWeights)
    agent.handle(ae.WeightsChecked(7, ()), 0.0)
    assert agent.handle(ae.DeploymentLoaded(7, "no memory"), 0.0) == [
        m.Release(7),
        ae.ToCoordinator(m.DeploymentFailed(7, "no memory")),
    ]


def test_a_kernel_that_nobody_wants_is_told_of_until_it_ends():  # 311367: the only message was lost with a connection
    wire = ready_wire("a", "b")
    (epoch, *_) = wire.coordinator.loading.by_epoch
    seen = told(wire, "a")
    wire.say("a", m.Heartbeat(epoch, 999, 0.5, 1, 0))
    assert not any(isinstance(message, m.Abandon) for message in seen)
    for gone in (epoch, 12345):
        wire.now += 2.0
        wire.say("a", m.Heartbeat(gone, 999, 2.0, 1, 0))
        assert isinstance(seen[-1], m.Abandon)
        assert (seen[-1].epoch, seen[-1].request) == (gone, 999)


def test_what_was_taken_back_goes_on_for_no_longer_than_its_deadline():  # 300329: a kernel that hangs held its agent for a minute
    wire = ready_wire("a", "b")
    wire.run(deadline_s=3.0)
    wire.deliver_all()
    (start,) = wire.started.values()
    name = wire.nodes_of(start)[0]
    seen = told(wire, name)
    wire.to_coordinator(ce.HostLinkBroken(wire.coordinator.members.by_name[name].join.data_address))
    (abandon,) = [message for message in seen if isinstance(message, m.Abandon)]
    assert abandon.patience_s <= 3.5


def test_one_failed_load_refuses_nothing_that_has_no_standby():  # 300101: a worker ran out of memory while it loaded
    wire = joined_wire("a", "b")
    wire.standby = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "it fits no node")
    wire.until_answered(wire.prepare())
    (variant,) = wire.coordinator.loading.by_epoch.values()
    call = wire.run()
    wire.deliver_all()
    wire.say("a", m.DeploymentFailed(variant.epoch, "no memory"))
    assert isinstance(wire.until_answered(call), c.RunResult)


def test_what_waits_for_an_agent_that_is_away_keeps_nothing_else_from_loading():  # found by test_stateful
    wire = Wire(coordinator_settings.Settings("0.1.0", "tcp://head:1"))
    for name in "ab":
        wire.add_agent(name)
    wire.offer()
    call = wire.prepare()
    wire.crash(wire.agent("a"))
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_who_waits_is_answered_by_what_serves_when_the_newest_waits_for_an_agent():  # found by test_stateful
    wire = ready_wire("a", "b", options=PlanOptions(planner="auto"))
    wire.crash(wire.agent("a"))
    wire.wait(3.0)
    wire.until_answered(wire.prepare())
    wire.restart_coordinator()
    wire.add_agent("a")
    call = wire.prepare()
    wire.crash(wire.agent("a"))
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_a_plan_whose_newest_job_made_room_serves_with_what_was_made_before():  # 301029: it was never timed, and never served
    wire = ready_wire("a", "b", options=PlanOptions(planner="auto"))
    (plan,) = wire.coordinator.planning.plans.values()
    plan.serves, plan.timed, plan.latest = False, 0, plan.latest + 1000
    wire.coordinator.loading.touch(plan)
    wire.settle_for(2.0)
    assert plan.serving


def test_who_joins_again_hears_what_it_is_to_load():  # 330477: said while its connection was opened anew
    wire = joined_wire("a", "b")
    wire.prepare()
    while not wire.coordinator.loading.loading_agents:
        wire.deliver(wire.pending()[0])
    identity = wire.coordinator.members.by_name["a"].identity
    seen = told(wire, "a")
    wire.to_coordinator(ce.FromPeer(identity, introduction("a")))
    (asked,) = [message for message in seen if isinstance(message, m.TryLinks)]
    wire.say("a", m.LinksTried(asked.trial, ()))
    (deploy,) = [message for message in seen if isinstance(message, m.Deploy)]
    assert deploy.epoch in wire.coordinator.loading.by_epoch


def test_weights_that_were_lost_are_asked_for_when_their_deployment_is_said_again():  # 330146: 10 s, and others waited behind them
    agent, deploy = held_agent(7)
    digest = deploy.segments[0].weights["w"].digest
    agent.handle(ae.WeightsChecked(7, (digest,)), 0.0)
    assert agent.handle(ae.Received(deploy), 4.0) == []
    assert agent.handle(ae.Received(deploy), RESEND_S + 0.1) == [ae.ToCoordinator(m.WeightsMissing(7, (digest,)))]


def test_what_an_agent_was_never_told_to_load_is_said_again_although_its_worker_ends():  # 30492: each time it was put off
    wire = joined_wire("a", "b")
    wire.prepare()
    while not wire.coordinator.loading.loading_agents:
        wire.deliver(wire.pending()[0])
    seen, began = told(wire, "a"), wire.now
    for seconds in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, RESEND_S + 0.1):
        wire.now = began + seconds
        for name in "ab":
            wire.say(name, m.Heartbeat())
        wire.say("a", m.WorkerLost("it ended", 0, 0, m.EndedBy.OUTSIDE, 0))
        wire.to_coordinator(ce.Tick())
    assert any(isinstance(message, m.Deploy) for message in seen)


def test_the_next_worker_knows_what_was_abandoned():  # 30499: what was on its way to the last one it ran for ever
    agent, _ = held_agent(7)
    agent.handle(ae.Received(m.Abandon(7, 8, 60.0)), 0.0)
    agent.handle(m.WorkerLost("out of memory", 0, 0, m.EndedBy.MEMORY), 0.0)
    assert m.Abandon(7, 8, 60.0) in agent.handle(ae.WorkerReady(introduction("a")), 0.0)


def test_what_waits_goes_on_when_nothing_takes_unusually_long_any_more():  # 40018: others had ended sooner between two heartbeats
    wire = ready_wire("a", "b")
    variants = list(wire.coordinator.loading.by_epoch.values())
    for seconds, beat in ((1.0, m.Heartbeat(variants[-1].epoch, 999, 0.5, 1, 0)), (0.01, None)):
        for variant in variants:
            variant.usual_s = seconds
        for name in "ab" if beat is not None else ():
            wire.say(name, beat)
    wire.run()
    wire.deliver_all()
    assert not wire.started
    for name in "ab":
        wire.say(name, m.Heartbeat(0, 0, 0.0, 2, 0))
    assert wire.started


def use(wire, width):
    """Ask for other shapes without waiting for their plan, until it is earned; returns what is said of them then."""

    def ask():
        call = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (width, 2)}, PlanOptions(), wait=False))
        wire.settle()
        return wire.answer(call)

    key = ask().plan
    for _ in range(EARNED):
        call = wire.call(lambda n: c.RunModel(n, key, 30.0, (), ()))
        wire.settle()
        assert isinstance(wire.answer(call), c.RunResult)
    wire.settle_for(1.0)
    return ask()


def test_plans_in_use_do_not_evict_each_other():
    wire = joined_wire("a", "b")
    answers = [use(wire, width) for width in range(2, MAX_LOADED + 4)]
    assert all(isinstance(answer, c.ModelPrepared) for answer in answers)
    plans = list(wire.coordinator.planning.plans.values())
    served = [plan for plan in plans if plan.serving]
    assert 0 < len(served) < len(plans)
    assert plans[: len(served)] == served
    assert "no room beside" in answers[-1].report
    epochs = set(wire.coordinator.loading.by_epoch)
    assert len(epochs) <= 2 * MAX_LOADED
    for _ in range(40):
        for plan in plans:
            plan.asked = wire.now
        wire.pass_time(0.5)
        wire.settle()
    assert epochs <= set(wire.coordinator.loading.by_epoch)
    # What nobody asks for any more goes.
    for plan in plans[:-1]:
        plan.asked = wire.now - IN_USE_S - 1.0
    for _ in range(200):
        plans[-1].asked = wire.now
        wire.pass_time(0.5)
        wire.settle()
    assert plans[-1].serving


def test_a_plan_is_loaded_when_its_standby_turns_out_to_fit_no_node_after_it():  # 841: a planner of the standby had failed before
    wire = joined_wire("a", "b")
    jobs = []
    wire.standby = jobs.append
    call = wire.prepare()
    wire.deliver_all()
    (job,) = jobs
    assert wire.coordinator.loading.by_epoch
    assert not wire.answers[call]
    giant = PlannedVariant("standby", whole(1, 0), {"planner": "standby", "memory_bytes": 1 << 62})
    wire.carry_plan(ce.Planned(job.job, (giant,)))
    wire.settle()
    assert isinstance(wire.answers[call][0], c.ModelPrepared)


def test_a_request_that_is_taken_back_keeps_its_place():  # 1004185: behind 90 others it waited until its deadline
    wire = ready_wire("a", "b")
    for _ in range(12):
        wire.run()
    wire.deliver_all()
    requests = wire.coordinator.requests
    oldest = min(requests.open.values(), key=lambda request: request.number)
    assert oldest.epoch
    assert oldest.plan.waiting
    requests.recovery.take_back(wire.coordinator.loading.by_epoch.get(oldest.epoch), [oldest.number])
    requests.go_on(wire.now)
    assert oldest.epoch


def test_what_an_agent_has_lost_is_loaded_again_although_nobody_heard_of_it():  # 2011183: its control connection broke just then
    wire = ready_wire("a", "b")
    variant = next(v for v in wire.coordinator.loading.by_epoch.values() if "a" in v.parts and not v.plan.is_standby)
    seen = told(wire, "a")
    held = [v.epoch for v in wire.coordinator.loading.of_member("a") if v is not variant]
    wire.say("a", replace(introduction("a"), holds=tuple(held)))
    assert not variant.is_ready
    (asked,) = [message for message in seen if isinstance(message, m.TryLinks)]
    wire.say("a", m.LinksTried(asked.trial, ()))
    assert [message.epoch for message in seen if isinstance(message, m.Deploy)] == [variant.epoch]
    wire.settle()
    assert variant.is_ready


def test_failures_in_a_row_over_other_agents_each_time_are_one():  # 2005494: three agents came and went in a second, and it waited 32
    (plan,) = ready_wire("a", "b").coordinator.planning.plans.values()
    for moment in (1.0, 1.3, 1.6, 1.9):
        plan.fails(f"world {moment}", c.Fault.EXECUTION, "planner: it ended by SIGKILL", moment)
    assert plan.again_at == 1.9 + FIRST_AGAIN_S
    plan.try_again(plan.again_at)
    plan.fails("world", c.Fault.EXECUTION, "planner: it ended by SIGKILL", 10.0)
    assert plan.again_at == 10.0 + 2 * FIRST_AGAIN_S


def test_a_heartbeat_about_a_run_that_has_ended_keeps_nobody_waiting():  # 2018876: the next one was taken back
    wire = ready_wire("a", "b")
    first = wire.run()
    wire.deliver_all()
    (start,) = wire.started.values()
    wire.settle()
    assert isinstance(wire.answer(first), c.RunResult)
    wire.run()
    wire.deliver_all()
    (running,) = wire.started
    for name in wire.nodes_of(start):
        wire.say(name, m.Heartbeat(start.epoch, start.request, 9.0, 1, 0))
    assert list(wire.started) == [running]


def test_no_request_waits_for_synthetic_ones_of_two_plans():  # 2018876: one plan had been timed, and the next one's began at once
    wire = joined_wire("a", "b", options=PlanOptions(planner="auto"), seconds={("a",): 0.1, ("b",): 0.1, ("a", "b"): 0.1})
    for width in (2, 3):
        wire.call(lambda n, width=width: c.PrepareModel(n, MODEL, {"x": (width, 2)}, wire.options))
    for _ in range(3):
        wire.deliver_all()
        wire.finish_requests()
    plans = list(wire.coordinator.planning.plans.values())
    assert all(plan.timing is not None for plan in plans)
    for _ in range(40):
        call = wire.call(lambda n: c.RunModel(n, plans[0].key, 30.0, (), ()))
        wire.deliver_all()
        for _ in range(2):
            wire.finish_requests()
            wire.deliver_all()
        assert wire.answers[call]
        wire.wait(0.2)
    assert all(plan.serving for plan in plans)


def test_every_plan_of_a_model_is_loaded_once_the_model_is_proven():  # only the one whose turn it was, and who waited for others waited on
    wire = joined_wire("a", "b")
    wire.wait(SETTLE_S + 1.0)
    calls = [wire.call(lambda n, width=width: c.PrepareModel(n, MODEL, {"x": (width, 2)}, wire.options)) for width in (2, 3)]
    for call in calls:
        wire.until_answered(call)


def test_what_waits_for_a_client_that_is_gone_is_forgotten():  # 2023615: it had another key twice, and its requests ran three times
    wire = ready_wire("a", "b")
    for _ in range(12):
        wire.run()
    wire.deliver_all()
    (plan,) = wire.coordinator.planning.plans.values()
    wire.wait(UNASKED_S + 1.0)
    assert plan.waiting
    assert len(wire.coordinator.requests.open) == 12
    wire.client = cm.ClientMachine("tcp://head:7070")
    wire.wait(UNASKED_S + 1.0)
    assert not plan.waiting


def test_a_request_that_came_before_an_agent_is_not_void_there():  # 33010595: what it begins has no lower number than what it dropped
    wire = ready_wire("a", "b")
    for name in ("a", "b"):
        wire.crash(wire.agent(name))
    wire.pass_time(1.0)
    call = wire.run()
    wire.deliver_all()
    assert not wire.started
    wire.add_agent("c")
    started = []
    carry = wire.carry_coordinator

    def watch(instruction):
        if isinstance(instruction, coordinator_instructions.StartRequest):
            started.append(instruction.request)
        carry(instruction)

    wire.carry_coordinator = watch
    assert isinstance(wire.until_answered(call), c.RunResult)
    assert started
    assert min(started) > wire.coordinator.members.by_name["c"].first_request > 0
