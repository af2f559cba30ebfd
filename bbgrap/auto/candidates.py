"""Whole plans to start from: every direction over every useful set of nodes, every other planner's plan, and each node alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bbgrap.auto.balance import TENSORS, Balance, Direction, on_devices
from bbgrap.auto.evaluate import Evaluator, Score
from bbgrap.cluster.types import Link
from bbgrap.graph.state import grows
from bbgrap.planners.options import SPLITS, PlanOptions, Split
from bbgrap.planners.plan import Tiles, cuts_moving
from bbgrap.planners.registry import PLANNERS
from bbgrap.planners.shares import grid_of
from bbgrap.planners.single import plan_whole
from bbgrap.planners.training import training_structure

EVERY_SIZE = 8
"""Up to so many nodes, sets of every size are tried; beyond, halves of halves."""

KEPT = 0.4
"""Part of the budget that candidates leave."""

LARGE = 1_500
"""Layers times nodes from which not every direction is tried."""

ALL_PLANNERS = 2_500
"""Layers times nodes up to which every other planner is asked, whatever the budget."""

FIRST_SPLITS: tuple[Split, ...] = ("rows", "grid", "batch")
FEW_SPLITS: tuple[Split, ...] = ("rows", "batch")
"""What is tried instead of every direction where plans are large, and where they are very large."""

SLOW = {"tofu": ALL_PLANNERS, "hypar": 2 * LARGE, "soybean": 2 * LARGE, "equal-chop": 2 * LARGE, "model-parallel": 4 * LARGE}
"""Planners that search for seconds, in whose plans everyone sends to everyone, or that a better one stands for, and up to how many layers
times nodes they are asked."""

QUICK = ("tensor-parallel", "fewer-exchanges", "pipeline", "one-weird-trick")
"""Planners that do not search: asked before sets of nodes are tried, since a memory limit may leave nothing else, and of large plans
as long as anything is left of the budget."""

FOR_TRAINING = ("hypar", "soybean", "one-weird-trick", "data-parallel", "tofu")
"""Planners that know training steps: asked first for one, since directions know nothing of its weights."""

SLOW_IN_TRAINING = {"tofu": ALL_PLANNERS}
"""The same as `SLOW` there: the others look at no more than a few plans."""

OWN = frozenset({"bbgrap", "single", "widest", "layerwise", "fused-tiles"})
"""Planners whose plans are among the candidates anyway, and two that were never the best, or close: in 20 cells of six models."""


@dataclass(frozen=True)
class Candidate:
    """A whole plan with a name for people, its kind (the split it follows, `alone` or `planner`), and what it is worth.

    `is_plain`: one of the other planners makes it, too. `planner` is the one that was asked for it, if one was.
    """

    name: str
    kind: str
    tiles: Tiles
    score: Score
    is_plain: bool = False
    planner: str = ""


class Candidates:
    """Collects candidates, each once."""

    def __init__(self, evaluator: Evaluator, hopeless: frozenset[str] = frozenset(), searched: int = 1) -> None:
        """Collect what there is over the evaluator's nodes.

        Args:
            evaluator: Of plans over these nodes.
            hopeless: Planners that need not be asked.
            searched: So many of the fastest nodes have been searched before.
        """
        self.hopeless = hopeless
        self.searched = searched
        self.evaluator = evaluator
        self.graph = evaluator.pieces.graph
        self.descriptions = evaluator.pieces.descriptions
        self.cluster = evaluator.cluster
        self.devices = evaluator.devices
        self.found: list[Candidate] = []
        self._seen: set[int] = set()
        self._has_asked = False
        self._budget = evaluator.budget
        self.balance = Balance(evaluator)
        self.grows = grows(self.graph)

    @property
    def _enough(self) -> bool:
        """Whether the rest of the budget must be left for improving."""
        return self.evaluator.spent or self.evaluator.budget < KEPT * self._budget

    def begin(self) -> None:
        """Collect what takes little time."""
        self._alone()
        if len(self.devices) > 1:
            if training_structure(self.graph, self.descriptions) is not None:
                self._planners(FOR_TRAINING, SLOW_IN_TRAINING)
            self._directions()
            self._planners(QUICK)
            self._subsets()
            self._by_links()

    def ask_others(self) -> None:
        """Collect the plans of the planners that search themselves, after `begin`; once."""
        if len(self.devices) > 1 and not self._has_asked:
            self._has_asked = True
            self._planners([name for name in PLANNERS if name not in QUICK])

    def ranked(self) -> list[Candidate]:
        """Return what was collected, the best first."""
        # Planners that are asked whatever the budget have spent what is kept, too.
        self.evaluator.budget = max(self.evaluator.budget, round(KEPT * self._budget))
        return sorted(self.found, key=lambda candidate: candidate.score)

    def add(self, name: str, kind: str, tiles: Tiles, *, is_plain: bool = False, planner: str = "") -> None:
        """Score a plan, if it was not there before, and serves all lengths of a state that grows."""
        if self.grows and any(cuts_moving(self.graph, node, tiles[node.name]) for node in self.graph.nodes):
            return
        key = hash(tuple(tiles[node.name] for node in self.graph.nodes))
        if key not in self._seen:
            self._seen.add(key)
            self.found.append(Candidate(name, kind, tiles, self.evaluator.score(tiles), is_plain, planner))

    def _alone(self) -> None:
        names = [node.name for node in self.cluster.nodes]
        different: dict[tuple[float, Link, int], int] = {}
        for device in self.by_speed():
            way = self.cluster.link(self.cluster.host, device)
            different.setdefault((self.balance.alone_s[device], way, self.cluster.nodes[device].memory_bytes), device)
        with_room = 0  # only they count: where fast nodes have little memory, a slow one may be all that holds the model
        for device in different.values():
            self.add(f"'{names[device]}' alone", "alone", plan_whole(self.graph, self.cluster, device).tiles, is_plain=True)
            with_room += not self.found[-1].score.excess
            if with_room == EVERY_SIZE:
                return

    def by_speed(self) -> list[int]:
        """Return the devices, the fastest first; of equals, those on the coordinator's machine, by wires to it, groups together."""
        nodes, network = self.cluster.nodes, self.cluster.network
        first = next((node.group for node in nodes if node.name == network.coordinator_on), "")

        def order(device: int) -> tuple[float, bool, int, bool, str, int]:
            node, wires = nodes[device], len(self.cluster.route(self.cluster.host, device))
            alone_s = round(self.balance.alone_s[device], 9)
            return (alone_s, node.name != network.coordinator_on, wires, node.group != first, node.group, device)

        return sorted(self.devices, key=order)

    def _directions(self) -> None:
        everyone, size = self.devices, self.evaluator.size
        for split in SPLITS if size <= LARGE else FIRST_SPLITS if size <= 4 * LARGE else FEW_SPLITS:
            if not self._enough:
                self.spread(split, everyone)
        if min(candidate.score for candidate in self.found).excess or self.grows:
            for direction in ("channels", TENSORS):  # they divide the weights
                self.spread(direction, everyone)

    def spread(self, split: Direction, devices: Sequence[int]) -> None:
        """Add the plan of one direction over some nodes, by how fast each does this model."""
        if split == "grid" and grid_of(len(devices))[1] == 1:
            return
        everyone = len(devices) == len(self.devices)
        self.add(f"{split} over {self._over(devices)}", split, self.balance.by_speed(split, devices), is_plain=everyone)

    def _over(self, devices: Sequence[int]) -> str:
        count = len(self.cluster.nodes)
        return "all nodes" if len(devices) == count else f"{len(devices)} of {count} nodes"

    def _sets(self) -> Iterator[list[int]]:
        """Yield sets of nodes to leave the others out: the fastest ones, and every group."""
        order = self.by_speed()
        halves = [len(order) >> by for by in range(1, len(order).bit_length())]
        sizes = list(dict.fromkeys([*halves, *range(len(order) - 1, 1, -1)])) if len(order) <= EVERY_SIZE else halves
        for size in sizes:
            if size > self.searched:
                yield sorted(order[:size])
        groups: dict[str, list[int]] = {}
        for device in self.devices:
            groups.setdefault(self.cluster.nodes[device].group, []).append(device)
        for name, devices in groups.items():
            if name and 1 < len(devices) < len(order):
                yield devices

    def _subsets(self) -> None:
        for split, _ in self._best_directions():
            for devices in self._sets():
                if self._enough:
                    return
                self.spread(split, devices)

    def _by_links(self) -> None:
        """Give nodes with a slow link to the coordinator less, since less of the inputs and outputs is theirs then.

        Along both of the best directions: they are often predicted to be worth the same, and differ once links count.
        """
        ways = {"by speed and link": self.balance.by_speed_and_link, "by link in output heads": self.balance.by_link_in_heads}
        for split, devices in self._best_directions():
            for words, divide in ways.items() if self.balance.links_count(split, devices) else ():
                if not self._enough and (tiles := divide(split, devices)):
                    self.add(f"{split} over {self._over(devices)}, {words}, with fewer exchanges", split, tiles)

    def _best_directions(self) -> list[tuple[Direction, list[int]]]:
        """Return the two best directions that really divide, each with the nodes over which it is best."""
        best: dict[Direction, list[int]] = {}
        for candidate in sorted(self.found, key=lambda candidate: candidate.score):
            devices = sorted({tile.device for tiles in candidate.tiles.values() for tile in tiles})
            for split in (*SPLITS, TENSORS):
                if candidate.kind == split and len(devices) > 1:
                    best.setdefault(split, devices)
        return list(best.items())[:2]

    def _planners(self, names: Iterable[str], slow: Mapping[str, int] = SLOW) -> None:
        """Add the plans of the other planners, so that none is better; of large models as far as the budget allows."""
        size, everyone = self.evaluator.size, len(self.devices) == len(self.cluster.nodes)
        # The coordinator may stand beside a node that is left out: planners do not mind where it is.
        cluster = replace(self.cluster, nodes=tuple(self.cluster.nodes[device] for device in self.devices))
        for name in names:
            ends = self._enough if name not in QUICK else self.evaluator.spent
            if name in OWN | self.hopeless or size > slow.get(name, size) or (ends if size > ALL_PLANNERS else self.evaluator.is_late):
                continue
            tiles = on_devices(PLANNERS[name](self.graph, cluster, PlanOptions(name), self.descriptions), self.devices)
            words = "" if everyone else f" over {self._over(self.devices)}"
            self.add(f"planner '{name}'{words}", "planner", tiles, is_plain=True, planner=name)
