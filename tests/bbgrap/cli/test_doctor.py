"""`bbgrap doctor` against real processes with faults in them."""

import json
import os
import socket
import subprocess
import time

import pytest

from bbgrap.cluster.types import NodeProfile, Speed
from tests.known_agents import lasting_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with lasting_cluster(2, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


def findings(run, *args):
    result = run("doctor", *args, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == int(any(finding["severity"] == "error" for finding in found))
    return [(finding["severity"], finding["who"], finding["about"]) for finding in found]


def test_this_machine_alone(run):
    assert all(who == "this machine" for _, who, _ in findings(run))
    text = run("doctor").stdout
    assert text.splitlines()[-1].startswith("this machine: ")


def test_a_cluster_that_is_well(run, cluster):
    found = findings(run, "--coordinator", cluster.address)
    assert not [finding for finding in found if finding[0] == "error"]
    assert not {"clock", "version", "reachability", "silent", "unequal"} & {about for _, _, about in found}


def test_what_listens_but_is_no_coordinator(run):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = findings(run, "--coordinator", f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    assert ("error", "coordinator", "access") in found


def test_a_token_that_is_refused(run, cluster, tmp_path):
    (tmp_path / "token").write_text("nonsense")
    found = findings(run, "--coordinator", cluster.address, "--token-file", tmp_path / "token")
    assert ("error", "coordinator", "access") in found


def test_very_unequal_nodes(run, cluster):
    cluster.connection.add_profile(NodeProfile("agent1", work=(Speed("conv3x3", flops_per_s=5e9),)))
    try:
        assert ("warning", "agent1", "unequal") in findings(run, "--coordinator", cluster.address)
    finally:
        cluster.connection.add_profile(NodeProfile("agent1", work=(Speed("conv3x3", flops_per_s=50e9),)))


@pytest.mark.broad
def test_a_model_is_told_what_one_more_node_would_gain(run, cluster, monkeypatch):
    monkeypatch.setattr("bbgrap.cli.doctor._SEARCH_S", 0.5)
    result = run("doctor", "zoo:tiny", "--coordinator", cluster.address, "--json")
    said = {finding["about"]: finding for finding in json.loads(result.stdout) if finding["who"] == "zoo:tiny"}
    assert said.keys() == {"prediction", "what if"}
    assert "ms a request over" in said["prediction"]["found"]


def test_a_fault_of_the_model_is_one_of_the_findings(run, cluster, tmp_path, two_inputs):
    (tmp_path / "broken.onnx").write_text("nonsense")
    found = findings(run, tmp_path / "broken.onnx", "--coordinator", cluster.address)
    assert ("error", str(tmp_path / "broken.onnx"), "model") in found
    (free,) = (f for f in json.loads(run("doctor", two_inputs, "--json").stdout) if f["who"] == str(two_inputs))
    assert (free["severity"], free["advice"]) == ("error", "for example: --input a=1x16")


def test_a_model_without_a_cluster(run, two_inputs):
    found = json.loads(run("doctor", two_inputs, "--input", "a=1x16", "--json").stdout)
    (said,) = (finding for finding in found if finding["who"] == str(two_inputs))
    assert (said["severity"], said["found"]) == ("note", "none: there are no nodes")
    assert "--coordinator" in said["advice"]


@pytest.mark.faults
def test_an_agent_that_advertises_an_address_where_nobody_is(run, cluster, cache):
    command = ["bbgrap-agent", "--join", cluster.address, "--name", "lost", "--advertise", "240.0.0.1", "--cache-dir", cache / "agent"]
    with subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        try:
            deadline = time.monotonic() + 30
            while ("error", "coordinator and lost", "reachability") not in (found := findings(run, "--coordinator", cluster.address)):
                assert time.monotonic() < deadline, found
                time.sleep(0.3)
        finally:
            agent.terminate()
    assert ("error", "agent0", "address") in found  # others are at loopback, which that one cannot reach


def test_who_was_lost(run, cluster):
    cluster.kill(cluster.add_agent("gone"))
    deadline = time.monotonic() + 20
    while not (said := run("nodes", "--coordinator", cluster.address)).stderr.startswith("'gone' is lost: it has said nothing for "):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "gone" not in said.stdout
    assert ("warning", "gone", "lost") in findings(run, "--coordinator", cluster.address)
