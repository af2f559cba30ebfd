"""A run over many models: jobs out, verdicts in, counts and causes kept."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import onnxruntime as ort

from tests.fuzzing.configurations import ALL, chosen
from tests.fuzzing.judge import Finding, Verdict, judge
from tests.fuzzing.sources import SOURCES, NotMadeError
from tests.fuzzing.workers import Ended

BEFORE_JUDGING = ("starting", "making", "onnxruntime")
"""What a child does before this project sees the model: who dies there did not die of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One model to make and to judge; `everywhere`: in all configurations instead of a choice by seed."""

    source: str
    seed: int
    everywhere: bool = False


def do(job: Job, progress: Callable[[str], None]) -> Verdict:
    """Make a model and judge it; runs in a child process."""
    ort.set_default_logger_severity(4)  # what matters arrives as an exception, too
    progress("making")
    try:
        sample = SOURCES[job.source].sample(job.seed)
    except NotMadeError as reason:
        return Verdict(f"{job.source}{job.seed}", (Finding("not made", where=str(reason)[:100], words=str(reason)),))
    return judge(sample, ALL if job.everywhere else chosen(job.seed), progress)


def verdict_of(ended: Ended) -> Verdict:
    """Return the verdict of a job, also of one whose process died."""
    if not ended.reason:
        assert isinstance(ended.result, Verdict)
        return ended.result
    job: Job = ended.job
    name = f"{job.source}{job.seed}"
    if ended.doing in BEFORE_JUDGING:
        kind = "onnxruntime fails" if ended.doing == "onnxruntime" else "not made"
        return Verdict(name, (Finding(kind, where=ended.reason, words=f"while {ended.doing}"),))
    return Verdict(name, (Finding("crash", ended.doing, f"{ended.reason} while {ended.doing.partition('-')[0]}", ended.reason),))


@dataclass
class Tally:
    """What came of the models of one source, and of the faults by cause."""

    counts: Counter[str] = field(default_factory=Counter)
    causes: defaultdict[str, list[tuple[int, Finding]]] = field(default_factory=lambda: defaultdict(list))
    """By cause: the seeds and a finding of each."""
    configurations: int = 0

    def add(self, seed: int, verdict: Verdict) -> None:
        """Count a verdict."""
        kinds = verdict.kinds
        self.counts["models"] += 1
        for kind in ("not made", "onnxruntime fails", "refused", "shaky", "crash", "mismatch"):
            self.counts[kind] += kind in kinds
        if not kinds & {"not made", "onnxruntime fails", "refused"}:
            self.counts["run"] += 1
            self.counts["all agree"] += not kinds & {"crash", "mismatch"}
        self.configurations += len(verdict.findings)
        seen = set()
        for finding in verdict.findings:
            cause = f"{finding.kind}: {finding.where}"
            if finding.kind != "agrees" and cause not in seen:
                seen.add(cause)
                self.causes[cause].append((seed, finding))

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        causes = {
            cause: [{"seed": seed, "configuration": f.configuration, "words": f.words} for seed, f in found]
            for cause, found in self.causes.items()
        }
        return {"counts": dict(self.counts), "configurations": self.configurations, "causes": causes}


def jobs_of(source: str, first: int, count: int, until: float, *, everywhere: bool) -> Iterator[Job]:
    """Yield jobs until there were enough or the time is up."""
    for seed in range(first, first + count):
        if time.monotonic() > until:
            return
        yield Job(source, seed, everywhere)
