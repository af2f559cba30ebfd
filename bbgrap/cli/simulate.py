"""`bbgrap simulate`: all machines of a plan in this process, compared with plain onnxruntime."""

from __future__ import annotations

from typing import Annotated

import typer

from bbgrap.cli.options import (
    Agents,
    Batch,
    ClusterFile,
    Grid,
    Json,
    Model,
    Objective,
    Planner,
    SearchSeconds,
    Seed,
    Shares,
    Split,
    TransferDtype,
)
from bbgrap.cli.output import before_and_after, print_json, print_result, print_table, say, step


def simulate(
    model: Model,
    agents: Agents = None,
    cluster: ClusterFile = None,
    shares: Shares = "",
    planner: Planner = "bbgrap",
    split: Split = "rows",
    grid: Grid = "",
    objective: Objective = "latency",
    search_seconds: SearchSeconds = 10.0,
    transfer_dtype: TransferDtype = "exact",
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=SHAPE", help="Shape of an input with free dimensions: x=1x3x224x224.", show_default=False),
    ] = None,
    batch: Batch = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run a partitioned model in this process, every node in turn, and compare the answer with plain onnxruntime.

    Exit code 1 if they differ by more than rounding (with --transfer-dtype: by more than that says).

    Examples:
        bbgrap simulate zoo:resnet50 --agents 3

        bbgrap simulate zoo:resnet50 --agents 4 --transfer-dtype float16

        bbgrap simulate model.onnx --cluster deploy/clusters/three-unequal.yaml --json
    """
    from bbgrap.bench import compare
    from bbgrap.cli.inputs import random_inputs
    from bbgrap.cli.options import plan_options
    from bbgrap.cli.planning import Request, plan_offline
    from bbgrap.engine.kernels import local_kernels
    from bbgrap.engine.reference import Reference
    from bbgrap.program.export import export
    from bbgrap.program.simulate import simulate as walk

    options = plan_options(planner, split, grid, objective=objective, search_seconds=search_seconds, transfer_dtype=transfer_dtype)
    planned = plan_offline(Request(model, agents, cluster, shares, options, tuple(inputs or ()), batch))
    feeds = random_inputs(planned.inputs, planned.shapes, seed)
    say(f"inputs: random, seed {seed}")
    with step("loading every node's segments"):
        artifacts = export(planned.forecast.compiled.optimized)
        kernels = local_kernels(artifacts)
    with step("running the partitioned model"):
        answers = walk(artifacts, list(feeds.values()), kernels)
    with step("running plain onnxruntime"):
        expected = Reference(planned.path).run(feeds)
    result = compare(answers, expected, options.transfer_dtype)
    if as_json:
        report = {key: value for key, value in planned.report.items() if key != "nodes"}
        print_json({**report, **result.as_dict(), "verified": result.verified})
    else:
        print_table(("per request", "initial", "optimised"), before_and_after(planned.report), title=planned.title)
        print_result(f"\n{result.text}")
    if not result.verified:
        raise typer.Exit(1)
