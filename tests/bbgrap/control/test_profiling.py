"""Who measures when: nodes at once, then links one after the other, whoever fails or goes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.control import agent_events as ae
from bbgrap.control import profiling
from bbgrap.control.planning import SETTLE_S
from bbgrap.control.profiling import IDLE_S, MAX_WAITING
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import CLIENT, FakeAgent, Wire, joined_wire, ready_wire

WORK = (Speed("matmul", 1e9),)
LINKS = (LinkProfile("coordinator", 1e9, 1e-4),)


def measure(wire: Wire, name: str = "", *, again: bool = True) -> int:
    call = wire.call(lambda n: c.MeasureNodes(n, name) if again else c.MeasureUnknown(n))
    wire.settle()
    return call


def measuring(wire: Wire) -> dict[str, str]:
    """What every agent that was asked and has not answered measures."""
    return {agent.name: type(agent.measuring[0]).__name__ for agent in wire.agents.values() if agent.measuring}


def finish(wire: Wire, name: str, fault: str = "") -> None:
    """Let an agent answer what it was asked first."""
    (agent,) = (agent for agent in wire.agents.values() if agent.name == name)
    wire.to_agent(agent, answer(agent, fault))
    wire.settle()


def answer(agent: FakeAgent, fault: str = "") -> ae.Outcome:
    match agent.measuring.pop(0):
        case m.Measure(number):
            return m.Measured(number, None if fault else NodeProfile(agent.name, work=WORK), fault)
        case m.MeasureLinks(number, _):
            return m.LinksMeasured(number, () if fault else LINKS, fault)


def profile(name: str) -> NodeProfile:
    return NodeProfile(name, links=LINKS, work=WORK)


def known(wire: Wire) -> dict[str, NodeProfile | None]:
    return {status.name: status.profile for status in wire.coordinator.status.nodes()}


def test_nodes_are_measured_at_once_and_links_one_after_the_other():
    wire = joined_wire("a", "b", "c")
    call = measure(wire)
    assert measuring(wire) == dict.fromkeys("abc", "Measure")
    finish(wire, "c")
    finish(wire, "a")
    assert measuring(wire) == {"b": "Measure"}  # which links would disturb
    assert sorted(wire.pingers) == sorted(agent.name for agent in wire.agents.values())
    finish(wire, "b")
    order = []
    while wire.answers[call] == []:
        ((name, what),) = measuring(wire).items()
        assert what == "MeasureLinks"
        assert wire.pingers == ["a", "b", "c"]
        (asked,) = next(agent.measuring for agent in wire.agents.values() if agent.name == name)
        others = {(other, f"tcp://{other}:1") for other in "abc" if other != name}
        assert {(peer.name, peer.address) for peer in asked.peers} == {("coordinator", "tcp://head:1"), *others}
        order.append(name)
        finish(wire, name)
    assert order == ["c", "a", "b"]
    assert wire.answer(call) == c.Profiles(call, (profile("a"), profile("b"), profile("c")))
    assert known(wire) == {name: profile(name) for name in "abc"}
    assert sorted(wire.pingers) == sorted(agent.name for agent in wire.agents.values())


def test_plans_are_made_anew_with_what_was_measured_though_another_node_is_not_known_yet():
    wire = ready_wire("a", "b")
    assert [[node.work for node in job.cluster.nodes] for job in wire.jobs] == [[(), ()]]
    call = measure(wire, "a")
    while not wire.answers[call]:
        finish(wire, "a")
    wire.until_answered(wire.run())
    wire.settle_for(2 * SETTLE_S)
    assert measuring(wire) == {"b": "Measure"}
    assert wire.jobs[-1].cluster.nodes[0].work == WORK


def test_nobody_of_that_name():
    wire = joined_wire("a", "b")
    call = measure(wire, "z")
    assert wire.answer(call).reason == "node 'z': no live agent has that name; there are: a, b"
    assert measuring(wire) == {}


def test_who_is_lost_or_cannot_does_not_keep_the_others_from_being_measured():
    wire = joined_wire(*"abcde")
    call = measure(wire)
    finish(wire, "a", "no disk")
    for name in "bcd":
        finish(wire, name)
    assert measuring(wire) == {"e": "Measure"}
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "e"))
    wire.wait(1.0)
    finish(wire, "b")
    assert measuring(wire) == {"c": "MeasureLinks"}
    wire.crash(next(agent for agent in wire.agents.values() if agent.name == "d"))  # measured, but for its links
    wire.wait(1.0)
    finish(wire, "c", "no network")
    assert wire.answer(call).fault is c.Fault.EXECUTION
    assert wire.answer(call).reason == (
        "agent 'a' could not be measured: no disk; agent 'e' was lost before it was measured; agent 'd' was lost before it was measured; "
        "the links of agent 'c' could not be measured: no network; measured: b"
    )
    assert known(wire) == {"a": None, "b": profile("b"), "c": NodeProfile("c", work=WORK)}


def test_who_takes_too_long_is_left_out_and_its_late_answer_too():
    wire = joined_wire("a", "b")
    call = measure(wire)
    finish(wire, "b")
    wire.wait(130.0)
    assert measuring(wire) == {"a": "Measure", "b": "MeasureLinks"}
    finish(wire, "a")
    finish(wire, "b")
    assert wire.answer(call).reason == "agent 'a' was not measured in 120 s; measured: b"
    assert known(wire) == {"a": None, "b": profile("b")}


@pytest.mark.parametrize("lost", ["Measure", "MeasureLinks"])
def test_a_question_that_was_lost_with_a_connection_is_asked_again(lost):
    """All plans waited for two minutes."""
    wire = joined_wire("a")
    call = wire.call(lambda n: c.MeasureNodes(n, ""))
    wire.deliver((CLIENT, b""))
    if lost == "MeasureLinks":
        wire.settle()
        wire.to_agent(wire.agent("a"), answer(wire.agent("a")))
        wire.deliver((wire.agent("a").identity, b""))
    wire.queues[b"", wire.agent("a").identity].clear()
    assert measuring(wire) == {}
    wire.wait(11.0)
    assert measuring(wire) == {"a": lost}
    wire.wait(30.0)
    assert len(wire.agent("a").measuring) == 1, "who measures lets the same question pass"
    while measuring(wire):
        finish(wire, "a")
    assert wire.answer(call).profiles == (profile("a"),)


def test_what_is_known_is_not_measured_unless_asked():
    wire = joined_wire("a", "b")
    wire.call(lambda n: c.SetProfile(n, NodeProfile("b", work=WORK)))
    first, second = measure(wire, again=False), measure(wire, again=False)
    assert measuring(wire) == {"a": "Measure"}
    finish(wire, "a")
    finish(wire, "a")
    assert wire.answer(first) == c.Profiles(first, (profile("a"),))
    assert wire.answer(second) == c.Profiles(second, ())  # the first one's result is known by then
    third = measure(wire, "b")
    assert measuring(wire) == {"b": "Measure"}
    finish(wire, "b")
    finish(wire, "b")
    assert wire.answer(third) == c.Profiles(third, (profile("b"),))


def measured_in_the_background(wire: Wire, flops: float) -> set[str]:
    """Wait for an idle moment in which nodes are measured, as that fast; who was."""
    wire.settle_for(3 * IDLE_S)
    asked = set(measuring(wire))
    while names := measuring(wire):
        (agent,) = (agent for agent in wire.agents.values() if agent.name == next(iter(names)))
        told = answer(agent)
        faster = replace(told.profile, work=(Speed("matmul", flops),)) if isinstance(told, m.Measured) else None
        wire.to_agent(agent, told if faster is None else replace(told, profile=faster))
        wire.settle()
    return asked


@pytest.mark.parametrize(("flops", "is_news"), [(3.3e9, True), (0.3e9, True), (1.1e9, False), (0.9e9, False)])
def test_what_was_measured_in_a_busy_moment_is_measured_again_and_plans_are_told_of_what_has_changed(flops, is_news, monkeypatch):
    """It was kept for good: a node that had been throttled then got a quarter of the work ever after."""
    monkeypatch.setattr(profiling, "STALE_S", 60.0)
    wire = ready_wire("a", "b")
    assert measured_in_the_background(wire, 1e9) == {"a", "b"}
    wire.until_answered(wire.run())
    wire.settle_for(50.0)
    assert not measuring(wire)
    wire.settle_for(10.0)
    assert measured_in_the_background(wire, flops) == {"a", "b"}
    wire.until_answered(wire.run())
    wire.settle_for(2 * SETTLE_S)
    assert {of.work for of in known(wire).values()} == {(Speed("matmul", flops if is_news else 1e9),)}
    assert len({node.work for job in wire.jobs for node in job.cluster.nodes}) == 2 + is_news


def test_what_is_measured_again_and_is_disturbed_is_left_for_the_next_time(monkeypatch):
    monkeypatch.setattr(profiling, "STALE_S", 60.0)
    wire = ready_wire("a")
    assert measured_in_the_background(wire, 1e9) == {"a"}
    wire.settle_for(60.0 + IDLE_S)
    assert measuring(wire) == {"a": "Measure"}
    wire.run()
    wire.wait(0.2)
    assert measuring(wire) == {}
    wire.settle()
    wire.settle_for(50.0)
    assert measuring(wire) == {}


def test_an_answer_to_something_else_changes_nothing():
    wire = joined_wire("a")
    (agent,) = wire.agents.values()
    call = measure(wire)
    for stray in (m.LinksMeasured(1, LINKS, ""), m.Measured(2, profile("a"), ""), m.LinksMeasured(2, LINKS, "")):
        wire.to_agent(agent, stray)
        wire.settle()
    assert measuring(wire) == {"a": "Measure"}
    finish(wire, "a")
    for stray in (m.Measured(2, profile("a"), ""), m.Measured(1, None, "again"), m.LinksMeasured(1, (), "")):
        wire.to_agent(agent, stray)
        wire.settle()
    finish(wire, "a")
    assert wire.answer(call) == c.Profiles(call, (profile("a"),))
    wire.to_agent(agent, m.LinksMeasured(2, (), ""))
    wire.settle()
    assert known(wire) == {"a": profile("a")}


def test_calls_wait_and_beyond_a_bound_are_refused():
    wire = joined_wire("a")
    first = measure(wire)
    waiting = [measure(wire, again=False) for _ in range(MAX_WAITING)]
    refused = measure(wire)
    assert wire.answer(refused).fault is c.Fault.BUSY
    assert all(wire.answers[call] == [] for call in (first, *waiting))
    finish(wire, "a")
    finish(wire, "a")
    assert wire.answer(first) == c.Profiles(first, (profile("a"),))
    assert all(wire.answer(call) == c.Profiles(call, ()) for call in waiting)


def failed_in_the_background(wire: Wire, seconds: float) -> list[float]:
    """Let every measurement fail for a while; return after how many seconds each was asked for."""
    began, asked = wire.now, []
    while wire.now - began < seconds:
        wire.wait(1.0)
        if measuring(wire):
            asked.append(wire.now - began)
            finish(wire, "a", "no memory")
    return asked


def test_what_fails_in_the_background_is_tried_ever_more_seldom_and_said():
    """Every 30 s, measuring ended the worker of a machine that had not the memory for it, and no log said so."""
    wire = joined_wire("a")
    asked = failed_in_the_background(wire, 1000.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(asked) == 6
    assert all(wait <= pause <= wait + 3.0 for wait, pause in zip((30.0, 60.0, 120.0, 240.0, 480.0), pauses, strict=True))
    said = "in the background: agent 'a' could not be measured: no memory; the next try is in {} s"
    assert [line for line in wire.told if "no memory" in line] == [said.format(wait) for wait in (30, 60, 120, 240, 480, 960)]
    wire.add_agent("b")
    wire.wait(35.0)
    assert measuring(wire) == {"b": "Measure"}


def test_who_cannot_be_measured_is_not_measured_for_every_session_that_would_like_to_know():
    wire = joined_wire("a")
    first = measure(wire, again=False)
    finish(wire, "a", "no memory")
    assert wire.answer(first).fault is c.Fault.EXECUTION
    second = measure(wire, again=False)
    assert wire.answer(second) == c.Profiles(second, ())
    measure(wire)
    assert measuring(wire) == {"a": "Measure"}
    finish(wire, "a", "no memory")
    wire.wait(65.0)
    assert measuring(wire) == {"a": "Measure"}


def test_what_is_cancelled_is_not_measured_any_more():
    wire = ready_wire("a", "b")
    calls = [measure(wire) for _ in range(4)]
    for call in calls[:3]:
        wire.carry_client(wire.client.cancel(call))
    wire.settle()
    assert measuring(wire) == dict.fromkeys("ab", "Measure")
    for name in "abab":
        finish(wire, name)
    assert wire.answer(calls[3]) == c.Profiles(calls[3], (profile("a"), profile("b")))
    assert not any(wire.answers[call] for call in calls[:3])
    assert measuring(wire) == {}


def test_what_nobody_called_for_is_broken_off_when_something_else_is_to_be_done():
    wire = ready_wire("a", "b")
    wire.wait(35.0)
    assert measuring(wire) == dict.fromkeys("ab", "Measure")
    call = measure(wire, "a")
    assert measuring(wire) == {"a": "Measure"}  # a client has called for it, and waits for nothing else
    run = wire.run()
    wire.wait(1.3)
    assert measuring(wire) == {"a": "Measure"}
    finish(wire, "a")
    finish(wire, "a")
    assert wire.answer(call) == c.Profiles(call, (profile("a"),))
    assert isinstance(wire.answer(run), c.RunResult)
    wire.wait(25.0)
    assert measuring(wire) == {}
    wire.wait(10.0)
    assert measuring(wire) == {"b": "Measure"}


def test_what_is_measured_in_the_background_is_gone_on_with_when_somebody_wants_to_know_it():
    """It was begun anew: who submitted a model some seconds after the agents had joined waited for all of it."""
    wire = ready_wire("a", "b")
    wire.wait(35.0)
    finish(wire, "a")
    call = measure(wire, again=False)
    assert measuring(wire) == {"b": "Measure"}
    run = wire.run()
    wire.wait(1.3)
    finish(wire, "b")
    finish(wire, "a")
    finish(wire, "b")
    assert wire.answer(call) == c.Profiles(call, (profile("a"), profile("b")))
    assert isinstance(wire.answer(run), c.RunResult)


def test_what_is_measured_in_the_background_is_begun_anew_with_who_has_come_since():
    wire = ready_wire("a")
    wire.wait(35.0)
    wire.add_agent("b")
    wire.settle()
    assert measuring(wire) == {"a": "Measure"}
    call = measure(wire, again=False)
    for name in "abab":
        finish(wire, name)
    assert wire.answer(call) == c.Profiles(call, (profile("a"), profile("b")))


MOVES = st.lists(
    st.tuples(st.sampled_from(["call", "answer", "fault", "crash", "join", "wait"]), st.integers(0, 5), st.booleans()), max_size=40
)


def move(wire: Wire, what: str, which: int) -> None:
    """Do something with one of the agents."""
    asked = [agent for _, agent in sorted(wire.agents.items()) if agent.measuring]
    name = "abcd"[which % 4]
    if what in {"answer", "fault"} and asked:
        agent = asked[which % len(asked)]
        wire.to_agent(agent, answer(agent, "broken" if what == "fault" else ""))
    elif what == "crash" and wire.agents:
        wire.crash(list(wire.agents.values())[which % len(wire.agents)])
    elif what == "join" and name not in {agent.name for agent in wire.agents.values()}:
        wire.add_agent(name)
    elif what == "wait":
        wire.wait(0.3)
    wire.settle()


@given(MOVES)
def test_every_call_is_answered_once_and_nothing_is_disturbed(moves):
    wire, calls = joined_wire(*"abcd"), []
    for what, which, again in moves:
        if what == "call":
            calls.append(measure(wire, ["", *"abcd", ""][which], again=again))
        move(wire, what, which)
        now = measuring(wire)
        assert len(now) <= 1 or "MeasureLinks" not in now.values()
    for _ in range(100):
        move(wire, "answer", 0)
        move(wire, "wait", 0)
    # What has failed is tried again in the background now and then: that ends, too.
    for _ in range(20):
        move(wire, "answer", 0)
    assert all(isinstance(wire.answer(call), c.Profiles | c.Failed) for call in calls)
    assert measuring(wire) == {}
    assert sorted(wire.pingers) == sorted(agent.name for agent in wire.agents.values())
