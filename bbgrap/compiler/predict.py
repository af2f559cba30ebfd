"""How long a program takes on a cluster: the speeds of its nodes, the links between them, and the clock.

A segment takes its start-up, its operations one by one, and the copying of maps at its borders; a message takes both ends' processors
and its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf

from bbgrap.cluster import Cluster
from bbgrap.cluster.speeds import speeds_of, speeds_together
from bbgrap.cluster.types import Link, NodeProfile, Speed
from bbgrap.costmodel.clock import Act, Await, Post, Wires, Work, run_clock
from bbgrap.costmodel.timeline import Timeline
from bbgrap.program.dictionaries import DECODED_PER_S, ENCODED_PER_S
from bbgrap.program.steps import Apply, Assemble, Combine, Compute, DeviceProgram, Op, Program, Receive, Send
from bbgrap.tdl.work import Work as Amount

REQUEST_S = 400e-6
"""What a request costs beyond its program: the way from client to coordinator and back, measured with an empty one on one machine."""


COLD_MESSAGE_S = 80e-6
"""What a message costs at either end beyond one of many in a row, which profiles measure: right after a kernel nothing of the code that
handles it is in the processor's caches (decision 8: 0.35 ms an exchange, of which sending is 0.12 to 0.2 and receiving 0.11)."""

PACKETS_S_PER_BYTE = ((300e6, 2e-9), (2e9, 0.5e-9))
"""What a byte takes of a core beyond its handling, by packets and interrupts, over links of up to so many bytes per second. Measured with
emulated links: 2.2e-9 to 2.8e-9 at 1 Gbit/s, 0.3e-9 to 0.6e-9 at 10 Gbit/s, where packets are larger (decision 24)."""

AT_ONCE_BYTES = 64 << 10
"""Of a message that leave within the call that sends it, and are part of its handling: one packet at most. Larger ones go through memory
where that is possible. Chosen."""


class Predictor:
    """Predicts programs on one cluster; remembers what pieces of work take."""

    def __init__(self, cluster: Cluster) -> None:
        """Predict for these nodes; the host computes nothing."""
        self.cluster = cluster
        host, nodes = NodeProfile("coordinator"), speeds_together(cluster.nodes)
        self._speeds: list[Mapping[str, Speed]] = [*nodes, speeds_of(host) if cluster.beside_host is None else nodes[cluster.beside_host]]
        self._names = [*(node.name for node in cluster.nodes), host.name]
        self._seconds: dict[tuple[int, Amount], float] = {}
        self.wires = Wires(cache(self._link), self._handling, cache(cluster.machine), self._taken)

    def _link(self, source: int, destination: int) -> Link:
        link = self.cluster.link(source, destination)
        return Link(inf, link.latency_s) if self._is_memory(source, destination) else link

    def _is_memory(self, source: int, destination: int) -> bool:
        """Whether two devices are on one machine: what the sender has written has arrived."""
        return self.wires.machine(source) == self.wires.machine(destination)

    def _handling(self, device: int, source: int, destination: int, size: int) -> float:
        return COLD_MESSAGE_S + self._speeds[device]["message"].seconds(0, 0, size)

    def _taken(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        """Return what messages take of a node that computes with all of its cores: the coordinator's beside it, and what it sends itself.

        What a node receives takes next to nothing but its handling: on the links that were measured the sender pays.
        """
        host, beside = self.cluster.host, self.cluster.beside_host
        whose = beside if device == host else device if device == source else None
        if whose is None or self.cluster.nodes[whose].threads < self.cluster.nodes[whose].cores:
            return None
        bandwidth = self.wires.link(source, destination).bandwidth_bytes_per_s
        packets = next((seconds for most, seconds in PACKETS_S_PER_BYTE if bandwidth <= most), None)
        if packets is None:
            return None
        own = packets * max(0, size - AT_ONCE_BYTES)
        seconds = self._handling(device, source, destination, size) + packets * size if device == host else own
        return whose, seconds / max(1, self.cluster.nodes[whose].threads)

    def seconds(self, device: int, amount: Amount) -> float:
        """Return what a piece of work takes on a device."""
        key = (device, amount)
        known = self._seconds.get(key)
        if known is None:
            free = not (amount.flops or amount.weight_bytes or amount.map_bytes)
            speed = self._speeds[device].get(amount.kind) or self._speeds[device]["other"]
            known = 0.0 if free else speed.seconds(amount.flops, amount.weight_bytes, amount.map_bytes)
            self._seconds[key] = known
        return known

    def op_seconds(self, program: Program, device: DeviceProgram, op: Op) -> float:
        """Return what an operation takes on a device; a copy at a border costs its bytes."""
        match op:
            case Apply():
                return self.seconds(device.device, op.work)
            case Assemble() | Combine():
                copies = 1 if isinstance(op, Assemble) else len(op.inputs)
                held = device.buffers[op.output]
                size = held.region.size * program.graph.types[held.value].dtype.itemsize
                speed = self._speeds[device.device]["segment"]
                return copies * (speed.seconds(0, 0, size) - speed.overhead_s)

    def segment_seconds(self, program: Program, device: DeviceProgram, step: Compute) -> float:
        """Return what a segment takes on a device."""
        start = self._speeds[device.device]["segment"].overhead_s
        return start + sum(self.op_seconds(program, device, op) for op in step.ops)

    def acts(self, program: Program, measured: Sequence[Mapping[int, float]] = ()) -> list[list[Act]]:
        """Return what every device does; `measured` are seconds of segments by number, per device, where they are known."""
        known = [*measured, *({} for _ in program.devices[len(measured) :])]
        sizes = {
            step.message: sum(program.part_bytes(device.device, step))
            for device in program.devices
            for step in device.steps
            if isinstance(step, Send)
        }
        acts = [list(self._acts_of(program, device, sizes, known[device.device])) for device in program.devices]
        acts[program.host].insert(0, Work(REQUEST_S / 2, "request"))
        acts[program.host].append(Work(REQUEST_S / 2, "answer"))
        return acts

    def _acts_of(self, program: Program, device: DeviceProgram, sizes: Mapping[int, int], measured: Mapping[int, float]) -> Iterator[Act]:
        segment = 0
        for step in device.steps:
            match step:
                case Receive():
                    yield Await(step.message, step.source, sizes[step.message])
                    if program.wire(step.source, device.device) == "palette":
                        yield Work(sizes[step.message] / DECODED_PER_S, "palettes")
                case Send():
                    if program.wire(device.device, step.destination) == "palette":
                        yield Work(sizes[step.message] / ENCODED_PER_S, "palettes")
                    yield Post(step.message, step.destination, sizes[step.message])
                case Compute() if device.device == program.host:
                    yield Work(sum(self.op_seconds(program, device, op) for op in step.ops), "join")
                case Compute():
                    seconds = measured[segment] if segment in measured else self.segment_seconds(program, device, step)
                    yield Work(seconds, segment_label(step), segment)
                    segment += 1

    def timeline(self, program: Program, measured: Sequence[Mapping[int, float]] = ()) -> Timeline:
        """Return when every device does what in one request."""
        return run_clock(self._names, self.acts(program, measured), self.wires)


def segment_label(step: Compute) -> str:
    """Return a name for a segment: its first and last operation."""
    nodes = [op.node for op in step.ops if isinstance(op, Apply)]
    if not nodes:
        return "copy"
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} ... {nodes[-1]}"
