"""A program: for every device an ordered list of steps over buffers, in global coordinates.

A buffer is a dense local tensor that holds a region of one value of the graph. Every step reads and writes buffers by number:

    Receive   wait for a message; its parts fill buffers
    Compute   run operations: `Apply` (a piece of a graph node), `Assemble` (put a region together from regions of other buffers) and
              `Combine` (add up partial results)
    Send      send regions of buffers to another device, as one message

An `Assemble` from one buffer is a crop, from several a concat. The last device is the host (the coordinator); it applies nothing but
concatenations that make outputs (`bbgrap.compiler.host_concat`).
The initial program (`build`) and the final one (after `passes`) are of this one type, and both run.

Laws (tests look for breaches, after every pass): a buffer is written once, before it is read; a message has one sender and one receiver,
with equal parts, and its data were ready; an assembly's pieces are disjoint and cover its region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bbgrap.graph import Graph
from bbgrap.planners.options import TransferType
from bbgrap.program.encodings import WireType, wire_bytes, wire_of
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import LocalOp
from bbgrap.tdl.language import ReducerKind
from bbgrap.work import NO_WORK, Work

BufferId = int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A region of a value, held densely by one device; with `part`, partial result number `part` of it."""

    value: str
    region: ShapeMap
    part: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A region (global coordinates) of a buffer."""

    buffer: BufferId
    region: ShapeMap


@dataclass(frozen=True, slots=True)
class Apply:
    """Compute a piece of a graph node.

    `reads` follows the node's inputs, then what its subgraphs capture: None for absent operands, weights and parameters.
    `writes` follows the node's present outputs. `work` is what it costs.
    """

    node: str
    local: LocalOp = field(repr=False, compare=False)
    reads: tuple[BufferId | None, ...]
    writes: tuple[BufferId, ...]
    work: Work = NO_WORK


@dataclass(frozen=True, slots=True)
class Assemble:
    """Put `output` together from disjoint pieces that cover it: one piece is a crop, several a concat."""

    output: BufferId
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """Add up (or maximise, ...) all partial results of one region of a value, in the order of the parts: always the same."""

    output: BufferId
    kind: ReducerKind
    inputs: tuple[BufferId, ...]


Op = Apply | Assemble | Combine


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for message `message` from `source`; its parts fill `buffers`."""

    message: int
    source: int
    buffers: tuple[BufferId, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Run operations in order: one stand-alone model. Before fusion every operation is one of its own."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send the parts to `destination` as message `message`."""

    message: int
    destination: int
    parts: tuple[Piece, ...]


Step = Receive | Compute | Send


@dataclass(frozen=True)
class DeviceProgram:
    """The steps of one device, and its buffers by number.

    `feeds` are filled before the first step (the host: the model's inputs), `results` are read after the last (its outputs).
    """

    device: int
    buffers: Mapping[BufferId, Buffer] = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)
    feeds: tuple[BufferId, ...] = ()
    results: tuple[BufferId, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        """All operations, in order."""
        return tuple(op for step in self.steps if isinstance(step, Compute) for op in step.ops)


@dataclass(frozen=True)
class Program:
    """One program per device; the last is the host's.

    `transfers` is what 32-bit floats become on their way to an agent. What goes to the host, the model's outputs, stays exact. The
    `dictionary_devices` get the model's inputs encoded with dictionaries, if all stays exact.
    """

    graph: Graph = field(repr=False)
    devices: tuple[DeviceProgram, ...]
    transfers: TransferType = "exact"
    dictionary_devices: frozenset[int] = frozenset()
    open_sizes: bool = False
    """Whether it runs for any size of the graph's moving axes: nothing is cut along them, and no size of them is written down."""

    @property
    def host(self) -> int:
        """The device number of the host."""
        return len(self.devices) - 1

    @cached_property
    def senders(self) -> Mapping[int, tuple[int, Send]]:
        """Message number to its sending device and step."""
        return {s.message: (d.device, s) for d in self.devices for s in d.steps if isinstance(s, Send)}

    def wire(self, source: int, destination: int) -> WireType:
        """What 32-bit floats become on their way between two devices."""
        if destination == self.host:
            return "exact"
        encoded = source == self.host and destination in self.dictionary_devices
        return "dictionary" if encoded and self.transfers == "exact" else self.transfers

    def part_bytes(self, device: int, send: Send) -> list[int]:
        """Bytes that every part of a device's message takes on the wire."""
        wire = self.wire(device, send.destination)
        return [self.region_bytes(self.devices[device].buffers[part.buffer].value, part.region, wire) for part in send.parts]

    def buffer_bytes(self, held: Buffer) -> int:
        """Bytes of a buffer; of elements without a fixed size none."""
        return held.region.size * self.graph.types[held.value].dtype.itemsize

    def region_bytes(self, value: str, region: ShapeMap, wire: WireType) -> int:
        """Bytes of a region of a value on the wire; 0 where the shape is only known at run time."""
        kind = self.graph.types[value]
        if kind.shape is None:
            return 0
        travels = wire_of(kind.dtype, wire)
        return region.size * kind.dtype.itemsize if travels == "exact" else wire_bytes(region.size, travels)


def reads_of(item: Step | Op) -> Iterator[BufferId]:
    """Yield the buffers that a step or operation reads (inside a `Compute` also those it writes itself)."""
    match item:
        case Receive():
            return
        case Compute():
            for op in item.ops:
                yield from reads_of(op)
        case Apply():
            yield from (b for b in item.reads if b is not None)
        case Assemble():
            yield from (p.buffer for p in item.pieces)
        case Combine():
            yield from item.inputs
        case Send():
            yield from (p.buffer for p in item.parts)


def writes_of(item: Step | Op) -> Iterator[BufferId]:
    """Yield the buffers that a step or operation writes."""
    match item:
        case Receive():
            yield from item.buffers
        case Compute():
            for op in item.ops:
                yield from writes_of(op)
        case Apply():
            yield from item.writes
        case Assemble() | Combine():
            yield item.output
        case Send():
            return
