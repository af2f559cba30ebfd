"""The pass that lets a device begin with what it holds itself while the rest is on its way.

all at once      send x0 ── query of x0 ─────────────────────┊ x1 ┊── key of x0 and x1 ── scores
its own first    send x0 ── query of x0 ── key of x0 ────────┊ x1 ┊── key of x1 ── scores
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from bbgrap.compiler.memory import program_bytes, weight_bytes
from bbgrap.compiler.passes.chunks import Narrow, derive, write_out
from bbgrap.compiler.passes.crops import drop_trivial_assemblies
from bbgrap.compiler.passes.dead import drop_unused
from bbgrap.compiler.passes.fuse import WORTH_A_CUT_FLOPS
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.messages import MESSAGE_S, NetworkModel
from bbgrap.program.steps import (
    Apply,
    Assemble,
    Buffer,
    BufferId,
    Compute,
    DeviceProgram,
    Op,
    Piece,
    Program,
    Receive,
    Step,
    reads_of,
    writes_of,
)
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.tdl import Descriptions
from bbgrap.tdl.computable_regions import computable

LONG_S = 5 * MESSAGE_S
"""What is there sooner is waited for: a part of its own costs a segment and a copy. Chosen."""

MOST_REPEATED = 1 / 4
"""Of a device's weights: both parts of an operation use them, and a session each has its own copy. Chosen."""


@dataclass(frozen=True, slots=True)
class OwnFirst:
    """Divide operations into the part that a device can make of what it holds, and the rest. After `fuse_segments`.

    1. Where messages of other agents are waited for, and are on their way for a while.
    2. Operations whose own part is worth a segment, if they read what comes, but not what another one makes that is divided.
    3. Everywhere or nowhere, as the clock says, and only where there is memory for the weights that are there twice.
    """

    predictor: Predictor
    narrow: Narrow
    descriptions: Descriptions

    def __call__(self, program: Program) -> Program:
        """Return the program in which devices begin with what they hold, where that is faster."""
        changed, own = begin_with_own(program, self.predictor.network, self.narrow, self.descriptions)
        if not any(own) or not all(map(self._has_room, repeat(program), own, program.devices, program_bytes(changed))):
            return program
        before, after = (self.predictor.timeline(p).total_s for p in (program, changed))
        return changed if after < before else program

    def _has_room(self, program: Program, own: Sequence[Op], device: DeviceProgram, needed: int) -> bool:
        """Tell whether a device, that needs so many bytes if weights are there once, has room for those that are there twice."""
        twice = weight_bytes(program.graph, own)
        room = self.predictor.cluster.nodes[device.device].memory_bytes
        return twice <= MOST_REPEATED * weight_bytes(program.graph, device.ops) and (not room or needed + twice <= room)


def begin_with_own(
    program: Program,
    network: NetworkModel,
    narrow: Narrow,
    descriptions: Descriptions,
    long_s: float = LONG_S,
    worth_flops: int = WORTH_A_CUT_FLOPS,
) -> tuple[Program, list[list[Op]]]:
    """Return a fused program whose agents begin with what they hold, and the operations of theirs that make own parts.

    Args:
        program: After `fuse_segments`.
        network: How long messages are on their way.
        narrow: How operations make regions.
        descriptions: Of the graph's nodes.
        long_s: What is on its way for less is waited for.
        worth_flops: The least work of an own part.
    """
    agents = [_Agent(program, network, narrow, descriptions, device, dict(device.buffers)) for device in program.devices[: program.host]]
    divided = tuple(agent.divided(long_s, worth_flops) for agent in agents)
    if not any(agent.own for agent in agents):
        return program, [[] for _ in agents]
    changed = replace(program, devices=(*divided, program.devices[program.host]))
    return drop_trivial_assemblies(drop_unused(changed)), [agent.own for agent in agents]


@dataclass(slots=True)
class _Agent:
    """One agent, while its operations are divided.

    Invariants: `own` are the operations that make own parts; `buffers` has what both parts make, too.
    """

    program: Program
    network: NetworkModel
    narrow: Narrow
    descriptions: Descriptions
    device: DeviceProgram
    buffers: dict[BufferId, Buffer]
    own: list[Op] = field(default_factory=list)

    def divided(self, long_s: float, worth_flops: int) -> DeviceProgram:
        """Return the program in which own parts come before what is waited for."""
        steps: list[Step] = []
        coming: list[Receive] = []
        for step in self.device.steps:
            if isinstance(step, Receive):
                coming.append(step)
                continue
            now = step
            if isinstance(step, Compute) and self._on_their_way_s(coming) > long_s:
                own, now = self._divided(step, {b for receive in coming for b in receive.buffers}, worth_flops)
                self.own += own
                before = steps[-1] if steps else None
                if own and isinstance(before, Compute):
                    steps[-1] = Compute((*before.ops, *own))
                elif own:
                    steps.append(Compute(tuple(own)))
            steps += [*coming, now]
            coming = []
        return replace(self.device, buffers=self.buffers, steps=(*steps, *coming))

    def _on_their_way_s(self, coming: Sequence[Receive]) -> float:
        """Return how long the longest of some messages is on its way; none where the host's are waited for, too."""
        if any(receive.source == self.program.host for receive in coming):
            return 0.0
        rates = (self.network.link(receive.source, self.device.device).bandwidth_bytes_per_s for receive in coming)
        sizes = (sum(self.program.part_bytes(*self.program.senders[receive.message])) for receive in coming)
        return max((size / rate for size, rate in zip(sizes, rates, strict=True)), default=0.0)

    def _divided(self, step: Compute, coming: set[BufferId], worth_flops: int) -> tuple[list[Op], Compute]:
        """Return the operations of own parts, and the step with the rest of them."""
        own: list[Op] = []
        rest: dict[int, list[Op]] = {}
        for number, region in self._own_parts(step, coming, worth_flops):
            (target,) = writes_of(step.ops[number])
            regions = (region, *self.buffers[target].region.subtract(region))
            derived = [derive(self.device, step.ops[: number + 1], target, each, self.narrow) for each in regions]
            known = [each for each in derived if each is not None]
            if len(known) < len(regions):
                continue
            made = [write_out(each, self.buffers, {}) for each in known]
            own += made[0][0]
            pieces = tuple(Piece(numbers[target], each) for (_, numbers), each in zip(made, regions, strict=True))
            rest[number] = [*(op for ops, _ in made[1:] for op in ops), Assemble(target, pieces)]
        return own, Compute(tuple(each for number, op in enumerate(step.ops) for each in rest.get(number, [op])))

    def _own_parts(self, step: Compute, coming: set[BufferId], worth_flops: int) -> Iterator[tuple[int, ShapeMap]]:
        """Yield the operations that are worth dividing, by number, with what they can make of what is there before something comes."""
        there: dict[BufferId, ShapeMap | None] = dict.fromkeys(coming)
        for number, op in enumerate(step.ops):
            region = self._made_of(op, there)
            if isinstance(op, Apply) and region is not None and region != self.buffers[op.writes[0]].region:
                narrowed = self.narrow(op, region)
                if narrowed is not None and narrowed[1].flops >= worth_flops:
                    yield number, region
                    region = None
            there |= dict.fromkeys(writes_of(op), region)

    def _made_of(self, op: Op, there: Mapping[BufferId, ShapeMap | None]) -> ShapeMap | None:
        """Return what an operation can make of regions that are there; a buffer that is not named is there whole."""
        held = {buffer: there.get(buffer, self.buffers[buffer].region) for buffer in reads_of(op)}
        match op:
            case Assemble(output=output, pieces=pieces):
                missing = (p.region for p in pieces if (region := held[p.buffer]) is None or not region.issuperset(p.region))
                left = subtract_all(self.buffers[output].region, missing)
                return left[0] if len(left) == 1 else None
            case Apply(reads=reads, writes=(output,)) if self.buffers[output].part is None and None not in held.values():
                node, types = self.program.graph.node_by_name[op.node], self.program.graph.types
                description = self.descriptions[op.node]
                if description is None or node.captured:
                    return None
                shapes = [types[name].shape if name else None for name in node.inputs]
                made = computable(description, [None if b is None else held[b] for b in reads], shapes)
                common = None if made is None else made.intersect(self.buffers[output].region)
                return None if common is None or common.is_empty else common
            case _:
                return None
