"""Whether a model computes every image of a batch by itself, so that a batch may be run in micro-batches, and how long an image takes.

Walks the graph from its inputs. Of every value it is found which range of which axis belongs to one image:

    input [N, C, H, W] ── Conv ── Reshape [N * H, W, C] ── ... ── output [N, 1000]
    axis 0, 1 row       axis 0, 1 row   axis 0, H rows            axis 0, 1 row

A node keeps images apart if every image of its output reads, of all that it reads of the batch, that image only. Laws: "no" is always a
safe answer; "yes" needs a description of every node on the way, and constants that are the same for every image and size of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bbgrap.cluster.speeds import speeds_of
from bbgrap.cluster.types import NodeProfile
from bbgrap.engine.load import load_graph
from bbgrap.graph import Graph, Node
from bbgrap.graph.types import Weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, whole_output
from bbgrap.shapemap import IntervalSet, ShapeMap

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Images:
    """Where the images of a value are: image `b` has the range `[b * each, (b + 1) * each)` of an axis."""

    axis: int
    each: int

    def of(self, whole: ShapeMap, image: int) -> ShapeMap:
        """Return the region of one image."""
        return whole.replace(self.axis, IntervalSet.of((image * self.each, (image + 1) * self.each)))


def image_seconds(model: Path, shapes: Shapes) -> float | None:
    """Return the seconds that an image takes on a typical core, if a batch in micro-batches gives the same answers; None if it may not.

    Args:
        model: The file.
        shapes: Of the inputs, by name, with a batch of at least two images along axis 0.

    Raises:
        ModelError: if the model cannot be loaded.
        InputError: if the shapes do not fit it.
    """
    images = next(iter(shapes.values()))[0]
    graph, two = (load_graph(model, {name: (count, *shape[1:]) for name, shape in shapes.items()}) for count in (images, 2))
    return _seconds(graph) / images if _are_alike(graph, two) and _is_apart(graph) and _is_apart(two) else None


def _seconds(graph: Graph) -> float:
    pieces, speeds = Pieces(graph, all_descriptions(graph)), speeds_of(NodeProfile("typical"))
    works = (pieces.work(node, Tile(0, whole_output(graph, node))) for node in graph.nodes)
    return sum(speeds[work.kind].seconds_of(work) for work in works)


def _is_apart(graph: Graph) -> bool:
    """Whether every output has its images along axis 0, each from that image of the inputs."""
    batch = {(graph.types[name].shape or (0,))[0] for name in graph.inputs}
    if len(batch) != 1 or 0 in batch:
        return False
    images = batch.pop()
    found = {name: _Images(0, 1) for name in graph.inputs}
    pieces = Pieces(graph, all_descriptions(graph))
    for node in graph.nodes:
        if not any(name in found for name in node.reads):
            continue
        made = _images_made(pieces, node, images, found)
        if made is None:
            return False
        found |= made
    return all(found.get(name) == _Images(0, 1) for name in graph.outputs) and all(
        (graph.types[name].shape or (0,))[0] == images for name in graph.outputs
    )


def _images_made(pieces: Pieces, node: Node, images: int, found: Mapping[str, _Images]) -> dict[str, _Images] | None:
    """Return where a node's outputs have their images; None if it mixes them, or nobody knows."""
    if pieces.descriptions[node.name] is None or any(name in found for name in node.captured):
        return None
    every = range(images)
    for candidate in _candidates(whole_output(pieces.graph, node), images):
        if all(_reads_only(pieces, node, candidate, image, found) for image in every):
            outputs = [name for name in node.outputs if name]
            made = {outputs[0]: candidate}
            for name in outputs[1:]:
                other = next(
                    (
                        of
                        for of in _candidates(ShapeMap.full(pieces.graph.types[name].shape or ()), images)
                        if all(_makes(pieces, node, candidate, name, of, image) for image in every)
                    ),
                    None,
                )
                if other is None:
                    return None
                made[name] = other
            return made
    return None


def _candidates(whole: ShapeMap, images: int) -> Iterator[_Images]:
    for axis, extent in enumerate(whole.shape):
        if extent and extent % images == 0:
            yield _Images(axis, extent // images)


def _reads_only(pieces: Pieces, node: Node, made: _Images, image: int, found: Mapping[str, _Images]) -> bool:
    tile = Tile(0, made.of(whole_output(pieces.graph, node), image))
    reads, _ = pieces.piece(node, tile)
    return all(
        read is not None and found[name].of(ShapeMap.full(pieces.graph.types[name].shape or ()), image).issuperset(read)
        for name, read in zip(node.inputs, reads, strict=True)
        if name in found
    )


def _makes(pieces: Pieces, node: Node, first: _Images, name: str, images: _Images, image: int) -> bool:
    tile = Tile(0, first.of(whole_output(pieces.graph, node), image))
    outputs = [output for output in node.outputs if output]
    made = pieces.piece(node, tile)[1][outputs.index(name)]
    return made == images.of(ShapeMap.full(pieces.graph.types[name].shape or ()), image)


def _are_alike(whole: Graph, smaller: Graph) -> bool:
    """Whether two graphs of one model compute the same: their nodes and what they know, but for shapes, do not depend on the batch."""
    if len(whole.nodes) != len(smaller.nodes):
        return False
    data = Pieces(whole, all_descriptions(whole))
    for node, other in zip(whole.nodes, smaller.nodes, strict=True):
        if (node.op, node.domain, node.attributes, len(node.inputs)) != (other.op, other.domain, other.attributes, len(other.inputs)):
            return False
        if data.descriptions[node.name] is None:
            return False
        reads, _ = data.piece(node, Tile(0, whole_output(whole, node)))
        for mine, theirs, read in zip(node.inputs, other.inputs, reads, strict=True):
            constants = whole.weights.get(mine), smaller.weights.get(theirs)
            if read is not None and not _are_the_same(*constants):
                return False
    return True


def _are_the_same(mine: Weight | None, theirs: Weight | None) -> bool:
    """Whether two operands are no constants, equal ones, or one repeated for every image of its batch."""
    if mine is None or theirs is None:
        return mine is theirs
    if mine.digest == theirs.digest:
        return True
    shapes = mine.array.shape, theirs.array.shape
    longer = [axis for axis, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b]
    if len(shapes[0]) != len(shapes[1]) or len(longer) != 1 or mine.type.dtype is not theirs.type.dtype:
        return False
    one = np.take(mine.array, [0], longer[0])
    return all(bool(np.array_equal(array, np.broadcast_to(one, array.shape))) for array in (mine.array, theirs.array))
