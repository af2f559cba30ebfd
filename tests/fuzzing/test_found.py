"""Models on which answers were once wrong, or that crashed: `found/NAME.onnx` with inputs in `found/NAME.npz`, small and told by name.

They run in a child process, because some of them once ended it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.fuzzing.files import FOUND, File, do, verdict_of
from tests.fuzzing.judge import Verdict
from tests.fuzzing.workers import Workers

LIMIT_S = 120.0
"""For one model in one of each configuration; in all of them it takes ten times as long."""


@cache
def verdicts(*, everywhere: bool) -> dict[Path, Verdict]:
    jobs = (File(path, everywhere) for path in FOUND)
    ends = Workers(do, 1, LIMIT_S * (10 if everywhere else 1)).run(jobs)
    return {ended.job.path: verdict_of(ended) for ended in ends}


def assert_agrees(verdict: Verdict) -> None:
    assert verdict.kinds == {"agrees"}, "\n".join(f"{f.configuration}: {f.kind}, {f.where}, {f.words}" for f in verdict.findings)


@pytest.mark.broad
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_found_model_agrees(path: Path) -> None:
    assert_agrees(verdicts(everywhere=False)[path])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_found_model_agrees_everywhere(path: Path) -> None:
    assert_agrees(verdicts(everywhere=True)[path])
