"""How good is planner `auto`, and how long does it search? Predicted times only: nothing is run.

    python -m benchmarks.planning                        all three parts
    python -m benchmarks.planning --parts grid --json

exhaustive   small random networks on unequal nodes: the best of all plans of a large set, enumerated, against what `auto` finds
grid         zoo models on clusters: `auto` against every other planner under every split, and against the best single node
search       seconds of the search: ResNet-152 on 8 and 64 nodes, and how they grow with the length of a model
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from bbgrap.auto.evaluate import Evaluator, Tiles
from bbgrap.auto.search import plan_auto
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_table, say
from bbgrap.cluster.types import Cluster, Link, Network, NodeProfile
from bbgrap.engine.load import load_graph
from bbgrap.errors import BbgrapError
from bbgrap.graph import Graph, Node
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import SPLITS, PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.planners.registry import PLANNERS
from bbgrap.shapemap import Interval, IntervalSet

MODELS = ("alexnet", "mobilenet_v2", "resnet50", "tiny", "unet", "vgg16", "vit_b16", "yolo")
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Case:
    """A small network on a small cluster."""

    graph: Graph
    cluster: Cluster


def clusters() -> dict[str, Cluster]:
    """Return the clusters of the grid by name: sizes, speeds, links, and one whose memory bites."""

    def cluster(shares: tuple[float, ...], mbit: float, memory: int = 0) -> Cluster:
        nodes = tuple(NodeProfile(f"node{n}", share=share, memory_bytes=memory) for n, share in enumerate(shares))
        return Cluster(nodes, Network(Link(mbit * MBIT, 1e-4), coordinator_on="node0"))

    return {
        "2 equal, 1 Gb/s": cluster((1, 1), 1000),
        "2 as 2:1, 100 Mb/s": cluster((2, 1), 100),
        "3 as 4:1:1, 1 Gb/s": cluster((4, 1, 1), 1000),
        "4 equal, 10 Gb/s": cluster((1, 1, 1, 1), 10_000),
        "4 equal, 1 Gb/s, 200 MB each": cluster((1, 1, 1, 1), 1000, 200_000_000),
        "8 equal, 10 Gb/s": cluster((1,) * 8, 10_000),
    }


# --- exhaustive -----------------------------------------------------------------------------------------------------------------


def random_case(seed: int, layers: int = 3) -> Case:
    """Return a random chain of layers, some with a skip, on two or three unequal nodes; everything follows from the seed."""
    chance = random.Random(seed)
    channels, size = chance.choice((2, 4)), chance.choice((4, 6))
    nodes, weights = [], {}
    types = {"x": TensorType(DType.FLOAT, (1, channels, size, size))}
    last, made = "x", []
    for number in range(layers):
        name = f"n{number}"
        kind = chance.choice(("Conv", "Conv", "Relu", "Add")) if made else "Conv"
        if kind == "Conv":
            kernel = chance.choice((1, 3))
            weight = make_weight(f"w{number}", np.ones((channels, channels, kernel, kernel), np.float32))
            weights[weight.name] = weight
            types[weight.name] = weight.type
            pads = (kernel // 2,) * 4
            nodes.append(Node(name, "Conv", (last, weight.name), (f"v{number}",), {"pads": pads, "kernel_shape": (kernel, kernel)}))
        else:
            nodes.append(Node(name, kind, (last,) if kind == "Relu" else (last, chance.choice(made)), (f"v{number}",)))
        types[f"v{number}"] = types["x"]
        last = f"v{number}"
        made.append(last)
    graph = Graph(f"case{seed}", tuple(nodes), ("x",), (last,), weights, types, {"": 17})
    count = chance.choice((2, 2, 3))
    # so slow that the small layers take about as long as a message
    speed = 10 ** chance.uniform(-5.5, -2.5)
    shares = [speed * chance.choice((1, 1, 0.5, 0.25)) for _ in range(count)]
    link = Link(10 ** chance.uniform(5, 8), 10 ** chance.uniform(-5, -3))
    on = chance.choice(("", "node0"))
    return Case(graph, Cluster(tuple(NodeProfile(f"node{n}", share=s) for n, s in enumerate(shares)), Network(link, coordinator_on=on)))


def options_of(case: Case, node: Node) -> list[tuple[Tile, ...]]:
    """Return many ways to divide a node: alone on each node, and every division of rows and channels over every pair and all nodes."""
    whole = whole_output(case.graph, node)
    devices = range(len(case.cluster.nodes))
    found = [(Tile(device, whole),) for device in devices]
    for axis in (1, 2):
        extent = whole.shape[axis]
        sets = [pair for count in range(2, len(devices) + 1) for pair in itertools.combinations(devices, count)]
        for chosen in sets:
            for borders in itertools.combinations(range(1, extent), len(chosen) - 1):
                stops = (*borders, extent)
                pieces = [Interval(start, stop) for start, stop in zip((0, *borders), stops, strict=True)]
                found.append(tuple(Tile(d, whole.replace(axis, IntervalSet.of(p))) for d, p in zip(chosen, pieces, strict=True)))
    return found


def exhaustive_gap(seed: int, layers: int = 3) -> float:
    """Return by how much `auto` is slower than the best enumerated plan, as a part of it; negative if it is faster."""
    case = random_case(seed, layers if seed % 4 else 2)
    descriptions = all_descriptions(case.graph)
    found = plan_auto(case.graph, case.cluster, PlanOptions("auto"), descriptions)
    evaluator = Evaluator(Pieces(case.graph, descriptions), case.cluster, PlanOptions("auto"))
    options = {node.name: options_of(case, node) for node in case.graph.nodes}
    chance = random.Random(seed)
    best = math.inf
    for tiles in _plans(options, chance):
        best = min(best, evaluator.score(tiles).seconds)
    return found.score.seconds / best - 1


MOST_PLANS = 4_000
"""Plans that are enumerated per case; where there would be more, layers get fewer options."""


def _plans(options: dict[str, list[tuple[Tile, ...]]], chance: random.Random) -> Iterator[Tiles]:
    names = list(options)
    count = math.prod(len(of) for of in options.values())
    if count > MOST_PLANS:
        # keep every way to be alone and an even sample of the divisions, so that all combinations can be enumerated
        keep = int(MOST_PLANS ** (1 / len(names)))
        options = {name: [*of[:3], *chance.sample(of[3:], min(len(of) - 3, max(keep - 3, 1)))] for name, of in options.items()}
    for combination in itertools.product(*options.values()):
        yield dict(zip(names, combination, strict=True))


def exhaustive(cases: int) -> dict[str, Any]:
    """Return how far `auto` is from the enumerated best over random cases."""
    gaps = []
    for seed in range(cases):
        gaps.append(exhaustive_gap(seed))
        if gaps[-1] > 0.02:
            say(f"case {seed}: {gaps[-1]:+.2%}")
    return {"cases": cases, "within_2_percent": sum(gap <= 0.02 for gap in gaps), "worst": max(gaps), "median": statistics.median(gaps)}


# --- grid -----------------------------------------------------------------------------------------------------------------------


def load(model: str) -> Graph:
    """Return a zoo model for batch 1."""
    path = find_model(f"zoo:{model}")
    return load_graph(path, read_inputs(path, GivenInputs()).shapes)


def cell(graph: Graph, cluster: Cluster) -> dict[str, Any]:
    """Return what `auto` and all others are predicted to take on one cluster, in milliseconds; plans beyond the memory do not count."""
    descriptions = all_descriptions(graph)
    began = time.perf_counter()
    found = plan_auto(graph, cluster, PlanOptions("auto"), descriptions)
    took = time.perf_counter() - began
    evaluator = Evaluator(Pieces(graph, descriptions), cluster, PlanOptions("auto"))
    others = {}
    for name, planner in PLANNERS.items():
        for split in SPLITS if name == "bbgrap" else ("rows",):
            try:
                tiles = planner(graph, cluster, PlanOptions(name, split), descriptions)
            except BbgrapError:
                continue
            score = evaluator.score(tiles)
            if not score.excess:
                others[f"{name}:{split}" if name == "bbgrap" else name] = 1e3 * score.seconds
    alone = []
    for device in range(len(cluster.nodes)):
        score = evaluator.score({node.name: (Tile(device, whole_output(graph, node)),) for node in graph.nodes})
        alone += [] if score.excess else [1e3 * score.seconds]
    best = min(others, key=lambda name: others[name], default="")
    return {
        "auto_ms": 1e3 * found.score.seconds,
        "excess_bytes": found.score.excess,
        "single_ms": min(alone, default=None),
        "best_other": best,
        "best_other_ms": others.get(best),
        "others_ms": others,
        "search_s": took,
        "nodes_used": len(found.plan.devices_used),
        "holds": not found.score.excess and all(1e3 * found.score.seconds <= ms * (1 + 1e-9) for ms in (*others.values(), *alone)),
    }


def grid(models: list[str]) -> list[dict[str, Any]]:
    """Return all cells."""
    cells = []
    for model in models:
        graph = load(model)
        for name, cluster in clusters().items():
            found = {"model": model, "cluster": name, **cell(graph, cluster)}
            cells.append(found)
            other = f"{found['best_other']} {found['best_other_ms'] or math.nan:.2f} ms"
            say(f"{model}, {name}: {found['auto_ms']:.2f} ms, next {other}, {'holds' if found['holds'] else 'FAILS'}")
    return cells


# --- search ---------------------------------------------------------------------------------------------------------------------


def search() -> dict[str, Any]:
    """Return the seconds of searches."""
    found: dict[str, Any] = {}
    graph = load("resnet152")
    for count in (8, 64):
        seconds, score = _search_s(graph, count)
        found[f"resnet152_{count}_nodes_s"], found[f"resnet152_{count}_nodes_predicted_ms"] = seconds, 1e3 * score
    lengths = {}
    for layers in (25, 50, 100, 200):
        case = random_case(1, layers)
        lengths[layers] = _search_s(case.graph, 2)[0]
    found["seconds_by_layers"] = lengths
    return found


def _search_s(graph: Graph, count: int) -> tuple[float, float]:
    nodes = tuple(NodeProfile(f"node{n}") for n in range(count))
    cluster = Cluster(nodes, Network(Link(1e4 * MBIT, 5e-5), coordinator_on="node0"))
    gc.collect()
    gc.disable()  # as planning does (`bbgrap.engine.prepare`)
    try:
        began = time.process_time()
        found = plan_auto(graph, cluster, PlanOptions("auto"), all_descriptions(graph))
        return time.process_time() - began, found.score.seconds
    finally:
        gc.enable()


def main(
    parts: Annotated[str, typer.Option(help="Some of: exhaustive, grid, search.")] = "exhaustive,grid,search",
    models: Annotated[str, typer.Option(help="Zoo models of the grid.")] = ",".join(MODELS),
    cases: Annotated[int, typer.Option(min=1, help="Random cases to enumerate.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")] = False,
) -> None:
    """Measure planner auto."""
    found: dict[str, Any] = {}
    for part in parts.split(","):
        match part:
            case "exhaustive":
                found[part] = exhaustive(cases)
            case "grid":
                found[part] = grid(models.split(","))
            case "search":
                found[part] = search()
            case _:
                raise typer.BadParameter(f"parts: expected some of exhaustive, grid, search, got '{part}'")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for part, numbers in found.items():
        if part == "grid":
            columns = ("model", "cluster", "auto_ms", "single_ms", "best_other", "best_other_ms", "search_s", "nodes_used", "holds")
            print_table(columns, [tuple(c[key] for key in columns) for c in numbers], title="predicted, ms")
        else:
            print_table((part, ""), list(numbers.items()))


if __name__ == "__main__":
    typer.run(main)
