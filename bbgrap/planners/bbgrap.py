"""The paper's planner: every layer is cut evenly (or by shares) over all nodes along one direction, and re-balanced layer by layer.

The direction is an axis of the model's input (rows, columns, both as a grid, batch) that is followed through the layers as long as it
survives: a convolution keeps rows, a reshape may rename them, a global pool ends them. Where a reshape joins them with an outer axis they
are several ranges of the new one, and everyone goes on with what it holds. For the direction `channels` it is the output
channels (features) of every layer with weights; for `inputs` its input channels, whose partial sums are added up by channels. What a
direction does not reach is computed
    (a) by output features over all nodes, if it is a product whose weights are heavy: reading them is then the work;
    (b) as partial results, each node's of its own rows, if it reduces the direction (a global pool) to less than half of what it reads;
    (c) by every node with a part of them for itself, if it is a few numbers that follow from partial results: nothing then comes back;
    (d) whole on one node otherwise, the one with the largest share.
Which regions the machines need of each other is not decided here: it follows from the tiles, back to front (`bbgrap.compiler.build`).
"""

from __future__ import annotations

from math import prod

from bbgrap.cluster import Cluster
from bbgrap.costmodel.messages import EXCHANGE_S, GENERIC
from bbgrap.errors import UsageError
from bbgrap.graph import Graph, Node
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.shares import grid_of, split_axis, split_by_shares, strongest
from bbgrap.shapemap import IntervalSet, ShapeMap, covers
from bbgrap.tdl import Description, Descriptions, Part, computable, describe, is_elementwise, part_unit, reducible
from bbgrap.tdl.language import All, Index, Remainder, indices_in

HEAVY_WEIGHT_BYTES = round(2 * 2 * EXCHANGE_S * GENERIC["matvec"].weight_bytes_per_s)
"""Weights from here on, 22 MB, are worth two exchanges, before and after, to read half of them."""

_FEATURE_AXIS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv", "DeformConv"), 1),
    **dict.fromkeys(("Gemm", "MatMul", "QGemm", "FusedGemm", "FusedMatMul", "TransposeMatMul"), -1),
    **dict.fromkeys(("MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "DynamicQuantizeMatMul"), -1),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), -1),
}
"""Operators with weights, and where their output channels or features are."""

WINDOWED = frozenset(
    {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv", "MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"}
    | {"NhwcMaxPool"}
)
"""Operators that read [N, C, ...]: a model that has one over three axes has inputs [N, C, L], else they are sequences."""

RENAMING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat"})
"""Operators that, like those that work element by element, can make a region with gaps of what is held with gaps."""

FEW_NUMBERS = 8
"""So many elements cost nothing to compute on every node: a range, scale and zero point of a whole tensor have two and one. Chosen."""

FEW_FACTORS = 4096
"""As many if they are factors of maps, as one for each channel is: some 6 µs, where an exchange takes 290. Chosen."""

Axes = tuple[int | None, ...]
"""Per direction (one, or two for a grid) the axis of a value that it runs along, or None."""


def feature_axis(node: Node, rank: int) -> int | None:
    """Return the axis of a layer's output channels or features; None for operators without, and for a product that is one number."""
    if node.op not in _FEATURE_AXIS or not rank:
        return None
    return -1 % rank if node.attributes.get("channels_last", 0) else _FEATURE_AXIS[node.op] % rank


def plan_bbgrap(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Plan every node of a graph over a cluster along `options.split`."""
    follower = _Follower(graph, cluster, options, descriptions)
    return {node.name: follower.tiles(node, descriptions[node.name]) for node in graph.nodes}


class _Follower:
    """Follows the directions through the graph, node by node in topological order."""

    def __init__(self, graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> None:
        self.graph = graph
        self.descriptions = descriptions
        self.split = options.split
        self.shares = cluster.shares
        self.root = strongest(self.shares)
        self.grid = options.grid or grid_of(len(self.shares))
        if self.grid[0] * self.grid[1] != len(self.shares):
            raise UsageError(f"grid: {self.grid[0]}x{self.grid[1]} tiles do not fit {len(self.shares)} nodes; one tile per node")
        self.made: dict[str, tuple[Tile, ...]] = {}
        """The tiles of every first output so far."""
        self.everyones: dict[str, tuple[int, ...]] = {}
        """The values that devices have computed each for itself, and which devices."""
        self.axes: dict[str, Axes] = {name: self._input_axes(name) for name in graph.inputs}

    def _input_axes(self, name: str) -> Axes:
        rank = len(self.graph.types[name].shape or ())
        rows = self._row_axis(name, rank)
        columns = rank - 1 if rank > 3 else None
        match self.split:
            case "rows":
                return (rows,)
            case "columns":
                return (columns if columns is not None else rows,)
            case "grid":
                return (rows, columns)
            case "channels" | "inputs":
                return (1 if rank > 2 else None,)
            case "batch":
                return (0 if rank else None,)

    def _row_axis(self, name: str, rank: int) -> int | None:
        """Return the axis of an input that `rows` means: [N, C, H, ...] the third, [N, C, L] too, of [batch, sequence, ...] the second."""
        if rank == 3 and (
            not any(map(self._is_windowed_sequence, self.graph.nodes)) or (self._slides(name, 1) and not self._slides(name, 2))
        ):
            return 1
        return 2 if rank > 2 else 1 if rank == 2 else None

    def _is_windowed_sequence(self, node: Node) -> bool:
        return node.op in WINDOWED and len(self.graph.types[node.inputs[0]].shape or ()) == 3

    def _slides(self, name: str, axis: int) -> bool:
        """Whether windows slide over an axis of an input, perhaps after it was transposed: vocoders take [batch, frames, bands]."""
        followed = {name: axis}
        for node in self.graph.nodes:
            number = next((number for number, value in enumerate(node.inputs) if value in followed), None)
            description = self.descriptions[node.name]
            if number is None or description is None:
                continue
            if number == 0 and followed[node.inputs[0]] == 2 and self._is_windowed_sequence(node):
                return True
            survives = surviving_axis(description, number, followed[node.inputs[number]])
            if survives is not None:
                followed[node.first_output] = survives
        return False

    def tiles(self, node: Node, description: Description | None) -> tuple[Tile, ...]:
        """Return the tiles of a node and remember them, and along which axes its output is cut."""
        made = self._tiles(node, description)
        self.made[node.first_output] = made
        return made

    def _tiles(self, node: Node, description: Description | None) -> tuple[Tile, ...]:
        whole = whole_output(self.graph, node)
        axes = self._axes_of(node, description)
        features = feature_axis(node, whole.rank)
        if self.split == "inputs" and description is not None and (parts := self._parts(node, description)):
            self.axes |= dict.fromkeys(filter(None, node.outputs), (features,))
            return tuple(Tile(device, whole, part) for device, part in parts)
        cuts = self._usable(description, axes)
        if not cuts and description is not None and self._is_heavy(node):
            axes = (features,)
            cuts = self._usable(description, axes)
        self.axes |= self._axes_of_outputs(node, description, axes if cuts else (None,) * len(axes))
        if not cuts or description is None:
            return (() if description is None else self._without_cuts(node, description)) or (Tile(self.root, whole),)
        regions = self._regions(description, whole, cuts)
        return tuple(Tile(device, region) for device, region in enumerate(regions) if not region.is_empty)

    def _parts(self, node: Node, description: Description) -> list[tuple[int, Part]]:
        """Return each device's range of a layer's input channels; empty if there are too few to divide."""
        index = next(iter(reducible(self.graph, node, description)), None) if node.op in _FEATURE_AXIS else None
        if index is None or index.extent <= part_unit(node):
            return []
        pieces = split_by_shares(index.extent, self.shares, part_unit(node))
        return [(device, Part(index.name, piece)) for device, piece in enumerate(pieces) if len(piece)]

    def _without_cuts(self, node: Node, description: Description) -> tuple[Tile, ...]:
        """Return tiles where no cut carries on: a few numbers for all, what everyone holds, or partial results; empty if there are none."""
        whole = whole_output(self.graph, node)
        if everyone := self._everyone(node, description):
            self.everyones |= dict.fromkeys(filter(None, node.outputs), everyone)
            return tuple(Tile(device, whole) for device in everyone)
        return self._held(node, description) or tuple(Tile(device, whole, part) for device, part in self._ended(node, description))

    def _everyone(self, node: Node, description: Description) -> tuple[int, ...]:
        """Return the devices that compute a node each for itself: all with a part of what it reads, if that is partial and it makes few."""
        read = [name for name in node.inputs if name and name not in self.graph.weights]
        holders = [self.everyones.get(name) or self._adders(name) for name in read]
        shapes = [self.graph.types[name].shape for name in node.outputs if name]
        if not all(holders) or any(shape is None for shape in shapes):
            return ()
        size = max(prod(shape or ()) for shape in shapes)
        if size > FEW_FACTORS or (size > FEW_NUMBERS and not (is_elementwise(description) and self._is_factor(node))):
            return ()
        return tuple(sorted(set().union(*holders)))

    def _is_factor(self, node: Node) -> bool:
        """Whether a node makes what meets larger tensors element by element, as a factor or a summand; perhaps through other such nodes."""
        seen, left = {node.name}, [node]
        while left:
            made = left.pop().first_output
            for reader in self.graph.consumers.get(made, ()):
                description = self.descriptions[reader.name]
                if reader.name in seen or description is None or not is_elementwise(description):
                    continue
                if prod(description.shape) > prod(self.graph.types[made].shape or ()):
                    return True
                seen.add(reader.name)
                left.append(reader)
        return False

    def _adders(self, name: str) -> tuple[int, ...]:
        """Return the devices whose partial results a value is the sum of; none if there are no such."""
        tiles = self.made.get(name, ())
        return tuple(tile.device for tile in tiles) if len(tiles) > 1 and all(tile.part is not None for tile in tiles) else ()

    def _held(self, node: Node, description: Description) -> tuple[Tile, ...]:
        """Return what every device can compute from what it has just made, if that is all of the output, once, in several ranges."""
        if node.op not in RENAMING and not is_elementwise(description):
            return ()
        shapes = [self.graph.types[name].shape if name else None for name in node.inputs]
        divided = [name for name in dict.fromkeys(node.inputs) if len(self.made.get(name, ())) > 1]
        if not divided or any(name in self.made and name not in divided for name in node.inputs):
            return ()
        tiles = []
        for device in sorted({tile.device for name in divided for tile in self.made[name]}):
            mine = {name: tile.region for name in divided for tile in self.made[name] if tile.device == device and tile.part is None}
            if len(mine) < len(divided):
                return ()
            region = computable(description, [mine.get(name) for name in node.inputs], shapes)
            if region is None or region.is_empty:
                return ()
            tiles.append(Tile(device, region))
        whole = whole_output(self.graph, node)
        once = sum(tile.region.size for tile in tiles) == whole.size and covers((tile.region for tile in tiles), whole)
        return tuple(tiles) if once else ()

    def _ended(self, node: Node, description: Description) -> list[tuple[int, Part]]:
        """Return every device's own range of the direction that a node reduces; empty if it does not, or the map is hardly larger."""
        indices = {index.name: index for index in reducible(self.graph, node, description) if part_unit(node) == 1}
        for access in description.accesses:
            value = node.inputs[access.operand]
            axes = [axis for axis in self.axes.get(value, ()) if axis is not None]
            index = access.subscripts[axes[0]] if len(axes) == 1 else None
            held = self.made.get(value, ())
            if not isinstance(index, Index) or index.name not in indices or any(tile.part is not None for tile in held):
                continue
            if prod(description.shape) * 2 * len(held) > prod(self.graph.types[value].shape or ()):
                continue
            pieces = sorted((tile.region.axes[axes[0]].hull, tile.device) for tile in held)
            bounds = [0, *(piece.stop for piece, _ in pieces)]
            if len(pieces) > 1 and bounds[-1] == index.extent and bounds[:-1] == [piece.start for piece, _ in pieces]:
                return [(device, Part(index.name, piece)) for piece, device in pieces]
        return []

    def _axes_of(self, node: Node, description: Description | None) -> Axes:
        if description is None:
            return (None,)
        features = feature_axis(node, len(description.outputs))
        if self.split in ("channels", "inputs") and features is not None:
            return (features,)
        best: Axes = (None,)
        size = 0
        for number, name in enumerate(node.inputs):
            carried = self.axes.get(name)
            if carried is None:
                continue
            here = tuple(None if axis is None else surviving_axis(description, number, axis) for axis in carried)
            weight = prod(self.graph.types[name].shape or ())
            if any(axis is not None for axis in here) and weight > size:
                best, size = here, weight
        return best

    def _axes_of_outputs(self, node: Node, description: Description | None, axes: Axes) -> dict[str, Axes]:
        """Return along which axes every output is cut: of a further output, the one that the first output's index subscripts."""
        names = [name for name in node.outputs if name]
        found = dict.fromkeys(names, axes)
        extra = () if description is None else description.extra
        for name, subscripts in zip(names[1:], extra, strict=False):
            indices = [None if axis is None or description is None else description.outputs[axis] for axis in axes]
            found[name] = tuple(subscripts.index(index) if index is not None and index in subscripts else None for index in indices)
        return found

    def _usable(self, description: Description | None, axes: Axes) -> tuple[int, ...]:
        if description is None:
            return ()
        allowed = description.splittable_axes
        return tuple(dict.fromkeys(a for a in axes if a is not None and a in allowed and description.shape[a] > 1))

    def _is_heavy(self, node: Node) -> bool:
        weights = (self.graph.weights[name] for name in node.inputs if name in self.graph.weights)
        return node.op in _FEATURE_AXIS and sum(w.type.nbytes for w in weights) >= HEAVY_WEIGHT_BYTES

    def _regions(self, description: Description, whole: ShapeMap, cuts: tuple[int, ...]) -> list[ShapeMap]:
        if len(cuts) == 1:
            return [whole.replace(cuts[0], IntervalSet.of(piece)) for piece in split_axis(description, cuts[0], self.shares)]
        rows, columns = self.grid
        bands = [self.shares[r * columns : (r + 1) * columns] for r in range(rows)]
        heights = split_axis(description, cuts[0], [sum(band) for band in bands])
        return [
            whole.replace(cuts[0], IntervalSet.of(height)).replace(cuts[1], IntervalSet.of(width))
            for height, band in zip(heights, bands, strict=True)
            for width in split_axis(description, cuts[1], band)
        ]


def surviving_axis(description: Description, operand: int, axis: int) -> int | None:
    """Return the output axis along which a cut of an operand's axis carries on in one range, or None where it does not."""
    names = [index.name for index in description.outputs]
    for access in description.accesses:
        if access.operand != operand or isinstance(subscript := access.subscripts[axis], All | Remainder):
            continue
        for index in indices_in(subscript):
            if index.name in names and names.index(index.name) in description.splittable_axes:
                return names.index(index.name)
    return None


def all_descriptions(graph: Graph) -> dict[str, Description | None]:
    """Return the description of every node, by node name; None for those that run whole."""
    return {node.name: describe(graph, node) for node in graph.nodes}
