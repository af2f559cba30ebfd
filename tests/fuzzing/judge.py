"""One model in many configurations against plain onnxruntime: what agrees, what is refused, what crashes, what is wrong."""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.session_call import packed_feeds, unpacked_results
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import BbgrapError, InputError, ModelError
from bbgrap.graph import Graph
from tests.fuzzing.bounds import Answers, PlainFailureError, excess, is_shaky, onnxruntime_answers
from tests.fuzzing.configurations import Configuration
from tests.fuzzing.samples import Sample

Kind = Literal["not made", "onnxruntime fails", "refused", "agrees", "shaky", "crash", "mismatch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""`not made`: the source has no model. `refused`: this project says at loading that it does not take the model. `shaky`: beyond the
bound, but onnxruntime itself moves as far when inputs move in their last bits. `crash`: any error that is no refusal."""

FAULTS: tuple[Kind, ...] = ("crash", "mismatch")

Alter = Callable[[Artifacts], Artifacts]
"""A change of what would be deployed, by which tests plant faults."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a model in one configuration; `where` is a cause in short that equal faults share, `words` the whole story."""

    kind: Kind
    configuration: str = ""
    where: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings on a model."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def kinds(self) -> frozenset[Kind]:
        """What kinds of findings there are."""
        return frozenset(finding.kind for finding in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that must not be."""
        return tuple(finding for finding in self.findings if finding.kind in FAULTS)


def judge(
    sample: Sample, configurations: Sequence[Configuration], progress: Callable[[str], None] = lambda _: None, alter: Alter | None = None
) -> Verdict:
    """Run a model in every configuration and compare; `progress` hears what is about to be done."""
    progress("onnxruntime")
    try:
        answers = onnxruntime_answers(sample.model, sample.feeds)
    except PlainFailureError as failure:
        return Verdict(sample.name, (Finding("onnxruntime fails", where=str(failure)[:80], words=str(failure)),))
    progress("loading")
    try:
        graph = _loaded(sample)
    except (ModelError, InputError) as error:
        return Verdict(sample.name, (Finding("refused", where=_reason(error), words=str(error)),))
    except Exception as error:  # whatever it is, it is a finding
        return Verdict(sample.name, (_crash(error, "loading"),))
    findings = []
    for configuration in configurations:
        progress(configuration.label)
        findings.append(_judge_one(sample, graph, configuration, answers, alter))
    return Verdict(sample.name, tuple(findings))


def _reason(error: Exception) -> str:
    """Return what a refusal says beyond the names of the model, its nodes and its values."""
    words = str(error).partition("': ")[2] or str(error)
    return re.sub(r"node name: \w+|name: \w+|\(\w+\)", "", words)[:160]


def _loaded(sample: Sample) -> Graph:
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        path = Path(folder) / f"{sample.name}.onnx"
        path.write_bytes(sample.model)
        return load_graph(path, {name: array.shape for name, array in sample.feeds.items()})


def answer_of(sample: Sample, graph: Graph, configuration: Configuration, alter: Alter | None = None) -> list[Any]:
    """Plan, compile, export and run a loaded model in this process."""
    compiled = plan_graph(graph, configuration.cluster, configuration.options).compiled
    artifacts = export(compiled.optimized)
    if alter is not None:
        artifacts = alter(artifacts)
    feeds = packed_feeds((graph.types[name] for name in graph.inputs), (sample.feeds[name] for name in graph.inputs))
    found = simulate(artifacts, feeds, local_kernels(artifacts))
    return unpacked_results((graph.types[name] for name in graph.outputs), found)


def _judge_one(sample: Sample, graph: Graph, configuration: Configuration, answers: Answers, alter: Alter | None) -> Finding:
    label = configuration.label
    try:
        got = answer_of(sample, graph, configuration, alter)
    except Exception as error:  # whatever it is, it is a finding
        return _crash(error, label)
    worst, words = excess(got, answers)
    if worst <= 1 or _is_verified(sample, got):
        return Finding("agrees", label)
    shaky = is_shaky(sample.model, sample.feeds, got, answers)
    what = "another shape" if "expected" in words else "other values"
    return Finding("shaky" if shaky else "mismatch", label, f"{what} by {configuration.planner}", words)


def _is_verified(sample: Sample, got: list[Any]) -> bool:
    """Tell whether the project's own law counts an answer as the same: as close to 64-bit floats as onnxruntime, say."""
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(sample.model)
        return ReferenceAnswers(path, sample.feeds).judge(got).verified


_NAMES = r"Name:'[^']*'|Node, \(\"[^\"]*\"|Node \([^)]*\)|input: \S+|input \([^)]*\)|index: \d+|Got: \d+|Expected: \d+|/\S*/"


def _nameless(words: str) -> str:
    """Return an error without the names of nodes and values, numbers of extents, and folders: so equal faults share it."""
    return " ".join(re.sub(_NAMES, "", words).split())


def _crash(error: Exception, label: str) -> Finding:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/bbgrap/" in f.filename]
    place = f"{Path(frames[-1].filename).parent.name}/{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    words = " ".join(str(error).split())
    detail = f" {_nameless(words)[:140]}" if isinstance(error, BbgrapError) or "ONNXRuntimeError" in words else ""
    return Finding("crash", label, f"{type(error).__name__} at {place}{detail}", words[:600])
