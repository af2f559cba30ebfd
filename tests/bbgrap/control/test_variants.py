"""Policies: who serves, when others are tried, and how a stream is spread. Times are the test's."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.control.variants import (
    CLOSE_ROUNDS,
    HOPELESS,
    HOPELESS_ROUNDS,
    REMEASURE_EVERY,
    REMEASURE_FIRST,
    ROUNDS,
    TRIAL_SHARE,
    WARM_UP,
    WINDOW,
    Balanced,
    Fastest,
    Lane,
    Measuring,
)

PLAN, SINGLE = 1, 2


def feed(policy, seconds, count, rng=None):
    """Run requests one by one; returns who took each of them, and how often another route began to serve."""
    lanes, took, switches = [Lane(PLAN, 4), Lane(SINGLE, 2)], [], 0
    for _ in range(count):
        lane = policy.choose(lanes, 0.0)
        noise = rng.uniform(0.9, 1.1) if rng else 1.0
        switches += policy.done(lane, 0.0, seconds[lane.epoch] * noise, alone=True)
        took.append(lane.epoch)
    return took, switches


def started(medians):
    policy = Fastest([PLAN, SINGLE])
    policy.begin(medians)
    return policy


def test_measuring_goes_in_turns_and_does_not_count_the_warm_up():
    measuring, order = Measuring([PLAN, SINGLE], until=100.0), []
    while (epoch := measuring.next(0.0)) is not None:
        order.append(epoch)
        measuring.note(epoch, 9.0 if len(order) <= 2 * WARM_UP else 1.0 * epoch)
    assert order == [PLAN, SINGLE] * (WARM_UP + HOPELESS_ROUNDS) + [PLAN] * (ROUNDS - HOPELESS_ROUNDS)
    assert measuring.medians() == {PLAN: 1.0, SINGLE: 2.0}


def test_measuring_leaves_out_only_what_is_far_slower():
    measuring, order = Measuring([PLAN, SINGLE], until=100.0), []
    while (epoch := measuring.next(0.0)) is not None:
        order.append(epoch)
        measuring.note(epoch, {PLAN: 1.0, SINGLE: 0.99 * HOPELESS}[epoch])
    assert order == [PLAN, SINGLE] * (WARM_UP + ROUNDS)


def test_a_route_is_not_left_out_because_another_one_was_lucky_once():
    measuring, count = Measuring([PLAN, SINGLE], until=100.0), 0
    while (epoch := measuring.next(0.0)) is not None:
        count += epoch == SINGLE
        measuring.note(epoch, 0.6 if epoch == PLAN and len(measuring.samples[PLAN]) == WARM_UP else 1.0)
    assert count > WARM_UP + HOPELESS_ROUNDS


def test_a_burst_of_disturbance_does_not_decide():
    """The plan is the fastest, but disturbed in its first turns; a third route is hopeless, and takes no more turns than it must."""
    measuring, order = Measuring([PLAN, SINGLE, 3], until=100.0), []
    while (epoch := measuring.next(0.0)) is not None:
        order.append(epoch)
        disturbed = epoch == PLAN and WARM_UP <= order.count(epoch) <= WARM_UP + 4
        measuring.note(epoch, {PLAN: 1.75 if disturbed else 1.0, SINGLE: 1.4, 3: 3.0}[epoch])
    assert WARM_UP + ROUNDS < order.count(PLAN) <= WARM_UP + CLOSE_ROUNDS
    assert order.count(3) == WARM_UP + HOPELESS_ROUNDS
    medians = measuring.medians()
    assert min(medians, key=medians.get) == PLAN


@given(
    st.lists(st.floats(0.5, 2.0), min_size=60, max_size=60),
    st.floats(1.01, 1.1),
    st.sampled_from([(PLAN, SINGLE), (SINGLE, PLAN)]),
)
def test_what_slows_whole_turns_does_not_decide(slow, slower, order):
    """Routes that are close are told apart, though the machines are up to four times as slow in one turn as in another."""
    fast, other = order
    slow[WARM_UP : WARM_UP + 2] = 0.5, 0.6  # neither is out of the question then
    measuring, count = Measuring([PLAN, SINGLE], until=100.0), {PLAN: 0, SINGLE: 0}
    while (epoch := measuring.next(0.0)) is not None:
        measuring.note(epoch, slow[count[epoch]] * (slower if epoch == other else 1.0))
        count[epoch] += 1
    medians = measuring.medians()
    if count[PLAN] == count[SINGLE]:
        assert medians[other] == pytest.approx(slower * medians[fast])
    assert min(medians, key=medians.get) == fast


def test_a_wrong_start_is_found_by_the_first_comparison():
    policy = started({PLAN: 2.0, SINGLE: 1.5})
    took, switches = feed(policy, {PLAN: 1.0, SINGLE: 1.5}, REMEASURE_FIRST + 200)
    assert set(took[:REMEASURE_FIRST]) == {SINGLE}
    assert (policy.serving, switches) == (PLAN, 1)


def test_slow_models_are_measured_at_least_once_after_a_warm_up():
    measuring = Measuring([PLAN, SINGLE], until=1.0)
    for now in (0.0, 5.0, 10.0, 15.0):
        measuring.note(measuring.next(now), now)
    assert measuring.next(20.0) is None
    assert measuring.medians() == {PLAN: 10.0, SINGLE: 15.0}


@pytest.mark.parametrize(("medians", "serving"), [({PLAN: 1.0, SINGLE: 2.0}, PLAN), ({PLAN: 2.0, SINGLE: 1.0}, SINGLE)])
def test_the_fastest_serves_and_nobody_else(medians, serving):
    took, _ = feed(started(medians), medians, 200)
    assert set(took) == {serving}


def test_a_drift_is_noticed_and_the_other_route_takes_over():
    policy = started({PLAN: 1.0, SINGLE: 1.6})
    feed(policy, {PLAN: 1.0, SINGLE: 1.6}, 50)
    took, switches = feed(policy, {PLAN: 3.0, SINGLE: 1.6}, 300)
    assert (policy.serving, switches) == (SINGLE, 1)
    assert set(took[-100:]) == {SINGLE}
    before = took[: took.index(SINGLE) + 100]
    assert before.count(SINGLE) <= len(before) / TRIAL_SHARE + 1
    took, switches = feed(policy, {PLAN: 1.0, SINGLE: 1.6}, REMEASURE_EVERY + 300)
    assert (policy.serving, switches) == (PLAN, 1), "a route that became fast again is found by the regular comparison"


def test_a_drift_that_the_other_route_shares_changes_nothing():
    policy = started({PLAN: 1.0, SINGLE: 1.6})
    feed(policy, {PLAN: 1.0, SINGLE: 1.6}, 50)
    took, switches = feed(policy, {PLAN: 1.5, SINGLE: 2.4}, 500)
    assert (policy.serving, switches) == (PLAN, 0)
    assert 0 < took.count(SINGLE) <= 500 / TRIAL_SHARE


@given(st.integers(0, 1000))
def test_equal_routes_do_not_take_turns(seed):
    """Ten per cent of noise either way: with a gain of five asked for, a change is rare, and never one after the other."""
    policy = started({PLAN: 1.0, SINGLE: 1.0})
    _, switches = feed(policy, {PLAN: 1.0, SINGLE: 1.0}, 5 * REMEASURE_EVERY, random.Random(seed))
    assert switches <= 3


def test_what_could_not_be_measured_is_compared_by_live_requests():
    policy = started({})
    took, switches = feed(policy, {PLAN: 2.0, SINGLE: 1.0}, 40)
    assert (policy.serving, switches) == (SINGLE, 1)
    assert took[-1] == SINGLE
    assert policy.medians == {PLAN: 2.0, SINGLE: 1.0}


def test_requests_in_company_are_neither_trials_nor_samples():
    policy = started({PLAN: 1.0, SINGLE: 1.6})
    lanes = [Lane(PLAN, 4, {7: 0.0}), Lane(SINGLE, 2)]
    for _ in range(10 * WINDOW):
        assert policy.choose(lanes, 0.0) is lanes[0]
        assert not policy.done(lanes[0], 0.0, 50.0, alone=False)
    assert policy._trial is None


def test_a_full_route_makes_requests_wait():
    assert started({PLAN: 1.0, SINGLE: 2.0}).choose([Lane(PLAN, 1, {7: 0.0}), Lane(SINGLE, 2)], 0.0) is None
    assert Balanced().choose([Lane(PLAN, 1, {7: 0.0}), Lane(SINGLE, 1, {8: 0.0})], 0.0) is None


def test_the_best_of_the_rest_serves_when_a_route_is_lost():
    policy = Fastest([1, 2, 3])
    policy.begin({1: 1.0, 2: 3.0, 3: 2.0})
    policy.lost(1)
    assert policy.serving == 3
    assert policy.choose([Lane(2, 2), Lane(3, 2)], 0.0).epoch == 3


def stream(speeds, in_flight, count, measured=None):
    """Play a stream of requests over routes that work on one request at a time; returns how many each did, and how long it took."""
    policy, lanes = Balanced(), [Lane(epoch, 2) for epoch in range(len(speeds))]
    policy.begin(measured or {})
    now, number, free, ends = 0.0, 0, [0.0] * len(speeds), list[tuple[float, int, int]]()
    counts = [0] * len(speeds)
    while number < count or ends:
        while number < count and len(ends) < in_flight and (lane := policy.choose(lanes, now)) is not None:
            free[lane.epoch] = max(now, free[lane.epoch]) + 1 / speeds[lane.epoch]
            ends.append((free[lane.epoch], lane.epoch, number))
            lane.running[number] = now
            assert len(lane.running) <= lane.limit
            number += 1
        ends.sort()
        now, epoch, ended = ends.pop(0)
        policy.done(lanes[epoch], lanes[epoch].running.pop(ended), now, alone=False)
        counts[epoch] += 1
    return counts, now


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 0.5), (1.0, 0.25, 0.1)])
def test_a_stream_keeps_unequal_routes_busy(speeds):
    counts, took = stream(speeds, 2 * len(speeds), 400)
    assert took <= 1.05 * 400 / sum(speeds)
    for count, speed in zip(counts, speeds, strict=True):
        assert count == pytest.approx(400 * speed / sum(speeds), rel=0.15)


def test_the_end_of_a_stream_does_not_wait_for_a_slow_route():
    """Fourteen requests at speeds 1 and 0.5 take 9.3 at best; the last one must not begin late on the slow route."""
    _, took = stream((1.0, 0.5), 4, 14, {0: 1.0, 1: 2.0})
    assert took <= 10.0


def test_a_single_request_takes_the_fastest_route():
    counts, _ = stream((0.5, 1.0), 1, 50, {0: 2.0, 1: 1.0})
    assert counts == [0, 50]


def test_a_route_that_becomes_slow_gets_less():
    policy, lanes = Balanced(), [Lane(0, 2), Lane(1, 2)]
    policy.begin({0: 1.0, 1: 1.0})
    for _ in range(20):
        policy.done(lanes[0], 0.0, 5.0, alone=False)
        policy._ended.clear()
    assert policy.choose(lanes, 0.0) is lanes[1]
    lanes[1].running[1] = 0.0
    assert policy.choose(lanes, 0.0) is lanes[1]


def test_routes_that_cannot_be_told_apart_are_timed_for_a_while_and_no_longer():
    measuring, order = Measuring([PLAN, SINGLE], until=100.0), []
    while (epoch := measuring.next(0.0)) is not None:
        order.append(epoch)
        measuring.note(epoch, 1.0)
    assert order == [PLAN, SINGLE] * (WARM_UP + CLOSE_ROUNDS)
