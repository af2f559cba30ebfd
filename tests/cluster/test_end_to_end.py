"""What a user sees of a cluster, with real processes."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

import bbgrap
from tests.cluster import tiny
from tests.cluster.conftest import local_cluster

pytestmark = pytest.mark.cluster

IMPATIENT = "from bbgrap_agent import enrolment; enrolment.REFUSED_S = 0; from bbgrap_agent.main import run; run()"
"""An agent that asks for a name that is taken for no longer than it must."""


def rows(count, seed=0):
    return np.random.default_rng(seed).random((count, 4), dtype=np.float32)


def test_two_agents_answer_like_one_machine(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    x = rows(8)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, tiny.expected(x))
    assert session.plan.agents == ("agent0", "agent1")
    assert session.get_providers()[0] == "BBGrapExecutionProvider"
    (arg,) = session.get_inputs()
    assert (arg.name, arg.type, arg.shape) == ("x", "tensor(float)", ["rows", 4])


def test_weights_may_lie_in_folders(shared, tmp_path):
    """As onnxruntime runs them, by plan and by standby."""
    path, x = tmp_path / "folders.onnx", rows(8)
    (tmp_path / "w").mkdir()
    model = onnx.load_from_string(tiny.model_bytes())
    onnx.save_model(model, path, save_as_external_data=True, location="w/weights.bin", size_threshold=0)
    for planner in ("bbgrap", None):
        session = bbgrap.InferenceSession(path, cluster=shared.connection, planner=planner)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], tiny.expected(x))


def test_sixteen_requests_in_flight_keep_their_identity(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    inputs = [rows(8, seed) for seed in range(160)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda x: session.run(["y"], {"x": x})[0], inputs))
    for x, y in zip(inputs, answers, strict=True):
        np.testing.assert_array_equal(y, tiny.expected(x))


def test_run_async_calls_back(shared, capfd):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    came, done = [], threading.Event()

    def callback(results, user_data, error):
        came.append((results, user_data, error))
        done.set()

    x = rows(8)
    session.run_async(None, {"x": x}, callback, "mine")
    assert done.wait(10)
    ((results, user_data, error),) = came
    np.testing.assert_array_equal(results[0], tiny.expected(x))
    assert (user_data, error) == ("mine", "")
    done.clear()
    session.run_async(None, {"x": x}, lambda *answer: callback(*answer) or 1 / 0, "mine")
    assert done.wait(10)
    session._pool.shutdown()
    assert "ZeroDivisionError: division by zero" in capfd.readouterr().err, "nobody else would learn of it"


def test_run_async_runs_what_was_given_when_it_was_called(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session._pool, busy = ThreadPoolExecutor(1), threading.Event()
    session._pool.submit(busy.wait)
    feed, names, came = {}, ["y"], {}
    for count in (8, 9):
        feed["x"] = rows(count)
        session.run_async(names, feed, lambda results, user_data, error: came.update({user_data: (results, error)}), count)
    feed.clear()
    names[0] = "no such output"
    busy.set()
    session._pool.shutdown()
    for count in (8, 9):
        (y,), error = came[count]
        assert error == ""
        np.testing.assert_array_equal(y, tiny.expected(rows(count)))


def test_every_input_shape_gets_a_plan_of_its_own(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    for count in (8, 9, 30, 8):
        (y,) = session.run(None, {"x": rows(count)})
        np.testing.assert_array_equal(y, tiny.expected(rows(count)))


def test_planner_errors_reach_the_client(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    with pytest.raises(bbgrap.PlanError, match="1 rows cannot be split over 2 nodes"):
        session.run(None, {"x": rows(1)})


def test_kernel_error_fails_the_request_with_its_name_and_nothing_else(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session.run(None, {"x": rows(8)})
    with pytest.raises(bbgrap.ExecutionError, match=r"agent 'agent\d': segment 'first\d': .*poisoned_gather"):
        session.run(None, {"x": rows(8) + 5000})
    (y,) = session.run(None, {"x": rows(8)})
    np.testing.assert_array_equal(y, tiny.expected(rows(8)))


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"z": rows(8)}, "inputs: expected 'x' float\\[rows, 4\\], got 'z'"),
        ({}, "got none"),
        ({"x": rows(8).astype(np.float64)}, "expected float\\[rows, 4\\], got float64\\[8, 4\\]"),
        ({"x": rows(8)[:, :3]}, "got float32\\[8, 3\\]"),
        ({"x": rows(8)[0]}, "got float32\\[4\\]"),
    ],
)
def test_a_wrong_feed_fails_before_anything_is_sent(shared, feed, message):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    with pytest.raises(bbgrap.InputError, match=message):
        session.run(None, feed)


def test_unknown_output_and_options_are_refused(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    with pytest.raises(bbgrap.InputError, match="output 'q': the model has y"):
        session.run(["q"], {"x": rows(8)})
    with pytest.raises(bbgrap.UsageError, match="split: expected one of"):
        bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, split="diagonal")


def test_deadline_fails_the_request(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, deadline_s=0.0)

    def run_many():
        for _ in range(10_000):
            session.run(None, {"x": rows(8)})

    with pytest.raises(bbgrap.ExecutionError, match=r"request \d+: its deadline of 0 s passed"):
        run_many()


def test_nobody_there_is_told_within_three_seconds():
    began = time.monotonic()
    with pytest.raises(bbgrap.ClusterUnavailableError, match=r"no coordinator answers at tcp://127\.0\.0\.1:9") as caught:
        bbgrap.connect("tcp://127.0.0.1:9", timeout=1)
    assert caught.value.exit_code == 3
    assert time.monotonic() - began < 2


def test_port_in_use_is_one_line(shared):
    command = [sys.executable, "-m", "bbgrap_coordinator.main", "--bind", shared.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"bbgrap-coordinator: address {shared.address} is in use")
    assert "Traceback" not in done.stderr


@pytest.mark.faults
def test_duplicate_name_is_refused(tmp_path):
    # a cluster of its own: where the first is silent for a moment, on a machine that is far too busy, the other one gets its name
    with local_cluster(1, tmp_path) as cluster:
        command = [sys.executable, "-c", IMPATIENT, "--join", cluster.address, "--name", "agent0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert {node.name for node in cluster.connection.nodes()} == {"agent0"}
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == ("bbgrap-agent: the name 'agent0' is taken by a live agent; choose another with --name")


@pytest.mark.parametrize("name", ["agent0", "coordinator", "sub/agent9"])
def test_a_new_agent_has_a_name_of_its_own(shared, name):
    before = dict(shared.processes)
    with pytest.raises(bbgrap.UsageError, match=f"expected the name of a new agent, got '{name}'; there are .*agent0"):
        shared.add_agent(name)
    assert shared.processes == before


def test_idle_processes_burn_nothing(shared):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session.run(None, {"x": rows(8)})
    time.sleep(0.2)
    import psutil

    processes = [psutil.Process(process.pid) for process in shared.processes.values()]
    before = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(1)
    burnt = [sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True)]
    assert max(burnt) < 0.1
