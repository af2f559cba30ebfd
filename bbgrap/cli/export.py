"""`bbgrap export`: every machine's stand-alone ONNX models, and the steps in which it runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bbgrap.cli.options import Json, Model, OfflineCase, offline_case, plan_options, takes
from bbgrap.cli.output import print_json, print_result, print_table, step
from bbgrap.planners.options import PlanOptions


@takes(options=plan_options, case=offline_case)
def export(
    model: Model,
    options: PlanOptions,
    case: OfflineCase,
    output: Annotated[Path, typer.Option(help="A new or empty folder.")],
    as_json: Json = False,
) -> None:
    """Write every node's stand-alone ONNX models and its steps, for any runtime; no cluster is needed.

    The folder gets index.json, which explains the rest, and per node a folder with steps.json and the models.

    Example:
        bbgrap export zoo:resnet50 --agents 2 --output parts
    """
    from bbgrap.cli.bundle import check_folder, write_bundle
    from bbgrap.cli.planning import plans_offline

    check_folder(output)
    planned = next(plans_offline(model, [options], case))
    with step(f"writing {output}"):
        index = write_bundle(planned.forecast.compiled.optimized, planned.names, planned.report, output)
    if as_json:
        print_json(index)
        return
    rows = [(node["name"], node["models"], node["steps_in_all"], node["bytes"]) for node in index["nodes"]]
    print_table(("node", "models", "steps", "bytes"), rows, title=planned.title)
    print_result(f"\n{output / 'index.json'} explains the rest")
