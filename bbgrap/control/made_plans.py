"""What becomes of plans that were made: loaded at once, or held until they are earned or an agent is lost.

    Planned ── made ahead ──► held until it is earned ──┐
            ── for a loss ──► held until an agent goes ─┴─► room is made for its variants, and they are loaded
            ── else ────────────────────────────────────┘

Laws: at most `MAX_AHEAD` plans hold what was made ahead; what is held for the loss of an agent goes when that agent is gone for good;
where nodes have no room, that is a failure of the plan and is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ForgetPlan, Log
from bbgrap.control.eviction import Incoming, make_room
from bbgrap.control.loading import Loading
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.control.plans import IN_USE_S, Job, MadeAhead, ServedPlan
from bbgrap.protocol.faults import Fault

MAX_AHEAD = 32
"""Plans that are held until they are earned; the least recently asked one makes room. Chosen: each is a file of some megabytes."""
NO_ROOM = f"nodes have no room beside the variants of plans used in the last {IN_USE_S:.0f} s; it is loaded when some are not"


@dataclass(frozen=True, slots=True)
class MadePlans:
    """What planners have made of `plans`, all there are by key."""

    plans: Mapping[str, ServedPlan]
    loading: Loading

    def planned(self, plan: ServedPlan, job: Job, variants: tuple[PlannedVariant, ...], now: float) -> list[CoordinatorInstruction]:
        """Take what a job has made, to be loaded."""
        if job.is_ahead and job.spare_for:
            return self._hold_for_loss(plan, MadeAhead(job, variants[:1]))
        return self._hold(plan, MadeAhead(job, variants)) if job.is_ahead else self.take(plan, job, variants, now)

    def _hold(self, plan: ServedPlan, made: MadeAhead) -> list[CoordinatorInstruction]:
        """Hold what was made ahead; of too many plans the least recently asked one is forgotten."""
        plan.ahead = made
        # It may be earned by now, or somebody wants a search.
        self.loading.touch(plan)
        held = sorted((other for other in self.plans.values() if other.ahead is not None), key=lambda other: other.asked)
        return [i for other in held[:-MAX_AHEAD] for i in self.forget_ahead(other)]

    def forget_ahead(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Forget what was made ahead, if there is any."""
        ahead, plan.ahead = plan.ahead, None
        return [] if ahead is None else [ForgetPlan(ahead.job.number)]

    def _hold_for_loss(self, plan: ServedPlan, made: MadeAhead) -> list[CoordinatorInstruction]:
        """Hold what is to serve when an agent is lost, in place of what was held for that, or for agents that are gone for good."""
        name = made.job.spare_for
        done = self.forget_held(plan, name, *(plan.held.keys() - {*made.job.names}))
        plan.held[name] = made
        self.loading.touch(plan)
        return [*done, Log(f"{plan.called}: a plan without '{name}' is made, and is loaded when that is lost")] if made.variants else done

    def take_held(self, plan: ServedPlan, made: MadeAhead, now: float) -> list[CoordinatorInstruction]:
        """Have agents load what was made for the loss that has come; what was held for others is of the past."""
        del plan.held[made.job.spare_for]
        return [*self.forget_held(plan), *self.take(plan, replace(made.job, spare_for="", is_ahead=False), made.variants, now)]

    def forget_held(self, plan: ServedPlan, *names: str) -> list[CoordinatorInstruction]:
        """Forget what is held for the loss of these agents, or of all."""
        gone = [plan.held.pop(name) for name in names or tuple(plan.held) if name in plan.held]
        return [ForgetPlan(made.job.number) for made in gone if made.variants]

    def take(self, plan: ServedPlan, job: Job, variants: tuple[PlannedVariant, ...], now: float) -> list[CoordinatorInstruction]:
        """Have agents load what a job has made, if they have room."""
        chosen = variants[:1] if job.spare_for else variants
        parts = [planned.artifacts.devices for planned in chosen]
        # Where what it was to be like is gone, it was searched for.
        scaled = all(SCALED_FROM in planned.report for planned in chosen)
        coming = {name: Incoming.of([devices[device] for devices in parts], scaled=scaled) for device, name in enumerate(job.names)}
        done = make_room(self.loading, coming, plan, now)
        if done is None:
            return [ForgetPlan(job.number), *self.failed(plan, job, Fault.BUSY, f"plan: {NO_ROOM}", now)]
        if not job.spare_for:
            plan.latest = job.number
        nodes = list(zip(job.names, job.places, strict=True))
        for place, planned in enumerate(chosen):
            self.loading.add(plan, planned, nodes, job.number, job.world, now, place).is_spare = bool(job.spare_for)
        return done

    def failed(self, plan: ServedPlan, job: Job, fault: Fault, reason: str, now: float) -> list[CoordinatorInstruction]:
        """Remember that there is no plan for the world of a job; who waits for it is told."""
        if job.spare_for and job.is_ahead:
            return self._hold_for_loss(plan, MadeAhead(job, ()))
        if job.spare_for:
            self.loading.touch(plan)
            return [Log(plan.leave_uncovered(job.spare_for, reason))]
        if job.bases and fault is Fault.PLAN:
            plan.unlike = dict.fromkeys((base.job for base in job.bases), reason) | dict(plan.unlike)
        else:
            plan.fails(job.world, fault, reason, now)
        self.loading.touch(plan)
        return [Log(f"no plan for {plan.called}: {reason}", event="no plan", model=plan.model)]

    def release_others(self, plan: ServedPlan, job: int) -> list[CoordinatorInstruction]:
        """Release what a plan has loaded besides a job and the one over most other agents, which is for when those are there again."""
        nodes = {v.job: frozenset(name for name, _ in v.nodes) for v in plan.variants}
        untimed = {v.job for v in plan.variants if v.is_untimed}
        if nodes.get(job) == nodes.get(plan.latest) and plan.latest not in untimed:
            # What was made for these agents earlier is faster than what is made for them now: it stands for that, too.
            world = next((v.world for v in plan.variants if v.job == plan.latest), "")
            for variant in plan.variants:
                if variant.job == job:
                    variant.world = world
        others = [number for number in nodes if number != job and (nodes[number] != nodes.get(job) or number in untimed)]
        others.sort(key=lambda number: (len(nodes[number]), number), reverse=True)
        # The newest one, too, where another is faster (a spare): it would only be planned anew.
        kept = {job, plan.latest, *others[:1]}
        return [i for v in list(plan.variants) if v.job not in kept and not v.queue.running for i in self.loading.release(v)]
