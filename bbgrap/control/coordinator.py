"""What a coordinator does when something happens: events and the time in, instructions out.

Laws: the machine never waits and never looks at a clock; every call of a client gets one final answer, whatever agents do; a request that
ran on an agent that is lost runs again, on another variant of its plan or on a new deployment over the agents that are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from bbgrap.control.coordinator_events import (
    ChunkWritten,
    Event,
    FromPeer,
    HostLinkBroken,
    Identity,
    Instruction,
    Log,
    PlanFailed,
    Planned,
    RequestBroke,
    RequestDone,
    Settings,
    Tick,
    ToAgent,
    ToClient,
)
from bbgrap.control.deployments import Deployments
from bbgrap.control.dispatch import NO_AGENT, Requests
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Caller, Plan
from bbgrap.control.profiling import Profiling
from bbgrap.control.uploads import Uploads
from bbgrap.program.dictionaries import dictionary_devices_of
from bbgrap.protocol.client_messages import (
    Ask,
    Cancel,
    ClientMessage,
    Failed,
    Fault,
    Greeting,
    Hello,
    ListNodes,
    MeasureNodes,
    ModelChunk,
    Nodes,
    OfferModel,
    PrepareModel,
    Profiles,
    RunModel,
    SetProfile,
    StillWorking,
)
from bbgrap.protocol.messages import (
    PROTOCOL_VERSION,
    AgentMessage,
    Deployed,
    DeploymentFailed,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    LinkBroken,
    LinksMeasured,
    LinksTried,
    Measured,
    Recorded,
    Rejoin,
    RequestFailed,
    WeightsMissing,
    WeightStored,
    WorkerLost,
)


class CoordinatorMachine:
    """The control side of the coordinator.

    Invariants: after every event, no variant that should serve is idle while a request waits for it.
    """

    def __init__(self, settings: Settings, stored: Mapping[str, int] | None = None) -> None:
        """Start without agents and clients; `stored` are the model files kept from earlier, with their sizes in bytes."""
        self.settings = settings
        self.members = Members(settings)
        self.deployments = Deployments(settings, self.members)
        self.uploads = Uploads(dict(stored or {}))
        self.profiling = Profiling(settings, self.members)
        self.requests = Requests(settings, self.members, self.deployments)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if a peer sent what must not come now; nothing has changed then.
        """
        done = self._on_event(event, now)
        return [*done, *self.requests.go_on(now)]

    def _on_event(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case FromPeer(identity, message):
                return self._on_message(identity, message, now)
            case Tick():
                return self._on_tick(now)
            case ChunkWritten():
                return self.uploads.written(event)
            case Planned():
                return self._on_planned(event, now)
            case PlanFailed():
                self.uploads.forget(event.gone)
                deployment = self.deployments.by_epoch.get(event.job)
                return [] if deployment is None else self.requests.give_up(deployment, event.fault, event.reason)
            case RequestDone():
                return self.requests.done(event, now)
            case RequestBroke():
                return self.requests.broke(event)
            case HostLinkBroken():
                return []

    # --- agents -----------------------------------------------------------------------------------------------------------------

    def _on_message(self, identity: Identity, message: AgentMessage | ClientMessage, now: float) -> list[Instruction]:
        if isinstance(message, Join):
            return self.members.join(identity, message, now)
        if not isinstance(message, AgentMessage):
            return self._on_client(identity, message, now)
        member = self.members.heard(identity, type(message).__name__, now)
        return [ToAgent(identity, member)] if isinstance(member, Rejoin) else self._on_agent(member, message, now)

    def _on_agent(self, member: Member, message: AgentMessage, now: float) -> list[Instruction]:  # noqa: C901 - one branch per message
        match message:
            case Join() | Heartbeat():
                return [ToAgent(member.identity, HeartbeatSeen())]
            case WeightsMissing():
                return self.deployments.missing(member, message.epoch, message.digests, now)
            case WeightStored():
                self.deployments.progressed(member, now)
                return member.acknowledge(message.digest, message.received)
            case Deployed():
                return self.deployments.deployed(member, message.epoch, now)
            case DeploymentFailed():
                found = self.deployments.find(message.epoch)
                if found is None or member.identity not in found[1].parts:
                    return []
                reason = f"agent '{member.name}' cannot run the deployment: {message.reason}"
                found[0].tracker.move("DeploymentFailed")
                return self.requests.lose_variant(*found, reason, now)
            case RequestFailed():
                return self.requests.failed_on(member, message)
            case Recorded():
                return self.requests.recorded(member, message)
            case Measured():
                return self.profiling.measured(member, message, now)
            case LinksMeasured():
                return self.profiling.links_measured(member, message, now)
            case LinksTried() | LinkBroken() | WorkerLost():
                return []
            case Leave():
                return self._lose(member, "Leave", "left", now)

    def _lose(self, member: Member, event: str, verb: str, now: float) -> list[Instruction]:
        """Take an agent out; what ran on it, or waited for it, runs again on what is left."""
        self.members.remove(member, event)
        done: list[Instruction] = [Log(f"agent '{member.name}' {verb}; {len(self.members.by_name)} left")]
        for deployment in self.deployments.concerned(member):
            done += self.requests.lose_agent(deployment, member)
        return [*done, *self.profiling.lost(member, now)]

    # --- deployments ------------------------------------------------------------------------------------------------------------

    def _on_planned(self, event: Planned, now: float) -> list[Instruction]:
        deployment = self.deployments.by_epoch.get(event.job)
        if deployment is None:
            return []
        agents = len(deployment.members)
        wrong = [n for n in (len(variant.artifacts.devices) for variant in event.variants) if n != agents]
        if wrong:
            return self.requests.give_up(deployment, Fault.PLAN, f"planner: expected programs for {agents} devices, got {wrong[0]}")
        return self.deployments.planned(deployment, event.variants, now)

    # --- clients ----------------------------------------------------------------------------------------------------------------

    def _on_client(self, identity: Identity, message: ClientMessage, now: float) -> list[Instruction]:  # noqa: C901 - one branch per message
        match message:
            case Hello():
                return [self._greet(identity, message)]
            case ListNodes():
                return [ToClient(identity, Nodes(message.call, self.members.statuses()))]
            case OfferModel():
                return self.uploads.offer(identity, message)
            case ModelChunk():
                return self.uploads.chunk(identity, message)
            case PrepareModel():
                return self._on_prepare(identity, message)
            case RunModel():
                return self._on_run(identity, message, now)
            case MeasureNodes():
                return self.profiling.begin(identity, message, now)
            case SetProfile():
                self.members.overrides[message.profile.name] = message.profile
                return [ToClient(identity, Profiles(message.call, (message.profile,)))]
            case Cancel():
                return self.requests.cancel((identity, message.call))
            case Ask():
                known = tuple(call for call in message.calls if self._will_answer((identity, call)))
                return [ToClient(identity, StillWorking(message.calls, known))]

    def _greet(self, identity: Identity, hello: Hello) -> Instruction:
        if hello.protocol == PROTOCOL_VERSION:
            return ToClient(identity, Greeting(hello.call, self.settings.version, len(self.members.by_name), self.settings.channel))
        reason = f"client speaks protocol {hello.protocol} (bbgrap {hello.version}), this coordinator {PROTOCOL_VERSION}"
        return ToClient(identity, Failed(hello.call, Fault.PROTOCOL, f"{reason} (bbgrap {self.settings.version})"))

    def _will_answer(self, caller: Caller) -> bool:
        return self.requests.is_known(caller) or self.profiling.is_known(caller)

    def _on_prepare(self, identity: Identity, message: PrepareModel) -> list[Instruction]:
        caller = (identity, message.call)
        files = self.uploads.files_of(message.model)
        if files is None:
            return [_failed(caller, Fault.UNKNOWN_MODEL, "model: the coordinator does not have it; offer it first")]
        if not self.members.by_name:
            return [_failed(caller, Fault.UNAVAILABLE, NO_AGENT)]
        if self.requests.is_known(caller):
            return []
        cluster = self.members.cluster(self.members.alive())
        if not dictionary_devices_of(cluster, message.options.input_values):
            # Where inputs make no difference they shall make no second plan.
            message = replace(message, options=replace(message.options, input_values="any"))
        plan = self.deployments.remember(Plan(plan_key(message), files, message.shapes, message.options))
        return [*self.deployments.renew(plan), *self.requests.prepare(caller, plan)]

    def _on_run(self, identity: Identity, message: RunModel, now: float) -> list[Instruction]:
        caller = (identity, message.call)
        plan = self.deployments.plans.get(message.plan)
        if plan is None:
            return [_failed(caller, Fault.UNKNOWN_PLAN, "plan: the coordinator does not have it; prepare the model again")]
        return [] if self.requests.is_known(caller) else self.requests.add(caller, message, plan, now)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Instruction]:
        done: list[Instruction] = []
        for member in self.members.silent(now, self.deployments.loading_agents):
            done += self._lose(member, "silence", "was lost", now)
        slow, again = self.deployments.overdue(now)
        done += again
        for deployment, variant in slow:
            names = ", ".join(sorted(m.name for m in deployment.members if m.identity in variant.pending))
            done += self.requests.lose_variant(deployment, variant, f"deployment: no answer from {names} in time", now)
        return [*done, *self.requests.overdue(now), *self.profiling.overdue(now)]


def _failed(caller: Caller, fault: Fault, reason: str) -> ToClient:
    return ToClient(caller[0], Failed(caller[1], fault, reason))


def plan_key(message: PrepareModel) -> str:
    """Return the name of a plan: equal for equal model, shapes and options."""
    content = (message.model, sorted((name, tuple(shape)) for name, shape in message.shapes.items()), message.options)
    return hashlib.sha256(repr(content).encode()).hexdigest()
