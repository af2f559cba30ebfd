"""The pass that keeps of state what the next request reads where it is read."""

from __future__ import annotations

from dataclasses import replace

from bbgrap.compiler.passes.crops import instead_of, reading_parts
from bbgrap.compiler.passes.transfers import disjoint_union, regions_read
from bbgrap.graph import Graph
from bbgrap.graph.state import kept_region, uncut
from bbgrap.program.steps import Assemble, BufferId, Compute, DeviceProgram, Op, Piece, Program, Send, Step
from bbgrap.shapemap import ShapeMap


def tailor_state(program: Program) -> Program:
    """Derived back to front over the border of two requests: what a device reads of state is what it keeps.

    1. A state that a device does not read is neither held by it before a request, nor gathered for the next one.
    2. Of one of which it reads only some regions it holds, and keeps, just these: `tailor_transfers` then sends no more.
    3. A lasting input is kept where it is held.
    """
    host = program.devices[program.host]
    return replace(program, devices=(*(_tailored(program.graph, d) for d in program.devices[: program.host]), host))


def _tailored(graph: Graph, device: DeviceProgram) -> DeviceProgram:
    if not device.feeds:
        return device
    read = regions_read(replace(device, results=()))
    buffers, fresh = dict(device.buffers), max(device.buffers) + 1
    feeds: list[BufferId] = []
    results: list[BufferId] = []
    keeps: list[Op] = []
    split: dict[BufferId, list[Piece]] = {}
    for feed, result in zip(device.feeds, device.results, strict=True):
        held, made = device.buffers[feed], device.buffers[result]
        regions = disjoint_union([uncut(graph, held.value, region) for region in read.get(feed, [])])
        if regions == [held.region]:
            feeds.append(feed)
            results.append(result)
            continue
        del buffers[feed]
        split[feed] = []
        for region in regions:
            feeds.append(fresh)
            buffers[fresh] = replace(held, region=region)
            split[feed].append(Piece(fresh, region))
            if result != feed:
                kept = kept_region(graph, held.value, region)
                fresh += 1
                buffers[fresh] = replace(made, region=kept)
                keeps.append(Assemble(fresh, (Piece(result, kept),)))
            results.append(fresh)
            fresh += 1
    steps = (*(_redirected(step, split) for step in device.steps), *(Compute((keep,)) for keep in keeps))
    return replace(device, buffers=buffers, steps=steps, feeds=tuple(feeds), results=tuple(results))


def _redirected(step: Step, split: dict[BufferId, list[Piece]]) -> Step:
    """Let a step read the parts of a state instead of all of it."""
    return replace(step, parts=instead_of(step.parts, split)) if isinstance(step, Send) else reading_parts(step, split)


def layout_of(program: Program) -> tuple[tuple[tuple[str, ShapeMap], ...], ...]:
    """Return what every agent holds of state before a request: inputs and regions of them, in the order of its feeds."""
    devices = program.devices[: program.host]
    return tuple(tuple((d.buffers[b].value, d.buffers[b].region) for b in d.feeds) for d in devices)
