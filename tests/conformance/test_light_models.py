"""The nine light models of the onnx wheel, reseeded, cut in every way over one to four devices: every tensor that leaves a segment agrees.

The default suite runs a part of the matrix; `make test-slow` runs all of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import SPLITS, PlanOptions, Split
from tests.light_models import NAMES, light_model
from tests.partition import all_values, assert_close, run_checked

LIGHT = ("shufflenet", "inception_v1")
"""Models small enough for the default suite; between them: branches, groups, channel shuffles, LRN, residuals."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("light")


def check(path: Path, batch: int, combinations: list[tuple[int, Split]]) -> None:
    reference = Reference(path)
    name = reference.inputs[0].name
    images = np.random.default_rng(7).standard_normal((batch, 3, 224, 224)).astype(np.float32)
    if batch == 1:
        (want,) = reference.run({name: images})
    else:
        want = np.concatenate([reference.run({name: image[None]})[0] for image in images])
    graph = load_graph(path, {name: images.shape})
    values = all_values(graph, [images])
    for agents, split in combinations:
        compiled = plan_graph(graph, Cluster.even(agents), PlanOptions(split=split)).compiled
        (got,) = run_checked(compiled.optimized, [images], values)
        assert_close(got, want, f"{path.stem}, {agents} agents, {split}")
        if agents > 1:
            assert len(compiled.plan.devices_used) == agents


@pytest.mark.parametrize("name", [LIGHT[0], pytest.param(LIGHT[1], marks=pytest.mark.broad)])
def test_light_models_agree_at_every_cut(name: str, folder: Path) -> None:
    check(light_model(name, folder), 1, [(2, "rows"), (3, "channels"), (4, "grid")])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_all_light_models_in_every_split(name: str, folder: Path) -> None:
    path = light_model(name, folder)
    check(path, 1, [(agents, split) for agents in (1, 2, 3, 4) for split in SPLITS if split != "batch"])
    check(path, 4, [(agents, "batch") for agents in (1, 2, 3, 4)])
