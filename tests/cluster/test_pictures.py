"""Pictures over a slow network, between real processes: a byte a number, the same bits in the answer, and other inputs as before."""

import numpy as np
import pytest

import bbgrap
from bbgrap.cluster.types import LinkProfile, NodeProfile
from bbgrap.graph.onnx_write import write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo.builder import Builder
from tests.known_agents import SPEED, tell_speeds

pytestmark = pytest.mark.cluster

SHAPE = (1, 3, 256, 256)


@pytest.fixture
def slow(pair):
    """One of two agents is far away."""
    pair.connection.add_profile(NodeProfile("agent1", work=(SPEED,), links=(LinkProfile("coordinator", 12.5e6, 1e-3),)))
    yield pair
    tell_speeds(pair)


def test_pictures_travel_in_fewer_bytes_and_whatever_follows_is_answered_the_same(slow):
    net = Builder("colours", SHAPE)
    model = write_graph(net.graph(net.conv(net.conv("input", "a", 8, 3), "b", 8, 3)), weights="inline").data
    generator = np.random.default_rng(0)
    pictures = [{"input": generator.integers(0, 256, SHAPE) / np.float32(255) - np.float32(0.45)} for _ in range(3)]
    pictures = [{"input": x["input"].astype(np.float32)} for x in pictures]
    floats = {"input": generator.standard_normal(SHAPE).astype(np.float32)}
    options = [PlanOptions(input_values=values) for values in ("any", "auto")]
    plain, seeing = (bbgrap.InferenceSession(model, cluster=slow, options=each) for each in options)
    for feed in (*pictures, floats, *pictures):
        for one, other in zip(plain.run(None, feed), seeing.run(None, feed), strict=True):
            assert one.tobytes() == other.tobytes()
    # Waited for: on a busy machine the standby answers while an agent is silent.
    sent = [session.prepare({"input": SHAPE}).report["optimized"]["scatter_bytes"] for session in (plain, seeing)]
    assert 0.5 < sent[1] / sent[0] < 0.7, "one half to the agent beside the coordinator as it is, the other in a quarter of its bytes"
