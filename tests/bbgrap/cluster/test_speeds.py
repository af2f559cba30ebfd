from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.speeds import (
    DEFAULT_WORK,
    ONE_THREAD,
    PIECES,
    SAME_WITHIN,
    TYPICAL,
    Speed,
    as_slow_as_known,
    shares_of,
    speeds_of,
)
from bbgrap.work import KINDS

MEASURED = tuple(speed for speed in DEFAULT_WORK if speed.kind in {"conv1x1", "conv3x3", "matmul"})


def times(speed, factor):
    """Return a speed that is `factor` times as fast."""
    return replace(
        speed,
        flops_per_s=speed.flops_per_s * factor,
        weight_bytes_per_s=speed.weight_bytes_per_s * factor,
        map_bytes_per_s=speed.map_bytes_per_s * factor,
        overhead_s=speed.overhead_s / factor,
    )


def node(name, factor, work=MEASURED, **more):
    return NodeProfile(name, work=tuple(times(speed, factor) for speed in work), **more)


def test_every_kind_has_a_default_and_a_typical_piece():
    assert [speed.kind for speed in DEFAULT_WORK] == list(KINDS)
    assert list(TYPICAL) == list(KINDS)
    assert set(PIECES) == set(KINDS)
    assert all(work.kind == kind for kind, work in TYPICAL.items())
    assert all(speed.seconds_of(TYPICAL[speed.kind]) > 0 for speed in DEFAULT_WORK)


def test_seconds_add_up():
    assert Speed("conv", 2e9, 1e6, 0.0, 1e-3).seconds(4e9, 3e6, 1e12) == pytest.approx(5.001)


def test_measured_speeds_are_used_as_they_are():
    work = tuple(times(speed, 3) for speed in DEFAULT_WORK)
    assert speeds_of(NodeProfile("a", 0.5, threads=4, work=work)) == {speed.kind: speed for speed in work}


@given(st.floats(0.01, 100))
def test_what_was_not_measured_follows_what_was(factor):
    found = speeds_of(node("a", factor))
    for default in DEFAULT_WORK:
        expected = default.seconds_of(TYPICAL[default.kind]) / factor
        assert found[default.kind].seconds_of(TYPICAL[default.kind]) == pytest.approx(expected, rel=1e-6)


def test_without_measurements_share_and_threads_decide():
    default = {speed.kind: speed for speed in DEFAULT_WORK}
    assert speeds_of(NodeProfile("a")) == default
    found = speeds_of(NodeProfile("a", 0.5, threads=2))
    for kind in KINDS:
        ratio = default[kind].seconds_of(TYPICAL[kind]) / found[kind].seconds_of(TYPICAL[kind])
        assert ratio == pytest.approx(0.5 if kind in ONE_THREAD else 0.5 * 2**0.95)


def test_a_node_twice_as_slow_gets_half_the_share():
    assert Cluster((node("a", 1), node("b", 2), node("c", 0.5))).shares == (0.5, 1.0, 0.25)


@given(st.lists(st.floats(1 - 0.9 * SAME_WITHIN, 1), min_size=1, max_size=6))
def test_noise_does_not_make_nodes_unequal(noise):
    assert set(shares_of([node(f"n{i}", factor) for i, factor in enumerate(noise)])) == {1.0}


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=6))
def test_shares_follow_speeds(factors):
    shares = shares_of([node(f"n{i}", factor) for i, factor in enumerate(factors)])
    assert max(shares) == 1.0
    for share, factor in zip(shares, factors, strict=True):
        assert share == pytest.approx(factor / max(factors), rel=SAME_WITHIN + 0.051)


def test_declared_shares_count_unless_every_node_was_measured():
    assert Cluster((node("a", 1), NodeProfile("b"))).shares == (1.0, 1.0)
    assert Cluster((node("a", 1), node("b", 2, share=3.0))).shares == (1.0, 3.0)
    assert Cluster((node("a", 1, MEASURED[:1]), node("b", 2, MEASURED[1:]))).shares == (1.0, 1.0)


def test_nodes_are_compared_by_what_both_know():
    both = MEASURED[:1]
    assert Cluster((node("a", 1), node("b", 0.5, both))).shares == (1.0, 0.5)


@given(st.lists(st.tuples(st.sampled_from([0.02, 0.5, 1.0, 3.0]), st.booleans()), min_size=1, max_size=5))
def test_who_is_not_known_is_as_fast_as_the_slowest_that_is(nodes: list[tuple[float, bool]]):
    """A slow node was taken for a generic core, and got all work beside a busy one that had been measured."""
    there = [node(f"n{i}", factor) if known else NodeProfile(f"n{i}") for i, (factor, known) in enumerate(nodes)]
    slowest = min((factor for factor, known in nodes if known), default=None)
    for before, after in zip(there, as_slow_as_known(there), strict=True):
        if before.work or slowest is None:
            assert after == before
        else:
            assert after == node(before.name, slowest)
    by_hand = NodeProfile("c", share=2.0)
    assert as_slow_as_known([node("a", 1.0), by_hand])[1] == by_hand
