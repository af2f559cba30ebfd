"""Training steps: graphs whose state is the weights. Forward, gradients and update, each divided as its layer is.

    forward    y = x W        divided along the batch, along what W reads (partial sums), or along what it makes
    gradient   dx = dy W      along the same cut of W
               dW = x dy      along the batch: partial sums over it; else along the cut of W
    update     W -= r dW      where dW is whole: along the cut of W, or, after sums over the batch, every device some of it

So the sums of weight gradients are scattered, every device updates its share, and what it needs of the new weights is gathered by whoever
reads them in the next request: 2 (k - 1) A(W) over k devices, HyPar's table 1.

A parameter is a state whose next value does not have the batch any more: it was summed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import surviving_axis
from bbgrap.planners.layers import Layer, followed, following, layer_of
from bbgrap.planners.placements import ON_ONE, REPLICATE, Levels, Partial, Placement, Placements, Shard, sums_of, tiles_of
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.tdl import Description, Descriptions


@dataclass(frozen=True, slots=True)
class _Cut:
    """What one level does with a parameter: divide an axis, of itself, or of its update alone, since the batch is divided there."""

    axis: int
    by_batch: bool


Cuts = tuple[_Cut | None, ...]


@dataclass(frozen=True)
class TrainingStructure:
    """What planners have to know of a training step."""

    graph: Graph
    descriptions: Descriptions
    parameters: frozenset[str]
    """Inputs."""
    batches: Mapping[str, int | None]
    """Along which axis every value has the batch."""
    layers: tuple[Layer, ...]
    """Forward only, each with weights of its own, in topological order."""
    weights: Mapping[str, str]
    """Of layers, by the name of their node: the parameter."""

    def tiles(self, levels: Levels, placed: Mapping[str, Placements]) -> dict[str, tuple[Tile, ...]]:
        """Return the tiles of all nodes, given the placements of the layers by the names of their nodes."""
        return _Placer(self, levels, placed).run()


def training_structure(graph: Graph, descriptions: Descriptions) -> TrainingStructure | None:
    """Return what there is to know of a training step; None for a graph that is none."""
    if not graph.state:
        return None
    start: dict[str, int] = dict.fromkeys(graph.given, 0)
    batches = followed(graph, descriptions, start)
    parameters = frozenset(name for name, output in graph.state.items() if batches.get(output) is None)
    layers, weights = [], {}
    known = set[str]()
    for node in graph.nodes:
        description = descriptions[node.name]
        own = [name for name in node.inputs if name in parameters and name not in known]
        if description is None or not own or batches.get(node.first_output) is None:
            continue
        layer = layer_of(graph, node, description, batches[node.first_output], frozenset(own))
        if layer is not None:
            layers.append(layer)
            weights[node.name] = own[0]
            known.add(own[0])
    return TrainingStructure(graph, descriptions, parameters, batches, tuple(layers), weights) if layers else None


def _subscripts(description: Description, operand: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (axis, names of the indices it depends on) of an operand."""
    for access, of in zip(description.accesses, description.indices_of_accesses, strict=True):
        if access.operand == operand:
            yield from enumerate(of)


class _Placer:
    """Places every node of a training step, level by level."""

    def __init__(self, step: TrainingStructure, levels: Levels, placed: Mapping[str, Placements]) -> None:
        self.step, self.graph, self.levels, self.placed = step, step.graph, levels, placed
        self.none: Cuts = (None,) * len(levels.ways)
        self.parameter_cuts: dict[str, Cuts] = {}
        """Of parameters with a layer, and of what is made of one alone."""
        self.wanted: dict[str, Cuts] = {}
        """Of values on the way from a gradient to the next value of a parameter."""
        self.handed_on: dict[str, Placements] = {}
        self.then = {layer.node.name: (layer, after) for layer, after in pairwise(step.layers)}
        self.data = {step.weights[layer.node.name]: layer.data for layer in step.layers}
        """What the layer of a parameter reads."""

    def run(self) -> dict[str, tuple[Tile, ...]]:
        for layer in self.step.layers:
            self._cut_parameter(layer)
        self._want_updates()
        for name in self.graph.given:
            if self.graph.types[name].shape:
                self.handed_on[name] = (Shard(0),) * len(self.levels.ways)
        tiles: dict[str, tuple[Tile, ...]] = {}
        for node in self.graph.nodes:
            description = self.step.descriptions[node.name]
            if description is None:
                tiles[node.name] = (Tile(self.levels.root, whole_output(self.graph, node)),)
                continue
            placements = self._placements(node, description)
            tiles[node.name] = tiles_of(self.levels, description, placements)
            self.handed_on |= dict.fromkeys(filter(None, node.outputs), self._handed_on(node, description, placements))
        return tiles

    def _handed_on(self, node: Node, description: Description, placements: Placements) -> Placements:
        """Return how what a node makes is divided for those that follow it; sums are added up as those are divided."""
        if not any(isinstance(placement, Partial) for placement in placements):
            return placements
        rest = Shard(_longest(description.shape)) if description.shape else ON_ONE
        wanted: Placements = (rest,) * len(placements)
        if node.name in self.then:
            layer, after = self.then[node.name]
            wanted = tuple(_read_by(layer, after, placement) for placement in self.placed[after.node.name])
        else:  # the gradient of what a layer reads is divided like that
            read = next((self.data[name] for name in node.inputs if name in self.data), "")
            if read in self.handed_on and self.graph.types[read].shape == description.shape:
                wanted = self.handed_on[read]
        pairs = zip(placements, wanted, strict=True)
        return tuple((rest if wish is ON_ONE else wish) if isinstance(placement, Partial) else placement for placement, wish in pairs)

    # --- what is wanted of parameters -------------------------------------------------------------------------------------------

    def _cut_parameter(self, layer: Layer) -> None:
        """Derive from how a layer is divided how its parameter is."""
        node, parameter = layer.node, self.step.weights[layer.node.name]
        description = self.step.descriptions[node.name]
        assert description is not None, "a layer is described"
        axis_of = {name: axis for axis, names in _subscripts(description, node.inputs.index(parameter)) for name in names}
        cuts: list[_Cut | None] = []
        for placement in self.placed[node.name]:
            match placement:
                case Shard(axis) if axis != layer.batch and (name := description.outputs[axis].name) in axis_of:
                    cuts.append(_Cut(axis_of[name], by_batch=False))
                case Partial(index) if index in axis_of:
                    cuts.append(_Cut(axis_of[index], by_batch=False))
                case Shard(axis) if axis == layer.batch:
                    cuts.append(_Cut(_longest(self.graph.types[parameter].shape or ()), by_batch=True))
                case _:
                    cuts.append(None)
        self.parameter_cuts[parameter] = tuple(cuts)

    def _want_updates(self) -> None:
        """Walk back from the next values of all parameters to the sums over the batch."""
        by_shape = {self.graph.types[name].shape: cuts for name, cuts in self.parameter_cuts.items()}
        for name, output in self.graph.state.items():
            if name in self.step.parameters:
                self.wanted[output] = self.parameter_cuts.get(name) or self._like(name, by_shape)
        for node in reversed(self.graph.nodes):
            description, cuts = self.step.descriptions[node.name], self.wanted.get(node.first_output)
            if description is None or cuts is None or self._has_batch(node.first_output):
                continue
            for number, value in enumerate(node.inputs):
                if value in self.graph.producers and not self._has_batch(value) and value not in self.wanted:
                    self.wanted[value] = tuple(None if cut is None else self._through(description, number, cut) for cut in cuts)

    def _like(self, name: str, by_shape: Mapping[tuple[int, ...] | None, Cuts]) -> Cuts:
        """Return the cuts of a state without a layer: a momentum's are its weights', a bias is updated in shares."""
        for parameter, cuts in self.parameter_cuts.items():
            if name.startswith(parameter) and self.graph.types[parameter].shape == self.graph.types[name].shape:
                return cuts
        shape = self.graph.types[name].shape
        return by_shape.get(shape) or ((_Cut(_longest(shape), by_batch=True),) * len(self.none) if shape else self.none)

    def _through(self, description: Description, operand: int, cut: _Cut) -> _Cut | None:
        name = description.outputs[cut.axis].name
        return next((_Cut(axis, cut.by_batch) for axis, names in _subscripts(description, operand) if name in names), None)

    def _has_batch(self, value: str) -> bool:
        return self.step.batches.get(value) is not None

    # --- nodes ------------------------------------------------------------------------------------------------------------------

    def _placements(self, node: Node, description: Description) -> Placements:
        if node.name in self.placed:
            return self.placed[node.name]
        output = node.first_output
        if (cuts := self.wanted.get(output)) is not None and not self._has_batch(output):
            return tuple(self._update(node, description, cut) for cut in cuts)
        for number, value in enumerate(node.inputs):
            if value in self.parameter_cuts and self._has_batch(output):
                return self._gradient(node, description, number, self.parameter_cuts[value])
            if value in self.parameter_cuts:
                return self._derived(node, description, number, self.parameter_cuts[value])
        return following(self.levels, self.graph, node, self.handed_on, partial(self._survives, node, description))

    def _derived(self, node: Node, description: Description, operand: int, cuts: Cuts) -> Placements:
        """Place what is made of a parameter alone, as filters with zeros around them are: where the parameter is."""
        axes = [None if cut is None else surviving_axis(description, operand, cut.axis) for cut in cuts]
        cut_as = zip(cuts, axes, strict=True)
        inside = tuple(cut if cut is None or cut.by_batch else None if axis is None else _Cut(axis, by_batch=False) for cut, axis in cut_as)
        self.parameter_cuts[node.first_output] = inside
        return tuple(REPLICATE if cut is None or cut.by_batch else Shard(cut.axis) for cut in inside)

    def _update(self, node: Node, description: Description, cut: _Cut | None) -> Placement:
        """Place a node between the sum over the batch and the next value of a parameter."""
        if cut is None:
            return ON_ONE
        if cut.by_batch and (over := self._batch_of(node, description)) is not None:
            return over
        return Shard(cut.axis) if cut.axis in description.splittable_axes else ON_ONE

    def _batch_of(self, node: Node, description: Description) -> Partial | None:
        """Return the sum over the batch that a node is, if it is one."""
        for number, value in enumerate(node.inputs):
            axis = self.step.batches.get(value)
            if axis is not None and (over := _summed(self.graph, node, description, number, axis)) is not None:
                return over
        return None

    def _gradient(self, node: Node, description: Description, operand: int, cuts: Cuts) -> Placements:
        """Place a further reader of a parameter as the parameter is cut."""
        outputs = {index.name: axis for axis, index in enumerate(description.outputs)}
        batch = self.step.batches[node.first_output]
        names = dict(_subscripts(description, operand))
        found: list[Placement] = []
        for cut in cuts:
            if cut is not None and cut.by_batch and batch in description.splittable_axes and batch is not None:
                found.append(Shard(batch))
                continue
            inside = () if cut is None else names.get(cut.axis, ())
            axis = next((outputs[name] for name in inside if outputs.get(name) in description.splittable_axes), None)
            over = None if cut is None else _summed(self.graph, node, description, operand, cut.axis)
            found.append(Shard(axis) if axis is not None else over or ON_ONE)
        return tuple(found)

    def _survives(self, node: Node, description: Description, operand: int, placement: Placement) -> Placement:
        if not isinstance(placement, Shard):
            return placement
        axis = surviving_axis(description, operand, placement.axis)
        if axis is not None:
            return ON_ONE if description.shape[axis] < 2 else Shard(axis)
        return _summed(self.graph, node, description, operand, placement.axis) or ON_ONE


def _summed(graph: Graph, node: Node, description: Description, operand: int, axis: int) -> Partial | None:
    """Return the sum that a cut of an operand's axis becomes, if the node can be divided along it."""
    names = next((names for at, names in _subscripts(description, operand) if at == axis), ())
    return next((over for over in sums_of(graph, node, description) if over.index in names and over.units > 1), None)


def _read_by(layer: Layer, after: Layer, placement: Placement) -> Placement:
    """Return how what a layer makes is divided best for the next layer, given the latter's placement; ON_ONE: it does not matter."""
    match placement:
        case Shard(axis) if axis == after.batch and layer.batch is not None:
            return Shard(layer.batch)
        case Partial() if layer.features is not None:
            return Shard(layer.features)
        case _:
            return ON_ONE


def _longest(shape: tuple[int, ...]) -> int:
    return max(range(len(shape)), key=lambda axis: shape[axis], default=0)
