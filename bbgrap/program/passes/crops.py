"""Passes that remove crops and concatenations within a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bbgrap.program.steps import Apply, Assemble, BufferId, Compute, DeviceProgram, Op, Piece, Program, Send, Step


@dataclass(frozen=True, slots=True)
class ForwardCrops:
    """Take the pieces of an assembly directly from where they come.

    1. An assembly that reads other assemblies reads their pieces instead: a crop of a concat becomes a concat of crops, and only the
       pieces that the crop touches remain.
    2. The inner assembly stays for readers that are no assemblies; if there are none, `DropUnused` removes it.
    """

    def run(self, program: Program) -> Program:
        """Return the program with every assembly reading no other assembly."""
        return replace(program, devices=tuple(_forward(device) for device in program.devices))


def _forward(device: DeviceProgram) -> DeviceProgram:
    assembled: dict[BufferId, tuple[Piece, ...]] = {}

    def forwarded(op: Op) -> Op:
        if not isinstance(op, Assemble):
            return op
        pieces = tuple(
            Piece(inner.buffer, common)
            for piece in op.pieces
            for inner in assembled.get(piece.buffer, (Piece(piece.buffer, piece.region),))
            if not (common := inner.region.intersect(piece.region)).is_empty
        )
        assembled[op.output] = pieces
        return Assemble(op.output, pieces)

    return replace(device, steps=tuple(map_ops(step, forwarded) for step in device.steps))


def map_ops(step: Step, change: Callable[[Op], Op]) -> Step:
    """Return a step with every operation of a `Compute` replaced by what `change` makes of it."""
    return Compute(tuple(change(op) for op in step.ops)) if isinstance(step, Compute) else step


@dataclass(frozen=True, slots=True)
class DropTrivialAssemblies:
    """Figure 5 (c): what a device needs is exactly what it holds.

    1. An assembly of one piece that is all of its source is dropped; its readers read the source.
    2. Two assemblies of one value and region on one device: the first serves the readers of both.
    """

    def run(self, program: Program) -> Program:
        """Return the program without assemblies that change nothing."""
        return replace(program, devices=tuple(_drop_trivial(device) for device in program.devices))


def _drop_trivial(device: DeviceProgram) -> DeviceProgram:
    alias: dict[BufferId, BufferId] = {}
    first: dict[object, BufferId] = {}
    steps: list[Step] = []
    for step in device.steps:
        if not isinstance(step, Compute):
            steps.append(_renamed(step, alias))
            continue
        kept: list[Op] = []
        for op in step.ops:
            op = _renamed_op(op, alias)
            if isinstance(op, Assemble):
                if len(op.pieces) == 1 and op.pieces[0].region == device.buffers[op.pieces[0].buffer].region:
                    alias[op.output] = op.pieces[0].buffer
                    continue
                key = device.buffers[op.output]
                if key in first:
                    alias[op.output] = first[key]
                    continue
                first[key] = op.output
            kept.append(op)
        if kept:
            steps.append(Compute(tuple(kept)))
    results = tuple(alias.get(b, b) for b in device.results)
    buffers = {b: buffer for b, buffer in device.buffers.items() if b not in alias}
    return replace(device, steps=tuple(steps), results=results, buffers=buffers)


def _renamed(step: Step, alias: dict[BufferId, BufferId]) -> Step:
    if isinstance(step, Send):
        return replace(step, parts=tuple(Piece(alias.get(p.buffer, p.buffer), p.region) for p in step.parts))
    return step


def _renamed_op(op: Op, alias: dict[BufferId, BufferId]) -> Op:
    match op:
        case Apply():
            return replace(op, reads=tuple(None if b is None else alias.get(b, b) for b in op.reads))
        case Assemble():
            return replace(op, pieces=tuple(Piece(alias.get(p.buffer, p.buffer), p.region) for p in op.pieces))
