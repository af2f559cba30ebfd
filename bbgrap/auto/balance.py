"""The model divided along one direction, so that all nodes are done at the same time: by their speed, and by their link to the coordinator.

A node whose inputs and outputs travel over a slow link cannot compute meanwhile. Counting that time beside its work gives it less of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bbgrap.auto.evaluate import Evaluator, Tiles
from bbgrap.cluster import Cluster
from bbgrap.planners.bbgrap import plan_bbgrap
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.plan import Tile, whole_output


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
        self._predictor = evaluator.predictor
        everyone = range(len(self._cluster.nodes))
        self.alone_s = [self._alone_s(device) for device in everyone]
        self.links_s = [self._link_s(device) for device in everyone]

    def by_speed(self, split: Split, devices: Sequence[int]) -> Tiles:
        """Return tiles along one direction, by how fast each node does this model."""
        return self._divided(split, devices, [self.alone_s[device] for device in devices])

    def by_speed_and_link(self, split: Split, devices: Sequence[int]) -> Tiles:
        """Return tiles along one direction, by how fast each node does this model and exchanges it with the coordinator."""
        return self._divided(split, devices, [self.alone_s[device] + self.links_s[device] for device in devices])

    def _divided(self, split: Split, devices: Sequence[int], seconds: Sequence[float]) -> Tiles:
        nodes = [replace(self._cluster.nodes[d], share=1 / max(took, 1e-9), work=()) for d, took in zip(devices, seconds, strict=True)]
        plan = plan_bbgrap(self._graph, Cluster(tuple(nodes)), PlanOptions(split=split), self._pieces.descriptions)
        return {name: tuple(replace(tile, device=devices[tile.device]) for tile in of) for name, of in plan.tiles.items()}

    def _alone_s(self, device: int) -> float:
        return sum(
            self._predictor.seconds(device, self._pieces.work(node, Tile(0, whole_output(self._graph, node)))) for node in self._graph.nodes
        )

    def _link_s(self, device: int) -> float:
        network, host = self._predictor.network, self._cluster.host
        size = sum(self._graph.types[name].nbytes for name in (*self._graph.inputs, *self._graph.outputs))
        return size / network.link(host, device).bandwidth_bytes_per_s
