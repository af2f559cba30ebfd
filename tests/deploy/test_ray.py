"""`RayCluster` on a real Ray cluster of two nodes, each with a raylet of its own."""

import os
import subprocess
import sys
import tempfile

import pytest

import bbgrap
from tests.deploy.engines import START_S, Requests, agents_of, names, wait_for

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="Ray is not installed: run 'make test-deploy'")
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]  # Ray's own warnings are its own


class Nodes:
    """Nodes of Ray by their names."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.of = {}

    def add(self, name, cpus=1):
        head = {} if self.of else {"include_dashboard": False}
        self.of[name] = self.cluster.add_node(num_cpus=cpus, node_name=name, object_store_memory=80 * 2**20, **head)

    def remove(self, name):
        self.cluster.remove_node(self.of.pop(name), allow_graceful=False)


@pytest.fixture
def nodes(monkeypatch):
    # Apart from what else is on this machine, and short: sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="bbr-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        nodes = Nodes()
        try:
            nodes.add("left", cpus=2)
            nodes.add("right")
            ray.init(address=nodes.cluster.address, log_to_driver=False)
            yield nodes
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()


def test_nodes_that_go_and_come_cost_no_request(nodes, tmp_path):
    with bbgrap.RayCluster(agents=2, timeout_s=START_S) as cluster:
        assert names(cluster) == ["left", "right"]
        with Requests(cluster, tmp_path) as requests:
            requests.some_more()
            assert requests.agents(2) == ("left", "right")
            nodes.remove("right")
            wait_for(lambda: names(cluster) == ["left"])
            requests.some_more()
            assert requests.agents(3) == ("left",)
            nodes.add("right")
            wait_for(lambda: names(cluster) == ["left", "right"])
            assert requests.agents(4) == ("left", "right")
            requests.some_more()
        assert "joined as 'right'" in cluster.log("right", 1000)
    assert agents_of(cluster.address) == []
    wait_for(lambda: ray.available_resources().get("CPU") == 3.0)  # what was reserved is given back


def test_agents_are_started_again_and_added(nodes):
    with bbgrap.RayCluster(agents=2, resources={"memory": 1e8}, timeout_s=START_S) as cluster:
        before = {process.pid for process in agents_of(cluster.address)}
        cluster.kill("right")
        wait_for(lambda: len({process.pid for process in agents_of(cluster.address)} - before) == 1)
        wait_for(lambda: names(cluster) == ["left", "right"])
        nodes.add("third")
        assert cluster.add_agent() == "third-2"
        assert names(cluster) == ["left", "right", "third-2"]
        with pytest.raises(bbgrap.UsageError, match="got 'fourth'"):
            cluster.kill("fourth")


def test_the_coordinator_runs_in_an_actor(nodes, tmp_path):
    with bbgrap.RayCluster(agents=2, coordinator="actor", timeout_s=START_S) as cluster, Requests(cluster, tmp_path) as requests:
        requests.some_more()
        assert requests.agents(2) == ("left", "right")
        assert "coordinator at" in cluster.log("coordinator", 1000)
    assert agents_of(cluster.address) == []


def test_agents_end_when_their_driver_is_killed(nodes):
    script = (
        "import time, ray, bbgrap\n"
        f"ray.init(address={nodes.cluster.address!r}, log_to_driver=False)\n"
        f"cluster = bbgrap.RayCluster(agents=2, timeout_s={START_S})\n"
        "print('at', cluster.address, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        address = next(line.split()[1] for line in driver.stdout if line.startswith("at "))
        assert len(agents_of(address)) == 2
        driver.kill()
    wait_for(lambda: agents_of(address) == [])


def test_too_few_nodes_and_wrong_arguments_are_errors(nodes):
    with pytest.raises(bbgrap.ClusterUnavailableError, match=r"expected 3 nodes with \{'CPU': 1.0\} free on each, got 2 nodes"):
        bbgrap.RayCluster(agents=3, timeout_s=10)
    with pytest.raises(bbgrap.UsageError, match="at least 1 agent with 1 or more threads"):
        bbgrap.RayCluster(agents=0)
