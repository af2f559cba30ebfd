"""The programs of all devices while they are written: what every way of lowering a plan begins with."""

from __future__ import annotations

from itertools import count

from bbgrap.program.steps import Buffer, BufferId, Piece, Receive, Send, Step
from bbgrap.shapemap import ShapeMap


class DeviceWriter:
    """The growing program of one device."""

    def __init__(self) -> None:
        """Start empty."""
        self.buffers: dict[BufferId, Buffer] = {}
        self.steps: list[Step] = []

    def buffer(self, value: str, region: ShapeMap, part: int | None = None) -> BufferId:
        """Return a new buffer for a region of a value, or of one of its partial results."""
        number = len(self.buffers)
        self.buffers[number] = Buffer(value, region, part)
        return number


class MessageWriter:
    """Numbers messages, and writes both of their ends."""

    def __init__(self) -> None:
        """Start with number 0."""
        self._numbers = count()

    def send(self, source: DeviceWriter, at: int, piece: Piece, destination: DeviceWriter, to: int) -> BufferId:
        """Send a piece from device `at` to device `to`; returns the buffer that receives it."""
        message = next(self._numbers)
        source.steps.append(Send(message, to, (piece,)))
        held = source.buffers[piece.buffer]
        received = destination.buffer(held.value, piece.region, held.part)
        destination.steps.append(Receive(message, at, (received,)))
        return received
