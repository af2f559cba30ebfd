"""Plans for further shapes of a model: scaled from one that serves other shapes, and judged by requests against the standby.

What is slower than that is given up, also of what was searched for.

    a shape came `EARNED` - 1 times -> a plan like one of the nearest that were searched for is made, and held
    it came once more               -> that is loaded -> serves -> stays unless the standby is faster

Laws: nothing is searched for a further shape while there are plans that it has not been tried to be like, or one is on its way; a scaled
plan that has been slower than the standby is not tried again over the same agents; where there are as many copies of the standby as a
plan has nodes, these answer what comes together, and nothing is planned meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log, prod
from typing import Literal

from bbgrap.control.coordinator_instructions import Base, CoordinatorInstruction, Log
from bbgrap.control.loading import Loading
from bbgrap.control.plan_trial import TRIALS
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.variants import GAIN
from bbgrap.planners.options import AUTO
from bbgrap.protocol.faults import Fault

GROWTH = 2.0
"""How much larger inputs must be, in elements, than those that one node answers fastest, for a plan to be searched for. Chosen."""
MAX_BASES = 3
"""Plans that one is tried to be like; the one that is expected to be the fastest is taken."""
SEARCH_EVERY_S = 60.0
"""How often plans for further shapes of a model are searched for, where they can be like no other."""

Origin = tuple[Base, ...] | Literal["search", "wait", "nothing"]
"""Where a plan comes from: others, a search, another one that is on its way; or there is none to be expected."""


def origin_of(plan: ServedPlan, others: Iterable[ServedPlan], names: tuple[str, ...]) -> Origin:
    """Return what a plan over agents of these names that nobody waits for can be made of; `others` are those of its model."""
    if not _is_by_latency(plan):
        return "search"
    alike = [other for other in others if other is not plan and other.options == plan.options and _has_same_axes(plan, other)]
    # Other profiles would make another plan of a base, not a useless one.
    serving = [(other, v) for other in alike for v in other.serving if tuple(name for name, _ in v.nodes) == names]
    near = sorted((_distance(plan, other), v.epoch, Base(v.job, v.place)) for other, v in serving if len(v.parts) > 1 and not v.is_scaled)
    bases = tuple(base for _, _, base in near if base.job not in plan.unlike)
    if bases:
        return bases[:MAX_BASES]
    if any((other.job is not None and not other.job.is_ahead) or other.timing is not None or other.is_arriving for other in alike):
        return "wait"
    if any(_elements(plan) < GROWTH * _elements(other) for other, v in serving if len(v.parts) == 1):
        return "nothing"
    return "search"


def _is_by_latency(plan: ServedPlan) -> bool:
    """Whether a plan is the one that answers soonest, and none that was asked for by name."""
    return plan.options is not None and plan.options.planner == AUTO and not plan.is_stream


def _has_same_axes(plan: ServedPlan, other: ServedPlan) -> bool:
    """Whether two plans of a model are given the same inputs, of the same ranks: a cut of others says nothing."""
    return {name: len(shape) for name, shape in plan.shapes.items()} == {name: len(shape) for name, shape in other.shapes.items()}


def _distance(plan: ServedPlan, other: ServedPlan) -> float:
    """Return how far the shapes of two plans with the same axes are apart: by the ratios of their sizes."""
    return sum(
        abs(log(max(1, a) / max(1, b))) for name, shape in plan.shapes.items() for a, b in zip(shape, other.shapes[name], strict=True)
    )


def _elements(plan: ServedPlan) -> int:
    """Return how many elements the inputs have, one at least."""
    return max(1, sum(prod(shape) for shape in plan.shapes.values()))


def answer_more_at_once(copies: int, plan: ServedPlan) -> bool:
    """Whether so many copies of the standby answer what comes together at least as fast as a plan that serves, for it comes together.

    A plan that was asked for by name answers all of its requests.
    """
    if not _is_by_latency(plan) or plan.standby is None:
        return False
    nodes = max((len(variant.parts) for variant in plan.serving), default=0)
    return plan.standby.outstanding >= copies >= max(2, nodes)


def learn(plan: ServedPlan, variant: Variant, seconds: float, loading: Loading, now: float) -> list[CoordinatorInstruction]:
    """Learn from a request that ran alone whether a scaled variant is worth its place, or a plan has become slower than the standby."""
    trial, nodes = plan.trial, tuple(variant.parts)
    if variant.plan.is_standby:
        trial.standby.append((nodes, seconds))
    elif variant.is_scaled:
        trial.scaled.append((nodes, seconds))
    if trial.doubted_s and variant in plan.serving:
        trial.meanwhile.append(seconds)
    copies = _copies_of(plan)
    if plan.policy.drifted_s and _is_by_latency(plan):
        trial.doubt(plan.policy.drifted_s, copies)
        plan.policy.drifted_s = 0.0
    if trial.doubted_s and len(trial.standby) >= TRIALS and plan.open_variants:
        if why := slower_than_standby(plan, trial.takes_s):
            trial.doubted_s = 0.0
            plan.was_slower(now)
            return give_up(plan, [v for v in plan.variants if not v.queue.running], why, loading)
        trial.serves()
    judged = {v: trial.verdict(tuple(v.parts), copies) for v in plan.variants if v.is_scaled and not v.queue.running}
    scaled = [v for v, why in judged.items() if why]
    if not scaled:
        return []
    trial.scaled.clear()
    return give_up(plan, scaled, judged[scaled[0]], loading)


def slower_than_standby(plan: ServedPlan, took: float) -> str:
    """Return why a plan that was searched for shall go, which takes so long, in seconds: the standby is faster, and nobody waits for it.

    Nothing if it may stay, or too little is known.
    """
    if not _is_by_latency(plan) or plan.callers or len(plan.trial.standby) < TRIALS:
        return ""
    return plan.trial.beside_standby(took, _copies_of(plan), GAIN)


def give_up(plan: ServedPlan, variants: Iterable[Variant], why: str, loading: Loading) -> list[CoordinatorInstruction]:
    """Release variants that are slower than the standby; nothing is planned over the same agents."""
    slow = list(variants)
    for variant in slow:
        plan.failed[variant.world] = Fault.PLAN, f"planner: {why}"
    what = "a plan made like another" if all(variant.is_scaled for variant in slow) else "a plan"
    return [
        Log(f"{plan.called}: {what} is given up: {why}", event="given up", model=plan.model),
        *(i for variant in slow for i in loading.release(variant)),
    ]


def _copies_of(plan: ServedPlan) -> list[tuple[str, ...]]:
    """Return where copies of its standby take requests."""
    return [] if plan.standby is None else [tuple(copy.parts) for copy in plan.standby.open_variants]
