"""Rewriting a fused program so that some of its broadcasts are relayed; which ones, `relay` decides.

A target used to wait for the whole region. Now it waits for its piece, passes that on to the other targets, waits for their pieces, and
reads all of them instead: where it assembled, the pieces take part in the assembly; where it read the region as it was, that is
assembled first. All pieces from one target to another on one level are one message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from bbgrap.program.steps import Assemble, Buffer, BufferId, Compute, DeviceProgram, Op, Piece, Program, Receive, Send, Step, reads_of
from bbgrap.shapemap import ShapeMap


@dataclass(frozen=True, slots=True)
class Target:
    """A receiver of a broadcast, and where it comes: which part of which message."""

    device: int
    message: int
    place: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A region that a device sends to several others on one level, and the pieces to relay, one per target; sizes on the wire."""

    source: int
    level: int
    targets: tuple[Target, ...]
    pieces: tuple[ShapeMap, ...]
    nbytes: int
    piece_bytes: tuple[int, ...]


@dataclass
class _Edits:
    """What changes on one device."""

    device: DeviceProgram
    buffers: dict[BufferId, Buffer]
    sent: dict[tuple[int, int], ShapeMap] = field(default_factory=dict)
    """By message and place: the piece that is sent instead."""
    got: dict[tuple[int, int], BufferId] = field(default_factory=dict)
    """By message and place: the buffer of the piece that comes instead."""
    pieces: dict[BufferId, tuple[Piece, ...]] = field(default_factory=dict)
    """By the buffer that came before: the pieces that hold the same."""
    passed: dict[int, dict[int, list[Piece]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """By level and target: what is passed on."""
    fetched: dict[int, dict[int, list[BufferId]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """By level and other target: the buffers of what comes from there."""

    def buffer(self, held: Buffer) -> BufferId:
        number = max(self.buffers, default=-1) + 1
        self.buffers[number] = held
        return number


def rewrite(program: Program, levels: Mapping[int, int], broadcasts: Iterable[Broadcast]) -> Program:
    """Return the program with these broadcasts relayed; every target receives them with the first message of their level."""
    edits = [_Edits(device, dict(device.buffers)) for device in program.devices]
    for broadcast in broadcasts:
        _relay(edits, broadcast)
    routes = sorted({(level, e.device.device, to) for e in edits for level, passed in e.passed.items() for to in passed})
    first = max(levels) + 1
    numbers = {route: first + n for n, route in enumerate(routes)}
    return replace(program, devices=tuple(_Rewriter(e, levels, numbers).run() for e in edits))


def _relay(edits: Sequence[_Edits], broadcast: Broadcast) -> None:
    received = {
        (step.message, place): buffer
        for target in broadcast.targets
        for step in edits[target.device].device.steps
        if isinstance(step, Receive)
        for place, buffer in enumerate(step.buffers)
    }
    for target, piece in zip(broadcast.targets, broadcast.pieces, strict=True):
        here = edits[target.device]
        whole = received[target.message, target.place]
        edits[broadcast.source].sent[target.message, target.place] = piece
        found: list[Piece] = []
        for other, region in zip(broadcast.targets, broadcast.pieces, strict=True):
            buffer = here.buffer(replace(here.buffers[whole], region=region))
            found.append(Piece(buffer, region))
            if other is target:
                here.got[target.message, target.place] = buffer
            else:
                here.fetched[broadcast.level][other.device].append(buffer)
        here.pieces[whole] = tuple(found)
        for other in broadcast.targets:
            if other is not target:
                here.passed[broadcast.level][other.device].append(Piece(here.got[target.message, target.place], piece))


class _Rewriter:
    """Rebuilds one device's steps."""

    def __init__(self, edits: _Edits, levels: Mapping[int, int], numbers: Mapping[tuple[int, int, int], int]) -> None:
        self.edits = edits
        self.device = edits.device
        self.levels = levels
        self.numbers = numbers
        self.assembled: set[BufferId] = set()

    def run(self) -> DeviceProgram:
        steps: list[Step] = []
        for receiving, group in groupby(self.device.steps, lambda step: isinstance(step, Receive)):
            if receiving:
                steps += self._received([step for step in group if isinstance(step, Receive)])
            else:
                steps += [new for step in group for new in self._changed(step)]
        gone = self.edits.pieces.keys() - self.assembled
        return replace(self.device, steps=tuple(steps), buffers={n: b for n, b in self.edits.buffers.items() if n not in gone})

    def _received(self, run: list[Receive]) -> Iterator[Step]:
        """Yield receives by level; what is relayed on a level is passed on, and fetched, before those of the next one."""
        own, got = self.device.device, self.edits.got
        for level, group in groupby(sorted(run, key=lambda step: self.levels[step.message]), lambda step: self.levels[step.message]):
            for step in group:
                yield replace(step, buffers=tuple(got.get((step.message, place), b) for place, b in enumerate(step.buffers)))
            for to, pieces in sorted(self.edits.passed.pop(level, {}).items()):
                yield Send(self.numbers[level, own, to], to, tuple(pieces))
            for source, buffers in sorted(self.edits.fetched.pop(level, {}).items()):
                yield Receive(self.numbers[level, source, own], source, tuple(buffers))

    def _changed(self, step: Step) -> Iterator[Step]:
        match step:
            case Compute():
                yield Compute(tuple(new for op in step.ops for new in (*self._whole(op), self._reading_pieces(op))))
            case Send():
                if ops := tuple(self._whole(step)):
                    yield Compute(ops)
                sent = self.edits.sent
                parts = (Piece(p.buffer, sent.get((step.message, place), p.region)) for place, p in enumerate(step.parts))
                yield replace(step, parts=tuple(parts))
            case Receive():
                raise AssertionError

    def _whole(self, reader: Op | Send) -> Iterator[Op]:
        """Yield assemblies of the relayed regions that somebody is about to read as they were."""
        if isinstance(reader, Assemble):
            return
        for buffer in dict.fromkeys(reads_of(reader)):
            if buffer in self.edits.pieces and buffer not in self.assembled:
                self.assembled.add(buffer)
                yield Assemble(buffer, self.edits.pieces[buffer])

    def _reading_pieces(self, op: Op) -> Op:
        if not isinstance(op, Assemble) or self.edits.pieces.keys().isdisjoint(reads_of(op)):
            return op
        pieces = [
            Piece(inner.buffer, common)
            for piece in op.pieces
            for inner in self.edits.pieces.get(piece.buffer, (piece,))
            if not (common := inner.region.intersect(piece.region)).is_empty
        ]
        return Assemble(op.output, tuple(pieces))
