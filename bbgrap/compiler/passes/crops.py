"""Passes that remove crops and concatenations within a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bbgrap.program.steps import Apply, Assemble, BufferId, Combine, Compute, DeviceProgram, Op, Piece, Program, Send, Step, reads_of


def forward_crops(program: Program) -> Program:
    """Take the pieces of an assembly directly from where they come.

    1. An assembly that reads other assemblies reads their pieces instead: a crop of a concat becomes a concat of crops, and only the
       pieces that the crop touches remain.
    2. A crop of a sum becomes a sum of crops: every device adds up only what it needs (reduce-scatter).
    3. What was read before stays for readers of other kinds; if there are none, `drop_unused` removes it.
    """
    return replace(program, devices=tuple(_Forwarder(device).run() for device in program.devices))


class _Forwarder:
    def __init__(self, device: DeviceProgram) -> None:
        self.device = device
        self.buffers = dict(device.buffers)
        self.assembled: dict[BufferId, tuple[Piece, ...]] = {}
        self.combined: dict[BufferId, Combine] = {}
        self.fresh = max(self.buffers, default=-1) + 1

    def run(self) -> DeviceProgram:
        steps = tuple(
            Compute(tuple(new for op in step.ops for new in self._forwarded(op))) if isinstance(step, Compute) else step
            for step in self.device.steps
        )
        return replace(self.device, steps=steps, buffers=self.buffers)

    def _forwarded(self, op: Op) -> tuple[Op, ...]:
        if isinstance(op, Combine):
            self.combined[op.output] = op
        if not isinstance(op, Assemble):
            return (op,)
        if len(op.pieces) == 1 and op.pieces[0].buffer in self.combined:
            return self._sum_of_crops(op, self.combined[op.pieces[0].buffer])
        return (self._assembly(op.output, op.pieces),)

    def _assembly(self, output: BufferId, pieces: tuple[Piece, ...]) -> Assemble:
        forwarded = self.assembled[output] = instead_of(pieces, self.assembled)
        return Assemble(output, forwarded)

    def _sum_of_crops(self, op: Assemble, combination: Combine) -> tuple[Op, ...]:
        region = op.pieces[0].region
        crops: list[Op] = []
        inputs: list[BufferId] = []
        for source in combination.inputs:
            cropped = self.fresh
            self.fresh += 1
            self.buffers[cropped] = replace(self.buffers[source], region=region)
            crops.append(self._assembly(cropped, (Piece(source, region),)))
            inputs.append(cropped)
        made = Combine(op.output, combination.kind, tuple(inputs))
        self.combined[op.output] = made
        return (*crops, made)


def instead_of(pieces: Sequence[Piece], parts: Mapping[BufferId, Sequence[Piece]]) -> tuple[Piece, ...]:
    """Return pieces taken from the parts of their buffers, of those that have any: where parts hold some of them."""
    return tuple(
        Piece(part.buffer, common)
        for piece in pieces
        for part in parts.get(piece.buffer, (piece,))
        if not (common := part.region.intersect(piece.region)).is_empty
    )


def reading_parts(step: Step, parts: Mapping[BufferId, Sequence[Piece]]) -> Step:
    """Return a step whose assemblies read the parts of buffers instead of them."""
    if not isinstance(step, Compute):
        return step
    return Compute(tuple(Assemble(op.output, instead_of(op.pieces, parts)) if isinstance(op, Assemble) else op for op in step.ops))


def drop_trivial_assemblies(program: Program) -> Program:
    """Figure 5 (c): what a device needs is exactly what it holds.

    1. An assembly of one piece that is all of its source is dropped; its readers read the source.
    2. Two assemblies, or sums, of one value and region on one device: the first serves the readers of both.
    """
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
            if not isinstance(op, Apply):
                if isinstance(op, Assemble) and len(op.pieces) == 1 and op.pieces[0].region == device.buffers[op.pieces[0].buffer].region:
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
    if isinstance(step, Send) and any(p.buffer in alias for p in step.parts):
        return replace(step, parts=tuple(Piece(alias.get(p.buffer, p.buffer), p.region) for p in step.parts))
    return step


def _renamed_op(op: Op, alias: dict[BufferId, BufferId]) -> Op:
    if not any(b in alias for b in reads_of(op)):
        return op
    match op:
        case Apply():
            return replace(op, reads=tuple(None if b is None else alias.get(b, b) for b in op.reads))
        case Assemble():
            return replace(op, pieces=tuple(Piece(alias.get(p.buffer, p.buffer), p.region) for p in op.pieces))
        case Combine():
            return replace(op, inputs=tuple(alias.get(b, b) for b in op.inputs))
