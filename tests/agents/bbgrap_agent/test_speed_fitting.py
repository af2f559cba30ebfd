"""Fitting speeds: exact where the samples are, never negative, and the best of what is not negative."""

import numpy as np
import pytest
from bbgrap_agent.speed_fitting import Sample, fit, non_negative_least_squares, typical
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster.speeds import TYPICAL
from bbgrap.cluster.types import Speed
from bbgrap.work import Work

amounts = st.tuples(st.integers(0, 10**9), st.integers(0, 10**7), st.integers(0, 10**7))
rates = st.just(0.0) | st.floats(1e8, 1e12)
columns = st.integers(1, 4)


@st.composite
def systems(draw):
    width = draw(columns)
    entry = st.floats(-10, 10).map(lambda value: round(value, 3))
    rows = draw(st.lists(st.lists(entry, min_size=width, max_size=width), min_size=1, max_size=6))
    return np.array(rows), np.array(draw(st.lists(entry, min_size=len(rows), max_size=len(rows))))


@given(st.lists(amounts, min_size=8, max_size=20, unique=True), rates, rates, rates, st.floats(1e-6, 1e-3))
def test_exact_times_are_explained_exactly(pieces, flops, weights, maps, overhead):
    true = Speed("conv3x3", flops, weights, maps, overhead)
    samples = [Sample(work, true.seconds_of(work)) for work in (Work("conv3x3", *piece) for piece in pieces)]
    found = fit("conv3x3", samples)
    assert all(found.seconds_of(s.work) == pytest.approx(s.seconds, rel=0.02) for s in samples)  # three digits of every term


def test_the_terms_themselves_are_found():
    true = Speed("conv3x3", 1.2e11, 2e10, 1.5e10, 4e-6)
    works = [Work("conv3x3", 10**7 * a, 10**5 * b, 10**5 * c) for a in (1, 9) for b in (1, 7) for c in (1, 8)]
    found = fit("conv3x3", [Sample(work, true.seconds_of(work)) for work in works])
    assert (found.flops_per_s, found.weight_bytes_per_s, found.map_bytes_per_s) == pytest.approx((1.2e11, 2e10, 1.5e10), rel=1e-3)
    assert found.overhead_s == pytest.approx(4e-6, rel=1e-3)


def test_memory_bound_kinds_are_told_by_their_maps_alone():
    samples = [Sample(Work("elementwise", n, 0, 8 * n), 1e-6 + n * 1e-9) for n in (10, 1000, 100_000)]
    assert fit("elementwise", samples) == Speed("elementwise", 0.0, 0.0, 8e9, 1e-6)


@given(st.lists(st.tuples(amounts, st.floats(1e-6, 1.0)), min_size=1, max_size=12))
def test_nothing_is_ever_negative(measured):
    samples = [Sample(Work("conv", *piece), seconds) for piece, seconds in measured]
    found = fit("conv", samples)
    assert min(found.flops_per_s, found.weight_bytes_per_s, found.map_bytes_per_s, found.overhead_s) >= 0
    assert all(np.isfinite(found.seconds_of(work)) for work in TYPICAL.values())


@given(systems())
def test_the_solution_is_the_best_that_is_not_negative(system):
    """The conditions of Karush, Kuhn and Tucker: no slope in what is used, none downwards in what is not."""
    matrix, target = system
    found = non_negative_least_squares(matrix, target)
    assert (found >= 0).all()
    slopes = matrix.T @ (matrix @ found - target)
    bound = 1e-5 * (1 + np.abs(matrix).sum() * (np.abs(target).sum() + np.abs(matrix).sum() * found.max(initial=0)))
    assert (slopes >= -bound).all()
    assert (np.abs(slopes[found > 0]) <= bound).all()


def test_what_cannot_be_fitted():
    for samples in ([], [Sample(Work("conv", 1), 0.0)]):
        with pytest.raises(ValueError, match="speed of 'conv': expected samples"):
            fit("conv", samples)


@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=20), st.floats(1.0, 100.0))
def test_a_disturbance_of_half_of_the_runs_changes_nothing(times, longer):
    undisturbed = [min(times)] * len(times)
    assert typical([*undisturbed, *(longer * time for time in times)]) == min(times)
