"""Stories of requests and variants: who is timed, who serves, what waits, and what becomes of it when a variant is lost."""

import json
from dataclasses import replace

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_settings
from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.membership import DEAD_AFTER_S
from bbgrap.control.variants import ROUNDS, TIMING_S, WARM_UP
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import record_of
from tests.bbgrap.control.wire import CLIENT, joined_wire, prepare_message, ready_wire, standby_wire

AUTO = PlanOptions(planner="auto")
STREAM = PlanOptions(planner="auto", objective="throughput")
BOTH, ALONE = ("a", "b"), ("a",)


def timed_wire(both, alone, options=AUTO):
    """Two equal agents; a request takes that long on both of them and on one alone."""
    return ready_wire("a", "b", options=options, seconds={BOTH: both, ALONE: alone, ("b",): alone})


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
    answer = wire.until_answered(wire.prepare())
    assert isinstance(answer, c.ModelPrepared)
    return answer, json.loads(answer.report)


@pytest.mark.parametrize(
    ("both", "alone", "nodes", "name"), [(0.1, 0.2, BOTH, "auto"), (0.2, 0.1, ALONE, "single on a"), (1.0, 2.0, BOTH, "auto")]
)
def test_variants_are_timed_before_the_answer_and_the_fastest_serves(both, alone, nodes, name):
    wire = timed_wire(both, alone)
    rounds = WARM_UP + ROUNDS if (both + alone) * (WARM_UP + ROUNDS) < TIMING_S else 2
    # Before it, the standby has answered one request; between them, requests of clients would have had their turns.
    spent = both * rounds + alone * (rounds + 1)
    assert spent - 1e-6 <= wire.now < spent + 0.1 * 2 * rounds
    _, report = prepared(wire)
    assert report["planner"] == name.partition(" ")[0]
    assert report["nodes_used"] == list(nodes)
    measured = [
        {"name": "auto", "nodes": ["a", "b"], "median_ms": pytest.approx(1e3 * both)},
        {"name": "single on a", "nodes": ["a"], "median_ms": pytest.approx(1e3 * alone)},
    ]
    assert report["measured"] == {"variants": measured, "chosen": [name]}
    assert served(wire, 5) == [nodes] * 5


@pytest.mark.parametrize(("both", "nodes"), [(0.098, ALONE), (0.09, BOTH)])
def test_several_machines_serve_only_where_they_are_faster_than_one(both, nodes):
    wire = timed_wire(both, 0.1)
    assert served(wire, 3) == [nodes] * 3
    wire.restart_coordinator()
    wire.wait(2.0)
    assert served(wire, 3) == [nodes] * 3


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
    for width in range(3, 3 + limit - 3):
        wire.now += 1
        call = wire.call(lambda n, width=width: c.PrepareModel(n, model, {"x": (width,)}, AUTO))
        assert isinstance(wire.until_answered(call), c.ModelPrepared)
    assert len(wire.coordinator.loading.of_member("a")) <= limit
    again, report = prepared(wire)
    assert again.epoch == first.epoch
    assert report["serving"] == "auto"
    assert served(wire, 300) == [BOTH] * 300
    assert all(len(agent.loaded) <= limit for agent in wire.agents.values())


def test_a_model_that_does_not_take_synthetic_inputs_is_prepared_all_the_same():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    reach(wire, "measuring")
    ((number, start),) = wire.started.items()
    agent = next(agent for agent in wire.agents.values() if start.epoch in agent.loaded)
    wire.to_agent(agent, m.RequestFailed(start.epoch, number, "no such index"))
    assert "measured" not in json.loads(wire.until_answered(call).report)
    assert (start.epoch, number) in {drop for agent in wire.agents.values() for drop in agent.dropped}
    served(wire, 5)


def test_a_probe_without_an_end_does_not_hold_up_the_answer():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    reach(wire, "measuring")
    hung = dict(wire.started)
    wire.started.clear()
    wire.settle_for(35.0)
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert len(hung) == 1


def test_a_variant_that_cannot_be_loaded_is_left_out():
    wire = joined_wire(*BOTH, options=AUTO)
    call = wire.prepare()
    reach(wire, "loading")
    (plan,) = wire.coordinator.planning.plans.values()
    variant = plan.variants[0]
    wire.to_coordinator(ce.FromPeer(wire.agent("a").identity, m.DeploymentFailed(variant.epoch, "no memory")))
    assert isinstance(wire.until_answered(call), c.ModelPrepared)
    assert served(wire, 3) == [ALONE] * 3


def test_an_agent_loads_one_variant_at_a_time_and_none_before_the_standby_has_answered():
    wire = joined_wire(*BOTH, options=AUTO)
    wire.prepare()
    while not is_at(wire, "measuring"):
        if wire.pending():
            wire.deliver(wire.pending()[0])
        elif not wire.finish_requests():
            wire.pass_time(0.1)
        for plan in wire.coordinator.planning.plans.values():
            loading = [name for variant in plan.variants for name in variant.pending]
            assert len(set(loading)) == len(loading)
            assert plan.standby.is_proven or not loading
    # Two variants with three parts, and a copy of the standby on each.
    assert sum(len(agent.loaded) for agent in wire.agents.values()) == 3 + 2


# --- streams --------------------------------------------------------------------------------------------------------------------


def flood(wire, count, payload=()):
    calls = [wire.run(payload=payload) for _ in range(count)]
    wire.deliver_all()
    return calls


def test_a_stream_has_two_requests_per_node_on_their_way_and_the_rest_waits():
    wire = ready_wire("a", "b", options=STREAM)
    calls = flood(wire, 10)
    nodes = [tuple(peer.name for peer in wire.parts[start.epoch]) for start in wire.started.values()]
    assert sorted(nodes) == [("a",), ("a",), ("b",), ("b",)]
    (plan,) = wire.coordinator.planning.plans.values()
    assert len(plan.waiting) == 6
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)


def test_a_stream_over_many_nodes_is_served_as_soon_as_they_have_loaded_it():
    """Each of twenty copies was timed in turns, which took the longer the more there were."""
    wire = joined_wire(*"abcdefgh", options=STREAM)
    prepared = wire.prepare()
    synthetic = []
    while not wire.answers[prepared]:
        if wire.pending():
            wire.deliver(wire.pending()[0])
            synthetic += [start for number, start in wire.started.items() if number not in wire.coordinator.requests.table.by_number]
        elif not wire.finish_requests():
            wire.pass_time(0.1)
    (plan,) = wire.coordinator.planning.plans.values()
    assert len(plan.serving) == 8
    assert plan.policy.medians == {}
    assert len({start.request for start in synthetic}) == 1, "only the standby proves that the model ends"


def test_a_node_whose_stream_is_planned_anew_has_one_queue():
    wire = ready_wire("a", options=STREAM)
    wire.add_agent("b")
    wire.wait(5.0)
    prepared(wire)
    (plan,) = wire.coordinator.planning.plans.values()
    assert len(plan.variants) == 3, "the older one of 'a' is for when 'b' goes"
    flood(wire, 10)
    nodes = [tuple(peer.name for peer in wire.parts[start.epoch]) for start in wire.started.values()]
    assert sorted(nodes) == [("a",), ("a",), ("b",), ("b",)]


def test_a_full_queue_says_that_it_is_busy():
    settings = coordinator_settings.Settings("0.1.0", "tcp://head:1", max_waiting=6)
    wire = ready_wire("a", options=STREAM, settings=settings)
    calls = flood(wire, 7)
    wire.settle()
    answers = [wire.answer(call) for call in calls]
    assert [type(answer) for answer in answers[:5]] == [c.RunResult] * 5
    assert [answer.fault for answer in answers[5:]] == [c.Fault.BUSY] * 2
    assert answers[5].reason == (
        "coordinator: 3 requests wait for this plan already, 3 of them of this client; submit again when some are answered"
    )


def test_inputs_are_bounded_by_their_size_too():
    settings = coordinator_settings.Settings("0.1.0", "tcp://head:1", max_waiting_bytes=48)
    wire = ready_wire("a", options=STREAM, settings=settings)
    calls = [wire.run(payload=(b"123456",)) for _ in range(5)]
    wire.deliver_all()
    wire.settle()
    assert [isinstance(wire.answer(call), c.RunResult) for call in calls] == [True, True, True, True, False]
    assert wire.answer(calls[4]).fault is c.Fault.BUSY


@pytest.mark.parametrize("bounds", [{"max_waiting": 10}, {"max_waiting_bytes": 60}])
def test_a_client_that_fills_each_free_place_leaves_room_for_others(bounds):
    wire = ready_wire("a", options=STREAM, settings=coordinator_settings.Settings("0.1.0", "tcp://head:1", **bounds))
    (plan,) = wire.coordinator.planning.plans.values()
    table = wire.coordinator.requests.table
    for turn in range(5):
        flood(wire, 20, payload=(b"123456",))
        wire.to_coordinator(ce.FromPeer(b"other", c.RunModel(turn, plan.key, 30.0, (), (b"123456",))))
        assert (b"other", turn) in table.by_caller
        assert len(plan.waiting) <= 10
        assert table.bytes <= 60 or "max_waiting" in bounds
        wire.finish_requests()
    wire.settle()
    assert not table.by_number


def clients_of(wire):
    """Return whose requests run."""
    return {wire.coordinator.requests.table.by_number[number].caller[0] for number in wire.started}


def test_clients_take_turns():
    """Ten requests of one client do not keep that of another one waiting."""
    wire = ready_wire("a", options=STREAM)
    (plan,) = wire.coordinator.planning.plans.values()
    flood(wire, 10)
    wire.to_coordinator(ce.FromPeer(b"other", c.RunModel(1, plan.key, 30.0, (), ())))
    first = min(wire.started)
    del wire.started[first]
    wire.to_coordinator(ce.RequestDone(first, (), ()))
    assert b"other" in clients_of(wire)


def test_clients_take_turns_whatever_shapes_they_bring():
    """Ten requests of one client do not keep that of another one waiting, which another plan of their standby has."""
    wire = standby_wire()
    wire.call(lambda n: replace(prepare_message(n, wire.options), shapes={"x": (4, 2)}, wait=False))
    wire.deliver_all()
    first, second = wire.coordinator.planning.plans.values()
    for call in range(10):
        wire.to_coordinator(ce.FromPeer(b"many", c.RunModel(call, first.key, 30.0, (), ())))
    wire.to_coordinator(ce.FromPeer(b"one", c.RunModel(1, second.key, 30.0, (), ())))
    assert clients_of(wire) == {b"many"}
    number = min(wire.started)
    del wire.started[number]
    wire.to_coordinator(ce.RequestDone(number, (), ()))
    assert b"one" in clients_of(wire)


def test_requests_of_a_lost_agent_run_on_another_variant():
    wire = ready_wire("a", "b", options=STREAM)
    calls = flood(wire, 6)
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "b"))
    for _ in range(30):
        wire.settle()
        wire.pass_time(0.1)
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    (plan,) = wire.coordinator.planning.plans.values()
    assert {variant.name for variant in plan.variants if variant.is_ready} == {"single on a"}


def test_who_joined_later_is_told_to_serve_a_stream():
    wire = ready_wire("a", options=STREAM)
    wire.add_agent("b")
    wire.wait(5.0)
    _, report = prepared(wire)
    assert (report["serving"], report["nodes_used"]) == ("single on a and single on b", ["a", "b"])


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
    assert requests.open[mine[0]].is_computed
    wire.finish_requests = lambda: False
    wire.wait(1.0)
    assert not set(mine) & set(requests.open)
    running = {number for number, request in requests.open.items() if request.epoch}
    assert ({number for number, request in requests.open.items() if request.trace}, len(requests.open)) == (running, 4)
    del wire.finish_requests
    wire.pass_time(0.1)
    wire.settle()
    answers = [wire.answer(call) for call in calls]
    assert [len(answer.records) for answer in answers] == [2] * 4


@pytest.mark.parametrize("options", [AUTO, STREAM])
def test_requests_of_a_variant_that_breaks_run_on_another(options):
    wire = ready_wire("a", "b", options=options, seconds={BOTH: 0.01, ALONE: 0.02})
    calls = flood(wire, 6)
    (plan,) = wire.coordinator.planning.plans.values()
    busy = next(variant for variant in plan.variants if variant.queue.running)
    sender = wire.agent(next(iter(busy.parts))).identity
    wire.to_coordinator(ce.FromPeer(sender, m.DeploymentFailed(busy.epoch, "no memory")))
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    assert busy not in plan.variants


def test_without_any_agent_left_everybody_waits_until_one_is_back():
    wire = ready_wire("a", options=STREAM)
    calls = flood(wire, 3)
    wire.crash(wire.agent("a"))
    wire.wait(3.0)
    assert [wire.answers[call] for call in calls] == [[]] * 3
    wire.add_agent("a")
    for call in calls:
        wire.until_answered(call)
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)


@pytest.mark.parametrize(("both", "alone"), [(0.01, 0.02), (0.02, 0.01)])
def test_for_latency_requests_go_on_with_the_variant_that_is_left(both, alone):
    """Whether or not the lost agent served: the other variant answers at once, and the next preparation plans anew."""
    wire = timed_wire(both, alone)
    calls = flood(wire, 6)
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "b"))
    wire.wait(1.0)
    assert [member.name for member in wire.coordinator.members.alive()] == ["a"]
    wire.settle()
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)
    assert len(wire.jobs) == 1
    _, report = prepared(wire)
    assert (len(wire.jobs), report["nodes_used"]) == (2, ["a"])


@pytest.mark.parametrize("lost", BOTH)
@pytest.mark.parametrize(
    ("state", "options"),
    [(state, AUTO) for state in ("planning", "loading", "measuring", "ready")]
    + [(state, STREAM) for state in ("planning", "loading", "ready")],
)
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
    wire.settle_for(6.0)
    assert all(len(wire.answers[call]) == 1 for call in calls)
    assert isinstance(wire.answer(calls[0]), c.ModelPrepared)
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)


def reach(wire, state):
    """Let things happen until the plan is in a state."""
    while not is_at(wire, state):
        if wire.pending():
            wire.deliver(wire.pending()[0])
        elif not wire.finish_requests():
            wire.pass_time(0.1)


def is_at(wire, state):
    for plan in wire.coordinator.planning.plans.values():
        match state:
            case "planning":
                return plan.job is not None
            case "loading":
                return any(variant.tracker.state == "loading" for variant in plan.variants)
            case "measuring":
                return plan.timing is not None and bool(wire.coordinator.requests.synthetic.in_flight)
            case "ready":
                return bool(plan.serving)
    return False


def deliver_calls(wire):
    for key in wire.pending():
        while wire.queues[key] and key[0] == CLIENT:
            wire.deliver(key)


def test_an_agent_that_loads_is_missed_as_soon_as_any_other():
    """Its nanny says that it lives, whatever its worker does."""
    wire = joined_wire(*BOTH)
    wire.prepare()
    reach(wire, "loading")
    b = wire.agent("b")
    wire.crash(b)
    wire.wait(DEAD_AFTER_S - 0.1)
    assert b.identity in wire.coordinator.members.by_identity
    wire.wait(0.3)
    assert b.identity not in wire.coordinator.members.by_identity
