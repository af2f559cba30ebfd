"""The pass that removes what nobody reads, on any device."""

from __future__ import annotations

from dataclasses import replace

from bbgrap.program.steps import BufferId, Compute, DeviceProgram, Program, Receive, Send, Step, reads_of, writes_of

LiveBuffers = set[tuple[int, BufferId]]


def drop_unused(program: Program) -> Program:
    """Keep only what answers, and the state of the next request, depend on.

    1. An operation none of whose results is read on its device or sent is removed.
    2. A part of a message that its receiver does not read is removed at both ends; the message stays, even if empty.
    """
    live = _live(program)
    kept_parts: dict[int, tuple[int, ...]] = {
        step.message: tuple(n for n, buffer in enumerate(step.buffers) if (device.device, buffer) in live)
        for device in program.devices
        for step in device.steps
        if isinstance(step, Receive)
    }
    return replace(program, devices=tuple(_drop_unused(device, live, kept_parts) for device in program.devices))


def _live(program: Program) -> LiveBuffers:
    """Return the (device, buffer) pairs that the results depend on: the host's are answers, the agents' are state."""
    sources: dict[tuple[int, BufferId], list[tuple[int, BufferId]]] = {}
    for device in program.devices:
        for step in device.steps:
            if isinstance(step, Receive):
                sender, send = program.senders[step.message]
                for buffer, part in zip(step.buffers, send.parts, strict=True):
                    sources[device.device, buffer] = [(sender, part.buffer)]
            elif isinstance(step, Compute):
                for op in step.ops:
                    reads = [(device.device, b) for b in reads_of(op)]
                    sources |= {(device.device, b): reads for b in writes_of(op)}
    live: LiveBuffers = set()
    waiting = [(device.device, b) for device in program.devices for b in device.results]
    while waiting:
        found = waiting.pop()
        if found not in live:
            live.add(found)
            waiting += sources.get(found, [])
    return live


def _drop_unused(device: DeviceProgram, live: LiveBuffers, kept_parts: dict[int, tuple[int, ...]]) -> DeviceProgram:
    steps: list[Step] = []
    for step in device.steps:
        match step:
            case Compute():
                ops = tuple(op for op in step.ops if any((device.device, b) in live for b in writes_of(op)))
                if ops:
                    steps.append(Compute(ops))
            case Receive():
                steps.append(replace(step, buffers=tuple(step.buffers[n] for n in kept_parts[step.message])))
            case Send():
                steps.append(replace(step, parts=tuple(step.parts[n] for n in kept_parts[step.message])))
    return replace(device, steps=tuple(steps))
