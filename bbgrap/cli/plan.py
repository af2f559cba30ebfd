"""`bbgrap plan`: what every machine would compute, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import Json, Model, OfflineCase, contenders, offline_case, takes
from bbgrap.cli.output import before_and_after, check_writable, print_json, print_result, print_table, say
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:
    from bbgrap.cli.planning import OfflinePlan


@takes(asked=contenders, case=offline_case)
def plan(
    model: Model,
    asked: list[PlanOptions],
    case: OfflineCase,
    explain: Annotated[bool, typer.Option("--explain", help="List what every node reads, holds and fetches.")] = False,
    state: Annotated[
        str,
        typer.Option(
            metavar="IN:OUT,...",
            help="Plan further requests of sequences, whose state stays on the nodes; auto: pairs found by names.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[Path | None, typer.Option(help="Also write the plan to this file, as JSON.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Plan a model over several nodes; no cluster is needed. Several planners are compared by what is predicted.

    Examples:
        bbgrap plan zoo:resnet50 --agents 4 --explain

        bbgrap plan model.onnx --cluster deploy/clusters/three-unequal.yaml --json

        bbgrap plan zoo:vgg16 --agents 6 --grid 3x2

        bbgrap plan zoo:resnet50 --agents 3 --planner auto,bbgrap,tofu

        bbgrap plan zoo:voice --agents 2 --state auto

        bbgrap plan text.onnx --shares 2,1 --split batch --batch 8 --input tokens=8x128
    """
    from bbgrap.auto.explain import NO_ROOM, explain_forecast, wire_in_words
    from bbgrap.cli.planning import plans_offline
    from bbgrap.errors import UsageError
    from bbgrap.report.plan_report import explain as explain_plan
    from bbgrap.report.svg import byte_count

    if len(asked) > 1:
        if explain or output is not None:
            raise UsageError("--explain and --output: they take one plan; name one planner")
        _compare(plans_offline(model, asked, case, state), asked, as_json=as_json)
        return
    check_writable(output)
    planned = next(plans_offline(model, asked, case, state))
    if output is not None:
        output.write_text(json.dumps(planned.report, indent=2) + "\n", encoding="utf-8")
        say(f"written: {output}")
    if as_json:
        print_json(planned.report)
    write = say if as_json else print_result  # with --json, stdout is for JSON alone
    if explain:
        for line in (*explain_forecast(planned.forecast, asked[0]), "", *explain_plan(planned.forecast.compiled)):
            write(line)
    elif not as_json:
        print_table(("per request", "initial", "optimised"), before_and_after(planned.report), title=planned.title)
        alone = planned.report["predicted_single_node_ms"]
        best = NO_ROOM if alone is None else f"the best single node {alone:.2f} ms"
        print_result(f"predicted: {planned.report['predicted_ms']:.2f} ms a request, {best}")
        if held := planned.report.get("state_bytes"):
            told = ", ".join(f"{name} {byte_count(size)}" for name, size in held.items())
            print_result(f"state of one sequence: {told}; it stays there, and is counted in the nodes' memory")
        if planned.forecast.busiest_wire is not None:
            print_result(wire_in_words(planned.forecast.busiest_wire))
        say("--explain lists what every node reads, holds and fetches")


def _compare(plans: Iterator[OfflinePlan], asked: list[PlanOptions], *, as_json: bool) -> None:
    """Print what several planners' plans are predicted to take."""
    from bbgrap.auto.explain import NO_ROOM

    reports, rows = [], []
    for options, planned in zip(asked, plans, strict=True):
        report = planned.report
        used, optimized = len(planned.forecast.compiled.plan.devices_used), report["optimized"]
        alone = report["predicted_single_node_ms"]
        ratio = None if alone is None else alone / report["predicted_ms"]
        name = options.planner if options.planner == "auto" else f"{options.planner} ({options.split})"
        rows.append((name, report["predicted_ms"], ratio, used, optimized["transfers"], optimized["bytes"]))
        reports.append({key: value for key, value in report.items() if key not in ("nodes", "predicted_timeline")})
    if as_json:
        print_json(reports)
        return
    first, alone = reports[0], reports[0]["predicted_single_node_ms"]
    best = NO_ROOM if alone is None else f"the best single node takes {alone:.2f} ms"
    columns = ("planner", "predicted, ms", "speed-up", "nodes used", "messages", "bytes")
    print_table(columns, rows, title=f"{first['model']} over {len(first['agents'])} nodes; {best}")
