"""Plans and their deployments: from a request to prepare a model to agents that have it loaded.

    PrepareModel or RunModel -> StartPlanning -> Planned -> Deploy to every device that takes part -> Deployed by all -> HostDeploy

A plan is what a client knows: model, shapes and options. A deployment (an epoch) is a plan on the agents of one moment. When an agent
goes, its deployments end; whoever still waits for one is moved to a new deployment over the agents that are left.
Laws: a plan has at most one current deployment; an ended deployment is forgotten by everyone who had a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from bbgrap.cluster.types import COORDINATOR, Cluster
from bbgrap.graph.types import TensorType
from bbgrap.planners.options import PlanOptions
from bbgrap.program.artifacts import Artifacts
from bbgrap.protocol.client_messages import ModelFile, ModelPrepared, Progress
from bbgrap.protocol.coordinator_events import (
    HostDeploy,
    HostRelease,
    Identity,
    Instruction,
    Planned,
    Settings,
    StartPlanning,
    Tell,
    ToAgent,
    ToClient,
)
from bbgrap.protocol.coordinator_members import Member, Members
from bbgrap.protocol.messages import Deploy, Peer, Release
from bbgrap.protocol.states import Role, Tracker

Caller = tuple[Identity, int]
"""A client and the number of its call."""


@dataclass(slots=True)
class Plan:
    """What a client asked to prepare; `epoch` is its current deployment, if it has one."""

    key: str
    files: tuple[ModelFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    options: PlanOptions
    epoch: int | None = None


@dataclass(slots=True)
class Deployment:
    """A plan on the agents of one moment.

    Invariants: `pending` are members that have not said `Deployed`; `callers` wait for `ModelPrepared`, `waiting` requests for the start;
    `running` requests have started and not ended.
    """

    epoch: int
    plan: Plan
    members: tuple[Member, ...]
    cluster: Cluster
    tracker: Tracker
    used: float
    parts: dict[Identity, Deploy] = field(default_factory=dict)
    artifacts: Artifacts | None = None
    report: str = ""
    pending: dict[Identity, float] = field(default_factory=dict)
    callers: list[Caller] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)

    def concerns(self, member: Member) -> bool:
        """Whether the deployment cannot go on without an agent."""
        return member.identity in self.parts if self.artifacts else any(m is member for m in self.members)

    def prepared(self, call: int) -> ModelPrepared:
        """Return the answer to `PrepareModel`."""
        return ModelPrepared(call, self.plan.key, self.epoch, tuple(m.name for m in self.members), self.report)


class Deployments:
    """All plans and live deployments.

    Invariants: `by_epoch` holds no ended deployment.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        """Start without plans."""
        self.settings = settings
        self.members = members
        self.plans: dict[str, Plan] = {}
        self.by_epoch: dict[int, Deployment] = {}
        self._epochs = count(settings.first_epoch)

    def remember(self, plan: Plan) -> Plan:
        """Return the plan of that key, the known one if there is one; the least recently asked one makes room."""
        known = self.plans.pop(plan.key, plan)
        self.plans[plan.key] = known
        while len(self.plans) > self.settings.max_plans:
            del self.plans[next(iter(self.plans))]
        return known

    def current(self, plan: Plan) -> Deployment | None:
        """Return the plan's deployment, be it ready or on its way."""
        return None if plan.epoch is None else self.by_epoch.get(plan.epoch)

    def is_up_to_date(self, deployment: Deployment) -> bool:
        """Whether a new deployment would see the same agents with the same profiles."""
        alive = self.members.alive()
        same = [m.identity for m in alive] == [m.identity for m in deployment.members]
        return same and self.members.cluster(alive) == deployment.cluster

    def begin(self, plan: Plan, now: float) -> tuple[Deployment, list[Instruction]]:
        """Start a deployment of a plan over all agents that live; there must be one."""
        done = self._make_room()
        old = self.current(plan)
        members = self.members.alive()
        epoch = next(self._epochs)
        cluster = self.members.cluster(members)
        deployment = Deployment(epoch, plan, members, cluster, Tracker(Role.DEPLOYMENT, f"epoch {epoch}"), used=now)
        self.by_epoch[epoch] = deployment
        plan.epoch = epoch
        if old is not None:
            deployment.callers, old.callers = old.callers, []
            deployment.waiting, old.waiting = old.waiting, []
            done += self.retire(old)
        return deployment, [*done, StartPlanning(epoch, plan.files, plan.shapes, cluster, plan.options)]

    def retire(self, deployment: Deployment) -> list[Instruction]:
        """End a deployment that was replaced, once its last request is done."""
        replaced = deployment.plan.epoch != deployment.epoch
        if not replaced or deployment.running or deployment.epoch not in self.by_epoch:
            return []
        return self.end(deployment, "released" if deployment.tracker.may("released") else "stop")

    def _make_room(self) -> list[Instruction]:
        """Release the least recently used deployment that is idle, if there are too many."""
        idle = [d for d in self.by_epoch.values() if d.tracker.state == "ready" and not d.running]
        if len(self.by_epoch) < self.settings.max_deployments or not idle:
            return []
        return self.end(min(idle, key=lambda d: d.used), "released")

    def planned(self, event: Planned, now: float) -> list[Instruction]:
        """Deploy what was planned to the agents that take part."""
        deployment = self.by_epoch[event.epoch]
        deployment.tracker.move("planned")
        deployment.artifacts, deployment.report = event.artifacts, event.report
        devices = list(zip(deployment.members, event.artifacts.devices, strict=True))
        addresses = [(m.name, m.join.data_address) for m, _ in devices] + [(COORDINATOR, self.settings.data_address)]
        peers = tuple(Peer(device, name, address) for device, (name, address) in enumerate(addresses))
        for member, part in devices:
            if part.schedule.steps:
                deployment.parts[member.identity] = Deploy(event.epoch, peers, part.schedule, part.segments)
        deployment.pending = dict.fromkeys(deployment.parts, now)
        return [*(ToAgent(identity, deploy) for identity, deploy in deployment.parts.items()), *self.progress(deployment)]

    def progress(self, deployment: Deployment) -> list[Instruction]:
        """Tell those who wait how far a deployment is."""
        if deployment.tracker.state == "planning":
            stage, done, total = "planning", 0, 1
        else:
            stage, total = "deploying", len(deployment.parts)
            done = total - len(deployment.pending)
        return [ToClient(identity, Progress(call, stage, done, total)) for identity, call in deployment.callers]

    def missing(self, member: Member, epoch: int, digests: Iterable[str], now: float) -> list[Instruction]:
        """Send an agent the weights it lacks."""
        deployment = self.by_epoch.get(epoch)
        if deployment is None or deployment.artifacts is None or member.identity not in deployment.parts:
            return [ToAgent(member.identity, Release(epoch))]
        deployment.tracker.move("WeightsMissing")
        if member.identity in deployment.pending:
            deployment.pending[member.identity] = now
        segments = deployment.parts[member.identity].segments
        types: dict[str, TensorType] = {ref.digest: ref.type for s in segments for ref in s.weights.values()}
        wanted = [d for d in digests if d in types]
        size = sum(types[d].nbytes for d in wanted)
        told = Tell(f"deployment {epoch} sends weights to '{member.name}': {len(wanted)} slices, {size:,} bytes")
        return [told, *member.feed(wanted, deployment.artifacts.weights, types)]

    def progressed(self, member: Member, now: float) -> None:
        """Note that an agent takes in weights: what is still loading on it is neither stuck nor too slow."""
        for deployment in self.by_epoch.values():
            if member.identity in deployment.pending:
                deployment.pending[member.identity] = deployment.used = now

    def deployed(self, member: Member, epoch: int, now: float) -> tuple[Deployment | None, list[Instruction]]:
        """Note that an agent is done; returns the deployment if that made it ready."""
        deployment = self.by_epoch.get(epoch)
        if deployment is None:
            return None, [ToAgent(member.identity, Release(epoch))]
        deployment.tracker.move("Deployed")
        deployment.pending.pop(member.identity, None)
        if deployment.tracker.state != "loading":
            return None, []
        return (deployment, []) if not deployment.pending else (None, self.progress(deployment))

    def ready(self, deployment: Deployment) -> list[Instruction]:
        """Become the host of a deployment that all agents have loaded."""
        deployment.tracker.move("all deployed")
        artifacts = deployment.artifacts
        if artifacts is None:
            return []
        peers = next(iter(deployment.parts.values())).peers if deployment.parts else ()
        taking_part = tuple(
            p for p in peers if p.device < artifacts.host.host and deployment.members[p.device].identity in deployment.parts
        )
        # From now on only the host's schedule is needed here; the agents hold their weights.
        deployment.artifacts = Artifacts((), artifacts.host, {})
        names = ", ".join(p.name for p in taking_part)
        return [HostDeploy(deployment.epoch, artifacts.host, taking_part), Tell(f"deployment {deployment.epoch} is ready on {names}")]

    def end(self, deployment: Deployment, event: str) -> list[Instruction]:
        """Forget a deployment everywhere. Its callers and requests are the caller's to move or fail."""
        deployment.tracker.move(event)
        del self.by_epoch[deployment.epoch]
        living = [identity for identity in deployment.parts if identity in self.members.by_identity]
        return [*(ToAgent(identity, Release(deployment.epoch)) for identity in living), HostRelease(deployment.epoch)]

    def overdue(self, now: float) -> tuple[list[Deployment], list[Instruction]]:
        """Return the deployments that take too long, and say again what other agents have not answered."""
        slow, again = [], list[Instruction]()
        for deployment in self.by_epoch.values():
            if deployment.tracker.state != "loading":
                continue
            if now - deployment.used > self.settings.deploy_within_s:
                slow.append(deployment)
            for identity, said in deployment.pending.items():
                if now - said > self.settings.resend_s:
                    deployment.pending[identity] = now
                    again.append(ToAgent(identity, deployment.parts[identity]))
        return slow, again
