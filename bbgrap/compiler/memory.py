"""How much memory each device needs: the weight slices it holds, and the tensors alive at the worst moment of a request.

Weights count once, as kernels have packed them, or as they are mapped: of what was shipped and packed, the system may take the pages back.
What loading a segment has in memory once more counts once, of the segment with most of it (`bytes_while_loaded`). Measured: twelve
products of 200 MB take 197 MB at the worst moment, eight convolutions of 200 MB take 610 MB, and 197 MB when they are loaded, one of 67 MB
takes 349 MB; float16 takes 2.6 times its bytes, and twice of them then. One product of 300 MB was not packed in 80 seconds where 200 MB
were left for the pages of its file. Arenas come on top, so it is an estimate from below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import MAP_AXES, bytes_while_loaded, packed_bytes
from bbgrap.graph import Graph, TensorType
from bbgrap.program.steps import Apply, Buffer, Compute, DeviceProgram, Op, Program, reads_of, writes_of

_CHANNEL_BLOCK = 16
"""Channels that onnxruntime's kernels of convolutions keep together with AVX-512. Measured: between two convolutions maps of 3 channels
take what 19 do, of 16 what 31 do, of 20 what 47 do."""

LEAST_STANDBY_BYTES = 64 << 20
"""What a standby takes at least besides its weights: activations of small inputs, and onnxruntime's own. Chosen."""


def state_bytes(program: Program, device: DeviceProgram) -> int:
    """Return the bytes of a sequence's state that a device has when a request begins."""
    return sum(program.buffer_bytes(device.buffers[b]) for b in device.feeds)


def largest_layer_bytes(program: Program, device: DeviceProgram) -> int:
    """Return the bytes of the largest tensor that any operation of a device makes, inside its segments too."""
    return max((_made_bytes(program, op, device.buffers[b]) for op in device.ops if isinstance(op, Apply) for b in op.writes), default=0)


def _made_bytes(program: Program, op: Apply, made: Buffer) -> int:
    """Return the bytes of what an operation makes. Kernels of convolutions make channels in blocks: maps of 3 take as much as of 16."""
    nbytes, shape = program.buffer_bytes(made), made.region.shape
    if program.graph.node_by_name[op.node].op != "Conv" or len(shape) != MAP_AXES or not shape[1]:
        return nbytes
    return nbytes // shape[1] * -(-shape[1] // _CHANNEL_BLOCK) * _CHANNEL_BLOCK


def program_bytes(program: Program) -> tuple[int, ...]:
    """Return, per device but the host, the bytes that loading takes, those of its buffers at the worst moment, and those of two layers.

    With state, that of one sequence is kept beside that of its request that runs.
    """
    return tuple(
        packed_bytes(_slices(program.graph, device.ops))
        + max((bytes_while_loaded(_slices(program.graph, step.ops)) for step in device.steps if isinstance(step, Compute)), default=0)
        + _peak_bytes(program, device)
        + state_bytes(program, device)
        + 2 * largest_layer_bytes(program, device)
        for device in program.devices[: program.host]
    )


def weight_bytes(graph: Graph, ops: Iterable[Op]) -> int:
    """Return the bytes of the weight slices that operations use, each slice once."""
    return sum(kind.nbytes for kind in _slices(graph, ops))


def _slices(graph: Graph, ops: Iterable[Op]) -> list[TensorType]:
    """Return the types of the weight slices that operations use, each slice once."""
    slices = {
        (name, region)
        for op in ops
        if isinstance(op, Apply)
        for name, region in zip(graph.node_by_name[op.node].inputs, op.local.reads, strict=False)
        if name in graph.weights and region is not None
    }
    return [TensorType(graph.weights[name].type.dtype, region.shape) for name, region in slices]


def _peak_bytes(program: Program, device: DeviceProgram) -> int:
    """Return the largest sum of buffers that are alive between steps; what only lives inside a segment does not count."""
    last = {buffer: number for number, step in enumerate(device.steps) for buffer in reads_of(step)}
    last |= dict.fromkeys(device.results, len(device.steps))
    alive = peak = state_bytes(program, device)
    for number, step in enumerate(device.steps):
        written = set(writes_of(step))
        alive += sum(program.buffer_bytes(device.buffers[b]) for b in written if last.get(b, number) > number)
        peak = max(peak, alive)
        alive -= sum(program.buffer_bytes(device.buffers[b]) for b in set(reads_of(step)) - written if last[b] == number)
    return peak


def standby_bytes(weights: Collection[TensorType], carried: Iterable[TensorType] = ()) -> int:
    """Return about how many bytes a model takes whole while it is loaded: any shape of what it takes and answers that is not `carried`.

    At least half of it counts twice: onnxruntime makes weights anew that a model turns or joins. Measured: products with turned weights
    take 1.55 times their bytes.
    """
    packed = packed_bytes(weights)
    known = sum(kind.nbytes for kind in carried)
    return packed + max(bytes_while_loaded(weights), packed // 2) + max(known, LEAST_STANDBY_BYTES)


def overfull(cluster: Cluster, needed: tuple[int, ...]) -> tuple[str, ...]:
    """Return, for every node that needs more than it declares to have, a sentence with the numbers; nodes that declare none have room."""
    return tuple(  # rounded away from each other: nobody "needs 20 MB and has 20 MB"
        f"node '{node.name}' needs {-(-bytes_ // 10**6):,} MB and has {node.memory_bytes // 10**6:,} MB"
        for node, bytes_ in zip(cluster.nodes, needed, strict=True)
        if node.memory_bytes and bytes_ > node.memory_bytes
    )
