"""The life of variants: from programs to agents that have them loaded, away with an agent and back with it, until they are released.

    load -> Deploy to every agent that takes part -> Deployed by all -> HostDeploy          (an agent away: parted; back: ready again)

Laws: what is released is forgotten by everyone who had a part in it; an agent loads one variant of a plan at a time, so that weights they
share travel once; an agent that comes back with what it held loads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_instructions import (
    CoordinatorInstruction,
    DropRequest,
    ForgetPlan,
    HostDeploy,
    HostRelease,
    Log,
    SavePlan,
    ToAgent,
)
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.lifecycles import Lifecycle, Tracker
from bbgrap.control.membership import Member, Members
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.saved_state import StoredPlan, StoredVariant
from bbgrap.control.traffic import Traffic
from bbgrap.control.variants import InFlightQueue
from bbgrap.graph.types import TensorType
from bbgrap.protocol.addresses import place_of, split_place
from bbgrap.protocol.messages import Abandon, Deploy, LoadNext, Peer, Release

IN_FLIGHT_PER_NODE = 2
"""Requests in flight for each node of a variant: one that it works on, and the next one's input."""
RESEND_S = 5.0
"""When an unanswered `Deploy` is said again."""
DEPLOY_WITHIN_S = 300.0
"""How long agents may load a variant while they neither take in weights nor load another one."""
PATIENCE_S = 60.0
"""How long a kernel may go on with a request that nobody wants there any more. Chosen: no request that is well takes as long for one."""
OVERDUE_S = 0.5
"""How long it may after the request's deadline."""
KEEP_AWAY_S = 600.0
"""How long a variant is kept whose agents are away. Chosen: a machine that is started anew is back by then."""
MAX_AWAY = 32
"""Sets of nodes that are not all there, for each of which what a plan has is kept so long: that begins anew with every start of a
coordinator, and machines may have another name at each of theirs. Chosen: more than are gone at a time and come back."""
BACK_WITHIN_S = 30.0
"""How long all are kept. Chosen: who is there finds a coordinator that was started anew within seconds."""


class Loading:
    """All variants.

    Invariants: `by_epoch` holds no variant that has ended; `touched` are the plans for which something may have become possible.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        self.settings = settings
        self.members = members
        self.by_epoch: dict[int, Variant] = {}
        self.touched: dict[ServedPlan, None] = {}
        self.epochs = count(settings.first_epoch)
        self.traffic = Traffic()
        self._saved: set[int] = set()
        """The jobs that are kept over a restart."""

    def touch(self, plan: ServedPlan) -> None:
        """Look at a plan again before the event is over; at what is touched last first."""
        self.touched.pop(plan, None)
        self.touched[plan] = None

    def of_member(self, name: str) -> list[Variant]:
        """Return the variants that an agent has a part in."""
        return [variant for variant in self.by_epoch.values() if name in variant.parts]

    def to_load(self, name: str) -> int:
        """Return how many variants an agent has still to load: after it was started anew, all of them."""
        return sum(name in v.pending or name in v.away or v.tracker.state == "waiting" for v in self.of_member(name))

    def loaded_bytes(self, name: str, *, standbys: bool = False) -> int:
        """Return the bytes of the weights that an agent has been told to load: all, or those of standbys; equal ones count once."""
        types: dict[str, TensorType] = {}
        for variant in self.of_member(name):
            if variant.tracker.state != "waiting" and (variant.plan.is_standby or not standbys):
                types |= variant.parts[name].weight_types
        return sum(kind.nbytes for kind in types.values())

    def packed_bytes(self, name: str, but: Collection[int] = ()) -> int:
        """Return the bytes of the weights that kernels of an agent have packed, or will: equal segments once; without these epochs."""
        segments: dict[tuple[str, ...], int] = {}
        for variant in self.of_member(name):
            if variant.epoch not in but:
                segments |= variant.packed[name]
        return sum(segments.values())

    # --- coming -----------------------------------------------------------------------------------------------------------------

    def add(
        self, plan: ServedPlan, planned: PlannedVariant, nodes: Sequence[tuple[str, str]], job: int, world: str, now: float, place: int = 0
    ) -> Variant:
        """Make a variant on these agents (names and places, one per device) without telling them.

        `place` says which one it is of what the job made.
        """
        old = StoredVariant(next(self.epochs), tuple(nodes), place=place)
        return self._add(plan, planned, old, job, world, self.settings.place, now)

    def _add(self, plan: ServedPlan, planned: PlannedVariant, known: StoredVariant, job: int, world: str, host: str, now: float) -> Variant:
        epoch, nodes = known.epoch, known.nodes
        places = [*nodes, (COORDINATOR, host)]
        peers = tuple(Peer(device, name, *split_place(place)) for device, (name, place) in enumerate(places))
        parts = {
            name: Deploy(epoch, peers, part.schedule, part.segments, part.further)
            for (name, _), part in zip(nodes, planned.artifacts.devices, strict=True)
            if part.takes_part
        }
        queue = InFlightQueue(epoch, IN_FLIGHT_PER_NODE * max(1, len(parts)))
        variant = Variant(plan, job, world, planned, queue, nodes, parts, Tracker(Lifecycle.VARIANT, f"epoch {epoch}"), now, known.place)
        self.by_epoch[epoch] = variant
        plan.variants.append(variant)
        plan.policy.add(epoch)
        self.touch(plan)
        return variant

    def restore(self, plan: ServedPlan, stored: StoredPlan, planned: Sequence[PlannedVariant], now: float) -> None:
        """Know the variants of an earlier coordinator, whose agents are all away."""
        for old in stored.variants:
            content = planned[old.place]
            variant = self._add(plan, content, old, stored.job, stored.world, stored.host_address, now)
            variant.is_untimed = not old.median_s and any(other.median_s for other in stored.variants)
            variant.tracker.move("load")
            variant.away = dict.fromkeys(variant.parts, now)
            if variant.away:
                variant.tracker.move("agent away")
        known = dict(plan.policy.medians) | {v.epoch: v.median_s for v in stored.variants if v.median_s}
        plan.policy.begin({epoch: known[epoch] for epoch in sorted(known, key=lambda epoch: len(self.by_epoch[epoch].parts))})
        self._saved.add(stored.job)

    def advance(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Begin to load the variants of a plan whose agents load no other one of it, and be the host of those that are loaded."""
        done: list[CoordinatorInstruction] = []
        busy: set[str] = set()
        for variant in list(plan.variants):
            state = variant.tracker.state
            if state == "waiting" and variant.away:
                # It waits for an agent, others do not wait for it.
                continue
            if state == "waiting" and not busy & variant.parts.keys():
                done += self._load(variant, now)
            elif state == "loading" and not variant.pending:
                done += self._ready(variant)
            busy |= variant.pending.keys() if variant.tracker.state != "waiting" else variant.parts.keys()
        return done

    def _load(self, variant: Variant, now: float) -> list[CoordinatorInstruction]:
        variant.tracker.move("load")
        variant.used = now
        variant.pending = dict.fromkeys(variant.parts, now)
        done = [instruction for name in variant.parts for instruction in self._tell(variant, name)]
        return done if variant.pending else [*done, *self._ready(variant)]

    def _tell(self, variant: Variant, name: str) -> list[CoordinatorInstruction]:
        member = self.members.by_name.get(name)
        if member is None:
            return []
        hurry = [ToAgent(member.identity, LoadNext(variant.epoch))] if name in variant.hurried else []
        return [ToAgent(member.identity, variant.parts[name]), *hurry]

    def hurry(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Have agents that have much to load begin with what somebody waits for; it is said once for each load."""
        done: list[CoordinatorInstruction] = []
        for variant in [variant for variant in plan.variants if variant.tracker.state == "loading"]:
            for member in self.members.living(name for name in variant.pending if name not in variant.hurried):
                if self.to_load(member.name) > 1:
                    variant.hurried.add(member.name)
                    done.append(ToAgent(member.identity, LoadNext(variant.epoch)))
        return done

    def _ready(self, variant: Variant) -> list[CoordinatorInstruction]:
        variant.tracker.move("all loaded")
        for name in variant.parts:
            variant.plan.refusals.pop(name, None)
        if variant.plan.is_standby and not variant.plan.refused and all(copy.is_ready for copy in variant.plan.variants):
            variant.plan.failures = 0  # of a plan, once it serves
        self.touch(variant.plan)
        if variant.hosted:
            return []
        variant.hosted = True
        plan = variant.plan
        kept = self.saved(plan, variant.job) if plan.is_standby or plan.timed == variant.job else []
        names, artifacts = ", ".join(peer.name for peer in variant.peers), variant.planned.artifacts
        return [
            *kept,
            HostDeploy(variant.epoch, artifacts.host, variant.peers, artifacts.further, artifacts.reading),
            Log(
                f"{variant.plan.called}: {variant.name} is ready on {names or 'no agent'}",
                event="loaded",
                model=variant.plan.model,
                epoch=variant.epoch,
            ),
        ]

    def missing(self, member: Member, epoch: int, digests: Iterable[str], now: float) -> list[CoordinatorInstruction]:
        """Send an agent the weights it lacks."""
        variant = self.by_epoch.get(epoch)
        if variant is None or member.name not in variant.parts:
            return [ToAgent(member.identity, Release(epoch))]
        variant.tracker.move("WeightsMissing")
        if member.name in variant.pending:
            variant.pending[member.name] = now
        types = variant.parts[member.name].weight_types
        wanted = [d for d in digests if d in types]
        size = sum(types[d].nbytes for d in wanted)
        log = Log(f"epoch {epoch} sends weights to '{member.name}': {len(wanted)} slices, {size:,} bytes", node=member.name, epoch=epoch)
        return [log, *member.weights.send(wanted, variant.planned.artifacts.weights, types, now)]

    def progressed(self, member: Member, now: float) -> None:
        """Note that an agent takes in weights: what is still loading on it is neither stuck nor too slow."""
        for variant in self._loading():
            if member.name in variant.pending:
                variant.pending[member.name] = variant.used = now

    def deployed(self, member: Member, epoch: int, now: float) -> list[CoordinatorInstruction]:
        """Note that an agent is done."""
        variant = self.by_epoch.get(epoch)
        if variant is None or member.name not in variant.parts:
            return [ToAgent(member.identity, Release(epoch))]
        variant.tracker.move("Deployed")
        variant.pending.pop(member.name, None)
        for other in self._loading():
            if member.name in other.pending:
                other.used = now  # it has its turn later
        self.touch(variant.plan)
        told = list[CoordinatorInstruction]()
        if member.reloads and member.name not in self.loading_agents:
            member.reloads = False
            told.append(Log(f"agent '{member.name}' has loaded again what its lost worker had", event="loaded", node=member.name))
        return [*told, *self.advance(variant.plan, now)]

    def say_again(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Say again what an agent is to load and has not loaded."""
        return [instruction for variant in self.put_off(member, now) for instruction in self._tell(variant, member.name)]

    def put_off(self, member: Member, now: float) -> list[Variant]:
        """Return what an agent is to load and has not loaded; as if it had just been told, so that it is not again for a while."""
        mine = [variant for variant in self._loading() if member.name in variant.pending]
        for variant in mine:
            variant.pending[member.name] = now
        return mine

    def _loading(self) -> Iterator[Variant]:
        for variant in list(self.by_epoch.values()):
            if variant.pending:
                yield variant

    @property
    def is_anything_running(self) -> bool:
        """Whether any request is in flight, of a client or of the coordinator itself."""
        return any(variant.queue.running for variant in self.by_epoch.values())

    @property
    def busy_agents(self) -> frozenset[str]:
        """On whom anything runs, and who loads something."""
        return self.loading_agents | {name for variant in self.by_epoch.values() if variant.queue.running for name in variant.parts}

    @property
    def loading_agents(self) -> frozenset[str]:
        """Who has been told to load something and has not said that it has."""
        return frozenset(name for variant in self._loading() for name in variant.pending)

    def overdue(self, now: float) -> tuple[list[Variant], list[CoordinatorInstruction]]:
        """Return the variants that take too long to load or were parted for too long, and say again what agents have not answered."""
        late, again = [], list[CoordinatorInstruction]()
        gone: dict[ServedPlan, dict[tuple[tuple[str, str], ...], None]] = {}
        for variant in [variant for variant in reversed(self.by_epoch.values()) if variant.away]:
            gone.setdefault(variant.plan, {})[variant.nodes] = None
        kept = {(plan, nodes) for plan, sets in gone.items() for nodes in list(sets)[:MAX_AWAY]}  # that came last
        for variant in [variant for variant in self.by_epoch.values() if variant.away or variant.pending]:
            patience_s = KEEP_AWAY_S if (variant.plan, variant.nodes) in kept else BACK_WITHIN_S
            if (variant.away and now - max(variant.away.values()) > patience_s) or (
                variant.pending and now - variant.used > DEPLOY_WITHIN_S
            ):
                late.append(variant)
            for name, said in variant.pending.items():
                if name not in variant.away and now - said > RESEND_S:
                    variant.pending[name] = now
                    again += self._tell(variant, name)
        return late, again

    # --- away and back ----------------------------------------------------------------------------------------------------------

    def part(self, member: Member, now: float) -> list[Variant]:
        """Note that an agent is gone; returns the variants that it had a part in."""
        concerned = self.of_member(member.name)
        for variant in concerned:
            variant.tracker.move("agent away")
            variant.away[member.name] = now
            variant.pending.pop(member.name, None)
            variant.hurried.discard(member.name)
            variant.suspects.discard(member.name)
            self.touch(variant.plan)
        return concerned

    def load_again(self, member: Member, now: float, holds: Collection[int] | None = None) -> list[Variant]:
        """Note that an agent loads all it has anew, by itself; returns the variants that it has a part in.

        Or, if it says what it `holds`, those that it has not and has said to have: that it lost them may have been lost.
        """
        concerned = [v for v in self.of_member(member.name) if v.tracker.state != "waiting" and member.name not in v.away]
        if holds is not None:
            concerned = [v for v in concerned if v.epoch not in holds and member.name not in v.pending]
        for variant in concerned:
            variant.tracker.move("load again")
            variant.used, variant.emptied = now, next(self.epochs)
            # What it has not said to have loaded it may never have been told of: that is said again when it is due.
            variant.pending.setdefault(member.name, now)
            variant.hurried.discard(member.name)
            self.touch(variant.plan)
        member.reloads = member.reloads or bool(concerned)
        return concerned

    def back(self, member: Member, holds: Sequence[int], now: float) -> tuple[tuple[int, ...], list[CoordinatorInstruction]]:
        """Take an agent back; returns the epochs that it shall keep, and what is to be said after it has been welcomed.

        What it has lost it loads in the order in which it is needed: models that were asked for last, and whole ones before their plans.
        """
        kept, done = [], list[CoordinatorInstruction]()
        for variant in sorted(self.of_member(member.name), key=lambda variant: (-variant.plan.asked, not variant.plan.is_standby)):
            if member.name not in variant.away:
                continue
            del variant.away[member.name]
            if variant.epoch in holds and dict(variant.nodes)[member.name] == member.place:
                kept.append(variant.epoch)
            elif variant.tracker.state == "parted":
                variant.pending[member.name], variant.emptied = now, next(self.epochs)
            if not variant.away:
                done += self._reunite(variant, now)
        return tuple(kept), done

    def _reunite(self, variant: Variant, now: float) -> list[CoordinatorInstruction]:
        """Go on with a variant whose agents are all there: as it is, or under a new epoch if one has moved to another address."""
        self.touch(variant.plan)
        peers = next((deploy.peers for deploy in variant.parts.values()), ())
        is_host_there = all(place_of(peer.address, peer.fingerprint) == self.settings.place for peer in peers[-1:])
        if is_host_there and self._nodes_now(variant) == variant.nodes:
            if variant.tracker.state != "parted":
                return []
            variant.tracker.move("agents back")
            variant.used = now
            again = [instruction for name in variant.pending for instruction in self._tell(variant, name)]
            return again if variant.pending else self._ready(variant)
        return self.renew(variant, now)

    def renew(self, variant: Variant, now: float) -> list[CoordinatorInstruction]:
        """Load a variant on which nothing runs anew, under a new epoch, where its agents are now."""
        plan = variant.plan
        renewed = self.add(plan, variant.planned, self._nodes_now(variant), variant.job, variant.world, now, variant.place)
        renewed.is_spare = variant.is_spare
        renewed.is_untimed = variant.is_untimed or (plan.timing is not None and plan.timing.forget(variant.epoch))
        plan.policy.renew(variant.epoch, renewed.epoch)
        return [*self.release(variant), *self.advance(plan, now)]

    def _nodes_now(self, variant: Variant) -> tuple[tuple[str, str], ...]:
        by_name = self.members.by_name
        return tuple((name, by_name[name].place if name in by_name else before) for name, before in variant.nodes)

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def lose(self, variant: Variant) -> list[CoordinatorInstruction]:
        """Release a variant that its plan may miss: what is left of its job is no plan for its world, unless of that one is faster."""
        plan, medians = variant.plan, variant.plan.policy.medians
        left = [other for other in plan.variants if other.job == variant.job and other is not variant]
        slower_than = medians.get(variant.epoch, 0.0)
        if plan.is_stream or not any(medians.get(other.epoch, float("inf")) < slower_than for other in left):
            for other in left:
                other.world = ""
        return self.release(variant)

    def release(self, variant: Variant) -> list[CoordinatorInstruction]:
        """Forget a variant everywhere; nothing may run on it."""
        plan = variant.plan
        told = variant.tracker.state != "waiting"
        variant.tracker.move("released")
        del self.by_epoch[variant.epoch]
        self.traffic.settle(variant)
        plan.variants.remove(variant)
        plan.policy.lost(variant.epoch)
        if plan.timing is not None:
            plan.timing.forget(variant.epoch)
        self.touch(plan)
        done: list[CoordinatorInstruction] = []
        for member in self.members.living(variant.parts) if told else ():
            # Who was not told has not asked: of what is lost on the way, nobody would say so.
            others = (other.parts[member.name] for other in self.of_member(member.name) if other.tracker.state != "waiting")
            wanted = {digest for part in others for digest in part.weight_types}
            done += [ToAgent(member.identity, Release(variant.epoch)), *member.weights.keep(wanted)]
        # Also of what was never hosted: on disk, what an earlier coordinator has left counts as loaded until then.
        done.append(HostRelease(variant.epoch))
        if any(other.job == variant.job for other in plan.variants) or (plan.is_standby and plan.planned):
            # Of a standby also that no copy is left: what has made room is not to be loaded again after a restart.
            return [*done, *(self.saved(plan, variant.job) if variant.job in self._saved else [])]
        self._saved.discard(variant.job)
        return [*done, ForgetPlan(variant.job)]

    def abandon(self, variant: Variant, number: int, patience_s: float = PATIENCE_S) -> list[CoordinatorInstruction]:
        """Forget a request everywhere it may run; a worker that does not leave it within `patience_s` is ended."""
        told = Abandon(variant.epoch, number, patience_s)
        return [DropRequest(variant.epoch, number), *(ToAgent(member.identity, told) for member in self.members.living(variant.parts))]

    def saved(self, plan: ServedPlan, job: int) -> list[CoordinatorInstruction]:
        """Keep what a job came to over a restart; of a standby also that it is not to be run any more, when no copy is left."""
        group = [variant for variant in plan.variants if variant.job == job]
        if any(variant.is_scaled for variant in group):
            return []  # it is made again in no time
        if plan.state or plan.top:
            return []  # sequences end with the coordinator; other ways to answer are mostly theirs, and asked for again
        if not group and not (plan.is_standby and plan.planned):
            return []
        medians = plan.policy.medians
        variants = tuple(StoredVariant(v.epoch, v.nodes, medians.get(v.epoch, 0.0), v.place) for v in group)
        why = plan.quarantine if plan.is_condemned else ""
        world, address = next((variant.world for variant in group), ""), self.settings.place
        self._saved.add(job)
        return [SavePlan(StoredPlan(job, plan.key, plan.model, plan.shapes, plan.options, world, address, variants, why))]
