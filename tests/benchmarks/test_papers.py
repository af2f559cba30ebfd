"""The benchmark of the papers' tables has the keys that readers of its JSON rely on."""

from __future__ import annotations

import json

import pytest

from benchmarks.papers.accelerators import LINK_BYTES_PER_S, SERIAL, TOPOLOGIES, geometric_mean
from benchmarks.papers.graphs import LAYERS, alone_seconds, batches, built, counted, scaling
from benchmarks.papers.hypar import DATA, HyPar
from benchmarks.papers.networks import HYPAR, hypar_networks
from benchmarks.papers.tables import FIGURE_6, FIGURE_12, bbgrap, hypar, serial_speedups, soybean, speedups, tofu


def test_json_has_every_table() -> None:
    found = json.loads(json.dumps({"hypar": hypar(), "soybean": soybean(), "tofu": tofu()}))
    assert len(found["hypar"]) == 10
    assert all({"dp_gb", "hypar_gb", "plan"} <= of.keys() for of in found["hypar"].values())
    assert found["soybean"].keys() == {"mlp5", "mlp4"}
    assert found["tofu"].keys() == {"table2", "search_s", "ranking"}
    assert len(found["tofu"]["table2"]) == 21
    differing = [name for name, of in found["tofu"]["table2"].items() if of["gb"] != of["gb_published"]]
    assert differing == [name for name, of in found["tofu"]["table2"].items() if of["reason"]]


def test_b10_b11_b12_from_real_programs() -> None:
    found = bbgrap()
    assert [of["initial_mb"] for of in found["resnet50_channels"].values()] == [44.455936, 88.911872]
    assert all([of["initial"], of["optimized"]] == of["derived"] for of in found["rows"].values())


@pytest.mark.parametrize(
    "network",
    [*(pytest.param(name, marks=pytest.mark.broad) for name in ("SCONV", "Lenet-c")), pytest.param("Cifar-c", marks=pytest.mark.slow)],
)
def test_data_parallelism_counted_in_graphs_is_the_papers_closed_form(network: str) -> None:
    for name, of in counted((network,), topologies=()).items():
        closed = HyPar(hypar_networks()[name]).uniform(DATA).total
        assert 0 <= 1e9 * of["data-parallel"] - closed <= 1000  # and the losses, which are added up, too
        assert of["hypar"] <= min(of["data-parallel"], of["model-parallel"])


def test_simulated_steps_take_what_they_compute_and_send_at_least() -> None:
    graphs = counted(("SCONV", "Lenet-c"), nodes=4)
    for name, of in speedups(graphs).items():
        assert {"mp", "published", *TOPOLOGIES} <= of.keys()
        assert name == "geometric mean" or of["tree"] > 0.9
    for of in graphs.values():
        for planner, seconds in of["seconds"].items():
            assert seconds["tree"] >= 1e9 * of[planner] / 4 / LINK_BYTES_PER_S, "the upper wires are as good as none"
            assert seconds["torus/2"] >= seconds["torus"] * (1 - 1e-9)


@pytest.mark.broad
def test_scaling_and_batches_of_small_cases() -> None:
    found = scaling("SCONV", (1, 2, 4))
    assert len({of["s"] for of in found["1"].values()}) == 1, "alone there is nothing to choose"
    assert [found["1"][planner]["gb"] for planner in found["1"]] == [0, 0, 0]
    assert found["2"]["data-parallel"]["gb"] < found["4"]["data-parallel"]["gb"]
    compared = batches({"fc3": LAYERS["fc3"]}, (32, 4096), (2, 4))
    small, large = ([ratio for case, ratio in compared.items() if f"batch {batch}," in case] for batch in (32, 4096))
    assert 1 < large[0] < large[1] < 10, "the more accelerators, the more it is worth to move fewer bytes"
    assert all(0.9 < ratio <= 1 for ratio in small), "fewer bytes are not less time where messages are small"


@pytest.mark.broad
def test_figure_6_and_both_means_of_figure_12_come_out_where_nothing_is_done_at_once() -> None:
    alone = {name: alone_seconds(built(name)) for name in HYPAR}
    found = {name: serial_speedups(name, seconds) for name, seconds in alone.items()}
    for name, printed in FIGURE_6.items():
        assert found[name]["serial tree"] == pytest.approx(printed, rel=0.09)
    means = {key: geometric_mean(*(of[key] for of in found.values())) for key in SERIAL}
    assert means["serial tree, slower"] == pytest.approx(FIGURE_12["tree"], rel=0.01)
    assert means["serial torus/2, slower"] == pytest.approx(FIGURE_12["torus"], rel=0.01)
