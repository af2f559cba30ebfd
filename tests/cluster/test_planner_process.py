"""The planner's process beside a real coordinator: what happens to it does not happen to requests."""

import threading
import time

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize

pytestmark = pytest.mark.cluster


def planner_of(cluster):
    (child,) = psutil.Process(cluster.processes["coordinator"].pid).children()
    assert "bbgrap_coordinator.planner" in child.cmdline()
    return child


def test_requests_are_answered_while_it_stands_still_and_after_its_death(tmp_path):
    model = str(materialize("tiny"))
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    with LocalCluster(2, cache_dir=tmp_path) as cluster:
        session = bbgrap.InferenceSession(model, cluster=cluster.connection)
        (expected,) = session.run(None, {"input": x})
        planner, faults = planner_of(cluster), []

        def plan_another():
            with bbgrap.connect(cluster.address) as connection:
                try:
                    bbgrap.InferenceSession(model, cluster=connection, options=PlanOptions(split="channels")).run(None, {"input": x})
                except bbgrap.PlanError as error:
                    faults.append(str(error))

        planner.suspend()
        thread = threading.Thread(target=plan_another)
        thread.start()
        while not list(cluster.logs.glob("state/models/model-*/weights-*")):
            time.sleep(0.01)
        for _ in range(20):
            np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)
        planner.kill()
        thread.join()
        assert len(faults) == 1
        assert "SIGKILL, as when memory runs out" in faults[0]
        np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)
        again = bbgrap.InferenceSession(model, cluster=cluster.connection, options=PlanOptions(split="channels"))
        np.testing.assert_allclose(again.run(None, {"input": x})[0], expected, atol=1e-5)
        assert planner_of(cluster) != planner
        coordinator = psutil.Process(cluster.processes["coordinator"].pid)
        assert not [there.path for there in coordinator.memory_maps() if "onnxruntime" in there.path]


def test_it_ends_with_its_coordinator(tmp_path):
    with LocalCluster(1, cache_dir=tmp_path) as cluster:
        killed = planner_of(cluster)
        cluster.kill("coordinator")
        assert psutil.wait_procs([killed], timeout=5)[1] == []
        cluster.start_coordinator()
        stopped = planner_of(cluster)
    assert psutil.wait_procs([stopped], timeout=5)[1] == []
