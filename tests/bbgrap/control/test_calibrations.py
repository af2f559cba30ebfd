"""Stories of calibration: what recorded requests teach the coordinator, and when a plan is made anew because a node has slowed down."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.auto.calibrate import MachineFactors, SegmentForecast
from bbgrap.cluster import Cluster
from bbgrap.cluster.speeds import speeds_of, typical_seconds
from bbgrap.cluster.types import NodeProfile
from bbgrap.compiler.predict import ANY_NODE
from bbgrap.control import coordinator_events as ce
from bbgrap.control.calibrations import MAX_MACHINES, MAX_MODELS, Calibrations, medians_of, slowed
from bbgrap.control.observations import MOVE_EVERY, RECORDED
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.wire import MODEL, SEGMENT_S, joined_wire, plan_of, prepare_message, ready_wire

AUTO = PlanOptions(planner="auto")
ROWS = PlanOptions(planner="auto", split="rows", search_seconds=2.0)
BOTH, ALONE = ("a", "b"), ("a",)


def calibrated_wire(**kernels):
    """Two agents with a plan of `auto` that serves on both; their segments take what `kernels` say."""
    wire = joined_wire("a", "b", options=AUTO, seconds={BOTH: 0.1, ALONE: 0.3})
    wire.kernels |= kernels
    wire.prepare()
    wire.settle()
    return wire


def serve(wire, count):
    for _ in range(count):
        call = wire.run()
        wire.settle()
        answer = wire.answer(call)
        assert isinstance(answer, c.RunResult)
        assert answer.records == ()


def prepare_other(wire):
    """Prepare the same model with other options; return the factors its planner was told."""
    wire.call(lambda n: prepare_message(n, ROWS))
    wire.settle()
    return wire.jobs[-1].calibration.factors


def slow_down(wire):
    """Let agent b do everything in twice the time, and requests in 1.5 times."""
    wire.kernels["b"] = 2 * SEGMENT_S
    wire.seconds[BOTH] = 0.15


def test_the_first_planning_knows_nothing_and_the_next_one_what_was_measured():
    wire = calibrated_wire(a=2 * SEGMENT_S, b=3 * SEGMENT_S)
    assert [job.calibration.factors for job in wire.jobs] == [{}]
    expected = {("a", "conv"): 2, ("a", ANY_NODE): 2, ("b", "conv"): 3, ("b", ANY_NODE): 3}
    assert prepare_other(wire) == pytest.approx(expected)


def test_a_calibration_alone_does_not_plan_anew():
    wire = calibrated_wire(b=3 * SEGMENT_S)
    serve(wire, 50)
    wire.prepare()
    wire.settle()
    assert len(wire.jobs) == 1


def test_what_was_measured_outlives_the_coordinator():
    wire = calibrated_wire(b=3 * SEGMENT_S)
    wire.restart_coordinator()
    for _ in range(4):
        wire.pass_time(1.0)
        wire.settle()
    wire.offer()
    wire.settle()
    assert prepare_other(wire)["b", "conv"] == pytest.approx(3)


def test_other_planners_plans_are_not_recorded_by_themselves_but_teach_when_a_client_traces_them():
    wire = ready_wire("a", "b", seconds={BOTH: 0.1})
    wire.kernels["a"] = 2 * SEGMENT_S
    assert wire.kept == {}
    call = wire.run(record=True)
    wire.settle()
    assert len(wire.answer(call).records) == 3
    assert {name: of.factors["conv"] for name, of in wire.kept[MODEL].items()} == pytest.approx({"a": 2, "b": 1})


def test_a_plan_on_a_single_route_is_recorded_too():
    wire = joined_wire("a", "b", options=AUTO)
    wire.plan = lambda job: replace(plan_of(job), alternatives=())
    wire.prepare()
    wire.settle()
    assert set(wire.kept[MODEL]) == {"a", "b"}


def test_a_machine_nobody_has_measured_gets_what_the_others_have():
    wire = calibrated_wire(a=2 * SEGMENT_S, b=4 * SEGMENT_S)
    wire.add_agent("c")
    wire.settle()
    wire.plan = lambda job: None
    assert prepare_other(wire)["c", "conv"] == pytest.approx(3)
    assert set(wire.kept[MODEL]) == {"a", "b"}


def share(wire, name, share):
    wire.call(lambda n: c.SetProfile(n, NodeProfile(name, share=share)))
    wire.settle()


def test_another_profile_of_the_same_machine_predicts_the_times_that_were_measured():
    wire = calibrated_wire(a=2 * SEGMENT_S, b=4 * SEGMENT_S)
    share(wire, "a", 0.8)
    wire.plan = lambda job: None
    factors = prepare_other(wire)
    assert (factors["a", "conv"], factors["b", "conv"]) == pytest.approx((0.8 * 2, 4), rel=0.01)


def test_a_machine_that_is_much_faster_or_slower_than_it_was_is_one_that_nobody_has_measured():
    wire = calibrated_wire(a=2 * SEGMENT_S, b=4 * SEGMENT_S)
    share(wire, "a", 0.5)
    assert prepare_other(wire)["a", "conv"] == pytest.approx(4)
    assert wire.kept[MODEL]["a"].factors["conv"] == pytest.approx(2)


def disturb(wire, requests):
    """Let everything take 1.75 times as long in the first so many requests that are recorded."""
    disturbed, finish = [], wire.finish_requests

    def finish_requests():
        recorded = any(start.record for start in wire.started.values())
        disturbed.append(recorded)
        factor = 1.75 if recorded and sum(disturbed) <= requests else 1.0
        wire.seconds[BOTH] = 0.1 * factor
        wire.kernels |= {"a": factor * SEGMENT_S, "b": factor * SEGMENT_S}
        return finish()

    wire.finish_requests = finish_requests
    return disturbed


@pytest.mark.parametrize(("requests", "expected"), [(0, 1.0), (RECORDED, 1.0), (20, 1.75)])
def test_a_burst_of_disturbance_teaches_nothing_but_what_is_always_slow_does(requests, expected):
    wire = joined_wire("a", "b", options=AUTO, seconds={BOTH: 0.1, ALONE: 0.3})
    recorded = disturb(wire, requests)
    call = wire.prepare()
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert sum(recorded) == RECORDED + min(requests, RECORDED)
    assert prepare_other(wire)["a", "conv"] == pytest.approx(expected)


def test_records_that_never_come_hold_nobody_up():
    wire = joined_wire("a", "b", options=AUTO)
    deliver = wire.to_agent
    wire.to_agent = lambda agent, event: None if type(event).__name__ == "StepsRecorded" else deliver(agent, event)
    call = wire.prepare()
    for _ in range(12):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert wire.kept == {}
    serve(wire, 3)
    assert wire.coordinator.requests.observations.epochs == {}
    assert wire.coordinator.requests.recordings.overdue(1e9) == []


def test_a_slow_node_is_noticed_and_the_plan_made_anew_exactly_once():
    wire = calibrated_wire()
    first = wire.jobs[0].epoch
    serve(wire, 30)
    assert len(wire.jobs) == 1
    slow_down(wire)
    wire.plan = lambda job: None
    serve(wire, 40)
    assert len(wire.jobs) == 2, "requests were answered while the new plan was made"
    job = wire.jobs[1]
    assert job.calibration.factors["b", "conv"] == pytest.approx(2)
    assert job.calibration.factors["a", "conv"] == pytest.approx(1)
    assert any("'b' has become 2.00 times as slow" in text for text in wire.told)
    wire.to_coordinator(plan_of(job))
    wire.settle()
    assert set(wire.coordinator.deployments.by_epoch) == {job.epoch}
    assert first != job.epoch
    call = wire.run()
    wire.settle()
    assert wire.answer(call).epoch == job.epoch
    wire.plan = plan_of
    wire.kernels["b"], wire.seconds[BOTH] = 8 * SEGMENT_S, 0.25
    serve(wire, MOVE_EVERY // 2)
    assert len(wire.jobs) == 2, "not again so soon"
    serve(wire, 2 * MOVE_EVERY)
    assert len(wire.jobs) <= 3


def test_another_plan_than_the_planners_first_one_is_watched_when_it_serves():
    """The other route is one over both nodes, too, and faster."""
    wire = joined_wire("a", "b", options=AUTO)
    other = []

    def plan(job):
        planned = plan_of(job)
        own, first = ce.PlannedRoute("rows", planned.artifacts, "{}", planned.segments), planned.alternatives[0]
        other.append(job.epoch)
        return replace(planned, artifacts=first.artifacts, segments=first.segments, alternatives=(own,))

    wire.plan = plan
    wire.seconds |= {BOTH: 0.1, ALONE: 0.3}
    wire.prepare()
    wire.settle()
    assert set(wire.kept[MODEL]) == {"a", "b"}
    serve(wire, 30)
    slow_down(wire)
    serve(wire, 40)
    assert len(other) == 2


def test_made_up_requests_of_the_new_plan_and_real_ones_of_the_old_one_take_turns():
    wire = calibrated_wire()
    serve(wire, 30)
    slow_down(wire)
    wire.plan = lambda job: None
    serve(wire, 40)
    calls = [wire.run() for _ in range(20)]
    wire.deliver_all()
    wire.to_coordinator(plan_of(wire.jobs[1]))
    old, alone = wire.jobs[0].epoch, 0
    for _ in range(200):
        wire.deliver_all()
        running = {wire.coordinator.deployments.find(start.epoch)[0].epoch for start in wire.started.values()}
        assert len(running) <= 1
        alone += running == {wire.jobs[1].epoch} and old in wire.coordinator.deployments.by_epoch
        wire.finish_requests()
    assert alone > 0
    assert all(isinstance(wire.answer(call), c.RunResult) for call in calls)


def test_no_weights_travel_for_a_new_plan():
    wire = calibrated_wire()
    serve(wire, 30)
    slow_down(wire)
    wire.told.clear()
    serve(wire, 40)
    assert len(wire.jobs) == 2
    assert not any("sends weights" in text for text in wire.told)


def test_a_drift_that_all_nodes_share_changes_no_plan():
    wire = calibrated_wire()
    serve(wire, 30)
    slow_down(wire)
    wire.kernels["a"] = 2 * SEGMENT_S
    serve(wire, 60)
    assert len(wire.jobs) == 1
    assert prepare_other(wire)["b", "conv"] == pytest.approx(2)


@pytest.mark.parametrize("outcome", ["plan fails", "agent lost", "agents changed"])
def test_a_new_plan_that_comes_to_nothing_leaves_the_old_one_at_work(outcome):
    wire = calibrated_wire()
    serve(wire, 30)
    slow_down(wire)
    wire.plan = lambda job: None
    serve(wire, 40)
    job = wire.jobs[1]
    wire.plan = plan_of
    if outcome == "plan fails":
        wire.to_coordinator(ce.PlanFailed(job.epoch, c.Fault.PLAN, "no"))
        assert wire.coordinator.deployments.current(next(iter(wire.coordinator.deployments.plans.values()))).epoch == wire.jobs[0].epoch
    elif outcome == "agent lost":
        wire.crash(list(wire.agents.values())[1])
        for _ in range(12):
            wire.settle()
            wire.pass_time(0.5)
    else:
        wire.add_agent("c")
        wire.settle()
        wire.prepare()
        wire.settle()
        wire.to_coordinator(replace(plan_of(job)))
        wire.settle()
    serve(wire, 5)
    assert len(wire.coordinator.deployments.by_epoch) == 1


def test_without_room_for_both_the_old_deployment_goes_first():
    report = '{"planner": "auto", "memory_bytes": {"a": 60, "b": 60}}'
    wire = joined_wire("a", "b", options=AUTO, seconds={BOTH: 0.1})
    for name in BOTH:
        wire.call(lambda n, name=name: c.SetProfile(n, NodeProfile(name, memory_bytes=100)))
    wire.settle()
    wire.plan = lambda job: replace(plan_of(job), report=report, alternatives=())
    wire.prepare()
    wire.settle()
    serve(wire, 30)
    slow_down(wire)
    wire.plan = lambda job: None
    serve(wire, 40)
    job = wire.jobs[1]
    wire.to_coordinator(replace(plan_of(job), report=report, alternatives=()))
    assert set(wire.coordinator.deployments.by_epoch) == {job.epoch}
    wire.settle()
    serve(wire, 5)


ONE = ((SegmentForecast(("n",), 1.0, 0.0),),)


def test_what_is_kept_is_bounded():
    calibrations = Calibrations()
    for number in range(MAX_MODELS + 5):
        calibrations.take(f"{number}", Cluster.even(1), ONE, {(0, 0): 2.0}, {})
    assert calibrations.of("4", Cluster.even(1)).factors == {}
    assert calibrations.of("5", Cluster.even(1)).factors
    for number in range(MAX_MACHINES + 5):
        kept = calibrations.take("x", Cluster((NodeProfile(f"m{number}"),)), ONE, {(0, 0): 2.0}, {})
    assert len(kept.machines) == MAX_MACHINES
    assert kept.machines["m9"] == MachineFactors(typical_seconds(speeds_of(NodeProfile("m9"))), {"n": 2.0, ANY_NODE: 2.0})


seconds = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.floats(1e-6, 1e3), max_size=16)


@given(seconds, st.floats(0.1, 10))
def test_what_all_nodes_share_is_no_slow_node(before, factor):
    assert slowed(before, {key: factor * value for key, value in before.items()}, "abcd") is None


@given(seconds, st.integers(0, 3), st.floats(1.3, 10))
def test_the_slow_node_is_found(before, device, factor):
    now = {key: value * (factor if key[0] == device else 1) for key, value in before.items()}
    found = slowed(before, now, "abcd")
    if device in {d for d, _ in before} and len({d for d, _ in before}) > 1:
        assert found == ("abcd"[device], pytest.approx(factor))
    else:
        assert found is None


def test_medians_are_per_segment():
    assert medians_of([{(0, 0): 1.0}, {(0, 0): 3.0, (1, 0): 7.0}, {(0, 0): 2.0}]) == {(0, 0): 2.0, (1, 0): 7.0}
    assert RECORDED % 2, "the median of an even number would be one that was not measured"
