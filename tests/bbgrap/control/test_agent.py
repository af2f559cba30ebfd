"""An agent's machine whose worker dies, and whose coordinator goes and comes back."""

from itertools import pairwise

import pytest

from bbgrap.control import agent_deployments
from bbgrap.control import agent_events as ae
from bbgrap.control.agent import REFUSED_S
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import messages as m
from tests.bbgrap.control.driven_agent import DIED, Driven, deploy_of
from tests.bbgrap.control.tiny_plans import artifacts


def test_what_a_dead_worker_had_is_loaded_by_the_next_one():
    agent = Driven()
    agent.deploy(1)
    agent.deploy(2, ready=False)
    agent.die(1, 9)
    assert agent.said == [m.WorkerLost(DIED, 1, 9, ended_by=m.EndedBy.OUTSIDE)]
    assert agent.asked == []
    assert agent.ready_again() == [2, 1]
    for epoch in (2, 1):
        agent.handle(ae.DeploymentLoaded(epoch))
        assert agent.said == [m.Deployed(epoch)]


def test_weights_that_were_damaged_before_they_were_loaded_are_asked_for_again():
    agent = Driven()
    agent.deploy(1, ready=False)
    digest = next(iter(deploy_of(1).weight_types))
    agent.handle(ae.DeploymentLoaded(1, missing=(digest,)))
    assert agent.said == [m.WeightsMissing(1, (digest,))]
    agent.handle(ae.WeightArrived(digest, 16, complete=True))
    assert agent.asked == [deploy_of(1)]
    agent.handle(ae.DeploymentLoaded(1))
    assert agent.said == [m.Deployed(1)]


def test_a_weight_that_is_not_what_it_claims_fails_what_waits_for_it_and_nothing_else():
    agent = Driven()
    agent.deploy(1)
    digest = next(iter(deploy_of(2).weight_types))
    agent.tell(deploy_of(2))
    agent.handle(ae.WeightsChecked(2, (digest,)))
    agent.handle(ae.WeightArrived(digest, 16, complete=True, fault="it has another digest"))
    assert agent.said == [m.DeploymentFailed(2, "it has another digest")]
    agent.tell(deploy_of(1))
    assert agent.said == [m.Deployed(1)]


def test_weights_that_a_dead_worker_had_in_part_are_asked_for_again():
    agent = Driven()
    agent.tell(deploy_of(1))
    digest = agent.asked[0].digests[0]
    agent.handle(ae.WeightsChecked(1, (digest,)))
    agent.die()
    agent.tell(m.WeightChunk(digest, artifacts(1).devices[0].segments[0].weights["w"].type, 0, 16, (b"x",)))
    assert agent.done == []
    agent.ready()
    agent.handle(ae.WeightsChecked(1, (digest,)))
    assert agent.said == [m.WeightsMissing(1, (digest,))]


@pytest.mark.parametrize("ended_by", m.EndedBy)
def test_what_was_being_loaded_is_dropped_if_it_ended_the_worker(ended_by):
    agent = Driven()
    agent.deploy(1)
    agent.deploy(2, ready=False)
    agent.die(loading=2, ended_by=ended_by)
    assert agent.said == [m.WorkerLost(DIED, 0, 0, ended_by, loading=2), *([m.DeploymentFailed(2, DIED)] if ended_by.guilty else [])]
    assert agent.ready_again() == ([1] if ended_by.guilty else [2, 1])


@pytest.mark.parametrize("ended_by", [m.EndedBy.MEMORY, m.EndedBy.CRASH])
def test_what_was_being_loaded_is_not_dropped_if_measuring_took_the_memory_too(ended_by):
    agent = Driven()
    agent.deploy(1, ready=False)
    agent.tell(m.Measure(4))
    agent.die(loading=1, ended_by=ended_by)
    lost, *others = agent.said
    assert lost.ended_by is (m.EndedBy.OUTSIDE if ended_by is m.EndedBy.MEMORY else ended_by)
    assert ("measured this machine" in lost.reason) == (ended_by is m.EndedBy.MEMORY)
    assert [type(other) for other in others] == ([m.DeploymentFailed] if ended_by is m.EndedBy.CRASH else []) + [m.Measured]
    agent.ready()
    assert [i.epoch for i in agent.asked] == ([1] if ended_by is m.EndedBy.MEMORY else [])


def test_what_comes_while_there_is_no_worker_waits_for_the_next_one():
    agent = Driven()
    agent.deploy(1)
    agent.tell(m.AnswerPings(()))
    agent.die()
    peers = (m.Peer(1, "b", "tcp://b:1"),)
    for message in (m.AnswerPings(peers), m.TryLinks(5, peers), m.Abandon(1, 2, 0.5), deploy_of(3), m.Release(1)):
        agent.tell(message)
        assert agent.asked == []
    agent.ready()
    assert agent.asked[:2] == [m.AnswerPings(peers), m.TryLinks(5, peers)]
    assert [i.epoch for i in agent.asked[2:]] == [3]
    agent.handle(m.LinksTried(5, ()))
    assert agent.said == [m.LinksTried(5, ())]


def test_a_measurement_is_ended_by_the_worker_and_not_begun_by_the_next_one():
    agent = Driven()
    agent.tell(m.Measure(4))
    agent.tell(m.EndMeasuring(4))
    assert agent.asked == [m.EndMeasuring(4)]
    agent.handle(m.Measured(4, None, "broken off"))
    assert agent.said == [m.Measured(4, None, "broken off")]
    agent.die()
    for message in (m.Measure(5), m.Measure(6), m.EndMeasuring(5)):
        agent.tell(message)
    agent.ready()
    assert agent.asked == [m.Measure(6)]


def test_measurements_of_a_dead_worker_are_answered_once():
    agent = Driven()
    agent.tell(m.Measure(4))
    agent.tell(m.MeasureLinks(5, ()))
    agent.die()
    assert agent.said[1:] == [m.Measured(4, None, DIED), m.LinksMeasured(5, (), DIED)]
    agent.ready()
    assert agent.asked == []


def test_deployments_outlast_a_silent_coordinator_and_those_kept_its_return():
    agent = Driven()
    agent.deploy(1, 2)
    agent.deploy(3, ready=False)
    agent.silence()
    agent.tick(0.5)
    assert [message.holds for message in agent.said] == [(1, 2)]
    agent.tell(m.Welcome(2, 0.1, 0.6, keep=(2,)))
    assert agent.asked == [m.Release(1), m.Release(3)]
    assert agent.said == [m.Heartbeat()]


def test_the_same_membership_again_changes_nothing():
    agent = Driven()
    agent.deploy(1)
    agent.tell(m.Rejoin())
    assert agent.said[0].holds == (1,)
    agent.tell(m.Welcome(1, 0.1, 0.6))
    assert agent.done == [ae.ToCoordinator(m.Heartbeat())]


def test_what_happens_while_nobody_listens_is_said_of_what_is_kept():
    agent = Driven()
    agent.deploy(1, 2)
    agent.tell(m.Measure(4))
    agent.silence()
    for event in (
        m.RequestFailed(1, 7, "no"),
        m.RequestFailed(2, 8, "no"),
        m.Measured(4, None, "no"),
    ):
        assert agent.handle(event) == []
    agent.tell(m.Welcome(2, 0.1, 0.6, keep=(2,)))
    assert agent.said == [m.Heartbeat(), m.RequestFailed(2, 8, "no")]


def test_a_coordinator_that_returns_learns_of_the_worker_that_died_meanwhile():
    agent = Driven()
    agent.deploy(1)
    agent.deploy(2, ready=False)
    agent.silence()
    agent.tick(0.5)
    assert agent.said[0].holds == (1,)
    agent.die(loading=2, ended_by=m.EndedBy.CRASH)
    agent.tick(0.5)
    assert agent.said[0].holds == ()
    # The coordinator has heard the first word only.
    agent.tell(m.Welcome(2, 0.1, 0.6, keep=(1, 2)))
    assert agent.said == [
        m.Heartbeat(),
        m.WorkerLost(DIED, 0, 0, ended_by=m.EndedBy.CRASH, loading=2),
        m.DeploymentFailed(2, "the agent does not have it any more"),
    ]
    agent.ready()
    agent.handle(ae.WeightsChecked(1, ()))
    agent.handle(ae.DeploymentLoaded(1))
    assert agent.said == [m.Deployed(1)]


def test_a_stopped_worker_makes_its_agent_silent_and_the_coordinator_not_suspect():
    agent = Driven()
    for _ in range(100):
        assert agent.tick(0.1, None) == []
    assert agent.machine.state == "joined"
    beat = m.Heartbeat(1, 2, 3.0, 4, 5)
    agent.tick(0.1, beat)
    assert agent.said == [beat]


def test_joining_is_tried_soon_at_first_and_never_rarely():
    agent = Driven(membership=0)
    times = []
    for _ in range(40):
        agent.tick(agent.machine.next_tick_s)
        times += [agent.now] * len(agent.said)
    gaps = [b - a for a, b in pairwise(times)]
    assert len(times) == 40
    assert 0.1 <= gaps[0] < 0.2
    assert max(gaps) == 0.5


def test_a_name_that_is_taken_is_asked_for_again_for_a_while():
    agent = Driven(membership=0)
    lines = []
    while not any(isinstance(i, ae.Quit) for i in agent.done):
        agent.now += 0.5
        agent.tell(m.Refused("taken", retry=True))
        lines += [i for i in agent.done if isinstance(i, ae.LogLine)]
    assert agent.now >= REFUSED_S
    assert [line.text for line in lines] == [f"not let in; tried again for {REFUSED_S:g} s: taken"]


def test_a_joined_agent_whose_key_is_taken_back_ends_and_says_why():
    agent = Driven()
    agent.tell(m.Refused("late", retry=True))
    assert not any(isinstance(i, ae.Quit) for i in agent.done)
    agent.tell(m.Refused("its key was revoked", retry=False))
    assert ae.Quit("its key was revoked") in agent.done
    assert agent.machine.state == "left"


def test_a_message_out_of_turn_changes_nothing():
    agent = Driven()
    agent.handle(ae.Stop("bye"))
    with pytest.raises(RemoteProtocolError):
        agent.tell(m.HeartbeatSeen())
    assert agent.die() == [ae.LogLine(DIED)]


def test_an_epoch_that_is_offered_again_waits_for_its_own_load():
    """Released while the worker loads it, and offered again: the answer to the first load is not that to the second."""
    agent = Driven()
    agent.deploy(1, ready=False)
    agent.tell(m.Release(1))
    agent.deploy(1, ready=False)
    agent.handle(ae.DeploymentLoaded(1))
    assert not any(isinstance(message, m.Deployed) for message in agent.said)
    agent.handle(ae.DeploymentLoaded(1))
    assert m.Deployed(1) in agent.said


def test_an_epoch_that_is_offered_again_after_its_weights_could_not_be_looked_for_is_looked_for_again():
    """A worker that can open no file answers that as a load that has failed."""
    agent = Driven()
    agent.tell(deploy_of(1))
    agent.tell(m.Release(1))
    agent.handle(ae.DeploymentLoaded(1, "no file of weights can be opened"))
    assert agent.said == []
    agent.tell(deploy_of(1))
    assert [type(each) for each in agent.done] == [ae.CheckWeights]


def test_an_agent_that_holds_as_much_as_it_may_refuses_more_and_keeps_what_serves(monkeypatch):
    monkeypatch.setattr(agent_deployments, "MAX_DEPLOYMENTS", 2)
    agent = Driven()
    agent.deploy(1)
    agent.deploy(2, ready=False)
    agent.tell(deploy_of(3))
    (refusal,) = agent.said
    assert isinstance(refusal, m.DeploymentFailed)
    assert refusal.epoch == 3
    assert agent.asked == []
    agent.tell(deploy_of(1))
    assert agent.said == [m.Deployed(1)]
    agent.tell(m.Release(1))
    agent.deploy(3)
    assert agent.said == [m.Deployed(3)]


def test_a_new_connection_has_longer_to_be_made_each_time():
    """Over a round trip of 300 ms it takes 1.5 s, and was given up after 1.2 s: an agent that had lost its coordinator never came back."""
    agent = Driven()
    agent.silence()
    at = [agent.now]
    while len(at) < 5:
        agent.tick(0.1)
        if any(isinstance(instruction, ae.Reconnect) for instruction in agent.done):
            at.append(agent.now)
    waited = [later - before for before, later in pairwise(at)]
    assert waited[0] > 2.3
    assert max(waited) < 5
    agent.tell(m.Welcome(2, 0.1, 0.6))
    left = agent.now
    agent.silence()
    assert agent.now - left < 2.5, "the next silence is noticed as soon as the first"


def test_a_coordinator_that_was_there_all_the_time_may_be_silent_for_longer():
    """Over 4 Mbit/s a piece of a weight takes 2 s; it was cut off by a new connection after 1.2 s each time, and came anew, for ever."""
    agent = Driven()
    waited = []
    for _ in range(9):
        began = agent.now
        while agent.machine.state == "joined":
            agent.tick(0.1)
        waited.append(agent.now - began)
        agent.tell(m.Welcome(1, 0.1, 0.6))
        agent.tell(m.Welcome(1, 0.1, 0.6))  # it had asked twice
    assert waited[:4] == pytest.approx([1.2, 2.4, 4.8, 9.6], abs=0.25)
    assert waited[-1] < 61
    agent.silence()
    agent.tell(m.Welcome(2, 0.1, 0.6))
    began = agent.now
    agent.silence()
    assert agent.now - began < 2.5, "one that had lost this agent was away"


def test_a_message_that_is_still_coming_is_no_silence():
    """Over a round trip of 600 ms a deployment takes several of them: the connection was cut after 1.2 s each time, for ever."""
    agent = Driven()
    for _ in range(100):
        agent.now += 0.1
        agent.handle(ae.AgentTick(m.Heartbeat(), is_receiving=True))
        assert agent.machine.state == "joined"
    left = agent.now
    agent.silence()
    assert agent.now - left < 2.5


def test_weights_whose_pieces_take_long_are_not_asked_for_again():
    """A piece of 1 MiB takes 28 s at 300 kbit/s; asked again each 10 s, all that waited was sent anew, and nothing came to its end."""
    agent = Driven()
    agent.tell(deploy_of(1))
    digest = agent.asked[0].digests[0]
    agent.handle(ae.WeightsChecked(1, (digest,)))
    for _ in range(300):
        agent.now += 0.1
        agent.handle(ae.AgentTick(m.Heartbeat(), is_receiving=True))
        assert not any(isinstance(message, m.WeightsMissing) for message in agent.said)
    asked = 0
    for _ in range(120):
        agent.now += 0.1
        agent.handle(ae.AgentTick(m.Heartbeat(), is_receiving=True))
        asked += m.WeightsMissing(1, (digest,)) in agent.said
        agent.tell(m.HeartbeatSeen())  # what came was this
    assert asked == 1
