"""A large batch on real processes: it goes through the cluster in micro-batches, and comes back whole."""

import time

import numpy as np
import pytest

import bbgrap
from bbgrap.engine.sessions import make_session
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize

pytestmark = pytest.mark.cluster


def test_a_large_batch_goes_through_the_cluster_in_microbatches():
    options = PlanOptions(planner="single", objective="throughput")
    images = np.random.default_rng(0).random((97, 3, 224, 224), dtype=np.float32)  # in micro-batches of 7: the last one is filled up
    with LocalCluster(2) as cluster:
        session = bbgrap.InferenceSession("zoo:mobilenet_v2", cluster=cluster, options=options)
        prepared = session.prepare({"input": images.shape})
        assert prepared.report["nodes_used"] == ["agent0", "agent1"]
        (answer,) = session.run(None, {"input": images})
        assert session.plan.epoch == prepared.epoch
        assert session.trace({"input": images[:1]}, 1).outputs[0].shape == (1, 1000)
        for name in ("agent0", "agent1"):
            cluster.kill(name)
        deadline = time.monotonic() + 10
        while cluster.connection.nodes() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(bbgrap.ClusterUnavailableError, match="no agent is there to work"):
            session.run(None, {"input": images})
    (expected,) = make_session(materialize("mobilenet_v2").read_bytes()).run(None, {"input": images})
    np.testing.assert_allclose(answer, expected, atol=1e-5 * float(np.abs(expected).max()))
