"""What has ended a worker: a request that it computed, a plan that it loaded, or nobody knows.

Laws: a request that is blamed runs again where it has ended a worker, so that the others go on; a plan that has ended `MAX_DEATHS` workers
is not run again, nor planned for other shapes, and everybody who waits for it is told how they ended. A model's plans that have answered
nothing yet count together: what one of them does to workers, those for other shapes do, too. One that has answered keeps what it has
loaded, and is tried again after a while, longer each time: a request may have been too large for these machines, and others are not. So
is one for which memory was missing, when it is asked for: there may be more by then. What a plan that has answered did `FORGIVEN_S` before
the next worker that it ends is forgotten. Where one node alone lacks memory to load what another one has loaded, that node is left alone
for a while, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log
from bbgrap.control.dispatch import Requests
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member
from bbgrap.control.planning import Planning
from bbgrap.control.plans import MAX_DEATHS, Death, ServedPlan, Variant
from bbgrap.control.request import Request
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import EndedBy, WorkerLost

FIRST_QUARANTINE_S = 60.0
"""For how long a plan is not run that is tried again; four times as long each time. Chosen: two workers lost take the others a second."""
LONGEST_QUARANTINE_S = 3600.0
"""Chosen: so often a model whose requests end workers again and again may end two."""
FORGIVEN_S = 7200.0
"""How long a plan that has answered may end no worker for those before to count no more. Chosen: twice the longest quarantine, in which it
ends none."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A worker was ended while it loaded an epoch and computed for another one."""

    message: WorkerLost
    request: Request | None


class Blame:
    """Who is in doubt, by agent.

    Invariants: `_doubts` are of agents that are there.
    """

    def __init__(self, loading: Loading, planning: Planning, requests: Requests) -> None:
        self.loading = loading
        self.planning = planning
        self.requests = requests
        self._doubts: dict[str, _Doubt] = {}

    def worker_ended(self, member: Member, message: WorkerLost, now: float) -> list[CoordinatorInstruction]:
        """Find out what has ended a worker.

        One that computed and loaded at once says nothing of either, unless one of them alone has ended another worker in the same way
        before: it loads that again first, alone, and then it is known. If that crashes, too, it has ended both.
        """
        if member.worker_lost == message:
            return []
        member.worker_lost = message
        done, request = self._resolve(member, message, now), self.requests.table.find(message.request)
        if request is not None and request.sequence is not None and message.request == request.number and request.sequence.running > 1:
            request.sequence.joins = False  # so many at once may have wanted more memory than there is
        return [*done, *self._judge(member, message, request, now)]

    def _resolve(self, member: Member, message: WorkerLost, now: float) -> list[CoordinatorInstruction]:
        """Find out, from how a worker ended, what has ended the one before it, if that was in doubt."""
        doubt = self._doubts.pop(member.name, None)
        if doubt is None:
            return []
        if message.loading == doubt.message.loading and not message.epoch:
            if doubt.request is not None:
                doubt.request.blamed = ""
            # Short of memory it may have been with what it computed only.
            is_crash = message.ended_by is doubt.message.ended_by is EndedBy.CRASH
            return self._blame(member, doubt.message, message.loading, None, now) if is_crash else []
        if message.epoch and message.loading != doubt.message.loading:
            # It has loaded that, first and alone, though it has not said so: peers that it waits for may have lost their workers, too.
            return self._blame(member, doubt.message, doubt.message.epoch, doubt.request, now)
        return []

    def _judge(self, member: Member, message: WorkerLost, request: Request | None, now: float) -> list[CoordinatorInstruction]:
        """Blame what has ended a worker; what computed and loaded at once is in doubt, unless one of them has done so before."""
        if not (message.epoch and message.loading):
            return self._blame(member, message, message.epoch or message.loading, request, now)
        computed = self._has_ended_one(message.epoch, message.ended_by, by_loading=False)
        loaded = self._has_ended_one(message.loading, message.ended_by, by_loading=True)
        if loaded and not computed:
            return self._blame(member, message, message.loading, None, now)
        if computed and not loaded and (variant := self.loading.by_epoch.get(message.epoch)) is not None and not variant.plan.is_proven:
            return self._blame(member, message, message.epoch, request, now)
        self._doubts[member.name] = _Doubt(message, request)
        if request is not None:
            request.blamed = member.name
        return []

    def cleared(self, member: Member, epoch: int, now: float) -> list[CoordinatorInstruction]:
        """Note that an agent has loaded an epoch: if that was in doubt, what was computed beside it is to blame."""
        doubt = self._doubts.get(member.name)
        if doubt is None or doubt.message.loading != epoch:
            return []
        del self._doubts[member.name]
        return self._blame(member, doubt.message, doubt.message.epoch, doubt.request, now)

    def forget(self, member: Member) -> None:
        """An agent is gone: whoever comes back under its name says nothing of what has ended its worker."""
        self._doubts.pop(member.name, None)

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Try again what was not run for long enough."""
        done: list[CoordinatorInstruction] = []
        for plan in (*self.planning.plans.values(), *self.requests.standbys.by_model.values()):
            if plan.quarantine_ends <= now:
                plan.quarantine, plan.quarantine_ends, plan.deadly = "", float("inf"), 0
                plan.deaths.clear()
                self.loading.touch(plan)
                if plan.is_proven or plan.is_standby:  # others wait for their standby
                    done.append(Log(f"{plan.called} may be tried again: it was not run for long enough", model=plan.model))
        return done

    def _blame(self, member: Member, message: WorkerLost, epoch: int, request: Request | None, now: float) -> list[CoordinatorInstruction]:
        variant = self.loading.by_epoch.get(epoch)
        if variant is None:
            return []
        plan, by_loading = variant.plan, epoch != message.epoch
        if plan.is_proven and by_loading:
            return []  # it answers where it is loaded; where it cannot be, its load is tried again later and later
        death = Death(member.name, message.ended_by, by_loading, message.reason)
        if request is not None:
            request.blamed = member.name
        if plan.quarantine:
            if request is None:
                return []
            request.deaths.append(death)
            self.loading.touch(request.plan)
            return self._fail_deadly(request)
        if request is not None:
            if message.request == plan.deadly:
                # This run has ended another worker, too: that counts once. The request may have another number by now.
                return []
            plan.deadly = message.request
            request.deaths.append(death)
        if plan.is_proven and now - plan.latest_death > FORGIVEN_S:
            plan.deaths.clear()
            plan.quarantines = 0
        plan.latest_death = now
        plan.deaths.append(death)
        deaths = self._deaths(epoch)
        if len(deaths) >= MAX_DEATHS and not _is_for_one_node(plan, deaths):
            return self._quarantine(plan, variant, request, deaths, now)
        return [] if request is None else self._fail_deadly(request)

    def _fail_deadly(self, request: Request) -> list[CoordinatorInstruction]:
        """Answer a request that has ended two workers.

        On plans of several shapes, or on the plan and its standby: none has ended two, and it would end one of each.
        """
        if len(request.deaths) < MAX_DEATHS or request.number not in self.requests.open:
            return []
        why = f"request {request.number} has ended the workers of agents and is not run again: {_said(request.deaths)}"
        return self.requests.table.fail(request.number, Fault.EXECUTION, why)

    def _deaths(self, epoch: int) -> list[Death]:
        """Return how the workers ended that a plan with an epoch has ended, or one of those that count together with it."""
        variant = self.loading.by_epoch.get(epoch)
        return [] if variant is None else [death for plan in self._alike(variant.plan) for death in plan.deaths]

    def _has_ended_one(self, epoch: int, ended_by: EndedBy, *, by_loading: bool) -> bool:
        """Return whether a worker has ended so before; what wanted memory once does not crash for that, nor the other way round."""
        return any((before.ended_by, before.by_loading) == (ended_by, by_loading) for before in self._deaths(epoch))

    def _alike(self, plan: ServedPlan) -> list[ServedPlan]:
        """Return the plans whose deaths count together with those of this one."""
        if plan.standby is None or plan.is_proven:
            return [plan]
        return [other for other in self.planning.of_model(plan.standby) if not other.is_proven]

    def _quarantine(
        self, plan: ServedPlan, variant: Variant, request: Request | None, deaths: Sequence[Death], now: float
    ) -> list[CoordinatorInstruction]:
        what = "this model, whole," if plan.is_standby else f"the plan ({variant.name})"
        why = f"{what} has ended the workers of agents and is not run again: {_said(deaths)}"
        seconds = float("inf")
        if plan.is_proven or all(death.ended_by is EndedBy.MEMORY for death in deaths):
            seconds = min(LONGEST_QUARANTINE_S, FIRST_QUARANTINE_S * 4.0 ** min(plan.quarantines, 9))
            plan.quarantines += 1
            since = "since it has answered before" if plan.is_proven else "since there may be more memory later"
            why = f"{why}; {since}, only for {seconds:g} s"
        done: list[CoordinatorInstruction] = [Log(f"{plan.called}: {why}", is_warning=True, event="given up", model=plan.model)]
        if request is not None and request.number in self.requests.open:
            done += self.requests.table.fail(request.number, Fault.EXECUTION, f"request {request.number}: {why}")
        for each in self._alike(plan):
            done += self._give_up(each, why, now + seconds)
        if plan.is_standby:
            done += self.loading.saved(plan, plan.latest)
            # Neither is it to be planned meanwhile: a plan would load it everywhere, unless parts of it may fit.
            for other in self.planning.of_model(plan) if not plan.is_too_large else ():
                # One that has answered requests of its own goes on; of another nothing is known but that it is the same model.
                if not (other.serving and other.is_proven) and not other.quarantine:
                    done += self._give_up(other, why, now + seconds)
                done += self.planning.cancel(other)
        return done

    def _give_up(self, plan: ServedPlan, why: str, until: float) -> list[CoordinatorInstruction]:
        """Run a plan no more until then, and do not make it; what has answered nothing is not kept, and made again for whom asks then."""
        plan.quarantine, plan.quarantine_ends = why, until
        plan.is_dormant = plan.is_standby and not plan.is_proven and not plan.is_condemned
        self.loading.touch(plan)
        going = [] if plan.is_proven else list(plan.variants)
        dropped = [instruction for variant in going for instruction in self.requests.recovery.drop(variant)]
        return [*self.planning.cancel(plan), *dropped]


def _is_for_one_node(plan: ServedPlan, deaths: Sequence[Death]) -> bool:
    """Whether only one node lacks the memory to load what another one has loaded: its load is tried again later and later, then."""
    agents = {death.agent for death in deaths}
    lack_memory = all(death.by_loading and death.ended_by is EndedBy.MEMORY for death in deaths)
    return len(agents) == 1 and lack_memory and any(other.is_ready and agents.isdisjoint(other.parts) for other in plan.variants)


def _said(deaths: Sequence[Death]) -> str:
    return "; ".join(f"'{death.agent}': {death.reason}" for death in deaths[-MAX_DEATHS:])[:2000]
