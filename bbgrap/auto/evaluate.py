"""What a plan is worth: predicted by the clock, under every node's memory as a hard limit, and paid from a budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bbgrap.cluster import Cluster
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.memory import program_bytes
from bbgrap.compiler.passes import ChunkInputs, OwnFirst
from bbgrap.compiler.passes.chunks import Narrow
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.clock import Busy, Post, is_in_a_row
from bbgrap.costmodel.timeline import Timeline
from bbgrap.costmodel.ways import loads
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, Tiles
from bbgrap.program.dictionaries import dictionary_devices_of
from bbgrap.program.steps import Apply, Program
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import LocalOp, can_make
from bbgrap.work import Work

TILES_PER_SECOND = 2_500
"""Tiles that are looked at per second of the time that a search may take: a fifth of what one core manages, so that the budget ends first
and the result does not depend on the machine."""

LEAST_PLANS = 5
"""Plans that are looked at whatever their size."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """What a plan is worth, the less the better.

    `excess` are bytes beyond the nodes' memory, over all nodes; `value` is what is minimised (seconds or bytes); `seconds` is the time of
    one request.
    """

    excess: int
    value: float
    seconds: float


class Evaluator:
    """Scores plans of one graph on one cluster, until the budget is spent.

    The budget is counted in tiles, so that the same search finds the same plan on any machine, unless `time_is_up` ends it before.
    `devices` are the nodes that are searched for plans, `size` is that of a plan over them: layers times nodes.
    """

    def __init__(
        self,
        pieces: Pieces,
        cluster: Cluster,
        options: PlanOptions,
        time_is_up: Callable[[], bool] = lambda: False,
        devices: Sequence[int] | None = None,
    ) -> None:
        """Score plans for a search over some nodes; None: over all."""
        self.devices = tuple(range(len(cluster.nodes)) if devices is None else devices)
        self.pieces = pieces
        self.cluster = cluster
        self.objective = options.objective
        self.transfers = options.transfer_dtype
        self.dictionary_devices = dictionary_devices_of(cluster, options.input_values)
        self.predictor = Predictor(cluster)
        self.size = len(pieces.graph.nodes) * len(self.devices)
        self.budget = max(round(TILES_PER_SECOND * options.search_seconds), LEAST_PLANS * self.size)
        self.plans = 0
        self._options = options
        self._time_is_up = time_is_up
        self._narrow = quick_narrower(pieces)

    @property
    def spent(self) -> bool:
        """Whether the search must end."""
        return self.budget <= 0 or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the time is up, whatever is left of the budget."""
        return self._time_is_up()

    def over(self, devices: Sequence[int]) -> Evaluator:
        """Return what scores plans for another search over some nodes, with a budget of its own; both are late at one time."""
        return Evaluator(self.pieces, self.cluster, self._options, self._time_is_up, devices)

    def score(self, tiles: Tiles) -> Score:
        """Return what a plan is worth, and take its price from the budget."""
        self.budget -= len(tiles) + sum(map(len, tiles.values()))
        self.plans += 1
        program = self.program(tiles)
        timeline = self.predictor.timeline(program)
        needed = program_bytes(program)
        excess = sum(
            max(0, bytes_ - node.memory_bytes) for node, bytes_ in zip(self.cluster.nodes, needed, strict=True) if node.memory_bytes
        )
        return Score(excess, self._value(program, timeline, needed), timeline.total_s)

    def _value(self, program: Program, timeline: Timeline, needed: tuple[int, ...]) -> float:
        match self.objective:
            case "latency":
                return timeline.total_s
            case "throughput":
                return self._per_request_s(program, timeline)
            case "memory":
                return float(max(needed))

    def program(self, tiles: Tiles) -> Program:
        """Return the program of a plan, to be timed."""
        program = build_direct(Plan("auto", self.pieces.graph, self.cluster, tiles), self.pieces)
        direct = replace(program, transfers=self.transfers, dictionary_devices=self.dictionary_devices)
        own = OwnFirst(self.predictor, self._narrow, self.pieces.descriptions)(direct)
        return ChunkInputs(self.predictor, self._narrow)(own)

    def _per_request_s(self, program: Program, timeline: Timeline) -> float:
        """Return the seconds between two answers when requests never stop: what the busiest node, way or wire is busy with one of them.

        Nobody is idle then, so all that messages take of a processor counts.
        """
        network = self.predictor.network
        busy: defaultdict[int, float] = defaultdict(float)
        ways: defaultdict[tuple[str, int], float] = defaultdict(float)
        for device, acts in enumerate(self.predictor.acts(program)):
            for place, act in enumerate(acts):
                if isinstance(act, Busy):
                    busy[device] += act.seconds
                    continue
                source, destination = (device, act.destination) if isinstance(act, Post) else (act.source, device)
                busy[device] += network.handling(device, source, destination, act.bytes, in_a_row=is_in_a_row(acts, place))
                if (besides := network.besides(device, source, destination, act.bytes)) is not None:
                    busy[besides[0]] += besides[1]
                is_own_way = network.machine(source) != network.machine(destination) and not network.route(source, destination)
                if isinstance(act, Post) and is_own_way:
                    lasts = act.bytes / network.link(source, destination).bandwidth_bytes_per_s
                    ways["out", network.machine(source)] += lasts
                    ways["in", network.machine(destination)] += lasts
        return max([*busy.values(), *ways.values(), *(load.busy_s for load in loads(timeline, network))])


def quick_narrower(pieces: Pieces) -> Narrow:
    """Return what tells of an operation what it reads and costs for a region of its output; how it would run is not asked."""
    graph = pieces.graph
    parts: dict[ShapeMap, Tile] = {}
    """One tile for every region that an operation was narrowed to: pieces are looked up by object."""

    def narrow(op: Apply, region: ShapeMap) -> tuple[LocalOp, Work] | None:
        node = graph.node_by_name[op.node]
        if not can_make(graph, node, pieces.descriptions[op.node], region):
            return None
        tile = parts.setdefault(region, Tile(0, region))
        return LocalOp(pieces.piece(node, tile)[0], ()), pieces.work(node, tile)

    return narrow
