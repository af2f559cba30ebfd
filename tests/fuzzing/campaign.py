"""A run over many models: jobs out, verdicts in, counts and causes kept."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import onnxruntime as ort

from tests.fuzzing.configurations import ALL, chosen
from tests.fuzzing.judge import Finding, Kind, Verdict, judge
from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError, source_of
from tests.fuzzing.workers import Ended

BEFORE_JUDGING = ("starting", "making", "onnxruntime")
"""What a child does before this project sees the model: who dies there did not die of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One model to make and to judge; `everywhere`: in all configurations instead of a choice by seed."""

    source: str
    seed: int
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, with the model if something is to be done about it: not every foreign generator makes it again from its seed."""

    verdict: Verdict
    sample: Sample | None = None


def do(job: Job, progress: Callable[[str], None]) -> Judged:
    """Make a model and judge it; runs in a child process."""
    ort.set_default_logger_severity(4)  # what matters arrives as an exception, too
    progress("making")
    try:
        sample = source_of(job.source).sample(job.seed)
    except NotMadeError as reason:
        return Judged(Verdict(f"{job.source}{job.seed}", (Finding("not made", where=str(reason)[:100], words=str(reason)),)))
    verdict = judge(sample, ALL if job.everywhere else chosen(job.seed), progress)
    return Judged(verdict, sample if verdict.kinds & {"crash", "mismatch", "refused"} else None)


def judged_of(ended: Ended) -> Judged:
    """Return what came of a job, also of one whose process died."""
    if not ended.reason:
        assert isinstance(ended.result, Judged)
        return ended.result
    job: Job = ended.job
    name = f"{job.source}{job.seed}"
    if ended.doing in BEFORE_JUDGING:
        kind: Kind = "onnxruntime fails" if ended.doing == "onnxruntime" else "not made"
        return Judged(Verdict(name, (Finding(kind, where=ended.reason, words=f"while {ended.doing}"),)))
    where = f"{ended.reason} while {ended.doing.partition('-')[0]}"
    return Judged(Verdict(name, (Finding("crash", ended.doing, where, ended.reason),)))


@dataclass
class Tally:
    """What came of the models of one source, and of the faults by cause."""

    counts: Counter[str] = field(default_factory=Counter)
    causes: defaultdict[str, list[tuple[int, Finding]]] = field(default_factory=lambda: defaultdict(list))
    """By cause: the seeds and a finding of each."""
    names: dict[int, str] = field(default_factory=dict)
    """By seed, the names of all models."""
    samples: dict[int, Sample] = field(default_factory=dict)
    """By seed, the models with faults, as far as their process lived to hand them over."""
    configurations: int = 0

    def add(self, seed: int, judged: Judged) -> None:
        """Count a verdict."""
        verdict, kinds = judged.verdict, judged.verdict.kinds
        self.names[seed] = verdict.name
        if judged.sample is not None:
            self.samples[seed] = judged.sample
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
            cause: [{"seed": seed, "name": self.names[seed], "configuration": f.configuration, "words": f.words} for seed, f in found]
            for cause, found in self.causes.items()
        }
        return {"counts": dict(self.counts), "configurations": self.configurations, "causes": causes}


def jobs_of(source: str, seeds: range, until: float, *, everywhere: bool) -> Iterator[Job]:
    """Yield jobs until there were enough or the time is up."""
    for seed in seeds:
        if time.monotonic() > until:
            return
        yield Job(source, seed, everywhere)
