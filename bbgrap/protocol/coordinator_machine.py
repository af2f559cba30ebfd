"""What a coordinator does when something happens: events and the time in, instructions out.

Laws: the machine never waits and never looks at a clock; every call of a client gets one final answer, whatever agents do; a request that
ran on an agent that is lost fails at once, and the next one on its plan is planned anew over the agents that are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from bbgrap.errors import RemoteProtocolError
from bbgrap.program.recording import Record
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
    RunResult,
    SetProfile,
    StillWorking,
)
from bbgrap.protocol.coordinator_calls import Measurements, Uploads
from bbgrap.protocol.coordinator_deployments import Caller, Deployment, Deployments, Plan
from bbgrap.protocol.coordinator_events import (
    ChunkWritten,
    DropRequest,
    Event,
    FromPeer,
    Identity,
    Instruction,
    PlanFailed,
    Planned,
    RequestBroke,
    RequestDone,
    Settings,
    StartRequest,
    Tell,
    Tick,
    ToAgent,
    ToClient,
)
from bbgrap.protocol.coordinator_members import Member, Members
from bbgrap.protocol.coordinator_records import Recordings
from bbgrap.protocol.messages import (
    PROTOCOL_VERSION,
    Abandon,
    AgentMessage,
    Deployed,
    DeploymentFailed,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Leave,
    Measured,
    Recorded,
    Rejoin,
    RequestFailed,
    WeightsMissing,
    WeightStored,
)
from bbgrap.protocol.states import Role, Tracker

NO_AGENT = "no agent is there to work; start one with: bbgrap-agent --join tcp://COORDINATOR:PORT"


@dataclass(slots=True)
class _Request:
    number: int
    caller: Caller
    message: RunModel
    plan: Plan
    deadline: float
    tracker: Tracker
    epoch: int = 0


class CoordinatorMachine:
    """The control side of the coordinator.

    Invariants: a request is in `requests` until it is answered; a running one is in its deployment's `running`, another in `waiting`.
    """

    def __init__(self, settings: Settings, stored: Mapping[str, int] | None = None) -> None:
        """Start without agents and clients; `stored` are the model files kept from earlier, with their sizes."""
        self.settings = settings
        self.members = Members(settings)
        self.deployments = Deployments(settings, self.members)
        self.uploads = Uploads(dict(stored or {}))
        self.measurements = Measurements(settings, self.members)
        self.recordings = Recordings(settings.records_within_s)
        self.requests: dict[int, _Request] = {}
        self._by_caller: dict[Caller, int] = {}
        self._numbers = count(1)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if a peer sent what must not come now; nothing has changed then.
        """
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
                deployment = self.deployments.by_epoch.get(event.epoch)
                return [] if deployment is None else self._give_up(deployment, "plan failed", event.fault, event.reason)
            case RequestDone():
                return self._on_done(event, now)
            case RequestBroke():
                request = self.requests.get(event.request)
                return [] if request is None else self._fail(request, "failed", event.fault, event.reason)

    # --- agents -----------------------------------------------------------------------------------------------------------------

    def _on_message(self, identity: Identity, message: AgentMessage | ClientMessage, now: float) -> list[Instruction]:
        match message:
            case Join():
                return self.members.join(identity, message, now)
            case (
                Heartbeat()
                | WeightsMissing()
                | WeightStored()
                | Deployed()
                | DeploymentFailed()
                | RequestFailed()
                | Recorded()
                | Measured()
                | Leave()
            ):
                member = self.members.heard(identity, type(message).__name__, now)
                return [ToAgent(identity, member)] if isinstance(member, Rejoin) else self._on_agent(member, message, now)
            case _:
                return self._on_client(identity, message, now)

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
                ready, done = self.deployments.deployed(member, message.epoch, now)
                return done if ready is None else [*done, *self._on_ready(ready)]
            case DeploymentFailed():
                deployment = self.deployments.by_epoch.get(message.epoch)
                if deployment is None or not deployment.concerns(member):
                    return []
                reason = f"agent '{member.name}' cannot run the deployment: {message.reason}"
                return self._give_up(deployment, "DeploymentFailed", Fault.EXECUTION, reason)
            case RequestFailed():
                request = self.requests.get(message.request)
                if request is None or request.epoch != message.epoch:
                    return []
                return self._fail(request, "RequestFailed", Fault.EXECUTION, f"agent '{member.name}': {message.reason}")
            case Recorded():
                return self._on_recorded(member, message)
            case Measured():
                return self.measurements.measured(member, message, now)
            case Leave():
                return self._lose(member, "Leave", "left", now)

    def _lose(self, member: Member, event: str, verb: str, now: float) -> list[Instruction]:
        """Take an agent out, fail what ran on it, and move what waits to the agents that are left."""
        self.members.remove(member, event)
        left = len(self.members.by_name)
        done: list[Instruction] = [Tell(f"agent '{member.name}' {verb}; {left} left"), *self.measurements.lost(member, now)]
        for deployment in [d for d in self.deployments.by_epoch.values() if d.concerns(member)]:
            for number in sorted(deployment.running):
                reason = f"agent '{member.name}' {verb} while request {number} ran; {left} agents are left, submit again"
                done += self._fail(self.requests[number], "agent lost", Fault.EXECUTION, reason)
            # One that had been replaced may have ended with its last request.
            if deployment.epoch in self.deployments.by_epoch:
                done += self._end_and_move(deployment, "agent lost", now)
        return done

    def _end_and_move(self, deployment: Deployment, event: str, now: float) -> list[Instruction]:
        callers, waiting = deployment.callers, deployment.waiting
        deployment.callers, deployment.waiting = [], []
        done = self.deployments.end(deployment, event)
        if not callers and not waiting:
            return done
        if not self.members.by_name:
            return [*done, *self._refuse(callers, waiting, Fault.UNAVAILABLE, NO_AGENT)]
        again, begun = self.deployments.begin(deployment.plan, now)
        again.callers += callers
        again.waiting += waiting
        return [*done, *begun]

    def _refuse(self, callers: list[Caller], waiting: list[int], fault: Fault, reason: str) -> list[Instruction]:
        done: list[Instruction] = [ToClient(identity, Failed(call, fault, reason)) for identity, call in callers]
        for number in waiting:
            done += self._fail(self.requests[number], "failed", fault, reason)
        return done

    def _give_up(self, deployment: Deployment, event: str, fault: Fault, reason: str) -> list[Instruction]:
        """End a deployment that cannot work and fail everything that needs it."""
        callers, requests = deployment.callers, [*deployment.waiting, *sorted(deployment.running)]
        deployment.callers, deployment.waiting = [], []
        done = self._refuse(callers, requests, fault, reason)
        if deployment.epoch in self.deployments.by_epoch:
            done += self.deployments.end(deployment, event)
        return [Tell(f"deployment {deployment.epoch} failed: {reason}"), *done]

    # --- deployments ------------------------------------------------------------------------------------------------------------

    def _on_planned(self, event: Planned, now: float) -> list[Instruction]:
        deployment = self.deployments.by_epoch.get(event.epoch)
        if deployment is None:
            return []
        planned, agents = len(event.artifacts.devices), len(deployment.members)
        if planned != agents:
            reason = f"planner: expected programs for {agents} devices, got {planned}"
            return self._give_up(deployment, "plan failed", Fault.PLAN, reason)
        done = self.deployments.planned(event, now)
        return done if deployment.pending else [*done, *self._on_ready(deployment)]

    def _on_ready(self, deployment: Deployment) -> list[Instruction]:
        done = self.deployments.ready(deployment)
        done += [ToClient(identity, deployment.prepared(call)) for identity, call in deployment.callers]
        waiting = deployment.waiting
        deployment.callers, deployment.waiting = [], []
        for number in waiting:
            done += self._start(self.requests[number], deployment)
        return done

    def _deployment_for(self, plan: Plan, now: float, *, fresh: bool) -> tuple[Deployment, list[Instruction]]:
        """Return the plan's deployment; begin one if there is none, or (`fresh`) if the agents have changed since."""
        deployment = self.deployments.current(plan)
        if deployment is None or (fresh and not self.deployments.is_up_to_date(deployment)):
            return self.deployments.begin(plan, now)
        deployment.used = now
        return deployment, []

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
                return self._on_prepare(identity, message, now)
            case RunModel():
                return self._on_run(identity, message, now)
            case MeasureNodes():
                return self.measurements.begin(identity, message, now)
            case SetProfile():
                self.members.overrides[message.profile.name] = message.profile
                return [ToClient(identity, Profiles(message.call, (message.profile,)))]
            case Cancel():
                return self._on_cancel((identity, message.call))
            case Ask():
                known = tuple(call for call in message.calls if self._is_known((identity, call)))
                return [ToClient(identity, StillWorking(message.calls, known))]

    def _greet(self, identity: Identity, hello: Hello) -> Instruction:
        if hello.protocol == PROTOCOL_VERSION:
            return ToClient(identity, Greeting(hello.call, self.settings.version, len(self.members.by_name)))
        reason = f"client speaks protocol {hello.protocol} (bbgrap {hello.version}), this coordinator {PROTOCOL_VERSION}"
        return ToClient(identity, Failed(hello.call, Fault.PROTOCOL, f"{reason} (bbgrap {self.settings.version})"))

    def _is_known(self, caller: Caller) -> bool:
        preparing = any(caller in d.callers for d in self.deployments.by_epoch.values())
        return preparing or caller in self._by_caller or self.measurements.is_known(caller)

    def _on_prepare(self, identity: Identity, message: PrepareModel, now: float) -> list[Instruction]:
        files = self.uploads.files_of(message.model)
        if files is None:
            return [
                ToClient(identity, Failed(message.call, Fault.UNKNOWN_MODEL, "model: the coordinator does not have it; offer it first"))
            ]
        if not self.members.by_name:
            return [ToClient(identity, Failed(message.call, Fault.UNAVAILABLE, NO_AGENT))]
        if self._is_known((identity, message.call)):
            return []
        plan = self.deployments.remember(Plan(plan_key(message), files, message.shapes, message.options))
        deployment, done = self._deployment_for(plan, now, fresh=True)
        if deployment.tracker.state == "ready":
            return [*done, ToClient(identity, deployment.prepared(message.call))]
        deployment.callers.append((identity, message.call))
        return [*done, *self.deployments.progress(deployment)]

    def _on_run(self, identity: Identity, message: RunModel, now: float) -> list[Instruction]:
        caller = (identity, message.call)
        plan = self.deployments.plans.get(message.plan)
        if plan is None:
            return [
                ToClient(
                    identity, Failed(message.call, Fault.UNKNOWN_PLAN, "plan: the coordinator does not have it; prepare the model again")
                )
            ]
        if caller in self._by_caller:
            return []
        if not self.members.by_name:
            return [ToClient(identity, Failed(message.call, Fault.UNAVAILABLE, NO_AGENT))]
        number = next(self._numbers)
        request = _Request(number, caller, message, plan, now + message.deadline_s, Tracker(Role.REQUEST, f"request {number}"))
        self.requests[number] = request
        self._by_caller[caller] = number
        deployment, done = self._deployment_for(plan, now, fresh=False)
        if deployment.tracker.state == "ready":
            return [*done, *self._start(request, deployment)]
        deployment.waiting.append(number)
        return done

    def _start(self, request: _Request, deployment: Deployment) -> list[Instruction]:
        request.tracker.move("deployed")
        request.epoch = deployment.epoch
        deployment.running.add(request.number)
        message = request.message
        if message.record:
            self.recordings.begin(request.number, {identity: part.schedule.device for identity, part in deployment.parts.items()})
        return [StartRequest(deployment.epoch, request.number, message.inputs, message.payload, message.record)]

    def _on_done(self, event: RequestDone, now: float) -> list[Instruction]:
        request = self.requests.get(event.request)
        if request is None:
            return []
        if request.message.record:
            request.tracker.move("computed")
            self.recordings.computed(event, now)
            return self._answer_recorded(request)
        return self._answer(request, event, ())

    def _on_recorded(self, member: Member, message: Recorded) -> list[Instruction]:
        request = self.requests.get(message.request)
        if request is None or request.epoch != message.epoch:
            return []
        self.recordings.take(message.request, member.identity, message.record)
        request.tracker.move("Recorded")
        return self._answer_recorded(request)

    def _answer_recorded(self, request: _Request) -> list[Instruction]:
        complete = self.recordings.complete(request.number)
        return [] if complete is None else self._answer(request, *complete)

    def _answer(self, request: _Request, event: RequestDone, records: tuple[Record, ...]) -> list[Instruction]:
        done = self._close(request, "finished")
        identity, call = request.caller
        return [ToClient(identity, RunResult(call, request.epoch, event.outputs, event.payload, records)), *done]

    def _fail(self, request: _Request, event: str, fault: Fault, reason: str) -> list[Instruction]:
        done = self._close(request, event)
        return [ToClient(request.caller[0], Failed(request.caller[1], fault, reason)), *done]

    def _close(self, request: _Request, event: str) -> list[Instruction]:
        """Forget a request here, and everywhere it may still run."""
        request.tracker.move(event)
        del self.requests[request.number], self._by_caller[request.caller]
        self.recordings.forget(request.number)
        deployment = self.deployments.by_epoch.get(request.epoch)
        if deployment is None or request.number not in deployment.running:
            for other in self.deployments.by_epoch.values():
                if request.number in other.waiting:
                    other.waiting.remove(request.number)
            return []
        deployment.running.discard(request.number)
        done: list[Instruction] = []
        if event != "finished":
            abandon = Abandon(request.epoch, request.number)
            living = [identity for identity in deployment.parts if identity in self.members.by_identity]
            done = [DropRequest(request.epoch, request.number), *(ToAgent(identity, abandon) for identity in living)]
        return [*done, *self.deployments.retire(deployment)]

    def _on_cancel(self, caller: Caller) -> list[Instruction]:
        number = self._by_caller.get(caller)
        if number is not None:
            return self._close(self.requests[number], "Cancel")
        for deployment in self.deployments.by_epoch.values():
            if caller in deployment.callers:
                deployment.callers.remove(caller)
        return []

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Instruction]:
        done: list[Instruction] = []
        for member in self.members.silent(now):
            done += self._lose(member, "silence", "was lost", now)
        slow, again = self.deployments.overdue(now)
        done += again
        for deployment in slow:
            names = ", ".join(sorted(m.name for m in deployment.members if m.identity in deployment.pending))
            done += self._give_up(deployment, "too slow", Fault.EXECUTION, f"deployment: no answer from {names} in time")
        for request in [r for r in self.requests.values() if now > r.deadline]:
            state = "ran" if request.tracker.state == "running" else "waited for its deployment"
            reason = f"request {request.number}: its deadline of {request.message.deadline_s:g} s passed while it {state}"
            done += self._fail(request, "deadline", Fault.EXECUTION, reason)
        for number in self.recordings.overdue(now):
            reason = f"request {number}: it was answered, but an agent has not told when it did what; trace again"
            done += self._fail(self.requests[number], "failed", Fault.EXECUTION, reason)
        return [*done, *self.measurements.overdue(now)]

    def refuse(self, identity: Identity, error: RemoteProtocolError) -> list[Instruction]:
        """Note a message that could not be read or must not have come; it is dropped."""
        return [Tell(f"dropped a message of {identity.hex()[:12]}: {error}")]


def plan_key(message: PrepareModel) -> str:
    """Return the name of a plan: equal for equal model, shapes and options."""
    content = (message.model, sorted((name, tuple(shape)) for name, shape in message.shapes.items()), message.options)
    return hashlib.sha256(repr(content).encode()).hexdigest()
