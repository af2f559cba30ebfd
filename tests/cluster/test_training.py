"""Training steps on agents: the losses of plain onnxruntime, and the bytes that the plan says, by every planner."""

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap.cluster.types import COORDINATOR
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.transport.credentials import Credentials
from bbgrap.zoo import training
from benchmarks.training import losses_of
from tests.cluster.capture import Relay
from tests.cluster.moved import arrived, exchanged
from tests.cluster.strangers import split
from tests.known_agents import known_cluster
from tests.training_networks import SMALL, batch_of

pytestmark = pytest.mark.cluster
PLANNERS = ("data-parallel", "model-parallel", "one-weird-trick", "hypar", "soybean", "tofu", "auto")
STEPS, BATCH = 20, 8
MIDDLE, LATER = 8, 13
"""Steps in which agents die."""
RATE = 1e-4
"""Rounding grows from step to step, in deep networks at larger rates beyond any bound."""


@cache
def known(name):
    """A training step, its file, what it is given, and the losses that plain onnxruntime has."""
    step = training.step_of(SMALL[name](BATCH), rate=RATE)
    data = write_graph(step.graph, weights="inline").data
    feeds = [batch_of(step, number) for number in range(STEPS)]
    return step, data, feeds, losses_of(step, data, feeds)


@pytest.fixture(scope="module")
def agents(request, tmp_path_factory):
    with known_cluster(request.param, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        yield cluster


def session_of(cluster, name, planner):
    """A session of which the plan serves."""
    step, data, _, _ = known(name)
    session = bbgrap.InferenceSession(data, cluster=cluster, state=step.state, planner=planner)
    plan = session.prepare({name: step.graph.types[name].known_shape for name in step.graph.inputs})
    assert plan.report["serving"] == planner, plan.report
    return session


USUAL = {
    2: {("mlp", "data-parallel"), ("mlp", "soybean"), ("mlp", "auto"), ("vgg", "tofu")},
    4: {("mlp", "model-parallel"), ("mlp", "one-weird-trick"), ("mlp", "hypar")},
}
"""Every planner once, and convolutions; agents die in steps of AlexNet."""
FIRST = ("mlp", "auto")
"""By default."""


def mark_of(count, case):
    if case not in USUAL[count]:
        return pytest.mark.slow
    return () if case == FIRST else pytest.mark.broad


CASES = [
    pytest.param(count, name, planner, marks=mark_of(count, (name, planner))) for count in USUAL for name in SMALL for planner in PLANNERS
]


@pytest.mark.parametrize(("agents", "name", "planner"), CASES, indirect=["agents"])
def test_losses_are_those_of_one_machine_and_bytes_those_of_the_plan(agents, name, planner):
    step, _, feeds, wanted = known(name)
    session = session_of(agents, name, planner)
    losses = []
    with session.sequence(step.initial) as sequence:
        for number, feed in enumerate(feeds):
            if number % 7 != 3:
                (loss,) = sequence.run(["loss"], feed)
            else:
                before = exchanged(agents)
                (loss,), timeline = sequence.run_recorded(["loss"], feed)
                after = exchanged(agents)
                counted = {pair: size - before.get(pair, 0) for pair, size in after.items() if size != before.get(pair, 0)}
                assert arrived(timeline) == counted
                given = sum(size for (source, _), size in counted.items() if source == COORDINATOR)
                assert given <= len(agents.connection.nodes()) * sum(array.nbytes for array in feed.values())  # samples, but no weights
                assert sum(size for (_, to), size in counted.items() if to == COORDINATOR) == np.float32().nbytes
            losses.append(float(loss))
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    if planner != "auto":
        assert len(session.plan.report["nodes_used"]) == len(agents.connection.nodes())


@pytest.mark.faults
@pytest.mark.parametrize("planner", ["data-parallel", pytest.param("hypar", marks=pytest.mark.slow)])
def test_a_step_that_an_agent_dies_in_is_repeated_from_the_last_whole_state(tmp_path, planner):
    """One dies in the middle of a step, of which the others have done their part; one when its loss is there and weights are computed."""
    step, _, feeds, wanted = known("alexnet")
    losses = []
    with known_cluster(3, tmp_path, pin=False) as cluster:
        session = session_of(cluster, "alexnet", planner)
        with session.sequence(step.initial) as sequence, ThreadPoolExecutor(1) as others:
            for number, feed in enumerate(feeds):
                if number == MIDDLE - 1:  # who has a part in the steps? A busy machine may have lost some agents for a moment
                    (loss,), timeline = sequence.run_recorded(["loss"], feed)
                    losses.append(float(loss))
                    victim, other = timeline.devices[0], next(name for name in ("agent0", "agent1") if name != timeline.devices[0])
                    continue
                if number == MIDDLE:
                    workers = psutil.Process(cluster.processes[victim].pid).children(recursive=True)
                    for worker in workers:
                        worker.suspend()
                answer = others.submit(sequence.run, ["loss"], feed)
                if number == MIDDLE:
                    assert not wait([answer], timeout=0.5).done
                    cluster.kill(victim)
                    for worker in workers:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            worker.kill()
                losses.append(float(answer.result()[0]))
                if number == LATER:
                    cluster.kill(other)
        assert not {victim, other}.intersection(node.name for node in cluster.connection.nodes())
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)


@pytest.mark.faults
def test_weights_leave_their_client_once_and_not_again_when_an_agent_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("bbgrap.transport.control_client.open_channel", lambda _: None)  # all that the client says goes through the relay
    step, _, feeds, wanted = known("mlp")
    weights, samples = (sum(array.nbytes for array in of.values()) for of in (step.initial, feeds[0]))
    losses, sent = [], []
    with (
        known_cluster(2, tmp_path, pin=False) as cluster,
        Relay(split(cluster.address)) as relay,
        bbgrap.Connection(relay.address, credentials=Credentials(token_file=cluster.logs / "state" / "keys" / "local.token")) as connection,
    ):
        session = session_of(connection, "mlp", "data-parallel")
        with session.sequence(step.initial) as sequence:
            for number, feed in enumerate(feeds[:6]):
                if number == 4:
                    cluster.kill("agent0")
                before = sum(len(said) for said, _ in relay.recorded)
                losses.append(float(sequence.run(["loss"], feed)[0]))
                sent.append(sum(len(said) for said, _ in relay.recorded) - before)
    assert weights + samples <= sent[0] < 1.1 * (weights + samples)
    assert all(samples <= size < weights // 4 for size in sent[1:]), "samples, and that the client is still there"
    np.testing.assert_allclose(losses, wanted[:6], rtol=1e-4)


@pytest.mark.broad
def test_the_weights_after_some_steps_are_read_and_gone_on_from(three):
    step, data, feeds, losses = known("mlp")
    alone, state = make_session(data, threads=1), step.initial
    for feed in feeds[:3]:
        outputs = dict(zip(step.graph.outputs, alone.run(None, feed | state), strict=True))
        state = {before: outputs[after] for before, after in step.state.items()}
    session = session_of(three, "mlp", "data-parallel")
    with session.sequence(step.initial) as sequence:
        for feed in feeds[:3]:
            sequence.run(["loss"], feed)
        found = sequence.state()
    assert found.keys() == state.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, state[name], rtol=1e-4, atol=1e-6)
    with session.sequence(found) as sequence:
        assert sequence.run(["loss"], feeds[3])[0] == pytest.approx(losses[3], rel=1e-4)
