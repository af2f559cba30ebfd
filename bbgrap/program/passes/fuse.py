"""The pass that orders and fuses: few segments, one message per neighbour and exchange, sends early, receives late."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from bbgrap.program.steps import BufferId, Compute, DeviceProgram, Op, Program, Receive, Send, Step, reads_of, writes_of

Phase = int


@dataclass(frozen=True, slots=True)
class FuseSegments:
    """Give every operation a phase, the number of exchanges that must come before it, and fuse by phase.

    1. As early as possible: an operation comes after what it reads; what is received comes one phase after what was sent.
    2. As late as it can: an operation that nobody waits for abroad moves to the phase of its first reader, so that what must be sent
       is computed first and less is carried from segment to segment.
    3. All operations of a device and phase become one segment. Before it come the messages it reads, after it those made from it,
       one per destination.
    """

    def run(self, program: Program) -> Program:
        """Return the program as one segment per device and phase."""
        early, sent = _earliest(program)
        late = [_latest(device, early[device.device]) for device in program.devices]
        return _regrouped(program, late, sent)


def _earliest(program: Program) -> tuple[list[dict[BufferId, Phase]], dict[int, Phase]]:
    """Return the earliest phase of every buffer (per device) and of every message at its sender, by walking all devices at once."""
    ready: list[dict[BufferId, Phase]] = [dict.fromkeys(device.feeds, 0) for device in program.devices]
    sent: dict[int, Phase] = {}
    position = [0] * len(program.devices)
    moved = True
    while moved:
        moved = False
        for device in program.devices:
            here = ready[device.device]
            while position[device.device] < len(device.steps):
                step = device.steps[position[device.device]]
                match step:
                    case Receive():
                        if step.message not in sent:
                            break
                        # what the host holds is there before anything runs: receiving it opens no new phase
                        arrival = 0 if step.source == program.host else sent[step.message] + 1
                        here.update(dict.fromkeys(step.buffers, arrival))
                    case Compute():
                        for op in step.ops:
                            phase = max((here[b] for b in reads_of(op)), default=0)
                            here.update(dict.fromkeys(writes_of(op), phase))
                    case Send():
                        sent[step.message] = max((here[p.buffer] for p in step.parts), default=0)
                position[device.device] += 1
                moved = True
    return ready, sent


def _latest(device: DeviceProgram, early: dict[BufferId, Phase]) -> dict[BufferId, Phase]:
    """Return the phase in which each buffer is made: its earliest if it is sent or a result, else the first phase that reads it."""
    late: dict[BufferId, Phase] = {b: early[b] for b in device.results}
    for step in reversed(device.steps):
        match step:
            case Send():
                for part in step.parts:
                    late[part.buffer] = early[part.buffer]
            case Compute():
                for op in reversed(step.ops):
                    phase = min((late[b] for b in writes_of(op) if b in late), default=max(early[b] for b in writes_of(op)))
                    late.update(dict.fromkeys(writes_of(op), phase))
                    for buffer in reads_of(op):
                        late[buffer] = min(late.get(buffer, phase), phase)
            case Receive():
                pass
    return late


@dataclass(frozen=True, slots=True)
class _Merge:
    """Which messages become one: all of one sender and phase to one destination."""

    number: dict[int, int]
    """Old message to new."""
    members: dict[int, list[Send]]
    """New message to the old ones, in the sender's order."""


def _merge(program: Program, sent: dict[int, Phase]) -> _Merge:
    keys: dict[tuple[int, int, Phase], int] = {}
    merge = _Merge({}, defaultdict(list))
    for device in program.devices:
        for step in device.steps:
            if isinstance(step, Send):
                number = keys.setdefault((device.device, step.destination, sent[step.message]), len(keys))
                merge.number[step.message] = number
                merge.members[number].append(step)
    return merge


def _regrouped(program: Program, late: list[dict[BufferId, Phase]], sent: dict[int, Phase]) -> Program:
    """Rebuild every device from its phases; messages between two devices in one phase of the sender become one."""
    merge = _merge(program, sent)
    return replace(program, devices=tuple(_device(device, late[device.device], sent, merge) for device in program.devices))


def _device(device: DeviceProgram, late: dict[BufferId, Phase], sent: dict[int, Phase], merge: _Merge) -> DeviceProgram:
    ops: dict[Phase, list[Op]] = defaultdict(list)
    sends: dict[Phase, dict[int, Send]] = defaultdict(dict)
    arrived: dict[int, Receive] = {}
    for step in device.steps:
        match step:
            case Compute():
                for op in step.ops:
                    ops[min(late[b] for b in writes_of(op))].append(op)
            case Send():
                number = merge.number[step.message]
                parts = tuple(part for member in merge.members[number] for part in member.parts)
                sends[sent[step.message]][number] = Send(number, step.destination, parts)
            case Receive():
                arrived[step.message] = step
    receives: dict[Phase, list[Receive]] = defaultdict(list)
    for number in sorted({merge.number[message] for message in arrived}):
        members = [arrived[send.message] for send in merge.members[number]]
        buffers = tuple(b for member in members for b in member.buffers)
        receives[min(late[b] for b in buffers)].append(Receive(number, members[0].source, buffers))
    steps: list[Step] = []
    for phase in sorted({*ops, *sends, *receives}):
        steps += receives[phase]
        if ops[phase]:
            steps.append(Compute(tuple(ops[phase])))
        steps += [sends[phase][number] for number in sorted(sends[phase])]
    return replace(device, steps=tuple(steps))
