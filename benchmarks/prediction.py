"""Does the cost model tell the truth? Predicted against measured latency of every zoo model, split several ways over two real agents.

    python -m benchmarks.prediction                       a table, and the error's median and 90th percentile
    python -m benchmarks.prediction --models resnet50,vgg16 --splits rows,auto --runs 15 --json

Two agents, a core each, and the coordinator run on this machine. Each is profiled first (`bbgrap profile`); from the profiles alone comes
the first prediction. Then some requests are recorded, the measured times of segments and messages correct the model (one calibration
pass), and the same plan is predicted again; that one is compared with other requests than those recorded. The two kinds take turns, since
a machine's speed may change within seconds. Of planner `auto`, which keeps what is fastest of several routes, the one that serves is
predicted. It comes first, since the coordinator plans with what it has measured of a model.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer

from bbgrap.auto.calibrate import calibrated, message_factors
from bbgrap.auto.forecast import Forecast
from bbgrap.cli.inputs import random_inputs
from bbgrap.cli.models import concrete_shapes, find_model, inputs_of
from bbgrap.cli.output import print_table, say
from bbgrap.cluster.types import Cluster, Network, NodeProfile
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.predict import Predictor
from bbgrap.control.calibrations import medians_of
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import fit
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.planners.registry import AUTO
from bbgrap.planners.single import plan_whole
from bbgrap.program.statistics import statistics_of
from bbgrap.report.trace import Trace
from bbgrap.session import InferenceSession
from bbgrap.zoo import names

BATCH = 4
"""Images for the split by batch."""


@dataclass(frozen=True)
class Cell:
    """One model under one split: milliseconds measured, predicted from profiles alone, and predicted after the calibration.

    `route` is what serves where the coordinator chooses between several.
    """

    model: str
    split: str
    route: str
    measured_ms: float
    uncalibrated_ms: float
    predicted_ms: float

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors before and after the calibration."""
        return self.uncalibrated_ms / self.measured_ms - 1, self.predicted_ms / self.measured_ms - 1


def seen_by_planners(cluster: LocalCluster) -> Cluster:
    """Return the nodes as the coordinator plans for them: profiled, all on one machine."""
    nodes = cluster.connection.nodes()
    profiles = (replace(node.profile or NodeProfile(node.name), machine="here") for node in nodes)
    return Cluster(tuple(profiles), Network(coordinator_on=nodes[0].name))


def measure(cluster: LocalCluster, model: str, split: str, runs: int) -> Cell:
    """Predict and measure one cell."""
    path = find_model(f"zoo:{model}")
    declared = inputs_of(path)
    shapes = concrete_shapes(declared, (), BATCH if split == "batch" else None)
    feeds = random_inputs(declared, shapes, 0)
    options = PlanOptions("auto") if split == "auto" else PlanOptions(split=split)  # type: ignore[arg-type]
    session = InferenceSession(path, cluster=cluster, options=options)
    session.prepare({name: array.shape for name, array in feeds.items()})
    planned = fit(load_graph(path, shapes), seen_by_planners(cluster), options)[0]
    route = session.plan.report.get("measured", {"chosen": [""]})["chosen"][0] if split == AUTO else ""
    forecast = serving(planned, route)
    if statistics_of(forecast.compiled.optimized).bytes != session.plan.report["optimized"]["bytes"]:
        say(f"{model} by {split}: the plan here is not the one deployed")
    for _ in range(3):
        session.run(None, feeds)
    timelines, times = [], []
    for _ in range(runs):
        timelines += session.trace(feeds, 1).timelines
        began = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - began)
    names = [node.name for node in forecast.compiled.plan.cluster.nodes]
    messages = medians_of(message_factors(forecast.compiled.plan.cluster, timeline) for timeline in timelines)
    calibration = calibrated(names, forecast.segments, Trace(tuple(timelines), 0.0).segments, messages)
    predicted = Predictor(forecast.compiled.plan.cluster, calibration).timeline(forecast.compiled.optimized).total_s
    return Cell(model, split, route, 1e3 * statistics.median(times), 1e3 * forecast.timeline.total_s, 1e3 * predicted)


def serving(planned: Forecast, route: str) -> Forecast:
    """Return the forecast of the route that serves: the plan itself, a node alone, or the next best candidate."""
    plan = planned.compiled.plan
    alone = {f"single on {node.name}": device for device, node in enumerate(plan.cluster.nodes)}
    if route in {"", AUTO}:
        return planned
    if route in alone:
        other = plan_whole(plan.graph, plan.cluster, alone[route])
    else:
        assert planned.found is not None, "only planner 'auto' has routes"
        other = next(Plan(AUTO, plan.graph, plan.cluster, c.tiles) for c in planned.found.candidates if c.name == route)
    return Forecast(compile_plan(other, planned.descriptions), planned.descriptions)


def summary(cells: list[Cell]) -> dict[str, Any]:
    """Return the errors over all cells."""
    before, after = zip(*(map(abs, cell.errors) for cell in cells), strict=True)
    return {
        "cells": [{**vars(cell), "error_uncalibrated": round(cell.errors[0], 4), "error": round(cell.errors[1], 4)} for cell in cells],
        **{
            f"{name}_{words}": float(np.percentile(errors, point))
            for words, errors in (("uncalibrated", before), ("calibrated", after))
            for name, point in (("median", 50), ("p90", 90))
        },
    }


def main(
    models: Annotated[str, typer.Option(help="Zoo models, separated by commas.")] = "",
    splits: Annotated[str, typer.Option(help="Splits, and 'auto'.")] = "auto,rows,channels,batch",
    runs: Annotated[int, typer.Option(min=3, help="Requests that are timed per cell, and as many that are recorded.")] = 11,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")] = False,
) -> None:
    """Compare predictions with measurements."""
    cells = []
    with LocalCluster(agents=2) as cluster:
        say("measuring the nodes")
        cluster.connection.profile()
        for model in models.split(",") if models else names():
            for split in splits.split(","):
                cells.append(measure(cluster, model, split, runs))
                cell = cells[-1]
                told = f"predicted {cell.uncalibrated_ms:.2f}, then {cell.predicted_ms:.2f}"
                say(f"{model} by {split}{f' ({cell.route})' if cell.route else ''}: measured {cell.measured_ms:.2f} ms, {told}")
    found = summary(cells)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        (c.model, c.route or c.split, c.measured_ms, c.uncalibrated_ms, c.predicted_ms, *(f"{e:+.1%}" for e in c.errors)) for c in cells
    ]
    print_table(
        ("model", "split", "measured ms", "profiles alone", "calibrated", "error", "error calibrated"),
        rows,
        title="prediction against measurement",
    )
    for words in ("uncalibrated", "calibrated"):
        say(f"{words}: median error {found[f'median_{words}']:.1%}, 90th percentile {found[f'p90_{words}']:.1%}")


if __name__ == "__main__":
    typer.run(main)
