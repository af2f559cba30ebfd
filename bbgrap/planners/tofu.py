"""Tofu for inference: every node divided over all machines, level by level along one loop, so that few bytes are fetched.

The loops come from the descriptions (section 4.1): any output axis that can be split, any reduction index whose parts combine. At every
level of the recursion (section 5.2) each node takes one letter; the bytes that its machines then fetch are counted from the regions that
the description predicts, halos included. `papers.tofu` has the training objective.

Deviations: what a machine computes it holds, so a tensor has no tiling apart from its operator's; weights are where they are used and
cost nothing; shares instead of equal parts; branches are searched as a tree and then improved (`search`), not brought to a chain; a loop
too short for all parts is taken only where there is no longer one, and a node without any loop runs on the strongest machine.
"""

from __future__ import annotations

from math import prod

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph, Node
from bbgrap.planners.layers import Descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.placements import SOMEWHERE, Along, Letter, Levels, Over, Word
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.planners.search import Choices
from bbgrap.tdl import Description, part_unit, reducible, splittable_axes


def plan_tofu(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Plan:
    """Divide by the largest prime factor of the number of machines, and so on down."""
    levels = Levels.of(cluster)
    words: dict[str, Word] = {node.name: () for node in graph.nodes}
    tiles: dict[str, tuple[Tile, ...]] = {node.name: (Tile(0, whole_output(graph, node)),) for node in graph.nodes}
    for depth in range(1, len(levels.ways) + 1):
        upper = levels.upper(depth)
        further = {node.name: further_words(graph, node, descriptions[node.name], words[node.name], upper) for node in graph.nodes}
        choices = Choices(graph, descriptions, upper, further)
        chosen = choices.best()
        words = {name: further[name][number] for name, number in chosen.items() if further[name]}
        words |= {node.name: () for node in graph.nodes if descriptions[node.name] is None}
        tiles = choices.plan_tiles(chosen)
    return Plan("tofu", graph, cluster, tiles)


def further_words(
    graph: Graph, node: Node, description: Description | None, word: Word, levels: Levels, *, sums: bool = True
) -> tuple[Word, ...]:
    """Return a node's words with one letter more, for the last level of `levels`; none for a node without a description."""
    if description is None:
        return ()
    way = levels.ways[-1]
    left = {letter: loop // _parts(letter, word, levels) for letter, loop in loops(graph, node, description, sums=sums).items()}
    over = next((letter for letter in word if isinstance(letter, Over)), None)
    left = {letter: rest for letter, rest in left.items() if not isinstance(letter, Over) or over in (None, letter)}
    longest = max(left.values(), default=1)
    letters: list[Letter] = [letter for letter, rest in left.items() if rest >= min(way, longest) and rest > 1]
    return tuple((*word, letter) for letter in letters or [SOMEWHERE])


def loops(graph: Graph, node: Node, description: Description, *, sums: bool = True) -> dict[Letter, int]:
    """Return every loop along which a node can be divided, and into how many parts: output axes, then (with `sums`) reduction indices."""
    found: dict[Letter, int] = {Along(axis): description.shape[axis] for axis in splittable_axes(description)}
    if sums:
        overs = (Over(index.name, index.extent, part_unit(node)) for index in reducible(graph, node, description))
        found |= {over: over.units for over in overs}
    return found


def _parts(letter: Letter, word: Word, levels: Levels) -> int:
    return prod(way for used, way in zip(word, levels.ways, strict=False) if used == letter)
