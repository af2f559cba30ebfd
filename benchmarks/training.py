"""Is a training step on several agents faster than on one, and by which planner? Losses, bytes and times.

    python -m benchmarks.training --network alexnet --batch 64 --agents 2 --json

Every planner trains from the same weights on the same samples, on the same agents; so does one of these agents alone. All plan for agents
that are alike, as cores of one machine are. They take turns:
one step of each is a round, and steps are compared round by round. Losses are compared with those of plain onnxruntime. Bytes are those
that agents received from agents in a step. A step lasts until all agents have their new weights: that is when the one after it can go on.
Beside the time on the clock stands the processor time of the busiest agent, which other programs on the machine change less.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from bbgrap import InferenceSession
from bbgrap.cli.output import print_table, say
from bbgrap.cluster import NodeProfile
from bbgrap.cluster.speeds import DEFAULT_WORK
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ExecutionError
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array
from bbgrap.local import LocalCluster
from bbgrap.planners.options import AUTO
from bbgrap.session.answers import PreparedPlan
from bbgrap.session.sequence import StatefulRuns
from bbgrap.zoo import training
from bbgrap.zoo.training import TrainingStep
from benchmarks.exit_status import exit_status
from benchmarks.processes import tree, used_s

PLANNERS = "data-parallel,model-parallel,one-weird-trick,hypar,soybean,tofu,auto"
ALONE = "single"
WARM_UP = 2
"""Steps that are not timed: the first one brings the weights."""
TRIES = 10
"""How often plans are asked for, and first steps begun, while agents are away."""
AWAY_S = 1.0
"""How long to wait for an agent before plans are asked for again."""
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
    return {name: used_s(tree(child.pid)) for name, child in cluster.processes.items() if name != "coordinator"}


@dataclass
class Trained:
    """A training by one planner: its sequence, and what its steps took so far.

    Invariants: lists have an item for each step.
    """

    planner: str
    plan: PreparedPlan
    sequence: StatefulRuns
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)
    """Processor seconds in timed steps, by agent."""
    moved: int = 0
    """Bytes that agents received from agents in the latest step that was recorded."""

    def step(self, feed: Mapping[str, Array], cluster: LocalCluster) -> None:
        """Run a step, and note what it took.

        Raises:
            ExecutionError: if it did not run on the plan: on a busy machine an agent may seem to be lost.
        """
        for _ in range(TRIES):
            before, start = processor_seconds(cluster), time.perf_counter()
            (loss,), timeline = self.sequence.run_recorded(["loss"], feed)
            took = time.perf_counter() - start
            ran = set() if timeline is None else {timeline.devices[s.device] for s in timeline.spans if s.lane == "compute"}
            if timeline is not None and ran == set(self.plan.report["nodes_used"]):
                break
            if self.seconds:
                raise ExecutionError(
                    f"{self.planner}: expected a step on its plan, it ran on {', '.join(ran) or 'nobody knows what'}; again"
                )
            self.sequence.reset()
        else:
            raise ExecutionError(f"{self.planner}: expected its first step on its plan, it ran elsewhere {TRIES} times; again")
        self.seconds.append(took)
        if len(self.seconds) > WARM_UP:
            self.busy.update({name: after - before[name] for name, after in processor_seconds(cluster).items()})
        self.losses.append(float(loss))
        host = len(timeline.devices) - 1
        self.moved = sum(s.bytes for s in timeline.spans if s.lane == "receive" and host not in {s.device, s.peer})

    def row(self, wanted: Sequence[float], auto: Trained | None) -> dict[str, Any]:
        """Return what there is to say; beside `auto`, how many times as long as its step of the same round a step took."""
        report, beside = self.plan.report, auto or self
        return {
            "planner": self.planner,
            "serving": report["serving"],
            "nodes_used": len(report["nodes_used"]),
            "origin": report.get("search", {}).get("origin", ""),
            "predicted_ms": report["predicted_ms"],
            "step_ms": 1e3 * statistics.median(self.seconds[WARM_UP:]),
            "busiest_agent_ms": 1e3 * max(self.busy.values()) / len(self.seconds[WARM_UP:]),
            "of_auto": statistics.median(
                mine / other for mine, other in zip(self.seconds[WARM_UP:], beside.seconds[WARM_UP:], strict=True)
            ),
            "busiest_agent_of_auto": max(self.busy.values()) / max(beside.busy.values()),
            "moved_bytes": self.moved,
            "largest_loss_error": max(abs(loss / want - 1) for loss, want in zip(self.losses, wanted, strict=True)),
            "losses": self.losses,
        }


def prepared(session: InferenceSession, shapes: Mapping[str, tuple[int, ...]], agents: int) -> PreparedPlan:
    """Return a plan that knows all agents.

    Raises:
        ExecutionError: if some are away for long.
    """
    for _ in range(TRIES):
        if len((plan := session.prepare(shapes)).agents) == agents:
            return plan
        time.sleep(AWAY_S)
    raise ExecutionError(
        f"{session.options.planner}: expected a plan over {agents} agents, it is over {', '.join(plan.agents)}; measure again"
    )


def measure(network: str, batch: int, agents: int, steps: int, planners: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for every planner, that of one agent first; in every round each of them takes one step."""
    step = training.build(network, batch, rate=1e-4)
    data, feeds = write_graph(step.graph, weights="inline").data, batches(step, steps + WARM_UP)
    wanted, all_trained = losses_of(step, data, feeds), list[Trained]()
    shapes = {name: step.graph.types[name].known_shape for name in step.graph.inputs}
    with LocalCluster(agents) as cluster, ExitStack() as stack:
        for number in range(agents):  # measured beside other programs, one of them might seem slower
            cluster.connection.add_profile(NodeProfile(f"agent{number}", work=DEFAULT_WORK))
        for planner in (ALONE, *planners):
            say(f"{network}: {planner}")
            session = InferenceSession(data, cluster=cluster, state=step.state, planner=planner, deadline_s=3600.0)
            plan = prepared(session, shapes, agents)
            all_trained.append(Trained(planner, plan, stack.enter_context(session.sequence(step.initial))))
        for number, feed in enumerate(feeds):
            say(f"{network}: round {number + 1} of {len(feeds)}")
            for each in all_trained[number % len(all_trained) :] + all_trained[: number % len(all_trained)]:
                each.step(feed, cluster)
    auto = next((each for each in all_trained if each.planner == AUTO), None)
    rows = [{"network": network, "batch": batch, "agents": agents, **each.row(wanted, auto)} for each in all_trained]
    return [row | {f"{kind}_speedup": rows[0][f"{kind}_ms"] / row[f"{kind}_ms"] for kind in ("step", "busiest_agent")} for row in rows]


def run(network: str, batch: int, agents: int, steps: int, planners: str, as_json: bool) -> int:
    """Measure and print; 1 if losses are wrong."""
    rows = measure(network, batch, agents, steps, planners.split(","))
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        shown = ("planner", "serving", "moved_bytes", "step_ms", "step_speedup", "of_auto", "busiest_agent_ms", "busiest_agent_of_auto")
        cells = [[f"{row[key]:,.2f}" if isinstance(row[key], float) else row[key] for key in shown] for row in rows]
        worst = [f"{row['largest_loss_error']:.1e}" for row in rows]
        table = [(*cell, error) for cell, error in zip(cells, worst, strict=True)]
        print_table((*shown, "loss error"), table, title=f"{network}, batch {batch}, {steps} rounds")
    return int(any(row["largest_loss_error"] > SEEN for row in rows))


def main(
    network: Annotated[str, typer.Option(help=f"One of {', '.join(training.names())}.")] = "alexnet",
    batch: Annotated[int, typer.Option(min=1)] = 64,
    agents: Annotated[int, typer.Option(min=1, help="Of one core each.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Rounds that are timed.")] = 5,
    planners: Annotated[str, typer.Option(help="Divided by commas.")] = PLANNERS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")] = False,
) -> None:
    """Measure training steps."""
    raise typer.Exit(exit_status(partial(run, network, batch, agents, steps, planners, as_json)))


if __name__ == "__main__":
    typer.run(main)
