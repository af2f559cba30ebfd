"""Whose loss of a state counts: that of an agent without room for it, and not that of a worker that has ended."""

import pytest

from bbgrap.control import agent_events as ae
from bbgrap.control.sequences import MAX_LOSSES
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.counters import counters, total


def end_worker(wire, name):
    """Let a new worker take the place of one that somebody has ended, with all that it had loaded."""
    agent = wire.agent(name)
    wire.states.pop(agent.identity, None)
    agent.loaded.clear()
    wire.to_agent(agent, m.WorkerLost("it was ended", 0, 0, m.EndedBy.OUTSIDE))
    wire.deliver_all()
    wire.to_agent(agent, ae.WorkerReady(agent.machine.join))
    wire.deliver_all()


def come_back(wire, name):
    """Start an agent anew, at the same place, once it is missed."""
    wire.states.pop(wire.agent(name).identity, None)
    wire.crash(wire.agent(name))
    wire.wait(1.0)
    wire.add_agent(name)
    wire.wait(1.0)


def only(wire):
    (sequence,) = wire.coordinator.requests.sequences._known.values()
    return sequence


@pytest.mark.parametrize("lose", [end_worker, come_back])
def test_however_often_a_worker_ends_before_a_request_is_answered_its_sequence_goes_on(lose):  # 38026156: lost by the third
    wire = counters("a")
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    lose(wire, "a")
    call = wire.run_of(1, 3, 1)
    for _ in range(MAX_LOSSES + 1):
        lost = only(wire).state
        while only(wire).state <= lost and not wire.answers[call]:  # until it is made anew in part
            wire.deliver_all()
            wire.finish_requests()
        assert only(wire).losses == 0
        lose(wire, "a")
    answer = wire.until_answered(call)
    assert isinstance(answer, c.RunResult), answer
    assert int(bytes(answer.payload[0])) == 4


def test_what_one_request_had_to_try_is_not_counted_against_the_next():
    wire = counters("a")
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    for times in range(1, MAX_LOSSES):
        wire.states.clear()  # others had taken its room
        call = wire.run_of(1, 3, 1)
        while sum("requests run again" in text for text in wire.told) < times or not only(wire).seen:
            wire.deliver_all()
            wire.finish_requests()
        wire.tell(c.Cancel(call))
        wire.deliver_all()
    wire.states.clear()
    assert total(wire, 1, 3, 1) == 4


def test_who_still_has_a_part_of_a_state_that_another_lost_forgets_it():
    """It kept it until it had no room for others."""
    wire = counters("a", "b")
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    home = wire.coordinator.loading.by_epoch[only(wire).epoch]
    assert len(home.parts) == 2
    wire.states.pop(wire.agent("a").identity)  # it made room for others
    call = wire.run_of(1, 3, 1)
    wire.deliver_all()
    wire.finish_requests()
    home.suspects.add("a")  # it is made anew elsewhere
    wire.settle()
    assert only(wire).epoch != home.epoch
    assert int(bytes(wire.until_answered(call).payload[0])) == 4
    wire.tell(c.EndSequence(1))
    wire.settle()
    assert not any(states.nbytes for states in wire.states.values())
