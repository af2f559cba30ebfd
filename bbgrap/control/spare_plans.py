"""Plans for the loss of an agent, where no node has room for the model: loaded beforehand as far as memory allows, else made beforehand.

Law: what could not be loaded is said, in the log and in the plan's report.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, StartPlanning
from bbgrap.control.links import Links
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Members
from bbgrap.control.planning import with_memory, world_of
from bbgrap.control.plans import Job, ServedPlan
from bbgrap.control.standby import Standbys

ROOM = 1.5
"""What is loaded on a node takes so many times its weights: they, and what kernels make of them. Chosen."""


@dataclass(frozen=True, slots=True)
class SparePlans:
    """Which losses are covered by a plan that is loaded, or held until then."""

    members: Members
    links: Links
    loading: Loading
    standbys: Standbys

    def consider(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Begin to plan for the next loss that is not covered."""
        standby = plan.standby
        if standby is None or standby.variants or plan.job is not None or plan.timing is not None or plan.options is None:
            return []
        if not self.standbys.lacks_room(standby, now) or not plan.serving:
            return []
        able = self.links.connected(self.members.alive())
        done: list[CoordinatorInstruction] = []
        for name in plan.serving[0].parts:
            rest = tuple(member for member in able if member.name != name)
            if len(rest) == len(able):
                continue
            if not rest:
                done += [] if name in plan.uncovered else [Log(plan.leave_uncovered(name, "no other agent is there"))]
                continue
            names, places = tuple(m.name for m in rest), tuple(m.place for m in rest)
            seen = self.members.cluster(rest)
            # One that was made when other profiles were known covers the loss as well.
            if world_of(seen) in plan.failed or any(tuple(there for there, _ in variant.nodes) == names for variant in plan.variants):
                continue
            is_held = name in plan.uncovered  # there is no room beside what serves, so it is for the room that this leaves
            if is_held and name in plan.held and plan.held[name].job.world == world_of(seen):
                continue
            # Beside what they have loaded, and what the lost one still takes of a machine.
            cluster = seen if is_held else with_memory(seen, lambda at: self.members.memory_of(at) - ROOM * self.loading.loaded_bytes(at))
            plan.job = Job(next(self.loading.epochs), world_of(seen), names, places, spare_for=name, is_ahead=is_held)
            return [*done, StartPlanning(plan.job.number, plan.files, plan.shapes, cluster, plan.options, client=plan.client)]
        return done
