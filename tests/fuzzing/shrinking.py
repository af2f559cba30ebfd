"""One small model for every cause that a run found, each made in a child process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from tests.fuzzing.campaign import Tally
from tests.fuzzing.configurations import ALL
from tests.fuzzing.judge import FAULTS, Finding
from tests.fuzzing.minimise import Failure, minimised
from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import source_of
from tests.fuzzing.workers import Workers

LIMIT_S = 240.0
PER_CAUSE = 2
"""Models of a cause that are made small: equal words may hide different causes."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """One failing model to make small."""

    source: str
    seed: int
    finding: Finding
    folder: Path
    sample: Sample | None
    """None if the process that judged it died: then it is made again."""

    @property
    def name(self) -> str:
        """The name of its files."""
        words = re.sub(r"[^A-Za-z0-9]+", "_", self.finding.where)[:40].strip("_")
        return f"{self.finding.kind}-{words}-{Path(self.source).name}{self.seed}"


def do(job: Shrink, progress: Callable[[str], None]) -> str:
    """Make one model small and write it; runs in a child process."""
    ort.set_default_logger_severity(4)
    progress("making")
    sample = job.sample or source_of(job.source).sample(job.seed)
    named = Sample(job.name, sample.model, sample.feeds)
    named.write(job.folder)  # what stays if making it small does not end
    configuration = next((c for c in ALL if c.label == job.finding.configuration), ALL[0])  # a refusal comes before any
    progress("making it small")
    path = minimised(Failure(named, configuration, job.finding)).write(job.folder)
    return f"{path} ({configuration.label})"


def shrink_causes(tallies: Mapping[str, Tally], folder: Path, workers: int) -> Iterator[str]:
    """Make models of every cause small and yield a line for each."""
    jobs = [
        Shrink(source, seed, finding, folder, tally.samples.get(seed))
        for source, tally in tallies.items()
        for found in tally.causes.values()
        for seed, finding in found[:PER_CAUSE]
        if finding.kind in (*FAULTS, "refused")
    ]
    for ended in Workers(do, workers, LIMIT_S).run(iter(jobs)):
        yield f"{ended.job.name}: {ended.result or ended.reason}"
