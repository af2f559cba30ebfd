"""Those who wait for a plan: answered when it serves, when it cannot, or at their deadline; forgotten when they do not ask after it."""

from __future__ import annotations

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ToClient
from bbgrap.control.plan_reports import prepared_answer
from bbgrap.control.plans import ServedPlan
from bbgrap.protocol.client_messages import Failed
from bbgrap.protocol.faults import Fault

CALLER_UNASKED_S = 60.0
"""How long a wait for a plan outlasts a client that does not ask after it. Chosen: its questions may wait behind large inputs."""


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
