"""The commands that need a cluster, against real processes."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

import bbgrap
from bbgrap import zoo
from bbgrap.cli.main import app
from bbgrap.cluster.files import read_profile
from bbgrap.cluster.speeds import TYPICAL
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import BRINGING, FEEDING, Progress
from bbgrap.protocol.version import VERSION
from bbgrap.session import InferenceSession
from bbgrap.work import KINDS
from tests.bbgrap.cli.given_inputs import FORMS, write_files
from tests.known_agents import known_cluster
from tests.onnx_models import write_model

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(cache):
    with known_cluster(2, cache / "agent") as running:
        yield running


@pytest.fixture
def here(cluster, monkeypatch):
    monkeypatch.setenv("BBGRAP_COORDINATOR", cluster.address)


@pytest.fixture
def picture(tmp_path):
    x = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x


def test_nodes(run, run_json, here):
    nodes = run_json("nodes")
    assert [node["name"] for node in nodes] == ["agent0", "agent1"]
    assert {"name", "address", "state", "threads", "memory_bytes", "onnxruntime", "max_opset", "profile"} <= set(nodes[0])
    table = run("nodes").stdout
    assert "agent0" in table
    assert "agent1" in table
    assert VERSION in table
    assert len(table.splitlines()) == 3


def test_nodes_are_whole_on_a_narrow_terminal(here, cluster):
    screen, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # it would be believed before the terminal
    with subprocess.Popen(["bbgrap", "nodes"], stdout=other, env=environment) as process:
        os.close(other)
        text = ""
        with contextlib.suppress(OSError):  # the other end is closed
            while read := os.read(screen, 4096):
                text += read.decode()
    os.close(screen)
    assert process.returncode == 0
    assert max(map(len, text.splitlines())) <= 60
    for node in cluster.connection.nodes():
        assert f"{node.name}  alive  {node.address}" in text


def test_profiles_are_listed_shown_and_removed(run, run_json, here, tmp_path):
    (tmp_path / "slow.yaml").write_text("name: slow\nwork: {conv3x3: 100}\n")
    added = run("profile", "add", tmp_path / "slow.yaml")
    assert "work 'conv3x3': flops is 100 FLOP/s" in added.stderr
    assert "is a unit missing, like GFLOP/s?" in added.stderr
    assert "slow" in [profile["name"] for profile in run_json("profile", "list")["by_hand"]]
    line = next(line for line in run("profile", "list").stdout.splitlines() if line.startswith("slow"))
    assert line.split() == ["slow", "no", "by", "hand", "1", "0", "-"]
    assert "# by hand\nname: slow\nwork: {conv3x3: 100FLOP/s}" in run("profile", "show", "slow").stdout
    assert run("profile", "remove", "slow").exit_code == 0
    assert run("profile", "remove", "slow").exit_code == run("profile", "show", "slow").exit_code == 2


def test_status_and_top(run, run_json, here, cluster, picture, monkeypatch):
    session = bbgrap.InferenceSession("zoo:tiny", cluster=cluster, planner="bbgrap")
    session.run(None, {"input": picture})
    told = run_json("status")
    assert [node["name"] for node in told["nodes"]] == ["agent0", "agent1"]
    assert sum(model["requests"]["done"] for model in told["models"]) >= 1
    assert told["uptime_s"] > 0
    monkeypatch.setenv("COLUMNS", "60")
    text = run("status").stdout
    assert max(map(len, text.splitlines())) <= 60
    assert "serves on agent0, agent1" in " ".join(text.split())
    text = run("top", "--once", "--every", "0.1").stdout
    assert "req/s" in text
    assert "agent1" in text
    refused = run("top")
    assert (refused.exit_code, "give --once" in refused.stderr) == (2, True)


def test_submit_files_and_write_the_answer(run_json, here, picture, tmp_path):
    report = run_json(
        "submit", "zoo:tiny", "--planner", "bbgrap", "--input", f"input={tmp_path / 'x.npy'}", "--output", tmp_path / "out", "--verify"
    )
    assert report["verified"]
    assert report["nodes_used"] == ["agent0", "agent1"]
    (entry,) = report["outputs"]
    assert (entry["name"], entry["dtype"], entry["shape"]) == ("output", "float32", [1, 10])
    (expected,) = Reference(zoo.materialize("tiny")).run({"input": picture})
    np.testing.assert_allclose(np.load(entry["file"]), expected, rtol=1e-5, atol=1e-5)


def test_numbers_that_files_of_numpy_do_not_know_are_written_as_32_bits(run, here, tmp_path):
    path, x = tmp_path / "bfloat16.onnx", np.array([1.0, -2.5, 3.0, 0.125], np.float32)
    np.save(tmp_path / "four.npy", x)
    write_model(path, [helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16)], {"x": [4]}, ["y"], opset=19)
    result = run("submit", path, "--input", f"x={tmp_path / 'four.npy'}", "--output", tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), x, strict=True)
    assert "as float32: numpy's files know no bfloat16" in " ".join(result.stderr.split())


@pytest.mark.broad
def test_transfers_in_fewer_bits_are_named_wherever_answers_are(run, run_json, here):
    report = run_json("submit", "zoo:tiny", "--planner", "bbgrap", "--verify", "--transfer-dtype", "float16")
    assert (report["verified"], report["bit_identical"], report["transfer_dtype"]) == (True, False, "float16")
    assert 1e-6 < report["max_rel_err"] < 1e-2
    (result,) = run_json("bench", "zoo:tiny", "--planner", "bbgrap", "--runs", 1, "--transfer-dtype", "int8")["results"]
    assert (result["verified"], result["bit_identical"], result["transfer_dtype"]) == (True, False, "int8")
    table = run("bench", "zoo:tiny", "--planner", "bbgrap", "--runs", 1, "--transfer-dtype", "int8").stdout
    assert "1 runs, int8 transfers (lossy)" in table
    assert "bbgrap (rows), int8 transfers (lossy)" in " ".join(table.split())


def test_an_ill_conditioned_model_is_no_false_alarm(run, run_json, here, ill_conditioned):
    given = ("--input", f"bytes={ill_conditioned.with_name('bytes.npy')}")
    report = run_json("submit", ill_conditioned, "--planner", "bbgrap", *given, "--verify")
    assert report["verified"]
    assert report["same_by"] == "float64"
    assert report["max_rel_err"] > 1e-4
    assert report["onnxruntime_err"] > 1e-4
    text = run("submit", ill_conditioned, "--planner", "bbgrap", *given, "--verify").stdout
    assert "no further from float64 than onnxruntime (" in text


@pytest.mark.broad
def test_a_measurement_judges_doubtful_answers_when_it_is_over(run_json, here, ill_conditioned):
    for extra in (["--runs", 2], ["--stream", 5]):
        (result,) = run_json("bench", ill_conditioned, "--planner", "bbgrap", *extra)["results"]
        assert result["verified"]
        assert result["same_by"] == "float64"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")  # noqa: PTH110 - a device
def test_an_answer_that_a_full_disk_does_not_take_is_not_called_a_fault_of_bbgrap(run, here, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "output.npy").symlink_to("/dev/full")
    result = run("submit", "zoo:tiny", "--batch", 2000, "--planner", "single", "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert any(f"output.npy': {why}" in result.stderr for why in ("No space left on device", "not all of it was written")), result.stderr


def test_submit_random_inputs_says_so(run, here):
    result = run("submit", "zoo:tiny", "--batch", 2, "--planner", "single")
    assert result.exit_code == 0
    assert "inputs: random, seed 0" in result.stderr
    assert "[2, 10]" in result.stdout


@pytest.mark.parametrize("form", FORMS)
def test_submit_takes_inputs_in_every_form(run_json, here, image_model, tmp_path, monkeypatch, form):
    """test_input_forms.py has the commands that need no cluster."""
    monkeypatch.chdir(tmp_path)
    values = write_files(tmp_path).get(form)
    options, shape = FORMS[form]
    report = run_json("submit", image_model, "--planner", "bbgrap", *options, "--output", "out")
    assert report["inputs"] == {"x": list(shape)}
    if values is not None:
        (expected,) = Reference(image_model).run({"x": values})
        np.testing.assert_allclose(np.load(report["outputs"][0]["file"]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [form if form == "pictures" else pytest.param(form, marks=pytest.mark.slow) for form in FORMS])
@pytest.mark.parametrize("command", ["bench", "trace"])
def test_measurements_take_inputs_in_every_form(run, here, image_model, tmp_path, monkeypatch, command, form):
    monkeypatch.chdir(tmp_path)
    values = write_files(tmp_path).get(form)
    options, shape = FORMS[form]
    result = run(command, image_model, "--planner", "bbgrap", "--runs", 1, *options, "--json")
    assert json.loads(result.stdout)["inputs"] == {"x": list(shape)}
    assert ("inputs: random" in result.stderr) == (values is None)


@pytest.mark.faults
def test_a_trace_is_of_who_answered_where_an_agent_is_lost_before(cache, run, run_json, monkeypatch, tmp_path):
    with known_cluster(2, cache / "agent") as cluster:
        monkeypatch.setenv("BBGRAP_COORDINATOR", cluster.address)
        prepare = InferenceSession.prepare

        def and_lose(session, *given):
            prepared = prepare(session, *given)
            cluster.kill("agent1")
            return prepared

        monkeypatch.setattr(InferenceSession, "prepare", and_lose)
        files = ("--output", tmp_path / "trace.json", "--html", tmp_path / "trace.html")
        summary = run_json("trace", "zoo:mobilenet_v2", "--planner", "bbgrap", "--runs", 1, *files)
    assert summary["nodes_used"] == ["agent0"]
    assert (tmp_path / "trace.html").exists()


@pytest.mark.slow
def test_a_detector_takes_a_picture_of_another_size(run_json, here, tmp_path):
    """The zoo's YOLO with free height and width, as exporters leave them."""
    model = onnx.load(zoo.materialize("yolo"))
    for axis, symbol in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = symbol
    for node in model.graph.node:
        for tensor in model.graph.initializer:
            if node.op_type == "Reshape" and tensor.name == node.input[1]:  # anchors and boxes, and how many there are
                sizes = [-1 if size > 255 else size for size in numpy_helper.to_array(tensor)]
                tensor.CopyFrom(numpy_helper.from_array(np.array(sizes), tensor.name))
    model.graph.output[0].ClearField("type")
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "yolo.onnx")
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "street.png")
    given = ("--input", f"input={tmp_path / 'street.png'}", "--size", "320x320", "--normalize", "0..1")
    report = run_json("submit", tmp_path / "yolo.onnx", "--planner", "bbgrap", *given, "--verify")
    assert report["verified"]
    assert report["inputs"] == {"input": [1, 3, 320, 320]}
    assert report["outputs"][0]["shape"] == [1, 6300, 85]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("y=x.npy", "input 'y': the model has no such input, it has input"),
        ("input=double.npy", "input 'input': expected float32, got float64; convert it with .astype('float32')"),
        ("input=small.npy", "input 'input': expected shape [N, 3, 32, 32], got [1, 3, 8, 8]"),
        ("input=nothing.npy", "input 'input': 'nothing.npy' cannot be read: No such file or directory"),
    ],
)
def test_inputs_that_do_not_fit(run, here, picture, tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    np.save("double.npy", picture.astype(np.float64))
    np.save("small.npy", picture[:, :, :8, :8])
    result = run("submit", "zoo:tiny", "--input", given)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"bbgrap: {said}"


@pytest.mark.broad
def test_profiles_are_written_and_read(run, run_json, here, cluster, tmp_path):
    result = run("profile", "--node", "agent1", "--output", tmp_path / "one.yaml")
    assert result.exit_code == 0, result.stderr
    assert "Microseconds for a typical piece of every kind of work" in result.stdout
    measured = read_profile(tmp_path / "one.yaml")
    assert (measured.name, measured.threads) == ("agent1", 1)
    assert [speed.kind for speed in measured.work] == list(KINDS)
    assert all(speed.seconds_of(TYPICAL[speed.kind]) > 0 for speed in measured.work)
    assert {link.peer for link in measured.links} == {"agent0", "coordinator"}
    listed = {node["name"]: node["profile"] for node in run_json("nodes")}
    assert [speed["kind"] for speed in listed["agent1"]["work"]] == list(KINDS)
    (tmp_path / "mine.yaml").write_text("name: agent1\nshare: 3\n")
    assert run("profile", "--coordinator", cluster.address, "add", tmp_path / "mine.yaml").exit_code == 0
    shares = {node["name"]: (node["profile"] or {}).get("share") for node in run_json("nodes")}
    assert shares["agent1"] == 3
    (tmp_path / "mine.yaml").write_text("name: agent1\nshare: 1\n")
    assert run("profile", "add", tmp_path / "mine.yaml").exit_code == 0
    nobody = run("profile", "--node", "nobody")
    assert nobody.exit_code in (1, 2, 3)
    assert "nobody" in nobody.stderr.splitlines()[-1]


def test_bench(run, run_json, here):
    report = run_json("bench", "zoo:tiny", "--runs", 3, "--batch", 2, "--planner", "bbgrap,single")
    assert {"model", "inputs", "batch", "runs", "agents", "single_node", "results"} <= set(report)
    assert (report["model"], report["inputs"], report["batch"], report["runs"]) == ("zoo:tiny", {"input": [2, 3, 32, 32]}, 2, 3)
    assert [agent["name"] for agent in report["agents"]] == ["agent0", "agent1"]
    keys = {"planner", "median_ms", "p95_ms", "speedup", "max_abs_err", "max_rel_err", "bit_identical"}
    keys |= {"bytes_sent", "transfers", "segments", "predicted_ms", "nodes_used"}
    for result in report["results"]:
        assert keys <= set(result)
        assert result["verified"]
        assert len(result["times_ms"]) == 3
    assert [result["planner"] for result in report["results"]] == ["bbgrap", "single"]
    table = run("bench", "zoo:tiny", "--runs", 1).stdout
    assert "single node, 1 thread" in table
    assert "speed-up" in table


@pytest.mark.broad
def test_bench_of_a_stream(run, run_json, here):
    report = run_json("bench", "zoo:tiny", "--stream", 20, "--in-flight", 3, "--planner", "bbgrap,single", "--objective", "throughput")
    assert (report["requests"], report["in_flight"], len(report["single_node"]["per_s"])) == (20, 3, 5)
    for result in report["results"]:
        assert result["verified"]
        assert result["throughput_per_s"] > 0
        assert result["single_per_s"] > 0
        assert result["throughput_ratio"] > 0
    assert [result["planner"] for result in report["results"]] == ["bbgrap", "single"]
    assert report["results"][1]["nodes_used"] == ["agent0", "agent1"]
    table = run("bench", "zoo:tiny", "--stream", 5).stdout
    assert "5 requests, 4 at once, 2 agents" in table
    assert "per second" in table
    alone = run("bench", "zoo:tiny", "--in-flight", 2)
    assert alone.exit_code == 2
    assert "--stream" in alone.stderr


def test_trace(run, run_json, here, tmp_path):
    trace, page = tmp_path / "trace.json", tmp_path / "report.html"
    report = run_json("trace", "zoo:tiny", "--planner", "bbgrap", "-o", trace, "--html", page, "--runs", 3)
    assert (report["model"], report["runs"], report["nodes_used"]) == ("zoo:tiny", 3, ["agent0", "agent1"])
    assert report["files"] == [str(trace), str(page)]
    assert len(report["times_ms"]) == 3
    assert [node["name"] for node in report["nodes"]] == ["agent0", "agent1", "coordinator"]
    assert all(node["compute_ms"] > 0 for node in report["nodes"][:2])
    assert {segment["node"] for segment in report["segments"]} == {"agent0", "agent1"}
    assert sum(exchange["bytes"] for exchange in report["exchanges"]) > 0
    events = json.loads(trace.read_text())["traceEvents"]
    sent, received = ({e["id"] for e in events if e["ph"] == end} for end in "sf")
    assert sent == received != set()
    assert {e["pid"] for e in events if e["ph"] == "X"} == {0, 1, 2}
    html = page.read_text()
    assert all(name in html for name in ("agent0", "agent1", "coordinator", "layer1.0.conv2", "<svg"))
    table = run("trace", "zoo:tiny", "--planner", "bbgrap", "-o", tmp_path / "trace.svg", "--runs", 1)
    assert table.exit_code == 0
    assert "median of 1 requests" in table.stdout
    assert (tmp_path / "trace.svg").exists()


def test_a_plan_that_does_not_exist_on_the_cluster_is_one_line(run, here):
    result = run("submit", "zoo:tiny", "--grid", "3x2")
    assert result.exit_code in (1, 2)
    assert result.stderr.splitlines()[-1].startswith("bbgrap: ")


def test_shells_are_told_the_clusters_names(here, cluster, tmp_path, monkeypatch):
    def proposed(*words):
        words = {"COMP_WORDS": "\n".join(("bbgrap", *words)), "COMP_CWORD": str(len(words)), "_BBGRAP_COMPLETE": "complete_bash"}
        result = CliRunner().invoke(app, [], env=words, prog_name="bbgrap")
        assert result.stderr == ""
        return result.stdout.split()

    assert proposed("profile", "--node", "ag") == ["agent0", "agent1"]
    assert proposed("token", "revoke", "j") == ["join"]
    monkeypatch.delenv("BBGRAP_COORDINATOR")
    assert proposed("profile", "--node", "ag") == []
    settings = tmp_path / "own.toml"
    monkeypatch.setenv("BBGRAP_CONFIG", str(settings))
    settings.write_text(f"[bbgrap]\ncoordinator = '{cluster.address}'\n")
    assert proposed("profile", "--node", "ag") == ["agent0", "agent1"]
    settings.write_text("[bbgrap")
    assert proposed("profile", "--node", "ag") == []


@pytest.mark.broad
def test_a_large_model_is_brought_and_sent_on_in_bytes(cluster, tmp_path):
    weight = np.random.default_rng().random((1000, 6000), np.float32)  # of which no agent has a part yet
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    path = write_model(tmp_path / "large.onnx", [node], {"x": [1, 1000]}, {"y": [1, 6000]}, {"w": weight})
    told: list[Progress] = []
    session = InferenceSession(path, cluster=cluster, options=PlanOptions("bbgrap", "channels"), on_progress=told.append)
    session.prepare({"x": (1, 1000)})
    brought = [(each.done, each.total) for each in told if each.stage == BRINGING]
    assert brought == sorted(set(brought))
    assert brought[-1] == (path.stat().st_size, path.stat().st_size)
    fed = [(each.done, each.total) for each in told if each.stage == FEEDING]
    assert max(done for done, _ in fed) >= 8 << 20
    assert all(done <= total <= 2 * weight.nbytes for done, total in fed), "as parts, and whole for the standby"
    assert Progress(1, FEEDING, 1_500_000, 12_000_000).text == "sending weights 1.5 of 12.0 MB"
