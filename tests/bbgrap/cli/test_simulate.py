import pytest
from onnx import helper

from tests.onnx_models import write_model


def test_the_partitioned_model_answers_like_onnxruntime(run_json):
    report = run_json("simulate", "zoo:tiny", "--planner", "bbgrap", "--agents", 3)
    assert report["verified"]
    assert report["max_abs_err"] < 1e-5
    assert report["optimized"]["transfers"] > 0
    assert report["same_by"] in ("identical", "rounding")
    assert "nodes" not in report


def test_table(run):
    result = run("simulate", "zoo:tiny", "--agents", 2, "--split", "columns")
    assert result.exit_code == 0
    assert "\nverified against plain onnxruntime: " in result.stdout
    assert "inputs: random, seed 0" in result.stderr


def test_transfers_in_fewer_bits_are_never_shown_as_exact(run, run_json):
    exact = run_json("simulate", "zoo:tiny", "--planner", "bbgrap", "--agents", 2)
    assert exact["transfer_dtype"] == "exact"
    for transfers, bits in (("float16", 16), ("int8", 8.5)):
        report = run_json("simulate", "zoo:tiny", "--planner", "bbgrap", "--agents", 2, "--transfer-dtype", transfers)
        assert report["transfer_dtype"] == transfers
        assert report["verified"]
        assert not report["bit_identical"]
        assert exact["max_rel_err"] < 1e-6 < report["max_rel_err"]
        for what in ("bytes", "scatter_bytes"):
            assert report["optimized"][what] / exact["optimized"][what] == pytest.approx(bits / 32, rel=0.05)
        assert report["optimized"]["gather_bytes"] == exact["optimized"]["gather_bytes"]
    text = run("simulate", "zoo:tiny", "--planner", "bbgrap", "--agents", 2, "--transfer-dtype", "int8").stdout
    assert text.count("floats travelling as int8 (lossy)") == 2
    assert "verified within 0.1 against plain onnxruntime" in text


def test_several_inputs(run_json, two_inputs):
    assert run_json("simulate", two_inputs, "--agents", 2, "--input", "a=4x6")["bit_identical"]


def test_a_wrong_answer_is_a_failure(run, tmp_path):
    """onnxruntime draws by a node's number, which is another one once the model is rewritten."""
    first = helper.make_node("Identity", ["x"], ["same"])
    nodes = [first, helper.make_node("RandomNormalLike", ["same"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    model = write_model(tmp_path / "random.onnx", nodes, {"x": [1, 4]}, {"y": [1, 4]})
    result = run("simulate", model, "--agents", 2)
    assert result.exit_code == 1
    assert "NOT verified against plain onnxruntime: max absolute error" in result.stdout


@pytest.mark.parametrize("agents", [1, 5, 20])
def test_any_number_of_nodes(run_json, image_model, agents):
    report = run_json("simulate", image_model, "--planner", "bbgrap", "--agents", agents, "--batch", "2")
    assert report["verified"]
    assert len(report["nodes_used"]) == min(agents, 8)


@pytest.mark.broad
def test_only_predicted_for_a_cluster_that_does_not_exist(run_json, tmp_path):
    cluster = tmp_path / "cluster.yaml"
    nodes = "\n".join(f"  - {{name: n{n}, share: {1 + n % 2}, group: rack{n % 2}}}" for n in range(4))
    groups = "groups:\n  rack0: {bandwidth: 10Gbit/s, round_trip: 0.1ms}\n  rack1: {bandwidth: 10Gbit/s, round_trip: 0.1ms}"
    cluster.write_text(f"nodes:\n{nodes}\nnetwork: {{bandwidth: 1Gbit/s, round_trip: 0.4ms}}\n{groups}\ncoordinator_on: n1\n")
    timeline = tmp_path / "timeline.svg"
    report = run_json("simulate", "zoo:tiny", "--cluster", cluster, "--planner", "auto", "--no-run", "--timeline", timeline)
    assert "verified" not in report
    assert 0 < report["predicted_ms"] <= report["predicted_single_node_ms"]
    assert timeline.read_text().startswith("<svg")
    measured = run_json("simulate", "zoo:tiny", "--cluster", cluster, "--no-run", "--measured")
    assert measured["measured_kernels_ms"] > 0


def test_a_timeline_of_unknown_form_is_refused_first(run, tmp_path):
    result = run("simulate", "zoo:tiny", "--agents", 2, "--timeline", tmp_path / "t.pdf")
    assert result.exit_code == 2
    assert "expected a name that ends in" in result.stderr
