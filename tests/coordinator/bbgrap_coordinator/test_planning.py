"""Planning in processes of its own: what is found and what goes wrong arrives, whatever the process does."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from bbgrap_coordinator.planner_process import PlannerProcess, PlannerReply, Task
from bbgrap_coordinator.planning import LEAST_LIMIT_S, PLANNER, PlanningQueues, limit_s
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from bbgrap.cluster import Cluster
from bbgrap.control.coordinator_events import PlanFailed, Planned
from bbgrap.control.coordinator_instructions import StartPlanning, StartStandby
from bbgrap.engine.standby import standby_of
from bbgrap.graph.onnx_write import write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.faults import Fault
from bbgrap.transport.confinement import memory_bound
from bbgrap.zoo import materialize
from bbgrap.zoo.builder import Builder
from tests.coordinator.planning_desk import SHAPES, STRANGE, WAIT_S, Desk
from tests.partition import prepare
from tests.waiting import until


def two_nodes_of_one_name():
    value = make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 32, 32])
    nodes = [make_node("Relu", ["input"], ["a"], name="same"), make_node("Relu", ["a"], ["y"], name="same")]
    graph = make_graph(nodes, "net", [value], [make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.fixture(scope="module")
def real_desk(tmp_path_factory):
    with PlanningQueues() as planners:
        yield Desk(planners, tmp_path_factory.mktemp("desk"))


@pytest.fixture
def desk(real_desk):
    yield real_desk
    real_desk.clear()


@pytest.fixture(scope="module")
def strange_desk(tmp_path_factory):
    with PlanningQueues(STRANGE, limit=lambda job: 0.5 if job.job > 1000 else WAIT_S) as planners:
        yield Desk(planners, tmp_path_factory.mktemp("strange"))


@pytest.fixture
def strange(strange_desk):
    yield strange_desk
    strange_desk.clear()


def steady(report):
    """Return a report as JSON has it, without what differs from run to run."""
    return json.loads(json.dumps({key: value for key, value in report.items() if key != "search_s"}))


def assert_same(found, expected):
    assert found.weights.keys() == expected.weights.keys()
    for digest, array in expected.weights.items():
        assert found.weights[digest].dtype == array.dtype
        np.testing.assert_array_equal(found.weights[digest], array)
    assert found == expected  # arrays are not compared by it


def two_convolutions():
    net = Builder("two", SHAPES["input"])
    return write_graph(net.graph(net.conv(net.conv("input", "a", 16, 3), "b", 16, 3)), weights="inline").data


@pytest.mark.timeout(1200)
def test_they_find_what_planning_here_finds(desk, tmp_path):
    # Both searches come to their end, however busy the machine is; the planner's process gives way to all others.
    model = tmp_path / "tiny-1.onnx"
    model.write_bytes(two_convolutions())
    file = desk.keep(model.read_bytes())
    expected = prepare(model, SHAPES, Cluster.even(2), PlanOptions("auto", search_seconds=60))
    desk.plan(7, "auto", file=file, search_seconds=60)
    desk.standby(8, file)
    found = {event.job: event for event in (desk.answer(600), desk.answer(600))}
    assert len(expected) > 1
    for ours, theirs in zip(expected, found[7].variants, strict=True):
        assert_same(theirs.artifacts, ours.artifacts)
        assert theirs.name == ours.name
        assert steady(theirs.report) == steady(ours.report)
    (standby,) = found[8].variants
    assert_same(standby.artifacts, standby_of(model).artifacts)
    assert desk.jobs_on_disk() == [7, 8]
    assert not list(desk.models.directory.glob("model-*"))


def test_weights_are_mapped_not_read(desk):
    desk.standby(1)
    (standby,) = desk.answer().variants
    maps = {there.path for there in psutil.Process().memory_maps()}
    assert str(desk.folders.path(1) / "weights") in maps
    assert not any(array.flags.writeable or array.flags.owndata for array in standby.artifacts.weights.values())


@pytest.mark.parametrize("content", [b"no model", two_nodes_of_one_name()], ids=["no model", "refused by onnxruntime"])
def test_a_fault_of_a_model_names_the_file_as_its_client_knows_it(desk, content):
    desk.plan(1, file=(file := desk.keep(content)))
    desk.standby(2, file=file)
    for said in (desk.answer().reason, desk.answer().reason):
        assert said.startswith("model 'tiny-1.onnx' at the coordinator: ")
        assert str(desk.models.directory) not in said


def test_errors_have_their_kind(desk):
    tight = Cluster(tuple(replace(node, memory_bytes=1) for node in Cluster.even(2).nodes))
    desk.plan(1, cluster=tight)
    desk.plan(2, file=desk.keep(b"no model"))
    first, second = desk.answer(), desk.answer()
    assert isinstance(first, PlanFailed)
    assert (first.job, first.fault) == (1, Fault.PLAN)
    assert "no split" in first.reason
    assert (second.job, second.fault) == (2, Fault.MODEL)
    assert second.reason.startswith("model 'tiny-1.onnx' at the coordinator: it is not an ONNX file")  # and no path of a moment
    assert desk.jobs_on_disk() == []


def test_a_bug_comes_with_its_traceback_in_the_log(desk, caplog):
    desk.planners.submit(StartPlanning(1, (desk.file,), SHAPES, None, PlanOptions()))
    failed = desk.answer()
    assert (failed.fault, "AttributeError" in failed.reason) == (Fault.PLAN, True)
    assert "in prepare_graph\n" in caplog.text


def test_a_job_during_which_somebody_kills_it_is_done_once_more(desk, caplog):
    process = psutil.Process(desk.planners.plans.pid)
    process.suspend()
    desk.plan(1)
    until(lambda: 1 in desk.jobs_on_disk())
    process.kill()
    assert isinstance(desk.answer(), Planned)
    assert "SIGKILL, as when memory runs out; it is tried once more" in caplog.text
    assert desk.jobs_on_disk() == [1]


def test_one_that_is_killed_twice_fails_its_job_and_the_next_one_works(strange):
    strange.plan(1, "sleeps")
    for _ in range(2):
        until((strange.folders.path(1) / "weights").exists)
        (strange.folders.path(1) / "weights").unlink()
        os.kill(strange.planners.plans.pid, signal.SIGKILL)
    failed = strange.answer()
    ended = "planner: its process ended while it planned 'tiny-1.onnx': SIGKILL, as when memory runs out; "
    needs = "on the coordinator's machine planning takes up to one and a half times a model's weights in each of two processes, and "
    assert re.fullmatch(re.escape(ended + needs) + r"[\d,]+ MiB are left here", failed.reason)
    assert strange.jobs_on_disk() == []
    strange.plan(2, "some")
    assert strange.answer().reason == "no such trick: some"


def test_nobody_waits_for_the_end_of_a_process_that_was_cancelled(strange, monkeypatch):
    """The coordinator's thread did, and all requests with it: one with gigabytes to give back takes long to end."""
    ends, may_end, close = threading.Event(), threading.Event(), PlannerProcess.close

    def slowly(process):
        ends.set()
        assert may_end.wait(WAIT_S)
        close(process)

    monkeypatch.setattr(PlannerProcess, "close", slowly)
    strange.plan(1, "sleeps")
    until((strange.folders.path(1) / "weights").exists)
    strange.planners.cancel(1)
    assert ends.wait(WAIT_S)
    coordinator = threading.Thread(target=strange.plan, args=(2, "some"), daemon=True)
    coordinator.start()
    coordinator.join(WAIT_S / 2)  # the end of the other one is waited for longer
    is_free = not coordinator.is_alive()
    may_end.set()
    assert is_free
    assert strange.answer().job == 2


def test_one_that_died_while_nobody_wanted_anything_is_started_anew(desk):
    pid = desk.planners.standbys.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # all of its threads: the first may be a zombie before the others have ended
    desk.standby(1)
    assert isinstance(desk.answer(), Planned)


def test_a_standby_waits_for_no_plan(desk):
    psutil.Process(desk.planners.plans.pid).suspend()
    desk.plan(1)
    desk.standby(2)
    assert desk.answer().job == 2


def test_jobs_run_in_order(desk):
    for job in (5, 3, 9, 1):
        desk.plan(job)
    assert [desk.answer().job for _ in range(4)] == [5, 3, 9, 1]


def test_clients_take_turns(strange):
    """One with 200 tiny models held back what another one waited for, for a minute."""
    strange.plan(1, "sleeps", client=b"many")
    until((strange.folders.path(1) / "weights").exists)
    for job, client in ((2, b"many"), (3, b"many"), (4, b"many"), (5, b"one"), (6, b"other"), (7, b"one"), (8, b"many")):
        strange.plan(job, "some", client=client)
    strange.planners.cancel(1)
    assert [strange.answer().job for _ in range(7)] == [5, 6, 2, 7, 3, 4, 8]


def test_what_is_cancelled_ends_with_its_process_and_its_folder_and_has_no_answer(strange):
    strange.plan(1, "sleeps")
    strange.plan(2, "sleeps")
    strange.plan(3, "some")
    until((strange.folders.path(1) / "weights").exists)
    before = strange.planners.plans.pid
    strange.planners.cancel(2)  # it waits
    strange.planners.cancel(1)  # it runs
    strange.planners.cancel(1)
    assert strange.answer().job == 3
    assert strange.answers.empty()
    assert strange.jobs_on_disk() == []
    assert strange.planners.plans.pid != before
    assert not psutil.pid_exists(before)


def test_it_reads_models_in_confinement(desk):
    desk.standby(1)
    assert isinstance(desk.answer(), Planned)
    pid = desk.planners.standbys.pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert psutil.Process(pid).rlimit(psutil.RLIMIT_DATA)[1] == memory_bound()
    assert b"BBGRAP_" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_folders_that_were_removed_and_made_anew_are_where_it_works(tmp_path):
    """Somebody empties the state directory of a coordinator that runs: no new model was planned until it was started anew."""
    with PlanningQueues() as planners:
        desk = Desk(planners, tmp_path)
        desk.standby(1)
        assert isinstance(desk.answer(), Planned)
        for folder in (desk.models.directory, desk.folders.directory):
            shutil.rmtree(folder)
        desk.models.directory.mkdir()
        desk.file = desk.keep(materialize("tiny").read_bytes())
        desk.standby(2)
        assert isinstance(desk.answer(), Planned)
        pid = planners.standbys.pid
        desk.standby(3)
        assert isinstance(desk.answer(), Planned)
        assert planners.standbys.pid == pid


@pytest.mark.parametrize("kind", ["plans", "standbys"])
def test_one_whose_own_folder_was_removed_is_replaced(desk, kind):
    """As by who tidies up what is old in /tmp: no model was planned after that until the coordinator was started anew."""
    ask = desk.plan if kind == "plans" else desk.standby
    ask(1)
    assert isinstance(desk.answer(), Planned)
    shutil.rmtree(getattr(desk.planners, kind)._child.scratch.name)
    ask(2)
    assert isinstance(desk.answer(), Planned)


def test_one_that_somebody_has_stopped_is_ended_and_its_job_done_by_another(desk, caplog):
    """A new model failed at its deadline, a minute later with a longer one."""
    desk.standby(1)
    assert isinstance(desk.answer(), Planned)
    stopped = desk.planners.standbys.pid
    os.kill(stopped, signal.SIGSTOP)
    desk.standby(2)
    assert isinstance(desk.answer(30), Planned)
    assert desk.planners.standbys.pid != stopped
    assert f"process {stopped} was stopped" in caplog.text


def test_what_is_late_is_ended(strange):
    strange.plan(1001, "sleeps")
    failed = strange.answer()
    assert (failed.job, failed.fault) == (1001, Fault.EXECUTION)
    had = r"'tiny-1.onnx' was not planned within 0.5 s, in which it had 0\.\d s of a processor"  # it is nice: beside others, that is why
    assert re.fullmatch(f"planner: {had}; end other programs here, or give it less to search", failed.reason)
    assert strange.jobs_on_disk() == []
    strange.plan(1, "some")
    assert strange.answer().reason == "no such trick: some"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_what_waits_for_a_processor_is_not_late(strange):
    """Beside busy programs GPT-2 was not planned within 174 s, in which it had a few of a processor."""
    cpu = min(os.sched_getaffinity(0))
    planner = psutil.Process(strange.planners.plans.pid)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        for process in (planner, *(psutil.Process(other.pid) for other in others)):
            process.cpu_affinity([cpu])
        began = time.monotonic()
        strange.plan(1001, "computes")
        assert strange.answer().reason == "it has computed"
        assert time.monotonic() - began > 0.6, "the others were not busy"
    finally:
        for other in others:
            other.kill()
            other.wait()
        planner.cpu_affinity([])


def test_how_long_jobs_may_take():
    for files in ((), (ModelFile("m", "0" * 64, 10 << 30), ModelFile("n", "1" * 64, 10 << 30))):
        size_s = len(files) * 512
        assert limit_s(StartStandby(1, files)) == LEAST_LIMIT_S + size_s
        assert limit_s(StartPlanning(1, files, SHAPES, Cluster.even(1), PlanOptions(search_seconds=20))) == LEAST_LIMIT_S + 180 + size_s


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("exits", "status 7"),
        ("says nothing understandable", "its answer of 6 bytes is none"),
        pytest.param("says a fault that does not exist", "its answer of 16 bytes is none", marks=pytest.mark.faults),
        pytest.param("says a fault that is not its own", "bytes is none", marks=pytest.mark.faults),
        ("says too much", "SIGKILL"),
        ("leaves a plan for other devices", "for 2 devices"),
        ("leaves nothing", "cannot be used"),
        pytest.param("leaves no variants", "there are no variants", marks=pytest.mark.faults),
        pytest.param("leaves a folder", "cannot be used", marks=pytest.mark.faults),
        ("leaves a pipe", "no plain file"),
        pytest.param("leaves a link", "cannot be used", marks=pytest.mark.faults),
    ],
)
def test_what_it_says_is_not_believed(strange, what, words):
    strange.plan(1, what)
    failed = strange.answer()
    assert isinstance(failed, PlanFailed)
    assert failed.fault is (Fault.PLAN if what.startswith("leaves") else Fault.EXECUTION)
    assert words in failed.reason
    assert strange.jobs_on_disk() == []
    strange.plan(2, "some")
    assert strange.answer().reason == "no such trick: some"


def test_its_words_are_short_and_printable(strange):
    strange.plan(1, "says control characters")
    reason = strange.answer().reason
    assert reason.startswith("a\ufffd[2Jb")
    assert len(reason) < 5000


def test_they_end_when_they_are_closed_whatever_they_do(tmp_path):
    with PlanningQueues(STRANGE) as planners:
        desk = Desk(planners, tmp_path)
        desk.plan(1, "sleeps")
        until((desk.folders.path(1) / "weights").exists)
        pids = planners.plans.pid, planners.standbys.pid
    assert not any(map(psutil.pid_exists, pids))
    assert desk.answers.empty()


def test_folders_of_those_whose_coordinators_were_killed_go_when_the_next_one_starts(tmp_path, monkeypatch):
    """Each of them was left for ever, empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, children = tmp_path / "models" / "tiny" / "model.onnx", list[PlannerProcess]()
    model.parent.mkdir(parents=True)
    model.write_bytes(materialize("tiny").read_bytes())
    try:
        for number in range(3):
            children.append(PlannerProcess.start(PLANNER, "plans"))
            if number < 2:
                (folder := tmp_path / "plans" / str(number)).mkdir(parents=True)
                assert children[-1].ask(Task(model, {}, folder, None), WAIT_S) == PlannerReply()
                os.utime(children[-1].scratch.name, (0, 0))
            if number == 0:
                children[0].channel.close()  # as the system does when a coordinator dies
                children[0].process.wait(WAIT_S)
                with suppress(FileNotFoundError):  # where it is not confined, it has removed its own
                    os.utime(children[0].scratch.name, (0, 0))
        assert [Path(child.scratch.name).exists() for child in children] == [False, True, True]
    finally:
        for child in children:
            child.process.kill()
            child.close()


@pytest.mark.parametrize("first", ["stdin", "channel"])
def test_one_whose_coordinator_is_killed_leaves_no_files(tmp_path, first):
    """Both end with a coordinator; which of them is seen first is chance."""
    model, folder = tmp_path / "models" / "tiny" / "model.onnx", tmp_path / "plans" / "1"
    for path in (model.parent, folder):
        path.mkdir(parents=True)
    model.write_bytes(materialize("tiny").read_bytes())
    child = PlannerProcess.start(PLANNER, "plans")
    try:
        assert child.ask(Task(model, {}, folder, None), WAIT_S) == PlannerReply()
        scratch = Path(child.scratch.name)
        (scratch / "folder").mkdir()
        (scratch / "folder" / "weights").write_bytes(bytes(1000))
        (child.channel if first == "channel" else child.process.stdin).close()  # as the system does when a coordinator dies
        child.process.wait(WAIT_S)
        assert not list(scratch.glob("*"))
    finally:
        child.process.kill()
        child.close()
