"""Agents of engines, owned by this process instead of one of Ray or Dask."""

import contextlib
import shutil
import subprocess
import sys

import psutil
import pytest

import bbgrap
from bbgrap.cluster.types import NodeProfile
from bbgrap.launching import engine_agent
from bbgrap.launching.engine_agent import AgentSpec, OwnedAgent
from bbgrap.launching.engine_cluster import join_token
from bbgrap.local import LocalCluster
from tests.known_agents import SPEED
from tests.waiting import until


def is_mine(process):
    with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
        return "rack-1-node-7" in process.cmdline()
    return False


def test_one_that_cannot_be_started_again_for_a_while_is_tried_again(monkeypatch, tmp_path):
    """Without a descriptor, or its folder, the watcher ended: nobody started or stopped the agent any more."""
    monkeypatch.setattr(engine_agent, "AGAIN_S", 0.01)
    monkeypatch.setattr(engine_agent, "_LOOK_S", 0.01)
    start, tries = subprocess.Popen, []

    def popen(command, **options):
        tries.append(command)
        if len(tries) == 2:
            raise OSError("Too many open files")
        return start([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    agent = OwnedAgent(AgentSpec("tcp://127.0.0.1:9", "", 1), "a", "place", "127.0.0.1", str(tmp_path))
    shutil.rmtree(agent._home.name)
    try:
        until(lambda: len(tries) >= 4)
    finally:
        agent.stop()


@pytest.mark.faults
@pytest.mark.cluster
def test_an_owned_agent_is_started_again_until_its_coordinator_is_gone(monkeypatch, tmp_path):
    monkeypatch.setattr(engine_agent, "AGAIN_S", 0.1)
    monkeypatch.setattr(engine_agent, "GONE_S", 0.5)
    monkeypatch.setattr(engine_agent, "_LOOK_S", 0.1)
    head = LocalCluster(0)
    head.connection.add_profile(NodeProfile("rack-1-node-7", work=(SPEED,)))
    monkeypatch.setenv("BBGRAP_TOKEN_FILE", str(tmp_path / "another's"))  # settings for other clusters
    monkeypatch.setenv("BBGRAP_INSECURE", "1")
    try:
        token = join_token(head)
        order = AgentSpec(head.address, token, 1, str(tmp_path / "cache"))
        agent = OwnedAgent(order, "rack 1/node 7", "place", "127.0.0.1", str(tmp_path))
        try:

            def joined():
                (mine,) = list(filter(is_mine, psutil.Process().children())) or [None]
                return mine if mine is not None and [node.name for node in head.connection.nodes()] == ["rack-1-node-7"] else None

            first = until(joined)
            assert token not in repr(order) + " ".join(first.cmdline())
            agent.kill()
            until(lambda: not is_mine(first))
            second = until(joined)
            assert second.pid != first.pid
            # Between both the coordinator has no node, too shortly to be seen; then it takes in the second one.
            until(lambda: head.log("coordinator", 1000).count("agent 'rack-1-node-7' joined") == 2)
            until(lambda: "joined as 'rack-1-node-7'" in agent.look().log)
            head.kill("coordinator")
            until(lambda: not second.is_running())
            until(lambda: not list(tmp_path.glob("bbgrap-*")))  # its key is gone with it
        finally:
            agent.stop()
    finally:
        head.close()


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_an_engine_that_is_missing_is_named_with_what_installs_it(engine, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(bbgrap.UsageError, match=rf"{engine} cluster: .* is not installed here: pip install 'bbgrap\[{engine}\]'"):
        {"ray": bbgrap.RayCluster, "dask": lambda: bbgrap.DaskCluster("tcp://127.0.0.1:9")}[engine]()


@pytest.mark.parametrize("make", [lambda: bbgrap.RayCluster(agents=0), lambda: bbgrap.DaskCluster("tcp://127.0.0.1:9", threads=-1)])
def test_numbers_that_cannot_be_are_refused(make):
    with pytest.raises(bbgrap.UsageError, match="expected at least 1 agent"):
        make()
