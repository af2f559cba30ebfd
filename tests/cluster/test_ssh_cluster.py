"""The cluster of a hosts file whose hosts are all this machine: its shell does what `ssh` only carries elsewhere (tests/deploy)."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil
import pytest
import yaml

import bbgrap
from bbgrap.launching.hosts import read_hosts
from bbgrap.launching.launch import Launch
from bbgrap.zoo import materialize

pytestmark = pytest.mark.cluster
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """A file of three hosts and a coordinator; what runs of them is stopped in the end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "hosts.yaml"
    document = {
        "coordinator": {"address": f"tcp://127.0.0.1:{free_port()}", "ssh": "none"},
        "defaults": {"bin": str(BIN), "options": ["--threads", "1"]},
        "hosts": [{"name": name, "ssh": "none"} for name in ("left", "right", "spare")],
    }
    file.write_text(yaml.safe_dump(document))
    yield file
    Launch(read_hosts(file)).stop()


def names(cluster):
    return sorted(node.name for node in cluster.connection.nodes())


@pytest.mark.broad
def test_a_program_starts_uses_grows_and_ends_a_cluster(hosts):
    feed = {"input": np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)}
    path = materialize("tiny")
    (expected,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    with bbgrap.SSHCluster(hosts, agents=2) as cluster:
        assert names(cluster) == ["left", "right"]
        session = bbgrap.InferenceSession(path)
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-5)
        assert cluster.add_agent() == "spare"
        assert names(cluster) == ["left", "right", "spare"]
        with pytest.raises(bbgrap.UsageError, match=r"all hosts of .* have an agent: left, right, spare"):
            cluster.add_agent()
        assert "joins tcp://" in cluster.log("spare")
        with pytest.raises(bbgrap.UsageError, match="starts nothing that is called 'other', only coordinator, left, right, spare"):
            cluster.log("other")

        cluster.kill("right")
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(bbgrap.ClusterUnavailableError, match="it does not run"):
            cluster.kill("right")
        assert cluster.add_agent("right") == "right"
        running = [psutil.Process(state.pid) for state in Launch(read_hosts(hosts)).status()]
    assert len(running) == 4
    assert not psutil.wait_procs([process for process in running if process.is_running()], 10)[1]
    with pytest.raises(bbgrap.ClusterUnavailableError, match="ssh cluster: it is closed"):
        cluster.connection.nodes()


@pytest.mark.broad
def test_what_ran_before_goes_on_until_down(hosts):
    def bbgrap_said(*arguments, status=0):
        done = subprocess.run([BIN / "bbgrap", *arguments, "--json"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stderr
        return {one["name"]: one["process"] for one in json.loads(done.stdout)}

    assert bbgrap_said("up", hosts, "start", "left") == {"coordinator": "started", "left": "started"}
    with bbgrap.SSHCluster(hosts, agents=2) as cluster:
        assert names(cluster) == ["left", "right"]
    assert bbgrap_said("up", hosts, "status", status=1) == {
        "coordinator": "runs", "left": "runs", "right": "stopped", "spare": "stopped",
    }  # fmt: skip
    assert set(bbgrap_said("down", hosts).values()) == {"ended", "stopped"}


@pytest.mark.broad
def test_a_host_that_does_not_start_is_told_and_the_others_are_stopped(hosts):
    document = yaml.safe_load(hosts.read_text())
    document["hosts"][1]["options"] = ["--cores", "none"]
    hosts.write_text(yaml.safe_dump(document))
    with pytest.raises(bbgrap.ClusterUnavailableError, match=r"'right' at this machine: its process ended; the end of its log:\n.*cores"):
        bbgrap.SSHCluster(hosts)
    assert {state.process for state in Launch(read_hosts(hosts)).status()} <= {"stopped", "ended"}
    with pytest.raises(bbgrap.UsageError, match=r"expected 1 to 3 agents, .* got 4"):
        bbgrap.SSHCluster(hosts, agents=4)


def test_an_agent_that_runs_while_its_hosts_file_has_got_another_name_is_not_just_stopped(hosts):
    """It was `stopped`, `alive` and `it does not run` in one line."""
    with bbgrap.SSHCluster(hosts, agents=1):
        document = yaml.safe_load(hosts.read_text())
        del document["coordinator"]["ssh"]
        renamed = hosts.with_name("renamed.yaml")
        renamed.write_text(yaml.safe_dump(document))
        left, right, _ = Launch(read_hosts(renamed)).status()
        assert (left.process, left.cluster) == ("stopped", "alive")
        assert "has joined that this file has not started" in left.fault
        assert "'cluster: NAME'" in left.fault
        assert (right.process, right.cluster, right.fault) == ("stopped", "", "it does not run")
        document["cluster"] = "hosts"
        renamed.write_text(yaml.safe_dump(document))
        left, *_ = Launch(read_hosts(renamed)).status()
        assert (left.process, left.cluster) == ("runs", "alive")
