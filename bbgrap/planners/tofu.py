"""Tofu: every node divided over all machines, level by level along one loop, so that few bytes are fetched.

A training step is divided layer by layer: what belongs to a layer backward follows it, as in Tofu's groups (`training_search`). Rows and
columns are no loops there: their cut moves what that of the batch does, and halos. The rest of this file is for inference.

The loops come from the descriptions (section 4.1): any output axis that can be split, any reduction index whose parts combine. At every
level of the recursion (section 5.2) each node takes one placement; the bytes that its machines then fetch are counted from the regions that
the description predicts, halos included. `benchmarks.papers.tofu` has the paper's own objective.

Deviations: what a machine computes it holds, so a tensor has no tiling apart from its operator's; weights are where they are used and
cost nothing; shares instead of equal parts; branches are searched as a tree and then improved (`search`), not brought to a chain; a loop
too short for all parts is taken only where there is no longer one, and a node without any loop runs on the strongest machine.
"""

from __future__ import annotations

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import ON_ONE, Levels, Partial, Placement, Placements, Shard, sums_of
from bbgrap.planners.plan import Tile, Tiles, whole_output
from bbgrap.planners.search import Choices
from bbgrap.planners.training import training_structure
from bbgrap.planners.training_search import place_by_bytes
from bbgrap.tdl import Description, Descriptions


def plan_tofu(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
    """Divide by the largest prime factor of the number of machines, and so on down."""
    levels, step = Levels.of(cluster), training_structure(graph, descriptions)
    if step is not None:
        return step.tiles(levels, place_by_bytes(step, levels))
    placed: dict[str, Placements] = {node.name: () for node in graph.nodes}
    tiles: dict[str, tuple[Tile, ...]] = {node.name: (Tile(0, whole_output(graph, node)),) for node in graph.nodes}
    for depth in range(1, len(levels.ways) + 1):
        upper = levels.upper(depth)
        further = {node.name: further_placements(graph, node, descriptions[node.name], placed[node.name], upper) for node in graph.nodes}
        choices = Choices(graph, descriptions, upper, further)
        chosen = choices.best()
        placed = {name: further[name][number] for name, number in chosen.items() if further[name]}
        placed |= {node.name: () for node in graph.nodes if descriptions[node.name] is None}
        tiles = choices.plan_tiles(chosen)
    return tiles


def further_placements(
    graph: Graph, node: Node, description: Description | None, placements: Placements, levels: Levels
) -> tuple[Placements, ...]:
    """Return a node's placements with one more, for the last level of `levels`; none for a node without a description."""
    if description is None:
        return ()
    way = levels.ways[-1]
    left = {placement: loop // levels.divided(placements, placement) for placement, loop in loops(graph, node, description).items()}
    over = next((placement for placement in placements if isinstance(placement, Partial)), None)
    left = {placement: rest for placement, rest in left.items() if not isinstance(placement, Partial) or over in (None, placement)}
    longest = max(left.values(), default=1)
    usable: list[Placement] = [placement for placement, rest in left.items() if rest >= min(way, longest) and rest > 1]
    return tuple((*placements, placement) for placement in usable or [ON_ONE])


def loops(graph: Graph, node: Node, description: Description) -> dict[Placement, int]:
    """Return every loop along which a node can be divided, and into how many parts: output axes, then reduction indices."""
    found: dict[Placement, int] = {Shard(axis): description.shape[axis] for axis in description.splittable_axes}
    return found | {over: over.units for over in sums_of(graph, node, description)}
