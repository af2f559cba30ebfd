"""The model divided along one direction by what nodes take for it, and plans that lean: nodes with a slow way to the coordinator get less.

Less of everything, of both ends of the model only, or of exits only: what they are not given of inputs and outputs need not travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from bbgrap.auto.evaluate import Evaluator, Tiles
from bbgrap.cluster import Cluster
from bbgrap.graph import Node
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.fewer_exchanges import join_phases
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.plan import Tile, whole_output

LEANINGS = (0.5, 1.0)
"""How much the way of a node's inputs and outputs counts beside its speed, when work is divided so that slow links carry less. Twice was
predicted to be faster still, and was not (decision 18)."""

BOWS = ((0.25, 0.25, 1.5, 0.2), (0.5, 0.25, 1.0, 0.2), (0.5, 0.5, 1.5, 0.3), (1.0, 0.25, 1.0, 0.2))
"""How much that way counts at the beginning of the model, between and at the end, and which part of the work beginning and end are each.
Who is slow to get its input and to deliver its output can do more of the work between (decision 20), and at the beginning, if its input
comes in instalments (decision 22)."""

EXITS = ((0.25, 6.0), (0.0, 6.0), (0.5, 4.0))
"""How much that way counts in the model, and in its exits: what is cut there is what is sent, and it takes little to compute
(decision 24)."""

EXITS_PART = 0.15
"""Part of the model's work that exits may be, to be called so."""

SLOW_WAY = 0.02
"""Part of the time that a node takes for the model from which its way to the coordinator counts."""

Named = Iterator[tuple[str, Tiles]]
"""Plans, each with what it is in words."""


class Leaning:
    """Divides a model along one direction; `alone_s` and `ways_s` are by device, seconds without messages and of all inputs and outputs."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Reckon what every node takes for the model."""
        self._pieces = evaluator.pieces
        self._graph = evaluator.pieces.graph
        self._cluster = evaluator.cluster
        self._predictor = evaluator.predictor
        self._with_fewer: dict[tuple[Split, tuple[int, ...], float], Tiles] = {}
        """Plans with fewer exchanges: those that lean differently in different parts are made of the same few."""
        everyone = range(len(self._cluster.nodes))
        self.alone_s = [sum(self._seconds(device)) for device in everyone]
        self.ways_s = [self._way_s(device) for device in everyone]

    def along(self, split: Split, devices: Sequence[int], leaning: float = 0.0) -> Tiles:
        """Return tiles along one direction, by the nodes' speeds and, as far as the plan leans, their ways to the coordinator."""
        took = [max(self.alone_s[d] + leaning * self.ways_s[d], 1e-9) for d in devices]
        nodes = [replace(self._cluster.nodes[d], share=1 / seconds, work=()) for d, seconds in zip(devices, took, strict=True)]
        plan = plan_bbgrap(self._graph, Cluster(tuple(nodes)), PlanOptions(split=split), self._pieces.descriptions)
        return {name: tuple(replace(tile, device=devices[tile.device]) for tile in of) for name, of in plan.tiles.items()}

    def is_of_use(self, split: Split, devices: Sequence[int]) -> bool:
        """Whether some way counts, and plans that lean differ from those that do not."""
        quick = all(self.ways_s[device] < SLOW_WAY * self.alone_s[device] for device in devices)
        return not quick and self.along(split, devices, LEANINGS[0]) != self.along(split, devices)

    def everywhere(self, split: Split, devices: Sequence[int]) -> Named:
        """Yield plans that lean in all layers."""
        for leaning in LEANINGS:
            yield f"leaning {leaning:g}", self._joined(split, devices, leaning)

    def bowed(self, split: Split, devices: Sequence[int]) -> Named:
        """Yield plans that lean at both ends of the model more than between."""
        for first, between, last, part in BOWS:
            tiles: dict[str, tuple[Tile, ...]] = {}
            for names, leaning in zip(self._stretches(devices[0], part), (first, between, last), strict=True):
                leant = self._joined(split, devices, leaning)
                tiles |= {name: leant[name] for name in names}
            yield f"leaning {first:g} in the first and {last:g} in the last {part:.0%}, else {between:g}", tiles

    def light_at_exits(self, split: Split, devices: Sequence[int]) -> Named:
        """Yield plans that give next to nothing of the exits, where outputs grow large that were small before."""
        exits = self._exits(devices[0])
        for leaning, at_exits in EXITS if exits else ():
            lighter = self._joined(split, devices, at_exits)
            tiles = {**self._joined(split, devices, leaning), **{name: lighter[name] for name in exits}}
            yield f"leaning {leaning:g}, at exits {at_exits:g}", tiles

    def _joined(self, split: Split, devices: Sequence[int], leaning: float) -> Tiles:
        key = (split, tuple(devices), leaning)
        if key not in self._with_fewer:
            self._with_fewer[key] = join_phases(self._pieces, self._cluster, self.along(split, devices, leaning))
        return self._with_fewer[key]

    def _way_s(self, device: int) -> float:
        wires, host = self._predictor.wires, self._cluster.host
        if wires.machine(device) == wires.machine(host):
            return 0.0
        size = sum(self._graph.types[name].nbytes for name in (*self._graph.inputs, *self._graph.outputs))
        return size / wires.link(host, device).bandwidth_bytes_per_s

    def _seconds(self, device: int) -> list[float]:
        """Return what every graph node takes on a device."""
        return [
            self._predictor.seconds(device, self._pieces.work(node, Tile(0, whole_output(self._graph, node)))) for node in self._graph.nodes
        ]

    def _stretches(self, device: int, part: float) -> tuple[list[str], list[str], list[str]]:
        """Return the graph nodes of the first part of a device's work, of what is between, and of the last, in the order of the graph."""
        seconds = self._seconds(device)
        total_s = max(sum(seconds), 1e-9)
        found: tuple[list[str], list[str], list[str]] = ([], [], [])
        for node, before in zip(self._graph.nodes, accumulate(seconds, initial=0.0), strict=False):
            begin = before / total_s
            found[0 if begin < part else 1 if begin < 1 - part else 2].append(node.name)
        return found

    def _exits(self, device: int) -> frozenset[str]:
        """Return the graph nodes, after the last windows, from where outputs grow; none if there is little else in the model."""
        windows = {"conv", "conv3x3", "depthwise", "pool"}
        behind: set[str] = set()
        for node in reversed(self._graph.nodes):
            readers = [reader.name for output in node.outputs for reader in self._graph.consumers.get(output, ())]
            work = self._pieces.work(node, Tile(0, whole_output(self._graph, node)))
            if work.kind not in windows and behind.issuperset(readers):
                behind.add(node.name)
        exits: set[str] = set()
        for node in self._graph.nodes:
            producers = {producer.name for name in node.inputs if (producer := self._graph.producers.get(name)) is not None}
            if node.name in behind and (producers & exits or self._grows(node)):
                exits.add(node.name)
        seconds = dict(zip((node.name for node in self._graph.nodes), self._seconds(device), strict=True))
        return frozenset(exits) if sum(seconds[name] for name in exits) < EXITS_PART * sum(seconds.values()) else frozenset()

    def _grows(self, node: Node) -> bool:
        """Whether a node makes more bytes than it reads."""
        read = sum(self._graph.types[name].nbytes for name in node.inputs if name in self._graph.producers or name in self._graph.inputs)
        return sum(self._graph.types[name].nbytes for name in node.outputs if name) > read
