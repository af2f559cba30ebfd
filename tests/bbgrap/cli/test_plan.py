import json
import shlex

import pytest

from tests.onnx_models import write_model

UNEQUAL = "nodes:\n  - {name: big, share: 3}\n  - {name: small}\n"


def test_the_keys_that_others_rely_on(run_json):
    report = run_json("plan", "zoo:tiny", "--agents", 3)
    assert {"planner", "agents", "search_s", "initial", "optimized", "predicted_ms", "predicted_single_node_ms", "nodes"} <= set(report)
    for stage in ("initial", "optimized"):
        assert {"transfers", "bytes", "crops", "concats", "syncs"} <= set(report[stage])
    assert report["model"] == "zoo:tiny"
    assert report["agents"] == ["node0", "node1", "node2"]
    assert report["inputs"] == {"input": [1, 3, 32, 32]}
    assert {"name", "device", "region"} <= set(report["nodes"][0])
    assert report["optimized"]["bytes"] < report["initial"]["bytes"]


def test_json_is_alone_on_stdout_even_with_an_explanation(run):
    result = run("plan", "zoo:tiny", "--planner", "bbgrap", "--agents", 2, "--explain", "--json")
    assert json.loads(result.stdout)["planner"] == "bbgrap"
    assert "Plan of 'tiny" in result.stderr


def test_explanation(run):
    result = run("plan", "zoo:tiny", "--planner", "bbgrap", "--agents", 2, "--explain")
    assert "layer1.0.conv2 reads layer1.0.relu1[:,:,0:5,:]" in result.stdout
    assert "Plan of" not in result.stderr


def test_a_model_without_nodes_is_explained(run, tmp_path):
    path = write_model(tmp_path / "passed.onnx", [], {"x": [1, 3]}, {"x": [1, 3]}, opset=18)
    assert "No node computes: the model passes its inputs on" in run("plan", path, "--agents", 2, "--explain").stdout


def test_table(run):
    result = run("plan", "zoo:tiny", "--planner", "bbgrap", "--agents", 2)
    assert result.stdout.startswith("zoo:tiny by planner 'bbgrap' over 2 nodes\n")
    assert "messages between nodes" in result.stdout


def test_the_busiest_wire_is_named(run, run_json, tmp_path):
    file = tmp_path / "c.yaml"
    wires = "wires: {up: {ends: [a, closet], bandwidth: 1MB/s, round_trip: 0}, down: {ends: [closet, b], bandwidth: 1GB/s, round_trip: 0}}"
    file.write_text(f"nodes: [{{name: a}}, {{name: b}}]\ncoordinator_on: a\n{wires}\n")
    args = ("plan", "zoo:tiny", "--cluster", file, "--planner", "bbgrap")
    report = run_json(*args)
    found = report["predicted_busiest_wire"]
    assert (found["wire"], found["to"]) in {("up", "a"), ("up", "closet")}
    assert found["busy_ms"] == pytest.approx(found["bytes"] / 1e3)
    assert found["busy_ms"] < report["predicted_ms"]
    for shown in (run(*args), run(*args, "--explain")):
        assert f"The busiest wire is 'up', towards '{found['to']}'" in shown.stdout
    shared = run_json(*args, "--shares", "1,1")
    assert shared["predicted_busiest_wire"] == found, "the rest of the file still counts"


def test_several_planners_are_compared(run, run_json):
    args = ("plan", "zoo:tiny", "--agents", 2, "--planner", "bbgrap,single,tofu")
    reports = run_json(*args)
    assert [report["planner"] for report in reports] == ["bbgrap", "single", "tofu"]
    table = run(*args).stdout
    assert "the best single node takes" in table
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["bbgrap", "single", "tofu"]
    refused = run(*args, "--explain")
    assert (refused.exit_code, "name one planner" in refused.stderr) == (2, True)


def test_where_no_node_holds_the_model_none_is_compared_with(run, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: a, memory: 240kB}, {name: b, memory: 240kB}]")
    args = ("plan", "zoo:tiny", "--cluster", file, "--planner")
    assert "ms a request, no single node has room for the whole model\n" in run(*args, "bbgrap").stdout
    assert "zoo:tiny over 2 nodes; no single node has room" in run(*args, "bbgrap,fewer-exchanges").stdout


def test_what_replaces_a_plan_that_does_not_fit_is_named(run, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: a, memory: 230kB}, {name: b, memory: 230kB}]")
    (said,) = (line for line in run("plan", "zoo:tiny", "--cluster", file, "--planner", "tofu").stderr.splitlines() if "fit" in line)
    assert said.startswith("does not fit, planned otherwise: planner 'tofu': node 'a' needs ")
    assert said.endswith("; planned instead: planner 'bbgrap', split by channels")


def test_a_figure_without_its_unit_is_doubted(run, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes:\n  - {name: a, work: {conv3x3: 100}, links: {b: {bandwidth: 1Gbps, round_trip: 1ms}}}\n  - name: b\n")
    said = run("plan", "zoo:tiny", "--planner", "single", "--cluster", file).stderr
    assert f"'{file}': node 'a': work 'conv3x3': flops is 100 FLOP/s, expected 10MFLOP/s to 500TFLOP/s" in said
    assert "bandwidth" not in said


def test_the_plan_as_a_file(run, tmp_path):
    file = tmp_path / "plan.json"
    result = run("plan", "zoo:tiny", "--agents", 2, "--output", file)
    assert result.exit_code == 0
    assert json.loads(file.read_text())["agents"] == ["node0", "node1"]


def regions(report, node):
    return [entry["region"] for entry in report["nodes"] if entry["name"] == node]


def test_shares_of_a_cluster_file_or_of_the_command_line(run_json, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(UNEQUAL)
    by_file = run_json("plan", "zoo:tiny", "--planner", "bbgrap", "--cluster", file)
    by_hand = run_json("plan", "zoo:tiny", "--planner", "bbgrap", "--shares", "3,1")
    assert by_file["agents"] == ["big", "small"]
    assert regions(by_file, "conv1") == regions(by_hand, "conv1")
    assert [text.count("0:12") for text in regions(by_file, "conv1")] == [1, 0]
    even = run_json("plan", "zoo:tiny", "--planner", "bbgrap", "--cluster", file, "--shares", "1,1")
    assert regions(even, "conv1") != regions(by_file, "conv1")


def test_a_wrong_cluster_file(run, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes:\n  - {name: a, share: -1}\n  - {nam: b}\n")
    result = run("plan", "zoo:tiny", "--cluster", file)
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert "line 2: " in line
    assert "line 3: " in line


def test_more_nodes_than_rows(run, run_json):
    report = run_json("plan", "zoo:tiny", "--planner", "bbgrap", "--agents", 18)
    assert len(report["agents"]) == 18
    assert len(report["nodes_used"]) == 16
    result = run("plan", "zoo:tiny", "--planner", "bbgrap", "--agents", 18)
    assert "over 16 of 18 nodes" in result.stdout
    assert "left out, there is nothing for them to do: node16, node17\n" in result.stderr


def test_milliseconds_of_nodes_that_nobody_described_are_not_taken_for_this_machines(run, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: a}]\n")
    said = [run("plan", "zoo:tiny", "--planner", "single", *given).stderr for given in (("--agents", 1), ("--cluster", file))]
    assert ["not of this machine" in text for text in said] == [True, False]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--split", "columns", "--agents", "2"), "[0:1, 0:8, 0:16, 0:8]"),
        (("--grid", "2x2", "--agents", "4"), "[0:1, 0:8, 0:8, 0:8]"),
        (("--split", "channels", "--agents", "2"), "[0:1, 0:4, 0:16, 0:16]"),
        (("--split", "batch", "--agents", "2", "--batch", "4"), "[0:2, 0:8, 0:16, 0:16]"),
        (("--planner", "single", "--agents", "2"), "[0:1, 0:8, 0:16, 0:16]"),
    ],
)
def test_along_what_it_is_cut(run_json, options, part):
    assert regions(run_json("plan", "zoo:tiny", *options), "conv1")[0] == part


def test_shapes_of_free_inputs(run, run_json, two_inputs):
    result = run("plan", "--agents", 2, two_inputs)
    assert result.exit_code == 1
    free = "input 'a' [batch, length]: dimension 1; input 'b' [batch, length]: dimension 1"
    command = f"bbgrap plan --agents 2 {two_inputs} --input a=1x16"
    assert result.stderr.endswith(f"\nbbgrap: sizes are free: {free}; give --input NAME=SHAPE, for example: {command}\n")
    assert run(*shlex.split(command)[1:]).exit_code == 0
    report = run_json("plan", two_inputs, "--agents", 2, "--input", "a=4x6")
    assert report["inputs"] == {"a": [4, 6], "b": [4, 6]}
    wrong = run("plan", two_inputs, "--agents", 2, "--input", "c=4x6")
    assert wrong.exit_code == 1
    assert "input 'c': the model has no such input, it has a, b" in wrong.stderr


def test_a_state_that_grows_is_planned_as_a_cluster_plans_it(run):
    """It was planned for one length only, and cut along it: a cluster refuses that and divides the weights."""
    shapes = {"input_ids": "1x1", "position_ids": "1x1", "attention_mask": "1x17"}
    shapes |= {f"past_key_values.{layer}.{part}": "1x4x16x16" for layer in range(2) for part in ("key", "value")}
    inputs = [word for name, shape in shapes.items() for word in ("--input", f"{name}={shape}")]
    done = run("plan", "zoo:tiny-decoder", "--agents", 2, "--planner", "bbgrap", "--state", "auto", "--json", *inputs)
    optimized = json.loads(done.stdout)["optimized"]
    assert (optimized["transfers"], optimized["bytes"]) == (10, 2820)
    assert "what is predicted is one word after 64" in done.stderr
    assert "'attention_mask' is cut along axis 1, whose size changes between requests" in done.stderr.replace("\n", " ")


def test_state_stays_on_the_nodes_and_is_counted(run, run_json):
    words = ("plan", "zoo:voice", "--agents", 2, "--planner", "bbgrap", "--split", "channels")
    plain, report = run_json(*words), run_json(*words, "--state", "state:stateN")
    assert "state_bytes" not in plain
    assert sum(report["state_bytes"].values()) == 2 * 128 * 4
    assert report["optimized"]["bytes"] <= plain["optimized"]["bytes"]
    assert "state of one sequence: node0 1.0 KB" in run(*words, "--state", "auto").stdout
    assert "expected auto, or INPUT:OUTPUT" in run("plan", "zoo:voice", "--agents", 2, "--state", "state").stderr
