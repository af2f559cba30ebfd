"""From a model file to everything that is deployed, in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bbgrap.cluster import Cluster
from bbgrap.engine.load import load_graph
from bbgrap.errors import PlanError
from bbgrap.graph import Graph
from bbgrap.planners import PlanOptions, all_descriptions, make_plan
from bbgrap.planners.options import Split
from bbgrap.program.artifacts import Artifacts
from bbgrap.program.compile import Compiled, compile_plan
from bbgrap.program.export import export
from bbgrap.program.memory import needed_bytes, overfull
from bbgrap.program.report import report_of


@dataclass(frozen=True)
class Prepared:
    """A planned model, ready to be deployed.

    `report` is the object that `plan --json` prints (plain values only).
    """

    graph: Graph
    report: Mapping[str, Any]
    artifacts: Artifacts


LEANER_SPLITS: tuple[Split, ...] = ("channels", "inputs")
"""Splits that divide the weights, tried in this order where the chosen one does not fit the nodes' memory."""


def prepare(model: Path, shapes: Mapping[str, tuple[int, ...]], cluster: Cluster, options: PlanOptions) -> Prepared:
    """Load a model for concrete input shapes, plan it over a cluster, optimise the program and export what each device needs.

    A plan that does not fit the memory that the nodes declare is replaced by one that divides the weights; the report then says so
    under `changed`.

    Raises:
        ModelError: if the file is no valid model.
        InputError: if the shapes do not fit it.
        PlanError: if no plan exists, or none that fits.
    """
    graph = load_graph(model, shapes)
    refused: list[str] = []
    for candidate in (options, *(replace(options, split=split) for split in LEANER_SPLITS if split != options.split)):
        compiled, search_s = compile_graph(graph, cluster, candidate)
        artifacts = export(compiled.optimized)
        needed = needed_bytes(compiled.optimized, artifacts)
        if faults := overfull(cluster, needed):
            refused.append(f"split by {candidate.split}: {', '.join(faults)}")
            continue
        report = report_of(compiled, search_s)
        names = [node.name for node in cluster.nodes]
        report["memory_bytes"] = dict(zip(names, needed, strict=True))
        report["weight_bytes"] = {name: device.weight_bytes for name, device in zip(names, artifacts.devices, strict=True)}
        report["changed"] = refused
        return Prepared(graph, report, artifacts)
    raise PlanError(f"model '{graph.name}': it fits the memory of these nodes in no split; {'; '.join(refused)}")


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
