"""The pass that orders and fuses: few segments, one message per neighbour and exchange, sends early, receives late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bbgrap.cluster.types import ETHERNET
from bbgrap.costmodel.messages import MESSAGE_S
from bbgrap.program.steps import Apply, BufferId, Compute, DeviceProgram, Op, Program, Receive, Send, Step, reads_of, writes_of

Phase = int
Slot = int
"""Half a phase: 2p is what must be ready when the messages of phase p leave, 2p + 1 what comes while they fly."""

WORTH_A_CUT_FLOPS = 20_000_000
"""Work that is worth a segment of its own while messages fly: about 0.3 ms of one core, a few times what a cut costs (measured)."""

WORTH_A_MESSAGE_BYTES = round(3 * MESSAGE_S * ETHERNET.bandwidth_bytes_per_s)
"""What is worth a message of its own, if it is read later than the rest: 70 KB, which fly three times as long as a message takes of both
ends' processors. Chosen: not all of that is waiting."""


def fuse_segments(program: Program) -> Program:
    """Give every layer a phase, the number of exchanges that must come before it, and fuse by phase.

    1. As early as possible: a layer comes after what it reads, and one phase later if any device has to fetch some of that from
       another. Phases belong to layers, not to devices: a device that has all it needs still sends before it goes on, so that the
       others do not wait for it.
    2. What must be sent at the end of a phase is computed first. The rest of the phase follows while the messages fly, as a segment of
       its own if its work is worth a cut, else together with what reads it.
    3. All operations of a device and half phase become one segment. Before it come the messages it reads, after it those made from
       it, one per destination; a large part that is read later than the others is a message of its own. Segments with nothing between
       them become one.
    4. Nobody waits for what only the host reads: it is made, and sent, while messages fly.
    5. What leaves at once leaves for the device after the sender first, and so on around: not all send to one at once. Of the host's
       inputs the first agent's leaves last: it is on the host's machine as a rule, and would compete for its core with the sending.
    """
    layers = layer_phases(program)
    early = [_earliest(program, device, layers) for device in program.devices]
    sent = _sent_phases(program, early)
    slots = [_slots(program, device, early[device.device], sent) for device in program.devices]
    leaves = {message: 2 * phase + (program.senders[message][1].destination == program.host) for message, phase in sent.items()}
    merge = _merge(program, slots, leaves)
    return replace(program, devices=tuple(_device(device, slots[device.device], leaves, merge, program.host) for device in program.devices))


def layer_phases(program: Program) -> dict[str, Phase]:
    """Return the phase of every value: inputs 0; a node's outputs after its operands, one phase after those that anyone fetches."""
    fetched = {pair for device in program.devices[: program.host] for pair in _fetches(program, device)}
    phases: dict[str, Phase] = dict.fromkeys((*program.graph.inputs, *program.graph.weights), 0)
    for node in program.graph.nodes:
        phase = max((phases[v] + ((node.name, v) in fetched) for v in node.reads), default=0)
        phases |= dict.fromkeys(filter(None, node.outputs), phase)
    return phases


def _fetches(program: Program, device: DeviceProgram) -> Iterator[tuple[str, str]]:
    """Yield (node, value) wherever the node on this device reads something of the value that another agent sent."""
    foreign: set[BufferId] = set()
    for step in device.steps:
        if isinstance(step, Receive) and step.source != program.host:
            foreign.update(step.buffers)
        for op in step.ops if isinstance(step, Compute) else ():
            if not isinstance(op, Apply):
                foreign.update([op.output] if not foreign.isdisjoint(reads_of(op)) else [])
            else:
                yield from ((op.node, device.buffers[b].value) for b in reads_of(op) if b in foreign)


def _sent_phases(program: Program, early: list[dict[BufferId, Phase]]) -> dict[int, Phase]:
    """Return the phase at whose end each message is sent."""
    return {
        message: max((early[sender][part.buffer] for part in send.parts), default=0) for message, (sender, send) in program.senders.items()
    }


def _earliest(program: Program, device: DeviceProgram, layers: dict[str, Phase]) -> dict[BufferId, Phase]:
    """Return the first phase in which each buffer of a device can be there."""
    early = dict.fromkeys(device.feeds, 0)
    for step in device.steps:
        match step:
            case Receive():
                # what the host holds is there before anything runs: receiving it opens no new phase
                early |= {b: 0 if step.source == program.host else layers[device.buffers[b].value] + 1 for b in step.buffers}
            case Compute():
                for op in step.ops:
                    if not isinstance(op, Apply) or device.device == program.host:
                        early |= dict.fromkeys(writes_of(op), max((early[b] for b in reads_of(op)), default=0))
                    else:
                        early |= {b: layers[device.buffers[b].value] for b in op.writes}
            case Send():
                pass
    return early


def _slots(program: Program, device: DeviceProgram, early: dict[BufferId, Phase], sent: dict[int, Phase]) -> dict[BufferId, Slot]:
    """Return when each buffer is made: 2p before the messages of phase p to other agents leave, 2p + 1 after."""
    sends = [step for step in device.steps if isinstance(step, Send) and step.destination != program.host]
    urgent = _urgent(device, sends, early, sent)
    sending = {sent[send.message] for send in sends}
    rest: dict[Phase, int] = defaultdict(int)
    for op in device.ops:
        phase = _phase_of(op, early)
        if phase in sending and urgent.isdisjoint(writes_of(op)):
            rest[phase] += op.work.flops if isinstance(op, Apply) else 0
    slots: dict[BufferId, Slot] = {}
    read: dict[BufferId, Slot] = {}
    for step in device.steps:
        if isinstance(step, Send) and step.destination == program.host:
            leaves = 2 * sent[step.message] + 1
            read |= {part.buffer: min(read.get(part.buffer, leaves), leaves) for part in step.parts}
    for op in reversed(device.ops):
        phase = _phase_of(op, early)
        slot = 2 * phase
        if phase in rest and urgent.isdisjoint(writes_of(op)):
            first = min((read[b] for b in writes_of(op) if b in read), default=slot + 1)
            slot = slot + 1 if rest[phase] >= WORTH_A_CUT_FLOPS else first
        slots |= dict.fromkeys(writes_of(op), slot)
        for buffer in reads_of(op):
            read[buffer] = min(read.get(buffer, slot), slot)
    return {b: 2 * phase for b, phase in early.items()} | read | slots


def _phase_of(op: Op, early: dict[BufferId, Phase]) -> Phase:
    return max(early[b] for b in writes_of(op))


def _urgent(device: DeviceProgram, sends: Sequence[Send], early: dict[BufferId, Phase], sent: dict[int, Phase]) -> set[BufferId]:
    """Return the buffers from which something is sent at the end of their own phase, and what those depend on within it."""
    urgent = {p.buffer for send in sends for p in send.parts if early[p.buffer] == sent[send.message]}
    for op in reversed(device.ops):
        if not urgent.isdisjoint(writes_of(op)):
            phase = _phase_of(op, early)
            urgent.update(b for b in reads_of(op) if early[b] == phase)
    return urgent


@dataclass(frozen=True)
class _Merge:
    """Which messages become one: all that leave one sender in one slot for one destination, but for what is large and read later."""

    number: dict[int, int]
    """Old message to new."""
    members: dict[int, list[Send]]
    """New message to the old ones, in the sender's order."""

    @cached_property
    def sends(self) -> dict[int, Send]:
        """New message to its step."""
        parts = {number: tuple(part for member in of for part in member.parts) for number, of in self.members.items()}
        return {number: Send(number, of[0].destination, parts[number]) for number, of in self.members.items()}


def _merge(program: Program, slots: list[dict[BufferId, Slot]], leaves: dict[int, Slot]) -> _Merge:
    read = {
        step.message: min(slots[device.device][b] for b in step.buffers)
        for device in program.devices
        for step in device.steps
        if isinstance(step, Receive)
    }
    sends = program.senders.values()
    first: dict[tuple[int, int, Slot], Slot] = {}
    for sender, send in sends:
        exchange = (sender, send.destination, leaves[send.message])
        first[exchange] = min(first.get(exchange, read[send.message]), read[send.message])
    keys: dict[tuple[int, int, Slot, Slot], int] = {}
    merge = _Merge({}, defaultdict(list))
    for sender, send in sorted(sends, key=lambda pair: read[pair[1].message]):
        exchange = (sender, send.destination, leaves[send.message])
        own = sum(program.part_bytes(sender, send)) >= WORTH_A_MESSAGE_BYTES and send.destination != program.host
        number = keys.setdefault((*exchange, read[send.message] if own else first[exchange]), len(keys))
        merge.number[send.message] = number
        merge.members[number].append(send)
    return merge


def _device(device: DeviceProgram, slots: dict[BufferId, Slot], leaves: dict[int, Slot], merge: _Merge, agents: int) -> DeviceProgram:
    """Rebuild one of so many agents, or the host, from its slots; messages between two devices become one."""
    ops: dict[Slot, list[Op]] = defaultdict(list)
    sends: dict[Slot, dict[int, Send]] = defaultdict(dict)
    arrived: dict[int, Receive] = {}
    for step in device.steps:
        match step:
            case Compute():
                for op in step.ops:
                    ops[min(slots[b] for b in writes_of(op))].append(op)
            case Send():
                number = merge.number[step.message]
                sends[leaves[step.message]].setdefault(number, merge.sends[number])
            case Receive():
                arrived[step.message] = step
    receives: dict[Slot, list[Receive]] = defaultdict(list)
    for number in sorted({merge.number[message] for message in arrived}):
        members = [arrived[send.message] for send in merge.members[number]]
        buffers = tuple(b for member in members for b in member.buffers)
        receives[min(slots[b] for b in buffers)].append(Receive(number, members[0].source, buffers))
    steps: list[Step] = []
    for slot in sorted({*ops, *sends, *receives}):
        steps += receives[slot]
        if ops[slot]:
            last = steps[-1] if steps else None
            if isinstance(last, Compute):
                steps[-1] = Compute((*last.ops, *ops[slot]))
            else:
                steps.append(Compute(tuple(ops[slot])))
        around = {number: (send.destination - device.device - 1) % agents for number, send in sends[slot].items()}
        steps += [sends[slot][number] for number in sorted(around, key=lambda number: (around[number], number))]
    return replace(device, steps=tuple(steps))
