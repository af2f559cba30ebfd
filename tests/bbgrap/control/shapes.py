"""A wire on which a client brings many shapes of one model."""

import json
from collections.abc import Mapping
from typing import Any

from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions as ci
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.control.planning import plan_key
from bbgrap.control.plans import ServedPlan
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.tiny_plans import MODEL, artifacts, plan_of
from tests.bbgrap.control.wire import joined_wire

Shape = tuple[int, ...]

AUTO = PlanOptions(planner="auto", input_values="any")
A, B, BOTH = ("a",), ("b",), ("a", "b")
FIRST, SECOND, THIRD = (2, 2), (2, 3), (2, 5)


def planned(job: ci.StartPlanning) -> ce.Planned:
    """What the planner makes: of a base one variant over all nodes."""
    if not job.bases:
        return plan_of(job)
    report = {"planner": "auto", SCALED_FROM: [list(FIRST)]}
    return ce.Planned(job.job, (PlannedVariant("auto", artifacts(len(job.cluster.nodes)), report),))


class Story:
    """A wire with two agents, a standby on each, and a client that brings shapes of one model."""

    def __init__(self, both: float = 0.1, alone: float = 0.2, options: PlanOptions = AUTO) -> None:
        self.wire = joined_wire("a", "b", options=options, seconds={BOTH: both, A: alone, B: alone})
        self.wire.plan = planned
        self.options = options

    def message(self, call: int, shape: Shape, wait: bool = False) -> c.PrepareModel:
        return c.PrepareModel(call, MODEL, {"x": shape}, self.options, wait)

    def prepare(self, shape: Shape = FIRST, wait: bool = True) -> Mapping[str, Any]:
        """Ask for a plan; the report on who serves."""
        call = self.wire.call(lambda n: self.message(n, shape, wait))
        return json.loads(self.wire.until_answered(call).report)

    def begin(self, shape: Shape) -> int:
        """Send a request; its call."""
        return self.wire.call(lambda n: c.RunModel(n, plan_key(self.message(n, shape)), 1000.0, (), ()))

    def served(self, shape: Shape, count: int = 1) -> list[tuple[str, ...]]:
        """Send requests one after the other; which nodes took them."""
        self.prepare(shape, wait=False)
        took = []
        for _ in range(count):
            call = self.begin(shape)
            self.wire.deliver_all()
            took += [self.wire.nodes_of(start) for start in self.wire.started.values()]
            self.wire.settle()
            assert isinstance(self.wire.answer(call), c.RunResult)
        assert len(took) == count
        return took

    @property
    def bases(self) -> list[tuple[ci.Base, ...]]:
        """What the jobs so far are made of."""
        return [job.bases for job in self.wire.jobs]

    def plan(self, shape: Shape) -> ServedPlan:
        return self.wire.coordinator.planning.plans[plan_key(self.message(0, shape))]
