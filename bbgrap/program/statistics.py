"""Counting what a program does: the numbers of `plan --json`, before and after the passes.

Between agents only, unless named scatter or gather: the host's inputs and outputs travel in every plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bbgrap.program.steps import Assemble, Combine, Compute, Program, Receive, Send

LABELS = {
    "transfers": "messages between nodes",
    "bytes": "bytes between nodes",
    "syncs": "waits for other nodes",
    "crops": "crops",
    "concats": "concatenations",
    "sums": "sums of partial results",
    "segments": "segments to run",
    "scatter_bytes": "input bytes sent",
    "gather_bytes": "output bytes returned",
}
"""What the counts of `ProgramStatistics` are called where people read them, in the order of a table."""


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """Counts of one program, over all agents.

    `transfers`: messages between agents; `bytes`: what they carry, as they travel; `crops` and `concats`: assemblies from one and from
    several pieces; `sums`: additions of partial results;
    `syncs`: places where an agent waits for other agents; `segments`: models to run.
    """

    transfers: int
    bytes: int
    crops: int
    concats: int
    sums: int
    syncs: int
    segments: int
    scatter_bytes: int
    gather_bytes: int
    bytes_by_operator: dict[str, int]
    """Bytes between agents by the operator that computed them."""


def traffic_bytes(program: Program) -> int:
    """Return all bytes that travel, scatter and gather included."""
    return sum(sum(program.part_bytes(*sent)) for sent in program.senders.values())


def statistics_of(program: Program) -> ProgramStatistics:
    """Count what a program does."""
    totals: Counter[str] = Counter()
    by_operator: Counter[str] = Counter()
    for device in program.devices:
        waiting = False
        for step in device.steps:
            match step:
                case Send():
                    sizes = program.part_bytes(device.device, step)
                    if device.device == program.host or step.destination == program.host:
                        totals["scatter_bytes" if device.device == program.host else "gather_bytes"] += sum(sizes)
                        continue
                    totals["transfers"] += 1
                    for part, size in zip(step.parts, sizes, strict=True):
                        producer = program.graph.producers.get(device.buffers[part.buffer].value)
                        by_operator[producer.op if producer else "input"] += size
                case Receive() if step.source != program.host and device.device != program.host:
                    totals["syncs"] += not waiting
                case Compute() if device.device != program.host:
                    totals["segments"] += 1
                    for op in step.ops:
                        if isinstance(op, Assemble):
                            totals["crops" if len(op.pieces) == 1 else "concats"] += 1
                        totals["sums"] += isinstance(op, Combine)
                case _:
                    pass
            waiting = isinstance(step, Receive) and step.source != program.host
    totals["bytes"] = sum(by_operator.values())
    return ProgramStatistics(bytes_by_operator=dict(sorted(by_operator.items())), **{name: totals[name] for name in LABELS})
