"""Where processes listen and what they write to, given on their command lines."""

import os
import socket
import subprocess

import numpy as np
import pytest

import bbgrap
from bbgrap.errors import ClusterUnavailableError, UsageError
from tests.waiting import until

pytestmark = pytest.mark.cluster


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.broad
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_cluster_speaks_ipv6(tmp_path, monkeypatch):
    (tmp_path / "speeds.yaml").write_text("name: speeds\nwork: {conv3x3: 50 GFLOP/s}\n")  # so that nobody measures
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ready, log = tmp_path / "ready", (tmp_path / "log").open("wb")
    started = []

    def start(*command):
        started.append(subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log))

    try:
        start("bbgrap-coordinator", "--bind", "tcp://[::1]:0", "--ready-file", ready)
        until(ready.exists, why=(tmp_path / "log").read_text)
        address = ready.read_text()
        assert address.startswith("tcp://[::1]:")
        for name in ("a", "b"):
            start("bbgrap-agent", "--join", address, "--name", name, "--threads", 1, "--profile", tmp_path / "speeds.yaml")
        monkeypatch.setenv("BBGRAP_COORDINATOR", address)
        with bbgrap.connect() as connection:
            until(lambda: len(connection.nodes()) == 2, why=(tmp_path / "log").read_text)
            assert all(node.address.startswith("tcp://[::1]:") for node in connection.nodes())
            session = bbgrap.InferenceSession("zoo:tiny", cluster=connection, planner="bbgrap", wait=True)
            (y,) = session.run(None, {"input": np.zeros((1, 3, 32, 32), np.float32)})
            assert sorted(session.plan.agents) == ["a", "b"]
        assert y.shape == (1, 10)
        with pytest.raises(ClusterUnavailableError, match="it was closed; connect again"):
            connection.nodes()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
        log.close()


def test_an_agent_that_nobody_reaches_reads_so_in_its_own_log_too(tmp_path):
    """As behind a router that translates addresses: it read `joined` and no more, and the coordinator asked for the wrong end's port."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ready, logs, started = tmp_path / "ready", [tmp_path / "coordinator.log", tmp_path / "agent.log"], []

    def start(log, *command):
        with log.open("wb") as stream:
            started.append(subprocess.Popen([str(word) for word in command], env=environment, stdout=stream, stderr=stream))

    def said(*texts):
        until(lambda: all(all(text in log.read_text() for text in texts) for log in logs), why=lambda: [log.read_text() for log in logs])

    try:
        start(logs[0], "bbgrap-coordinator", "--bind", "tcp://127.0.0.1:0", "--ready-file", ready)
        until(ready.exists, why=logs[0].read_text)
        start(logs[1], "bbgrap-agent", "--join", ready.read_text(), "--name", "away", "--threads", 1, "--advertise", "198.51.100.7")
        said("does not reach 'coordinator' at tcp://127.0.0.1:", "or is not reached by it at tcp://198.51.100.7:", "--advertise")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def test_without_an_address_there_must_be_one_in_the_environment(monkeypatch):
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
    with pytest.raises(UsageError, match="set BBGRAP_COORDINATOR="):
        bbgrap.connect()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["bbgrap-coordinator", "--state-dir", "FILE/state"], "choose another with --state-dir"),
        (
            ["bbgrap-coordinator", "--bind", "tcp://no.such.host.invalid:0", "--state-dir", "."],
            "host 'no.such.host.invalid' cannot be found",
        ),
        (["bbgrap-agent", "--join", "tcp://127.0.0.1:1", "--cache-dir", "FILE/cache"], "choose another with --cache-dir"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(command, said, tmp_path):
    (tmp_path / "FILE").write_text("")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
