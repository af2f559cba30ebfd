"""A disk without room, for the coordinator or its planners: a reason to come again, and never the end of a process."""

import errno
import os

import pytest
from bbgrap_coordinator import models, planner_process
from bbgrap_coordinator.artifacts import ArtifactFolders
from bbgrap_coordinator.planner import _reply
from bbgrap_coordinator.planner_process import PlannerReply, Task
from bbgrap_coordinator.planning import PlanningQueues

from bbgrap.protocol.faults import Fault
from tests.coordinator.planning_desk import STRANGE, Desk


@pytest.fixture(scope="module")
def strange_desk(tmp_path_factory):
    with PlanningQueues(STRANGE) as planners:
        yield Desk(planners, tmp_path_factory.mktemp("strange"))


@pytest.fixture
def strange(strange_desk):
    yield strange_desk
    strange_desk.clear()


@pytest.mark.parametrize(("number", "fault"), [(errno.ENOSPC, Fault.BUSY), (errno.EDQUOT, Fault.BUSY), (errno.EACCES, Fault.PLAN)])
def test_a_full_disk_is_a_reason_to_come_again(number, fault, tmp_path):
    """A campaign's: requests with a deadline of 30 s failed since the disk had been full for five."""

    class Full:
        def make(self, task):
            raise OSError(number, os.strerror(number))

    reply = PlannerReply.of(_reply(Task(tmp_path, {}, tmp_path, None), Full()).to_bytes())
    assert (reply.fault, reply.text) == (fault.value, f"planner: the coordinator cannot keep what was planned: {os.strerror(number)}")


def test_a_planner_whose_disk_is_full_goes_on(strange):
    strange.plan(1, "some")
    assert strange.answer().fault is Fault.MODEL
    before = strange.planners.plans.pid
    strange.plan(2, "says that the disk is full")
    failed = strange.answer()
    assert (failed.fault, failed.reason) == (Fault.BUSY, "the disk is full")
    assert strange.planners.plans.pid == before


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("owner", "what"), [(ArtifactFolders, "make"), (models, "TemporaryDirectory")], ids=["plans", "models"])
def test_a_full_disk_of_the_coordinator_itself_is_a_reason_to_come_again(strange, monkeypatch, owner, what):
    monkeypatch.setattr(owner, what, full)
    strange.plan(1, "some")
    assert strange.answer().fault is Fault.BUSY
    monkeypatch.undo()
    strange.plan(2, "some")
    assert strange.answer().reason == "no such trick: some"


def test_without_room_for_temporary_files_they_are_started_for_the_next_job(tmp_path, monkeypatch, caplog):
    """A coordinator on a full disk did not start: its planners' files had no place."""

    def none(*args, **kwargs):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(planner_process.tempfile, "TemporaryDirectory", none)
        with PlanningQueues(STRANGE) as planners:
            desk = Desk(planners, tmp_path)
            assert "no process for standbys could be started yet: No usable temporary directory" in caplog.text
            desk.plan(1, "some")
            failed = desk.answer()
            assert (failed.fault, "set TMPDIR to a folder" in failed.reason) == (Fault.BUSY, True)
            full_disk.undo()
            desk.plan(2, "some")
            assert desk.answer().fault is Fault.MODEL
