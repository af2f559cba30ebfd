"""Plans and their deployments: from a plan that is wanted to agents that have it loaded.

    begin -> StartPlanning -> Planned -> Deploy to every device that takes part -> Deployed by all -> HostDeploy

What plans, variants and deployments are: `bbgrap.control.plans`. Laws: a plan has at most one current deployment; an ended deployment is
forgotten by everyone who had a part in it; an agent loads one variant of a deployment at a time, so that weights they share travel once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_events import (
    DropRequest,
    HostDeploy,
    HostRelease,
    Identity,
    Instruction,
    Log,
    Settings,
    StartPlanning,
    ToAgent,
    ToClient,
)
from bbgrap.control.membership import Member, Members
from bbgrap.control.planned import PlannedVariant
from bbgrap.control.plans import Deployment, Plan, Variant
from bbgrap.control.states import Role, Tracker
from bbgrap.control.variants import InFlightQueue, LeastFinishTime, LowestLatency
from bbgrap.graph.types import TensorType
from bbgrap.protocol.client_messages import Progress
from bbgrap.protocol.messages import Abandon, Deploy, Peer, Release

MAX_PLANS = 64
"""Plans that are remembered; the least recently asked one is asked for again."""
MAX_DEPLOYMENTS = 8
"""Variants that an agent has loaded at once."""
IN_FLIGHT_PER_NODE = 2
"""Requests in flight for each node of a variant: one that it works on, and the next one's input."""
RESEND_S = 5.0
"""When an unanswered `Deploy` is said again."""
DEPLOY_WITHIN_S = 300.0
"""How long agents may load a variant without taking in weights."""


class Deployments:
    """All plans and live deployments.

    Invariants: `by_epoch` holds no ended deployment; `touched` are the plans for which something may have become possible.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        """Start without plans."""
        self.settings = settings
        self.members = members
        self.plans: dict[str, Plan] = {}
        self.by_epoch: dict[int, Deployment] = {}
        self.touched: dict[Plan, None] = {}
        self._variants: dict[int, tuple[Deployment, Variant]] = {}
        self._epochs = count(settings.first_epoch)

    def remember(self, plan: Plan) -> Plan:
        """Return the plan of that key, the known one if there is one; the least recently asked one makes room."""
        known = self.plans.pop(plan.key, plan)
        self.plans[plan.key] = known
        while len(self.plans) > MAX_PLANS:
            del self.plans[next(iter(self.plans))]
        return known

    def find(self, epoch: int) -> tuple[Deployment, Variant] | None:
        """Return the variant of that number, and its deployment."""
        return self._variants.get(epoch)

    def concerned(self, member: Member) -> list[Deployment]:
        """Return the deployments that an agent has a part in."""
        return [deployment for deployment in self.by_epoch.values() if deployment.concerns(member)]

    # --- coming -----------------------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan, now: float) -> list[Instruction]:
        """Start a deployment of a plan over all agents that live; there must be one."""
        done = self._make_room()
        members, epoch = self.members.alive(), next(self._epochs)
        cluster = self.members.cluster(members)
        deployment = Deployment(epoch, plan, members, cluster, Tracker(Role.DEPLOYMENT, f"epoch {epoch}"), now)
        self.by_epoch[epoch] = plan.deployment = deployment
        return [*done, StartPlanning(epoch, plan.files, plan.shapes, cluster, plan.options), *self.progress(deployment)]

    def renew(self, plan: Plan) -> list[Instruction]:
        """Leave the plan's deployment if a new one would see other agents or profiles; what runs on it ends there."""
        old, alive = plan.deployment, self.members.alive()
        if old is None or ([m.identity for m in alive] == [m.identity for m in old.members] and self.members.cluster(alive) == old.cluster):
            return []
        plan.deployment = None
        return self.retire(old)

    def _make_room(self) -> list[Instruction]:
        """Release what is idle, the least recently used first, as long as there is too much: spare variants, then deployments.

        A deployment without its other variants still serves; one that is gone takes a search when it is asked for again.
        """
        done: list[Instruction] = []
        while sum(d.load for d in self.by_epoch.values()) >= MAX_DEPLOYMENTS:
            idle = [d for d in self.by_epoch.values() if d.tracker.state == "ready" and not d.running and not d.plan.is_wanted]
            if not idle:
                break
            idle.sort(key=lambda d: d.used)
            lavish = next((d for d in idle if len(d.serving) < len(d.variants)), None)
            if lavish is None:
                done += self.end(idle[0])
                continue
            spare = [variant for variant in lavish.variants if variant not in lavish.serving]
            done += [Log(f"deployment {lavish.epoch}: {', '.join(variant.name for variant in spare)} released, to make room")]
            done += self.drop(lavish, spare)
        return done

    # --- loading ----------------------------------------------------------------------------------------------------------------

    def planned(self, deployment: Deployment, variants: Sequence[PlannedVariant], now: float) -> list[Instruction]:
        """Deploy what was planned to the agents that take part."""
        deployment.tracker.move("planned")
        deployment.variants = [self._variant(deployment, planned) for planned in variants]
        self._variants.update({variant.epoch: (deployment, variant) for variant in deployment.variants})
        epochs = [variant.epoch for variant in deployment.variants]
        deployment.policy = LeastFinishTime() if deployment.plan.is_stream else LowestLatency(epochs)
        return self.advance(deployment, now)

    def _variant(self, deployment: Deployment, planned: PlannedVariant) -> Variant:
        epoch = next(self._epochs)
        devices = list(zip(deployment.members, planned.artifacts.devices, strict=True))
        addresses = [(m.name, m.join.data_address) for m, _ in devices] + [(COORDINATOR, self.settings.data_address)]
        peers = tuple(Peer(device, name, address) for device, (name, address) in enumerate(addresses))
        working = {device: (m.identity, part) for device, (m, part) in enumerate(devices) if part.schedule.steps}
        parts = {identity: Deploy(epoch, peers, part.schedule, part.segments) for identity, part in working.values()}
        queue = InFlightQueue(epoch, IN_FLIGHT_PER_NODE * max(1, len(parts)))
        nodes = tuple(peer for peer in peers if peer.device in working)
        return Variant(planned.name, queue, planned.artifacts.host, planned.report, parts, nodes, planned.artifacts.weights)

    def advance(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Become the host of variants that are loaded, deploy those whose agents load no other one, and tell who waits how far it is."""
        done: list[Instruction] = []
        busy: set[Identity] = set()
        for variant in deployment.variants:
            if not variant.begun and not busy & variant.parts.keys():
                variant.begun, deployment.used = True, now
                variant.pending = dict.fromkeys(variant.parts, now)
                done += [ToAgent(identity, deploy) for identity, deploy in variant.parts.items()]
            busy |= variant.pending.keys() if variant.begun else variant.parts.keys()
            if variant.begun and not variant.pending and not variant.ready:
                variant.ready, variant.weights = True, {}
                names = ", ".join(peer.name for peer in variant.nodes)
                done += [HostDeploy(variant.epoch, variant.host, variant.nodes), Log(f"deployment {variant.epoch} is ready on {names}")]
        self.touched[deployment.plan] = None
        return [*done, *self.progress(deployment)]

    def progress(self, deployment: Deployment) -> list[Instruction]:
        """Tell those who wait how far a deployment is."""
        if deployment.tracker.state == "planning":
            stage, done, total = "planning", 0, 1
        else:
            stage = "deploying" if deployment.tracker.state == "loading" else "measuring"
            total = sum(len(variant.parts) for variant in deployment.variants)
            done = total - sum(len(variant.pending if variant.begun else variant.parts) for variant in deployment.variants)
        return [ToClient(identity, Progress(call, stage, done, total)) for identity, call in deployment.plan.callers]

    def missing(self, member: Member, epoch: int, digests: Iterable[str], now: float) -> list[Instruction]:
        """Send an agent the weights it lacks."""
        found = self.find(epoch)
        if found is None or member.identity not in found[1].parts:
            return [ToAgent(member.identity, Release(epoch))]
        deployment, variant = found
        deployment.tracker.move("WeightsMissing")
        if member.identity in variant.pending:
            variant.pending[member.identity] = now
        segments = variant.parts[member.identity].segments
        types: dict[str, TensorType] = {ref.digest: ref.type for s in segments for ref in s.weights.values()}
        wanted = [d for d in digests if d in types]
        size = sum(types[d].nbytes for d in wanted)
        log = Log(f"deployment {epoch} sends weights to '{member.name}': {len(wanted)} slices, {size:,} bytes")
        return [log, *member.feed(wanted, variant.weights, types)]

    def progressed(self, member: Member, now: float) -> None:
        """Note that an agent takes in weights: what is still loading on it is neither stuck nor too slow."""
        for deployment, variant in self._loading():
            if member.identity in variant.pending:
                variant.pending[member.identity] = deployment.used = now

    def deployed(self, member: Member, epoch: int, now: float) -> list[Instruction]:
        """Note that an agent is done."""
        found = self.find(epoch)
        if found is None:
            return [ToAgent(member.identity, Release(epoch))]
        deployment, variant = found
        deployment.tracker.move("Deployed")
        variant.pending.pop(member.identity, None)
        return self.advance(deployment, now) if deployment.tracker.state == "loading" else []

    def _loading(self) -> Iterator[tuple[Deployment, Variant]]:
        for deployment, variant in list(self._variants.values()):
            if variant.pending and deployment.tracker.state == "loading":
                yield deployment, variant

    @property
    def loading_agents(self) -> frozenset[Identity]:
        """Who has been told to load a deployment and has not said that it has."""
        return frozenset(identity for _, variant in self._loading() for identity in variant.pending)

    def overdue(self, now: float) -> tuple[list[tuple[Deployment, Variant]], list[Instruction]]:
        """Return the variants that take too long to load, and say again what other agents have not answered."""
        slow, again = [], list[Instruction]()
        for deployment, variant in self._loading():
            if now - deployment.used > DEPLOY_WITHIN_S:
                slow.append((deployment, variant))
            for identity, said in variant.pending.items():
                if now - said > RESEND_S:
                    variant.pending[identity] = now
                    again.append(ToAgent(identity, variant.parts[identity]))
        return slow, again

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def drop(self, deployment: Deployment, variants: Collection[Variant]) -> list[Instruction]:
        """Take variants on which nothing runs out of a deployment; without any left it ends."""
        if len(variants) == len(deployment.variants):
            return self.end(deployment)
        done: list[Instruction] = []
        for variant in variants:
            deployment.variants.remove(variant)
            deployment.policy.lost(variant.epoch)
            if deployment.timing is not None:
                deployment.timing.forget(variant.epoch)
            done += self._release(variant)
        return [*done, *self.retire(deployment)]

    def retire(self, deployment: Deployment) -> list[Instruction]:
        """End a deployment that is not its plan's any more, once its last request is done."""
        serves = deployment.plan.deployment is deployment
        return [] if serves or deployment.running or deployment.epoch not in self.by_epoch else self.end(deployment)

    def end(self, deployment: Deployment) -> list[Instruction]:
        """Forget a deployment everywhere; nothing may run on it. Who waits for its plan gets another one."""
        deployment.tracker.move("released")
        del self.by_epoch[deployment.epoch]
        if deployment.plan.deployment is deployment:
            deployment.plan.deployment = None
        self.touched[deployment.plan] = None
        return [instruction for variant in deployment.variants for instruction in self._release(variant)]

    def abandon(self, epoch: int, number: int) -> list[Instruction]:
        """Forget a request everywhere it may run."""
        found = self.find(epoch)
        living = [identity for identity in found[1].parts if identity in self.members.by_identity] if found else []
        return [DropRequest(epoch, number), *(ToAgent(identity, Abandon(epoch, number)) for identity in living)]

    def _release(self, variant: Variant) -> list[Instruction]:
        del self._variants[variant.epoch]
        living = [identity for identity in variant.parts if variant.begun and identity in self.members.by_identity]
        return [*(ToAgent(identity, Release(variant.epoch)) for identity in living), HostRelease(variant.epoch)]
