"""Which variants go on agents that have as many as they may have."""

import pytest

from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.plans import IN_USE_S
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.wire import MODEL, joined_wire


def prepare(wire, top, planner):
    """Prepare the model with so many largest elements, which are a plan and a standby of their own; returns who serves."""
    options = PlanOptions(planner=planner, top=(("y", top),))
    call = wire.call(lambda number: c.PrepareModel(number, MODEL, {"x": (2, 2)}, options))
    wire.until_answered(call)
    answer = wire.answer(call)
    assert isinstance(answer, c.ModelPrepared)
    return answer


@pytest.mark.parametrize("planner", ["widest", "auto"])
@pytest.mark.parametrize("tops", [2, 3])
def test_plans_in_use_stay_while_standbys_are_idle(planner, tops):
    wire = joined_wire("a", "b")
    for top in range(10, 11 + MAX_LOADED):
        prepare(wire, top, planner)
    wire.wait(1.5 * IN_USE_S)
    first = {top: prepare(wire, top, planner).epoch for top in range(1, 1 + tops)}
    for _ in range(4):
        wire.wait(1.0)
        assert {top: prepare(wire, top, planner).epoch for top in range(1, 1 + tops)} == first
