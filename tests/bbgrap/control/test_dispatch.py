"""Stories of requests and variants: who is timed, who serves, what waits, and what becomes of it when a variant is lost."""

import json

import pytest

from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control.loading import MAX_LOADED
from bbgrap.control.membership import DEAD_AFTER_S
from bbgrap.control.variants import ROUNDS, TIMING_S, WARM_UP
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import CLIENT, joined_wire, ready_wire, record_of

AUTO = PlanOptions(planner="auto")
STREAM = PlanOptions(planner="auto", objective="throughput")
BOTH, ALONE = ("a", "b"), ("a",)


def timed_wire(both, alone, options=AUTO):
    """Two agents; a request takes that long on both of them and on the best one alone."""
    return ready_wire("a", "b", options=options, seconds={BOTH: both, ALONE: alone})


def served(wire, count):
    """Run requests one after the other; returns which nodes took them."""
    took = []
    for _ in range(count):
        call = wire.run()
        wire.deliver_all()
        (start,) = wire.started.values()
        took.append(tuple(peer.name for peer in wire.parts[start.epoch]))
        wire.settle()
        assert isinstance(wire.answer(call), c.RunResult)
    return took


def prepared(wire):
    call = wire.prepare()
    wire.settle()
    answer = wire.answer(call)
    assert isinstance(answer, c.ModelPrepared)
    return answer, json.loads(answer.report)


@pytest.mark.parametrize(
    ("both", "alone", "nodes", "name"), [(0.1, 0.2, BOTH, "auto"), (0.2, 0.1, ALONE, "single on a"), (1.0, 2.0, BOTH, "auto")]
)
def test_variants_are_timed_before_the_answer_and_the_fastest_serves(both, alone, nodes, name):
    wire = timed_wire(both, alone)
    rounds = WARM_UP + ROUNDS if (both + alone) * (WARM_UP + ROUNDS) < TIMING_S else 2
    assert wire.now == pytest.approx((both + alone) * rounds)
    _, report = prepared(wire)
    assert report["planner"] == name.partition(" ")[0]
    assert report["nodes_used"] == list(nodes)
    measured = [
        {"name": "auto", "nodes": ["a", "b"], "median_ms": pytest.approx(1e3 * both)},
        {"name": "single on a", "nodes": ["a"], "median_ms": pytest.approx(1e3 * alone)},
    ]
    assert report["measured"] == {"variants": measured, "routes": measured, "chosen": [name]}
    assert served(wire, 5) == [nodes] * 5


def test_a_plan_without_alternatives_is_not_timed():
    wire = ready_wire("a", "b", seconds={BOTH: 1.0})
    assert wire.now == 0.0
    assert "measured" not in prepared(wire)[1]


def test_a_slow_plan_is_replaced_and_the_client_learns_of_it():
    wire = timed_wire(0.1, 0.2)
    first, _ = prepared(wire)
    served(wire, 20)
    wire.seconds[BOTH] = 0.5
    took = served(wire, 250)
    assert took.count(ALONE) > 100
    assert took[-1] == ALONE
    again, report = prepared(wire)
    assert report["measured"]["chosen"] == ["single on a"]
    call = wire.run()
    wire.settle()
    assert wire.answer(call).epoch == again.epoch != first.epoch


def test_variants_that_do_not_serve_make_room_before_a_plan_goes():
    wire = timed_wire(0.1, 0.2)
    first, _ = prepared(wire)
    limit = MAX_LOADED
    model = next(iter(wire.coordinator.uploads._offers))
    for width in range(3, 3 + limit - 1):
        wire.now += 1
        call = wire.call(lambda n, width=width: c.PrepareModel(n, model, {"x": (width,)}, AUTO))
        wire.settle()
        assert isinstance(wire.answer(call), c.ModelPrepared)
    assert len(wire.coordinator.loading.by_epoch) == limit
    again, report = prepared(wire)
    assert again.epoch == first.epoch
    assert report["measured"]["chosen"] == ["auto"]
    assert served(wire, 300) == [BOTH] * 300
    assert sum(len(agent.loaded) for agent in wire.agents.values()) == 2 * limit + 1


def test_a_model_that_does_not_take_synthetic_inputs_is_prepared_all_the_same():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    while not wire.started:
        for key in wire.pending():
            wire.deliver(key)
    ((number, start),) = wire.started.items()
    agent = next(agent for agent in wire.agents.values() if start.epoch in agent.loaded)
    wire.to_agent(agent, ae.Outcome(m.RequestFailed(start.epoch, number, "no such index")))
    wire.settle()
    assert "measured" not in json.loads(wire.answer(call).report)
    assert (start.epoch, number) in {drop for agent in wire.agents.values() for drop in agent.dropped}
    served(wire, 5)


def test_a_probe_without_an_end_does_not_hold_up_the_answer():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    while not wire.started:
        for key in wire.pending():
            wire.deliver(key)
    hung = dict(wire.started)
    wire.started.clear()
    for _ in range(70):
        wire.pass_time(0.5)
        wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert len(hung) == 1


def test_a_variant_that_cannot_be_loaded_is_left_out():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    while not all(agent.loaded for agent in wire.agents.values()):
        for key in wire.pending():
            wire.deliver(key)
    (deployment,) = wire.coordinator.loading.by_epoch.values()
    variant = deployment.variants[0]
    wire.to_coordinator(ce.FromPeer(next(iter(variant.parts)), m.DeploymentFailed(variant.epoch, "no memory")))
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert served(wire, 3) == [ALONE] * 3


def test_an_agent_loads_one_variant_at_a_time():
    wire = joined_wire(*BOTH, options=AUTO)
    wire.prepare()
    while wire.pending():
        wire.deliver(wire.pending()[0])
        for deployment in wire.coordinator.loading.by_epoch.values():
            loading = [identity for variant in deployment.variants for identity in variant.pending]
            assert len(set(loading)) == len(loading)
    assert sum(len(agent.loaded) for agent in wire.agents.values()) == 3


# --- streams --------------------------------------------------------------------------------------------------------------------


def flood(wire, count):
    calls = [wire.run() for _ in range(count)]
    wire.deliver_all()
    return calls


def test_a_stream_has_two_requests_per_node_on_their_way_and_the_rest_waits():
    wire = ready_wire("a", "b", options=STREAM)
    calls = flood(wire, 10)
    nodes = [tuple(peer.name for peer in wire.parts[start.epoch]) for start in wire.started.values()]
    assert sorted(nodes) == [("a",), ("a",), ("b",), ("b",)]
    (deployment,) = wire.coordinator.loading.by_epoch.values()
    assert len(deployment.plan.waiting) == 6
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)


def test_a_full_queue_says_that_it_is_busy():
    settings = ce.Settings("0.1.0", "tcp://head:1", max_waiting=3)
    wire = ready_wire("a", options=STREAM, settings=settings)
    calls = flood(wire, 7)
    wire.settle()
    answers = [wire.answer(call) for call in calls]
    assert [type(answer) for answer in answers[:5]] == [c.RunResult] * 5
    assert [answer.fault for answer in answers[5:]] == [c.Fault.BUSY] * 2
    assert answers[5].reason == "coordinator: 3 requests (0 bytes) wait for this plan already; submit again when some are answered"


def test_waiting_inputs_are_bounded_by_their_size_too():
    settings = ce.Settings("0.1.0", "tcp://head:1", max_waiting_bytes=10)
    wire = ready_wire("a", options=STREAM, settings=settings)
    calls = [wire.run(payload=(b"123456",)) for _ in range(5)]
    wire.deliver_all()
    wire.settle()
    assert [isinstance(wire.answer(call), c.RunResult) for call in calls] == [True, True, True, True, False]


def test_requests_of_a_lost_agent_run_on_another_variant():
    wire = ready_wire("a", "b", options=STREAM)
    calls = flood(wire, 6)
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "b"))
    for _ in range(6):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    (deployment,) = wire.coordinator.loading.by_epoch.values()
    assert [variant.name for variant in deployment.variants] == ["single on a"]


def test_recorded_requests_of_a_lost_agent_are_recorded_anew():
    wire = ready_wire("a", "b", options=STREAM)
    calls = [wire.run(record=True) for _ in range(4)]
    wire.deliver_all()
    lost = next(agent for agent in wire.agents.values() if agent.name == "b")
    mine = [number for number, start in wire.started.items() if start.epoch in lost.loaded]
    wire.crash(lost)
    # One of them has been answered, and the agent is gone before it told when it did what.
    wire.to_coordinator(ce.RequestDone(mine[0], (), (), record_of(2)))
    requests = wire.coordinator.requests
    assert requests.open[mine[0]].tracker.state == "recording"
    wire.finish_requests = lambda: False
    for _ in range(6):
        wire.pass_time(0.5)
        wire.deliver_all()
    assert {requests.open[number].tracker.state for number in mine} == {"waiting"}
    assert set(requests.traces._awaited) == set(requests.open) - set(mine)
    del wire.finish_requests
    wire.settle()
    answers = [wire.answer(call) for call in calls]
    assert [[record.device for record in answer.records] for answer in answers] == [[0, 2]] * 4


@pytest.mark.parametrize("options", [AUTO, STREAM])
def test_requests_of_a_variant_that_breaks_run_on_another(options):
    wire = ready_wire("a", "b", options=options, seconds={BOTH: 0.01, ALONE: 0.02})
    calls = flood(wire, 6)
    (deployment,) = wire.coordinator.loading.by_epoch.values()
    busy = next(variant for variant in deployment.variants if variant.queue.running)
    wire.to_coordinator(ce.FromPeer(next(iter(busy.parts)), m.DeploymentFailed(busy.epoch, "no memory")))
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    assert busy not in deployment.variants


def test_without_any_agent_left_everybody_is_told():
    wire = ready_wire("a", options=STREAM)
    calls = flood(wire, 3)
    (agent,) = wire.agents.values()
    wire.crash(agent)
    for _ in range(6):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert [wire.answer(call).fault for call in calls] == [c.Fault.UNAVAILABLE] * 3


@pytest.mark.parametrize(("both", "alone"), [(0.01, 0.02), (0.02, 0.01)])
def test_for_latency_requests_go_on_with_the_variant_that_is_left(both, alone):
    """Whether or not the lost agent served: the other variant answers at once, and the next preparation plans anew."""
    wire = timed_wire(both, alone)
    calls = flood(wire, 6)
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "b"))
    for _ in range(5):
        wire.pass_time(0.5)
        wire.deliver_all()
    assert [member.name for member in wire.coordinator.members.alive()] == ["a"]
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    assert len(wire.jobs) == 1
    answer, _ = prepared(wire)
    assert (len(wire.jobs), answer.agents) == (2, ("a",))


@pytest.mark.parametrize("options", [AUTO, STREAM])
@pytest.mark.parametrize("lost", BOTH)
@pytest.mark.parametrize("state", ["planning", "loading", "measuring", "ready"])
def test_an_agent_is_lost_in_any_state_and_everybody_gets_an_answer(state, lost, options):
    wire = joined_wire(*BOTH, options=options)
    planner = wire.plan
    wire.plan = lambda job: planner(job) if state != "planning" else None
    calls = [wire.prepare()]
    reach(wire, state)
    calls += [wire.run() for _ in range(6)]
    deliver_calls(wire)
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == lost))
    wire.plan = planner
    for _ in range(30 if state == "loading" else 10):  # an agent that loads may be silent for longer
        wire.pass_time(0.5)
        wire.settle()
    assert all(len(wire.answers[call]) == 1 for call in calls)
    assert isinstance(wire.answer(calls[0]), c.ModelPrepared)
    last = wire.run()
    wire.settle()
    assert isinstance(wire.answer(last), c.RunResult)


def reach(wire, state):
    """Let things happen until the deployment is in a state."""
    while all(d.tracker.state != state for d in wire.coordinator.loading.by_epoch.values()) or not wire.coordinator.loading.by_epoch:
        if not wire.pending():
            assert wire.finish_requests()
            continue
        wire.deliver(wire.pending()[0])


def deliver_calls(wire):
    for key in wire.pending():
        while wire.queues[key] and key[0] == CLIENT:
            wire.deliver(key)


def test_an_agent_that_loads_may_be_silent_for_longer_than_one_that_does_not():
    wire = joined_wire(*BOTH)
    wire.prepare()
    reach(wire, "loading")
    b = next(agent for agent in wire.agents.values() if agent.name == "b")
    wire.crash(b)
    wire.pass_time(DEAD_AFTER_S + 1.0)
    assert b.identity in wire.coordinator.members.by_identity
    wire.pass_time(DEAD_LOADING_AFTER_S)
    assert b.identity not in wire.coordinator.members.by_identity
