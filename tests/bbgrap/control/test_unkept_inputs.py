"""Sequences whose inputs are not kept any more: what is left of them is right, or said to be lost."""

import pytest

from bbgrap.control import sequences
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.counters import counters, total


def test_a_state_whose_inputs_are_not_kept_cannot_be_read_from_a_plan_over_several_nodes_and_stays_there(monkeypatch):
    wire = counters("a", "b", "c")
    monkeypatch.setattr(sequences, "MAX_KEPT_BYTES", 0)
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    call = wire.read_of(1, 3)
    assert wire.until_answered(call).fault is c.Fault.EXECUTION
    assert "need all inputs since the first" in wire.answer(call).reason
    assert total(wire, 1, 3, 1) == 4


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_state_that_is_half_made_anew_when_its_inputs_go_is_lost(is_cancelled):
    wire = counters("a", "b")
    assert [total(wire, 1, step, 1) for step in range(4)] == [1, 2, 3, 4]
    known = wire.coordinator.requests.sequences
    (sequence,) = known._known.values()
    wire.states.clear()
    call = wire.run_of(1, 4, 10)
    while sequence.seen != 2:
        wire.deliver_all()
        wire.finish_requests()
    if is_cancelled:
        wire.tell(c.Cancel(call))
        call = wire.run_of(1, 4, 10)
    known._drop_inputs(sequence)
    assert wire.until_answered(call).fault is c.Fault.STATE_LOST
    assert total(wire, 1, 4, 10) is c.Fault.STATE_LOST
    assert total(wire, 1, 0, 7) == 7
