"""Tensor parallelism (Shoeybi et al., Megatron-LM, arXiv:1909.08053), found from the descriptions: every second product is summed up.

    x ──► opens: by features ──► what follows is cut alike ──► closes: by what it sums over ──► one sum, whole on every node
          q, k, v                heads, their cache, scores    the projection of the heads
          first of a MLP         its activation                second of a MLP

A product with weights that reads what all have *opens* a division, cut along its features. The cut carries on as long as an axis
survives; where divisions meet along one axis they are one. What sums over the cut axis *closes* the division with partial results. A
product that may not be summed in parts, since what follows rounds, opens another division: all get what it reads. So they get what only
scales or shifts something larger that is whole, as what is made of the time does tokens in diffusion transformers. Anything else is
computed whole by every node that needs it, but for what is made of state alone, as a cache in another order: of that, as much as the
node's part of a division reads. So only sums travel, or what stands for them, each once from every node to every other.

The cut of a division is counted in units that all of it has, e.g. heads, and followed back to front: a node computes what its readers in
the division read. So a product of queries, keys and values in one is cut in three ranges. Tables of words are divided by words if they
are heavy, or if the product that makes the logits, which is, shares them. Nothing is cut along an axis whose size changes between requests.

Where the largest elements of blocks are taken (`bbgrap.graph.top_k`), a block is on one node, as its share says, and the division is cut at
borders of blocks. Only candidates travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace
from math import prod

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.graph.divided_experts import CHOSEN_EXPERTS
from bbgrap.planners.bbgrap import HEAVY_WEIGHT_BYTES, surviving_axis
from bbgrap.planners.layers import layer_of, operands_by_size
from bbgrap.planners.made_of_weights import values_of_weights
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import reduction_of
from bbgrap.planners.placements import Partial, sums_of
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.shares import split_by_shares, strongest
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap, covers
from bbgrap.tdl import Description, Descriptions, Part, can_make, granularity, input_regions, is_elementwise
from bbgrap.tdl.language import All, Index, indices_in
from bbgrap.tdl.work import LOOKUPS


@dataclass(frozen=True, slots=True)
class _Inside:
    """Cut along an output axis, with a division."""

    division: int
    axis: int


@dataclass(frozen=True, slots=True)
class _Closing:
    """Summed up over an index along which a division is cut."""

    division: int
    over: Partial


@dataclass(frozen=True, slots=True)
class _Block:
    """A slice along the cut axis of which the largest elements are taken, or what is computed of it: it is on one node."""

    division: int
    number: int
    """Which one of its division it is."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks behind each other: every node has its own, so that they travel as one."""

    axis: int
    blocks: tuple[_Block, ...]
    """In the order of the operands."""


_Role = _Inside | _Closing | _Block | _Blocks
"""What a node does in its division; those in none are computed whole."""


def plan_tensor_parallel(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide every second product by its features, the others by what they sum over."""
    return _TensorParallel(graph, cluster, descriptions).tiles()


class _TensorParallel:
    """Gives every node a role, front to back, then tiles, back to front."""

    def __init__(self, graph: Graph, cluster: Cluster, descriptions: Descriptions) -> None:
        self.graph, self.descriptions = graph, descriptions
        self.made = values_of_weights(graph, descriptions)
        self.shares = cluster.shares
        self.root = strongest(self.shares)
        self.roles: dict[str, _Role] = {}
        """By name of node."""
        self.joined: list[int] = []
        """Per division the one that it is part of."""
        self.blocks: Counter[int] = Counter()
        """How many a division has."""
        for node in graph.nodes:
            if (description := descriptions[node.name]) is not None and (role := self._role(node, description)) is not None:
                self.roles[node.name] = role
        self.of_state = self._of_state()
        self.units = self._units()
        self.found: dict[str, tuple[Tile, ...]] = {}
        self.needs: dict[tuple[str, int], IntervalSet] = {}
        """What the readers in a division read of a value on a device, along its cut axis."""
        self.reads: dict[tuple[str, int], ShapeMap] = {}
        """What all readers read of a value that is made of state alone, on a device."""

    # --- roles --------------------------------------------------------------------------------------------------------------------

    def _root(self, number: int) -> int:
        while self.joined[number] != number:
            number = self.joined[number]
        return number

    def _new(self) -> int:
        self.joined.append(len(self.joined))
        return len(self.joined) - 1

    def _cut_operands(self, node: Node) -> list[tuple[int, _Inside]]:
        """Return the operands that are cut, the largest first."""
        found = []
        for number, name in operands_by_size(self.graph, node):
            role = self._cut_of(name)
            if role is not None:
                found.append((number, role))
        return found

    def _cut_of(self, name: str) -> _Inside | None:
        """Return how a value is cut; further outputs are along the axis that goes with that of the first one, as caches by heads."""
        producer = self.graph.producers.get(name)
        role = None if producer is None else self.roles.get(producer.name)
        if producer is None or not isinstance(role, _Inside) or name == producer.first_output:
            return role if isinstance(role, _Inside) else None
        description = self.descriptions[producer.name]
        assert description is not None, "what has a role is described"
        cut, places = description.outputs[role.axis].name, description.extra[producer.outputs.index(name) - 1]
        axes = [axis for axis, place in enumerate(places) if not isinstance(place, All) and cut in {i.name for i in indices_in(place)}]
        return replace(role, axis=axes[0]) if len(axes) == 1 else None

    def _role(self, node: Node, description: Description) -> _Role | None:
        operands = self._cut_operands(node)
        if operands and self._meets_whole(node, description, operands):
            return None
        if not operands:
            return self._within_blocks(node, description) or self._opened(node, description)
        if self._is_block(node, operands[0][1].axis):
            division = self._root(operands[0][1].division)
            self.blocks[division] += 1
            return _Block(division, self.blocks[division] - 1)
        carried = [(surviving_axis(description, number, role.axis), role) for number, role in operands]
        axis = next((axis for axis, _ in carried if axis is not None and self._may_cut(node, description, axis)), None)
        if axis is None:
            return self._closed(node, description, operands) or self._opened(node, description)
        divisions = [self._root(role.division) for here, role in carried if here == axis]
        for other in divisions[1:]:
            self.joined[other] = divisions[0]
        return _Inside(divisions[0], axis)

    def _meets_whole(self, node: Node, description: Description, operands: list[tuple[int, _Inside]]) -> bool:
        """Whether all that is cut scales or shifts something larger that all compute whole, as every feature of all tokens."""
        cut = [node.inputs[number] for number, _ in operands]
        size = max(prod(self.graph.types[name].shape or ()) for name in cut)
        larger = [name for name in node.inputs if name in self.graph.producers and prod(self.graph.types[name].shape or ()) > size]
        if not larger or not is_elementwise(description):
            return False
        return not self.made.union(cut, self._of_state()).issuperset(larger)

    def _is_block(self, node: Node, axis: int) -> bool:
        readers = self.graph.consumers.get(node.first_output, ()) if node.op == "Slice" else ()
        found = [(reader.op, self.descriptions[reader.name]) for reader in readers]
        return bool(found) and all(op == "TopK" and of is not None and surviving_axis(of, 0, axis) is None for op, of in found)

    def _within_blocks(self, node: Node, description: Description) -> _Block | _Blocks | None:
        roles = [self.roles.get(self.graph.producers[name].name) for name in node.inputs if name in self.graph.producers]
        blocks = [role for role in roles if isinstance(role, _Block)]
        if not blocks or len(blocks) < len(roles):
            return None
        if len(set(blocks)) == 1:
            return blocks[0]
        axis = node.attributes.get("axis") if node.op == "Concat" else None
        return _Blocks(axis % len(description.shape), tuple(blocks)) if isinstance(axis, int) else None

    def _may_cut(self, node: Node, description: Description, axis: int) -> bool:
        moving = self.graph.moving.get(node.first_output, ())
        return axis in description.splittable_axes and description.shape[axis] > 1 and axis not in moving

    def _opened(self, node: Node, description: Description) -> _Role | None:
        layer = layer_of(self.graph, node, description, None, self.made)
        if layer is None:
            return None
        if node.op in LOOKUPS:
            table = node.inputs[0]
            is_worth_it = self.graph.types[table].nbytes >= HEAVY_WEIGHT_BYTES or len(self.graph.consumers[table]) > 1
            return _Closing(self._new(), layer.inner) if is_worth_it and layer.inner is not None else None
        if node.op == CHOSEN_EXPERTS:
            return _Closing(self._new(), layer.inner) if layer.inner is not None else None
        if layer.features is None or not self._may_cut(node, description, layer.features):
            return None
        return _Inside(self._new(), layer.features)

    def _closed(self, node: Node, description: Description, operands: list[tuple[int, _Inside]]) -> _Closing | None:
        sums = {over.index: over for over in sums_of(self.graph, node, description) if over.units > 1}
        for number, role in operands:
            for access in description.accesses:
                index = access.subscripts[role.axis] if access.operand == number else None
                if isinstance(index, Index) and index.name in sums:
                    return _Closing(role.division, sums[index.name])
        return None

    def _of_state(self) -> Set[str]:
        """Return state, and what is made of it by nodes in no division before one in a division reads it, as a cache in another order."""
        found = set(self.graph.state)
        for node in self.graph.nodes:
            makers = [self.graph.producers[name] for name in node.reads if name in self.graph.producers]
            if not found.isdisjoint(node.reads) and not any(maker.name in self.roles for maker in (node, *makers)):
                found.add(node.first_output)
        return found

    def _units(self) -> dict[int, int]:
        """Return into how many equal units every division is divided: the most that one of its axes has without a cut inside a unit."""
        steps: dict[int, set[tuple[int, int]]] = {}
        for name, role in self.roles.items():
            if isinstance(role, _Inside | _Closing):
                steps.setdefault(self._root(role.division), set()).add(self._extent_and_step(name, role))
        return {division: _finest(found) for division, found in steps.items()}

    def _extent_and_step(self, name: str, role: _Inside | _Closing) -> tuple[int, int]:
        """Return what is cut of a node, and at multiples of what cuts are free of waste."""
        description = self.descriptions[name]
        assert description is not None, "what has a role is described"
        if isinstance(role, _Closing):
            return role.over.extent, role.over.unit
        return description.shape[role.axis], granularity(description, role.axis)

    # --- tiles --------------------------------------------------------------------------------------------------------------------

    def tiles(self) -> dict[str, tuple[Tile, ...]]:
        """Return the tiles of all nodes."""
        for node in reversed(self.graph.nodes):
            self.found[node.name] = self._tiles(node)
            self._note_needs(node, self.found[node.name])
            self._note_reads(node, self.found[node.name])
        return self.found

    def _tiles(self, node: Node) -> tuple[Tile, ...]:
        whole, description = whole_output(self.graph, node), self.descriptions[node.name]
        if description is None:
            return (Tile(self.root, whole),)
        match self.roles.get(node.name):
            case _Inside() as role:
                return self._needed(node, description, role) or self._shared(description, role)
            case _Closing() as role:
                divided = self._as_shared(node, role) or self._pieces(role.division, role.over.extent, role.over.unit)
                pieces = [(d, piece) for d, piece in enumerate(divided) if len(piece)]
                if len(pieces) == 1:
                    return (Tile(pieces[0][0], whole),)
                return tuple(Tile(device, whole, Part(role.over.index, piece)) for device, piece in pieces)
            case _Block() as block:
                return (Tile(self._device_of(block), whole),)
            case _Blocks() as joined:
                return self._joined(node, whole, joined)
            case None:
                return self._read(node, description) or tuple(Tile(device, whole) for device in range(len(self.shares)))

    def _pieces(self, division: int, extent: int, unit: int) -> tuple[Interval, ...]:
        units = self.units[self._root(division)]
        size = extent // units if extent % units == 0 else unit
        return split_by_shares(extent, self.shares, size if size % unit == 0 else unit)

    def _device_of(self, block: _Block) -> int:
        pieces = split_by_shares(self.blocks[block.division], self.shares)
        return next(device for device, piece in enumerate(pieces) if piece.start <= block.number < piece.stop)

    def _joined(self, node: Node, whole: ShapeMap, role: _Blocks) -> tuple[Tile, ...]:
        held: dict[int, IntervalSet] = {}
        start = 0
        for name, block in zip(node.inputs, role.blocks, strict=True):
            stop = start + self.graph.types[name].known_shape[role.axis]
            device = self._device_of(block)
            held[device] = held.get(device, IntervalSet(())).union(IntervalSet.of((start, stop)))
            start = stop
        return tuple(Tile(device, whole.replace(role.axis, ranges)) for device, ranges in held.items())

    def _as_shared(self, node: Node, role: _Closing) -> tuple[Interval, ...]:
        """Return how a product that shares a table of words is cut, so that nodes hold no word twice; nothing if there is none."""
        for reader in self.graph.consumers.get(node.inputs[0], ()) if node.op in LOOKUPS else ():
            other, description = self.roles.get(reader.name), self.descriptions[reader.name]
            if isinstance(other, _Inside) and description is not None and description.shape[other.axis] == role.over.extent:
                held = {tile.device: tile.region.axes[other.axis] for tile in self.found[reader.name]}
                pieces = tuple(held[d].hull if d in held else Interval(0, 0) for d in range(len(self.shares)))
                if sum(map(len, pieces)) == role.over.extent:
                    return pieces
        return ()

    def _shared(self, description: Description, role: _Inside) -> tuple[Tile, ...]:
        whole = ShapeMap.full(description.shape)
        pieces = self._pieces(role.division, description.shape[role.axis], granularity(description, role.axis))
        return tuple(Tile(d, whole.replace(role.axis, IntervalSet.of(piece))) for d, piece in enumerate(pieces) if len(piece))

    def _needed(self, node: Node, description: Description, role: _Inside) -> tuple[Tile, ...]:
        """Return what every device needs, if that is all of the output and can be made; else none."""
        whole, name = ShapeMap.full(description.shape), node.first_output
        needs = {device: self.needs.get((name, device)) for device in range(len(self.shares))}
        tiles = tuple(Tile(device, whole.replace(role.axis, need)) for device, need in needs.items() if need)
        if not covers((tile.region for tile in tiles), whole):
            return ()
        return tiles if all(can_make(self.graph, node, description, tile.region) for tile in tiles) else ()

    def _read(self, node: Node, description: Description) -> tuple[Tile, ...]:
        """Return what every device reads of what is made of state alone, if that is a part along one axis, and can be made; else none."""
        whole, name = ShapeMap.full(description.shape), node.first_output
        tiles = tuple(Tile(device, self.reads[name, device]) for device in range(len(self.shares)) if (name, device) in self.reads)
        cut = {axis for tile in tiles for axis, held in enumerate(tile.region.axes) if held != whole.axes[axis]}
        if len(node.outputs) > 1 or len(cut) != 1 or not self._may_cut(node, description, *cut) or name in self.graph.outputs:
            return ()
        is_made = covers((tile.region for tile in tiles), whole) and all(can_make(self.graph, node, description, t.region) for t in tiles)
        return tiles if is_made else ()

    def _note_reads(self, node: Node, tiles: tuple[Tile, ...]) -> None:
        description = self.descriptions[node.name]
        shapes = [self.graph.types[name].shape if name else None for name in node.inputs]
        for number, name in enumerate(node.inputs):
            for tile in tiles if name in self.of_state else ():
                whole = ShapeMap.full(self.graph.types[name].known_shape)
                read = whole if description is None else input_regions(description, tile.region, shapes, reduction_of(tile))[number]
                if read is not None:
                    before = self.reads.get((name, tile.device), read)
                    axes = (one.union(other) for one, other in zip(before.axes, read.axes, strict=True))
                    self.reads[name, tile.device] = ShapeMap(tuple(axes))

    def _note_needs(self, node: Node, tiles: tuple[Tile, ...]) -> None:
        role, description = self.roles.get(node.name), self.descriptions[node.name]
        if description is None or not isinstance(role, _Inside | _Closing | _Block):
            return
        shapes = [self.graph.types[name].shape if name else None for name in node.inputs]
        for number, cut in self._cut_operands(node):
            if self._root(cut.division) != self._root(role.division):
                continue
            for tile in tiles:
                read = input_regions(description, tile.region, shapes, reduction_of(tile))[number]
                if read is not None:
                    key = node.inputs[number], tile.device
                    self.needs[key] = self.needs.get(key, IntervalSet(())).union(read.axes[cut.axis])


def _finest(steps: Set[tuple[int, int]]) -> int:
    extents = {extent for extent, _ in steps}
    counts = extents | {extent // step for extent, step in steps if step <= extent}
    return max((n for n in counts if all(extent % n == 0 and extent // n % step == 0 for extent, step in steps)), default=min(extents))
