"""A model's standby: the whole model on the best node that has room, and on a second one, for any shape, from the first request on.

    model brought -> StartStandby -> Planned -> a copy on the best node -> (it has answered, if it is asked) one on the next best
                                                                        -> (a node lost: one on another)

Law: who waits for a standby that cannot be is told why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_events import PlanFailed, Planned
from bbgrap.control.coordinator_instructions import CancelPlanning, CoordinatorInstruction, ForgetPlan, Log, StartStandby
from bbgrap.control.eviction import Incoming, make_room, room_for
from bbgrap.control.links import Links
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.planning import standby_key
from bbgrap.control.plans import IN_USE_S, Job, ServedPlan, Variant
from bbgrap.control.stalls import is_behind_another, is_stuck
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.faults import Fault

COPIES = 2
"""Nodes that have a model whole. Chosen: one may be lost, and the other answers."""
MAX_STANDBYS = 32
"""Models that have a standby loaded; the least recently asked one makes room."""
MUCH_TO_LOAD = 3
"""Variants that others do not wait behind. Chosen: those of a plan, which is loaded beside."""
SOON_S = 2.0
"""A model that takes longer to be sent to a node than that is sooner on a slower one that is nearer. Chosen."""


class Standbys:
    """The standbys of all models.

    Invariants: a node has at most one copy of a standby; of one that is dormant nothing is made or loaded. `by_model` has every standby
    that a plan refers to.
    """

    def __init__(self, members: Members, links: Links, loading: Loading) -> None:
        self.members = members
        self.links = links
        self.loading = loading
        self.by_model: dict[str, ServedPlan] = {}
        self.began = float("-inf")
        """When the coordinator came back to what an earlier one has left, in seconds."""

    def of(
        self, model: str, files: tuple[ModelFile, ...], state: tuple[tuple[str, str], ...] = (), top: tuple[tuple[str, int], ...] = ()
    ) -> ServedPlan:
        """Return the standby of a model that keeps this state and answers so; a new one, nothing of it loaded, if there is none."""
        key = standby_key(model, state, top)
        standby = self.by_model.get(key)
        if standby is None:
            standby = ServedPlan(key, model, files, {}, None, None, serves=True, state=state, top=top)
            self.by_model[key] = standby
        _awaken(standby)
        return standby

    def forget_oldest(self, plans: Collection[ServedPlan], now: float) -> list[CoordinatorInstruction]:
        """Take away the least recently asked standbys beyond `MAX_STANDBYS` that nobody uses; those of these plans stay known.

        Those of an earlier coordinator stay for a while: who uses them has not had the time to ask.
        """
        done: list[CoordinatorInstruction] = []
        has_just_begun = now - self.began <= IN_USE_S
        known = [standby for standby in self.by_model.values() if not (has_just_begun and standby.asked == self.began)]
        referred = {plan.standby for plan in plans}
        wanted = {plan.standby for plan in plans if plan.is_wanted}
        for standby in sorted(known, key=lambda standby: standby.asked)[:-MAX_STANDBYS]:
            if not standby.running and standby not in wanted:
                if standby.planned and not standby.variants:
                    done.append(ForgetPlan(standby.latest))  # else it goes with its last copy
                standby.is_dormant, standby.planned = True, ()
                done += [instruction for variant in list(standby.variants) for instruction in self.loading.release(variant)]
                job, standby.job = standby.job, None
                done += [] if job is None else [CancelPlanning(job.number)]
        self.by_model = {key: standby for key, standby in self.by_model.items() if not standby.is_dormant or standby in referred}
        return done

    def wake(self, standby: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Do what `consider` does for one that somebody waits for, dormant or not."""
        _awaken(standby)
        return self.consider(standby, now)

    def consider(self, standby: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Make the standby, and place the copies that are missing: the second when the first is ready."""
        standby.try_again(now)
        if standby.is_dormant or standby.quarantine or standby.failed or not self.members.by_name:
            return []
        if not standby.planned:
            if standby.job is not None:
                return []
            standby.job = Job(next(self.loading.epochs))
            return [StartStandby(standby.job.number, standby.files, standby.state, standby.top, standby.client)]
        there = [variant for variant in standby.variants if not variant.away]
        if len(there) >= COPIES or any(self._comes_first(variant) for variant in there):
            return []
        member = self._next_node(standby, now)
        if member is None:
            if standby.refused and not standby.variants and standby.refused.keys() >= self.members.by_name.keys():
                return self._make_anew(standby, now)
            return []
        if any(variant.tracker.state == "loading" and self._queue(variant) <= self.loading.to_load(member.name) for variant in there):
            # It would wait there as long.
            return []
        done = make_room(self.loading, {member.name: _incoming(standby)}, standby, now)
        if done is None:
            return []
        nodes = ((member.name, member.place),)
        self.loading.add(standby, standby.planned[0], nodes, standby.latest, "", now)
        return [*done, *self.loading.advance(standby, now)]

    def _make_anew(self, standby: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Make a standby again that no node can load: what is wrong may be what was made of it, a damaged file.

        Of one that was made just now its requests hear first; one that lay on the disk says nothing of the model.
        """
        standby.planned, was_restored, standby.is_restored = (), standby.is_restored, False
        if was_restored:
            standby.refused = {}
            standby.refusals.clear()
            return [ForgetPlan(standby.latest), *self.consider(standby, now)]
        standby.fails("", Fault.EXECUTION, next(iter(standby.refused.values())), now)
        return [ForgetPlan(standby.latest)]

    def _comes_first(self, variant: Variant) -> bool:
        """Whether the second copy waits for this one: until it is loaded, and until a model that somebody waits for has answered.

        It may never end, and then takes one agent. Where somebody waits and it has others to load first, which may end its worker again
        and again, another agent loads it, too; not what is in doubt itself, which that agent loads before all.
        """
        standby = variant.plan
        if variant.tracker.state == "loading":
            return not standby.outstanding or self._queue(variant) <= MUCH_TO_LOAD or self._is_in_doubt(variant)
        return bool(standby.outstanding) and not standby.is_proven and not is_behind_another(variant, self.loading)

    def _is_in_doubt(self, variant: Variant) -> bool:
        """Whether a worker has ended while it loaded a copy and computed something else: either may have ended it."""
        return any(member.was_ended_loading(variant.epoch) for member in self.members.living(variant.parts))

    def _queue(self, variant: Variant) -> int:
        """Return how many variants the agent of a copy has still to load."""
        return max(map(self.loading.to_load, variant.parts))

    def lacks_room(self, standby: ServedPlan, now: float) -> bool:
        """Whether no node has room for the model."""
        return bool(standby.planned and self.members.by_name and not standby.variants and self._next_node(standby, now) is None)

    def _next_node(self, standby: ServedPlan, now: float) -> Member | None:
        """Return the best node that has room for one more copy, or will have when others have gone.

        Last come those at a segment for unusually long, before them those where something in use goes, those that have much to load, and
        those behind a link over which the model takes long. Of those that are as fast as each other the one is best that inputs reach
        soonest. What has ended a worker does not go where another model has its last one.
        """
        alive = [m for m in self.members.alive() if frozenset((m.name, COORDINATOR)) not in self.links.apart]
        taken = {name for variant in standby.variants for name in variant.parts if name not in variant.away}
        free = [member for member in alive if member.name not in taken and member.name not in standby.refused]
        if not free:
            return None
        cluster = self.members.cluster(tuple(alive))
        shares, devices = cluster.shares, {member.name: device for device, member in enumerate(alive)}
        rooms = {member.name: room_for(self.loading, standby, member.name, _incoming(standby), now) for member in free}
        in_use = {name for name, room in rooms.items() if any(variant.plan.is_used(now) for variant in room.going)}
        able = [member for member in free if rooms[member.name].is_enough]
        alone = self._who_answer_alone(now) if standby.deaths else frozenset()

        size = sum(file.size for file in standby.files)

        def merits(member: Member) -> tuple[bool, bool, bool, bool, bool, float, float]:
            is_idle = self.loading.to_load(member.name) <= MUCH_TO_LOAD
            goes_well = not is_stuck(member, self.loading), member.name not in alone, member.name not in in_use, is_idle
            device = devices[member.name]
            bandwidth = cluster.link(cluster.host, device).bandwidth_bytes_per_s
            return *goes_well, size <= SOON_S * bandwidth, shares[device], bandwidth

        return max(able, key=merits, default=None)

    def _who_answer_alone(self, now: float) -> frozenset[str]:
        """Return the agents without which a model in use would have nothing that answers."""
        answers: dict[str, list[frozenset[str]]] = {}
        for variant in self.loading.by_epoch.values():
            if variant.takes_requests and variant.plan.is_used(now):
                answers.setdefault(variant.plan.model, []).append(frozenset(variant.parts))
        return frozenset().union(*(frozenset.intersection(*agents) for agents in answers.values()))

    def joined(self, member: Member) -> None:
        """Let a newcomer load what an agent of its name could not."""
        for standby in self.by_model.values():
            standby.refusals.pop(member.name, None)
            if standby.refused.pop(member.name, ""):
                standby.failed = {}
                standby.failures = 0
            self.loading.touch(standby)

    def planned(self, standby: ServedPlan, event: Planned) -> list[CoordinatorInstruction]:
        """Take what every copy is."""
        standby.planned, standby.latest, standby.is_restored = event.variants, event.job, False
        # The model's plans wait for what the standby comes to: also when it turns out that no node has room for it.
        self.loading.touch(standby)
        return []

    def waits_for_time(self, now: float) -> Iterator[ServedPlan]:
        """Yield the standbys of which something may be tried again, or of which a copy may wait for others, or for what does not end."""
        for standby in self.by_model.values():
            is_there = standby.is_proven and any(variant.is_ready for variant in standby.variants)
            if standby.again_at <= now or (standby.outstanding and not is_there):
                yield standby

    def failed(self, standby: ServedPlan, event: PlanFailed, now: float) -> list[CoordinatorInstruction]:
        """Remember why the model cannot be loaded whole."""
        standby.fails("", event.fault, event.reason, now)
        self.loading.touch(standby)
        return [Log(f"no standby for {standby.called}: {event.reason}", event="no plan", model=standby.model)]


def _awaken(standby: ServedPlan) -> None:
    """Let a standby be made again, unless it is not run for a while: who asks meanwhile is refused, and waits for nothing."""
    standby.is_dormant = standby.is_dormant and bool(standby.quarantine)


def _incoming(standby: ServedPlan) -> Incoming:
    return Incoming(1, int(standby.planned[0].report.get("memory_bytes", 0)))
