"""Rewriting a fused program so that a device makes the beginning of its work in parts; which ones, `chunk_inputs` decides.

A device's first operations lead from what it receives to one buffer that the rest of its work reads. Any region of that buffer can be
made by itself; what that takes is derived back to front: every operation makes what the ones after it read of it. Regions next to each
other overlap on the way; there, operations compute twice. What is received is never asked for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bbgrap.graph import Graph
from bbgrap.program.steps import (
    Apply,
    Assemble,
    Buffer,
    BufferId,
    Compute,
    DeviceProgram,
    Op,
    Piece,
    Program,
    Receive,
    Send,
    Step,
    reads_of,
    writes_of,
)
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.tdl import Descriptions, LocalOp, can_make, localize, output_regions
from bbgrap.tdl.work import WorkCounter
from bbgrap.work import Work

Narrow = Callable[[Apply, ShapeMap], tuple[LocalOp, Work] | None]
"""Returns how an operation makes a region of its one output, and what that costs; None if nobody can tell."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a device does first: it receives `receive` from the host, who sends it by `send`, and `ops` make `target` of it.

    `rest` are the operations that follow in the same step; of what `ops` make and read, they and all later steps read `target` only.
    """

    send: Send
    receive: Receive
    ops: tuple[Op, ...]
    rest: tuple[Op, ...]
    target: BufferId


def prefixes_of(program: Program, device: DeviceProgram) -> Iterator[Prefix]:
    """Yield every way to take the beginning off a device's first segment, short ones first; none unless it begins with one message."""
    match device.steps[:2]:
        case (Receive(source=source) as receive, Compute(ops=ops)) if source == program.host:
            later = set(device.results).union(*(reads_of(step) for step in device.steps[2:]))
            last = {buffer: number for number, op in enumerate(ops) for buffer in reads_of(op)}
            alive = set(receive.buffers)
            for number, op in enumerate(ops):
                alive.update(writes_of(op))
                alive = {buffer for buffer in alive if buffer in later or last.get(buffer, -1) > number}
                if isinstance(op, Apply) and alive == set(op.writes) and len(alive) == 1:
                    yield Prefix(program.senders[receive.message][1], receive, ops[: number + 1], ops[number + 1 :], op.writes[0])


@dataclass(frozen=True, slots=True)
class Derived:
    """What a region of a prefix's target takes: the operations with what they make, and the region that is needed of every buffer."""

    ops: tuple[Op, ...]
    regions: Mapping[BufferId, ShapeMap]


def derive(device: DeviceProgram, ops: Sequence[Op], target: BufferId, region: ShapeMap, narrow: Narrow) -> Derived | None:
    """Return what a region of what `ops` make takes; None if that cannot be told, or if a partial result is on the way.

    A partial result is of a range of what its operation sums over, and narrowing knows regions only.
    """
    wanted = {target: region}
    done: list[Op] = []
    for op in reversed(ops):
        match op:
            case Assemble(output=output, pieces=pieces) if output in wanted:
                made = wanted[output]
                parts = tuple(Piece(p.buffer, common) for p in pieces if not (common := p.region.intersect(made)).is_empty)
                done.append(Assemble(output, parts))
                reads = [(part.buffer, part.region) for part in parts]
            case Apply(reads=operands, writes=(output,)) if output in wanted:
                found = narrow(op, wanted[output]) if device.buffers[output].part is None else None
                if found is None or len(found[0].reads) != len(operands):
                    return None
                done.append(replace(op, local=found[0], work=found[1]))
                needed = zip(operands, found[0].reads, strict=True)
                reads = [(buffer, read) for buffer, read in needed if buffer is not None and read is not None]
                if len(reads) != sum(buffer is not None for buffer in operands):
                    return None
            case _ if any(buffer in wanted for buffer in writes_of(op)):
                return None
            case _:
                continue
        for buffer, read in reads:
            wanted[buffer] = wanted[buffer].hull(read) if buffer in wanted else read
            if read.is_empty or not device.buffers[buffer].region.issuperset(wanted[buffer]):
                return None
    return Derived(tuple(reversed(done)), wanted)


def write_out(
    derived: Derived, buffers: dict[BufferId, Buffer], known: Mapping[BufferId, BufferId]
) -> tuple[list[Op], dict[BufferId, BufferId]]:
    """Return operations on buffers of their own, which are added to `buffers`, and what takes the place of which buffer.

    `known` has what takes the place of what is there before; by default that is itself. A place may have more than is read of it.
    """
    ops: list[Op] = []
    places = dict(known)
    for op in derived.ops:
        match op:
            case Assemble(output=output, pieces=pieces):
                places[output] = _new_buffer(buffers, output, derived.regions[output])
                ops.append(Assemble(places[output], tuple(Piece(places.get(p.buffer, p.buffer), p.region) for p in pieces)))
            case Apply(reads=operands, writes=(output,)):
                reads: list[BufferId | None] = []
                for buffer, read in zip(operands, op.local.reads, strict=True):
                    here = None if buffer is None or read is None else places.get(buffer, buffer)
                    if here is not None and read is not None and buffers[here].region != read:
                        ops.append(Assemble(_new_buffer(buffers, here, read), (Piece(here, read),)))
                        here = max(buffers)
                    reads.append(here)
                places[output] = _new_buffer(buffers, output, derived.regions[output])
                ops.append(replace(op, reads=tuple(reads), writes=(places[output],)))
            case _:
                raise AssertionError(f"derived: {type(op).__name__}")
    return ops, places


def _new_buffer(buffers: dict[BufferId, Buffer], like: BufferId, region: ShapeMap) -> BufferId:
    number = max(buffers, default=-1) + 1
    buffers[number] = replace(buffers[like], region=region)
    return number


def narrower(graph: Graph, descriptions: Descriptions) -> Narrow:
    """Return what narrows the operations of programs that are to run."""
    counter = WorkCounter(graph, descriptions)
    known: dict[tuple[str, ShapeMap], tuple[LocalOp, Work] | None] = {}
    """Longer and longer stretches of operations are tried, and what lies behind a sum over channels is needed whole in all of them."""

    def narrow(op: Apply, region: ShapeMap) -> tuple[LocalOp, Work] | None:
        key = (op.node, region)
        if key not in known:
            known[key] = narrowed(op.node, region)
        return known[key]

    def narrowed(name: str, region: ShapeMap) -> tuple[LocalOp, Work] | None:
        node, description = graph.node_by_name[name], descriptions[name]
        if not can_make(graph, node, description, region):
            return None
        local = localize(graph, node, description, region)
        made = output_regions(description, region, [graph.types[name].shape for name in node.outputs if name])
        return local, counter.work(node, local.reads, made)

    return narrow


def made_in_parts(program: Program, device: DeviceProgram, prefix: Prefix, parts: Sequence[ShapeMap], narrow: Narrow) -> Program | None:
    """Return the program in which a device makes these parts of a prefix's target, one after the other; None if that cannot be derived.

    The parts are disjoint and cover the target.
    """
    rewriter = _Rewriter(device, prefix, max(program.senders) + 1)
    for part in parts:
        derived = derive(device, prefix.ops, prefix.target, part, narrow)
        if derived is None:
            return None
        rewriter.add(derived, part)
    host = program.devices[program.host]
    sends = tuple(s for step in host.steps for s in (rewriter.sends if step == prefix.send else (step,)))
    changed = {device.device: rewriter.finish(), program.host: replace(host, steps=sends)}
    return replace(program, devices=tuple(changed.get(d.device, d) for d in program.devices))


@dataclass
class _Rewriter:
    """The steps of a device whose prefix is computed in parts, and the messages that the host sends it instead of one.

    Invariants: `come` has what was received so far of every buffer of the prefix's message; its pieces are disjoint.
    """

    device: DeviceProgram
    prefix: Prefix
    message: int
    """From here on numbers of messages are free."""
    sends: list[Send] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    made: list[Piece] = field(default_factory=list)
    """The parts of the target."""

    def __post_init__(self) -> None:
        """Start with nothing received."""
        self.buffers: dict[BufferId, Buffer] = dict(self.device.buffers)
        self.come: dict[BufferId, list[Piece]] = {buffer: [] for buffer in self.prefix.receive.buffers}

    def add(self, derived: Derived, region: ShapeMap) -> None:
        """Receive what a part of the target needs and is not there yet, and make it."""
        self._receive(derived)
        ops: list[Op] = []
        numbers = {feed: feed for feed in self.device.feeds}  # state is there before the request
        for buffer, come in self.come.items():
            if buffer in derived.regions:
                numbers[buffer] = self._gathered(buffer, come, derived.regions[buffer], ops)
        made, numbers = write_out(derived, self.buffers, numbers)
        self.steps.append(Compute((*ops, *made)))
        self.made.append(Piece(numbers[self.prefix.target], region))

    def finish(self) -> DeviceProgram:
        """Put the target together, and return the device's program."""
        rest = Compute((Assemble(self.prefix.target, tuple(self.made)), *self.prefix.rest))
        steps = (*self.steps, rest, *self.device.steps[2:])
        gone = {*self.prefix.receive.buffers, *(buffer for op in self.prefix.ops for buffer in writes_of(op))} - {self.prefix.target}
        return replace(self.device, buffers={n: held for n, held in self.buffers.items() if n not in gone}, steps=steps)

    def _receive(self, derived: Derived) -> None:
        parts: list[Piece] = []
        buffers: list[BufferId] = []
        for old, part in zip(self.prefix.receive.buffers, self.prefix.send.parts, strict=True):
            if old not in derived.regions:
                continue
            for region in subtract_all(derived.regions[old], (piece.region for piece in self.come[old])):
                parts.append(Piece(part.buffer, region))
                buffers.append(self._buffer(old, region))
                self.come[old].append(Piece(buffers[-1], region))
        if parts:
            number = self.message if self.sends else self.prefix.send.message
            self.message += bool(self.sends)
            self.sends.append(Send(number, self.prefix.send.destination, tuple(parts)))
            self.steps.append(Receive(number, self.prefix.receive.source, tuple(buffers)))

    def _gathered(self, old: BufferId, come: Sequence[Piece], region: ShapeMap, ops: list[Op]) -> BufferId:
        pieces = tuple(Piece(p.buffer, common) for p in come if not (common := p.region.intersect(region)).is_empty)
        if len(pieces) == 1 and self.buffers[pieces[0].buffer].region == region:
            return pieces[0].buffer
        number = self._buffer(old, region)
        ops.append(Assemble(number, pieces))
        return number

    def _buffer(self, like: BufferId, region: ShapeMap) -> BufferId:
        return _new_buffer(self.buffers, like, region)
