"""From a model file to everything that is deployed, in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bbgrap.auto.forecast import Forecast
from bbgrap.auto.search import plan_auto
from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.compile import Compiled, compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.memory import needed_bytes, overfull
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepared import Prepared
from bbgrap.engine.variants import beside, is_guarded, serves_streams, whole_on_each
from bbgrap.errors import PlanError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.registry import AUTO, make_plan
from bbgrap.program.dictionaries import ways_of_palettes
from bbgrap.report.plan_report import report_of

TIGHT = 0.85
"""Part of the declared memory that a second search may use: chosen."""

LEANER_SPLITS: tuple[Split, ...] = ("channels", "inputs")
"""Splits that divide the weights, tried in this order where the chosen one does not fit the nodes' memory."""


def prepare(model: Path, shapes: Mapping[str, tuple[int, ...]], cluster: Cluster, options: PlanOptions) -> Prepared:
    """Load a model for concrete input shapes, plan it over a cluster, optimise the program and export what each device needs.

    Raises:
        ModelError: if the file is no valid model.
        InputError: if the shapes do not fit it.
        PlanError: if no plan exists, or none that fits the nodes' memory.
    """
    graph = load_graph(model, shapes)
    if serves_streams(options) and (routes := whole_on_each(graph, cluster, options)):
        return Prepared(routes[0].report, routes[0].artifacts, routes[0].name, routes[1:])
    forecast, artifacts, report = fit(graph, cluster, options)
    others = beside(forecast, artifacts, report) if is_guarded(options) else ()
    return Prepared(report, artifacts, "", others)


def fit(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Forecast, Artifacts, dict[str, Any]]:
    """Plan a loaded model within the memory that the nodes declare; return the programs, what is deployed, and the report.

    A plan that does not fit is replaced by one that divides the weights; the report then says so under `changed`.

    Raises:
        PlanError: if no plan exists, or none that fits.
    """
    refused: list[str] = []
    for words, candidate, within in _attempts(cluster, options):
        forecast, search_s = plan_graph(graph, within, candidate)
        artifacts = export(forecast.compiled.optimized)
        needed = needed_bytes(forecast.compiled.optimized, artifacts)
        if faults := overfull(cluster, needed):
            refused.append(f"{words}: {', '.join(faults)}")
            continue
        names = [node.name for node in cluster.nodes]
        report = (
            report_of(forecast.compiled, search_s)
            | forecast.report()
            | {
                "memory_bytes": dict(zip(names, needed, strict=True)),
                "weight_bytes": {name: device.weight_bytes for name, device in zip(names, artifacts.devices, strict=True)},
                "changed": refused,
            }
        )
        return forecast, artifacts, report
    raise PlanError(f"model '{graph.name}': it fits the memory of these nodes in no split; {'; '.join(refused)}")


def _attempts(cluster: Cluster, options: PlanOptions) -> Iterator[tuple[str, PlanOptions, Cluster]]:
    """Yield what is tried in turn, in words, until something fits: the planner asked for, then splits that divide the weights."""
    if options.planner == AUTO:
        # it counts memory itself, but less exactly than what is exported: a second search leaves more room
        yield "planner 'auto'", options, cluster
        yield "planner 'auto' with less room", options, _with_memory(cluster, TIGHT)
        options = replace(options, planner="bbgrap")
    else:
        yield f"split by {options.split}", options, cluster
    for split in LEANER_SPLITS:
        if split != options.split:
            yield f"split by {split}", replace(options, split=split), cluster


def _with_memory(cluster: Cluster, part: float) -> Cluster:
    return replace(cluster, nodes=tuple(replace(node, memory_bytes=round(part * node.memory_bytes)) for node in cluster.nodes))


def plan_graph(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Forecast, float]:
    """Plan a loaded model and optimise its program; also return the seconds this took.

    Raises:
        PlanError: if no plan exists.
    """
    start = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # planning makes many small values and no cycles: looking for garbage among them would take half of the time
    try:
        descriptions = all_descriptions(graph)
        if options.planner == AUTO:
            deadline = start + options.search_seconds
            found = plan_auto(graph, cluster, options, descriptions, time_is_up=lambda: time.perf_counter() > deadline)
            plan = found.plan
        else:
            found, plan = None, make_plan(graph, cluster, options, descriptions)
        compiled = compile_plan(plan, descriptions, options.transfer_dtype, ways_of_palettes(cluster, options.input_values))
    finally:
        if collecting:
            gc.enable()
    return Forecast(compiled, descriptions, found), time.perf_counter() - start


def compile_graph(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Compiled, float]:
    """Plan a loaded model and optimise its program; also return the seconds this took.

    Raises:
        PlanError: if no plan exists.
    """
    forecast, seconds = plan_graph(graph, cluster, options)
    return forecast.compiled, seconds
