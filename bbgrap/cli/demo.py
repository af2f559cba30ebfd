"""`bbgrap demo`: everything once, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from bbgrap.cli.options import Json, LocalAgents, Threads
from bbgrap.cli.output import before_and_after, print_json, print_result, print_table, say, step

_MODEL = "zoo:resnet50"


def demo(
    agents: LocalAgents = 2,
    threads: Threads = 1,
    runs: Annotated[int, typer.Option(min=1, help="Turns that are counted.")] = 20,
    model: Annotated[str, typer.Option(help="Another model: a file or zoo:NAME.")] = _MODEL,
    as_json: Json = False,
) -> None:
    """Start a coordinator and agents here, run ResNet50 on them, verify the answer and measure it.

    Exit code 0 only if the answer is that of plain onnxruntime.

    Example:
        bbgrap demo --agents 2
    """
    from bbgrap.bench import bench
    from bbgrap.cli.bench import print_comparison
    from bbgrap.cli.clusters import open_cluster
    from bbgrap.cli.input_options import GivenInputs
    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.engine.spread import ReferenceAnswers
    from bbgrap.planners.options import PlanOptions
    from bbgrap.session import InferenceSession

    count = agents or 2
    path = find_model(model)
    feeds = read_inputs(path, GivenInputs()).feeds(0)
    with open_cluster("", count, threads) as cluster:
        with step(f"submitting {model}: planning and deploying") as progress:
            session = InferenceSession(path, cluster=cluster, on_progress=progress.report)
            plan = session.prepare({name: array.shape for name, array in feeds.items()})
        with step("running it on the cluster"):
            answers = session.run(None, feeds)
        with step("running plain onnxruntime, for comparison"):
            first = ReferenceAnswers(path, feeds).judge(answers)
        say(first.text)
        with step("measuring, in turns with a single node") as progress:
            measured = bench(path, feeds, cluster, [PlanOptions()], runs=runs, threads=threads, name=model, report=progress.update)
    result = measured["results"][0]
    verified = first.verified and result["verified"]
    if as_json:
        shown = {key: value for key, value in plan.report.items() if key != "nodes"}
        print_json({"verified": verified, "plan": shown, "bench": measured})
    else:
        print_result()
        title = f"What the plan for {model} over {count} nodes does"
        print_table(("per request", "before", "after the passes"), before_and_after(plan.report), title=title)
        print_result()
        print_comparison(measured)
        print_result(f"\n{first.text}")
        print_result(f"speed-up over one node: {result['speedup']:.2f} with {len(result['nodes_used'])} nodes")
    if not verified:
        raise typer.Exit(1)
