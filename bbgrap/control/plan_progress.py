"""How far a plan is, for those who wait for it."""

from __future__ import annotations

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ToClient
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.protocol.client_messages import FEEDING, Progress

_TOLD_BYTES = 8 << 20
"""How many bytes of weights an agent takes in until that is said again. Chosen: a tenth of a second at 1 Gbit/s."""


def fed(member: Member, digest: str, received: int, loading: Loading, members: Members) -> list[CoordinatorInstruction]:
    """Note that an agent has so much of a weight, and send it more; after some megabytes, tell those who wait for that."""
    before = member.fed
    done = member.acknowledge(digest, received)
    if member.fed // _TOLD_BYTES == before // _TOLD_BYTES:
        return done
    plans = {variant.plan: None for variant in loading.of_member(member.name) if member.name in variant.pending}
    return [*done, *(instruction for plan in plans for instruction in progress(plan, members))]


def progress(plan: ServedPlan, members: Members) -> list[CoordinatorInstruction]:
    """Tell those who wait how far a plan is."""
    if not plan.callers:
        return []
    stage = stage_of(plan, members)
    return [ToClient(identity, Progress(call, *stage)) for identity, call in plan.callers]


def stage_of(plan: ServedPlan, members: Members) -> tuple[str, int, int]:
    """Return what is done for a plan, and how much of how much of that is done."""
    newest = [variant for variant in plan.variants if variant.job == plan.latest]
    if plan.job is not None or not newest:
        return "planning", 0, 1
    feeding = members.living({name for variant in newest for name in variant.pending})
    if to_feed := sum(member.to_feed for member in feeding):
        return FEEDING, sum(member.fed for member in feeding), to_feed
    total = sum(len(variant.parts) for variant in newest)
    return "measuring" if plan.timing is not None else "deploying", total - sum(_left(variant) for variant in newest), total


def _left(variant: Variant) -> int:
    return len(variant.parts) if variant.tracker.state == "waiting" else len(variant.pending)
