"""Radio links stall for a second now and then: who comes back from that is not taken for dead again and again."""

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.control.membership import STALL_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import joined_wire, ready_wire


@pytest.fixture
def wire():
    """Two agents that divide a model, of which the second has been silent once, for 0.8 s."""
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    stall(wire, 0.8)
    assert losses(wire) == 1
    wire.settle_for(1.0)
    return wire


def stall(wire, seconds):
    wire.agent("b").stopped = True
    wire.settle_for(seconds)
    wire.agent("b").stopped = False
    wire.settle_for(0.3)


def losses(wire):
    return sum("agent 'b' was lost; " in text for text in wire.told)


def over_both(wire):
    return next(variant for variant in wire.coordinator.loading.by_epoch.values() if len(variant.parts) == 2)


def test_what_has_stalled_once_may_stall_as_long_again(wire):
    """An agent behind a link that stalled every 6 s was lost each time: it was never measured, and no plan was ever made."""
    for _ in range(5):
        stall(wire, 0.8)
    assert losses(wire) == 1
    stall(wire, 1.2)
    assert losses(wire) == 1


def test_so_may_who_holds_nothing():
    """On a busy machine agents that had not loaded anything yet were lost twice a second, and no plan was ever made."""
    wire = joined_wire("a", "b")
    for _ in range(5):
        stall(wire, 0.8)
    assert losses(wire) == 1


def test_what_is_silent_for_longer_is_lost(wire):
    stall(wire, STALL_S - 0.5)
    assert losses(wire) == 2
    stall(wire, STALL_S - 0.5)
    assert losses(wire) == 2
    stall(wire, 2 * STALL_S + 1)
    assert losses(wire) == 3
    stall(wire, 0.8)
    assert losses(wire) == 4, "so long a silence says nothing of the next one"


def test_meanwhile_its_requests_run_elsewhere_and_it_is_used_again_when_it_is_heard(wire):
    variant = over_both(wire)
    assert variant.takes_requests
    call = wire.run()
    wire.deliver_all()
    assert variant.queue.running
    stall(wire, 0.8)
    assert isinstance(wire.answer(call), c.RunResult)
    assert losses(wire) == 1
    assert variant.takes_requests


def test_one_that_was_started_anew_is_as_all_others():
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    wire.crash(wire.agent("b"))
    wire.settle_for(1.0)
    wire.add_agent("b")
    wire.settle_for(1.0)
    stall(wire, 0.8)
    assert losses(wire) == 2


@pytest.mark.parametrize("who", ["a", "b"])
def test_what_was_tried_while_one_end_stalled_says_nothing_of_the_link(wire, who):
    """Whenever a link stalled, both were told to look after their ports."""
    machine = wire.coordinator
    (*_, told) = machine.faults.broken(machine.members.by_name["a"], "tcp://b:1", wire.now)
    machine.members.by_name[who].heard -= 0.5
    wire.say(who, m.Heartbeat())
    (peer,) = told.message.peers
    wire.to_coordinator(ce.FromPeer(told.identity, m.LinksTried(told.message.trial, (peer.device,))))
    assert not machine.links.apart


def test_heartbeats_that_wait_behind_tensors_are_no_silence():
    """An answer of 5 MB filled the queue of a way of 5 Mbit/s: its agent was lost while it sent, and the request ran again."""
    wire = joined_wire("a")
    wire.add_agent("b", fingerprint="fb")
    wire.settle_for(1.0)
    wire.agent("b").stopped, wire.moving = True, frozenset({"fb"})
    wire.settle_for(1.6)
    assert losses(wire) == 0
    wire.moving = frozenset()
    wire.settle_for(0.8)
    assert losses(wire) == 1
