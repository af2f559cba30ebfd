"""The backend tests through every planner: one load per model, and every different plan of it run once."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bbgrap.auto.search import plan_auto
from bbgrap.cluster import Cluster
from bbgrap.comparison import compare
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.session_call import packed_feeds, unpacked_results
from bbgrap.engine.sessions import make_session
from bbgrap.errors import BbgrapError, ModelError
from bbgrap.graph import Array, Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import AUTO, SPLITS, PlanOptions
from bbgrap.planners.plan import Plan, verify_plan
from bbgrap.planners.registry import make_plan
from bbgrap.tdl import Descriptions
from tests.conformance.suite import Run

DEVICES = (2, 3, 5)
PLANNERS = ("fewer-exchanges", "layerwise", "fused-tiles", "soybean", "tofu", "hypar", "pipeline", AUTO, "widest")
SEARCH_SECONDS = 0.05
"""What `auto` may take per plan: these models are small."""

CLOSE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-5}
"""By which part of the largest magnitude answers may differ from plain onnxruntime's; other types may not."""

OWN = 4.0
"""By how many times of what onnxruntime differs from itself they may."""


@dataclass(frozen=True)
class Configuration:
    """How a model is cut."""

    options: PlanOptions
    devices: int

    def __str__(self) -> str:
        """Write as `bbgrap/rows over 3`."""
        split = f"/{self.options.split}" if self.options.planner == "bbgrap" else ""
        return f"{self.options.planner}{split} over {self.devices}"


CONFIGURATIONS = tuple(
    Configuration(options, devices)
    for options in (
        *(PlanOptions(split=split) for split in SPLITS),
        *(PlanOptions(planner=name, search_seconds=SEARCH_SECONDS) for name in PLANNERS),
    )
    for devices in DEVICES
)


@dataclass
class Tally:
    """What became of the tests in one configuration, by name of what became of them; and of those that went wrong, how."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Count what another tally counted, too."""
        self.counts += other.counts
        self.wrong |= other.wrong


class Loaded:
    """A model with one request, loaded once; what its plans answer is remembered by their tiles."""

    def __init__(self, run: Run) -> None:
        """Load; raises what the loader does."""
        self.run = run
        with tempfile.TemporaryDirectory(prefix="bbgrap-") as directory:
            path = Path(directory) / "model.onnx"
            path.write_bytes(run.model)
            shapes = {name: value.shape for name, value in run.feeds.items() if isinstance(value, np.ndarray)}
            self.graph: Graph = load_graph(path, shapes)
        self.descriptions: Descriptions = all_descriptions(self.graph)
        self._known: dict[object, str] = {}

    def plan(self, configuration: Configuration) -> Plan:
        """Return the plan of a configuration, verified."""
        cluster, options = Cluster.even(configuration.devices), configuration.options
        if options.planner != AUTO:
            return make_plan(self.graph, cluster, options, self.descriptions)
        plan = plan_auto(self.graph, cluster, options, self.descriptions).plan
        verify_plan(plan, self.descriptions)
        return plan

    def fault(self, plan: Plan) -> str:
        """Return how a plan's answers differ from plain onnxruntime's; empty if they agree."""
        key = (plan.cluster.host, tuple(plan.tiles[node.name] for node in self.graph.nodes))
        if key not in self._known:
            artifacts = export(compile_plan(plan, self.descriptions).optimized)
            ins, outs = ([self.graph.types[name] for name in side] for side in (self.graph.inputs, self.graph.outputs))
            feeds = packed_feeds(ins, [self.run.feeds[name] for name in self.graph.inputs])
            got = unpacked_results(outs, simulate(artifacts, feeds, local_kernels(artifacts)))
            self._known[key] = differences(self.run, got)
        return self._known[key]


def differences(run: Run, got: Iterable[Any]) -> str:
    """Return where answers differ from plain onnxruntime's by more than rounding does; empty if nowhere."""
    found: dict[int, float] = {}
    for number, (have, want) in enumerate(zip(got, run.answers, strict=True)):
        if not isinstance(want, np.ndarray):
            if not compare([have], [want]).verified:
                return f"output {number}: a value that is no tensor differs"
        elif (have.shape, have.dtype) != (want.shape, want.dtype):
            return f"output {number}: {have.dtype}{have.shape}, expected {want.dtype}{want.shape}"
        elif (error := _error(have, want)) > CLOSE.get(want.dtype.name, 0.0):
            found[number] = error
    own = _own_differences(run) if found else []
    return "; ".join(f"output {number}: off by {error:.2g}" for number, error in found.items() if error > OWN * own[number])


def _error(have: Array, want: Array) -> float:
    if want.dtype.kind != "f":
        return float(not np.array_equal(have, want))
    left, right = have.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(np.where(finite, 0, left), np.where(finite, 0, right), equal_nan=True):
        return float("inf")
    scale = max(float(np.abs(right[finite]).max(initial=0.0)), 1e-6)
    return float(np.abs(left - right)[finite].max(initial=0.0)) / scale


def _own_differences(run: Run) -> list[float]:
    """Return by how much plain onnxruntime without optimisations differs from itself.

    That is everything where a model draws random numbers.
    """
    session = make_session(run.model, threads=1, optimize=False)
    return [_error(again, answer) for again, answer in zip(session.run(None, run.feeds), run.answers, strict=True)]


def examined(tests: Mapping[str, Run], configurations: Iterable[Configuration]) -> dict[Configuration, Tally]:
    """Run tests in configurations, and return what became of them."""
    chosen = tuple(configurations)
    tallies = {configuration: Tally() for configuration in chosen}
    for name, run in tests.items():
        for configuration, became, how in _examined(run, chosen):
            tallies[configuration].add(Tally(Counter([became]), {name: f"{became}: {how}"} if how else {}))
    return tallies


def _examined(run: Run, configurations: tuple[Configuration, ...]) -> Iterator[tuple[Configuration, str, str]]:
    """Yield what becomes of a test in every configuration, and how it went wrong if it did."""
    try:
        loaded = Loaded(run)
    except ModelError as error:
        yield from ((configuration, "refused", str(error)[:200]) for configuration in configurations)
        return
    for configuration in configurations:
        try:
            plan = loaded.plan(configuration)
            became = "split" if any(len(tiles) > 1 for tiles in plan.tiles.values()) else _whole(plan, loaded.descriptions)
            fault = loaded.fault(plan)
            yield configuration, "differs" if fault else became, fault
        except (BbgrapError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
            yield configuration, "fails", f"{type(error).__name__}: {str(error)[:200]}"


def _whole(plan: Plan, descriptions: Descriptions) -> str:
    """Return why no node of a plan is split."""
    if len(plan.devices_used) > 1:
        return "whole nodes on several devices"
    if not plan.graph.nodes:
        return "whole: nothing is left to compute"
    if all(description is None for description in descriptions.values()):
        return "whole: no operator has a description"
    return "whole: the planner's choice"
