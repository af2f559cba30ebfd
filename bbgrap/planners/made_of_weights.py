"""What is made of weights alone, as where quantized ones are dequantized: every machine makes what it reads of it.

Such a node has no operand that could be cut as its reader is. Made on one machine, it would be sent with every request.
"""

from __future__ import annotations

from collections.abc import Mapping

from bbgrap.graph import Graph, Node
from bbgrap.planners.halo_recomputation import note_needs
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.shapemap import IntervalSet, ShapeMap, covers
from bbgrap.tdl import Description, Descriptions


def made_where_read(graph: Graph, descriptions: Descriptions, tiles: Tiles) -> Tiles:
    """Return tiles of which such nodes have those that their machines read; what nobody reads all of stays as it is."""
    made = _made_of_weights(graph, descriptions)
    if not made:
        return tiles
    pieces = Pieces(graph, descriptions)
    found = dict(tiles)
    needs: dict[tuple[str, int], ShapeMap] = {}
    for node in reversed(graph.nodes):
        description = made.get(node.name)
        if description is not None:
            found[node.name] = _as_needed(graph, node, description, needs) or tiles[node.name]
        for tile in found[node.name]:
            note_needs(needs, node, tile, pieces.piece(node, tile)[0])
    return found


def values_of_weights(graph: Graph, descriptions: Descriptions) -> frozenset[str]:
    """Return the values that are made of weights alone, so that they may be cut as weights are."""
    made = _made_of_weights(graph, descriptions)
    return frozenset(node.first_output for node in graph.nodes if node.name in made)


def _made_of_weights(graph: Graph, descriptions: Descriptions) -> Mapping[str, Description]:
    """Return the nodes with one output that read weights, and what is made of them, but for outputs and what bodies read."""
    known = {name for node in graph.nodes for name in node.captured} | set(graph.outputs)
    values, found = set(graph.weights), {}
    for node in graph.nodes:
        description = descriptions[node.name]
        if description is not None and len(node.outputs) == 1 and node.first_output not in known and values.issuperset(node.reads):
            found[node.name] = description
            values.add(node.first_output)
    return found


def _as_needed(graph: Graph, node: Node, description: Description, needs: Mapping[tuple[str, int], ShapeMap]) -> tuple[Tile, ...]:
    """Return for every machine that reads of a node the range that it reads along axes that split; none if they leave something out."""
    whole = whole_output(graph, node)
    tiles = []
    for device in sorted(device for name, device in needs if name == node.first_output):
        need, split = needs[node.first_output, device], description.splittable_axes
        axes = (
            IntervalSet.of(own.hull) if axis in split else full for axis, (own, full) in enumerate(zip(need.axes, whole.axes, strict=True))
        )
        tiles.append(Tile(device, ShapeMap(tuple(axes))))
    return tuple(tiles) if covers((tile.region for tile in tiles), whole) else ()
