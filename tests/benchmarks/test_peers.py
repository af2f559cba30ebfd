"""What peers are made of and what is made of their measurements; a whole run needs root (`make test-network`)."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from bbgrap import zoo
from bbgrap.comparison import SAME, Rule, compare
from bbgrap.engine.reference import Reference
from bbgrap.errors import ExecutionError, ModelError, UsageError
from bbgrap.transport.credentials import Credentials
from benchmarks.kept import keep
from benchmarks.peers import replicas
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.halves import Stage, cuts, halve
from benchmarks.peers.known import OTHERS, OURS
from benchmarks.peers.peer import Peer, Setting
from benchmarks.peers.peer_process import Judgement, PeerProcess, Single, Stream
from benchmarks.peers.rounds import _Contender, row_of
from benchmarks.peers.table import KEY, markdown
from benchmarks.testbed import CORES, Place, Reached


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    home, path = tmp_path_factory.mktemp("peers"), zoo.materialize("tiny")
    (declared,) = Reference(path).inputs
    feeds = {"input": np.random.default_rng(0).random([1, *declared.shape[1:]], np.float32)}
    here = Place("", CORES[0])
    return Setting("tiny", path, feeds, halve(path, feeds, home), (here, here), ("127.0.0.1",) * 2, Reached("", Credentials()), home)


def test_two_stages_answer_like_the_whole_and_both_have_work(setting):
    values = [*setting.feeds.values()]
    for path in setting.halves.paths:
        values = Stage(path).run(values)
    assert compare(values, Reference(setting.path).run(setting.feeds)).verified
    assert len(Stage(setting.halves.paths[1])._names) == 1
    assert all("Conv" in [node.op_type for node in onnx.load(path).graph.node] for path in setting.halves.paths)


def test_a_cut_is_where_one_tensor_alone_crosses():
    graph = onnx.parser.parse_graph(
        "g (float[1] x) => (float[1] y) { a = Relu(x) b = Neg(a) c = Exp(a) d = Add(b, c) e = Relu(d) y = Add(e, d) }"
    )
    assert cuts(graph) == ["a", "d"]


def test_a_model_without_such_a_place_is_no_pipeline(tmp_path):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { a = Relu(x) y = Add(a, x) }')
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="one tensor alone crosses"):
        halve(tmp_path / "m.onnx", {"x": np.zeros(1, np.float32)}, tmp_path)


@pytest.mark.broad
@pytest.mark.cluster
def test_replicas_share_requests_and_everybody_gets_the_own_answer(setting, tmp_path):
    reference = Reference(setting.path)
    feeds = [{"input": setting.feeds["input"] * number} for number in range(10)]
    with replicas.PEER.open(replace(setting, home=tmp_path)) as running:
        waiters = [running.begin(each) for each in feeds]
        answers = [wait() for wait in reversed(waiters)][::-1]
    for each, answer in zip(feeds, answers, strict=True):
        np.testing.assert_array_equal(answer[0], reference.run(each)[0])


@pytest.mark.cluster
def test_a_peer_has_its_turns_in_a_process_of_its_own(setting):
    expected = Reference(setting.path).run(setting.feeds)
    process = PeerProcess(OTHERS["onnxruntime"], setting, expected)
    try:
        assert len(process.ask(Single(3))) == 3
        assert process.ask(Stream(9)) > 0
        assert process.ask(Judgement()).bit_identical
        assert len(process.processes()) == 1
    finally:
        process.close()


@pytest.mark.cluster
def test_a_peer_that_fails_says_why(setting, tmp_path):
    with pytest.raises(ExecutionError, match=r"onnxruntime: ModelError: .*missing\.onnx"):
        PeerProcess(OTHERS["onnxruntime"], replace(setting, path=tmp_path / "missing.onnx"), [])


def contender(peer, seconds, rate, comparison=SAME):
    return _Contender(peer, None, [[seconds] * 3] * 2, [rate] * 2, comparison=comparison)


def test_ahead_is_who_is_better_on_two_nodes_with_right_answers():
    ours = contender(OURS, 0.010, 100.0)
    assert row_of(contender(OTHERS["replicas"], 0.020, 150.0), ours)["ahead"] == ["throughput"]
    assert row_of(contender(OTHERS["ray"], 0.005, 50.0), ours)["ahead"] == ["latency"]
    assert row_of(contender(OTHERS["ray"], 0.005, 50.0), ours)["latency_against_bbgrap"] == 2
    assert row_of(contender(OTHERS["onnxruntime-two-cores"], 0.005, 150.0), ours)["ahead"] == []
    assert row_of(contender(OTHERS["openvino"], 0.005, 150.0, replace(SAME, rule=Rule.NONE)), ours)["ahead"] == []
    assert row_of(ours, ours)["ahead"] == []


def test_peers_that_are_missing_are_left_out_with_how_to_install_them(capsys, monkeypatch):
    absent = Peer("absent", "Absent", lambda _: None, {"json": "json", "no_such_module": "no-such"})
    monkeypatch.setitem(OTHERS, "absent", absent)
    assert chosen("bbgrap,onnxruntime,absent") == [OTHERS["onnxruntime"]]
    assert "left out: Absent: it is not installed; pip install no-such" in capsys.readouterr().err
    with pytest.raises(UsageError, match="expected some of onnxruntime, openvino"):
        chosen("onnxruntime,mxnet")


FACTS = {"facts": {"date": "2026-01-01T00:00", "processor": "p", "busy": False}, "versions": {"onnxruntime": "1"}}


def test_the_page_has_a_column_for_each_peer_and_marks_who_is_ahead(tmp_path):
    ours = contender(OURS, 0.010, 100.0)
    key = {"model": "resnet50", "link": "1gbit", **FACTS}
    rows = [{**key, **row_of(each, ours)} for each in (ours, contender(OTHERS["replicas"], 0.02, 150.0))]
    failed = {**key, **row_of(_Contender(OTHERS["ray"], None, failure="no"), ours)}
    keep([*rows, {**rows[1], "p50_ms": 1.0}, failed], tmp_path / "peers.json", KEY)
    text = markdown(json.loads((tmp_path / "peers.json").read_text()))
    assert "| | | bbgrap | replicas | ray |" in text
    assert "| ResNet50 | 1 Gbit/s | 10.0 | 1.0 | failed |" in text
    assert "| ResNet50 | 1 Gbit/s | 100.0 | **150.0** | failed |" in text


@pytest.mark.network
@pytest.mark.timeout(300)
def test_a_run_over_an_emulated_link():
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers",
        "--models",
        "tiny",
        "--links",
        "1gbit",
        "--rounds",
        "1",
        "--requests",
        "2",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["peer"]: row for row in json.loads(done.stdout)}
    assert rows.keys() >= {"bbgrap", "onnxruntime", "replicas", "onnxruntime-two-cores"}
    assert all(row["verified"] and row["p50_ms"] > 0 and row["per_s"] > 0 for row in rows.values())
    assert "bbgrap" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
