"""How long a program takes on a cluster: the speeds of its nodes, the links between them, and the clock.

A segment takes its start-up, its operations one by one, and the copying of maps at its borders; a message takes both ends' processors
and its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bbgrap.cluster import Cluster
from bbgrap.costmodel.clock import Act, Await, Busy, Post, run_clock
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.timeline import Timeline
from bbgrap.program.dictionaries import DECODED_PER_S, ENCODED_PER_S
from bbgrap.program.steps import Apply, Assemble, Combine, Compute, DeviceProgram, Op, Program, Receive, Send

REQUEST_S = 400e-6
"""What a request costs beyond its program: the way from client to coordinator and back, measured with an empty one on one machine."""


class Predictor:
    """Predicts programs on one cluster; remembers what pieces of work take."""

    def __init__(self, cluster: Cluster) -> None:
        """Predict for these nodes; the host computes nothing."""
        self.cluster = cluster
        self._names = [*(node.name for node in cluster.nodes), "coordinator"]
        self.network = NetworkModel(cluster)

    def op_seconds(self, program: Program, device: DeviceProgram, op: Op) -> float:
        """Return what an operation takes on a device; a copy at a border costs its bytes."""
        match op:
            case Apply():
                return self.network.seconds(device.device, op.work)
            case Assemble() | Combine():
                copies = 1 if isinstance(op, Assemble) else len(op.inputs)
                speed = self.network.speeds[device.device]["segment"]
                return copies * (speed.seconds(0, 0, program.buffer_bytes(device.buffers[op.output])) - speed.overhead_s)

    def segment_seconds(self, program: Program, device: DeviceProgram, step: Compute) -> float:
        """Return what a segment takes on a device."""
        start = self.network.speeds[device.device]["segment"].overhead_s
        return start + sum(self.op_seconds(program, device, op) for op in step.ops)

    def acts(self, program: Program, measured: Sequence[Mapping[int, float]] = ()) -> list[list[Act]]:
        """Return what every device does; `measured` are seconds of segments by number, per device, where they are known."""
        known = [*measured, *({} for _ in program.devices[len(measured) :])]
        sizes = {message: sum(program.part_bytes(*sent)) for message, sent in program.senders.items()}
        acts = [list(self._acts_of(program, device, sizes, known[device.device])) for device in program.devices]
        acts[program.host].insert(0, Busy(REQUEST_S / 2, "request"))
        acts[program.host].append(Busy(REQUEST_S / 2, "answer"))
        return acts

    def _acts_of(self, program: Program, device: DeviceProgram, sizes: Mapping[int, int], measured: Mapping[int, float]) -> Iterator[Act]:
        segment = 0
        for step in device.steps:
            match step:
                case Receive():
                    yield Await(step.message, step.source, sizes[step.message])
                    if program.wire(step.source, device.device) == "dictionary":
                        yield Busy(sizes[step.message] / DECODED_PER_S, "dictionary")
                case Send():
                    if program.wire(device.device, step.destination) == "dictionary":
                        yield Busy(sizes[step.message] / ENCODED_PER_S, "dictionary")
                    yield Post(step.message, step.destination, sizes[step.message])
                case Compute() if device.device == program.host:
                    yield Busy(sum(self.op_seconds(program, device, op) for op in step.ops), "join")
                case Compute():
                    seconds = measured[segment] if segment in measured else self.segment_seconds(program, device, step)
                    yield Busy(seconds, segment_label(step), segment)
                    segment += 1

    def timeline(self, program: Program, measured: Sequence[Mapping[int, float]] = ()) -> Timeline:
        """Return when every device does what in one request."""
        return run_clock(self._names, self.acts(program, measured), self.network)


def segment_label(step: Compute) -> str:
    """Return a name for a segment: its first and last operation."""
    nodes = [op.node for op in step.ops if isinstance(op, Apply)]
    if not nodes:
        return "copy"
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} ... {nodes[-1]}"
