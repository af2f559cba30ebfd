"""The laws of programs (`bbgrap.program.steps`), and compiling with all of them checked after every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bbgrap.compiler.build import StateLayout
from bbgrap.compiler.compile import Compiled, compile_plan, passes_of
from bbgrap.compiler.passes.pipeline import Pass
from bbgrap.planners.options import TransferType
from bbgrap.planners.plan import Plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Assemble, Combine, Compute, DeviceProgram, Op, Program, Receive, Send, reads_of, writes_of
from bbgrap.shapemap import subtract_all
from bbgrap.tdl import Descriptions


def compile_checked(
    plan: Plan,
    descriptions: Descriptions,
    transfers: TransferType = "exact",
    dictionary_devices: frozenset[int] = frozenset(),
    *,
    begins: StateLayout | None = None,
    open_sizes: bool = False,
) -> Compiled:
    """Compile a plan, and look for breaches of laws after every pass; arguments are those of `compile_plan`."""
    made = compile_plan(plan, descriptions, transfers, dictionary_devices, begins=begins, open_sizes=open_sizes)
    checked = run_passes(made.initial, passes_of(plan, descriptions, open_sizes=open_sizes))
    assert checked.devices == made.optimized.devices
    return made


def run_passes(program: Program, passes: Sequence[Pass]) -> Program:
    """Run passes in order, none of which may add traffic or break a law of programs."""
    before = traffic_bytes(program)
    for step in passes:
        program, name = step(program), getattr(step, "__name__", type(step).__name__)
        after = traffic_bytes(program)
        assert after <= before, name
        assert not check_program(program), name
        before = after
    return program


def check_program(program: Program) -> tuple[str, ...]:
    """List every breach of the laws of this module; empty if the program keeps them. Also detects a deadlock."""
    faults = [fault for device in program.devices for fault in _device_faults(device)]
    receivers: dict[int, int] = {}
    for device in program.devices:
        for step in device.steps:
            if isinstance(step, Receive):
                if step.message in receivers:
                    faults.append(f"message {step.message}: received twice")
                receivers[step.message] = device.device
                faults += _message_faults(program, device, step)
    faults += [f"message {m}: nobody receives it" for m, (_, s) in program.senders.items() if receivers.get(m) != s.destination]
    return tuple(faults) or _deadlock(program)


def _device_faults(device: DeviceProgram) -> list[str]:
    faults: list[str] = []
    written = set(device.feeds)

    def note(item: Receive | Send | Op) -> None:
        unread = [b for b in reads_of(item) if b not in written]
        faults.extend(f"device {device.device}: {type(item).__name__} reads buffer {b} before it is written" for b in unread)
        for buffer in writes_of(item):
            if buffer in written:
                faults.append(f"device {device.device}: buffer {buffer} is written twice")
            written.add(buffer)
        if isinstance(item, Assemble) and not unread:
            faults.extend(_assembly_faults(device, item))
        if isinstance(item, Combine):
            faults.extend(_combination_faults(device, item))

    for step in device.steps:
        for item in step.ops if isinstance(step, Compute) else (step,):
            note(item)
    faults += [f"device {device.device}: result {b} is never written" for b in device.results if b not in written]
    return faults


def _assembly_faults(device: DeviceProgram, assembly: Assemble) -> list[str]:
    target = device.buffers[assembly.output]
    label = f"device {device.device}: assembly of '{target.value}' {target.region}"
    faults = []
    if sum(p.region.size for p in assembly.pieces) != target.region.size:
        faults.append(f"{label}: its pieces have {sum(p.region.size for p in assembly.pieces)} elements, not {target.region.size}")
    if missing := subtract_all(target.region, (p.region for p in assembly.pieces)):
        faults.append(f"{label}: no piece covers {', '.join(map(str, missing))}")
    for piece in assembly.pieces:
        source = device.buffers[piece.buffer]
        if (source.value, source.part) != (target.value, target.part) or not source.region.issuperset(piece.region):
            faults.append(f"{label}: piece {piece.region} is not in buffer '{source.value}' {source.region}")
    return faults


def _combination_faults(device: DeviceProgram, combination: Combine) -> list[str]:
    target = device.buffers[combination.output]
    inputs = [device.buffers[b] for b in combination.inputs]
    if [i.part for i in inputs] == list(range(len(inputs))) and {(i.value, i.region) for i in inputs} == {(target.value, target.region)}:
        return []
    return [f"device {device.device}: '{target.value}' {target.region} is not the sum of {', '.join(map(str, inputs))}"]


def _message_faults(program: Program, device: DeviceProgram, step: Receive) -> list[str]:
    if step.message not in program.senders:
        return [f"message {step.message}: nobody sends it"]
    sender, send = program.senders[step.message]
    sent = [replace(program.devices[sender].buffers[p.buffer], region=p.region) for p in send.parts]
    got = [device.buffers[b] for b in step.buffers]
    return [] if sent == got and sender == step.source else [f"message {step.message}: sent {sent}, but {got} are expected"]


def _deadlock(program: Program) -> tuple[str, ...]:
    position = [0] * len(program.devices)
    sent: set[int] = set()
    moved = True
    while moved:
        moved = False
        for device in program.devices:
            while position[device.device] < len(device.steps):
                step = device.steps[position[device.device]]
                if isinstance(step, Receive) and step.message not in sent:
                    break
                if isinstance(step, Send):
                    sent.add(step.message)
                position[device.device] += 1
                moved = True
    stuck = [d.device for d in program.devices if position[d.device] < len(d.steps)]
    return (f"devices {stuck} wait for each other for ever",) if stuck else ()
