"""Who is at an address is a matter of fingerprints: they are in every `Peer`, and an agent with another one is in another place."""

from dataclasses import replace

import pytest

from bbgrap.control import coordinator_settings
from bbgrap.control.plan_reports import measured_times
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.addresses import place_of, split_place
from tests.bbgrap.control.wire import Wire, ready_wire

SETTINGS = coordinator_settings.Settings("0.1.0", "tcp://head:1", fingerprint="head's")
ALL = {("a", "tcp://a:1", "a's"), ("b", "tcp://b:1", "b's"), ("coordinator", "tcp://head:1", "head's")}


def locked_wire():
    """A wire whose agents and coordinator have fingerprints, with a plan on both agents."""
    wire = Wire(SETTINGS)
    for name in ("a", "b"):
        wire.add_agent(name, f"{name}'s")
    wire.settle()
    wire.offer()
    wire.prepare()
    wire.settle()
    return wire


def known(peers):
    return {(peer.name, peer.address, peer.fingerprint) for peer in peers}


def answered(wire):
    call = wire.run()
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)


def variants(wire):
    """The epochs of what is on both agents, with the peers that each agent is told."""
    return {v.epoch: [deploy.peers for deploy in v.parts.values()] for v in wire.coordinator.loading.by_epoch.values() if len(v.parts) == 2}


def test_places():
    for address, fingerprint in (("tcp://[::1]:5", "ab"), ("tcp://a:5", "")):
        assert split_place(place_of(address, fingerprint)) == (address, fingerprint)
    assert place_of("tcp://a:5", "") == "tcp://a:5"


def test_every_peer_has_its_fingerprint():
    wire = locked_wire()
    for (first, second), host in ((peers, wire.parts[epoch]) for epoch, peers in variants(wire).items()):
        assert known(first) == known(second) == ALL
        assert known(host) == {each for each in ALL if each[0] != "coordinator"}
    members = wire.coordinator.members
    assert known(members.peers()) == ALL
    assert known(members.peers_of(members.by_name["a"])) == {each for each in ALL if each[0] != "a"}


def test_an_agent_that_is_started_again_at_its_address_is_told_to_the_others():
    wire = locked_wire()
    (before,) = variants(wire)
    wire.crash(wire.agent("b"))
    wire.wait(2.0)
    wire.add_agent("b", "other b's")
    wire.wait(2.0)
    answered(wire)
    ((epoch, (peers, _)),) = variants(wire).items()
    assert epoch != before
    assert ("b", "tcp://b:1", "other b's") in known(peers)


def test_after_a_restart_what_is_loaded_serves_again_unless_the_coordinator_has_another_certificate():
    wire = locked_wire()
    before = set(variants(wire))
    wire.restart_coordinator()
    wire.wait(2.0)
    answered(wire)
    assert set(variants(wire)) == before
    wire.settings = replace(SETTINGS, fingerprint="other head's")
    wire.restart_coordinator()
    wire.wait(2.0)
    answered(wire)
    assert not before & set(variants(wire))
    assert all(peers[-1].fingerprint == "other head's" for each in variants(wire).values() for peers in each)


def auto_wire(seconds):
    """A wire with a plan of `auto` whose variants take that long, by their nodes."""
    return ready_wire(*max(seconds, key=len), options=PlanOptions(planner="auto"), seconds=seconds)


def times(wire):
    """The seconds of each variant, by its nodes; and the nodes of the variant that serves."""
    (plan,) = wire.coordinator.planning.plans.values()
    measured = {tuple(v.parts): plan.policy.medians.get(v.epoch) for v in plan.variants}
    return measured, *(tuple(variant.parts) for variant in plan.serving)


@pytest.mark.parametrize("faster", [("a", "b"), ("a",)], ids=len)
def test_after_a_restart_the_variant_that_was_faster_serves(faster):
    """Every restart of an agent let the variant serve that was loaded last, however slow it was, for good."""
    wire = auto_wire({names: 0.01 if names == faster else 0.02 for names in (("a", "b"), ("a",))})
    before = times(wire)
    assert before[1] == faster
    for name in ("a", "b"):
        wire.crash(wire.agent(name))
    wire.wait(2.0)
    for name in ("a", "b"):
        wire.add_agent(name, f"another {name}'s")
    wire.wait(2.0)
    assert times(wire) == before


@pytest.mark.parametrize("fingerprint", ["", "another c's"])
def test_an_agent_that_comes_back_is_used_again(fingerprint):
    """What was planned without it went on serving, for good where it came back as it was."""
    both, every = ("a", "b"), ("a", "b", "c")
    wire = auto_wire({every: 0.01, both: 0.02, ("a",): 0.04})

    def goes_on(seconds):
        for _ in range(round(seconds)):
            wire.wait(1.0)
            answered(wire)
        return times(wire)[1]

    assert goes_on(1.0) == every
    wire.crash(wire.agent("c"))
    assert goes_on(15.0) == both
    wire.add_agent("c", fingerprint)
    assert goes_on(10.0) == every
    (plan,) = wire.coordinator.planning.plans.values()
    assert set(measured_times(plan)) == {"auto on a, b", "auto on a, b, c", "single on a"}
    wire.crash(wire.agent("c"))
    assert goes_on(3.0) == both
