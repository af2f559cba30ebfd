"""What runs over a link in doubt waits until all that is in doubt of it is known."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control.coordinator_instructions import HostPings, Log
from bbgrap.control.link_faults import MAX_STALLS, SAME_S
from bbgrap.control.links import TRIAL_S
from bbgrap.control.request_recovery import MAX_LOSSES
from bbgrap.control.stalls import STALLED_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol.directions import TO_AGENT
from tests.bbgrap.control.wire import CLIENT, Wire, joined_wire, ready_wire


def test_nothing_starts_while_any_link_of_a_variant_is_being_tried():
    """An agent tries each of the others by itself; its first answer said that all of its links were well."""
    wire = ready_wire("a", "b", "c", options=PlanOptions(planner="rows"))
    machine = wire.coordinator
    (variant,) = (v for v in machine.loading.by_epoch.values() if len(v.parts) == 3)
    assert variant.takes_requests
    told = machine.faults.try_all(variant, wire.now)
    trials = [(i.identity, i.message.trial) for i in told if isinstance(i.message, m.TryLinks)]
    assert len(trials) == 9
    for number, (identity, trial) in enumerate(trials):
        assert not variant.takes_requests, number
        wire.to_coordinator(ce.FromPeer(identity, m.LinksTried(trial, ())))
    assert variant.takes_requests


def test_runs_that_stalled_have_ended_nobody():
    """The first agent that went after five of them failed the request: all six "were lost while it ran"."""
    wire = ready_wire("a", "b")
    wire.until_answered(wire.run())
    call = wire.run()
    wire.deliver_all()
    (request,) = wire.coordinator.requests.open.values()
    for _ in range(300):
        if request.stalls >= MAX_LOSSES and wire.started:
            break
        wire.wait(0.1)
    (start,) = wire.started.values()
    wire.to_agent(wire.agent(wire.nodes_of(start)[0]), m.WorkerLost("SIGKILL", 0, 0, m.EndedBy.OUTSIDE))
    wire.deliver_all()
    assert len(request.lost) == 1
    assert isinstance(wire.until_answered(call), c.RunResult)


def test_why_a_connection_broke_is_told_once_for_an_agent():
    """Of twenty agents each told of the one that died, before that was known."""
    wire = ready_wire("a", "b", "c", options=PlanOptions(planner="rows"))

    def told(name, other):
        done = wire.coordinator.handle(ce.FromPeer(wire.agent(name).identity, m.LinkBroken(f"tcp://{other}:1", "it was reset")), wire.now)
        return [i.text for i in done if isinstance(i, Log) and "broke" in i.text]

    assert told("a", "c") == ["'a' to 'c': the connection broke: it was reset"]
    assert told("b", "c") == told("c", "b") == []
    wire.settle_for(SAME_S + TRIAL_S)
    assert told("b", "c") == ["'b' to 'c': the connection broke: it was reset"]
    wire.settle_for(SAME_S + TRIAL_S)
    wire.to_coordinator(ce.HostLinkBroken("tcp://a:1"))  # why is not known, so there is nothing to tell
    assert not any("the connection broke" in text for text in wire.told)


def test_connections_between_those_who_are_known_to_be_apart_are_not_told_of():
    """Behind a firewall that drops what it does not let in each try was told of, every 5 s for ever."""
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))

    def tries():
        wire.say("a", m.LinkBroken("tcp://b:1", "no answer within 1 s"))
        wire.settle_for(SAME_S + TRIAL_S)
        return sum("the connection broke" in text for text in wire.told)

    wire.cut.add(frozenset("ab"))
    assert [tries(), tries(), tries()] == [1, 1, 1]
    wire.cut.clear()
    wire.settle_for(30.0)
    assert not wire.coordinator.links.apart
    assert tries() == 2


def test_what_stalls_has_longer_each_time_it_runs_again():
    """Over 4 Mbit/s or a round trip of 600 ms the inputs of a first request came after it had been given up, for ever."""
    wire = ready_wire("a", "b")
    wire.run(deadline_s=600.0)
    wire.deliver_all()
    at, began = list[float](), wire.now
    while wire.now < began + 20.0:
        wire.wait(0.1)
        at += [wire.now] * sum("has stalled" in text or "answers nothing" in text for text in wire.told)
        wire.told.clear()
    waited = [later - before for before, later in pairwise(at)]
    assert 3 <= len(at) <= 7
    assert waited[-1] > 5.0


def test_what_runs_over_a_connection_that_broke_runs_again_before_it_has_stalled():
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    wire.run()
    wire.deliver_all()
    (lost,) = wire.started
    assert wire.nodes_of(wire.started[lost]) == ("a", "b")
    wire.say("a", m.LinkBroken("tcp://b:1", "it was reset"))
    wire.wait(STALLED_S - 0.1)
    (again,) = wire.started
    assert again != lost


@pytest.mark.parametrize("answers", [True, False])
def test_requests_that_stall_now_and_then_are_no_reason_to_load_anew(answers):
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    for _ in range(MAX_STALLS):
        assert not any("it is loaded anew" in text for text in wire.told)
        call, told = wire.run(), len(wire.told)
        while not any("stalled" in text or "loaded anew" in text for text in wire.told[told:]):
            wire.wait(0.1)
        wire.until_answered(call)
        wire.settle_for(2.0)
        if answers:
            wire.until_answered(wire.run())
    assert any("it is loaded anew" in text for text in wire.told) is not answers


def test_what_is_on_its_way_has_not_stalled():
    """4 MB over 4 Mbit/s took 54 s instead of 8: the request was run again five times, and its agent was taken for one behind a wall."""
    wire = joined_wire()
    wire.add_agent("a", fingerprint="fa")
    wire.settle()
    wire.until_answered(wire.prepare())
    wire.moving = frozenset({"fa"})
    call = wire.run()
    wire.deliver_all()
    wire.wait(10.0)
    assert not any("stalled" in text for text in wire.told)
    wire.moving = frozenset()
    wire.wait(2.0)
    assert any("has stalled on a" in text for text in wire.told)
    assert isinstance(wire.until_answered(call), c.RunResult)


@pytest.mark.parametrize(("seconds", "steps", "apart"), [(0.0, 0, True), (0.2, 2, False), (5.0, 0, False), (0.2, 3, True)])
def test_one_that_computes_was_not_reached_if_it_has_passed_from_one_segment_to_another(seconds, steps, apart):
    """Under load agents compute all the time: a pair whose link was cut was taken for well, and requests stalled over it again."""
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    machine = wire.coordinator
    wire.say("b", m.Heartbeat(1, 1, 0.1, 10))
    (*_, told) = machine.faults.broken(machine.members.by_name["a"], "tcp://b:1", wire.now)
    (peer,) = told.message.peers
    wire.say("b", m.Heartbeat(1, 1, seconds, 10 + steps))
    wire.to_coordinator(ce.FromPeer(told.identity, m.LinksTried(told.message.trial, (peer.device,))))
    assert (frozenset("ab") in machine.links.apart) == apart


@pytest.mark.parametrize("reloads", [True, False])
def test_one_that_loads_again_what_its_lost_worker_had_is_no_witness(reloads):
    """A new worker that hangs in its loads for a second has no answer of anybody: it was taken for one apart from the coordinator."""
    wire = ready_wire("a", "b", options=PlanOptions(planner="rows"))
    machine = wire.coordinator
    (*_, told) = machine.faults.broken(None, "tcp://a:1", wire.now)
    if reloads:
        wire.say("a", m.WorkerLost("out of memory", 0, 0, m.EndedBy.MEMORY))
    (peer,) = told.message.peers
    wire.to_coordinator(ce.FromPeer(told.identity, m.LinksTried(told.message.trial, (peer.device,))))
    assert (frozenset(("a", COORDINATOR)) in machine.links.apart) is not reloads


def test_who_has_no_answer_while_both_load_is_planned_around():
    """Where a firewall dropped packets between two agents, the first call for a plan over both failed: trials meanwhile said nothing."""
    wire = joined_wire("a", "b", options=PlanOptions(planner="rows"))
    load = wire.carry_agent

    def carry(agent, instruction):
        peers = instruction.peers if isinstance(instruction, m.Deploy) else ()
        if others := tuple(peer.device for peer in peers if peer.name not in {agent.name, COORDINATOR}):
            wire.to_agent(agent, ae.DeploymentLoaded(instruction.epoch, "no answer on the data plane", unreachable=others))
        else:
            load(agent, instruction)

    wire.carry_agent = carry
    assert isinstance(wire.until_answered(wire.prepare()), c.ModelPrepared)
    assert [len(job.cluster.nodes) for job in wire.jobs] == [2, 1]
    assert set(wire.coordinator.links.apart) == {frozenset("ab")}


def test_whom_an_agent_does_not_reach_is_told_in_one_line():
    """Of twenty agents, one behind a wall had nineteen lines, which were all that the status said of what had happened."""
    wire = ready_wire("a", "b", "c", "d", "e", "f")
    machine = wire.coordinator
    begun = machine.links.joined(machine.members.by_name["f"], wire.now)
    (message,) = (i.message for i in begun if not isinstance(i, HostPings) and isinstance(i.message, m.TryLinks))
    told = wire.coordinator.handle(
        ce.FromPeer(wire.agent("f").identity, m.LinksTried(message.trial, tuple(peer.device for peer in message.peers))), wire.now
    )
    (line,) = (i.text for i in told if isinstance(i, Log) and i.event == "link lost")
    assert line.startswith(
        "'f' does not reach 'a' at tcp://a:1, 'b' at tcp://b:1, 'c' at tcp://c:1 and 3 more, or is not reached by them at "
    )


class NarrowWire(Wire):
    """A wire over which long messages to `b` are lost, and what is said after them, until it connects anew: as over some tunnels."""

    blocked = narrow = False

    def send(self, sender, receiver, frames):
        if self.narrow and receiver.startswith(b"b/"):
            self.blocked = self.blocked or isinstance(TO_AGENT.decode(frames), m.Deploy | m.WeightChunk)
            if self.blocked:
                return
        super().send(sender, receiver, frames)

    def carry_agent(self, agent, instruction):
        self.blocked = self.blocked and not (agent.name == "b" and isinstance(instruction, ae.Reconnect))
        super().carry_agent(agent, instruction)


def test_an_agent_that_no_weight_reaches_any_more_is_gone_around():
    """A route that led over a VPN since it joined: heartbeats came, and a plan over it was waited for without end."""
    wire = NarrowWire(options=PlanOptions(planner="rows"))
    for name in "ab":
        wire.add_agent(name)
    wire.settle()
    wire.offer()
    wire.settle()
    wire.narrow, wire.cut = True, {frozenset(("b", COORDINATOR))}
    began = wire.now
    assert isinstance(wire.until_answered(wire.prepare()), c.ModelPrepared)
    assert wire.now - began < 10.0
    assert isinstance(wire.until_answered(wire.run()), c.RunResult)
    assert any("'b' does not reach 'coordinator'" in text and "mtu 1280" in text for text in wire.told)
    wire.narrow, wire.cut = False, set()
    wire.settle_for(5.0)
    assert any("reach each other again" in text for text in wire.told)


def test_an_agent_that_asks_to_join_again_is_told_at_once_what_it_is_to_load_once_its_link_is_well():
    wire = joined_wire("a", options=PlanOptions(planner="rows"))
    call = wire.prepare()
    while not wire.coordinator.loading.loading_agents:
        wire.deliver((CLIENT, b""))
    wire.queues.clear()  # all of it is lost
    wire.say("a", replace(wire.agent("a").machine.join, holds=()))
    began = wire.now
    wire.settle()
    assert isinstance(wire.answer(call), c.ModelPrepared)
    assert wire.now == began
