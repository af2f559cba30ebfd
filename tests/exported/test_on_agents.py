"""Models made by torch's own exporters, on two agents: planned by rows, by channels, and the first request, which nobody planned.

Optional: `make test-packages` runs it where torch and onnxscript are installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import bbgrap
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import PlanOptions
from tests.exported.exporting import exported
from tests.exported.modules import MODULES
from tests.partition import assert_close

pytestmark = pytest.mark.packages

PLANS = {
    "unplanned": None,
    "rows": PlanOptions("bbgrap", "rows"),
    "channels": PlanOptions("bbgrap", "channels"),
    "widest": PlanOptions("widest"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with bbgrap.LocalCluster(2, cache_dir=tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_exported_model_answers_on_two_agents_as_on_onnxruntime(cluster, name: str, dynamo: bool, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    feed = {"x": exported(name, path, dynamo=dynamo)}
    want = Reference(path).run(feed)
    for plan, options in PLANS.items():
        session = bbgrap.InferenceSession(path, cluster=cluster, options=options)
        for got, expected in zip(session.run(None, feed), want, strict=True):
            assert_close(got, expected, f"{name}, {plan}")
        if options is not None:
            assert (session.plan.report["planner"], len(session.plan.agents)) == (options.planner, 2)
