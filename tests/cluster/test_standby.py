"""What a user gets by default, with real processes: answers from the first request, and through the loss of whoever serves."""

import threading
import time
from contextlib import suppress

import numpy as np
import onnxruntime as ort
import psutil
import pytest
from onnx import helper

import bbgrap
from bbgrap.zoo import materialize
from benchmarks.tasks import killer_model
from tests.known_agents import known_cluster, planners_of
from tests.onnx_models import model_of
from tests.waiting import until

pytestmark = pytest.mark.cluster


def picture(seed=0, side=32):
    return np.random.default_rng(seed).random((1, 3, side, side), dtype=np.float32)


@pytest.fixture(scope="module")
def losing(tmp_path_factory):
    with known_cluster(3, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        yield cluster


def alone(model):
    """Return what plain onnxruntime makes of an input on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model if isinstance(model, bytes) else str(model), options)
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def free_model():
    """A convolution and a mean, for pictures of any size."""
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["maps"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["maps"], ["output"]),
    ]
    weight = np.random.default_rng(1).random((4, 3, 3, 3), dtype=np.float32)
    return model_of(nodes, {"input": ["n", 3, "h", "w"]}, {"output": ["n", 4, 1, 1]}, {"w": weight}).SerializeToString()


def wait_for_plan(session, x):
    def serves():
        return session.run(None, {"input": x}) and session.plan.report["serving"] not in {"standby", "nobody yet"}

    # Plans give way to requests; one that was slower than its standby by chance is tried anew after a minute.
    until(serves, within_s=150.0, why=lambda: session.plan.report, every_s=0.05)
    return session.plan


@pytest.mark.broad
def test_the_first_requests_of_any_shape_are_answered_by_one_machine_to_the_bit(losing):
    session = bbgrap.InferenceSession(free_model(), cluster=losing)
    expected = alone(free_model())
    planner, _ = planners_of(losing)
    planner.suspend()  # so no plan can take over
    try:
        for side in (32, 48, 56):  # no other test asks for these
            x = picture(side, side)
            np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected(x))
        assert session.plan.report["serving"] == "standby"
        assert len(session.plan.report["nodes_used"]) >= 1
    finally:
        planner.resume()
    assert all(node.used_bytes > 0 for node in losing.connection.nodes())


def test_a_plan_takes_over_by_itself_and_prepare_waits_for_it(losing):
    x = picture()
    session = bbgrap.InferenceSession(materialize("tiny"), cluster=losing)
    (expected,) = session.run(None, {"input": x})
    assert any(node.standby_bytes for node in losing.connection.nodes())
    assert wait_for_plan(session, x).report["planner"] != "standby"
    np.testing.assert_allclose(session.run(None, {"input": x})[0], expected, atol=1e-5)
    prepared = bbgrap.InferenceSession(free_model(), cluster=losing).prepare({"input": (1, 3, 40, 40)})
    assert prepared.report["planner"] != "standby"


class Clients:
    """Threads that send requests one after the other; what went wrong, and when answers came."""

    def __init__(self, cluster, count=3):
        self.times, self.faults, self.stop = [], [], threading.Event()
        x = picture()
        expected = alone(materialize("tiny"))(x)

        def work():
            session = bbgrap.InferenceSession(materialize("tiny"), cluster=cluster.address)
            while not self.stop.is_set():
                try:
                    np.testing.assert_allclose(session.run(None, {"input": x})[0], expected, atol=1e-5)
                    self.times.append(time.monotonic())
                except Exception as error:  # whatever it is, it must not be
                    self.faults.append(repr(error))

        self.threads = [threading.Thread(target=work) for _ in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        until(lambda: self.times)
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def twenty_more(self, why):
        answered = len(self.times)
        until(lambda: len(self.times) >= answered + 20, 30, lambda: why)


@pytest.mark.faults
def test_no_request_fails_whoever_is_lost(losing):
    with Clients(losing) as clients:
        for name in ("agent0", "agent1", "agent2", "coordinator"):
            losing.kill(name)
            time.sleep(0.5)
            if name == "coordinator":
                losing.start_coordinator()
            else:
                losing.add_agent(name)
            clients.twenty_more(f"nobody is answered any more after the loss of {name}")
    assert clients.faults == []


@pytest.fixture
def unplanned(losing):
    """Nothing is planned meanwhile: a plan that has answered goes on beside a standby that is not run again."""
    session = bbgrap.InferenceSession(materialize("tiny"), cluster=losing)
    session.run(None, {"input": picture()})
    wait_for_plan(session, picture())
    planner, _ = planners_of(losing)
    planner.suspend()
    yield
    with suppress(psutil.NoSuchProcess):  # where its job is cancelled, another one is started
        planner.resume()


@pytest.mark.usefixtures("unplanned")
def test_a_model_that_ends_workers_ends_two_and_no_agent_and_no_request_of_others(losing):
    with Clients(losing) as clients:
        session = bbgrap.InferenceSession(killer_model("killer"), cluster=losing.connection)
        seven, two, least, minus = (np.full(4, number, np.int64) for number in (7, 2, -(2**63), -1))
        assert session.run(None, {"x": seven, "d": two})[0].tolist() == [3, 3, 3, 3]
        with pytest.raises(bbgrap.ExecutionError, match=r"has ended the workers of agents and is not run again: .*SIGFPE"):
            session.run(None, {"x": least, "d": minus})
        clients.twenty_more("nobody is answered any more")
    assert clients.faults == []
    # Two workers have ended; their agents join again with new ones, in their own time.
    until(lambda: {node.name for node in losing.connection.nodes()} == {"agent0", "agent1", "agent2"}, 30)
    with pytest.raises(bbgrap.ExecutionError, match="is not run again"):
        session.run(None, {"x": seven, "d": two})
