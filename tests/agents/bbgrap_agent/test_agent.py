"""The agent's main process, with a worker and a coordinator that only note what they are told."""

from types import SimpleNamespace

import msgpack
import pytest
from bbgrap_agent.agent import Agent

from bbgrap.control import agent_events as ae
from bbgrap.control.agent import AgentMachine
from bbgrap.protocol import messages as m
from tests.bbgrap.control.driven_agent import deploy_of
from tests.bbgrap.control.wire import introduction


@pytest.mark.parametrize("said", [ae.DeploymentLoaded(1), ae.WeightsChecked(2, ())])
def test_a_worker_that_says_what_it_must_not_say_now_is_ended_and_its_agent_goes_on(said):
    """It runs models of strangers: one that had taken it over ended the agent."""
    killed = []
    agent = Agent(SimpleNamespace(send=lambda frames: None), None, None, None)
    agent._machine = AgentMachine(introduction("a"), 0.0)
    agent._nanny._child = worker = SimpleNamespace(
        ended_because="",
        process=SimpleNamespace(kill=lambda: killed.append(True)),
        pipe=SimpleNamespace(send=lambda message: None),
        timeouts=SimpleNamespace(allow=lambda deploy: None),
        files=SimpleNamespace(note=lambda deploy: None),
    )
    for message in (m.Welcome(1, 0.1, 0.6), deploy_of(1), deploy_of(2)):
        agent._handle(ae.Received(message))
    agent._take(ae.WeightsChecked(2, ()))
    agent._take(said)
    assert killed == [True]
    assert worker.ended_because.startswith("it said what it must not say now: deployment on an agent, epoch ")
    agent._handle(ae.AgentTick())
    assert agent._machine.state == "joined"


def test_a_coordinator_of_another_version_is_said_once(caplog):
    """It answers every attempt to join, twice a second."""
    of_other, frames = msgpack.packb([m.PROTOCOL_VERSION + 1, "Refused", ["", False]]), []
    agent = Agent(SimpleNamespace(send=lambda frames: None, receive=lambda: frames.pop() if frames else None), None, None, None)
    for _ in range(3):
        frames.append([of_other])
        agent._receive()
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        f"this side speaks protocol {m.PROTOCOL_VERSION}, the other {m.PROTOCOL_VERSION + 1}; install the same bbgrap on all machines"
    ]
