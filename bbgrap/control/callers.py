"""Those who wait for a plan: told how far it is, and answered when it serves, when it cannot, or at their deadline.

Who does not ask after it is forgotten.
"""

from __future__ import annotations

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ToClient
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.plan_reports import prepared_answer
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.protocol.client_messages import FEEDING, Failed, Progress
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import ROUND_TRIPS

CALLER_UNASKED_S = 60.0
"""How long a wait for a plan outlasts a client that does not ask after it. Chosen: its questions may wait behind large inputs."""
_TOLD_BYTES = 8 << 20
"""How many bytes of weights an agent takes in until that is said again. Chosen: a tenth of a second at 1 Gbit/s."""


def answer_callers(plan: ServedPlan) -> list[CoordinatorInstruction]:
    """Answer who waits for a plan, if it is there, or cannot be."""
    if not plan.callers or (plan.job is not None and not plan.job.spare_for) or plan.timing is not None:
        return []
    newest = [variant for variant in plan.variants if variant.job == plan.latest]
    is_ready = plan.serving and not plan.is_arriving
    lacks_room = any(fault is Fault.BUSY for fault, _ in plan.failed.values())
    # Who waits for a plan that has no place is told why, and that the standby answers.
    if is_ready or (lacks_room and not plan.quarantine and plan.helper is not None and plan.helper.serving):
        done: list[CoordinatorInstruction] = [ToClient(identity, prepared_answer(plan, call)) for identity, call in plan.callers]
        plan.callers.clear()
        return done
    if plan.quarantine:
        return _refused(plan, Fault.EXECUTION, plan.quarantine)
    if plan.failed and not newest:
        return _refused(plan, *next(iter(plan.failed.values())))
    return []


def _refused(plan: ServedPlan, fault: Fault, reason: str) -> list[CoordinatorInstruction]:
    done: list[CoordinatorInstruction] = [ToClient(identity, Failed(call, fault, reason)) for identity, call in plan.callers]
    plan.callers.clear()
    return done


def callers_overdue(plan: ServedPlan, stage: str, now: float) -> list[CoordinatorInstruction]:
    """Answer who has waited for a plan for as long as they would, and forget who is gone; `stage` is what is done for it."""
    late = [caller for caller, known in plan.callers.items() if now > known.until]
    gone = [caller for caller, known in plan.callers.items() if now - known.asked > CALLER_UNASKED_S]
    for caller in {*late, *gone}:
        del plan.callers[caller]
    reason = f"plan of {plan.called}: the deadline passed before it served; what was done last: {stage}"
    return [ToClient(identity, Failed(call, Fault.EXECUTION, reason)) for identity, call in late]


def fed(member: Member, digest: str, received: int, loading: Loading, members: Members) -> list[CoordinatorInstruction]:
    """Note that an agent has so much of a weight, and send it more; after some megabytes, tell those who wait for that."""
    before = member.weights.fed
    done = member.weights.acknowledge(digest, received, member.heard, (member.far_s or 0.0) / ROUND_TRIPS)
    if member.weights.fed // _TOLD_BYTES == before // _TOLD_BYTES:
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
    if to_feed := sum(member.weights.to_feed for member in feeding):
        return FEEDING, sum(member.weights.fed for member in feeding), to_feed
    total = sum(len(variant.parts) for variant in newest)
    return "measuring" if plan.timing is not None else "deploying", total - sum(_left(variant) for variant in newest), total


def _left(variant: Variant) -> int:
    return len(variant.parts) if variant.tracker.state == "waiting" else len(variant.pending)
