"""Synthetic requests that prove a model: they end, or are repeated, and a model that is slow is not taken for one that never ends.

Those that time a plan keep nobody waiting for a request that does not end.
"""

import json
from dataclasses import replace

from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, stalls, standby
from bbgrap.control.planning import standby_key
from bbgrap.control.synthetic_requests import SLOWER, UNASKED_S
from bbgrap.control.uploads import offer_digest
from bbgrap.control.variants import PROBE_WITHIN_S, TIMING_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol import tensors
from tests.bbgrap.control.test_dispatch import reach
from tests.bbgrap.control.tiny_plans import FILE, MODEL, plan_of, standby_of
from tests.bbgrap.control.wire import Wire, joined_wire, prepare_message, standby_wire

ALONE_S = 20.0
GIVEN_BYTES = 8
"""Inputs of the standby."""


class Computing(Wire):
    """A wire whose agents compute the requests that have begun, as far as their heartbeats say."""

    idle = False

    def pass_time(self, seconds):
        self.now += seconds
        for agent in list(self.agents.values()):
            mine = [start for start in self.started.values() if agent.name in self.nodes_of(start)]
            beats = [m.Heartbeat(start.epoch, number, 1.0) for number, start in self.started.items() if start in mine and not self.idle]
            self.to_agent(agent, ae.AgentTick(next(iter(beats), m.Heartbeat())))
        self.to_coordinator(ce.Tick())
        self.carry_client(self.client.tick(self.now))


def proving(alone_s=0.0, *, state=False, wait=True):
    """A wire in the middle of a proof, the call for its plan, and the proof's number."""
    wire = Computing()
    wire.plan = lambda job: replace(
        plan_of(job),
        variants=tuple(replace(v, report={**v.report, "predicted_single_node_ms": 1e3 * alone_s}) for v in plan_of(job).variants),
    )
    if state:  # the same program goes on from it: what it does is of no interest here
        wire.standby = lambda job: replace(
            standby_of(job),
            variants=tuple(replace(v, artifacts=replace(v.artifacts, further=v.artifacts.host)) for v in standby_of(job).variants),
        )
    for name in ("a", "b"):
        wire.add_agent(name)
    wire.settle()
    wire.offer()
    wire.settle()
    call = wire.call(lambda n: replace(prepare_message(n, wire.options), wait=wait))
    if not wait:  # only a request lets a plan be made, and this one ends before there is anything to run it on
        wire.settle()
        wire.carry_client(wire.client.cancel(wire.run()))
    return wire, call, begun(wire)


def begun(wire):
    """Wait for a synthetic request, and return its number."""
    while not wire.started:
        wire.pass_time(0.1)
        wire.deliver_all()
    (number,) = wire.started
    return number


def test_a_proof_that_is_overdue_is_tried_again_also_where_the_worker_leaves_it():
    wire, call, first = proving()
    wire.wait(PROBE_WITHIN_S + 1)
    assert not wire.answers[call]
    assert first in {number for agent in wire.agents.values() for _, number in agent.dropped}
    (second,) = wire.started
    assert second != first
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_a_proof_takes_the_longer_the_slower_a_model_is_predicted_to_be():
    wire, call, number = proving(ALONE_S)
    wire.wait(PROBE_WITHIN_S + SLOWER * ALONE_S - 1)
    assert set(wire.started) == {number}
    wire.wait(2)
    assert number not in wire.started
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_where_nobody_waits_one_agent_is_taken_for_a_short_proof_until_somebody_does():
    wire, _, number = proving(ALONE_S, wait=False)
    limit_s = UNASKED_S + SLOWER * ALONE_S
    wire.wait(limit_s - 1)
    assert set(wire.started) == {number}
    wire.wait(2)
    assert not wire.started
    wire.wait(limit_s)
    assert not wire.started
    call = wire.prepare()
    number = begun(wire)
    wire.wait(limit_s + 1)
    assert set(wire.started) == {number}
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_a_proof_waits_for_state_on_its_way_and_is_repeated_if_that_is_lost(monkeypatch):
    arriving_s = 2 * PROBE_WITHIN_S
    monkeypatch.setattr(stalls, "SLOWEST_FOR_STATE", GIVEN_BYTES / arriving_s)
    wire, call, number = proving(state=True)
    wire.idle = True
    wire.wait(arriving_s)
    assert set(wire.started) == {number}
    wire.wait(stalls.UNAWAITED_STALLED_S + 2)
    assert number not in wire.started
    assert isinstance(wire.until_answered(call), c.ModelPrepared)


def test_a_kernel_of_a_proof_that_is_taken_back_may_take_as_long_as_before():
    wire, _, number = proving(ALONE_S)
    (start,) = wire.started.values()
    variant = wire.coordinator.loading.by_epoch.get(start.epoch)
    abandons = [
        done
        for done in wire.coordinator.requests.synthetic.taken_back(variant, is_lost=True)
        if isinstance(done, coordinator_instructions.ToAgent)
    ]
    assert [done.message for done in abandons] == [m.Abandon(start.epoch, number, PROBE_WITHIN_S + SLOWER * ALONE_S)]


def test_a_proof_that_fails_proves_that_the_model_ends():
    wire, call, number = proving()
    wire.started.clear()
    wire.to_coordinator(ce.RequestBroke(number, c.Fault.EXECUTION, "division by zero"))
    for _ in range(5):
        wire.deliver_all()
        assert not wire.started, "it is proven"
        wire.pass_time(0.1)
    assert isinstance(wire.answer(call), c.ModelPrepared)


def test_a_plan_whose_synthetic_requests_do_not_end_serves_all_the_same():
    wire = joined_wire("a", "b", options=PlanOptions(planner="auto"))
    call = wire.prepare()
    reach(wire, "measuring")
    ((number, start),) = wire.started.items()
    for _ in range(round(10 * PROBE_WITHIN_S) + 2):
        assert not wire.answers[call]
        wire.now += 0.1
        for agent in list(wire.agents.values()):
            wire.to_agent(agent, ae.AgentTick(m.Heartbeat(start.epoch, number, 1.0)))
        wire.to_coordinator(ce.Tick())
        wire.carry_client(wire.client.tick(wire.now))
        wire.deliver_all()
        if number not in wire.started:
            break
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert number in {dropped for agent in wire.agents.values() for _, dropped in agent.dropped}


def unplanned(wire, *names):
    """Agents of these names, two with a copy each of a model that is not planned yet."""
    for name in names:
        wire.add_agent(name)
    wire.settle()
    wire.offer()
    wire.settle()
    wire.plan = lambda _: None
    wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    wire.settle_for(0.5)
    return wire


def test_no_request_waits_for_one_that_does_not_end_because_a_plan_is_to_be_timed():
    wire = unplanned(Computing(options=PlanOptions(planner="auto")), "a", "b", "c")
    endless = wire.run(deadline_s=60.0)
    wire.deliver_all()
    ((number, start),) = wire.started.items()
    assert len(wire.nodes_of(start)) == 1

    def finish_others():
        wire.deliver_all()
        kept = wire.started.pop(number)
        wire.finish_requests()
        wire.started = {number: kept, **wire.started}
        wire.deliver_all()

    wire.plan = plan_of
    second = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options))
    for _ in range(30):
        call = wire.run()
        finish_others()
        wire.wait(0.4)
        finish_others()
        assert wire.answers.get(call), "it waits for one that does not end"
    assert not wire.answers.get(endless)
    assert isinstance(wire.answer(second), c.ModelPrepared), "what does not end keeps no plan from serving"
    (plan,) = [plan for plan in wire.coordinator.planning.plans.values() if plan.shapes == {"x": (3, 2)}]
    assert plan.serves


def agents_in_use(wire):
    return {name for start in wire.started.values() for name in wire.nodes_of(start)}


def test_a_model_that_has_answered_nothing_yet_has_one_agent_at_a_time():
    wire = unplanned(Computing(), "a", "b")
    calls = [wire.run() for _ in range(3)]
    for _ in range(20):
        wire.deliver_all()
        assert len(agents_in_use(wire)) == 1
        wire.pass_time(0.1)
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    calls = [wire.run() for _ in range(2)]
    wire.deliver_all()
    assert agents_in_use(wire) == {"a", "b"}, "it ends"
    wire.settle()


def test_nothing_is_made_up_for_a_model_that_has_run_into_a_deadline_unless_somebody_waits_for_its_plan():
    wire = unplanned(Computing(), "a", "b")
    late = wire.run(deadline_s=1.0)
    wire.plan = plan_of
    planned = wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
    for _ in range(50):
        wire.deliver_all()
        wire.pass_time(0.1)
    assert "its deadline of 1 s passed while it ran" in wire.answer(late).reason
    assert wire.answer(planned)
    assert not wire.started, "no client waits"
    second = wire.call(lambda n: prepare_message(n, wire.options))
    wire.deliver_all()
    assert wire.started, "the plan is waited for"
    assert wire.until_answered(second).agents == ("a", "b")


def test_requests_of_a_model_wait_for_its_proof_and_none_is_made_up_where_one_runs():
    wire, _, number = proving()
    call = wire.run()
    for _ in range(20):
        wire.deliver_all()
        assert len(agents_in_use(wire)) == 1
        wire.pass_time(0.1)
    assert number in wire.started
    assert not wire.answers.get(call)
    wire.finish_requests()
    wire.until_answered(call)

    wire = standby_wire()
    wire.run()
    wire.deliver_all()
    ((first, _),) = wire.started.items()
    wire.plan = plan_of
    second = wire.call(lambda n: c.PrepareModel(n, MODEL, {"x": (3, 2)}, wire.options))
    for _ in range(3):
        wire.deliver_all()
        assert set(wire.started) == {first}
        Wire.pass_time(wire, 0.05)
    wire.until_answered(second)


def bring_another(wire):
    """Bring one more model, and return its digest."""
    files = (replace(FILE, name="other.onnx"),)
    other = offer_digest(files)
    wire.call(lambda n: c.OfferModel(n, other, files))
    wire.call(lambda n: replace(prepare_message(n, wire.options), model=other, wait=False))
    return other


def test_a_copy_that_is_proved_makes_no_room_for_other_models(monkeypatch):
    """Without it the proof would never end, and requests of its model would wait for that."""
    wire, _, number = proving(ALONE_S, wait=False)
    monkeypatch.setattr(standby, "MAX_STANDBYS", 1)
    bring_another(wire)
    wire.deliver_all()
    assert number in wire.started
    call = wire.run()
    wire.finish_requests()
    wire.deliver_all()
    wire.finish_requests()
    assert isinstance(wire.until_answered(call), c.RunResult)
    bring_another(wire)
    wire.deliver_all()
    assert wire.coordinator.standbys.by_model[standby_key(MODEL)].is_dormant, "it goes afterwards"


def test_a_new_model_is_loaded_where_no_other_one_does_not_end():
    wire = unplanned(Computing(), "a", "b")
    wire.run(deadline_s=60.0)
    wire.deliver_all()
    (start,) = wire.started.values()
    (stuck,) = wire.nodes_of(start)
    wire.wait(0.5)
    other = bring_another(wire)
    for _ in range(20):
        wire.deliver_all()
        wire.pass_time(0.1)
    first = wire.coordinator.standbys.by_model[standby_key(other)].variants[0]
    assert first.is_ready
    assert stuck not in first.parts


def test_a_plan_of_inputs_that_are_too_large_to_make_serves_without_having_been_timed(monkeypatch):
    monkeypatch.setattr(tensors, "MAX_ONES_BYTES", GIVEN_BYTES - 1)
    wire = joined_wire("a", "b", options=PlanOptions(planner="auto"))
    call = wire.prepare()
    for _ in range(20):
        wire.deliver_all()
        assert not wire.started, "neither a proof nor a timing"
        wire.pass_time(0.1)
    assert "measured" not in json.loads(wire.answer(call).report)
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


def test_a_coordinator_that_comes_back_takes_no_agent_to_find_out_whether_a_model_ends():
    """It does not know whether a standby ever answered. The next request that ends tells it, and plans over new agents go on."""
    wire, call, _ = proving()
    wire.until_answered(call)
    wire.wait(60)
    wire.restart_coordinator()
    wire.settle()
    began, carry = [], wire.carry_coordinator

    def note(done):
        if isinstance(done, coordinator_instructions.StartRequest):
            began.append(wire.coordinator.requests.table.find(done.request))
        carry(done)

    wire.carry_coordinator = note
    wire.add_agent("c")
    wire.wait(60)
    wire.until_answered(wire.run())
    wire.wait(60)
    assert [request is not None for request in began] == [True], "the client's, and no other"
    (plan,) = wire.coordinator.planning.plans.values()
    assert len({variant.world for variant in plan.variants if variant.is_ready}) == 2


def test_a_synthetic_request_behind_a_segment_that_takes_long_is_not_begun_again_and_again():
    """The segment is of a request that nobody wants any more, in which a worker may be for a minute."""
    wire = joined_wire("a", "b", options=PlanOptions(planner="auto"))
    wire.prepare()
    reach(wire, "measuring")
    (number,) = wire.started
    for _ in range(5):
        wire.now += 0.1
        for agent in list(wire.agents.values()):
            wire.to_agent(agent, ae.AgentTick(m.Heartbeat(1, 1, 1.0)))
        wire.to_coordinator(ce.Tick())
        wire.deliver_all()
    assert set(wire.started) == {number}


class SlowToLoad(Wire):
    """A wire whose agents do not end loading the plans of one planner."""

    def carry_agent(self, agent, instruction):
        variant = self.coordinator.loading.by_epoch.get(instruction.epoch) if isinstance(instruction, m.Deploy) else None
        if variant is None or variant.plan.options is None or variant.plan.options.planner != "bbgrap":
            super().carry_agent(agent, instruction)


def test_a_plan_is_timed_once_its_nodes_load_nothing_else_but_waits_for_that_no_longer_than_timing_takes():
    """Loading takes processors: with several models at once, the slowest plan seemed to be the fastest."""
    wire = SlowToLoad()
    for name in ("a", "b"):
        wire.add_agent(name)
    wire.settle()
    wire.offer()
    wire.settle()
    mine = wire.call(lambda n: prepare_message(n, PlanOptions("auto")))
    other = wire.call(lambda n: prepare_message(n, PlanOptions("bbgrap")))
    wire.settle_for(0.5 * TIMING_S)
    (auto,) = [plan for plan in wire.coordinator.planning.plans.values() if plan.options.planner == "auto"]
    assert auto.timing is not None
    assert not auto.timing.medians()
    assert not wire.answers[mine]
    wire.settle_for(TIMING_S)
    assert auto.serves
    assert isinstance(wire.answer(mine), c.ModelPrepared)
    assert wire.coordinator.loading.loading_agents == {"a", "b"}
    assert not wire.answers[other]
