"""Training steps of real size: states of hundreds of megabytes, what becomes of them when an agent dies, and what travels."""

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap.cluster import Cluster
from bbgrap.cluster.types import COORDINATOR
from bbgrap.compiler.direct import build_direct
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.state import with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import Send
from bbgrap.zoo import training
from tests.cluster.moved import arrived, exchanged
from tests.known_agents import known_cluster
from tests.training_networks import batch_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
STEPS, MIDDLE, BATCH, RATE = 5, 2, 2, 1e-4


def losses_alone(step, feeds):
    """The losses of plain onnxruntime, and the step's file."""
    data, state, losses = write_graph(step.graph, weights="inline").data, step.initial, []
    alone = make_session(data, threads=1)
    for feed in feeds:
        outputs = dict(zip(step.graph.outputs, alone.run(None, feed | state), strict=True))
        losses.append(float(outputs["loss"]))
        state = {before: outputs[after] for before, after in step.state.items()}
    return data, losses


def bytes_of_a_step(step, planner):
    """What the two agents send each other, by a plan that is made here."""
    graph = with_state(step.graph, step.state)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, Cluster.even(2), PlanOptions(planner=planner), descriptions)
    program = build_direct(plan, Pieces(graph, descriptions))
    sends = [(n, each) for n in (0, 1) for each in program.devices[n].steps if isinstance(each, Send) and each.destination != program.host]
    return sum(sum(program.part_bytes(n, send)) for n, send in sends)


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
    data, wanted = losses_alone(step, feeds)
    losses = []
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


@pytest.mark.parametrize("planner", ["hypar", "data-parallel"])
def test_vgg_a_trains_with_the_losses_of_one_machine_and_moves_what_the_plan_says(tmp_path, planner):
    """Weights and momenta are 1.06 GB."""
    step = training.build("vgg-a", BATCH, rate=RATE)
    feeds = [batch_of(step, number) for number in range(3)]
    data, wanted = losses_alone(step, feeds)
    samples = sum(array.nbytes for array in feeds[0].values())
    losses, between = [], []
    with known_cluster(2, tmp_path, pin=False) as cluster, session_of(cluster, step, data, planner).sequence(step.initial) as sequence:
        for feed in feeds:
            before = exchanged(cluster)
            (loss,), timeline = sequence.run_recorded(["loss"], feed)
            counted = {pair: size - before.get(pair, 0) for pair, size in exchanged(cluster).items() if size != before.get(pair, 0)}
            assert arrived(timeline) == counted
            losses.append(float(loss))
            between.append(sum(size for pair, size in counted.items() if COORDINATOR not in pair))
            assert len(losses) == 1 or sum(size for (source, _), size in counted.items() if source == COORDINATOR) <= 2 * samples
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    assert between[1] == between[2] == bytes_of_a_step(step, planner)
