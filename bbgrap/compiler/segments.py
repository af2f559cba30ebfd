"""From the operations of one `Compute` step to a stand-alone model: a `Graph` with only the weights, and of them the slices, it uses.

Names stay readable: a node keeps its name, a whole value its name, and a region of a value is called `value[:,:,0:28,:]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bbgrap.compiler.assembly import box_within, divided
from bbgrap.graph import Array, Graph, Node, TensorType, Weight
from bbgrap.graph.slices import from_nearer_end
from bbgrap.graph.weights import make_weight
from bbgrap.program.steps import Apply, Assemble, BufferId, Combine, Compute, DeviceProgram, Piece, Program, reads_of, writes_of
from bbgrap.runtime.schedule import extract
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import ConstantOperand, Input, Result
from bbgrap.tdl.language import ReducerKind

COMBINERS: Mapping[ReducerKind, str] = {"sum": "Add", "max": "Max", "min": "Min"}


@dataclass(frozen=True, slots=True)
class SegmentGraph:
    """A stand-alone model and the buffers that its inputs and outputs are, in order."""

    graph: Graph
    inputs: tuple[BufferId, ...]
    outputs: tuple[BufferId, ...]


Slices = dict[tuple[str, str, ShapeMap], Weight]
"""Slices of weights, by name, digest and region."""


def sliced_weight(weight: Weight, region: ShapeMap, cut: Slices) -> Weight:
    """Return a region of a weight, named after it; each is cut once for all devices, and all deployments, with the same `cut`."""
    whole = ShapeMap.full(weight.type.known_shape)
    if region == whole:
        return weight
    key = (weight.name, weight.digest, region)
    if key not in cut:
        array = np.ascontiguousarray(extract(weight.array, box_within(region, whole)))
        cut[key] = make_weight(region_name(weight.name, region, whole), array, weight.type.dtype)
    return cut[key]


def region_name(value: str, region: ShapeMap, whole: ShapeMap) -> str:
    """Name a region of a value, whole axes as `:`; the whole value has its own name."""
    if region == whole:
        return value
    axes = (":" if part == full else str(part) for part, full in zip(region.axes, whole.axes, strict=True))
    return f"{value}[{','.join(axes)}]"


def buffer_names(graph: Graph, device: DeviceProgram) -> dict[BufferId, str]:
    """Name every buffer of a device after its value and region; two of one name get a number."""
    names: dict[BufferId, str] = {}
    taken: dict[str, int] = {}
    for number, buffer in device.buffers.items():
        name = region_name(buffer.value, buffer.region, ShapeMap.full(graph.types[buffer.value].shape or ()))
        name += "" if buffer.part is None else f".partial{buffer.part}"
        taken[name] = taken.get(name, 0) + 1
        names[number] = name if taken[name] == 1 else f"{name}#{taken[name]}"
    return names


def read_outside(device: DeviceProgram) -> dict[int, set[BufferId]]:
    """Return, per number of a `Compute` step, which of its buffers later steps or the results read; all of them if none is read."""
    found: dict[int, set[BufferId]] = {}
    later = set(device.results)
    for number in range(len(device.steps) - 1, -1, -1):
        step = device.steps[number]
        if isinstance(step, Compute):
            written = set(writes_of(step))
            found[number] = later & written or written
        later.update(reads_of(step))
    return found


def build_segment(
    program: Program,
    device: DeviceProgram,
    step: Compute,
    kept: set[BufferId],
    names: Mapping[BufferId, str],
    cut: Slices,
    label: str,
) -> SegmentGraph:
    """Return the model of one `Compute` step; `kept` are the buffers that others read of it."""
    writer = _Writer(program, device, names, cut)
    for op in step.ops:
        match op:
            case Apply():
                writer.apply(op)
            case Assemble():
                writer.assemble(op)
            case Combine():
                writer.combine(op)
    written = set(writes_of(step))
    inputs = tuple(dict.fromkeys(b for b in reads_of(step) if b not in written))
    outputs = tuple(b for b in dict.fromkeys(writes_of(step)) if b in kept)
    types = (
        writer.types
        | {names[b]: writer.buffer_type(b) for b in (*inputs, *writes_of(step))}
        | {n: w.type for n, w in writer.weights.items()}
    )
    source = program.graph
    graph = Graph(
        label,
        tuple(writer.nodes),
        tuple(names[b] for b in inputs),
        tuple(names[b] for b in outputs),
        writer.weights,
        types,
        source.opsets,
        source.ir_version,
        source.hides_sizes,
        {names[b]: axes for b in (*inputs, *outputs) if (axes := source.moving.get(device.buffers[b].value))},
        ranks={names[b]: rank for b in inputs if (rank := source.ranks.get(device.buffers[b].value))},
    )
    return SegmentGraph(graph, inputs, outputs)


class _Writer:
    """Collects the nodes and weights of one segment."""

    def __init__(self, program: Program, device: DeviceProgram, names: Mapping[BufferId, str], cut: Slices) -> None:
        self.graph = program.graph
        self.device = device
        self.names = names
        self.cut = cut
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.types: dict[str, TensorType] = {}

    def buffer_type(self, buffer: BufferId) -> TensorType:
        held = self.device.buffers[buffer]
        kind = self.graph.types[held.value]
        return kind if kind.shape is None else TensorType(kind.dtype, held.region.shape)

    def apply(self, op: Apply) -> None:
        source = self.graph.node_by_name[op.node]
        results: list[str] = []
        made, ending = self._outputs(source, op), len(op.local.nodes) - 1
        further = next((number for number, local in enumerate(op.local.nodes) if local.makes_further), ending)
        for number, local in enumerate(op.local.nodes):
            last = number == ending
            name = op.node if last else f"{op.node}.step{number}"
            operands: list[str] = []
            for place, item in enumerate(local.operands):
                match item:
                    case None:
                        operands.append("")
                    case Input(operand=k):
                        operands.append(self._operand(source, op, k))
                    case ConstantOperand(array=array):
                        operands.append(self._literal(f"{name}.parameter{place}", array))
                    case Result(node=n):
                        operands.append(results[n])
            outputs = (made[0] if last else f"{name}.out", *(made[1:] if number == further else ()))
            results.append(outputs[0])
            self.nodes.append(Node(name, local.op, tuple(operands), outputs, local.attributes, local.domain))
        for captured in source.captured:
            kind = self.graph.types[captured]
            if captured in self.graph.weights:
                self.weights[captured] = self.graph.weights[captured]
            elif kind.shape is not None and 0 in kind.shape:  # no buffer: nobody sends what has no elements
                self.weights[captured] = make_weight(captured, np.empty(kind.shape, kind.dtype.numpy))

    def _outputs(self, source: Node, op: Apply) -> tuple[str, ...]:
        written = iter(op.writes)
        return tuple(self.names[next(written)] if name else "" for name in source.outputs)

    def _operand(self, source: Node, op: Apply, number: int) -> str:
        buffer = op.reads[number]
        if buffer is not None:
            return self.names[buffer]
        region = op.local.reads[number]
        assert region is not None, "an operand that is no buffer is a weight, read by region"
        weight = sliced_weight(self.graph.weights[source.inputs[number]], region, self.cut)
        self.weights[weight.name] = weight
        return weight.name

    def _literal(self, name: str, array: Array) -> str:
        weight = make_weight(name, np.array(array))
        self.weights[name] = weight
        return name

    def assemble(self, op: Assemble) -> None:
        name = self.names[op.output]
        made = self._put_together(self.device.buffers[op.output].region, op.pieces, name)
        if made != name:
            self.nodes.append(Node(f"pass {name}", "Identity", (made,), (name,)))

    def combine(self, op: Combine) -> None:
        """Add up pairwise, in the order of the parts: `Sum` takes floats only, and leaves its order open."""
        name = self.names[op.output]
        made = self.names[op.inputs[0]]
        for number, buffer in enumerate(op.inputs[1:], 2):
            target = name if number == len(op.inputs) else f"{name}.parts{number}"
            self.nodes.append(Node(f"combine {target}", COMBINERS[op.kind], (made, self.names[buffer]), (target,)))
            made = target
        if made != name:
            self.nodes.append(Node(f"pass {name}", "Identity", (made,), (name,)))

    def _put_together(self, target: ShapeMap, pieces: Sequence[Piece], name: str) -> str:
        """Make a region of disjoint pieces that cover it; return what has it: the name, or that of a buffer that is just this region."""
        if len(pieces) == 1:
            return self._cropped(target, pieces[0].buffer, name)
        axis, parts = divided(target, pieces)
        return self._joined(axis, [self._put_together(*part, f"{name}.part{k}") for k, part in enumerate(parts)], name)

    def _cropped(self, target: ShapeMap, buffer: BufferId, name: str) -> str:
        held = self.device.buffers[buffer].region
        if target == held:
            return self.names[buffer]
        ranges = target.slices_within(held)
        for axis, here in enumerate(ranges):
            if len(here) > 1:
                parts = (target.replace(axis, IntervalSet.of(r)) for r in target.axes[axis].ranges)
                return self._joined(axis, [self._cropped(part, buffer, f"{name}.part{k}") for k, part in enumerate(parts)], name)
        cut = [axis for axis, (here, extent) in enumerate(zip(ranges, held.shape, strict=True)) if len(here[0]) != extent]
        ends = [from_nearer_end(ranges[axis][0].start, ranges[axis][0].stop, held.shape[axis]) for axis in cut]
        parameters = ([start for start, _ in ends], [stop for _, stop in ends], cut)
        literals = [self._literal(f"crop {name}.parameter{k}", np.array(p, np.int64)) for k, p in enumerate(parameters)]
        self.nodes.append(Node(f"crop {name}", "Slice", (self.names[buffer], *literals), (name,)))
        return name

    def _joined(self, axis: int, parts: Sequence[str], name: str) -> str:
        self.nodes.append(Node(f"concat {name}", "Concat", tuple(parts), (name,), {"axis": axis}))
        return name
