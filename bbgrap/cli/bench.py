"""`bbgrap bench`: one node against the cluster, in turns."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.options import Json, LocalAgents, Model, Seed, Where, contenders, given_inputs, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_table, say, step
from bbgrap.errors import UsageError
from bbgrap.planners.options import PlanOptions, undivided_note

BUSY_TEXT = "this machine was busy with other work: do not trust these times"


@takes(planned=contenders, inputs=given_inputs, where=where_is)
def bench(
    model: Model,
    planned: list[PlanOptions],
    inputs: GivenInputs,
    runs: Annotated[int, typer.Option(min=1, help="Turns that are counted.")] = 30,
    stream: Annotated[
        int | None, typer.Option(min=5, help="Measure throughput instead: so many requests, several at once.", show_default=False)
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(min=1, help="With --stream: requests at once; default: 2 per agent.", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Measure a decoder instead: so many words, each after the one before.", show_default=False)
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="With --tokens: words before them; default: 32.", show_default=False)] = None,
    top: Annotated[
        int | None,
        typer.Option(min=0, help="With --tokens: so many likeliest words are asked for; default: 1. 0: all logits.", show_default=False),
    ] = None,
    seed: Seed = 0,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="Draw inputs with the values of pictures of 8 bits a colour: over slow networks they travel in fewer bytes, exactly.",
        ),
    ] = False,
    agents: LocalAgents = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of the single node and of each agent that is started; default: 1, or as the agents have."),
    ] = None,
    *,
    where: Where,
    as_json: Json = False,
) -> None:
    """Measure a model on one node and on the cluster, run by run in turns.

    The single node is plain onnxruntime with the unmodified file, in this process, bound to as many cores as it has threads. Times are
    medians; the speed-up is the median of the ratios within a turn. Exit code 1 if an answer differs by more than onnxruntime's own
    ones do (with --transfer-dtype: by more than that says).

    Examples:
        bbgrap bench zoo:resnet50 --agents 2

        bbgrap bench model.onnx --planner bbgrap,single --runs 100 --json --coordinator tcp://head:7070

        bbgrap bench zoo:resnet50 --agents 2 --stream 200 --planner single --objective throughput

        bbgrap bench zoo:tiny-decoder --agents 2 --tokens 16
    """
    from bbgrap.bench import bench as measure
    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.stream import measure_stream
    from bbgrap.tokens import measure_tokens

    if in_flight is not None and stream is None:
        raise UsageError("--in-flight: it belongs to --stream N; give both or neither")
    if prompt is not None and tokens is None:
        raise UsageError("--prompt: it belongs to --tokens N; give both or neither")
    if top is not None and tokens is None:
        raise UsageError("--top: it belongs to --tokens N; give both or neither")
    if tokens is not None and (stream is not None or inputs != GivenInputs()):
        raise UsageError("--tokens: words follow from the model; leave out --stream, --input and --batch")
    path = find_model(model)
    feeds = {} if tokens is not None else read_inputs(path, inputs).feeds(seed, pictures=pictures)
    with (
        where.open(agents, threads or 1) as cluster,
        step("measuring") as progress,
    ):
        common: dict[str, Any] = {"threads": threads, "name": model, "report": progress.update}
        if tokens is not None:
            wanted = 1 if top is None else top
            report = measure_tokens(path, cluster, planned, tokens=tokens, prompt=prompt or 32, top=wanted, seed=seed, **common)
        elif stream is None:
            report = measure(path, feeds, cluster, planned, runs=runs, **common)
        else:
            report = measure_stream(path, feeds, cluster, planned, requests=stream, in_flight=in_flight, **common)
    if report["machine"]["busy"] and as_json:
        say(BUSY_TEXT)
    if as_json:
        print_json(report)
    else:
        (print_tokens if tokens is not None else print_comparison if stream is None else print_rates)(report)
    if not all(result["verified"] for result in report["results"]):
        say("bbgrap: an answer differs from plain onnxruntime by more than is allowed")
        raise typer.Exit(1)


def print_comparison(report: dict[str, Any]) -> None:
    """Print the table of a measurement."""
    single = report["single_node"]
    columns = ("", "median ms", "p95 ms", "speed-up", "max abs err", "max rel err", "same bits", "messages", "bytes", "nodes")
    rows: list[tuple[object, ...]] = [
        (f"single node, {single['threads']} thread{'s' * (single['threads'] != 1)}", single["median_ms"], single["p95_ms"], *[None] * 7)
    ]
    for result in report["results"]:
        numbers = [result[key] for key in ("median_ms", "p95_ms", "speedup", "max_abs_err", "max_rel_err", "bit_identical")]
        rows.append(
            (
                f"{_planned(result)}{_lossy(result)}{', dictionaries' if result['dictionaries'] else ''}",
                *numbers,
                result["transfers"],
                result["bytes_sent"],
                len(result["nodes_used"]),
            )
        )
    lossy = next(filter(None, map(_lossy, report["results"])), "")
    threads = ", ".join(str(agent["threads"]) for agent in report["agents"])
    shapes = ", ".join(f"{name} {shape}" for name, shape in report["inputs"].items())
    print_table(
        columns,
        rows,
        title=f"{report['model']}, {shapes}: {len(report['agents'])} agents (threads: {threads}), {report['runs']} runs{lossy}",
    )
    _print_doubts(report)


def print_rates(report: dict[str, Any]) -> None:
    """Print the table of a stream."""
    single = report["single_node"]
    threads = single["threads"]
    alone = f"single node, {threads} thread{'s' * (threads != 1)}, one after the other"
    rows: list[tuple[object, ...]] = [(alone, report["results"][0]["single_per_s"], *[None] * 4)]
    for result in report["results"]:
        numbers = [result[key] for key in ("throughput_per_s", "throughput_ratio", "max_rel_err", "bit_identical")]
        rows.append((f"{result['planner']} ({result['objective']})", *numbers, len(result["nodes_used"])))
    shapes = ", ".join(f"{name} {shape}" for name, shape in report["inputs"].items())
    title = f"{report['model']}, {shapes}: {report['requests']} requests, {report['in_flight']} at once, {len(report['agents'])} agents"
    print_table(("", "per second", "ratio", "max rel err", "same bits", "nodes"), rows, title=title)
    _print_doubts(report)


def print_tokens(report: dict[str, Any]) -> None:
    """Print the table of a decoder."""
    single = report["single_node"]
    alone = f"single node, {single['threads']} thread{'s' * (single['threads'] != 1)}, cache in memory"
    rows: list[tuple[object, ...]] = [(alone, single["tokens_per_s"], None, single["prompt_ms"], *[None] * 6)]
    for result in report["results"]:
        weights = (result["weight_bytes"] or {}).values()
        rows.append(
            (
                result["planner"],
                *(result[key] for key in ("tokens_per_s", "ratio", "prompt_ms", "max_rel_err", "same_tokens")),
                *(result[key] for key in ("bytes_between_nodes", "bytes_answered")),
                max(weights, default=None),
                len(result["nodes_used"] or ()),
            )
        )
    columns = (
        "",
        "tokens/s",
        "ratio",
        "prompt ms",
        "max rel err",
        "same words",
        "bytes between",
        "bytes answered",
        "weights a node",
        "nodes",
    )
    title = f"{report['model']}: {report['tokens']} words after {report['prompt']}, {len(report['agents'])} agents"
    print_table(columns, rows, title=title)
    _print_doubts(report)


def _print_doubts(report: dict[str, Any]) -> None:
    if report["machine"]["busy"]:
        print_result(BUSY_TEXT)
    for result in report["results"]:
        count = result.get("elsewhere")
        elsewhere = f"{count} answers came from something else than this plan, as the standby: the figures are not the plan's alone"
        doubts = [
            undivided_note(result["planner"], len(result.get("nodes_used") or ()), len(report["agents"])),
            elsewhere if count else "",
            *(result.get(key) for key in ("fault", "replaced", "why_not")),
            *(result.get("changed") or ()),
        ]
        for doubt in filter(None, doubts):
            print_result(f"{result['planner']}: {doubt}")


def _planned(result: dict[str, Any]) -> str:
    """Return who planned, and along what if that was asked for: `auto` cuts every layer as it likes, a single node none."""
    return str(result["planner"]) if result["planner"] in {"auto", "single"} else f"{result['planner']} ({result['split']})"


def _lossy(result: dict[str, Any]) -> str:
    return "" if result["transfer_dtype"] == "exact" else f", {result['transfer_dtype']} transfers (lossy)"
