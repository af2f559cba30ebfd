"""Checks T3 to T9: Tofu's model sizes, search space, recursion and ranking (tables 1 and 2, figure 10)."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import pytest

from benchmarks.papers.coarsening import coarsen, is_chain, training_graph
from benchmarks.papers.networks import Network, hypar_networks, lstm, lstm_weights, main_path, mlp, wresnet
from benchmarks.papers.tiling_words import share_held
from benchmarks.papers.tofu import configurations, factors, partition, rank, table_2, ways_to_divide

WRESNET_152_10 = main_path(wresnet(152, 10))


@pytest.mark.parametrize(
    ("width", "ours"), [(4, (4.2, 7.8, 10.5)), (6, (9.6, 17.1, 23.4)), (8, (17.1, 30.6, 41.7)), (10, (26.4, 47.7, 65.1))]
)
def test_t3_weights_of_wide_resnets(width: int, ours: tuple[float, ...]) -> None:
    found = [table_2(sum(layer.weights for layer in wresnet(depth, width))) for depth in (50, 101, 152)]
    assert found == pytest.approx(ours)  # as printed, but for 50 layers of width 10: 26.7 there, 1 % more


@pytest.mark.parametrize(("hidden", "ours"), [(4096, (8.4, 11.4, 14.4)), (6144, (18.6, 25.2, 32.1)), (8192, (33.0, 45.0, 57.0))])
def test_t3_weights_of_recurrent_networks(hidden: int, ours: tuple[float, ...]) -> None:
    assert [table_2(lstm_weights(depth, hidden)) for depth in (6, 8, 10)] == pytest.approx(ours)  # printed 28.5 and 45.3 are misprints


def test_t4_size_of_the_search_space() -> None:
    assert ways_to_divide(4, 3) == 20
    assert configurations(4, 3) == (64_000_000, 12_288)
    assert configurations(4, 1) == (4096, 4096)


@pytest.mark.parametrize(
    ("network", "batch", "values", "steps"),
    [
        (lstm(4, 8192), 512 * 20, (36.9, 39.9, 51.7, 51.7, 62.4, 54.8), (7.38, 14.76, 14.76)),
        (WRESNET_152_10, 8, (42.7, 44.1, 54.0, 54.1, 77.1, 92.9), (7.80, 11.78, 22.87)),
    ],
    ids=["RNN-4-8K", "WResNet-152-10"],
)
def test_t5_ranking_by_bytes(network: Network, batch: int, values: tuple[float, ...], steps: tuple[float, ...]) -> None:
    found = rank(network, batch)
    names = ("optimum", "tofu", "equal-chop", "spartan", "allrow-greedy", "icml18")
    moved = [found.moved[name] / 1e9 for name in names]
    assert moved == pytest.approx(values, rel=0.01)
    best, tofu, chop, spartan, rows, without_sums = moved
    assert best <= tofu < min(chop, spartan) <= max(chop, spartan) < rows
    assert without_sums > tofu
    assert [step / 1e9 for step in found.steps] == pytest.approx(steps, rel=0.01)


CHAINS = {
    **{name: (network, 256) for name, network in hypar_networks().items()},
    **{f"RNN-{depth}-{hidden}": (lstm(depth, hidden), 512 * 20) for depth in (4, 10) for hidden in (4096, 8192)},
    "MLP-4-8K": (mlp(*[8192] * 5), 512),
    "WResNet-50-4": (main_path(wresnet(50, 4)), 128),
    "WResNet-152-10": (WRESNET_152_10, 8),
}


@pytest.mark.parametrize("name", CHAINS)
def test_t6_later_steps_cost_no_less(name: str) -> None:
    network, batch = CHAINS[name]
    for workers in (8, 16):
        steps = partition(network, batch, workers).cuts
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(steps))


def test_t6_does_not_hold_for_factors_that_differ() -> None:
    """Theorem 1 is about halves: three ways cost twice as much as two, so the first of 3 * 2 steps can be the dearest."""
    steps = partition(*CHAINS["MLP-4-8K"], workers=6).cuts
    assert [round(step / 1e6, 1) for step in steps] == [369.1, 184.5]


def test_t7_workers_are_factorised_largest_first() -> None:
    assert [factors(number) for number in (6, 12, 8, 7, 1)] == [(3, 2), (3, 2, 2), (2, 2, 2), (7,), ()]


def test_t8_search_times() -> None:
    start = perf_counter()
    partition(WRESNET_152_10, 8, 8)
    middle = perf_counter()
    partition(lstm(10, 8192), 128, 8, timesteps=20)
    assert middle - start < 8.3  # the target, 0.5 s on an idle core, is what `python -m benchmarks.papers` reports
    assert perf_counter() - middle < 66.6


@pytest.mark.parametrize("workers", [7, 8, 12])
def test_t9_every_tensor_is_divided_by_the_number_of_workers(workers: int) -> None:
    found = partition(lstm(4, 8192), 512, workers)
    held = {share_held(word, factors(workers)) for layer in found.layers for word in (layer.x, layer.w, layer.y, layer.dy)}
    assert list(held) == pytest.approx([1 / workers])


@pytest.mark.parametrize(("network", "steps", "operators"), [(mlp(3, 4, 5, 6), 1, 23), (WRESNET_152_10, 1, 1215), (lstm(10, 64), 20, 1200)])
def test_coarsening_leaves_one_group_per_layer_in_a_chain(network: Network, steps: int, operators: int) -> None:
    graph = training_graph(network, steps)
    groups = coarsen(graph)
    assert len(graph) == operators
    assert len(groups) == len(network)
    assert is_chain(groups)
    assert all(len(group.operators) == (3 if number else 2) * steps for number, group in enumerate(groups))
