"""The model divided along one direction, so that all nodes are done at the same time: by their speed, and by their link to the coordinator.

A node whose inputs and outputs travel over a slow link cannot compute meanwhile. Counting that time beside its work gives it less of both.
Output heads, where a few small maps grow into large outputs, take little to compute and much to send: there the link counts most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bbgrap.auto.evaluate import Evaluator
from bbgrap.cluster import Cluster
from bbgrap.graph import Node
from bbgrap.planners.fewer_exchanges import join_phases
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.registry import PLANNERS

TENSORS: Literal["tensor-parallel"] = "tensor-parallel"
Direction = Split | Literal["tensor-parallel"]
"""Along what a model is divided: a direction of the planner `bbgrap`, or as `tensor-parallel` finds it."""

HEAD_WEIGHT, OTHER_WEIGHT = 6.0, 0.25
"""How much the time on the link counts in output heads, and elsewhere if heads are divided apart (decision 24)."""

HEAD_SHARE = 0.15
"""Part of the model's work that output heads may be, to be called so."""

WINDOWS = frozenset({"conv", "conv3x3", "depthwise", "pool"})
"""Kinds of work behind which output heads begin: what is divided differently after them has no halo to fetch."""


class Balance:
    """Divides a model along one direction.

    `alone_s` are the seconds of the whole model on each device without messages, `links_s` those that all inputs and outputs take between
    the device and the coordinator.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        """Reckon what every node takes for the model."""
        self._pieces = evaluator.pieces
        self._graph = evaluator.pieces.graph
        self._cluster = evaluator.cluster
        self._network = evaluator.predictor.network
        everyone = range(len(self._cluster.nodes))
        self.alone_s = [self._alone_s(device) for device in everyone]
        self.links_s = [self._link_s(device) for device in everyone]

    def by_speed(self, split: Direction, devices: Sequence[int]) -> Tiles:
        """Return tiles along one direction, by how fast each node does this model."""
        return self._divided(split, devices, [self.alone_s[device] for device in devices])

    def links_count(self, split: Direction, devices: Sequence[int]) -> bool:
        """Whether links make a difference: plans that count them differ from the one by speed."""
        return self._by_link(split, devices, 1.0) != self.by_speed(split, devices)

    def by_speed_and_link(self, split: Direction, devices: Sequence[int]) -> Tiles:
        """Return tiles by how fast each node does this model and exchanges it with the coordinator, with fewer exchanges."""
        return join_phases(self._pieces, self._cluster, self._by_link(split, devices, 1.0))

    def by_link_in_heads(self, split: Direction, devices: Sequence[int]) -> Tiles:
        """Return the same where nodes with slow links get next to nothing of the output heads; none if the model has no heads."""
        heads = self._heads(devices[0])
        if not heads:
            return {}
        body, light = (
            join_phases(self._pieces, self._cluster, self._by_link(split, devices, weight)) for weight in (OTHER_WEIGHT, HEAD_WEIGHT)
        )
        return {name: (light if name in heads else body)[name] for name in body}

    def _by_link(self, split: Direction, devices: Sequence[int], weight: float) -> Tiles:
        return self._divided(split, devices, [self.alone_s[device] + weight * self.links_s[device] for device in devices])

    def _divided(self, split: Direction, devices: Sequence[int], seconds: Sequence[float]) -> Tiles:
        nodes = [replace(self._cluster.nodes[d], share=1 / max(took, 1e-9), work=()) for d, took in zip(devices, seconds, strict=True)]
        cluster, descriptions = Cluster(tuple(nodes)), self._pieces.descriptions
        options = PlanOptions(TENSORS) if split == TENSORS else PlanOptions(split=split)
        return on_devices(PLANNERS[options.planner](self._graph, cluster, options, descriptions), devices)

    def _alone_s(self, device: int) -> float:
        return sum(self._seconds(device, node) for node in self._graph.nodes)

    def _seconds(self, device: int, node: Node) -> float:
        return self._network.seconds(device, self._pieces.work(node, Tile(0, whole_output(self._graph, node))))

    def _link_s(self, device: int) -> float:
        size = sum(self._graph.types[name].nbytes for name in (*self._graph.given, *self._graph.answered))
        return size / self._network.link(self._cluster.host, device).bandwidth_bytes_per_s

    def _heads(self, device: int) -> frozenset[str]:
        """Return the graph nodes, after the last windows, from where outputs grow; none if they are much of the model's work."""
        graph, tail, heads = self._graph, set[str](), set[str]()
        for node in reversed(graph.nodes):
            readers = {reader.name for output in node.outputs for reader in graph.consumers.get(output, ())}
            work = self._pieces.work(node, Tile(0, whole_output(graph, node)))
            if work.kind not in WINDOWS and readers <= tail:
                tail.add(node.name)
        for node in graph.nodes:
            producers = {graph.producers[name].name for name in node.inputs if name in graph.producers}
            if node.name in tail and (producers & heads or self._grows(node)):
                heads.add(node.name)
        work_s = sum(self._seconds(device, node) for node in graph.nodes if node.name in heads)
        return frozenset(heads) if work_s < HEAD_SHARE * self.alone_s[device] else frozenset()

    def _grows(self, node: Node) -> bool:
        """Whether a node makes more bytes than it reads of other values than weights."""
        read = sum(self._graph.types[name].nbytes for name in node.inputs if name and name not in self._graph.weights)
        return sum(self._graph.types[name].nbytes for name in node.outputs if name) > read


def on_devices(tiles: Tiles, devices: Sequence[int]) -> Tiles:
    """Return a plan that was made for these devices alone with their numbers in the cluster."""
    return {name: tuple(replace(tile, device=devices[tile.device]) for tile in of) for name, of in tiles.items()}
