"""`bbgrap plan`: what every machine would compute, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bbgrap.cli.groups import Request, offline_request, takes
from bbgrap.cli.options import Json
from bbgrap.cli.output import before_and_after, print_json, print_result, print_table, say


@takes(request=offline_request)
def plan(
    request: Request,
    explain: Annotated[bool, typer.Option("--explain", help="List what every node reads, holds and fetches.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the plan to this file, as JSON.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Plan a model over several nodes; no cluster is needed.

    Examples:
        bbgrap plan zoo:resnet50 --agents 4 --explain

        bbgrap plan model.onnx --cluster deploy/clusters/three-unequal.yaml --json

        bbgrap plan zoo:vgg16 --agents 6 --grid 3x2

        bbgrap plan text.onnx --shares 2,1 --split batch --batch 8 --input tokens=8x128
    """
    from bbgrap.auto.explain import explain_forecast
    from bbgrap.cli.planning import plan_offline
    from bbgrap.report.plan_report import explain as explain_plan

    planned = plan_offline(request)
    if output is not None:
        output.write_text(json.dumps(planned.report, indent=2) + "\n", encoding="utf-8")
        say(f"written: {output}")
    if as_json:
        print_json(planned.report)
    write = say if as_json else print_result  # with --json, stdout is for JSON alone
    if explain:
        for line in (*explain_forecast(planned.forecast, request.options), "", *explain_plan(planned.forecast.compiled)):
            write(line)
    elif not as_json:
        print_table(("per request", "initial", "optimised"), before_and_after(planned.report), title=planned.title)
        predicted, alone = planned.report["predicted_ms"], planned.report["predicted_single_node_ms"]
        print_result(f"predicted: {predicted:.2f} ms a request, the best single node {alone:.2f} ms")
        say("--explain lists what every node reads, holds and fetches")
