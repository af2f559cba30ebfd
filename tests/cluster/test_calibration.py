"""Calibration with real processes: what a deployment teaches, the next one is planned with, even by the next coordinator."""

import json
import time

import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from bbgrap.cluster.speeds import DEFAULT_WORK
from bbgrap.cluster.types import NodeProfile
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize

pytestmark = pytest.mark.cluster
AUTO = PlanOptions(planner="auto")


@pytest.fixture
def cluster(caches):
    with LocalCluster(2, cache_dir=caches) as cluster:
        give_profiles(cluster)
        yield cluster


def give_profiles(cluster):
    """Profiles by hand, so that nobody has to be measured."""
    for name in ("agent0", "agent1"):
        cluster.connection.add_profile(NodeProfile(name, work=DEFAULT_WORK))


def prepared(cluster, model, batch):
    """Prepare a model, check an answer, and return the report."""
    session = bbgrap.InferenceSession(model, cluster=cluster.connection, options=AUTO)
    x = {"input": np.random.default_rng(batch).random((batch, 3, 32, 32), dtype=np.float32)}
    report = session.prepare({"input": x["input"].shape}).report
    for y, wanted in zip(session.run(None, x), ort.InferenceSession(model).run(None, x), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    return report


def test_a_deployment_teaches_the_next_one_and_the_next_coordinator(cluster, tmp_path):
    model = materialize("tiny", tmp_path)
    first = prepared(cluster, model, 1)
    assert first["calibrated"] is False
    (path,) = (cluster.logs / "state" / "calibrations").glob("*.json")
    kept = json.loads(path.read_text())["machines"]
    routes = {route["name"]: set(route["nodes"]) for route in first["measured"]["routes"]}
    (fastest,) = first["measured"]["chosen"]
    assert set(kept) == next(iter(routes.values())) | routes[fastest], "the plan is learnt from, and what turned out to be the fastest"
    assert all(len(machine["factors"]) > 1 for machine in kept.values())
    assert prepared(cluster, model, 1)["calibrated"] is False, "a calibration alone plans nothing anew"
    assert prepared(cluster, model, 2)["calibrated"] is True

    cluster.kill("coordinator")
    cluster.start_coordinator()
    deadline = time.monotonic() + 10
    while len(cluster.connection.nodes()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    give_profiles(cluster)
    assert prepared(cluster, model, 1)["calibrated"] is True
