"""Passes that tailor what travels between devices."""

from __future__ import annotations

from dataclasses import replace

from bbgrap.compiler.passes.crops import reading_parts
from bbgrap.program.steps import Assemble, BufferId, DeviceProgram, Piece, Program, Receive, Send, Step, reads_of
from bbgrap.shapemap import ShapeMap, subtract_all


def tailor_transfers(program: Program) -> Program:
    """Figure 5 (b), (e): send only `needed - held`.

    1. A received buffer that nobody reads is not sent.
    2. One of which only some regions are read is replaced by buffers of just those regions, disjoint; the sender sends those.
    3. One that is read whole, or by an operation that is no assembly, stays as it is.
    """
    wanted: dict[tuple[int, int], list[ShapeMap]] = {}
    receivers = [_tailor_receiver(device, wanted) for device in program.devices]
    return replace(program, devices=tuple(_tailor_sender(device, wanted) for device in receivers))


def regions_read(device: DeviceProgram) -> dict[BufferId, list[ShapeMap]]:
    """Return, per buffer, the regions that are read of it; whole for readers other than assemblies."""
    found: dict[BufferId, list[ShapeMap]] = {}
    for step in device.steps:
        for item in getattr(step, "ops", (step,)):
            if isinstance(item, Assemble | Send):
                pieces = item.pieces if isinstance(item, Assemble) else item.parts
                for piece in pieces:
                    found.setdefault(piece.buffer, []).append(piece.region)
            else:
                for buffer in reads_of(item):
                    found.setdefault(buffer, []).append(device.buffers[buffer].region)
    for buffer in device.results:
        found.setdefault(buffer, []).append(device.buffers[buffer].region)
    return found


def disjoint_union(regions: list[ShapeMap]) -> list[ShapeMap]:
    """Return disjoint regions with the same elements; one region where the hull has no more of them."""
    found: list[ShapeMap] = []
    for region in regions:
        if region not in found:
            found += subtract_all(region, found)
    if len(found) > 1:
        hull = found[0]
        for region in found[1:]:
            hull = hull.hull(region)
        if hull.size == sum(region.size for region in found):
            return [hull]
    return found


def _tailor_receiver(device: DeviceProgram, wanted: dict[tuple[int, int], list[ShapeMap]]) -> DeviceProgram:
    """Replace received buffers by the regions read of them; note them in `wanted` by (message, part number)."""
    read = regions_read(device)
    buffers = dict(device.buffers)
    fresh = max(buffers, default=0) + 1
    split: dict[BufferId, list[Piece]] = {}
    steps: list[Step] = []
    for step in device.steps:
        if not isinstance(step, Receive):
            steps.append(step)
            continue
        kept: list[BufferId] = []
        for number, buffer in enumerate(step.buffers):
            old = device.buffers[buffer]
            regions = disjoint_union(read.get(buffer, []))
            wanted[step.message, number] = regions
            if regions == [old.region]:
                kept.append(buffer)
                continue
            del buffers[buffer]
            split[buffer] = []
            for region in regions:
                buffers[fresh] = replace(old, region=region)
                split[buffer].append(Piece(fresh, region))
                kept.append(fresh)
                fresh += 1
        steps.append(Receive(step.message, step.source, tuple(kept)))

    return replace(device, buffers=buffers, steps=tuple(reading_parts(step, split) for step in steps))


def _tailor_sender(device: DeviceProgram, wanted: dict[tuple[int, int], list[ShapeMap]]) -> DeviceProgram:
    def tailored(step: Step) -> Step:
        if not isinstance(step, Send):
            return step
        parts = (Piece(p.buffer, region) for number, p in enumerate(step.parts) for region in wanted[step.message, number])
        return Send(step.message, step.destination, tuple(parts))

    return replace(device, steps=tuple(tailored(step) for step in device.steps))


def drop_empty_messages(program: Program) -> Program:
    """Drop synchronisation that carries no data: messages without parts are neither sent nor awaited."""
    return replace(program, devices=tuple(_drop_empty(device) for device in program.devices))


def _drop_empty(device: DeviceProgram) -> DeviceProgram:
    kept = (s for s in device.steps if not (isinstance(s, Send) and not s.parts) and not (isinstance(s, Receive) and not s.buffers))
    return replace(device, steps=tuple(kept))
