"""Stories of requests of sequences that wait for others, or for long."""

from dataclasses import replace

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.control import sequences
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.counters import OPTIONS, Counters, counters, total, with_state
from tests.bbgrap.control.tiny_plans import plan_of
from tests.bbgrap.control.wire import CLIENT


def for_one_number(planned):
    """Make the programs of a plan for inputs of one element."""

    def sized(schedule):
        return replace(schedule, buffers=tuple(replace(spec, shape=(1,)) for spec in schedule.buffers))

    (variant,) = planned.variants
    made = replace(variant.artifacts, host=sized(variant.artifacts.host), further=sized(variant.artifacts.further))
    return replace(planned, variants=(replace(variant, artifacts=made),))


def test_what_only_a_full_standby_takes_keeps_nothing_waiting_that_a_plan_takes():
    wire = Counters(options=OPTIONS)
    wire.plan = lambda job: for_one_number(with_state(plan_of(job)))
    for name in "ab":
        wire.add_agent(name)
    wire.offer()
    wire.until_answered(wire.prepare())
    wire.settle()
    (plan,) = wire.coordinator.planning.plans.values()
    (variant,) = plan.serving
    places = sum(copy.queue.limit for copy in plan.standby.variants)
    calls = [wire.run_of(sequence, 0, 1, 2) for sequence in range(1, places + 2)]
    calls.append(wire.run_of(100, 0, 1))
    wire.deliver_all()
    assert (len(variant.queue.running), len(plan.waiting), len(wire.started)) == (1, 1, places + 1)
    wire.settle()
    assert [type(wire.answer(call)) for call in calls] == [c.RunResult] * len(calls)


@pytest.mark.parametrize("step", [0, 1])
def test_a_request_that_arrives_again_after_its_answer_was_heard_only_keeps_the_next_one_busy(step):
    wire = counters("a", "b")
    assert [total(wire, 1, before, 1) for before in range(step)] == [1] * step
    call = wire.run_of(1, step, 10)
    (said,) = wire.queues[CLIENT, b""]
    wire.settle()
    assert int(bytes(wire.answer(call).payload[0])) == step + 10
    wire.send(CLIENT, b"", said)
    call = wire.run_of(1, step + 1, 100)
    wire.deliver_all()
    assert wire.answer(call).fault is c.Fault.BUSY
    wire.settle()
    assert total(wire, 1, step + 1, 100) == step + 110


def test_who_has_most_sequences_makes_room(monkeypatch):
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 6)
    wire = counters("a", "b")
    assert total(wire, 1, 0, 5) == 5
    wire.to_coordinator(ce.FromPeer(b"other", replace(wire.said_of(7, 0, 1), call=1)))
    wire.settle()
    for number in range(100):
        wire.to_coordinator(ce.FromPeer(b"other", c.ForkSequence(7, 100 + number)))
    wire.settle()
    assert len(wire.coordinator.requests.sequences) == 6
    assert total(wire, 1, 1, 6) == 11


def test_a_request_that_takes_long_is_no_idleness():
    wire = counters("a", "b")
    assert total(wire, 1, 0, 5) == 5
    for name in "ab":
        wire.crash(wire.agent(name))
    call = wire.run_of(1, 1, 6)
    for _ in range(int(1.1 * sequences.IDLE_S)):
        wire.pass_time(1.0)
        wire.deliver_all()
    for name in "ab":
        wire.add_agent(name)
    wire.until_answered(call)
    wire.pass_time(0.5)
    assert total(wire, 1, 2, 7) == 18


@pytest.mark.parametrize("step", [0, 1])
def test_who_asks_for_the_same_again_while_it_runs_is_told_to_come_again(step):
    """A coordinator that was started anew may refuse a request that arrived twice, learn its plan, and run it the second time."""
    wire = counters("a", "b")
    assert [total(wire, 1, before, 1) for before in range(step)] == [1] * step
    first, again = wire.run_of(1, step, 10), wire.run_of(1, step, 10)
    wire.deliver_all()
    assert wire.answer(again).fault is c.Fault.BUSY
    wire.until_answered(first)
    assert total(wire, 1, step, 10) == step + 10
