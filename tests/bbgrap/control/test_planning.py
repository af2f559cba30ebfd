"""Stories of plans that make room for others."""

from dataclasses import replace

import pytest

from bbgrap.control import planning
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.wire import prepare_message, ready_wire, standby_wire


@pytest.fixture(autouse=True)
def one_plan(monkeypatch):
    monkeypatch.setattr(planning, "MAX_PLANS", 1)


def ask_for_another(wire):
    """Ask for a plan of another shape, later."""
    wire.now += 0.1
    wire.call(lambda n: replace(prepare_message(n, wire.options), shapes={"x": (5, 2)}, wait=False))
    wire.deliver_all()


def test_a_plan_that_is_forgotten_is_not_planned_again():
    wire = ready_wire("a", "b")
    for _ in range(planning.EARNED):
        wire.run()
    wire.settle()
    (plan,) = wire.coordinator.planning.plans.values()
    ask_for_another(wire)
    assert plan not in wire.coordinator.planning.plans.values()
    assert (plan.variants, plan.job) == ([], None)
    assert [job.shapes for job in wire.jobs].count(plan.shapes) == 1


def test_a_plan_is_not_forgotten_while_its_standby_answers_a_request_of_it():
    wire = standby_wire()
    call = wire.run()
    wire.deliver_all()
    plan = next(iter(wire.coordinator.planning.plans.values()))
    ask_for_another(wire)
    assert plan in wire.coordinator.planning.plans.values()
    for agent in list(wire.agents.values()):
        wire.crash(agent)
    wire.add_agent("c")
    assert isinstance(wire.until_answered(call), c.RunResult)
    ask_for_another(wire)
    assert plan not in wire.coordinator.planning.plans.values()
    assert plan.job is None
