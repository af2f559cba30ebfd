"""Training steps of real size: states of hundreds of megabytes, and what becomes of them when an agent dies."""

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap.graph.onnx_io import write_graph
from bbgrap.zoo import training
from benchmarks.training import losses_of
from tests.known_agents import known_cluster
from tests.training_networks import batch_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
STEPS, MIDDLE, BATCH, RATE = 5, 2, 2, 1e-4


def session_of(cluster, step, data, planner):
    """A session of which the plan serves."""
    session = bbgrap.InferenceSession(data, cluster=cluster, state=step.state, planner=planner, deadline_s=900.0)
    plan = session.prepare({name: step.graph.types[name].known_shape for name in step.graph.inputs})
    assert plan.report["serving"] == planner
    assert len(plan.report["nodes_used"]) == 2
    return session


@pytest.mark.parametrize("planner", ["data-parallel", "hypar"])
def test_a_step_of_alexnet_that_an_agent_dies_in_is_repeated_from_the_last_whole_state(tmp_path, planner):
    """Weights and momenta are 0.5 GB. An agent dies in the middle of a step."""
    step = training.build("alexnet", BATCH, rate=RATE)
    assert sum(array.nbytes for array in step.initial.values()) > 480e6
    feeds = [batch_of(step, number) for number in range(STEPS)]
    data = write_graph(step.graph, weights="inline").data
    wanted, losses = losses_of(step, data, feeds), []
    with known_cluster(2, tmp_path, pin=False) as cluster, ThreadPoolExecutor(1) as others:
        session = session_of(cluster, step, data, planner)
        with session.sequence(step.initial) as sequence:
            for number, feed in enumerate(feeds):
                workers = psutil.Process(cluster.processes["agent0"].pid).children(recursive=True) if number == MIDDLE else []
                for worker in workers:
                    worker.suspend()
                answer = others.submit(sequence.run, ["loss"], feed)
                if number == MIDDLE:
                    assert not wait([answer], timeout=0.5).done
                    cluster.kill("agent0")
                    for worker in workers:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            worker.kill()
                losses.append(float(answer.result()[0]))
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
