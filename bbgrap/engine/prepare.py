"""From a model file to everything that is deployed, in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbgrap.cluster import Cluster
from bbgrap.engine.load import load_graph
from bbgrap.graph import Graph
from bbgrap.planners import PlanOptions, all_descriptions, make_plan
from bbgrap.program.artifacts import Artifacts
from bbgrap.program.compile import Compiled, compile_plan
from bbgrap.program.export import export
from bbgrap.program.report import report_of


@dataclass(frozen=True)
class Prepared:
    """A planned model, ready to be deployed.

    `report` is the object that `plan --json` prints (plain values only).
    """

    graph: Graph
    report: Mapping[str, Any]
    artifacts: Artifacts


def prepare(model: Path, shapes: Mapping[str, tuple[int, ...]], cluster: Cluster, options: PlanOptions) -> Prepared:
    """Load a model for concrete input shapes, plan it over a cluster, optimise the program and export what each device needs.

    Raises:
        ModelError: if the file is no valid model.
        InputError: if the shapes do not fit it.
        PlanError: if no plan exists.
    """
    graph = load_graph(model, shapes)
    compiled, search_s = compile_graph(graph, cluster, options)
    return Prepared(graph, report_of(compiled, search_s), export(compiled.optimized))


def compile_graph(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Compiled, float]:
    """Plan a loaded model and optimise its program; also return the seconds this took.

    Raises:
        PlanError: if no plan exists.
    """
    start = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # planning makes many small values and no cycles: looking for garbage among them would take half of the time
    try:
        descriptions = all_descriptions(graph)
        compiled = compile_plan(make_plan(graph, cluster, options, descriptions), descriptions)
    finally:
        if collecting:
            gc.enable()
    return compiled, time.perf_counter() - start
