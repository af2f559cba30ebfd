"""Plans that another version has made, before an upgrade or after one was taken back."""

import pytest
from bbgrap_coordinator.planner_process import PlannerProcess
from bbgrap_coordinator.state_database import StateDatabase

from bbgrap import own_code
from bbgrap.cluster.types import NodeProfile
from bbgrap.errors import ExecutionError
from tests.coordinator.crashing import DIGEST, FILE
from tests.coordinator.made import plan


def jobs(home, maker, save=0):
    """What plans a coordinator finds; it saves one more, and others' kinds of things."""
    state = StateDatabase(home, maker=maker)
    try:
        if save:
            state.save_plan(plan(save), DIGEST)
            state.save_model(DIGEST, (FILE,))
            state.save_profile(NodeProfile("a"), by_hand=False)
        return [plan.job for plan, _ in state.plans()], len(state.models({DIGEST: 5})), len(state.profiles(by_hand=False))
    finally:
        state.close()


def test_plans_of_another_version_are_made_again_and_all_else_is_kept(tmp_path, caplog):
    caplog.set_level("INFO")
    assert jobs(tmp_path, "1", save=1) == ([1], 1, 1)
    assert jobs(tmp_path, "1") == ([1], 1, 1)
    assert not caplog.records
    assert jobs(tmp_path, "2") == ([], 1, 1)
    assert [record.message for record in caplog.records] == [
        "plans of another version of bbgrap or onnxruntime are made again when they are asked for: 1"
    ]
    assert jobs(tmp_path, "2", save=2) == ([2], 1, 1)
    assert jobs(tmp_path, "1") == ([], 1, 1)


def test_a_version_that_tells_nobody_who_it_is_makes_plans_of_another_version(tmp_path):
    """Those before this was kept count starts, and no more."""
    jobs(tmp_path, "2", save=2)
    state = StateDatabase(tmp_path, maker="2")
    state.set_number("incarnation", state.incarnation + 1)
    state.save_plan(plan(3), DIGEST)
    state.close()
    assert jobs(tmp_path, "2") == ([], 1, 1)


def test_a_coordinator_whose_code_was_replaced_plans_nothing_new(monkeypatch):
    own_code.own_code()
    monkeypatch.setattr(own_code, "PACKAGES", ("bbgrap_agent",))
    with pytest.raises(ExecutionError, match="nothing new can be planned: another version of bbgrap was installed while this process ran"):
        PlannerProcess.start(["-m", "bbgrap_coordinator.planner"], "plans")
