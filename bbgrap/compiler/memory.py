"""How much memory each device needs: the weight slices it holds, and the tensors alive at the worst moment of a request.

Weights count once, as kernels have packed them: those that were shipped are mapped files, whose pages the system may take back. The largest
segment's count twice, for they are copied while it is loaded. So a model on one node, which is one segment, takes two copies.
Measured: a worker keeps 1,150 MB for two deployments of VGG16's 553 MB, and 340 MB for a standby of ResNet50's 102 MB, the whole of it and
two halves. Arenas come on top, so it is an estimate from below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts, packed_bytes
from bbgrap.graph import Graph, TensorType
from bbgrap.program.steps import Apply, Compute, DeviceProgram, Op, Program, reads_of
from bbgrap.program.steps import writes_of as written_by
from bbgrap.runtime.schedule import Schedule, last_reads, writes_of

LEAST_STANDBY_BYTES = 64 << 20
"""What a standby takes besides its weights: activations of small inputs, and onnxruntime's own. Chosen."""


def peak_bytes(schedule: Schedule) -> int:
    """Return the largest number of bytes in buffers that are alive at the same time."""
    sizes = [prod((0,) if spec.shape is None else spec.shape) * spec.dtype.itemsize for spec in schedule.buffers]
    alive = peak = sum(sizes[b] for b in schedule.feeds)
    for step, freed in zip(schedule.steps, last_reads(schedule), strict=True):
        alive += sum(sizes[b] for b in writes_of(step))
        peak = max(peak, alive)
        alive -= sum(sizes[b] for b in freed)
    return peak


def state_bytes(schedule: Schedule) -> int:
    """Return the bytes of a sequence's state that a device has when a request begins; along what grows, as the schedule has it."""
    specs = (schedule.buffers[buffer] for buffer in schedule.feeds)
    return sum(prod(spec.shape or (0,)) * spec.dtype.itemsize for spec in specs)


def largest_layer_bytes(program: Program, device: DeviceProgram) -> int:
    """Return the bytes of the largest tensor that any operation of a device makes, inside its segments too."""
    return max((program.buffer_bytes(device.buffers[b]) for op in device.ops if isinstance(op, Apply) for b in op.writes), default=0)


def needed_bytes(program: Program, artifacts: Artifacts) -> tuple[int, ...]:
    """Return, per device, the bytes of its weights, of those of the largest segment, of its buffers at the worst moment, and of two layers.

    With state, that of one sequence is kept beside that of its request that runs.
    """
    return tuple(
        shipped.loading_bytes + peak_bytes(shipped.schedule) + state_bytes(shipped.schedule) + 2 * largest_layer_bytes(program, device)
        for shipped, device in zip(artifacts.devices, program.devices, strict=False)
    )


def program_bytes(program: Program) -> tuple[int, ...]:
    """Return, per device but the host, about what `needed_bytes` says of the exported program: for planners that look at many."""
    return tuple(
        weight_bytes(program.graph, device.ops)
        + max((weight_bytes(program.graph, step.ops) for step in device.steps if isinstance(step, Compute)), default=0)
        + _peak_bytes(program, device)
        + 2 * largest_layer_bytes(program, device)
        for device in program.devices[: program.host]
    )


def weight_bytes(graph: Graph, ops: Iterable[Op]) -> int:
    """Return the bytes of the weight slices that operations use, each slice once."""
    slices = {
        (name, region)
        for op in ops
        if isinstance(op, Apply)
        for name, region in zip(graph.node_by_name[op.node].inputs, op.local.reads, strict=False)
        if name in graph.weights and region is not None
    }
    return sum(region.size * graph.weights[name].type.dtype.itemsize for name, region in slices)


def _peak_bytes(program: Program, device: DeviceProgram) -> int:
    """Return the largest sum of buffers that are alive between steps; what only lives inside a segment does not count."""
    last: dict[int, int] = {}
    for number, step in enumerate(device.steps):
        last |= dict.fromkeys(reads_of(step), number)
    alive = peak = 0
    for number, step in enumerate(device.steps):
        written = set(written_by(step))
        alive += sum(program.buffer_bytes(device.buffers[b]) for b in written if last.get(b, number) > number)
        peak = max(peak, alive)
        alive -= sum(program.buffer_bytes(device.buffers[b]) for b in set(reads_of(step)) - written if last[b] == number)
    return peak


def standby_bytes(weights: Collection[TensorType]) -> int:
    """Return about how many bytes a model takes whole, for any shape: weights as they are and as kernels pack them, while it is loaded."""
    return sum(kind.nbytes for kind in weights) + packed_bytes(weights) + LEAST_STANDBY_BYTES


def overfull(cluster: Cluster, needed: tuple[int, ...]) -> tuple[str, ...]:
    """Return, for every node that needs more than it declares to have, a sentence with the numbers; nodes that declare none have room."""
    return tuple(  # rounded away from each other: nobody "needs 20 MB and has 20 MB"
        f"node '{node.name}' needs {-(-bytes_ // 10**6):,} MB and has {node.memory_bytes // 10**6:,} MB"
        for node, bytes_ in zip(cluster.nodes, needed, strict=True)
        if node.memory_bytes and bytes_ > node.memory_bytes
    )
