"""`bbgrap export`: every machine's stand-alone ONNX models, and the steps in which it runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bbgrap.cli.options import (
    Agents,
    Batch,
    ClusterFile,
    Grid,
    InputShapes,
    Json,
    Model,
    Objective,
    Planner,
    SearchSeconds,
    Shares,
    Split,
    TransferDtype,
)
from bbgrap.cli.output import print_json, print_result, print_table, step


def export(
    model: Model,
    output: Annotated[Path, typer.Option(help="A new or empty folder.")],
    agents: Agents = None,
    cluster: ClusterFile = None,
    shares: Shares = "",
    planner: Planner = "bbgrap",
    split: Split = "rows",
    grid: Grid = "",
    objective: Objective = "latency",
    search_seconds: SearchSeconds = 10.0,
    transfer_dtype: TransferDtype = "exact",
    shapes: InputShapes = None,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """Write every node's stand-alone ONNX models and its steps, for any runtime; no cluster is needed.

    The folder gets index.json, which explains the rest, and per node a folder with steps.json and the models.

    Example:
        bbgrap export zoo:resnet50 --agents 2 --output parts
    """
    from bbgrap.cli.bundle import check_folder, write_bundle
    from bbgrap.cli.options import plan_options
    from bbgrap.cli.planning import Request, plan_offline

    check_folder(output)
    options = plan_options(planner, split, grid, objective=objective, search_seconds=search_seconds, transfer_dtype=transfer_dtype)
    planned = plan_offline(Request(model, agents, cluster, shares, options, tuple(shapes or ()), batch))
    with step(f"writing {output}"):
        index = write_bundle(planned.forecast.compiled.optimized, planned.names, planned.report, output)
    if as_json:
        print_json(index)
        return
    rows = [(node["name"], node["models"], node["steps_in_all"], node["bytes"]) for node in index["nodes"]]
    print_table(("node", "models", "steps", "bytes"), rows, title=planned.title)
    print_result(f"\n{output / 'index.json'} explains the rest")
