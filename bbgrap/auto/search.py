"""`auto`: the plan with the least predicted time (or time per request of a stream, or memory) for this model on this cluster.

    1. candidates   every direction over every useful set of nodes, every other planner's plan, each node alone
    2. improvement  of the best of them against the clock, stretch by stretch

Of more than a few nodes, the fastest ones alone are searched, too, and the nodes alone that the best candidates use: one more node is not
expected to make a plan slower.

Since the plans of all other planners are among the candidates, it is never predicted to be slower than any of them, nor than the
best single node, unless the budget ends before they are looked at, or their plans over fewer nodes were far slower. A node's memory is a
hard limit: a plan that exceeds it loses against any that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from bbgrap.auto.candidates import LARGE, Candidate, Candidates
from bbgrap.auto.evaluate import Evaluator, Score
from bbgrap.auto.improve import improve
from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tiles, verify_plan
from bbgrap.tdl import Descriptions

INGREDIENTS = 8
LARGE_INGREDIENTS = 4
"""So many candidates are what stretches may be changed to, of small and of large plans: chosen."""

FEW = 4
"""Of more nodes than this, so many are searched first: chosen."""

FAR = 2.0
"""A planner whose plan takes so many times as long as the best one over the same nodes is not asked for more of them: chosen."""

NEAR = 1.05
"""Sets of nodes are worth a search to the end as long as their best candidates take at most so many times as long: moves gain less."""


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
    seen: dict[tuple[str, Score], Candidate] = {}
    ended: list[Candidate] = []
    sets = _over_sets(Evaluator(Pieces(graph, descriptions), cluster, options, time_is_up))
    for begun in sets:
        begun.ask_others()
        ranked = begun.ranked()
        seen |= {(candidate.name, candidate.score): candidate for candidate in ranked}
        if ranked[0].score <= _near(min(candidate.score for candidate in seen.values())):
            ended.append(_improved(begun.evaluator, ranked))
    candidates = sorted(seen.values(), key=lambda c: c.score)
    found = min([*ended, candidates[0]], key=lambda c: c.score)
    plan = Plan("auto", graph, cluster, found.tiles)
    verify_plan(plan, descriptions)
    return SearchResult(plan, found.score, tuple(candidates), found.name, sum(begun.evaluator.plans for begun in sets))


def _over_sets(evaluator: Evaluator) -> list[Candidates]:
    """Return what was begun to collect over few of many nodes, over all, and over sets between, that with the best candidate first.

    What is best over twenty nodes is no worse than what is best over four of them; yet the plans over twenty take five times as much of
    a budget, and with it alone none of four would be looked at. All nodes come second: where the time ends before, what it takes to
    use them all has been looked at. Planners that search are asked for few nodes only, as yet: over twenty they would take all the time.
    """
    order, everyone = Candidates(evaluator).by_speed(), len(evaluator.devices)
    begun: list[Candidates] = []
    hopeless, searched = frozenset[str](), 1
    for size in _sizes(everyone):
        if begun and evaluator.is_late:
            break
        begun.append(Candidates(evaluator.over(sorted(order[:size])), hopeless, searched))
        begun[-1].begin()
        if len(begun) == 1:
            begun[0].ask_others()
            hopeless = _hopeless(begun[0].found) if evaluator.objective != "memory" else hopeless
        searched = max(searched, size) if size < everyone else searched
    return sorted(begun, key=_best)


def _best(candidates: Candidates) -> Score:
    return min(candidate.score for candidate in candidates.found)


def _sizes(count: int) -> list[int]:
    """Return how many of so many nodes are searched: 4, all, then 8, 16, and so on, then 6, 12, and so on."""
    if count <= FEW:
        return [count]
    doubled, between = ([times << by for by in range(count.bit_length()) if times << by < count] for times in (FEW, FEW + FEW // 2))
    return [FEW, count, *doubled[1:], *between]


def _hopeless(candidates: list[Candidate]) -> frozenset[str]:
    """Return the planners whose plans are so far from the best that they are not worth asking for more nodes."""
    best = min(candidate.score for candidate in candidates)
    far = (c.planner for c in candidates if c.score.value > FAR * best.value)
    return frozenset(planner for planner in far if planner) if not best.excess else frozenset()


def _improved(evaluator: Evaluator, candidates: list[Candidate]) -> Candidate:
    """Return what improving the best candidate leads to."""
    start = candidates[0]
    if len(evaluator.devices) == 1 or evaluator.spent:
        return start
    chosen = ingredients(candidates, LARGE_INGREDIENTS if evaluator.size > LARGE else INGREDIENTS)
    best = improve(evaluator, start.tiles, start.score, chosen)
    name = start.name + (f", improved in {best.moves} move{'s' * (best.moves != 1)}" if best.moves else "")
    return replace(start, name=name, tiles=best.tiles, score=best.score)


def _near(best: Score) -> Score:
    """Return the worst score from which improving may lead past a better one."""
    return replace(best, value=NEAR * best.value, seconds=inf)


def ingredients(candidates: list[Candidate], count: int) -> list[Tiles]:
    """Return the plans whose tiles are tried: the best of every kind first, then the best of what is left."""
    kinds: dict[str, Candidate] = {}
    for candidate in candidates:
        kinds.setdefault(candidate.kind, candidate)
    chosen = list(kinds.values())[:count]
    chosen += [candidate for candidate in candidates if candidate not in chosen][: count - len(chosen)]
    return [candidate.tiles for candidate in chosen]
