"""Checks S1 to S8: SoyBean's tilings, one cut, k cuts and the exact count."""

from __future__ import annotations

from itertools import product

import pytest

from bbgrap.planners import soybean as planner
from benchmarks.papers.chains import LayerTilings, Search, areas_of
from benchmarks.papers.networks import Network, alexnet, convolutions, hypar_networks, lstm, main_path, mlp, wresnet
from benchmarks.papers.soybean import (
    LETTERS,
    classical_data_parallel,
    classical_model_parallel,
    k_cut,
    one_cut,
    optimum,
    worked_example,
)
from benchmarks.papers.tiling_words import CONVERSION, RED, flattened, share_held, words
from benchmarks.papers.tilings import FORMS, tables_of

FIVE = mlp(*[300] * 6)
NETWORKS: dict[str, tuple[Network, int]] = {
    **{name: (network, 256) for name, network in hypar_networks().items()},
    "mlp5": (FIVE, 400),
    "mlp4": (mlp(*[8192] * 5), 512),
    "lstm": (lstm(4, 8192), 10_240),
    "wresnet": (main_path(wresnet(50, 4)), 32),
}


def test_s1_worked_example_of_section_2_2() -> None:
    found = worked_example(FIVE, 400, 16, 4, "ps")
    assert (found.data, found.model, found.hybrid) == (57.6e6, 76.8e6, 33.6e6)
    assert 1 - found.hybrid / found.data == pytest.approx(0.417, abs=5e-4)
    assert 1 - found.hybrid / found.model == pytest.approx(0.5625)
    ring = worked_example(FIVE, 400, 16, 4, "ring")
    assert (ring.data, ring.model, ring.hybrid) == (54.0e6, 72.0e6, 25.2e6)


def test_s2_conversion_table_and_number_of_tilings() -> None:
    tables = tables_of(LETTERS, FORMS, (2,))
    forms = dict(zip("RCr", (FORMS.index(loop) for loop in "bio"), strict=True))  # of x: b leaves rows, i columns, o copies
    for before, after in product("RCr", repeat=2):
        assert tables.fetch["x"][LETTERS.index(before), forms[after]] == CONVERSION[before, after]
    for after in LETTERS:  # y is made as partial sums by i, as rows by b, as columns by o
        for loop, made in zip("iob", (RED, "C", "R"), strict=True):
            assert tables.store["y"][FORMS.index(loop), LETTERS.index(after)] == CONVERSION[made, after]
    assert CONVERSION[RED, "r"] == 2
    assert [len(flattened("RCr", cuts)) for cuts in (1, 2, 3, 4)] == [3, 6, 10, 15]
    assert words("RCr", 2) == ("RR", "RC", "Rr", "CR", "CC", "Cr", "rR", "rC", "rr")


@pytest.mark.parametrize("ways", [2, 3, 5])
def test_s2_the_planner_reckons_with_these_conversions(ways: int) -> None:
    tables = tables_of(LETTERS, FORMS, (ways,))
    for number, loop in enumerate(FORMS):
        read = {"b": "R", "i": "C", "o": "r"}[loop]
        assert [planner.converted(before, read, ways) for before in LETTERS] == [*tables.fetch["x"][:, number]]
        assert [planner.stored(loop, after, ways) for after in LETTERS] == [*tables.store["y"][number]]


@pytest.mark.parametrize("ways", [3, 5])
def test_s2_conversions_between_more_than_two(ways: int) -> None:
    tables = tables_of(LETTERS, FORMS, (ways,))
    x, y = tables.fetch["x"], tables.store["y"]
    assert [x[0, 0], x[0, 1], x[0, 2]] == pytest.approx([0, (ways - 1) / ways, ways - 1])
    assert [y[FORMS.index("i"), 0], y[FORMS.index("i"), 2]] == pytest.approx([ways - 1, 2 * (ways - 1)])


@pytest.mark.parametrize(
    ("widths", "batch", "moved"),
    [((300,) * 3, 400, 480_000), ((784, 8192, 10), 256, 10_240), ((4, 9, 2), 16, 128), ((64,) * 3, 8, 2_048), ((3, 5), 7, 0)],
)
def test_s3_one_cut_is_the_best_of_all_tilings(widths: tuple[int, ...], batch: int, moved: float) -> None:
    network = mlp(*widths)
    assert one_cut(network, batch).total == moved
    search = Search(tables_of(LETTERS, FORMS, (2,)), areas_of(network, batch))
    assert min(_all_costs(search, len(network))) == moved


def _all_costs(search: Search, layers: int) -> list[float]:
    """Count every assignment of tilings to tensors."""
    found = []
    for letters in product(LETTERS, repeat=3 * layers + 1):
        x, dx, w = letters[: layers + 1], ("r", *letters[layers + 1 : 2 * layers + 1]), letters[2 * layers + 1 :]
        total = 0.0
        for n, areas in enumerate(search.areas):
            layer = LayerTilings(x[n], dx[n], w[n], x[n + 1], dx[n + 1])
            for name, sizes in areas.items():
                a, b, c = map(LETTERS.index, layer.of(name))
                total += search.cost(name, sizes)[a, b, c]
        found.append(total)
    return found


def test_s4_optimum_of_the_worked_example() -> None:
    assert [optimum(FIVE, 400, cuts).total / 1e6 for cuts in (1, 2, 3)] == pytest.approx([3.0, 6.36, 10.32])
    assert [k_cut(FIVE, 400, cuts).claimed / 1e6 for cuts in (1, 2, 3, 4)] == pytest.approx([3.0, 6.36, 10.56, 15.84])


@pytest.mark.parametrize(
    ("batch", "hidden", "best", "data", "model"),
    [
        (512, 8192, (0.0839, 0.1845, 0.3523), (2.147, 6.442, 15.032), (0.1174, 0.3523, 0.8221)),
        (2048, 8192, (0.3355, 0.7382, 1.409), (2.147, 6.442, 15.032), (0.4698, 1.409, 3.288)),
        (2048, 12288, (0.5033, 1.107, 2.114), (4.832, 14.50, 33.82), (0.7046, 2.114, 4.932)),
    ],
)
def test_s5_optima_of_figure_8(batch: int, hidden: int, best: tuple[float, ...], data: tuple[float, ...], model: tuple[float, ...]) -> None:
    network = mlp(*[hidden] * 5)
    assert [optimum(network, batch, cuts).total / 1e9 for cuts in (1, 2, 3)] == pytest.approx(best, rel=0.001)
    assert [classical_data_parallel(network, devices) / 1e9 for devices in (2, 4, 8)] == pytest.approx(data, rel=0.001)
    assert [classical_model_parallel(network, batch, devices) / 1e9 for devices in (2, 4, 8)] == pytest.approx(model, rel=0.001)


@pytest.mark.parametrize("name", NETWORKS)
def test_s6_s7_s8_cuts_grow_totals_add_up_and_the_optimum_wins(name: str) -> None:
    network, batch = NETWORKS[name]
    for cuts in (2, 3):
        best = optimum(network, batch, cuts).total
        classical = min(classical_data_parallel(network, 2**cuts), classical_model_parallel(network, batch, 2**cuts))
        for tiles in ("stored", "operand"):
            found = k_cut(network, batch, cuts, tiles)
            assert all(a <= b * (1 + 1e-9) for a, b in zip(found.cuts, found.cuts[1:], strict=False))  # S6, theorem 3
            assert found.claimed == sum(found.cuts)  # S7; per group the cuts are 2^(k-i) times smaller
            assert best <= found.exact * (1 + 1e-9)  # S8
            assert found.exact <= classical * (1 + 1e-9)


def test_s7_theorem_1_on_the_deltas() -> None:
    found = k_cut(mlp(*[8192] * 5), 512, 3)
    deltas = [total / 2**level for level, total in enumerate(found.cuts)]
    recursion = 0.0
    for delta in reversed(deltas):
        recursion = delta + 2 * recursion
    assert recursion == found.claimed


def test_what_the_greedy_cuts_really_move() -> None:
    found = k_cut(mlp(*[8192] * 5), 512, 2)
    assert (found.claimed / 1e9, found.exact / 1e9) == pytest.approx((0.1845, 0.2349), rel=0.001)


@pytest.mark.parametrize(
    ("network", "batch", "best", "data"),
    [
        (alexnet(), 256, 0.309, 3.493),
        (alexnet(), 1024, 0.605, 3.493),
        (NETWORKS["VGG-A"][0], 256, 0.661, 7.440),
        (NETWORKS["VGG-D"][0], 256, 0.968, 7.747),
        (convolutions(6, 2048), 256, 2.189, 10.57),
        (convolutions(24, 512), 256, 0.661, 0.661),
    ],
)
def test_convolutional_networks_on_8_devices(network: Network, batch: int, best: float, data: float) -> None:
    assert optimum(network, batch, 3).total / 1e9 == pytest.approx(best, rel=0.002)
    assert classical_data_parallel(network, 8) / 1e9 == pytest.approx(data, rel=0.002)


def test_copies_are_what_is_held_more_than_once() -> None:
    assert [share_held(word, (2, 2)) for word in ("RC", "Rr", "rr")] == [0.25, 0.5, 1]
