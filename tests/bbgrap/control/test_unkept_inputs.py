"""Sequences whose inputs are not kept any more: what is left of them is right, or said to be lost."""

import pytest

from bbgrap.control import sequences
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.counters import counters, total


def test_a_state_whose_inputs_are_not_kept_cannot_be_read_from_a_plan_over_several_nodes_and_stays_there():
    wire = counters("a", "b", "c")
    wire.coordinator.requests.sequences.most_kept = 0
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    call = wire.read_of(1, 3)
    assert wire.until_answered(call).fault is c.Fault.EXECUTION
    assert "need all inputs since the first" in wire.answer(call).reason
    assert total(wire, 1, 3, 1) == 4


def half_made_anew():
    """A sequence of six requests whose state is gone: two of them have run again for the seventh, which waits."""
    wire = counters("a", "b")
    assert [total(wire, 1, step, 1) for step in range(6)] == [1, 2, 3, 4, 5, 6]
    known = wire.coordinator.requests.sequences
    (sequence,) = known._known.values()
    wire.states.clear()
    call = wire.run_of(1, 6, 10)
    while sequence.seen != 2:
        wire.deliver_all()
        wire.finish_requests()
    return wire, known, sequence, call


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_state_that_is_half_made_anew_when_its_inputs_go_is_lost(is_cancelled):
    wire, known, sequence, call = half_made_anew()
    if is_cancelled:
        wire.tell(c.Cancel(call))
        call = wire.run_of(1, 6, 10)
    known._drop_inputs(sequence)
    assert wire.until_answered(call).fault is c.Fault.STATE_LOST
    assert total(wire, 1, 6, 10) is c.Fault.STATE_LOST
    assert total(wire, 1, 0, 7) == 7


def test_inputs_of_a_state_that_is_made_anew_are_kept_until_it_is_there():
    """Who only read a state lost it, when others were answered meanwhile."""
    wire, known, sequence, call = half_made_anew()
    known.most_kept = 0
    assert total(wire, 2, 0, 1) == 1
    assert int(bytes(wire.until_answered(call).payload[0])) == 16
    assert sequence.given is None


@pytest.fixture
def unkept():
    """A sequence of three requests whose inputs are not kept, and whose state one agent of two has."""
    wire = counters("a", "b")
    wire.coordinator.requests.sequences.most_kept = 0
    wire.plan = lambda job: None
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    return wire


def its_home(wire):
    """The variant that has the state, and an agent of it."""
    (sequence,) = wire.coordinator.requests.sequences._known.values()
    home = wire.coordinator.loading.by_epoch[sequence.epoch]
    return home, wire.agent(next(iter(home.parts)))


def test_a_state_on_an_agent_that_is_silent_for_a_while_is_not_lost(unkept):
    """It was said to be gone, and a moment later the same request was answered."""
    home, agent = its_home(unkept)
    agent.stopped = True
    unkept.wait(1.0)
    call = unkept.run_of(1, 3, 1)
    unkept.wait(0.6 * sequences.BACK_WITHIN_S)
    assert home.away
    assert not unkept.answers[call]
    agent.stopped = False
    assert int(bytes(unkept.until_answered(call).payload[0])) == 4


def test_a_state_on_an_agent_that_stays_away_is_lost(unkept):
    _, agent = its_home(unkept)
    unkept.crash(agent)
    unkept.wait(1.0)
    call, began = unkept.run_of(1, 3, 1), unkept.now
    assert unkept.until_answered(call).fault is c.Fault.STATE_LOST
    assert unkept.now - began < sequences.BACK_WITHIN_S + 1.0


@pytest.mark.parametrize("fingerprint", ["", "another"])
def test_a_state_on_an_agent_that_is_started_anew_is_lost_at_once(unkept, fingerprint):
    _, agent = its_home(unkept)
    unkept.crash(agent)
    unkept.states.pop(agent.identity)
    unkept.wait(1.0)
    call = unkept.run_of(1, 3, 1)
    unkept.add_agent(agent.name, fingerprint)
    unkept.wait(0.5)
    assert unkept.answer(call).fault is c.Fault.STATE_LOST


def test_a_state_on_a_plan_that_is_not_run_for_a_while_is_there_afterwards(unkept):
    """What another request has done to workers says nothing of it."""
    home, _ = its_home(unkept)
    home.plan.quarantine, home.plan.quarantine_ends = "it has ended workers", unkept.now + 5.0
    call = unkept.run_of(1, 3, 1)
    unkept.settle_for(4.0)
    assert not unkept.answers[call]
    assert int(bytes(unkept.until_answered(call).payload[0])) == 4


def test_a_state_on_a_plan_that_is_not_run_before_the_deadline_is_not_waited_for_and_not_lost(unkept):
    """Its request was told of nothing but its deadline, when that had passed (seed 43001441)."""
    home, _ = its_home(unkept)
    home.plan.quarantine = "it has ended workers"
    call = unkept.run_of(1, 3, 1)
    unkept.settle()
    assert unkept.answer(call).fault is c.Fault.EXECUTION
    assert "what has the state of its sequence is not run before its deadline: it has ended workers" in unkept.answer(call).reason
    home.plan.quarantine = ""
    assert total(unkept, 1, 3, 1) == 4


def test_a_request_whose_home_takes_none_while_its_links_are_tried_waits_for_it(unkept):
    """Nothing else takes it: it was said to be of the wrong shapes (seed 38030024, with 3,000 bytes of inputs kept)."""
    home, agent = its_home(unkept)
    home.suspects.add(agent.name)
    call = unkept.run_of(1, 3, 1)
    unkept.settle()
    assert not unkept.answers[call]
    assert int(bytes(unkept.until_answered(call).payload[0])) == 4
