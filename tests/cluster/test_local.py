"""Clusters on this machine: what the surroundings say is for others, and agents that come after one was killed."""

import errno
import os

import numpy as np
import pytest

import bbgrap
from bbgrap.bench import bound_to
from bbgrap.errors import UsageError
from tests.cluster import tiny

pytestmark = pytest.mark.cluster
X = np.ones((8, 4), np.float32)


@pytest.mark.parametrize(
    "names",
    [
        ["BBGRAP_TOKEN", "BBGRAP_TOKEN_FILE", "BBGRAP_INSECURE"],
        *(pytest.param([name], marks=pytest.mark.broad) for name in ("BBGRAP_TOKEN", "BBGRAP_TOKEN_FILE", "BBGRAP_INSECURE")),
    ],
)
def test_credentials_for_another_cluster_do_not_matter(tmp_path, monkeypatch, names):
    (tmp_path / "other.token").write_text("bbgrap-of-another-cluster")
    values = {"BBGRAP_TOKEN": "bbgrap-of-another-cluster", "BBGRAP_TOKEN_FILE": str(tmp_path / "other.token"), "BBGRAP_INSECURE": "1"}
    for name in names:
        monkeypatch.setenv(name, values[name])
    with bbgrap.LocalCluster(1, cache_dir=tmp_path / "weights") as cluster:
        (y,) = bbgrap.InferenceSession(tiny.model_bytes(), cluster=cluster, planner="single").run(None, {"x": X})
    np.testing.assert_array_equal(y, tiny.expected(X))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds processes to cores")
def test_where_a_sandbox_binds_nobody_to_cores_agents_have_all_of_them(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with bbgrap.LocalCluster(1, cache_dir=tmp_path) as cluster, bound_to(frozenset({0})):
        assert [node.cores for node in cluster.connection.nodes()] == [len(os.sched_getaffinity(0))]


def test_logs_of_a_cluster_that_runs_for_months_are_bounded():
    with bbgrap.LocalCluster(0) as cluster:
        log = cluster.logs / "coordinator.log"
        with log.open("ab") as stream:
            stream.write(b"a line of last month\n" * 500_000)
        cluster.add_agent()
        assert log.stat().st_size < 10_000
        assert log.with_name("coordinator.log.1").stat().st_size > 10_000_000


@pytest.mark.faults
def test_an_agent_that_is_added_after_a_kill_has_joined(tmp_path):
    with bbgrap.LocalCluster(2, cache_dir=tmp_path) as cluster:
        cores = {node.name: node.cores for node in cluster.connection.nodes()}
        cluster.kill("agent1")
        assert cluster.add_agent() == "agent1"
        assert {node.name: node.cores for node in cluster.connection.nodes()} == cores
        with pytest.raises(UsageError, match="there is no 'nope', only coordinator, agent0, agent1"):
            cluster.kill("nope")
