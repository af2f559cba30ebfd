"""The planners' processes beside a real coordinator: what happens to them does not happen to requests."""

import threading

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize
from tests.known_agents import known_cluster, planners_of
from tests.waiting import until

pytestmark = pytest.mark.cluster


@pytest.mark.faults
def test_requests_are_answered_while_it_stands_still_and_after_its_death(tmp_path):
    model = str(materialize("tiny"))
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    with known_cluster(2, tmp_path) as cluster:
        session = bbgrap.InferenceSession(model, cluster=cluster.connection, planner="bbgrap")
        (expected,) = session.run(None, {"input": x})
        planner, _ = planners_of(cluster)
        answers, before = [], set(cluster.logs.glob("state/plans/*"))

        def plan_another():
            with bbgrap.connect(cluster.address) as connection:
                there = bbgrap.InferenceSession(model, cluster=connection, options=PlanOptions(split="channels"))
                answers.append(there.run(None, {"input": x})[0])

        planner.suspend()
        thread = threading.Thread(target=plan_another)
        thread.start()
        until(lambda: set(cluster.logs.glob("state/plans/*")) != before)
        for _ in range(20):
            np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)
        planner.kill()
        thread.join()
        assert "its process ended while it planned 'tiny-1.onnx': SIGKILL" in cluster.log("coordinator")
        assert len(answers) == 1
        np.testing.assert_allclose(answers[0], expected, atol=1e-5)
        np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)
        again = bbgrap.InferenceSession(model, cluster=cluster.connection, options=PlanOptions(split="channels"))
        np.testing.assert_allclose(again.run(None, {"input": x})[0], expected, atol=1e-5)
        assert planners_of(cluster)[0] != planner
        coordinator = psutil.Process(cluster.processes["coordinator"].pid)
        assert not [there.path for there in coordinator.memory_maps() if "onnxruntime" in there.path]


@pytest.mark.faults
def test_they_end_with_their_coordinator(tmp_path):
    with known_cluster(0, tmp_path) as cluster:
        killed = planners_of(cluster)
        cluster.kill("coordinator")
        assert psutil.wait_procs(killed, timeout=5)[1] == []
        cluster.start_coordinator()
        stopped = planners_of(cluster)
    assert psutil.wait_procs(stopped, timeout=5)[1] == []
