"""Jobs over the model files of `found/`, and over any other folder of models with inputs beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import onnxruntime as ort

from tests.fuzzing.configurations import ALL, COSTLY, Configuration
from tests.fuzzing.judge import Finding, Verdict, judge
from tests.fuzzing.samples import read_sample
from tests.fuzzing.workers import Ended

FOUND = tuple(sorted((Path(__file__).parent / "found").glob("*.onnx")))

ALSO = {"conv_tile_of_padding_only": (Configuration("tofu", "rows", 4),)}
"""Configurations beyond the usual ones in which a model failed. The `matmul_integer` models fail on processors without VNNI only."""


@dataclass(frozen=True, slots=True)
class File:
    """One model file to judge."""

    path: Path
    everywhere: bool = False


def one_of_each(number: int) -> tuple[Configuration, ...]:
    """Return every planner and split once, but for the costly ones; the number of nodes and their shares in turn."""
    groups = [list(group) for _, group in groupby(ALL, key=lambda c: (c.planner, c.split))]
    return tuple(group[(number + k) % len(group)] for k, group in enumerate(groups) if group[0].planner not in COSTLY)


def do(job: File, progress: Callable[[str], None]) -> Verdict:
    """Judge a file; runs in a child process."""
    ort.set_default_logger_severity(4)  # what matters arrives as an exception, too
    number = sum(map(ord, job.path.stem))  # the same choice for a file, whatever lies beside it
    usual = ALL if job.everywhere else one_of_each(number)
    return judge(read_sample(job.path), [*usual, *ALSO.get(job.path.stem, ())], progress)


def verdict_of(ended: Ended) -> Verdict:
    """Return the verdict of a job, also of one whose process died."""
    if isinstance(ended.result, Verdict):
        return ended.result
    return Verdict(ended.job.path.stem, (Finding("crash", ended.doing, ended.reason, ended.reason),))
