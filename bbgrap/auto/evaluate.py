"""What a plan is worth: predicted by the clock, under every node's memory as a hard limit, and paid from a budget."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from bbgrap.cluster import Cluster
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.memory import program_bytes
from bbgrap.compiler.passes import InInstalments, SlowestFirst
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.clock import Post, Work
from bbgrap.costmodel.timeline import Timeline
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, bound_together, is_torn
from bbgrap.planners.search import TileChoices
from bbgrap.program.dictionaries import ways_of_palettes
from bbgrap.program.steps import Apply, Program
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import LocalOp, can_make
from bbgrap.tdl.work import Work as Amount

Tiles = Mapping[str, tuple[Tile, ...]]

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


CANNOT_RUN = Score(sys.maxsize, inf, inf)
"""Of a plan in which a value would have to cross machines that cannot."""


class Evaluator:
    """Scores plans of one graph on one cluster, until the budget is spent.

    The budget is counted in tiles, so that the same search finds the same plan on any machine, unless `time_is_up` ends it before.
    """

    def __init__(
        self,
        pieces: Pieces,
        cluster: Cluster,
        options: PlanOptions,
        time_is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start with a full budget."""
        self.pieces = pieces
        self.cluster = cluster
        self.objective = options.objective
        self.transfers = options.transfer_dtype
        self.palettes = ways_of_palettes(cluster, options.input_values)
        self.predictor = Predictor(cluster)
        self.budget = max(round(TILES_PER_SECOND * options.search_seconds), LEAST_PLANS * len(pieces.graph.nodes) * len(cluster.nodes))
        self.plans = 0
        self._time_is_up = time_is_up
        self._bound = bound_together(pieces.graph)
        self._parts: dict[ShapeMap, Tile] = {}
        """One tile for every region that an operation was narrowed to: pieces are looked up by object."""

    @property
    def spent(self) -> bool:
        """Whether the search must end."""
        return self.budget <= 0 or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the time is up, whatever is left of the budget."""
        return self._time_is_up()

    def score(self, tiles: Tiles) -> Score:
        """Return what a plan is worth."""
        self.pay(tiles)
        self.plans += 1
        if is_torn(self._bound, tiles):
            return CANNOT_RUN
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
                return self._per_request_s(program)
            case "memory":
                return float(max(needed))

    def at_least_s(self, tiles: Tiles) -> float:
        """Return seconds that a request takes at least: no node can be faster than its own work and the copying of what it fetches.

        Much cheaper than a score, where machines send each other a lot.
        """
        choices = TileChoices(self.pieces, len(self.cluster.nodes), {name: (of,) for name, of in tiles.items()})
        seconds = [0.0] * len(self.cluster.nodes)
        for node in self.pieces.graph.nodes:
            for tile in tiles[node.name]:
                seconds[tile.device] += self.predictor.seconds(tile.device, self.pieces.work(node, tile))
        fetched = sum((choices.missing(edge)[0, 0] for edge in choices.edges), start=np.zeros(len(seconds), dtype=np.int64))
        return max(own + int(fetched[device]) * self._fetched_s_per_byte[device] for device, own in enumerate(seconds))

    @cached_property
    def _fetched_s_per_byte(self) -> tuple[float, ...]:
        """Seconds that every node's processor takes to receive a byte, from where that takes the least."""
        handling, nodes = self.predictor.wires.handling, range(len(self.cluster.nodes))
        return tuple(
            min(((handling(to, peer, to, 1 << 20) - handling(to, peer, to, 0)) / (1 << 20) for peer in nodes if peer != to), default=0.0)
            for to in nodes
        )

    def pay(self, tiles: Tiles) -> None:
        """Take the price of a plan from the budget."""
        self.budget -= len(tiles) + sum(map(len, tiles.values()))

    def program(self, tiles: Tiles) -> Program:
        """Return the program of a plan, to be timed."""
        program = build_direct(Plan("auto", self.pieces.graph, self.cluster, tiles), self.pieces)
        direct = replace(program, transfers=self.transfers, palettes=self.palettes)
        return SlowestFirst(self.cluster).run(InInstalments(self.predictor, self._narrow).run(direct))

    def _narrow(self, op: Apply, region: ShapeMap) -> tuple[LocalOp, Amount] | None:
        """Return what an operation reads and costs for a region of its output; how it would run is not asked."""
        graph, node = self.pieces.graph, self.pieces.graph.node_by_name[op.node]
        if not can_make(graph, node, self.pieces.descriptions[op.node], region):
            return None
        tile = self._parts.setdefault(region, Tile(0, region))
        return LocalOp(self.pieces.piece(node, tile)[0], ()), self.pieces.work(node, tile)

    def _per_request_s(self, program: Program) -> float:
        """Return the seconds between two answers when requests never stop: what the busiest node or way is busy with one of them.

        Nobody is idle then, so all that messages take of a processor counts.
        """
        wires = self.predictor.wires
        busy: defaultdict[int, float] = defaultdict(float)
        ways: defaultdict[tuple[str, int], float] = defaultdict(float)
        for device, acts in enumerate(self.predictor.acts(program)):
            for act in acts:
                if isinstance(act, Work):
                    busy[device] += act.seconds
                    continue
                source, destination = (device, act.destination) if isinstance(act, Post) else (act.source, device)
                busy[device] += wires.handling(device, source, destination, act.bytes)
                if (besides := wires.besides(device, source, destination, act.bytes)) is not None:
                    busy[besides[0]] += besides[1]
                if isinstance(act, Post) and wires.machine(source) != wires.machine(destination):
                    lasts = act.bytes / wires.link(source, destination).bandwidth_bytes_per_s
                    ways["out", wires.machine(source)] += lasts
                    ways["in", wires.machine(destination)] += lasts
        return max([*busy.values(), *ways.values()])
