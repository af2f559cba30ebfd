"""More machines than there are here: `python -m benchmarks.scale --models resnet50,vgg16 --nodes 3,4,6,8,16`.

All nodes are like one core of this machine. For every number of nodes the model is planned and exported, every device's part is measured
alone on one core (`benchmarks/device_times.py`), and a clock (`bbgrap.costmodel.clock`) walks through the measured steps: messages queue at
the network interface of every machine, both ways, and are a latency on their way. Coordinator, client and input are on the first node's
machine. What client and coordinator need besides is measured with an operator that computes nothing.

The simulation is checked where it can be: with two nodes, against the real run over the same links (`--check ""` leaves it out). Those two
are cores of one machine and share its memory, so there each device is measured while the other one works on the other core. Compared is
`drawn`: the median request whose devices each do one of the measured walks, not the medians of all. Devices wait for each other in every
layer, so on a machine that others disturb, a request is slower than its steps' medians.
Results are added to `benchmarks/results/scale-MODEL.json`, with a picture beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bbgrap.bench import processor_name
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_json, print_table, say, step
from bbgrap.cluster import Cluster
from bbgrap.cluster.types import LOCAL, Link, Network, NodeProfile
from bbgrap.costmodel.clock import run_clock
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.timeline import Timeline
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import prepare_graph
from bbgrap.engine.reference import Reference
from bbgrap.graph.types import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.message_layout import layouts_sent
from bbgrap.session import InferenceSession
from benchmarks.contention import Work, company
from benchmarks.device_times import TURNS, Peers, Stopwatch, Walk, loaded
from benchmarks.exit_status import exit_status
from benchmarks.kept import Row, keep_by_model
from benchmarks.network import Job, ModelAt, measure, parse_planner
from benchmarks.plots import lines
from benchmarks.testbed import CORES, Place, Rate, Reached, at, can_limit, open_testbed, probe

MODELS = "resnet50,vgg16"
NODES = "2,3,4,6,8,16"
LINKS = "1gbit,10gbit"
CHECKED_LINKS = "loopback,1gbit,10gbit"
ONE_WAY_S = {"1gbit": 0.1e-3, "10gbit": 0.05e-3}
"""Latencies of real networks of these rates, chosen: a switch, and what both ends' interfaces take; of other rates as 1 Gbit/s."""
RUNS = 20
_REQUESTS = 60
_DRAWS = 99
TARGETS: Mapping[tuple[str, str], Mapping[int, float]] = {
    ("resnet50", "1gbit"): {3: 1.6, 4: 1.85, 6: 2.0, 8: 2.4},
    ("resnet50", "10gbit"): {3: 2.1, 4: 2.6, 6: 2.9, 8: 3.9},
    ("vgg16", "1gbit"): {3: 2.4, 4: 3.1, 6: 3.9, 8: 4.8},
}
"""Speed-ups that these models are to reach, by number of nodes."""
KEY = ("model", "nodes", "link", "latency_ms", "planner", "split")


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated: so many equal nodes, all links alike."""

    nodes: int
    name: str
    link: Link


@dataclass(frozen=True, slots=True)
class Around:
    """What was measured before: the profile of a node, and the seconds of a request that computes nothing on an input of this shape."""

    profile: NodeProfile
    shape: tuple[int, ...]
    idle_s: float


def real_link(rate: Rate) -> Link:
    """Return what machines at this rate have between them."""
    return LOCAL if rate.bits_per_s is None else Link(rate.bits_per_s / 8, ONE_WAY_S.get(rate.name, ONE_WAY_S["1gbit"]))


def cluster_of(case: Case, profile: NodeProfile) -> Cluster:
    """Return equal nodes; the coordinator is on the first one's machine."""
    nodes = tuple(replace(profile, name=f"node{number}", links=()) for number in range(case.nodes))
    return Cluster(nodes, Network(between=case.link, coordinator_on="node0"))


def idle_model(shape: Sequence[int]) -> bytes:
    """Return a model that takes an input of some shape and looks at its first element only."""
    bounds = [("begin", 0), ("end", 1)]
    tensors = [numpy_helper.from_array(np.full(len(shape), value, np.int64), name) for name, value in bounds]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "begin", "end"], ["y"])],
        "idle",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1] * len(shape))],
        tensors,
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def look_around(coordinator: Reached, shape: tuple[int, ...]) -> Around:
    """Measure the second node, and a request that computes nothing; from the first machine."""
    with coordinator.connect() as connection:
        profile = connection.profile("agent1")[0]
        session = InferenceSession(idle_model(shape), cluster=connection, planner="single")
        feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        times = []
        for _ in range(_REQUESTS):
            began = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - began)
    return Around(profile, shape, statistics.median(times))


class _LinksOnly(NetworkModel):
    """Messages take their links and nothing else: both ends' processors are in the measured steps already."""

    def link(self, source: int, destination: int) -> Link:
        return self.cluster.link(source, destination)

    def handling(self, device: int, source: int, destination: int, size: int, *, in_a_row: bool = False) -> float:
        return 0.0

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return None


@dataclass(frozen=True)
class Simulated:
    """A case with the means to tell its timeline, once all devices are measured."""

    case: Case
    cluster: Cluster
    walks: Sequence[Callable[[], Walk]]
    sizes: Mapping[int, int]
    report: Mapping[str, Any]

    def timeline(self) -> Timeline:
        """Return when every device does what, if every step takes its median."""
        return self._clock([walk() for walk in self.walks])

    def drawn_s(self) -> float:
        """Return the median seconds of requests whose devices each do one of the walks that were measured, drawn at random."""
        random, walks = Random(0), [walk() for walk in self.walks]
        return statistics.median(self._clock([walk.drawn(random) for walk in walks]).total_s for _ in range(_DRAWS))

    def _clock(self, walks: Sequence[Walk]) -> Timeline:
        names = [*(node.name for node in self.cluster.nodes), "coordinator"]
        return run_clock(names, [list(walk.acts(self.sizes)) for walk in walks], _LinksOnly(self.cluster))


def measured_case(
    path: Path,
    feeds: Mapping[str, Array],
    options: PlanOptions,
    case: Case,
    profile: NodeProfile,
    watch: Stopwatch,
    company_on: int | None = None,
) -> Simulated:
    """Plan a case and measure its devices, alone, or while the other of two works on the core `company_on`."""
    shapes, cluster = {name: array.shape for name, array in feeds.items()}, cluster_of(case, profile)
    planned, _ = prepare_graph(load_graph(path, shapes), cluster, options)[0]
    artifacts = planned.artifacts
    walks = []
    for number, device in enumerate(artifacts.devices):
        if company_on is None:
            walks.append(watch.device(device, artifacts.weights))
        else:
            with company(Place("", company_on), companion, path, shapes, options, cluster, 1 - number) as other:
                walks.append(watch.device(device, artifacts.weights, other))
    walks.append(watch.host(artifacts.host, list(feeds.values())))
    schedules = [*(device.schedule for device in artifacts.devices), artifacts.host]
    sizes = {message: layout.nbytes for schedule in schedules for message, layout in layouts_sent(schedule).items()}
    return Simulated(case, cluster, walks, sizes, planned.report)


def companion(path: Path, shapes: Mapping[str, tuple[int, ...]], options: PlanOptions, cluster: Cluster, number: int) -> Work:
    """Return what walks one device of a plan."""
    artifacts = prepare_graph(load_graph(path, shapes), cluster, options)[0][0].artifacts
    peers = Peers(loaded(artifacts.devices[number], artifacts.weights))
    return lambda: peers.walk(())


def simulate(
    model: ModelAt, options: PlanOptions, cases: Sequence[Case], around: Around, turns: int, company_on: int | None = None
) -> list[dict[str, Any]]:
    """Measure what the cases need, and return a row for each; to be called on the core that stands for all nodes."""
    path = find_model(model.source)
    feeds = read_inputs(path, GivenInputs(batch=model.batch)).feeds(0)
    reference = Reference(path, threads=1)

    def single() -> float:
        began = time.perf_counter()
        reference.run(feeds)
        return time.perf_counter() - began

    watch = Stopwatch(single, turns)
    with step(f"simulating {model.name}") as progress, TemporaryDirectory() as home:
        idle_path = Path(home) / "idle.onnx"
        idle_path.write_bytes(idle_model(around.shape))
        idle_feed = {"x": np.zeros(around.shape, np.float32)}
        idle = measured_case(idle_path, idle_feed, PlanOptions("single"), Case(2, "loopback", LOCAL), around.profile, watch)
        found = []
        for case in cases:
            progress.update(f"{case.nodes} nodes, {case.name}")
            found.append(measured_case(path, feeds, options, case, around.profile, watch, company_on))
    # What of an idle request is in no program: client, coordinator, and the way between them.
    request_s = max(0.0, around.idle_s - idle.timeline().total_s)
    return [row_of(model, options, simulated, watch.single_s, request_s) for simulated in found]


def row_of(model: ModelAt, options: PlanOptions, simulated: Simulated, single_s: float, request_s: float) -> dict[str, Any]:
    """Return the entry of a simulated case in `--json`."""
    case, report = simulated.case, simulated.report
    timeline = simulated.timeline()
    total_s, drawn_s = timeline.total_s + request_s, simulated.drawn_s() + request_s
    return {
        "model": model.name,
        "batch": model.batch,
        "nodes": case.nodes,
        "link": case.name,
        "mbit_per_s": round(case.link.bandwidth_bytes_per_s * 8e-6, 1),
        "latency_ms": round(case.link.latency_s * 1e3, 4),
        "planner": options.planner,
        "split": options.split,
        "single_ms": 1e3 * single_s,
        "simulated_ms": 1e3 * total_s,
        "speedup": single_s / total_s,
        "drawn_ms": 1e3 * drawn_s,
        "drawn_speedup": single_s / drawn_s,
        "target": TARGETS.get((model.name, case.name), {}).get(case.nodes),
        "busiest_ms": 1e3 * max(timeline.busy_s(device, "compute") for device in range(case.nodes)),
        "request_ms": 1e3 * request_s,
        "predicted_ms": report["predicted_ms"],
        "bytes": report["optimized"]["bytes"],
        "messages": report["optimized"]["transfers"],
        "exchanges": report["optimized"]["syncs"],
    }


def checks(model: ModelAt, options: PlanOptions, rates: Sequence[Rate], given: argparse.Namespace) -> tuple[Around, list[dict[str, Any]]]:
    """Look around over loopback, and run two real nodes over every link; returns simulated rows with what was measured."""
    shape = next(iter(read_inputs(find_model(model.source), GivenInputs(batch=model.batch)).shapes.values()))
    with open_testbed(Rate("loopback", None)) as bed:
        say("measuring a node, and a request that computes nothing")
        around = at(bed.places[0], look_around, bed.coordinator, shape)
    rows = []
    for rate in rates:
        with open_testbed(rate) as bed:
            bits_per_s, _ = probe(bed.places, bed.hosts[1])
            say(f"{rate.name}: two real nodes")
            report = at(bed.places[0], measure, bed.coordinator, Job(model, (options,), given.runs))
        # An emulated link has no latency of its own; that of the kernel's own network is in loopback's.
        link = LOCAL if rate.bits_per_s is None else Link(bits_per_s / 8, LOCAL.latency_s)
        (row,) = at(Place("", CORES[1]), simulate, model, options, [Case(2, rate.name, link)], around, given.turns, CORES[0])
        (real,) = report["results"]
        error = 100 * (real["speedup"] / row["drawn_speedup"] - 1)
        rows.append(row | {"measured_speedup": real["speedup"], "measured_ms": real["median_ms"], "error_percent": round(error, 1)})
    return around, rows


def order(row: Row) -> tuple[object, ...]:
    """Return what rows are sorted by."""
    return row["link"], row["planner"], row["split"], row["nodes"]


def picture(rows: Sequence[Row]) -> str:
    """Draw the speed-ups of one model by nodes, a line per link and plan; the dashed line is the single node."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if "measured_speedup" not in row:
            points.setdefault(f"{row['link']} {row['planner']}:{row['split']}", [(1, 1)]).append((row["nodes"], row["speedup"]))
    title = f"{rows[0]['model']}, batch {rows[0]['batch']}: simulated from measured kernels, one core per node"
    return lines(title, points)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a simulation."""
    columns = (
        "model",
        "nodes",
        "link",
        "plan",
        "single ms",
        "simulated ms",
        "speed-up",
        "drawn",
        "target",
        "busiest node ms",
        "measured",
        "error %",
    )
    cells = [
        (
            *(row[key] for key in ("model", "nodes", "link")),
            f"{row['planner']}:{row['split']}",
            *(row[key] for key in ("single_ms", "simulated_ms", "speedup", "drawn_speedup", "target", "busiest_ms")),
            row.get("measured_speedup"),
            row.get("error_percent"),
        )
        for row in rows
    ]
    print_table(columns, cells, title="simulated from measured kernels, one core per node")


def _work(given: argparse.Namespace) -> int:
    rates = [Rate.parse(text) for text in given.links.split(",")]
    counts = [int(text) for text in given.nodes.split(",")]
    cases = [Case(count, rate.name, real_link(rate)) for rate in rates for count in counts]
    real = [rate for rate in (Rate.parse(text) for text in given.check.split(",") if text) if rate.bits_per_s is None or can_limit()]
    rows = []
    for text in given.models.split(","):
        model = ModelAt.parse(text)
        for options in (parse_planner(name) for name in given.planners.split(",")):
            around, checked = checks(model, options, real, given)
            simulated = at(Place("", CORES[1]), simulate, model, options, cases, around, given.turns)
            rows += [*checked, *simulated]
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor_name(),
        "onnxruntime": ort.__version__,
    }
    rows = [row | {"facts": facts} for row in rows]
    if given.save:
        for path in keep_by_model("scale", rows, KEY, order, picture):
            say(f"written: {path}")
    if given.json:
        print_json(rows)
    else:
        print_rows(rows)
    return 0


def main() -> int:
    """Simulate, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help=f"zoo names or files, NAME@BATCH for a batch; default: {MODELS}")
    parser.add_argument("--nodes", default=NODES, help=f"numbers of nodes; default: {NODES}")
    parser.add_argument("--links", default=LINKS, help=f"rates of all links; default: {LINKS}")
    parser.add_argument("--planners", default="bbgrap:rows", help="PLANNER or PLANNER:SPLIT; default: bbgrap:rows")
    parser.add_argument("--check", default=CHECKED_LINKS, help=f"links of two real nodes to compare with; default: {CHECKED_LINKS}")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of the two real nodes; default: {RUNS}")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"in which every device is measured; default: {TURNS}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    return exit_status(lambda: _work(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
