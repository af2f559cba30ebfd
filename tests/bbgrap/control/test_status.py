"""What a coordinator tells of itself, in stories on the fake wire."""

from dataclasses import replace

import pytest

from bbgrap.cluster.types import COORDINATOR, LinkProfile, NodeProfile
from bbgrap.control import coordinator_events as ce
from bbgrap.control import request_statistics, traffic
from bbgrap.control.coordinator_events import Noticed
from bbgrap.control.coordinator_instructions import Log
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.loading import KEEP_AWAY_S
from bbgrap.control.plans import FIRST_AGAIN_S
from bbgrap.control.request_statistics import MAX_COUNTED, MAX_EVENTS, MAX_GONE, OTHERS
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol import status_messages as s
from tests.bbgrap.control.counters import counters, total
from tests.bbgrap.control.tiny_plans import MODEL
from tests.bbgrap.control.wire import Wire, joined_wire, prepare_message, ready_wire


def told(wire: Wire, after: int = 0) -> s.Status:
    """Ask for the status, over the codecs."""
    call = wire.call(lambda number: s.ReadStatus(number, after))
    wire.deliver_all()
    answer = wire.answer(call)
    assert isinstance(answer, s.Status)
    return answer


def kinds(status: s.Status) -> list[str]:
    return [event.kind for event in status.events]


def test_a_cluster_without_anybody():
    status = told(Wire(Settings("0.1.0", "tcp://head:1", incarnation=4, started=1e9)))
    assert (status.version, status.incarnation, status.started) == ("0.1.0", 4, 1e9)
    assert (status.nodes, status.links, status.models, status.exchanges, status.events) == ((), (), (), (), ())


def test_nodes_and_times_are_those_of_the_coordinator():
    wire = Wire(Settings("0.1.0", "tcp://head:1", started=1e9))
    wire.now = 5.0
    wire.add_agent("a")
    wire.settle()
    (node,) = told(wire).nodes
    assert (node.name, node.state, node.version, node.profile) == ("a", "alive", "0.1.0", None)
    assert node.since == pytest.approx(1e9 + wire.now, abs=1)
    assert told(wire).uptime_s == pytest.approx(wire.now)


def test_a_heartbeat_tells_memory_and_how_busy_an_agent_is():
    wire = joined_wire("a")
    (member,) = wire.coordinator.members.alive()
    member.take(m.Heartbeat(used_bytes=5, free_bytes=7, busy_s=1.0), wire.now + 10.0)
    member.take(m.Heartbeat(used_bytes=5, free_bytes=7, busy_s=1.5), wire.now + 12.0)
    (node,) = told(wire).nodes
    assert (node.used_bytes, node.free_bytes, node.busy) == (5, 7, 0.25)
    member.take(m.Heartbeat(busy_s=0.0), wire.now + 14.0)  # another worker
    assert told(wire).nodes[0].busy == 0


def test_requests_are_counted_with_how_long_they_took_and_waited():
    wire = ready_wire("a", "b")
    calls = [wire.run() for _ in range(8)]
    wire.pass_time(0.0)
    (busy,) = told(wire).models
    assert (busy.waiting, busy.running) == (8 - busy.running, len(wire.started))
    assert sum(node.running for node in told(wire).nodes) >= busy.running > 0
    for call in calls:
        wire.until_answered(call)
    (model,) = told(wire).models
    assert (model.model, model.name) == (MODEL, "m")
    assert model.requests == {"done": 8, "failed": 0, "cancelled": 0, "refused": 0}
    assert sum(model.latency.counts) == 8
    assert 0 <= model.queued_s <= model.latency.sum_s
    (plan,) = model.plans
    assert (plan.requests, plan.serves, plan.waiting, plan.running) == (8, "plan", 0, 0)
    assert sum(variant.answered for variant in plan.variants) == 8


def test_a_request_whose_deadline_passes_is_a_failed_one():
    wire = ready_wire("a", "b")
    call = wire.run(deadline_s=0.5)
    wire.deliver_all()
    wire.started.clear()
    wire.wait(1.0)
    assert isinstance(wire.answer(call), c.Failed)
    (model,) = told(wire).models
    assert (model.requests["failed"], model.requests["done"], sum(model.latency.counts)) == (1, 0, 0)


def test_what_travels_is_counted_exactly_also_of_plans_that_are_gone():
    wire = ready_wire("a", "b")
    for _ in range(3):
        wire.until_answered(wire.run())
    sent = {(e.source, e.destination): e.bytes for e in told(wire).exchanges}
    row = 2 * 4  # floats that each device gets, and sends back
    assert sent == {("a", COORDINATOR): 3 * row, ("b", COORDINATOR): 3 * row, (COORDINATOR, "a"): 3 * row, (COORDINATOR, "b"): 3 * row}
    machine = wire.coordinator
    for variant in list(machine.loading.by_epoch.values()):
        machine.loading.release(variant)
    assert {(e.source, e.destination): e.bytes for e in told(wire).exchanges} == sent


def test_what_travels_for_requests_that_go_on_from_state_is_counted_too():
    wire = counters("a", "b")
    sent = []
    for step in range(3):
        assert total(wire, 1, step, 1) == step + 1
        sent.append(sum(exchange.bytes for exchange in told(wire).exchanges))
    assert sent == [sent[0], 2 * sent[0], 3 * sent[0]]
    assert sent[0]


def test_who_serves_and_why():
    wire = ready_wire("a", "b")
    (model,) = told(wire).models
    (plan,) = model.plans
    assert (plan.serves, plan.nodes, plan.planner) == ("plan", ("a", "b"), "bbgrap")
    assert plan.weight_bytes == {"a": 16, "b": 16}
    assert model.standby
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    (model,) = told(wire).models
    assert (model.plans[0].serves, model.plans[0].nodes) == ("standby", ("a",))
    assert model.plans[0].why in {"b is away", "a plan is being made", "the plan is being loaded"}


def test_why_there_is_no_plan_is_told_as_long_as_none_is_tried_again():
    """Of a model that fits no node it was told, after two seconds, that its plan would be made when more requests came."""
    wire, reason = joined_wire("a", "b"), "it fits the memory of these nodes in no split"
    wire.plan = wire.standby = lambda start: ce.PlanFailed(start.job, c.Fault.PLAN, reason)
    assert reason in wire.until_answered(wire.prepare()).reason
    wire.wait(FIRST_AGAIN_S + 60)
    (plan,) = told(wire).models[0].plans
    assert (plan.serves, plan.why) == ("nobody", f"{reason}; it is tried again when requests come")
    wire.plan = lambda _: None
    wire.prepare()
    wire.settle_for(0.5)
    (plan,) = told(wire).models[0].plans
    assert plan.why == "a plan is being made"


def test_why_a_slower_variant_serves_is_that_an_agent_of_the_faster_one_is_away():
    wire = ready_wire("a", "b", options=PlanOptions("auto"), seconds={("a", "b"): 0.01, ("a",): 0.02, ("b",): 0.02})
    (plan,) = told(wire).models[0].plans
    assert (plan.nodes, "timed in turns: " in plan.why, "away" in plan.why) == (("a", "b"), True, False)
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    (plan,) = told(wire).models[0].plans
    assert (plan.nodes, plan.why.endswith("; b is away")) == (("a",), True)


def test_events_tell_of_joining_plans_and_losses_once():
    wire = ready_wire("a", "b")
    status = told(wire)
    assert kinds(status)[:2] == ["joined", "joined"]
    assert {"loaded", "serves"} <= set(kinds(status))
    assert all(f"model 'm' ({MODEL[:8]})" in event.text for event in status.events if event.model)
    assert [event.number for event in status.events] == list(range(1, len(status.events) + 1))
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    later = told(wire, status.events[-1].number)
    assert (later.events[0].kind, later.events[0].node) == ("lost", "b")
    assert told(wire, later.events[-1].number + 1000).events[0].number == 1  # a number of another coordinator


def test_a_lost_agent_is_shown_until_it_is_back():
    wire = ready_wire("a", "b")
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    status = told(wire)
    assert {node.name: node.state for node in status.nodes} == {"a": "alive", "b": "lost"}
    assert list(status.lost_for_s) == ["b"]
    assert 0 < status.lost_for_s["b"] < 1
    wire.add_agent("b")
    wire.settle()
    assert {node.name: node.state for node in told(wire).nodes} == {"a": "alive", "b": "alive"}


def test_links_are_those_that_were_measured_and_those_that_are_down():
    wire = joined_wire("a", "b")
    members = wire.coordinator.members
    members.measured["a"] = NodeProfile("a", links=(LinkProfile("b", 1e8, 1e-3), LinkProfile("gone", 1e8, 1e-3)))
    assert told(wire).links == (s.LinkStatus("a", "b", 1e8, 1e-3, is_up=True),)
    wire.coordinator.links.apart[frozenset(("a", "b"))] = wire.now
    wire.coordinator.links.apart[frozenset(("b", COORDINATOR))] = wire.now
    assert told(wire).links == (s.LinkStatus("a", "b", 1e8, 1e-3, is_up=False), s.LinkStatus("b", COORDINATOR, 0.0, 0.0, is_up=False))


def test_a_recorded_request_tells_of_segments():
    wire = ready_wire("a", "b")
    call = wire.run(record=True)
    wire.until_answered(call)
    (model,) = told(wire).models
    (plan,) = model.plans
    assert [(segment.node, segment.segment) for segment in plan.segments] == [("a", 0), ("b", 0), (COORDINATOR, 0)]
    assert all(segment.measured_s == pytest.approx(1e-3) for segment in plan.segments)
    asked = wire.call(lambda number: s.ReadPlan(number, plan.plan))
    wire.deliver_all()
    shown = wire.answer(asked)
    assert isinstance(shown, s.PlanShown)
    assert (shown.devices, len(shown.records)) == (("a", "b", COORDINATOR), 3)
    unknown = wire.call(lambda number: s.ReadPlan(number, "0" * 64))
    wire.deliver_all()
    assert wire.answer(unknown).fault is c.Fault.UNKNOWN_PLAN


def test_what_is_kept_is_bounded():
    wire = ready_wire("a", "b")
    observed, (plan,) = wire.coordinator.statistics, wire.coordinator.planning.plans.values()
    for number in range(MAX_COUNTED + 10):
        observed.of_model(replace(plan, model=f"{number + 1:064x}")).ended["done"] += 1
    assert len(observed.counts) == MAX_COUNTED + 1
    assert observed.counts[OTHERS].ended["done"] >= 10
    for number in range(MAX_EVENTS + 10):
        wire.coordinator.handle(Noticed(f"token created: '{number}'"), wire.now)
    assert len(told(wire).events) == MAX_EVENTS
    (node, _) = told(wire).nodes
    for number in range(MAX_GONE + 10):
        observed.went(replace(node, name=f"n{number}"), "lost", wire.now)
    assert len(observed.gone) == MAX_GONE


def test_lines_of_the_log_without_an_event_are_none():
    wire = joined_wire("a")
    before = len(told(wire).events)
    wire.coordinator.statistics.note([Log("nothing of note")], wire.now)
    assert len(told(wire).events) == before


def test_what_the_standby_answers_counts_by_its_tensors():
    wire = ready_wire("a", "b")
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    before = {(e.source, e.destination): e.bytes for e in told(wire).exchanges}
    call = wire.run(payload=(bytes(16),))
    answer, now = wire.until_answered(call), {(e.source, e.destination): e.bytes for e in told(wire).exchanges}
    assert isinstance(answer, c.RunResult)
    assert before == {}
    assert now == {("a", COORDINATOR): sum(map(len, answer.payload)), (COORDINATOR, "a"): 16}


def test_what_travels_is_told_of_nodes_that_are_shown_however_many_have_been_there(monkeypatch):
    monkeypatch.setattr(traffic, "MAX_PAIRS", 8)
    monkeypatch.setattr(request_statistics, "MAX_GONE", 2)
    wire = joined_wire()
    wire.plan = lambda _: None
    for number in range(12):
        agent = wire.add_agent(f"pod-{number}")
        wire.settle_for(0.5)
        if not number:
            wire.call(lambda n: replace(prepare_message(n, wire.options), wait=False))
        for _ in range(5 if number < 11 else 1):  # it has answered less than each of those that are gone
            wire.until_answered(wire.run())
        if number < 11:
            wire.crash(agent)
            wire.wait(1.0)
    wire.wait(KEEP_AWAY_S)  # what was loaded on those that are gone is released
    status = told(wire)
    sent = {e.source for e in status.exchanges} - {COORDINATOR}
    assert agent.name in sent
    assert sent <= {node.name for node in status.nodes}


def test_what_an_operator_may_have_to_act_on_is_a_warning():
    wire = ready_wire("a", "b")
    wire.crash(wire.agent("b"))
    wire.wait(1.0)
    warns = {event.kind: Log("", event=event.kind).warns for event in told(wire).events}
    assert [warns[kind] for kind in ("lost", "joined", "loaded")] == [True, False, False]
    assert Log("", is_warning=True).warns


def test_who_has_a_worker_again_is_told():
    wire = ready_wire("a", "b")
    loaded = [variant.epoch for variant in wire.coordinator.loading.by_epoch.values() if "b" in variant.parts]
    before = told(wire).events[-1].number
    wire.say("b", m.WorkerLost("killed", 0, 0, m.EndedBy.OUTSIDE, 0))
    for epoch in loaded:
        assert not [event for event in told(wire, before).events if "loaded again" in event.text]
        assert [node.condition for node in told(wire).nodes] == ["alive", "loads again"]
        wire.say("b", m.Deployed(epoch))
    assert [node.condition for node in told(wire).nodes] == ["alive", "alive"]
    lost, again = told(wire, before).events
    assert (lost.kind, again.kind, again.node) == ("worker lost", "loaded", "b")
