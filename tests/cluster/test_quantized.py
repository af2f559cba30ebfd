"""Quantized and float16 files on two real agents: what onnxruntime answers, to the bit where its kernels do not depend on the piece."""

from __future__ import annotations

from pathlib import Path

import pytest

import bbgrap
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from tests.quantized_models import DYNAMIC, INTEGER, converted, networks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

OPTIONS = [PlanOptions(), PlanOptions(split="channels"), PlanOptions(planner="tofu"), PlanOptions(planner="auto", search_seconds=1)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, tuple[int, ...]]]:
    return networks(tmp_path_factory.mktemp("quantized"))


USUAL = [("tiny", "qdq-u8s8-channels")]
MORE = [("tiny", "dynamic-u8"), ("attention", "float16-inside")]
OTHERS = [
    ("tiny", "operators-u8s8-tensors"), ("tiny", "float16"), ("attention", "qdq-u8s8-channels"), ("attention", "dynamic-s8-channels"),
]  # fmt: skip
"""Also over agents in one process in `tests/conformance`, some of them by default."""
CASES = [
    *USUAL,
    *(pytest.param(*more, marks=pytest.mark.broad) for more in MORE),
    *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS),
]


@pytest.mark.parametrize(("network", "form"), CASES)
def test_agents_answer_as_onnxruntime_does(
    network: str, form: str, sources: dict[str, tuple[Path, tuple[int, ...]]], pair: LocalCluster
) -> None:
    path, x = converted(form, *sources[network])
    witnesses = ReferenceAnswers(path, {"input": x})
    for options in OPTIONS:
        found = witnesses.judge(bbgrap.InferenceSession(path, cluster=pair, options=options).run(None, {"input": x}))
        label = f"{options.planner} {options.split}: {found.text}"
        assert found.verified, label
        assert found.bit_identical or network != "tiny" or form not in INTEGER | DYNAMIC, label
