"""Stories of requests of sequences that wait for others."""

from dataclasses import replace

from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.test_sequences import OPTIONS, Counters, with_state
from tests.bbgrap.control.tiny_plans import plan_of


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
