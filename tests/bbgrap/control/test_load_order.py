"""In which order an agent loads what it is offered, and what it had when its worker ended."""

from dataclasses import replace

from bbgrap.control import agent_events as ae
from bbgrap.protocol import messages as m
from tests.bbgrap.control.driven_agent import DIED, Driven, deploy_of


def test_whole_models_are_loaded_again_before_parts_of_them():
    agent = Driven()
    agent.deploy(1, 2)
    part = deploy_of(3)
    agent.tell(replace(part, segments=tuple(replace(segment, whole=True) for segment in part.segments)))
    agent.die()
    assert agent.ready_again() == [3, 2, 1]


def test_what_was_loaded_while_a_crash_computed_is_loaded_first():
    """Nobody knows which of both ended the worker: loaded alone, it either does so again or is innocent."""
    agent = Driven()
    agent.deploy(1)
    agent.deploy(2, ready=False)
    agent.handle(m.WorkerLost(DIED, 1, 9, m.EndedBy.CRASH, 2))
    assert m.WorkerLost(DIED, 1, 9, ended_by=m.EndedBy.CRASH, loading=2) in agent.said
    assert not any(isinstance(message, m.DeploymentFailed) for message in agent.said)
    assert agent.ready_again() == [2, 1]


def test_what_is_offered_while_a_worker_loads_all_again_comes_between():
    agent = Driven()
    agent.deploy(1, 2, 3)
    agent.die()
    agent.ready()
    agent.handle(ae.WeightsChecked(3, ()))
    agent.tell(deploy_of(9))
    queue = []
    for epoch in (2, 9, 1):
        agent.handle(ae.WeightsChecked(epoch, ()))
        queue += agent.asked
    checked = [i.epoch for i in queue if isinstance(i, ae.CheckWeights)]
    assert [i.epoch for i in queue if isinstance(i, m.Deploy)] == [2, 9, 1]
    assert checked == [9, 1]


def test_what_somebody_waits_for_is_loaded_next():
    """Of many models that an agent loads after its start, it was the last one, and waited for all others."""
    agent = Driven()
    checked = []

    def note():
        checked.extend(i.epoch for i in agent.asked if isinstance(i, ae.CheckWeights))

    for epoch in (1, 2, 3, 4, 5, 6):
        agent.tell(deploy_of(epoch))
        note()
    assert checked == [1]
    for epoch in (5, 4, 5, 1, 99):
        agent.tell(m.LoadNext(epoch))
        note()
    assert checked == [1, 5, 4]
    for epoch in (1, 5, 4, 2, 3, 6):
        agent.handle(ae.WeightsChecked(epoch, ()))
        assert agent.asked[0] == deploy_of(epoch)
        note()
        agent.handle(ae.DeploymentLoaded(epoch))
        assert agent.asked == []
    assert checked == [1, 5, 4, 2, 3, 6]
    agent.tell(m.LoadNext(3))
    assert agent.asked == []


def test_the_next_worker_begins_with_what_somebody_waits_for():
    agent = Driven()
    agent.deploy(1, 2, 3, 4)
    agent.die()
    agent.tell(m.LoadNext(1))
    assert agent.asked == []
    assert agent.ready_again() == [1, 4, 3, 2]
    for epoch in (1, 4, 3, 2):
        agent.handle(ae.DeploymentLoaded(epoch))
    agent.die()
    assert agent.ready_again() == [4, 3, 2, 1]


def test_what_is_released_before_it_is_loaded_again_is_not_loaded():
    agent = Driven()
    agent.deploy(1, 2, 3, 4)
    agent.die()
    agent.ready()
    for epoch in (4, 3, 2):
        agent.tell(m.Release(epoch))
    # Offered again, and not of those that wait any more.
    agent.tell(deploy_of(2))
    assert agent.asked == []
    # The worker was to look at the weights of the first one, and goes on to what is left.
    agent.handle(ae.WeightsChecked(4, ()))
    assert [i.epoch for i in agent.asked] == [2]
    for epoch in (2, 1):
        agent.handle(ae.WeightsChecked(epoch, ()))
        assert agent.asked[0] == deploy_of(epoch)
        agent.handle(ae.DeploymentLoaded(epoch))
        assert agent.said == [m.Deployed(epoch)]


def test_weights_that_are_missing_or_not_to_be_found_keep_nothing_else_from_being_loaded_again():
    agent = Driven()
    agent.deploy(1, 2, 3)
    digest = next(iter(deploy_of(3).weight_types))
    agent.die()
    agent.ready()
    agent.handle(ae.WeightsChecked(3, (digest,)))
    assert agent.said == [m.WeightsMissing(3, (digest,))]
    assert [i.epoch for i in agent.asked] == [2]
    agent.handle(ae.DeploymentLoaded(2, "no file of weights can be opened"))
    assert [i.epoch for i in agent.asked if isinstance(i, ae.CheckWeights)] == [1]


def test_weights_that_are_on_their_way_are_not_asked_for_again():
    """They were sent from the beginning: two shapes of one model took twice as long to load over a slow link."""
    agent = Driven()
    a, b, c = ("0" * 64, "1" * 64, "2" * 64)

    def asked_for(epoch, *missing):
        agent.tell(deploy_of(epoch))
        agent.handle(ae.WeightsChecked(epoch, missing))
        return agent.said

    assert asked_for(1, a, b) == [m.WeightsMissing(1, (a, b))]
    assert asked_for(2, b, c) == [m.WeightsMissing(2, (c,))]
    agent.handle(ae.WeightArrived(c, 4, True))
    assert agent.asked == []
    agent.handle(ae.WeightArrived(b, 4, True))
    assert agent.asked == [deploy_of(2)]
    assert asked_for(3, a) == [m.WeightsMissing(3, ())]
    agent.tell(m.Release(1))
    agent.now += 11.0
    agent.tell(m.HeartbeatSeen())
    assert [said for said in agent.tick() if isinstance(getattr(said, "message", None), m.WeightsMissing)] == [
        ae.ToCoordinator(m.WeightsMissing(3, (a,)))
    ]
    agent.handle(ae.WeightArrived(a, 4, True))
    assert agent.asked == [deploy_of(3)]
