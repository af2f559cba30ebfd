"""SoyBean: one-cut dynamic programming, level by level, over the forms of every layer and the tilings between them.

A training step is divided by all that its layers move, forward and backward (`training_chain`). The rest of this file is for inference. A
layer runs in one of the aligned forms of figure 6: by batch, by output channels, or by input channels with partial sums (`red`). The
tensor between two layers is tiled by batch (R), by channels (C) or copied (r); converting costs what equation 2 says (forward products
only, weights are where they are used). `benchmarks.papers` has the tables for any number of cuts, and the training objective.

Section 4.5 on other operators: an element-wise one has the tiling of its input and may not be copied (so R or C around it), any other is
divided by batch only. Deviations: at batch 1 the latter would leave them no tiling, so all machines compute them whole (r); any number
of machines, by its prime factors; shares instead of halves; a tile graph's areas are those of the stored tiles; the layers of a graph
with branches count as a chain in topological order; what cannot run in the form found (too few channels) falls back to the form with
most to divide, at worst to one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from operator import itemgetter

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.bbgrap import surviving_axis
from bbgrap.planners.layers import Layer, layers_of, operands_by_size
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, REPLICATE, Levels, Partial, Placement, Placements, Shard, tiles_of
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.training import training_structure
from bbgrap.planners.training_chain import place_by_chain
from bbgrap.tdl import Description, Descriptions, is_elementwise

ROWS, COLUMNS, COPY = TILINGS = "RCr"
FORMS = "bio"
"""Batch, input channels, output channels."""

_READS = {"b": ROWS, "i": COLUMNS, "o": COPY}
_MAKES = {"b": ROWS, "o": COLUMNS}
"""How a form has its input and its output tiled; what `i` makes are partial sums of all of it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one cut decides for a layer: the form it runs in and the tiling of its output."""

    form: str
    tiling: str


@dataclass(frozen=True, slots=True)
class Chained:
    """What one cut sees of a layer, in a chain of layers."""

    reads: float
    """Elements of its input."""
    makes: float
    """Elements of its output."""
    forms: str
    """Those in which every part has something to do."""
    tilings: str
    """Those that the operators after it allow for its output."""
    copied: bool
    """Whether an operator after it computes the whole everywhere, so that the next layer reads a copy whatever the tiling."""


def plan_soybean(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Cut every layer level by level (Algorithm 1)."""
    levels, step = Levels.of(cluster), training_structure(graph, descriptions)
    if step is not None:
        return step.tiles(levels, place_by_chain(step, levels))
    layers = layers_of(graph, descriptions)
    after = [_kinds_after(graph, layer, descriptions, {other.node.name for other in layers}) for layer in layers]
    placed: dict[str, Placements] = {layer.node.name: () for layer in layers}
    found: dict[str, str] = {layer.node.name: "" for layer in layers}
    for way in levels.ways:
        chain = [
            _chained(graph, layer, kinds, placed[layer.node.name], found[layer.node.name], way, levels)
            for layer, kinds in zip(layers, after, strict=True)
        ]
        for layer, choice in zip(layers, one_cut(chain, way), strict=True):
            placed[layer.node.name] += (_placement(layer, choice.form),)
            found[layer.node.name] += choice.tiling
    return _tiles(graph, descriptions, levels, placed, found)


def one_cut(chain: Sequence[Chained], way: int) -> list[Choice]:
    """Return the cheapest forms and output tilings of a chain of layers.

    The first layer's input is a model's: it comes from the coordinator as it is needed, and costs nothing.
    """
    best, free, cost = {tiling: (0.0, list[Choice]()) for tiling in TILINGS}, True, itemgetter(0)
    for layer in chain:
        reads, makes = 0.0 if free else layer.reads, layer.makes
        through = {
            form: min(((spent + converted(tiling, _READS[form], way) * reads, path) for tiling, (spent, path) in best.items()), key=cost)
            for form in layer.forms
        }
        best = {
            tiling: min(
                ((spent + stored(form, tiling, way) * makes, [*path, Choice(form, tiling)]) for form, (spent, path) in through.items()),
                key=cost,
            )
            for tiling in TILINGS
            if tiling in layer.tilings
        }
        free = layer.copied
    return min(best.values(), key=cost)[1]


def converted(before: str, after: str, way: int) -> float:
    """Return what so many parts fetch of a tensor to have it tiled otherwise, in areas of it (equation 2)."""
    if before in (COPY, after):
        return 0.0
    return way - 1.0 if after == COPY else (way - 1) / way


def stored(form: str, tiling: str, way: int) -> float:
    """Return the same of what a form makes; partial sums are added up before."""
    if form == "i":
        return (way - 1.0) * (2 if tiling == COPY else 1)
    return converted(_MAKES[form], tiling, way)


def _kinds_after(graph: Graph, layer: Layer, descriptions: Descriptions, layers: Set[str]) -> Set[bool]:
    """Return whether element-wise (True) and other operators (False) come between a layer and the next ones."""
    kinds = set()
    pending = [layer.made]
    while pending:
        for node in graph.consumers.get(pending.pop(), ()):
            description = descriptions[node.name]
            if description is None or node.name in layers:
                continue
            kinds.add(is_elementwise(description))
            pending += [name for name in node.outputs if is_elementwise(description)]
    return kinds


def _chained(graph: Graph, layer: Layer, after: Set[bool], placements: Placements, tilings: str, way: int, levels: Levels) -> Chained:
    forms = _possible(graph, layer, placements, way, levels)
    reads, makes = _areas(graph, layer, placements, tilings, levels)
    batch = ROWS if "b" in forms and layer.batch is not None else ""
    columns = "" if layer.features is None else COLUMNS
    unlike, alike = False in after, True in after  # operators that are divided by batch only; element-wise ones, which are not copied
    allowed = (batch or (columns if alike else COPY)) if unlike else batch + columns + ("" if alike else COPY)
    return Chained(reads, makes, forms, allowed or COPY, unlike and not batch)


def _possible(graph: Graph, layer: Layer, placements: Placements, way: int, levels: Levels) -> str:
    """Return the forms in which every part still has something to do; if there is none, those with anything to divide."""
    shape = graph.types[layer.made].known_shape
    extents = {
        "b": 0 if layer.batch is None else shape[layer.batch],
        "i": 0 if layer.inner is None else layer.inner.units,
        "o": 0 if layer.features is None else shape[layer.features],
    }
    left = {form: extent // levels.divided(placements, _placement(layer, form)) for form, extent in extents.items()}
    enough = "".join(form for form in FORMS if left[form] >= way)
    return enough or max(FORMS, key=lambda form: left[form])


def _areas(graph: Graph, layer: Layer, placements: Placements, tilings: str, levels: Levels) -> tuple[float, float]:
    """Return what is left of what a layer reads and makes, in elements."""
    reads, makes = (float(prod(graph.types[name].shape or ())) for name in (layer.data, layer.made))
    for placement, tiling, way in zip(placements, tilings, levels.ways, strict=False):
        reads /= 1 if placement == _placement(layer, "o") else way
        makes /= 1 if tiling == COPY else way
    return reads, makes


def _placement(layer: Layer, form: str) -> Placement:
    axis = {"b": layer.batch, "o": layer.features}.get(form)
    if form == "i" and layer.inner is not None:
        return layer.inner
    return ON_ONE if axis is None else Shard(axis)


def _tiles(
    graph: Graph, descriptions: Descriptions, levels: Levels, placed: Mapping[str, Placements], tilings: Mapping[str, str]
) -> dict[str, tuple[Tile, ...]]:
    """Return the tiles of layers by their forms, and of all other nodes by the tilings of what they read."""
    handed_on: dict[str, Placements] = {name: (Shard(0),) * len(levels.ways) for name in graph.inputs if graph.types[name].shape}
    layers = {layer.node.name: layer for layer in layers_of(graph, descriptions)}
    tiles: dict[str, tuple[Tile, ...]] = {}
    for node in graph.nodes:
        description = descriptions[node.name]
        if description is None:
            tiles[node.name] = (Tile(levels.root, whole_output(graph, node)),)
            continue
        layer = layers.get(node.name)
        placements = placed[node.name] if layer is not None else _others(graph, node, description, handed_on, len(levels.ways))
        tiles[node.name] = tiles_of(levels, description, placements)
        handed = placements if layer is None else tuple(_tiled(layer, tiling) for tiling in tilings[node.name])
        handed_on[node.first_output] = handed
    return tiles


def _tiled(layer: Layer, tiling: str) -> Placement:
    axis = {ROWS: layer.batch, COLUMNS: layer.features}.get(tiling)
    return REPLICATE if axis is None else Shard(axis)


def _others(graph: Graph, node: Node, description: Description, handed_on: Mapping[str, Placements], count: int) -> Placements:
    """Return the placements of an operator without weights: that of its largest input, if every placement of it is allowed."""
    for number, value in operands_by_size(graph, node):
        if value in handed_on:
            return tuple(_other(description, number, placement) for placement in handed_on[value])
    return (REPLICATE,) * count


def _other(description: Description, operand: int, placement: Placement) -> Placement:
    """Return a placement after an operator: element-wise keeps it, any other keeps the batch (axis 0) and copies the rest."""
    if not isinstance(placement, Shard):
        return REPLICATE if isinstance(placement, Partial) else placement
    axis = surviving_axis(description, operand, placement.axis)
    usable = axis is not None and description.shape[axis] > 1 and (axis == 0 or is_elementwise(description))
    return Shard(axis) if usable and axis is not None else REPLICATE
