"""A real agent whose code is replaced while it runs, as by an upgrade of the environment that it was started from."""

import shutil
from pathlib import Path

import bbgrap_agent
import bbgrap_coordinator
import msgpack
import pytest

import bbgrap
from bbgrap.protocol import messages as m
from tests.agents.bare import bare_coordinator

SAID = "another version of bbgrap was installed while this process ran; start it again"


@pytest.mark.cluster
@pytest.mark.parametrize("ends", ["its worker", "its coordinator's version"])
def test_an_agent_whose_code_was_replaced_ends_with(ends, tmp_path, monkeypatch):
    """A new worker would not understand its nanny, nor a new coordinator the agent; whoever started the agent starts the new one."""
    installed = tmp_path / "installed"
    for package in (bbgrap, bbgrap_agent, bbgrap_coordinator):
        shutil.copytree(Path(package.__file__).parent, installed / package.__name__, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.chdir(tmp_path)
    with bare_coordinator(tmp_path) as coordinator:
        agent = coordinator.start("--name", "a")
        coordinator.join()
        with (installed / "bbgrap" / "errors.py").open("a") as stream:
            stream.write("# changed\n")
        if ends == "its worker":
            coordinator.worker_of(agent).kill()
        else:
            coordinator.server.send(coordinator.identity, [msgpack.packb([m.PROTOCOL_VERSION + 1, "Refused", ["", False]])])
        assert coordinator.next(m.Leave).reason == SAID
        assert agent.wait(10) == 1
        assert coordinator.log().endswith(f"bbgrap-agent: {SAID}\n")
