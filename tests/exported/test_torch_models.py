"""Models made by torch's own exporters, over 2, 3 and 5 nodes in several splits: the same answer as plain onnxruntime.

Optional: runs where torch (and onnxscript, for its newer exporter) are installed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import PlanOptions
from tests.exported.exporting import exported
from tests.exported.modules import MODULES
from tests.partition import assert_close

PLANS = [
    (2, PlanOptions(split="rows")),
    (3, PlanOptions(split="channels")),
    (3, PlanOptions(split="inputs")),
    (5, PlanOptions(split="grid")),
    (2, PlanOptions(split="batch")),
    (3, PlanOptions(planner="widest")),
    (5, PlanOptions(planner="widest")),
]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_exported_model_agrees(name: str, dynamo: bool, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    feed = exported(name, path, dynamo=dynamo)
    reference = Reference(path)
    want = reference.run({reference.inputs[0].name: feed})
    assert np.std(want[0]) > 1e-2
    graph = load_graph(path, {reference.inputs[0].name: feed.shape})
    for nodes, plan in PLANS:
        compiled = plan_graph(graph, Cluster.even(nodes), plan).compiled
        artifacts = export(compiled.optimized)
        for got, expected in zip(simulate(artifacts, [feed], local_kernels(artifacts)), want, strict=True):
            assert_close(got, expected, f"{name}, {nodes} nodes, {plan.planner} {plan.split}")
