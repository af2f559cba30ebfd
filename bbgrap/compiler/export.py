"""From a program to what is shipped: every device's schedule and stand-alone models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.compiler.assembly import box_within
from bbgrap.compiler.canonical import canonical
from bbgrap.compiler.host_concat import places_of, shifted
from bbgrap.compiler.segments import SegmentGraph, Slices, buffer_names, build_segment, read_outside
from bbgrap.errors import ProgramError
from bbgrap.graph import Array, DType
from bbgrap.graph.onnx_io import write_graph
from bbgrap.program.steps import Apply, Assemble, Buffer, BufferId, Compute, DeviceProgram, Op, Piece, Program, Receive, Send, reads_of
from bbgrap.runtime.schedule import OPEN, Box, BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule
from bbgrap.shapemap import ShapeMap


def segment_graphs(program: Program, cut: Slices | None = None) -> tuple[tuple[SegmentGraph, ...], ...]:
    """Return the stand-alone models of every device but the host, in the order in which it runs them; `cut` has slices of weights."""
    found = []
    slices = {} if cut is None else cut
    for device in program.devices[: program.host]:
        names, outside = buffer_names(program.graph, device), read_outside(device)
        computes = [(n, step) for n, step in enumerate(device.steps) if isinstance(step, Compute)]
        found.append(
            tuple(
                build_segment(program, device, step, outside[n], names, slices, f"device{device.device}.segment{k}")
                for k, (n, step) in enumerate(computes)
            )
        )
    return tuple(found)


def export(program: Program, cut: Slices | None = None) -> Artifacts:
    """Return schedules, models with their weights detached, and the weight slices by digest; programs with the same `cut` share slices."""
    weights: dict[str, Array] = {}
    devices = []
    for device, segments in zip(program.devices, segment_graphs(program, cut), strict=False):
        models = tuple(_ship(segment, weights) for segment in segments)
        devices.append(DeviceArtifacts(schedule_of(program, device, segments), models))
    return Artifacts(tuple(devices), schedule_of(program, program.devices[program.host], ()), weights)


def _ship(segment: SegmentGraph, weights: dict[str, Array]) -> SegmentModel:
    graph = canonical(segment.graph)
    written = write_graph(graph, weights="detached")
    used = {name: graph.weights[name] for name in written.detached}
    weights.update({weight.digest: weight.array for weight in used.values()})
    references = {name: WeightRef(weight.digest, weight.type) for name, weight in used.items()}
    return SegmentModel(segment.graph.name, hashlib.sha256(written.data).hexdigest(), written.data, graph.inputs, graph.outputs, references)


def schedule_of(program: Program, device: DeviceProgram, segments: tuple[SegmentGraph, ...]) -> Schedule:
    """Return a device's steps in local coordinates, with its buffers renumbered in the order of `device.buffers`."""
    names = buffer_names(program.graph, device)
    numbers = {buffer: n for n, buffer in enumerate(device.buffers)}
    steps: list[LocalStep] = []
    runs = iter(enumerate(segments))
    joins = _HostJoins(program, device, numbers)
    for step in device.steps:
        match step:
            case Receive():
                wire = program.wire(step.source, device.device)
                steps.append(LocalReceive(step.message, step.source, tuple(numbers[b] for b in step.buffers), wire))
            case Send():
                parts = tuple(_part(program, device, numbers, p) for p in step.parts)
                steps.append(LocalSend(step.message, step.destination, parts, program.wire(device.device, step.destination)))
            case Compute() if device.device == program.host:
                steps += [join for op in step.ops for join in joins.of(op)]
            case Compute():
                number, segment = next(runs)
                ins, outs = (tuple(numbers[b] for b in side) for side in (segment.inputs, segment.outputs))
                steps.append(LocalRun(number, ins, outs))
    return Schedule(
        device=device.device,
        host=program.host,
        buffers=tuple(_spec(program, device, names, b) for b in device.buffers),
        steps=tuple(steps),
        feeds=tuple(numbers[b] for b in device.feeds),
        results=tuple(numbers[b] for b in device.results),
    )


def _spec(program: Program, device: DeviceProgram, names: Mapping[BufferId, str], buffer: BufferId) -> BufferSpec:
    held = device.buffers[buffer]
    kind = program.graph.types[held.value]
    moves = program.open_sizes and held.value in program.graph.moving
    # What no array holds is packed into bytes wherever it leaves a segment.
    dtype = DType.UINT8 if kind.dtype is DType.OTHER else kind.dtype
    return BufferSpec(names[buffer], dtype, None if kind.shape is None or moves else held.region.shape)


def _part(program: Program, device: DeviceProgram, numbers: Mapping[BufferId, int], piece: Piece) -> LocalPart:
    return LocalPart(numbers[piece.buffer], _box(program, device.buffers[piece.buffer], piece.region))


def _box(program: Program, held: Buffer, region: ShapeMap) -> Box | None:
    """Return where a region lies in a buffer; along an axis whose size moves that is all of it."""
    box, moving = box_within(region, held.region), program.graph.moving.get(held.value, ()) if program.open_sizes else ()
    return box if box is None else tuple(((0, OPEN),) if axis in moving else ranges for axis, ranges in enumerate(box))


class _HostJoins:
    """What the host puts together; an operand of a concatenation goes to its place in one step, from wherever its pieces are."""

    def __init__(self, program: Program, device: DeviceProgram, numbers: Mapping[BufferId, int]) -> None:
        self.program = program
        self.device = device
        self.numbers = numbers
        assembled = {b for op in device.ops if not isinstance(op, Apply) for b in reads_of(op)}
        self.passing = {b for op in device.ops if isinstance(op, Apply) for b in reads_of(op)} - {*device.results, *assembled}
        """Buffers that are read for concatenations only."""
        self.pieces: dict[BufferId, tuple[tuple[LocalPart, Box | None], ...]] = {}

    def of(self, op: Op) -> tuple[LocalJoin, ...]:
        """Return the step that an operation becomes; none if the only reader of its output does it, too."""
        match op:
            case Assemble(output=output, pieces=pieces):
                target = self.device.buffers[output]
                joined = tuple((_part(self.program, self.device, self.numbers, p), _box(self.program, target, p.region)) for p in pieces)
            case Apply(node=node, reads=reads, writes=(output,)):
                places = places_of(self.program.graph, self.program.graph.node_by_name[node])
                joined = tuple(
                    (part, shifted(place, box))
                    for buffer, place in zip(reads, places, strict=True)
                    if buffer is not None
                    for part, box in self.pieces.get(buffer, ((LocalPart(self.numbers[buffer], None), None),))
                )
            case _:
                raise ProgramError(f"host: it puts tensors together, but is to do {type(op).__name__}")
        if output in self.passing:
            self.pieces[output] = joined
            return ()
        return (LocalJoin(self.numbers[output], joined),)
