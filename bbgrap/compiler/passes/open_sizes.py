"""The pass for programs that run for any size of moving axes, as those of a cache that grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bbgrap.errors import PlanError
from bbgrap.program.steps import Assemble, Buffer, BufferId, Compute, DeviceProgram, Piece, Program, Send, Step
from bbgrap.shapemap import ShapeMap


def leave_sizes_open(program: Program) -> Program:
    """Let nothing but segments know sizes: a part of a buffer that is sent becomes a buffer of its own, made by a segment.

    Raises:
        PlanError: if something is cut along an axis whose size moves.
    """
    graph = program.graph
    for buffer in (buffer for device in program.devices for buffer in device.buffers.values()):
        whole = ShapeMap.full(graph.types[buffer.value].shape or ())
        if cut := [axis for axis in graph.moving.get(buffer.value, ()) if buffer.region.axes[axis] != whole.axes[axis]]:
            raise PlanError(f"model '{graph.name}': '{buffer.value}' is cut along axis {cut[0]}, whose size changes between requests")
    host = program.devices[program.host]
    return replace(program, devices=(*(_opened(program, d) for d in program.devices[: program.host]), host), open_sizes=True)


def _opened(program: Program, device: DeviceProgram) -> DeviceProgram:
    buffers = dict(device.buffers)
    made: dict[Buffer, BufferId] = {}
    steps: list[Step] = []
    for step in device.steps:
        if not isinstance(step, Send):
            steps.append(step)
            continue
        crops = dict(_crops(program, device, step))
        for part, wanted in crops.items():
            if wanted not in made:
                made[wanted] = max(buffers) + 1
                buffers[made[wanted]] = wanted
                steps.append(Compute((Assemble(made[wanted], (part,)),)))
        steps.append(replace(step, parts=tuple(Piece(made[crops[p]], p.region) if p in crops else p for p in step.parts)))
    return replace(device, buffers=buffers, steps=tuple(steps))


def _crops(program: Program, device: DeviceProgram, step: Send) -> Iterator[tuple[Piece, Buffer]]:
    for part in step.parts:
        held = device.buffers[part.buffer]
        if held.value in program.graph.moving and part.region != held.region:
            yield part, replace(held, region=part.region)
