"""Which variants go when an agent is to load others and has as many as it may have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log
from bbgrap.control.loading import Loading
from bbgrap.control.plans import IN_USE_S, ServedPlan, Variant

MAX_LOADED = 12
"""Variants and copies of standbys that an agent has loaded at once, besides those that were scaled."""
MAX_SCALED = 256
"""Scaled variants that an agent has loaded at once: they share nearly all with others."""


def make_room(
    loading: Loading, coming: Mapping[str, int], newcomer: ServedPlan, now: float, *, scaled: bool = False
) -> list[CoordinatorInstruction] | None:
    """Release what is idle on agents that would have too much: what serves nobody first, then what is not in use, then the oldest.

    `coming` is how many variants of the newcomer each of them is to load. Without room nothing is released, and None returned: what
    somebody uses does not go for what others use, or they would take turns for ever. Only what nothing else answers for comes
    anyway, and what somebody waits for by name.
    """
    answered = not newcomer.callers and (newcomer.serving or (newcomer.helper is not None and newcomer.helper.open_variants))
    going: dict[int, Variant] = {}
    for name, count_coming in coming.items():
        mine = [v for v in loading.of_member(name) if v.epoch not in going and v.is_scaled == scaled]
        while (excess := len(mine) + count_coming - (MAX_SCALED if scaled else MAX_LOADED)) > 0:
            idle = [v for v in mine if not v.queue.running and v.tracker.state != "loading" and not _is_needed(v, going, now)]
            if answered:
                idle = [v for v in idle if not _is_in_use(v, newcomer, going, now)]
                if len(idle) < excess:
                    return None
            if not idle:
                break
            least = min(idle, key=lambda v: (v in v.plan.serving, now - v.plan.asked <= IN_USE_S, v.plan.is_standby, v.plan.asked, v.used))
            going[least.epoch] = least
            mine.remove(least)
    names = " and ".join(f"'{name}'" for name in coming)
    return [
        instruction
        for v in going.values()
        for instruction in (Log(f"'{v.name}' (epoch {v.epoch}) released, to make room on {names}"), *loading.release(v))
    ]


def _is_needed(variant: Variant, going: Collection[int], now: float) -> bool:
    """Whether somebody waits for a variant, or may for what is the last copy of a standby in use."""
    plan = variant.plan
    if plan.is_standby:
        return now - plan.asked <= IN_USE_S and not any(
            other is not variant and other.epoch not in going and not other.away for other in plan.variants
        )
    return plan.is_wanted and (variant.job == plan.latest or variant in plan.serving)


def _is_in_use(variant: Variant, newcomer: ServedPlan, going: Collection[int], now: float) -> bool:
    """Whether a variant stays although another plan, or a further copy of a standby, would need its place."""
    plan = variant.plan
    if newcomer.is_standby:
        return plan.is_standby or now - plan.asked <= IN_USE_S
    if plan.is_standby or now - plan.asked > IN_USE_S:
        return False
    # The newest job's last one would only be planned anew, for the place of another.
    others = any(other is not variant and other.epoch not in going and other.world == variant.world for other in plan.variants)
    return variant in plan.serving or (variant.job == plan.latest and (plan.timed != plan.latest or not others))
