"""`auto`: the plan with the least predicted time (or time per request of a stream, or memory) for this model on this cluster.

    1. candidates   every direction over every useful set of nodes, every other planner's plan, each node alone
    2. mixture      per layer the tiles of one of them, by dynamic programming
    3. improvement  of the best of both against the clock, stretch by stretch

Since the plans of all other planners are among the candidates, it is never predicted to be slower than any of them, nor than the
best single node, unless the budget ends before they are looked at. A node's memory is a hard limit: a plan that exceeds it loses against
any that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from bbgrap.auto.candidates import LARGE, Candidate, Candidates
from bbgrap.auto.evaluate import Evaluator, Score
from bbgrap.auto.improve import improve
from bbgrap.auto.mixtures import mixtures
from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tiles, verify_plan
from bbgrap.tdl import Descriptions

INGREDIENTS = 8
LARGE_INGREDIENTS = 4
"""So many candidates are mixed, of small and of large plans: chosen."""

STARTS = 2
"""So many plans are improved, the best ones."""


@dataclass(frozen=True)
class SearchResult:
    """The plan that was chosen, what it is worth, and what else was looked at, the best first."""

    plan: Plan
    score: Score
    candidates: tuple[Candidate, ...]
    origin: str
    """The candidate it grew from, in words."""
    plans: int
    """How many plans were looked at."""


def plan_auto(
    graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions, *, time_is_up: Callable[[], bool] = lambda: False
) -> SearchResult:
    """Search for the best plan; `time_is_up` may end the search early, with the best plan so far.

    Raises:
        PlanError: if a planner broke a law of plans.
    """
    evaluator = Evaluator(Pieces(graph, descriptions), cluster, options, time_is_up)
    candidates = Candidates(evaluator).collect()
    starts = candidates[:STARTS]
    if len(cluster.nodes) > 1 and not evaluator.spent:
        large = len(graph.nodes) * len(cluster.nodes) > LARGE
        chosen = ingredients(candidates, LARGE_INGREDIENTS if large else INGREDIENTS)
        mixed = [
            Candidate("a mixture", "mixture", tiles, evaluator.score(tiles))
            for tiles in takewhile(lambda _: not evaluator.is_late, mixtures(evaluator, chosen))
        ]
        starts = sorted([*mixed, *starts], key=lambda candidate: candidate.score)[:STARTS]
        ended = [(improve(evaluator, start.tiles, start.score, chosen), start) for start in starts]
        best, start = min(ended, key=lambda pair: pair[0].score)
        tiles, score, origin = best.tiles, best.score, start.name + (f", improved in {best.moves} moves" if best.moves else "")
    else:
        tiles, score, origin = starts[0].tiles, starts[0].score, starts[0].name
    plan = Plan("auto", graph, cluster, tiles)
    verify_plan(plan, descriptions)
    return SearchResult(plan, score, tuple(candidates), origin, evaluator.plans)


def ingredients(candidates: list[Candidate], count: int) -> list[Tiles]:
    """Return the plans to mix: the best of every kind first, then the best of what is left."""
    kinds: dict[str, Candidate] = {}
    for candidate in candidates:
        kinds.setdefault(candidate.kind, candidate)
    chosen = list(kinds.values())[:count]
    chosen += [candidate for candidate in candidates if candidate not in chosen][: count - len(chosen)]
    return [candidate.tiles for candidate in chosen]
