"""Why a plan is as it is, in plain words: `plan --explain`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from bbgrap.auto.forecast import Forecast
from bbgrap.compiler.memory import standby_bytes
from bbgrap.compiler.passes.fuse import layer_phases
from bbgrap.costmodel.ways import WayLoad
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.program.steps import Apply, Compute

AXES = {
    2: ("batch", "features"),
    3: ("batch", "tokens", "features"),
    4: ("batch", "channels", "rows", "columns"),
    5: ("batch", "channels", "depth", "rows", "columns"),
}
"""What the axes of a layer's output are called, by their number."""

STAGES = 60
"""Lines of the table; a longer one is cut, and says so."""

ALTERNATIVES = 8

NO_ROOM = "no single node has room for the whole model"
"""What is said where a plan would be compared with the best single node."""


@dataclass
class _Stage:
    """What happens between two exchanges: its nodes in order, and per device seconds of computing and of waiting before."""

    nodes: dict[str, None] = field(default_factory=dict)
    compute: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    wait: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    bytes: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


def explain_forecast(forecast: Forecast, options: PlanOptions) -> Iterator[str]:
    """Yield the lines of an explanation."""
    plan, timeline = forecast.compiled.plan, forecast.timeline
    names = [node.name for node in plan.cluster.nodes]
    yield f"Predicted: {1e3 * timeline.total_s:.2f} ms a request; {_against_one(forecast)}"
    if forecast.found is not None:
        yield f"Chosen among {forecast.found.plans} plans; it grew from: {forecast.found.origin}"
    yield _standby(plan)
    yield ""
    yield from _table(forecast, names)
    yield ""
    yield bottleneck(forecast, names)
    if forecast.busiest_wire is not None:
        yield wire_in_words(forecast.busiest_wire)
    if forecast.found is not None:
        yield ""
        yield "The next best alternatives:"
        for candidate in forecast.found.candidates[:ALTERNATIVES]:
            more = candidate.score.seconds / timeline.total_s - 1
            yield f"  {1e3 * candidate.score.seconds:9.2f} ms  {more:+7.1%}  {candidate.name}"
        yield ""
        yield "What would change it:"
        for words, seconds in forecast.what_if(options):
            yield f"  {1e3 * seconds:9.2f} ms  {seconds / timeline.total_s - 1:+7.1%}  {words}"


def _against_one(forecast: Forecast) -> str:
    """Return how much faster a plan is than the best node alone."""
    if forecast.alone is None:
        return NO_ROOM
    best, seconds = forecast.alone
    return f"'{best}' alone {1e3 * seconds:.2f} ms: {seconds / forecast.timeline.total_s:.2f} times as fast"


def wire_in_words(load: WayLoad) -> str:
    """Return which wire is busiest, in which direction, and how long."""
    return f"The busiest wire is '{load.way.wire.name}', towards '{load.way.to}': {load.bytes / 1e6:.2f} MB, {1e3 * load.busy_s:.2f} ms"


def _standby(plan: Plan) -> str:
    """Return which nodes can answer alone, before there is a plan and when one is lost."""
    graph = plan.graph
    carried = [graph.types[name] for name in (*graph.inputs, *graph.outputs)]
    need = standby_bytes({weight.digest: weight.type for weight in graph.weights.values()}.values(), carried)
    able = [node.name for node in plan.cluster.nodes if not node.memory_bytes or node.memory_bytes >= need]
    whole = f"Standby: whole, the model takes about {need / (1 << 20):,.0f} MiB"
    if able:
        return f"{whole}; {', '.join(able)} {'have' if len(able) > 1 else 'has'} room, and two of them answer while a plan is made or lost"
    return f"{whole}; no node has room: plans over all nodes but one are loaded beforehand, as far as memory allows, else made"


def _stages(forecast: Forecast) -> list[_Stage]:
    """Return what every node computes between exchanges, and waits for before."""
    program, timeline = forecast.compiled.optimized, forecast.timeline
    phases = layer_phases(program)
    found: dict[int, _Stage] = defaultdict(_Stage)
    for device in program.devices[: program.host]:
        segments = [step for step in device.steps if isinstance(step, Compute)]
        waited, received = 0.0, 0
        for span in timeline.spans:
            if span.device != device.device:
                continue
            if span.lane == "wait":
                waited += span.stop_s - span.start_s
            elif span.lane == "receive":
                received += span.bytes
            elif span.lane == "compute" and span.segment is not None:
                ops = [op for op in segments[span.segment].ops if isinstance(op, Apply)]
                if not ops:
                    continue
                stage = found[phases[program.graph.node_by_name[ops[-1].node].outputs[0]]]
                stage.nodes |= dict.fromkeys(op.node for op in ops)
                stage.compute[device.device] += span.stop_s - span.start_s
                stage.wait[device.device] += waited
                stage.bytes[device.device] += received
                waited, received = 0.0, 0
    return [found[phase] for phase in sorted(found)]


def _table(forecast: Forecast, names: list[str]) -> Iterator[str]:
    stages = _stages(forecast)
    plan = forecast.compiled.plan
    used = plan.devices_used
    shown = used[:6]
    widest = max((len(_span(stage)) for stage in stages[:STAGES]), default=10)
    yield "Between two exchanges, per node: ms of computing (+ ms of waiting before, KB received before)"
    yield f"  {'layers':<{widest}}  {'divided by':<34}" + "".join(f"{names[d][:18]:>24}" for d in shown) + (" ..." if len(used) > 6 else "")
    for stage in stages[:STAGES]:
        cells = "".join(
            f"{1e3 * stage.compute[d]:>8.2f} (+{1e3 * stage.wait[d]:.2f}, {stage.bytes[d] / 1024:.0f} KB)".rjust(24)
            if d in stage.compute
            else "-".rjust(24)
            for d in shown
        )
        yield f"  {_span(stage):<{widest}}  {_split_words(plan, stage):<34}{cells}"
    if len(stages) > STAGES:
        yield f"  ... and {len(stages) - STAGES} more"


def _span(stage: _Stage) -> str:
    nodes = list(stage.nodes)
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} ... {nodes[-1]}"


def _split_words(plan: Plan, stage: _Stage) -> str:
    """Return how most of a stage's layers are divided: along what, and how many each node gets."""
    ((words, _),) = Counter(tiles_in_words(plan, name) for name in stage.nodes).most_common(1)
    return words if len(words) <= 34 else words[:31] + "..."


def tiles_in_words(plan: Plan, node: str) -> str:
    """Return how a node is divided: 'rows 28 | 28', 'on one node', 'sums over i 32 | 32'."""
    tiles = plan.tiles[node]
    if tiles[0].part is not None:
        return "sums " + " | ".join(str(len(tile.part.interval)) for tile in tiles if tile.part is not None)
    if len(tiles) == 1:
        return f"on '{plan.cluster.nodes[tiles[0].device].name}'"
    rank = tiles[0].region.rank
    cut = [axis for axis in range(rank) if any(tile.region.axes[axis] != tiles[0].region.axes[axis] for tile in tiles)]
    if not cut:
        return "on each, whole"
    known = AXES.get(rank, ())
    labels = [known[axis] if axis < len(known) else f"axis {axis}" for axis in cut]
    sizes = " | ".join("x".join(str(len(tile.region.axes[axis])) for axis in cut) for tile in tiles)
    return f"{' x '.join(labels)} {sizes}"


def bottleneck(forecast: Forecast, names: list[str]) -> str:
    """Return who keeps a request from being faster, and by what."""
    timeline, used = forecast.timeline, forecast.compiled.plan.devices_used
    if not used:
        return "No node computes: the model passes its inputs on"
    busiest = max(used, key=lambda device: (timeline.busy_s(device, "compute"), -device))
    computing = timeline.busy_s(busiest, "compute")
    waiting = timeline.busy_s(busiest, "wait")
    messages = timeline.busy_s(busiest, "send") + timeline.busy_s(busiest, "receive")
    parts = {"computing": computing, "waiting for others and the network": waiting, "handling messages": messages}
    most = max(parts, key=lambda key: parts[key])
    listed = ", ".join(f"{1e3 * seconds:.2f} ms {words}" for words, seconds in parts.items())
    return f"The bottleneck is '{names[busiest]}', {most}: {listed}"
