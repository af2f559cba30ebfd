"""`bbgrap trace`: what every node does when, measured on the cluster, as files that others show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.options import Json, LocalAgents, Model, Seed, Threads, Where, given_inputs, plan_options, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_table, say, step
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:
    from bbgrap.report.trace import Trace


@takes(options=plan_options, inputs=given_inputs, where=where_is)
def trace(
    model: Model,
    options: PlanOptions,
    inputs: GivenInputs,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the trace: .json (Chrome, ui.perfetto.dev), .svg or .html.")
    ] = Path("trace.json"),
    html: Annotated[Path | None, typer.Option("--html", help="Also write a report to this file.", show_default=False)] = None,
    runs: Annotated[int, typer.Option(min=1, help="Requests that are recorded; the files show the one of median length.")] = 5,
    seed: Seed = 0,
    agents: LocalAgents = None,
    threads: Threads = 1,
    *,
    where: Where,
    as_json: Json = False,
) -> None:
    """Record what every node does when: computing, sending, receiving, waiting.

    Times are those of the coordinator's clock; how far they may be off is part of the result. Recording costs a few microseconds a step,
    and nothing where it is not asked for.

    Examples:
        bbgrap trace zoo:resnet50 --agents 2 -o trace.json --html report.html

        bbgrap trace model.onnx --coordinator tcp://head:7070 --runs 20 --json
    """
    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.cli.timelines import check_target, write_text, write_timeline
    from bbgrap.costmodel.timeline import read_timeline
    from bbgrap.report.html import report_html
    from bbgrap.report.layers import read_layers
    from bbgrap.report.svg import milliseconds
    from bbgrap.session import InferenceSession

    check_target(output)
    check_target(html, ".html")
    path = find_model(model)
    feeds = read_inputs(path, inputs).feeds(seed)
    with where.open(agents, threads) as cluster:
        with step("planning and deploying") as progress:
            session = InferenceSession(path, cluster=cluster, options=options, on_progress=progress.report)
            session.prepare({name: array.shape for name, array in feeds.items()}, feeds)
        with step(f"recording {runs} requests"):
            traced = session.trace(feeds, runs)
        plan = session.plan.report  # it may have to be asked for: the standby answers if an agent was lost
    summary = summary_of(traced) | {
        "model": model,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "planner": plan["planner"],
        "split": options.split,
        "nodes_used": plan["nodes_used"],
    }
    title = f"{model} over {len(plan['nodes_used'])} node{'s' * (len(plan['nodes_used']) != 1)}"
    write_timeline(output, traced.median, title)
    if html is not None:
        facts = {
            "planner": plan["planner"],
            "cut along": options.split,
            "inputs": ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items()),
            "requests": runs,
            "median": f"{summary['median_ms']:.2f} ms",
            "predicted": f"{plan['predicted_ms']:.2f} ms" if "predicted_ms" in plan else "not, as the standby answered",
            "clocks agree within": milliseconds(1e-6 * summary["clock_error_us"]),
        }
        layers = read_layers(plan.get("layers", []))
        predicted = read_timeline(plan["predicted_timeline"]) if "predicted_timeline" in plan else None
        page = report_html(title, measured=traced.median, predicted=predicted, segments=traced.segments, layers=layers, facts=facts)
        write_text(html, page)
    files = [str(file) for file in (output, html) if file is not None]
    for file in files:
        say(f"written: {file}")
    if as_json:
        print_json({"schema": 1, **summary, "files": files})
    else:
        _print_summary(title, summary)


def summary_of(traced: Trace) -> dict[str, Any]:
    """Return the numbers of a trace: the keys of `trace --json` that come from it."""
    from bbgrap.costmodel.timeline import LANES
    from bbgrap.report.tables import exchanges_of

    median = traced.median
    return {
        "runs": len(traced.timelines),
        "times_ms": [round(1e3 * timeline.total_s, 3) for timeline in traced.timelines],
        "median_ms": 1e3 * median.total_s,
        "clock_error_us": 1e6 * traced.clock_error_s,
        "nodes": [
            {"name": name, **{f"{lane}_ms": 1e3 * median.busy_s(device, lane) for lane in LANES}}
            for device, name in enumerate(median.devices)
        ],
        "segments": [
            {"node": median.devices[entry.device], "segment": entry.segment, "name": entry.name, "median_ms": 1e3 * entry.median_s}
            for entry in traced.segments
        ],
        "exchanges": [
            {"values": entry.values, "messages": entry.messages, "bytes": entry.bytes, "first_ms": 1e3 * entry.first_s}
            for entry in exchanges_of(median)
        ],
    }


def _print_summary(title: str, summary: dict[str, Any]) -> None:
    from bbgrap.report.svg import milliseconds

    lanes = ("compute", "send", "receive", "wait")
    rows = [(node["name"], *(node[f"{lane}_ms"] for lane in lanes)) for node in summary["nodes"]]
    print_table(("node", *(f"{lane} ms" for lane in lanes)), rows, title=title)
    error, runs = milliseconds(1e-6 * summary["clock_error_us"]), summary["runs"]
    print_result(f"\nmedian of {runs} requests: {summary['median_ms']:.2f} ms; clocks agree within {error}")
