"""Is a training step on several agents faster than on one, and by which planner? Losses, bytes and times.

    python -m benchmarks.training --network alexnet --batch 64 --agents 2 --json

Every planner trains from the same weights on the same samples; so does one agent, which has the same core. Losses are compared with those
of plain onnxruntime. Bytes are those that agents received from agents in a step. A step lasts until all agents have their new weights:
that is when the one after it can go on. Beside the time on the clock stands the processor time of the busiest agent, which other programs
on the machine change less.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from bbgrap import InferenceSession
from bbgrap.cli.output import print_table, say
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array
from bbgrap.local import LocalCluster
from bbgrap.zoo import training
from bbgrap.zoo.training import TrainingStep
from benchmarks.exit_status import exit_status

PLANNERS = "data-parallel,one-weird-trick,hypar,soybean,tofu,auto"
ALONE = "single"
WARM_UP = 2
"""Steps that are not timed: the first one brings the weights."""
SEEN = 1e-4
"""How far losses may be from those of plain onnxruntime, relative."""


def batches(step: TrainingStep, count: int) -> list[dict[str, Array]]:
    """Draw samples and labels for some steps."""
    random, types = np.random.default_rng(0), step.graph.types
    classes = int(step.graph.weights["classes"].array)
    images, labels = types["input"].known_shape, types["labels"].known_shape
    return [{"input": random.standard_normal(images, np.float32), "labels": random.integers(0, classes, labels)} for _ in range(count)]


def losses_of(step: TrainingStep, data: bytes, feeds: Sequence[Mapping[str, Array]]) -> list[float]:
    """Return the losses of plain onnxruntime."""
    session, state, losses = make_session(data, threads=1), step.initial, list[float]()
    for feed in feeds:
        outputs = dict(zip(step.graph.outputs, session.run(list(step.graph.outputs), {**feed, **state}), strict=True))
        losses.append(float(outputs["loss"]))
        state = {before: outputs[after] for before, after in step.state.items()}
    return losses


def processor_seconds(cluster: LocalCluster) -> dict[str, float]:
    """Return the processor time that every agent has taken, by name."""
    found = {}
    for name, child in cluster.processes.items():
        agent = psutil.Process(child.pid)
        times = [process.cpu_times() for process in (agent, *agent.children(recursive=True))] if name != "coordinator" else []
        found[name] = sum(each.user + each.system for each in times)
    return found


def trained(
    step: TrainingStep, data: bytes, feeds: Sequence[Mapping[str, Array]], wanted: Sequence[float], planner: str, agents: int
) -> dict[str, Any]:
    """Train by one planner, and return what it took."""
    with LocalCluster(agents) as cluster:
        session = InferenceSession(data, cluster=cluster, state=step.state, planner=planner, deadline_s=3600.0)
        plan = session.prepare({name: step.graph.types[name].known_shape for name in step.graph.inputs})
        losses, seconds, busy, moved = [], [], [], 0
        with session.sequence(step.initial) as sequence:
            for feed in feeds:
                before, start = processor_seconds(cluster), time.perf_counter()
                (loss,), timeline = sequence.run_recorded(["loss"], feed)
                seconds.append(time.perf_counter() - start)
                busy.append(max(after - before[name] for name, after in processor_seconds(cluster).items()))
                losses.append(float(loss))
                if timeline is not None:
                    host = len(timeline.devices) - 1
                    moved = sum(s.bytes for s in timeline.spans if s.lane == "receive" and host not in {s.device, s.peer})
    return {
        "planner": planner,
        "agents": agents,
        "serving": plan.report["serving"],
        "nodes_used": len(plan.report["nodes_used"]),
        "origin": plan.report.get("search", {}).get("origin", ""),
        "predicted_ms": plan.report["predicted_ms"],
        "step_ms": 1e3 * statistics.median(seconds[WARM_UP:]),
        "busiest_agent_ms": 1e3 * statistics.median(busy[WARM_UP:]),
        "moved_bytes": moved,
        "largest_loss_error": max(abs(loss / want - 1) for loss, want in zip(losses, wanted, strict=True)),
        "losses": losses,
    }


def measure(network: str, batch: int, agents: int, steps: int, planners: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for every planner, that of one agent first."""
    step = training.build(network, batch, rate=1e-4)
    data, feeds = write_graph(step.graph, weights="inline").data, batches(step, steps + WARM_UP)
    wanted, rows = losses_of(step, data, feeds), list[dict[str, Any]]()
    for planner, count in ((ALONE, 1), *((planner, agents) for planner in planners)):
        say(f"{network}: {planner} on {count}")
        row = trained(step, data, feeds, wanted, planner, count)
        alone = rows[0] if rows else row
        row |= {f"{kind}_speedup": alone[f"{kind}_ms"] / row[f"{kind}_ms"] for kind in ("step", "busiest_agent")}
        rows.append({"network": network, "batch": batch, **row})
    return rows


def run(network: str, batch: int, agents: int, steps: int, planners: str, as_json: bool) -> int:
    """Measure and print; 1 if losses are wrong."""
    rows = measure(network, batch, agents, steps, planners.split(","))
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        shown = ("planner", "agents", "serving", "moved_bytes", "step_ms", "step_speedup", "busiest_agent_ms", "busiest_agent_speedup")
        cells = [[f"{row[key]:,.2f}" if isinstance(row[key], float) else row[key] for key in shown] for row in rows]
        worst = [f"{row['largest_loss_error']:.1e}" for row in rows]
        table = [(*cell, error) for cell, error in zip(cells, worst, strict=True)]
        print_table((*shown, "loss error"), table, title=f"{network}, batch {batch}, {steps} steps")
    return int(any(row["largest_loss_error"] > SEEN for row in rows))


def main(
    network: Annotated[str, typer.Option(help=f"One of {', '.join(training.names())}.")] = "alexnet",
    batch: Annotated[int, typer.Option(min=1)] = 64,
    agents: Annotated[int, typer.Option(min=1, help="Of one core each.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed.")] = 5,
    planners: Annotated[str, typer.Option(help="Divided by commas.")] = PLANNERS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")] = False,
) -> None:
    """Measure training steps."""
    raise typer.Exit(exit_status(partial(run, network, batch, agents, steps, planners, as_json)))


if __name__ == "__main__":
    typer.run(main)
