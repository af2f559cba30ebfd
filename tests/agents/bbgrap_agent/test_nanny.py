"""A real agent whose worker is killed, crashes, hangs or stops: the agent goes on, and says what happened."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from bbgrap_agent.machine_probe import BUDGET_S

from bbgrap.graph.weights import digest_of
from bbgrap.protocol import messages as m
from tests.agents.bare import HOST, adding, bare_coordinator, crashing, dividing, endless, gone, looking_up, stuck
from tests.waiting import until

pytestmark = pytest.mark.cluster
EPOCH, NEXT = 1 << 32 | 1, 1 << 32 | 2


@pytest.fixture
def coordinator(tmp_path):
    with bare_coordinator(tmp_path) as bare:
        yield bare


@pytest.fixture
def agent(coordinator):
    return coordinator.start("--name", "a")


def test_a_killed_worker_is_replaced_and_serves_what_it_served(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, adding(), address)
    coordinator.ask(address, EPOCH, 1, (1, 2))
    assert coordinator.answer(1) == [1, 3]
    assert coordinator.beat(lambda beat: beat.steps > 0).used_bytes > 10 << 20
    worker = coordinator.worker_of(agent)
    worker.kill()
    assert coordinator.next(m.WorkerLost) == m.WorkerLost("the worker was ended by SIGKILL", 0, 0, ended_by=m.EndedBy.OUTSIDE)
    assert coordinator.next(m.Deployed).epoch == EPOCH
    coordinator.plane.disconnect(address)
    coordinator.ask(address, EPOCH, 2, (3, 4))
    assert coordinator.answer(2) == [3, 5]
    assert coordinator.worker_of(agent).pid != worker.pid
    assert not any(isinstance(message, m.Join | m.WeightsMissing) for message in coordinator.heard)


@pytest.mark.faults
def test_a_model_that_crashes_while_it_is_loaded_is_not_loaded_again(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, adding(), address)
    coordinator.deploy(NEXT, crashing(), address)
    lost = coordinator.next(m.WorkerLost)
    assert lost == m.WorkerLost(f"the worker was ended by SIGFPE while loading epoch {NEXT}", 0, 0, ended_by=m.EndedBy.CRASH, loading=NEXT)
    assert coordinator.next(m.DeploymentFailed) == m.DeploymentFailed(NEXT, lost.reason)
    assert coordinator.next(m.Deployed).epoch == EPOCH
    coordinator.ask(address, EPOCH, 2, (3, 4))
    assert coordinator.answer(2) == [3, 5]
    assert agent.poll() is None


def test_a_model_that_crashes_at_a_request_names_it(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, dividing(), address)
    coordinator.ask(address, EPOCH, 5, (1, -1))
    reason = f"the worker was ended by SIGFPE while computing request 5 of epoch {EPOCH}"
    assert coordinator.next(m.WorkerLost) == m.WorkerLost(reason, EPOCH, 5, ended_by=m.EndedBy.CRASH)
    assert coordinator.next(m.Deployed).epoch == EPOCH


@pytest.mark.faults
def test_a_weight_whose_file_is_cut_short_under_a_running_worker_is_sent_again(coordinator, agent):
    table = np.arange(1 << 16, dtype=np.float32)
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, looking_up(table), address, table)
    os.truncate(coordinator.folder / "cache" / f"{digest_of(table)}.npy", 5000)
    coordinator.deploy(NEXT, looking_up(table, twice=True), address)
    assert coordinator.next(m.WeightsMissing) == m.WeightsMissing(NEXT, (digest_of(table),))
    coordinator.give((digest_of(table),), table)
    coordinator.loaded(NEXT)
    for epoch, answer in ((EPOCH, [60_000, 9]), (NEXT, [120_000, 18])):
        coordinator.ask(address, epoch, epoch, (60_000, 9))
        assert coordinator.answer(epoch) == answer
    assert not any(isinstance(message, m.WorkerLost) for message in coordinator.heard)


@pytest.mark.faults
def test_a_worker_that_ends_by_a_damaged_file_goes_on_without_it_and_no_model_is_blamed(coordinator, agent):
    table = np.arange(1 << 16, dtype=np.float32)
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, looking_up(table), address, table)
    file = coordinator.folder / "cache" / f"{digest_of(table)}.npy"
    for request in range(3):
        os.truncate(file, 5000)
        # As the system does where a page of the file is read that is gone: while weights are copied, some milliseconds of a load.
        coordinator.worker_of(agent).send_signal(signal.SIGBUS)
        reason = f"damaged in its weights cache, and loaded anew: '{file.name}': it has 5000 bytes, expected {128 + table.nbytes}"
        assert coordinator.next(m.WorkerLost) == m.WorkerLost(f"the worker was ended by SIGBUS; {reason}", 0, 0, ended_by=m.EndedBy.OUTSIDE)
        coordinator.loaded(EPOCH, table)
        coordinator.plane.disconnect(address)
        coordinator.ask(address, EPOCH, request, (60_000, 0))
        assert coordinator.answer(request) == [60_000, 0]
    coordinator.worker_of(agent).send_signal(signal.SIGBUS)
    assert coordinator.next(m.WorkerLost) == m.WorkerLost("the worker was ended by SIGBUS", 0, 0, ended_by=m.EndedBy.CRASH)


@pytest.mark.faults
def test_a_kernel_ends_once_nobody_waits_and_its_worker_goes_on(coordinator, agent):
    """onnxruntime looks between two operators; a worker that was ended instead has to load again what it had."""
    address = coordinator.join().data_address
    worker = coordinator.worker_of(agent).pid
    coordinator.deployed(EPOCH, endless(above=100), address)
    coordinator.ask(address, EPOCH, 7, (101, 0))
    coordinator.beat(lambda beat: beat.seconds > 1.0)
    coordinator.say(m.Abandon(EPOCH, 7, 60.0))
    coordinator.ask(address, EPOCH, 8, (1, 0))
    assert coordinator.answer(8) == [1, 0]
    assert coordinator.worker_of(agent).pid == worker
    coordinator.beat(lambda beat: beat.request == 0)
    assert not any(isinstance(message, m.WorkerLost | m.RequestFailed) for message in coordinator.heard)


@pytest.mark.faults
def test_an_operator_that_does_not_end_ends_its_worker_once_nobody_waits(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, stuck(above=100), address)
    coordinator.ask(address, EPOCH, 6, (1, 0))
    assert coordinator.answer(6) == [1, 0]
    coordinator.ask(address, EPOCH, 7, (101, 0))
    beat = coordinator.beat(lambda beat: beat.seconds > 1.0)
    assert (beat.epoch, beat.request) == (EPOCH, 7)
    assert not any(isinstance(message, m.WorkerLost) for message in coordinator.heard)
    coordinator.say(m.Abandon(EPOCH, 7, 0.5))
    lost = coordinator.next(m.WorkerLost)
    assert (lost.epoch, lost.request, lost.ended_by) == (EPOCH, 7, m.EndedBy.NANNY)
    assert "ended by its nanny: a kernel of request 7 did not end within its deadline" in lost.reason
    assert coordinator.next(m.Deployed).epoch == EPOCH
    assert coordinator.beat(lambda beat: True).request == 0


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="elsewhere nobody sees the environment of another process")
def test_a_worker_that_is_taken_over_finds_no_token(coordinator, monkeypatch):
    """It had what its agent had: with a token it could let any node join."""
    monkeypatch.setenv("BBGRAP_TOKEN", "a secret")
    monkeypatch.setenv("BBGRAP_LOG_FORMAT", "text")
    worker = coordinator.worker_of(coordinator.start("--name", "a"))
    until(lambda: "BBGRAP_LOG_FORMAT" in worker.environ())  # not yet, while it is between fork and exec
    assert "BBGRAP_TOKEN" not in worker.environ()


def test_a_worker_does_not_outlive_its_nanny(coordinator, agent):
    coordinator.join()
    worker = coordinator.worker_of(agent)
    agent.kill()
    assert gone(worker.pid, 1.0)


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="only Linux chooses whom to end")
def test_where_memory_runs_out_the_worker_goes_before_its_nanny(coordinator, agent):
    worker = coordinator.worker_of(agent)
    until(lambda: score_of(worker.pid) > score_of(agent.pid))  # it says so when it begins


def score_of(pid):
    """How likely the system ends a process when memory runs out."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.faults
def test_a_busy_worker_does_not_outlive_its_nanny(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, endless(above=100), address)
    coordinator.ask(address, EPOCH, 7, (101, 0))
    coordinator.beat(lambda beat: beat.request == 7)
    worker = coordinator.worker_of(agent)
    agent.kill()
    assert gone(worker.pid, 1.0)


@pytest.mark.faults
def test_a_stopped_worker_lets_nobody_take_its_agent_for_alive(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, adding(), address)
    worker = coordinator.worker_of(agent)
    worker.send_signal(signal.SIGSTOP)
    try:
        assert coordinator.silent_for(1.5)
        assert not any(isinstance(message, m.Join) for message in coordinator.heard)
    finally:
        worker.send_signal(signal.SIGCONT)
    coordinator.beat(lambda beat: True)
    coordinator.ask(address, EPOCH, 2, (3, 4))
    assert coordinator.answer(2) == [3, 5]
    assert coordinator.worker_of(agent).pid == worker.pid


@pytest.mark.faults
def test_a_coordinator_that_comes_back_finds_what_it_keeps(coordinator, agent):
    address = coordinator.join(1).data_address
    coordinator.deployed(EPOCH, adding(), address)
    coordinator.deployed(NEXT, adding(), address)
    coordinator.say(m.Rejoin())
    assert coordinator.next(m.Join).holds == (EPOCH, NEXT)
    coordinator.welcome(2, keep=(NEXT,))
    coordinator.ask(address, NEXT, 3, (3, 4))
    assert coordinator.answer(3) == [3, 5]
    coordinator.listen(0.3)
    coordinator.heard.clear()
    coordinator.say(m.Rejoin())
    assert coordinator.next(m.Join).holds == (NEXT,)


@pytest.mark.faults
def test_links_are_tried(coordinator, agent):
    join = coordinator.join()
    silent = m.Peer(3, "nobody", "tcp://127.0.0.1:9")
    coordinator.say(m.TryLinks(8, (m.Peer(HOST, "itself", join.data_address), silent)))
    # It does not answer itself unless it may.
    assert coordinator.next(m.LinksTried) == m.LinksTried(8, (HOST, 3))
    coordinator.say(m.AnswerPings((m.Peer(HOST, "itself", join.data_address),)))
    coordinator.say(m.TryLinks(9, (m.Peer(HOST, "itself", join.data_address), silent)))
    assert coordinator.next(m.LinksTried) == m.LinksTried(9, (3,))


@pytest.mark.faults
def test_a_deployment_is_ready_when_its_peers_have_answered(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.say(m.AnswerPings((m.Peer(HOST, "host", coordinator.plane.address),)))
    coordinator.deploy(EPOCH, dividing(), address)
    failed = coordinator.next(m.DeploymentFailed)
    assert (failed.epoch, failed.unreachable) == (EPOCH, (HOST,))
    assert failed.reason.startswith(f"no answer on the data plane from 'host' at {coordinator.plane.address};")
    coordinator.answers_pings(address)
    coordinator.deploy(NEXT, dividing(), address)
    coordinator.next(m.Deployed, lambda deployed: deployed.epoch == NEXT)


def test_a_link_that_breaks_is_told(coordinator, agent):
    address = coordinator.join().data_address
    coordinator.deployed(EPOCH, adding(), address)
    coordinator.ask(address, EPOCH, 1, (1, 2))
    assert coordinator.answer(1) == [1, 3]
    gone = coordinator.plane.address
    coordinator.new_plane()
    assert coordinator.next(m.LinkBroken).address == gone


def test_an_agent_that_is_told_to_stop_takes_its_worker_along(coordinator, agent):
    coordinator.join()
    coordinator.beat(lambda beat: True)
    worker = coordinator.worker_of(agent)
    os.killpg(agent.pid, signal.SIGINT)  # as a terminal does
    assert coordinator.next(m.Leave) == m.Leave("SIGINT")
    assert agent.wait(20) == 0
    assert not psutil.pid_exists(worker.pid)
    assert "Traceback" not in coordinator.log()


@pytest.mark.faults
def test_agents_without_a_name_have_their_machines(coordinator):
    names = set()
    for number in range(2):
        coordinator.start()
        names.add(coordinator.next(m.Join, lambda join: join.name not in names).name)
        coordinator.say(m.Welcome(number + 1, 0.5, 5.0))
    host = os.uname().nodename
    assert names == {host, f"{host}-2"}
    coordinator.processes[0].kill()
    coordinator.processes[0].wait()
    coordinator.listen(0.2)
    coordinator.heard.clear()
    coordinator.start()
    assert coordinator.next(m.Join, lambda join: join.name == host).name == host


def test_the_main_process_is_light(coordinator, agent):
    coordinator.join()
    libraries = {Path(mapped.path).name for mapped in psutil.Process(agent.pid).memory_maps()}
    assert not any(name.startswith("onnx") for name in libraries)
    assert any(name.startswith("onnxruntime") for name in (Path(mapped.path).name for mapped in coordinator.worker_of(agent).memory_maps()))
    assert psutil.Process(agent.pid).memory_info().rss < 80 << 20


@pytest.mark.faults
def test_an_agent_whose_worker_can_never_start_says_so_and_ends(coordinator, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('broken on purpose')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    agent = coordinator.start("--name", "a")
    deadline = time.monotonic() + 60
    while agent.poll() is None and time.monotonic() < deadline:
        coordinator.listen(0.1)
    assert agent.wait(1) == 1
    assert "broken on purpose" in coordinator.log()
    assert (
        coordinator.log().splitlines()[-1].startswith("bbgrap-agent: the worker cannot be started: 3 of them ended before they were ready")
    )


@pytest.mark.faults
def test_measuring_ends_when_something_else_is_to_be_done(coordinator, agent):
    """A model that was brought meanwhile had half of the processor for as long as measuring took."""
    coordinator.join()
    for number in (1, 2):
        coordinator.say(m.Measure(number))
    coordinator.listen(1.0)
    began = time.monotonic()
    for number in (2, 1):
        coordinator.say(m.EndMeasuring(number))
    ended = [coordinator.next(m.Measured) for _ in range(2)]
    assert [(each.measurement, each.profile) for each in ended] == [(1, None), (2, None)]
    assert all("broken off" in each.reason for each in ended)
    assert time.monotonic() - began < BUDGET_S - 1.0
