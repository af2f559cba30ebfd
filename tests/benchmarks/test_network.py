"""The test-bed and what is made of its measurements; the run over emulated links needs root (`make test-network`)."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from bbgrap.errors import UsageError
from benchmarks import network, testbed
from benchmarks.kept import keep, keep_by_model, label_of
from benchmarks.network import KEY, ModelAt, order, parse_planner, picture, rows_of
from benchmarks.testbed import Rate

ROW_KEYS = {
    "model",
    "batch",
    "link",
    "agents",
    "planner",
    "single_ms",
    "distributed_ms",
    "speedup",
    "ort_two_threads_ms",
    "bytes",
    "exchanges",
    "max_rel_err",
}


@pytest.mark.parametrize(("text", "bits"), [("100mbit", 1e8), ("2.5gbit", 2.5e9), (" 1GBIT ", 1e9), ("64kbit", 64e3), ("loopback", None)])
def test_rates(text, bits):
    assert Rate.parse(text).bits_per_s == bits


@pytest.mark.parametrize("text", ["", "100", "fast", "0mbit", "-1gbit", "1gb", "1gbit;rm"])
def test_what_is_no_rate(text):
    with pytest.raises(UsageError, match="expected a rate like 100mbit"):
        Rate.parse(text)


@pytest.mark.parametrize(
    ("text", "burst", "packet"),
    [("100mbit", 3072, None), ("1gbit", 20000, 16384), ("2.5gbit", 50000, 32768), ("10gbit", 80000, 65536), ("loopback", 3072, None)],
)
def test_a_link_may_run_ahead_by_160_microseconds_and_takes_packets_whole(text, burst, packet):
    assert Rate.parse(text).burst_bytes == burst
    assert Rate.parse(text).packet_bytes == packet


@pytest.mark.parametrize("number", [*range(64, 2000, 37), 2500, 10_000, 40_000])
def test_packets_fit_into_the_bucket_with_the_heads_of_their_frames(number):
    rate = Rate.parse(f"{number}mbit")
    assert (rate.packet_bytes is None) == (number < 174)
    assert rate.packet_bytes is None or rate.packet_bytes + 66 * -(-rate.packet_bytes // 1448) <= rate.burst_bytes


def test_models():
    assert ModelAt.parse("resnet50") == ModelAt("resnet50", 1)
    assert ModelAt.parse("zoo:resnet50@10") == ModelAt("resnet50", 10)
    assert label_of({"model": "some/resnet50.onnx", "batch": 10}) == "resnet50-batch10"
    assert ModelAt.parse("some/model.onnx@2").source == "some/model.onnx"
    assert ModelAt.parse("resnet50").source == "zoo:resnet50"
    for text in ("", "@2", "resnet50@", "resnet50@0", "resnet50@x"):
        with pytest.raises(UsageError, match="expected NAME or NAME@BATCH"):
            ModelAt.parse(text)


def test_planners():
    options = parse_planner("bbgrap:channels", "float16")
    assert (options.planner, options.split, options.transfer_dtype) == ("bbgrap", "channels", "float16")
    assert parse_planner("single").split == "rows"
    with pytest.raises(UsageError, match="planner: expected one of"):
        parse_planner("nobody:rows")
    with pytest.raises(UsageError, match="split: expected one of"):
        parse_planner("bbgrap:diagonally")


def report(speedup=1.25):
    times = {"median_ms": 20.0, "p95_ms": 21.0, "times_ms": [20.0]}
    result = {
        **times,
        "planner": "bbgrap",
        "split": "rows",
        "speedup": speedup,
        "whole_machine_ratio": 0.9,
        "predicted_ms": None,
        "bytes_sent": 10,
        "scatter_bytes": 2,
        "gather_bytes": 3,
        "transfers": 4,
        "syncs": 2,
        "max_rel_err": 1e-7,
        "verified": True,
    }
    return {
        "runs": 1,
        "agents": [{}, {}],
        "single_node": {**times, "onnxruntime": "1"},
        "whole_machine": times,
        "machine": {"processor": "p", "system": "s", "others_percent": [0, 0, 0], "busy": False},
        "results": [result],
    }


def row(link="1gbit", split="rows", speedup=1.25):
    job = network.Job(ModelAt("tiny"), (parse_planner(f"bbgrap:{split}"),), 1)
    (found,) = rows_of(report(speedup), job, {"name": link}, "today")
    return found | {"split": split}


def test_a_row_has_what_readers_rely_on():
    found = row()
    assert found.keys() >= ROW_KEYS
    assert found["agents"] == 2
    assert found["facts"].keys() >= {"date", "processor", "onnxruntime", "others_percent", "busy", "link"}


def test_a_newer_row_replaces_the_same_measurement_only(tmp_path):
    keep([row("1gbit"), row("loopback")], tmp_path / "rows.json", KEY, order)
    together = keep([row("1gbit", speedup=2.0), row("1gbit", "channels")], tmp_path / "rows.json", KEY, order)
    assert [(r["link"], r["split"], r["speedup"]) for r in together] == [
        ("loopback", "rows", 1.25),
        ("1gbit", "channels", 1.25),
        ("1gbit", "rows", 2.0),
    ]


def test_results_are_files_that_grow(tmp_path):
    for link in ("1gbit", "100mbit"):
        keep_by_model("network", [row(link)], KEY, order, picture, tmp_path)
    assert [r["link"] for r in json.loads((tmp_path / "network-tiny.json").read_text())] == ["1gbit", "100mbit"]
    ElementTree.parse(tmp_path / "network-tiny.svg")  # noqa: S314 - written above


def test_the_picture_has_a_bar_for_every_row():
    root = ElementTree.fromstring(picture([row("1gbit"), row("1gbit", "channels", 0.5), row("100mbit")]))  # noqa: S314 - ours
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["1gbit, bbgrap:rows: 1.25", "1gbit, bbgrap:channels: 0.5", "100mbit, bbgrap:rows: 1.25"]


def square(number):
    return number * number


def refuse():
    raise UsageError("no")


@pytest.mark.broad
def test_a_function_at_a_place_answers_or_raises():
    here = testbed.Place("", testbed.CORES[0])
    assert testbed.at(here, square, 7) == 49
    with pytest.raises(UsageError, match="no"):
        testbed.at(here, refuse)


@pytest.mark.network
@pytest.mark.timeout(180)
def test_a_run_over_an_emulated_link():
    command = [sys.executable, network.__file__, "--models", "tiny", "--links", "100mbit", "--planners", "bbgrap:rows"]
    done = subprocess.run([*command, "--runs", "2", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found.keys() >= ROW_KEYS
    assert found["verified"]
    assert 70 < found["facts"]["link"]["measured_mbit_per_s"] < 105
    assert "bbgrap" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
