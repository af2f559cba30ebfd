"""Who is asked how the machines are, and what is known of nodes."""

from dataclasses import replace

from bbgrap.cluster.types import NodeProfile, Speed
from bbgrap.control import coordinator_events as ce
from bbgrap.control.queries import INSPECT_WITHIN_S, MAX_ASKING
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import inspection as i
from tests.bbgrap.control.wire import Wire, introduction, joined_wire
from tests.messages import FACTS


def ask(wire: Wire) -> int:
    call = wire.call(i.InspectNodes)
    wire.settle()
    return call


def test_everybody_says_how_his_machine_is_and_clocks_are_compared():
    wire = joined_wire("a", "b")
    wire.agent("b").ahead_s = -75.0
    answer = wire.answer(ask(wire))
    assert (answer.silent, answer.models, answer.coordinator.cores) == ((), (), FACTS.cores)
    assert [(node.name, node.ahead_s) for node in answer.nodes] == [("a", 0.0), ("b", -75.0)]
    assert all(node.within_s < 1 for node in answer.nodes)


def test_who_says_nothing_is_named_and_keeps_nobody_waiting():
    wire = joined_wire("a", "b")
    wire.agent("a").ahead_s = None
    first, second = ask(wire), ask(wire)
    assert wire.answers[first] == []
    wire.wait(INSPECT_WITHIN_S + 0.2)
    for call in (first, second):
        answer = wire.answer(call)
        assert (answer.silent, [node.name for node in answer.nodes]) == (("a",), ["b"])


def test_many_stand_in_the_order_of_their_names():
    names = [f"agent{number}" for number in range(12)]
    wire = joined_wire(*reversed(names))
    for silent in (names[2], names[10]):
        wire.agent(silent).ahead_s = None
    call = ask(wire)
    wire.wait(INSPECT_WITHIN_S + 0.2)
    answer = wire.answer(call)
    assert answer.silent == ("agent2", "agent10")
    assert [node.name for node in answer.nodes] == [name for name in names if name not in answer.silent]


def test_who_is_lost_meanwhile_is_not_silent():
    wire = joined_wire("a", "b")
    wire.agent("a").ahead_s = None
    call = ask(wire)
    wire.crash(wire.agent("a"))
    wire.wait(1.0)
    assert wire.answer(call).silent == ()


def test_calls_that_wait_are_bounded():
    wire = joined_wire("a")
    wire.agent("a").ahead_s = None
    *calls, last = [ask(wire) for _ in range(MAX_ASKING + 1)]
    assert wire.answer(last).fault is c.Fault.BUSY
    wire.wait(INSPECT_WITHIN_S + 0.2)
    assert all(isinstance(wire.answer(call), i.Inspection) for call in calls)


def test_a_model_says_who_serves_it_and_why_no_plan_does():
    wire = joined_wire("a", "b")
    wire.offer()
    wire.prepare()
    wire.settle()
    (model,) = wire.answer(ask(wire)).models
    assert model.nodes
    assert model.why_not == ""
    for agent in list(wire.agents.values()):
        wire.crash(agent)
    wire.wait(1.0)
    (model,) = wire.answer(ask(wire)).models
    assert model.nodes == ()
    assert "are away" in model.why_not


def test_profiles_are_listed_and_forgotten_also_over_a_restart():
    wire = joined_wire("a")
    by_hand, measured = NodeProfile("x", share=2), NodeProfile("a", work=(Speed("matmul", 1e9),))
    wire.coordinator.members.measured["a"] = wire.profiles[False]["a"] = measured
    wire.call(lambda n: c.SetProfile(n, by_hand))
    wire.settle()

    def known():
        call = wire.call(i.ListProfiles)
        wire.settle()
        answer = wire.answer(call)
        return answer.measured, answer.by_hand

    def forget(name, *, measured):
        call = wire.call(lambda n: i.ForgetProfile(n, name, measured))
        wire.settle()
        return wire.answer(call)

    assert known() == ((measured,), (by_hand,))
    assert forget("x", measured=False).by_hand == (by_hand,)
    assert forget("a", measured=False).fault is c.Fault.USAGE
    assert known() == ((measured,), ())
    assert forget("a", measured=True).measured == (measured,)
    wire.restart_coordinator()
    wire.settle()
    assert known() == ((), ())


def test_another_version_is_said_when_an_agent_joins():
    wire = joined_wire("a")
    assert not [text for text in wire.told if "install one version" in text]
    wire.to_coordinator(ce.FromPeer(b"b/1", replace(introduction("b"), version="0.0.1", onnxruntime="1.22.0")))
    told = [text for text in wire.told if "install one version" in text]
    assert [text.partition(" has ")[2].split()[0] for text in told] == ["bbgrap", "onnxruntime"]
    assert all("'b'" in text for text in told)
