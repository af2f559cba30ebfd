"""`bbgrap simulate`: all machines of a plan in this process, compared with plain onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import Json, Model, OfflineCase, Seed, offline_case, plan_options, takes
from bbgrap.cli.output import before_and_after, print_json, print_result, print_table, say, step
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:
    from bbgrap.cli.planning import OfflinePlan
    from bbgrap.comparison import Comparison
    from bbgrap.compiler.artifacts import Artifacts


@takes(options=plan_options, case=offline_case)
def simulate(
    model: Model,
    options: PlanOptions,
    case: OfflineCase,
    seed: Seed = 0,
    measured: Annotated[
        bool, typer.Option("--measured", help="Time every node's segments here, one by one, instead of predicting them from profiles.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the partitioned model and compare the answer; else only predict.")
    ] = True,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the predicted timeline: .svg, .html or .json (Chrome, Perfetto).", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict when every node of a cluster does what, run the partitioned model in this process, and compare with plain onnxruntime.

    The cluster may be larger than this machine, and need not exist. Exit code 1 if the answer differs by more than onnxruntime's
    own ones do (with --transfer-dtype: by more than that says).

    Examples:
        bbgrap simulate zoo:resnet50 --agents 3

        bbgrap simulate zoo:resnet50 --agents 4 --transfer-dtype float16

        bbgrap simulate zoo:resnet50 --agents 8 --planner auto --no-run --measured --timeline eight.html

        bbgrap simulate model.onnx --cluster deploy/clusters/three-unequal.yaml --json
    """
    from bbgrap.cli.planning import plans_offline
    from bbgrap.cli.timelines import check_target, write_timeline
    from bbgrap.compiler.export import export

    check_target(timeline)
    planned = next(plans_offline(model, [options], case))
    forecast = planned.forecast
    with step("loading every node's segments"):
        artifacts = export(forecast.compiled.optimized)
    report = {key: value for key, value in planned.report.items() if key not in ("nodes", "predicted_timeline")}
    predicted = forecast.timeline
    if measured:
        from bbgrap.engine.segment_timing import measured_segments

        with step("timing every node's segments"):
            predicted = forecast.predictor.timeline(forecast.compiled.optimized, measured_segments(artifacts))
        report["measured_kernels_ms"] = 1e3 * predicted.total_s
    if timeline is not None:
        write_timeline(timeline, predicted, planned.title, predicted=True)
        say(f"written: {timeline}")
    result = _compare(planned, artifacts, options, seed) if run else None
    if as_json:
        print_json(report if result is None else {**report, **result.as_dict(), "verified": result.verified})
    else:
        print_table(("per request", "initial", "optimised"), before_and_after(planned.report), title=planned.title)
        print_result(f"\npredicted{', from measured segments' * measured}: {1e3 * predicted.total_s:.2f} ms a request")
        print_result("" if result is None else result.text)
    if result is not None and not result.verified:
        raise typer.Exit(1)


def _compare(planned: OfflinePlan, artifacts: Artifacts, options: PlanOptions, seed: int) -> Comparison:
    """Run the partitioned model and plain onnxruntime on the same inputs."""
    from bbgrap.compiler.simulate import simulate as walk
    from bbgrap.engine.kernels import local_kernels
    from bbgrap.engine.session_call import unpacked_results
    from bbgrap.engine.spread import ReferenceAnswers

    feeds = planned.inputs.feeds(seed)
    with step("running the partitioned model"):
        graph = planned.forecast.compiled.plan.graph
        found = walk(artifacts, list(feeds.values()), local_kernels(artifacts))
        answers = unpacked_results((graph.types[name] for name in graph.outputs), found)
    with step("running plain onnxruntime"):
        return ReferenceAnswers(planned.path, feeds).judge(answers, options.transfer_dtype)
