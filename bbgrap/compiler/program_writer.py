"""The programs of all devices while they are written: what every way of lowering a plan begins with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from bbgrap.graph import Node
from bbgrap.planners.plan import Plan, Tile
from bbgrap.program.steps import Buffer, BufferId, DeviceProgram, Piece, Receive, Send, Step
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import Descriptions, reducer_of
from bbgrap.tdl.language import ReducerKind


class DeviceWriter:
    """The growing program of one device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.buffers: dict[BufferId, Buffer] = {}
        self.steps: list[Step] = []

    def buffer(self, value: str, region: ShapeMap, part: int | None = None) -> BufferId:
        """Return a new buffer for a region of a value, or of one of its partial results."""
        number = len(self.buffers)
        self.buffers[number] = Buffer(value, region, part)
        return number

    def finish(self, feeds: tuple[BufferId, ...] = (), results: tuple[BufferId, ...] = ()) -> DeviceProgram:
        """Return the program."""
        return DeviceProgram(self.device, self.buffers, tuple(self.steps), feeds, results)


Device = TypeVar("Device", bound=DeviceWriter)


class ProgramWriter(Generic[Device]):
    """The growing programs of all devices of a plan, the host's last."""

    def __init__(self, plan: Plan, descriptions: Descriptions, new: Callable[[int], Device]) -> None:
        self.plan, self.graph, self.host = plan, plan.graph, plan.cluster.host
        self.descriptions = descriptions
        self.devices = [new(device) for device in range(self.host + 1)]
        self._messages = count()

    def whole(self, value: str) -> ShapeMap:
        """Return the region that is all of a value."""
        return ShapeMap.full(self.graph.types[value].shape or ())

    def part_number(self, node: Node, tile: Tile) -> int | None:
        """Return the number of a tile's partial result, in the order of their ranges; None if it is not partial."""
        if tile.part is None:
            return None
        return sorted({other.part.interval for other in self.plan.tiles[node.name] if other.part is not None}).index(tile.part.interval)

    def reducer(self, value: str) -> ReducerKind:
        """Return how the partial results of a value are added up."""
        description = self.descriptions[self.graph.producers[value].name]
        kind = None if description is None else reducer_of(description)
        assert kind is not None, "partial tiles belong to a reduction"
        return kind

    def send(self, source: int, piece: Piece, destination: int) -> BufferId:
        """Send a piece from one device to another; returns the buffer that receives it."""
        message, here, there = next(self._messages), self.devices[source], self.devices[destination]
        here.steps.append(Send(message, destination, (piece,)))
        held = here.buffers[piece.buffer]
        received = there.buffer(held.value, piece.region, held.part)
        there.steps.append(Receive(message, source, (received,)))
        return received
