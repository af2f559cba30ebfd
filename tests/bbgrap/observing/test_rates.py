from dataclasses import replace

import pytest

from bbgrap.observing.rates import quantiles_of, rates_between
from tests.bbgrap.observing.statuses import STATUS, latency, later


def test_between_two_looks_only_what_came_after_the_first_one_counts():
    (rates,) = rates_between(STATUS, later(2.0, *[0.01] * 90, *[0.5] * 10))
    assert (rates.name, rates.per_s, rates.failing_per_s) == ("resnet50", 50.0, 0.0)
    p50, p95, p99 = rates.quantiles_s
    assert p50 == pytest.approx(0.01, rel=0.25)
    assert p95 == pytest.approx(0.5, rel=0.25)
    assert p99 >= p95
    assert rates.queued_s == pytest.approx(0.1)


def test_without_a_first_look_or_of_another_coordinator_all_counts():
    for before in (None, replace(STATUS, incarnation=2)):
        (rates,) = rates_between(before, STATUS)
        assert rates.per_s == pytest.approx(12 / 8000)


def test_nothing_between_is_zero():
    (rates,) = rates_between(STATUS, later(1.0))
    assert (rates.per_s, rates.quantiles_s, rates.queued_s, rates.waiting, rates.running) == (0.0, (0.0, 0.0, 0.0), 0.0, 3, 1)


def test_percentiles_are_near_the_true_ones():
    times = [0.001 * 1.05**number for number in range(200)]
    for part, found in zip((0.1, 0.5, 0.9), quantiles_of(latency(*times), (0.1, 0.5, 0.9)), strict=True):
        assert found == pytest.approx(times[round(part * 200)], rel=0.15)


def test_what_takes_longer_than_any_bucket_counts_as_the_last_bound():
    assert quantiles_of(latency(1000.0), (0.5,)) == (80.0,)
