"""Does the cost model tell the truth? Predicted against measured latency of every zoo model, split several ways over two real agents.

    python -m benchmarks.prediction                       a table, and the error's median and 90th percentile
    python -m benchmarks.prediction --models resnet50,vgg16 --splits rows,auto --runs 15 --json

Two agents, a core each, and the coordinator run on this machine. Each is profiled first (`bbgrap profile`); from the profiles alone comes
the prediction. Of planner `auto`, which keeps what is fastest of several plan variants, the one that serves is predicted.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer

from bbgrap.auto.forecast import Forecast
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_table, say
from bbgrap.cluster.types import Cluster, Network, NodeProfile
from bbgrap.compiler.compile import compile_plan
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import fit
from bbgrap.local import LocalCluster
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import AUTO, PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.planners.single import plan_whole
from bbgrap.program.statistics import statistics_of
from bbgrap.session import InferenceSession
from bbgrap.zoo import names

BATCH = 4
"""Images for the split by batch."""


@dataclass(frozen=True)
class Cell:
    """One model under one split: milliseconds measured, and predicted from profiles.

    `variant` is what serves where the coordinator chooses between several.
    """

    model: str
    split: str
    variant: str
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """The relative error."""
        return self.predicted_ms / self.measured_ms - 1


def seen_by_planners(cluster: LocalCluster) -> Cluster:
    """Return the nodes as the coordinator plans for them: profiled, all on one machine."""
    nodes = cluster.connection.nodes()
    profiles = (replace(node.profile or NodeProfile(node.name), machine="here") for node in nodes)
    return Cluster(tuple(profiles), Network(coordinator_on=nodes[0].name))


def measure(cluster: LocalCluster, model: str, split: str, runs: int) -> Cell:
    """Predict and measure one cell."""
    path = find_model(f"zoo:{model}")
    inputs = read_inputs(path, GivenInputs(batch=BATCH if split == "batch" else None))
    feeds = inputs.feeds(0)
    options = PlanOptions("auto") if split == "auto" else PlanOptions(split=split)  # type: ignore[arg-type]
    session = InferenceSession(path, cluster=cluster, options=options)
    session.prepare(inputs.shapes)
    planned = fit(load_graph(path, inputs.shapes), seen_by_planners(cluster), options)[0]
    variant = session.plan.report.get("measured", {"chosen": [""]})["chosen"][0] if split == AUTO else ""
    forecast = serving(planned, variant)
    if statistics_of(forecast.compiled.optimized).bytes != session.plan.report["optimized"]["bytes"]:
        say(f"{model} by {split}: the plan here is not the one deployed")
    for _ in range(3):
        session.run(None, feeds)
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - began)
    return Cell(model, split, variant, 1e3 * statistics.median(times), 1e3 * forecast.timeline.total_s)


def serving(planned: Forecast, variant: str) -> Forecast:
    """Return the forecast of the variant that serves: the plan itself, a node alone, or the next best candidate."""
    plan = planned.compiled.plan
    alone = {f"single on {node.name}": device for device, node in enumerate(plan.cluster.nodes)}
    if variant in {"", AUTO}:
        return planned
    if variant in alone:
        other = plan_whole(planned.graph_of_one, plan.cluster, alone[variant])
    else:
        assert planned.found is not None, "only planner 'auto' has routes"
        other = next(Plan(AUTO, plan.graph, plan.cluster, c.tiles) for c in planned.found.candidates if c.name == variant)
    descriptions = all_descriptions(other.graph)
    return Forecast(compile_plan(other, descriptions), descriptions)


def summary(cells: list[Cell]) -> dict[str, Any]:
    """Return the errors over all cells."""
    errors = [abs(cell.error) for cell in cells]
    return {
        "cells": [{**vars(cell), "error": round(cell.error, 4)} for cell in cells],
        "median": float(np.percentile(errors, 50)),
        "p90": float(np.percentile(errors, 90)),
    }


def main(
    models: Annotated[str, typer.Option(help="Zoo models, separated by commas.")] = "",
    splits: Annotated[str, typer.Option(help="Splits, and 'auto'.")] = "auto,rows,channels,batch",
    runs: Annotated[int, typer.Option(min=3, help="Requests that are timed per cell.")] = 11,
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
                name = f"{model} by {split}{f' ({cell.variant})' if cell.variant else ''}"
                say(f"{name}: measured {cell.measured_ms:.2f} ms, predicted {cell.predicted_ms:.2f}")
    found = summary(cells)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [(c.model, c.variant or c.split, c.measured_ms, c.predicted_ms, f"{c.error:+.1%}") for c in cells]
    print_table(("model", "split", "measured ms", "predicted ms", "error"), rows, title="prediction against measurement")
    say(f"median error {found['median']:.1%}, 90th percentile {found['p90']:.1%}")


if __name__ == "__main__":
    typer.run(main)
