"""Further shapes of a model with real processes: answered at once, and divided once they came back, of what is there already."""

import re

import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from bbgrap.control.plan_trial import TRIALS
from bbgrap.control.planning import EARNED
from bbgrap.zoo import build
from tests.free_models import save_free
from tests.known_agents import known_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

AGENTS = ("agent0", "agent1")
LOADED = re.compile(r"epoch \d+: (\d+) segments, (\d+) sessions made for them")


def loads(cluster):
    """Of every load on every agent so far, how many segments it was, and how many sessions were new, compiled and as shipped."""
    return {agent: [(int(a), int(b)) for a, b in LOADED.findall(cluster.log(agent, 10_000))] for agent in AGENTS}


@pytest.mark.broad
def test_shapes_are_answered_at_once_and_divided_when_they_come_back(tmp_path):
    path = save_free(build("tiny"), tmp_path / "tiny.onnx")
    plain = ort.InferenceSession(str(path))
    random = np.random.default_rng(0)

    def run(session, height, width, batch=1):
        x = random.random((batch, 3, height, width), dtype=np.float32)
        (got,) = session.run(None, {"input": x})
        np.testing.assert_allclose(got, plain.run(None, {"input": x})[0], atol=1e-5)
        return session.plan.report

    def until_divided(session, height, width):
        """Send requests until a plan over both agents serves, and one more; whom that came from."""
        for _ in range(EARNED):
            run(session, height, width)
        until(lambda: session.plan.report["serving"] != "standby")
        report = run(session, height, width)
        assert report["serving"] != "standby", report
        assert report["nodes_used"] == list(AGENTS)
        return report

    with known_cluster(2, tmp_path / "weights", ("-m", "tests.cluster.dividing"), pin=False) as cluster:
        session = bbgrap.InferenceSession(path, cluster=cluster)
        assert "scaled_from" not in until_divided(session, 1024, 1024)
        before = loads(cluster)
        for shape in ((32, 48), (33, 32), (40, 40, 2), (896, 1024), (1, 1)):
            assert run(session, *shape)["serving"] == "standby", "new, and answered"
        assert loads(cluster) == before, "and nothing is loaded for what came once"
        report = until_divided(session, 1088, 1024)
        assert report["scaled_from"] == [[1, 3, 1024, 1024]]
        assert EARNED < TRIALS, "it has not been judged yet, so that it serves whatever this machine is busy with"
        for agent, found in loads(cluster).items():
            ((segments, new),) = found[len(before[agent]) :]
            assert new <= segments / 2, f"{agent} made {new} of {segments} sessions"
