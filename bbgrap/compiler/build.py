"""The initial program (BBGraP, section 3.2): after every layer all pieces go to all devices, are concatenated, and are cropped again.

For every value that a node computes: each device that holds a tile sends it to all other devices; each device concatenates the whole
value; before each use the needed region is cropped out of it. The model's inputs are sent whole to every device that reads them, its
outputs go from the tiles to the host, which does the concatenations that only make outputs. State is nobody's input and output: every
agent holds all of it before a request, and gathers all of it for the next one. Nothing is pruned here: `passes` do that, and `simulate`
shows that they change no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bbgrap.compiler.host_concat import joined_by_host
from bbgrap.compiler.program_writer import DeviceWriter, ProgramWriter
from bbgrap.graph import Node
from bbgrap.graph.state import kept_region
from bbgrap.planners.pieces import reduction_of
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.program.steps import Apply, Assemble, BufferId, Combine, Compute, Piece, Program
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.tdl import Descriptions, localize, localize_part, output_regions
from bbgrap.tdl.work import WorkCounter


class _DeviceBuilder(DeviceWriter):
    """A device that holds whole values."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.full: dict[str, BufferId] = {}
        """The buffer that holds the whole of a value, once it is there."""


StateLayout = Sequence[Sequence[tuple[str, ShapeMap]]]
"""What every agent holds of state between requests: inputs and regions of them, along an axis that grows all of it."""


def build_initial(plan: Plan, descriptions: Descriptions, begins: StateLayout | None = None, *, open_sizes: bool = False) -> Program:
    """Return the initial program of a plan; with `open_sizes` the host puts nothing together whose size moves.

    With `begins` it is that of a sequence's first request: state comes with the request, and is left as another program will find it.
    """
    return _Builder(plan, descriptions, begins, open_sizes).run()


@dataclass(frozen=True, slots=True)
class _Held:
    """What a device holds of a value that was just computed; `part` numbers partial results."""

    device: int
    piece: Piece
    part: int | None


class _Builder(ProgramWriter[_DeviceBuilder]):
    def __init__(self, plan: Plan, descriptions: Descriptions, begins: StateLayout | None, open_sizes: bool) -> None:
        super().__init__(plan, descriptions, _DeviceBuilder)
        self.begins = begins
        self.counter = WorkCounter(plan.graph, descriptions)
        self.joined = frozenset[str]() if open_sizes else joined_by_host(plan, descriptions)
        joined = (plan.graph.node_by_name[name] for name in self.joined)
        self.returned = {*plan.graph.answered, *(name for node in joined for name in node.inputs)}
        """What the host gets of agents."""
        self.kept = set(plan.graph.state.values())

    def run(self) -> Program:
        host = self.devices[self.host]
        feeds = tuple(self._scatter(name) for name in (self.graph.given if self.begins is None else self.graph.inputs))
        states = [self._recall(device) for device in self.devices[: self.host]]
        for node in self.graph.nodes:
            if node.name in self.joined:
                host.full[node.outputs[0]] = self._compute(node, Tile(self.host, whole_output(self.graph, node)), None)[0]
            else:
                self._layer(node)
        answer = host.finish(feeds, tuple(host.full[name] for name in self.graph.answered))
        return Program(self.graph, (*(d.finish(s, self._keep(d)) for d, s in zip(self.devices, states, strict=False)), answer))

    def _recall(self, device: _DeviceBuilder) -> tuple[BufferId, ...]:
        """Let a device begin with all state."""
        if self.begins is not None:
            return ()
        for name in self.graph.state:
            device.full[name] = device.buffer(name, self.whole(name))
        return tuple(device.full[name] for name in self.graph.state)

    def _keep(self, device: _DeviceBuilder) -> tuple[BufferId, ...]:
        """Let a device end with what it needs of state in the next request."""
        if self.begins is None:
            return tuple(device.full[output] for output in self.graph.state.values())
        return tuple(self._cropped(device, self.graph.state[n], kept_region(self.graph, n, r)) for n, r in self.begins[device.device])

    def _scatter(self, value: str) -> BufferId:
        whole = self.whole(value)
        buffer = self.devices[self.host].buffer(value, whole)
        self.devices[self.host].full[value] = buffer
        readers = {tile.device for node in self.graph.consumers.get(value, ()) for tile in self.plan.tiles[node.name]}
        if self.graph.state.get(value) == value:
            readers |= {device for device, held in enumerate(self.begins or ()) if any(name == value for name, _ in held)}
        for device in sorted(readers):
            self.devices[device].full[value] = self.send(self.host, Piece(buffer, whole), device)
        return buffer

    def _layer(self, node: Node) -> None:
        outputs = [name for name in node.outputs if name]
        own: dict[str, list[_Held]] = {name: [] for name in outputs}
        for tile in self.plan.tiles[node.name]:
            part = self.part_number(node, tile)
            for name, buffer in zip(outputs, self._compute(node, tile, part), strict=True):
                own[name].append(_Held(tile.device, Piece(buffer, self.devices[tile.device].buffers[buffer].region), part))
        for name in outputs:
            if name in self.graph.consumers or name in self.kept:
                for device in range(self.host):
                    self._gather(name, own[name], device)
            if name in self.returned:
                self._return(name, own[name])

    def _return(self, value: str, holders: list[_Held]) -> None:
        """Bring a model output to the host; partial results are added up by an agent before, since the host computes nothing."""
        if holders[0].part is None:
            self._gather(value, holders, self.host)
            return
        adder = self.devices[holders[0].device]
        if value not in adder.full:
            self._gather(value, holders, adder.device)
        self.devices[self.host].full[value] = self.send(adder.device, Piece(adder.full[value], self.whole(value)), self.host)

    def _compute(self, node: Node, tile: Tile, part: int | None) -> list[BufferId]:
        builder = self.devices[tile.device]
        description = self.descriptions[node.name]
        if tile.part is not None and description is not None:
            local = localize_part(self.graph, node, description, tile.region, tile.part)
        else:
            local = localize(self.graph, node, description, tile.region)
        needed = [*zip(node.inputs, local.reads, strict=True), *((name, self.whole(name)) for name in node.captured)]
        reads = tuple(self._crop(builder, name, region) for name, region in needed)
        outputs = [name for name in node.outputs if name]
        regions = output_regions(description, tile.region, [self.graph.types[name].shape for name in outputs])
        writes = [builder.buffer(name, region, part) for name, region in zip(outputs, regions, strict=True)]
        work = self.counter.work(node, local.reads, regions, reduction_of(tile))
        builder.steps.append(Compute((Apply(node.name, local, reads, tuple(writes), work),)))
        return writes

    def _crop(self, builder: _DeviceBuilder, value: str, region: ShapeMap | None) -> BufferId | None:
        if not value or region is None or value in self.graph.weights or region.is_empty:
            return None
        return self._cropped(builder, value, region)

    def _cropped(self, builder: _DeviceBuilder, value: str, region: ShapeMap) -> BufferId:
        full = builder.full[value]
        if region == builder.buffers[full].region:
            return full
        cropped = builder.buffer(value, region)
        builder.steps.append(Compute((Assemble(cropped, (Piece(full, region),)),)))
        return cropped

    def _gather(self, value: str, holders: list[_Held], device: int) -> None:
        """Bring all pieces of a value to a device, concatenate them, and add up partial results."""
        here = self.devices[device]
        parts = sorted({held.part for held in holders if held.part is not None})
        if not parts:
            here.full[value] = self._concatenate(value, holders, here, None)
            return
        whole = [self._concatenate(value, [h for h in holders if h.part == part], here, part) for part in parts]
        here.full[value] = here.buffer(value, self.whole(value))
        here.steps.append(Compute((Combine(here.full[value], self.reducer(value), tuple(whole)),)))

    def _concatenate(self, value: str, holders: list[_Held], here: _DeviceBuilder, part: int | None) -> BufferId:
        """Return the buffer of a whole value, its own piece first where tiles overlap; an empty value has no pieces."""
        whole = self.whole(value)
        pieces = sorted(holders, key=lambda held: (held.device != here.device, held.device))
        local = [
            held.piece if held.device == here.device else Piece(self.send(held.device, held.piece, here.device), held.piece.region)
            for held in ([] if whole.is_empty else pieces)
        ]
        if len(local) == 1:
            return local[0].buffer
        target = here.buffer(value, whole, part)
        here.steps.append(Compute((Assemble(target, disjoint_pieces(whole, local)),)))
        return target


def disjoint_pieces(region: ShapeMap, sources: list[Piece]) -> tuple[Piece, ...]:
    """Cover a region from sources that may overlap: each takes what the ones before it left."""
    if sum(source.region.size for source in sources) == region.size:
        return tuple(sources)  # they cover the region, and have as many elements: so they are disjoint
    found: list[Piece] = []
    for source in sources:
        wanted = region.intersect(source.region)
        found += [Piece(source.buffer, rest) for rest in subtract_all(wanted, (p.region for p in found))]
    return tuple(found)
