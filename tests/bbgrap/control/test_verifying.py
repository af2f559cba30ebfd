"""Requests that run twice: when, where, and who is named where the answers differ."""

from dataclasses import replace

import pytest

from bbgrap.control import agent_events as ae
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings, verifying
from bbgrap.control.audit import EVERY_S
from bbgrap.control.request import Request
from bbgrap.control.stalls import UNAWAITED_STALLED_S
from bbgrap.control.verifying import GIVE_WAY_S, RUN_WITHIN_S, suspects
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import Wire, ready_wire

ALL = coordinator_settings.Settings("0.1.0", "tcp://head:1", verify_fraction=1.0)
STREAM = PlanOptions("auto", objective="throughput")
"""The whole model on every node: any two variants are disjoint."""


def stream(*names, **lies):
    """A wire whose nodes each have the model whole, and of which some lie from now on."""
    wire = ready_wire(*names, options=STREAM, settings=ALL)
    wire.lies = lies
    return wire


def answered(wire, count=1):
    calls = [wire.run() for _ in range(count)]
    for call in calls:
        wire.until_answered(call)
    wire.settle()


def seen_of(wire):
    return {node.name: (node.verified, node.differed) for node in wire.coordinator.status.nodes()}


def differed(wire):
    return [audit.detail for audit in wire.audits if audit.event == "differed"]


def tally(wire):
    return dict(wire.coordinator.statistics.runs.verified)


def only_start(wire):
    """Deliver what is on its way, without an end of a request; return the one that runs."""
    wire.deliver_all()
    (start,) = wire.started.values()
    return start


def is_clean(wire):
    requests = wire.coordinator.requests
    numbers = [number for variant in wire.coordinator.loading.by_epoch.values() for number in variant.queue.running]
    return not numbers and not requests.verifying.running and requests.verifying._bytes == 0


def test_a_request_runs_again_on_another_node_when_the_client_has_its_answer():
    wire = stream("a", "b")
    call = wire.run(payload=(b"input",))
    first = only_start(wire)
    wire.finish_requests()
    (second,) = wire.started.values()
    wire.deliver_all()
    assert isinstance(wire.answer(call), c.RunResult)
    assert second.payload == first.payload == (b"input",)
    assert not {*wire.nodes_of(first)} & {*wire.nodes_of(second)}
    wire.settle()
    assert seen_of(wire) == {"a": (1, 0), "b": (1, 0)}
    assert tally(wire) == {"compared": 1}
    assert differed(wire) == []
    assert is_clean(wire)


def test_of_three_nodes_the_one_that_answers_wrongly_is_named():
    wire = stream("a", "b", "c", b=b"n")
    answered(wire, 12)
    assert [seen_of(wire)[name][1] for name in "abc"] == [0, len(differed(wire)), 0]
    assert differed(wire)
    for detail in differed(wire):
        assert detail["named"] == ["b"]
        assert sorted(node for run in detail["runs"] for node in run["nodes"]) == ["a", "b", "c"]
    told = [text for text in wire.told if "'b' answered wrongly" in text]
    assert len(told) == len(differed(wire))
    assert "the answers of 3 runs differ" in told[0]
    assert tally(wire)["compared"] == 12
    assert is_clean(wire)


def test_of_two_nodes_it_may_be_either():
    wire = stream("a", "b", b=b"n")
    answered(wire)
    assert [detail["named"] for detail in differed(wire)] == [["a", "b"]]
    assert any("'a' or 'b' answered wrongly" in text for text in wire.told)
    assert seen_of(wire) == {"a": (1, 1), "b": (1, 1)}


def test_of_two_that_answer_wrongly_none_is_named():
    wire = stream("a", "b", "c", a=b"n", b=b"m")
    answered(wire)
    assert [detail["named"] for detail in differed(wire)] == [[]]
    assert any("no node alone explains it" in text for text in wire.told)


def test_a_second_run_shares_as_few_nodes_as_can_be():
    wire = ready_wire("a", "b", options=PlanOptions("auto"), settings=ALL, seconds={("a",): 0.01, ("b",): 0.03, ("a", "b"): 0.02})
    (plan,) = wire.coordinator.planning.plans.values()
    assert [set(variant.parts) for variant in plan.serving] == [{"a"}]
    for variant in plan.standby.variants:
        variant.usual_s = 9.0
    second = second_run(wire)
    assert wire.nodes_of(second) == ("b",)


def test_a_node_that_both_runs_need_is_not_verified():
    wire = ready_wire("a", "b", options=PlanOptions("bbgrap"), settings=ALL)
    answered(wire)
    assert sorted(seen_of(wire).values()) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("runs", "groups", "named"),
    [
        (["a", "b"], [0, 1], "ab"),
        (["a", "b", "c"], [0, 1, 1], "a"),
        (["a", "b", "c"], [0, 0, 1], "c"),
        (["a", "b", "c"], [0, 1, 2], ""),
        (["ab", "c", "d"], [0, 1, 1], "ab"),
        (["ab", "a"], [0, 1], "ab"),
        (["ab", "c", "a"], [0, 1, 1], "ab"),
        (["ab", "c", "a"], [0, 1, 0], "ac"),
        (["ab", "a", "b"], [0, 1, 1], "ab"),
    ],
)
def test_suspect_is_who_alone_explains_what_was_seen(runs, groups, named):
    assert suspects([frozenset(nodes) for nodes in runs], lambda one, other: groups[one] == groups[other]) == frozenset(named)


def test_it_gives_way_to_clients_but_not_for_ever():
    wire = stream("a", "b")
    wire.run()
    only_start(wire)
    wire.run()
    wire.run()
    wire.deliver_all()
    number = next(iter(wire.started))
    wire.to_coordinator(ce.RequestDone(number, (), ()))
    del wire.started[number]
    verifier = wire.coordinator.requests.verifying
    wire.wait(GIVE_WAY_S - 0.3)
    assert not verifier.running
    wire.wait(0.5)
    assert verifier.running in wire.started
    others = [start for start in wire.started.values() if start.request != verifier.running]
    assert len(others) == 2
    wire.settle()
    assert is_clean(wire)


def test_it_waits_for_room_where_it_is_to_run():
    wire = stream("a", "b")
    for _ in range(20):
        wire.run()
    wire.deliver_all()
    number = next(iter(wire.started))
    del wire.started[number]
    wire.to_coordinator(ce.RequestDone(number, (), ()))
    while not wire.coordinator.requests.verifying.running and wire.now < 2 * GIVE_WAY_S:
        wire.wait(0.1)
        assert all(len(v.queue.running) <= v.queue.limit for v in wire.coordinator.loading.by_epoch.values())


def test_one_runs_at_a_time():
    wire = stream("a", "b", "c")
    calls = [wire.run() for _ in range(4)]
    wire.deliver_all()
    wire.finish_requests()
    wire.deliver_all()
    assert all(wire.answers[call] for call in calls)
    wire.wait(2 * GIVE_WAY_S)
    assert len(wire.started) == 1
    wire.settle()
    assert tally(wire) == {"compared": 4}


def test_with_one_copy_there_is_nothing_to_compare():
    wire = stream("a")
    answered(wire, 3)
    assert tally(wire) == {"skipped, no other copy": 3}
    wire.pass_time(EVERY_S + 1)
    assert [audit.detail for audit in wire.audits if audit.event == "verified"][-1] == {"skipped, no other copy": 3}
    assert is_clean(wire)


def test_what_is_kept_is_bounded(monkeypatch):
    wire = stream("a", "b")
    monkeypatch.setattr(verifying, "MAX_BYTES", 10)
    wire.until_answered(wire.run(payload=(bytes(11),)))
    wire.until_answered(wire.run(payload=(bytes(10),)))  # with its output it is too much
    wire.until_answered(wire.run(payload=(bytes(9),)))
    wire.settle()
    assert tally(wire) == {"skipped, memory": 2, "compared": 1}
    monkeypatch.setattr(verifying, "MAX_CHECKS", 0)
    answered(wire)
    assert tally(wire)["skipped, memory"] == 3
    assert is_clean(wire)


def second_run(wire):
    """Answer a request; return the second run of it, which has begun."""
    wire.run()
    only_start(wire)
    wire.finish_requests()
    return only_start(wire)


def test_a_second_run_whose_node_is_lost_begins_elsewhere():
    wire = stream("a", "b", "c")
    second = second_run(wire)
    (lost,) = wire.nodes_of(second)
    wire.crash(wire.agent(lost))
    wire.wait(1.0)
    again = wire.started[wire.coordinator.requests.verifying.running]
    assert lost not in wire.nodes_of(again)
    wire.settle()
    assert tally(wire) == {"compared": 1}
    assert is_clean(wire)


def test_a_node_on_which_second_runs_fail_is_told_and_another_one_asked():
    wire = stream("a", "b", "c")
    second = second_run(wire)
    (broken,) = wire.nodes_of(second)
    wire.to_agent(wire.agent(broken), m.RequestFailed(second.epoch, second.request, "no luck"))
    again = only_start(wire)
    assert broken not in wire.nodes_of(again)
    assert any(f"a second run failed on '{broken}': agent '{broken}': no luck" in text for text in wire.told)
    wire.settle()
    assert tally(wire) == {"compared": 1}


def test_without_an_end_it_is_taken_back_and_given_up():
    wire = stream("a", "b")
    second = second_run(wire)
    wire.wait(UNAWAITED_STALLED_S + 1)
    assert second.request not in wire.started
    assert any(f"request {second.request}, of the coordinator, has stalled" in text for text in wire.told)
    wire.wait(RUN_WITHIN_S)
    assert tally(wire) == {"skipped, no second answer": 1}
    assert is_clean(wire)


def test_a_second_run_that_takes_too_long_on_a_busy_node_is_told_and_given_up():
    wire = stream("a", "b")
    second = second_run(wire)
    for variant in wire.coordinator.loading.by_epoch.values():
        variant.usual_s = RUN_WITHIN_S / 3
    for _ in range(round(10 * RUN_WITHIN_S) + 2):
        wire.now += 0.1
        for agent in list(wire.agents.values()):
            wire.to_agent(agent, ae.AgentTick(m.Heartbeat(second.epoch, second.request, 1.0)))
        wire.to_coordinator(ce.Tick())
        wire.deliver_all()
    assert any(f"a second run failed on '{wire.nodes_of(second)[0]}': no answer within {RUN_WITHIN_S:g} s" in text for text in wire.told)
    assert second.request not in wire.started


def test_what_cannot_be_compared_is_counted_and_names_nobody():
    wire = stream("a", "b", "c", b=b"n")
    compared = []
    carry = wire.carry_coordinator

    def breaks(instruction):
        if isinstance(instruction, coordinator_instructions.Compare):
            compared.append(instruction)
            faults = None if len(compared) > 1 else ("they differ",)
            wire.to_coordinator(ce.Compared(instruction.check, faults))
        else:
            carry(instruction)

    wire.carry_coordinator = breaks
    answered(wire)
    assert len(compared) == 2
    (detail,) = differed(wire)  # what was known before the third run is told
    assert len(detail["runs"]) == len(detail["named"]) == 2
    assert is_clean(wire)


def request_of(number, payload=()):
    message = c.RunModel(1, "ab" * 32, 1.0, (), payload)
    return Request(number, (b"x", 1), message, None, 0.0, 0.0)


def drawn(settings, count=4000):
    verifier = Wire(settings).coordinator.requests.verifying
    requests = (request_of(number) for number in range(count))
    return {request.number for request in requests if verifier.draw(request)}


def test_which_ones_is_drawn_by_the_key():
    some = replace(ALL, verify_fraction=0.1, verify_key=b"1")
    assert drawn(replace(ALL, verify_fraction=0.0)) == set()
    assert len(drawn(ALL)) == 4000
    assert 300 < len(drawn(some)) < 500
    assert drawn(some) == drawn(some)
    assert len(drawn(some) & drawn(replace(some, verify_key=b"2"))) < 100
