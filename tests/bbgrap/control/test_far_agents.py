"""Agents that are far away: what is on its way to them is not lost."""

import numpy as np
import pytest

from bbgrap.control.links import TRIAL_S
from bbgrap.control.send_window import FLYING_S
from bbgrap.control.stalls import STALLED_S
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol.limits import MOST_FAR_S, ROUND_TRIPS
from tests.bbgrap.control.wire import standby_wire


def far_s(wire, name):
    return wire.coordinator.members.by_name[name].far_s


@pytest.mark.parametrize(("round_trip_s", "expected"), [(0.0, 0.0), (0.2, 1.6), (3.0, MOST_FAR_S)])
def test_how_far_an_agent_is_tells_its_answer_to_its_welcome(round_trip_s, expected):
    wire = standby_wire()
    agent = wire.add_agent("far")
    wire.deliver((agent.identity, b""))
    assert far_s(wire, "far") is None
    wire.now += round_trip_s
    wire.deliver_all()
    assert far_s(wire, "far") == pytest.approx(expected)
    wire.wait(0.5)
    assert far_s(wire, "far") == pytest.approx(expected)


def stalled_after(wire):
    """Run a request; return after how many seconds it is said to have stalled."""
    wire.run(deadline_s=60.0)
    began = wire.now
    while not any("has stalled" in text for text in wire.told):
        wire.wait(0.1)
    return wire.now - began


@pytest.mark.parametrize("round_trip_s", [0.0, 0.15, 0.6])
def test_a_first_request_is_not_said_to_have_stalled_before_it_can_have_arrived(round_trip_s):
    """Over 150 ms each first one was, and over 600 ms a standby never answered: it was loaded anew after three of them."""
    wire = standby_wire()
    for member in wire.coordinator.members.alive():
        member.far_s = ROUND_TRIPS * round_trip_s
    assert 0 <= stalled_after(wire) - STALLED_S - ROUND_TRIPS * round_trip_s < 0.5


def test_a_request_behind_weights_is_not_said_to_have_stalled_before_it_can_have_arrived():
    """While a large model was on its way over 5 Mbit/s, small ones were loaded anew: they "answered nothing any more"."""
    wire = standby_wire()
    for member in wire.coordinator.members.alive():
        size = 1 << 20
        member.weights.send(["large"], {"large": np.zeros(size, np.uint8)}, {"large": TensorType(DType.UINT8, (size,))}, wire.now)
    assert 0 <= stalled_after(wire) - STALLED_S - 2 * FLYING_S < 0.5


def test_a_trial_of_links_by_one_that_is_far_away_has_longer():
    wire = standby_wire()
    first = wire.coordinator.members.alive()[0]
    first.far_s = 4.0
    links = wire.coordinator.links
    links.suspect(first, "coordinator", wire.now)
    assert links._trials
    links.overdue(wire.now + TRIAL_S + 3.9)
    assert links._trials
    links.overdue(wire.now + TRIAL_S + 4.1)
    assert not links._trials
