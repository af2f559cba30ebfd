"""The program of a plan without the way over the initial one: for planners that look at many plans.

What `build` and the passes before fusing arrive at together is made here at once: a device fetches what it needs of a value and does not
hold, from the first device that has it. The operations know their work but not how to run, so such a program can be timed, not executed.
A test compares it with the long way: the same messages of the same bytes, the same work.
"""

from __future__ import annotations

from bbgrap.compiler.host_concat import joined_by_host
from bbgrap.compiler.passes.dead import drop_unused
from bbgrap.compiler.passes.fuse import fuse_segments
from bbgrap.compiler.passes.transfers import drop_empty_messages
from bbgrap.compiler.program_writer import DeviceWriter, ProgramWriter
from bbgrap.graph import Node
from bbgrap.graph.state import kept_region, uncut
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.program.steps import Apply, Assemble, BufferId, Combine, Compute, DeviceProgram, Piece, Program, reads_of
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.tdl import LocalOp

PartNumber = int | None
"""The number of a partial result."""


def build_direct(plan: Plan, pieces: Pieces) -> Program:
    """Return the fused program of a plan, to be timed."""
    program = _Builder(plan, pieces).run()
    if any(map(_has_unused, program.devices)):
        program = drop_empty_messages(drop_unused(program))
    return fuse_segments(program)


def _has_unused(device: DeviceProgram) -> bool:
    """Tell whether a device computes what nothing reads: a last row that a window leaves out, or what only other tiles are read of."""
    read = set(device.results).union(*map(reads_of, device.steps))
    return any(read.isdisjoint(op.writes) for op in device.ops if isinstance(op, Apply))


class _Device(DeviceWriter):
    """A device, and what it holds of every value, by part."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.held: dict[tuple[str, PartNumber], list[tuple[BufferId, ShapeMap]]] = {}
        self.summed: dict[str, list[tuple[BufferId, ShapeMap]]] = {}
        """What partial results were added up to, by value."""
        self.feeds: list[BufferId] = []
        """What it holds of state before a request."""


class _Builder(ProgramWriter[_Device]):
    def __init__(self, plan: Plan, pieces: Pieces) -> None:
        super().__init__(plan, pieces.descriptions, _Device)
        self.pieces = pieces
        self.holders: dict[tuple[str, PartNumber], list[tuple[int, BufferId, ShapeMap]]] = {}
        self.parts: dict[str, int] = {}

    def run(self) -> Program:
        feeds = tuple(self._feed(name) for name in self.graph.given)
        joined = joined_by_host(self.plan, self.descriptions)
        for node in self.graph.nodes:
            if node.name in joined:
                for name in node.inputs:
                    self._result(name)
                self._compute(node, Tile(self.host, whole_output(self.graph, node)))
                continue
            for tile in self.plan.tiles[node.name]:
                self._compute(node, tile)
        results = tuple(self._result(name) for name in self.graph.answered)
        *agents, host = self.devices
        ends = [self._keep(agent) for agent in agents]
        programs = (agent.finish(tuple(agent.feeds), kept) for agent, kept in zip(agents, ends, strict=True))
        return Program(self.graph, (*programs, host.finish(feeds, results)))

    def _recall(self, device: int, value: str, region: ShapeMap) -> None:
        """Let a device hold a region of state before the request."""
        here = self.devices[device]
        held = here.held.setdefault((value, None), [])
        for rest in subtract_all(uncut(self.graph, value, region), [own for _, own in held]):
            buffer = here.buffer(value, rest)
            here.feeds.append(buffer)
            held.append((buffer, rest))

    def _keep(self, here: _Device) -> tuple[BufferId, ...]:
        """Let a device end with what it holds of state in the next request."""
        states = [here.buffers[feed] for feed in here.feeds]
        kept = [self._fetch(here.device, self.graph.state[s.value], kept_region(self.graph, s.value, s.region)) for s in states]
        return tuple(buffer for buffer in kept if buffer is not None)

    def _feed(self, value: str) -> BufferId:
        buffer = self.devices[self.host].buffer(value, self.whole(value))
        self._hold(self.host, value, None, buffer, self.whole(value))
        return buffer

    def _hold(self, device: int, value: str, part: PartNumber, buffer: BufferId, region: ShapeMap) -> None:
        self.devices[device].held.setdefault((value, part), []).append((buffer, region))
        self.holders.setdefault((value, part), []).append((device, buffer, region))

    def _compute(self, node: Node, tile: Tile) -> None:
        found, regions = self.pieces.piece(node, tile)
        needed = [*zip(node.inputs, found, strict=True), *((name, self.whole(name)) for name in node.captured)]
        device = self.devices[tile.device]
        reads = tuple(self._fetch(tile.device, name, region) for name, region in needed)
        part = self.part_number(node, tile)
        names = [name for name in node.outputs if name]
        if part is not None:
            self.parts |= dict.fromkeys(names, len({other.part for other in self.plan.tiles[node.name]}))
        writes = tuple(device.buffer(name, region, part) for name, region in zip(names, regions, strict=True))
        work = self.pieces.work(node, tile)
        device.steps.append(Compute((Apply(node.name, LocalOp(found, ()), reads, writes, work),)))
        for name, buffer, region in zip(names, writes, regions, strict=True):
            self._hold(tile.device, name, part, buffer, region)

    def _fetch(self, device: int, value: str, region: ShapeMap | None) -> BufferId | None:
        """Return a buffer of the device that holds just this region; None for what is not read from a buffer."""
        if not value or region is None or value in self.graph.weights or region.is_empty:
            return None
        if value in self.graph.state:
            self._recall(device, value, region)
        if value not in self.parts:
            return self._gather(device, value, None, region)
        here = self.devices[device]
        for buffer, held in here.summed.get(value, ()):
            if held.issuperset(region):
                return buffer if held == region else self._assemble(device, value, None, region, [Piece(buffer, region)])
        inputs = tuple(self._gather(device, value, part, region) for part in range(self.parts[value]))
        total = here.buffer(value, region)
        here.steps.append(Compute((Combine(total, self.reducer(value), inputs),)))
        here.summed.setdefault(value, []).append((total, region))
        return total

    def _gather(self, device: int, value: str, part: PartNumber, region: ShapeMap) -> BufferId:
        here = self.devices[device].held.setdefault((value, part), [])
        for buffer, held in here:
            if held == region:
                return buffer
        for buffer, held in here:
            if held.issuperset(region):
                return self._assemble(device, value, part, region, [Piece(buffer, region)])
        missing = subtract_all(region, (own for _, own in here if not own.is_apart_from(region)))
        for source, buffer, held in self.holders.get((value, part), ()):
            if not missing:
                break
            if source == device or all(held.is_apart_from(rest) for rest in missing):
                continue
            wanted = [common for rest in missing if not (common := rest.intersect(held)).is_empty]
            here += [(self.send(source, Piece(buffer, common), device), common) for common in wanted]
            if wanted:
                missing = tuple(left for rest in missing for left in rest.subtract(held))
        return self._joined(device, value, part, region, here)

    def _joined(self, device: int, value: str, part: PartNumber, region: ShapeMap, here: list[tuple[BufferId, ShapeMap]]) -> BufferId:
        pieces: list[Piece] = []
        left: tuple[ShapeMap, ...] = (region,)
        for buffer, held in here:
            if held == region:
                return buffer
            # Of what is still left: what was found before may be as many pieces as there are devices.
            if any(not held.is_apart_from(rest) for rest in left):
                pieces += [Piece(buffer, common) for rest in left if not (common := held.intersect(rest)).is_empty]
                left = tuple(outside for rest in left for outside in rest.subtract(held))
        return self._assemble(device, value, part, region, pieces)

    def _assemble(self, device: int, value: str, part: PartNumber, region: ShapeMap, pieces: list[Piece]) -> BufferId:
        here = self.devices[device]
        made = here.buffer(value, region, part)
        here.steps.append(Compute((Assemble(made, tuple(pieces)),)))
        here.held.setdefault((value, part), []).append((made, region))
        return made

    def _result(self, value: str) -> BufferId:
        whole = self.whole(value)
        if value not in self.parts:
            return self._gather(self.host, value, None, whole) if not whole.is_empty else self._empty(value)
        adder = self.holders[value, 0][0][0]
        known = self.devices[self.host].summed.get(value)
        if known is not None:
            return known[0][0]
        summed = self._fetch(adder, value, whole)
        assert summed is not None, "a value with partial results is not empty"
        received = self.send(adder, Piece(summed, whole), self.host)
        self.devices[self.host].summed[value] = [(received, whole)]
        return received

    def _empty(self, value: str) -> BufferId:
        return self._assemble(self.host, value, None, self.whole(value), [])
