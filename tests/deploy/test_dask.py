"""`DaskCluster` on a real Dask cluster: a scheduler and two workers, each a process with a nanny."""

import subprocess
import sys

import psutil
import pytest

import bbgrap
from bbgrap.launching.engine_agent import GONE_S
from tests.deploy.engines import START_S, Requests, agents_of, names, wait_for

distributed = pytest.importorskip("distributed", reason="Dask is not installed: run 'make test-deploy'")
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]  # Dask's own warnings are its own


@pytest.fixture
def dask():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster


def test_workers_that_go_and_come_cost_no_request(dask, tmp_path):
    with distributed.Client(dask) as client, bbgrap.DaskCluster(client, agents=2, timeout_s=START_S) as cluster:
        assert names(cluster) == ["worker-0", "worker-1"]
        assert {node.threads for node in cluster.connection.nodes()} == {1}
        with Requests(cluster, tmp_path) as requests:
            requests.some_more()
            assert requests.agents(2) == ("worker-0", "worker-1")
            dask.scale(1)
            wait_for(lambda: len(names(cluster)) == 1)
            requests.some_more()
            assert len(requests.agents(3)) == 1
            dask.scale(2)
            wait_for(lambda: len(names(cluster)) == 2)
            assert requests.agents(4) == ("worker-0", "worker-1")
            (victim,) = [look for look in cluster.looks() if look.name == "worker-0"]
            psutil.Process(client.run(_pid, workers=[victim.place])[victim.place]).kill()
            wait_for(lambda: len(names(cluster)) == 1)
            requests.some_more()
            wait_for(lambda: len(names(cluster)) == 2)  # Dask's nanny has started the worker again
        assert "joined as 'worker-0'" in cluster.log("worker-0", 1000)
    assert agents_of(cluster.address) == []


def _pid():
    import os

    return os.getpid()


def test_an_agent_that_is_killed_is_started_again(dask):
    with distributed.Client(dask) as client, bbgrap.DaskCluster(client, agents=2, timeout_s=START_S) as cluster:
        before = {process.pid for process in agents_of(cluster.address)}
        cluster.kill("worker-1")
        wait_for(lambda: len({process.pid for process in agents_of(cluster.address)} - before) == 1)
        wait_for(lambda: names(cluster) == ["worker-0", "worker-1"])
        with pytest.raises(bbgrap.UsageError, match=r"expected an agent of \['worker-0', 'worker-1'\], got 'worker-7'"):
            cluster.kill("worker-7")
        assert "coordinator at" in cluster.log("coordinator", 1000)
        token = (cluster._local.logs / "state" / "keys" / "join.token").read_text()
        # Processes that end meanwhile have no arguments.
        everybody = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        assert any("bbgrap_agent.main" in arguments for arguments in everybody)
        assert not any(token in " ".join(arguments) for arguments in everybody)


def test_agents_end_when_their_driver_is_killed(dask):
    script = (
        "import sys, time, bbgrap\n"
        f"cluster = bbgrap.DaskCluster({dask.scheduler_address!r}, agents=2, timeout_s={START_S})\n"
        "print(cluster.address, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        address = driver.stdout.readline().strip()
        assert len(agents_of(address)) == 2
        driver.kill()
    wait_for(lambda: agents_of(address) == [], within_s=GONE_S + 60)
    with distributed.Client(dask) as client:
        assert len(client.scheduler_info()["workers"]) == 2  # who goes on


def test_too_few_workers_and_wrong_arguments_are_errors(dask):
    with pytest.raises(bbgrap.ClusterUnavailableError, match="2/3 workers"):
        bbgrap.DaskCluster(dask.scheduler_address, agents=3, timeout_s=2)
    with pytest.raises(bbgrap.ClusterUnavailableError, match="no scheduler answers"):
        bbgrap.DaskCluster("tcp://127.0.0.1:9", timeout_s=1)
    with pytest.raises(bbgrap.UsageError, match="at least 1 agent"):
        bbgrap.DaskCluster(dask.scheduler_address, agents=0)
