"""What a coordinator does when something happens: events and the time in, instructions out.

Laws: the machine never waits and never looks at a clock; every call of a client gets one final answer, whatever agents do; a request that
ran on an agent that is lost runs again on another route of a stream, or fails at once, and the next one on its plan is planned anew over
the agents that are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from bbgrap.control.coordinator_events import (
    ChunkWritten,
    Event,
    FromPeer,
    Identity,
    Instruction,
    PlanFailed,
    Planned,
    RequestBroke,
    RequestDone,
    Settings,
    Tell,
    Tick,
    ToAgent,
    ToClient,
)
from bbgrap.control.deployments import Deployments
from bbgrap.control.dispatch import Requests
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Caller, Deployment, Plan, Route
from bbgrap.control.profiling import Measurements
from bbgrap.control.uploads import Uploads
from bbgrap.errors import RemoteProtocolError
from bbgrap.program.dictionaries import ways_of_palettes
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
    LinksMeasured,
    Measured,
    Recorded,
    Rejoin,
    RequestFailed,
    WeightsMissing,
    WeightStored,
)

NO_AGENT = "no agent is there to work; start one with: bbgrap-agent --join tcp://COORDINATOR:PORT"


class CoordinatorMachine:
    """The control side of the coordinator.

    Invariants: after every event, no route that should serve is idle while a request waits for it.
    """

    def __init__(self, settings: Settings, stored: Mapping[str, int] | None = None) -> None:
        """Start without agents and clients; `stored` are the model files kept from earlier, with their sizes in bytes."""
        self.settings = settings
        self.members = Members(settings)
        self.deployments = Deployments(settings, self.members)
        self.uploads = Uploads(dict(stored or {}))
        self.measurements = Measurements(settings, self.members)
        self.requests = Requests(settings, self.members, self.deployments)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event and return what is to be done, in order.

        Raises:
            RemoteProtocolError: if a peer sent what must not come now; nothing has changed then.
        """
        done = self._on_event(event, now)
        for deployment in list(self.deployments.by_epoch.values()):
            done += self.requests.go_on(deployment, now)
        return done

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
                deployment = self.deployments.by_epoch.get(event.epoch)
                return [] if deployment is None else self._give_up(deployment, "plan failed", event.fault, event.reason)
            case RequestDone():
                return self.requests.done(event, now)
            case RequestBroke():
                return self.requests.broke(event)

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
                | LinksMeasured()
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
                return self.deployments.deployed(member, message.epoch, now)
            case DeploymentFailed():
                found = self.deployments.find(message.epoch)
                if found is None or member.identity not in found[1].parts:
                    return []
                reason = f"agent '{member.name}' cannot run the deployment: {message.reason}"
                return self._lose_route(*found, "DeploymentFailed", reason, now)
            case RequestFailed():
                return self.requests.failed_on(member, message)
            case Recorded():
                return self.requests.recorded(member, message)
            case Measured():
                return self.measurements.measured(member, message, now)
            case LinksMeasured():
                return self.measurements.links_measured(member, message, now)
            case Leave():
                return self._lose(member, "Leave", "left", now)

    def _lose(self, member: Member, event: str, verb: str, now: float) -> list[Instruction]:
        """Take an agent out, fail what ran on it, and move what waits to the agents that are left."""
        self.members.remove(member, event)
        left = len(self.members.by_name)
        done: list[Instruction] = [Tell(f"agent '{member.name}' {verb}; {left} left"), *self.measurements.lost(member, now)]
        for deployment in [d for d in self.deployments.by_epoch.values() if d.concerns(member)]:
            broken = [route for route in deployment.routes if member.identity in route.parts]
            if deployment.is_stream and 0 < len(broken) < len(deployment.routes):
                for route in broken:
                    done += self._do_without(deployment, route, now)
                continue
            for number in sorted(number for route in broken for number in route.lane.running):
                reason = f"agent '{member.name}' {verb} while request {number} ran; {left} agents are left, submit again"
                done += self.requests.fail(number, "agent lost", Fault.EXECUTION, reason)
            # One that had been replaced may have ended with its last request.
            if deployment.epoch in self.deployments.by_epoch:
                done += self._replace(deployment, broken, now) if deployment.running else self._end_and_move(deployment, "agent lost", now)
        return done

    def _lose_route(self, deployment: Deployment, route: Route, event: str, reason: str, now: float) -> list[Instruction]:
        """Go on without a route that cannot be used, or end the deployment."""
        serves = deployment.tracker.state == "ready" and not deployment.is_stream
        if serves or len(deployment.routes) == 1:
            return self._give_up(deployment, event, Fault.EXECUTION, reason)
        return [Tell(f"deployment {deployment.epoch} goes on without {route.name}: {reason}"), *self._do_without(deployment, route, now)]

    def _do_without(self, deployment: Deployment, route: Route, now: float) -> list[Instruction]:
        """Take a route out; its requests are the next ones to start on another."""
        self.requests.take_back(deployment, route)
        done = self.deployments.drop(deployment, route)
        return [*done, *self.deployments.advance(deployment, now)] if deployment.tracker.state == "loading" else done

    def _replace(self, deployment: Deployment, broken: list[Route], now: float) -> list[Instruction]:
        """Let a deployment end with the requests that run on the routes it has left; whoever waits goes to a new one."""
        done = [instruction for route in broken for instruction in self.deployments.drop(deployment, route)]
        if deployment.plan.epoch != deployment.epoch:
            return done
        if deployment.callers or deployment.waiting:
            return [*done, *self.deployments.begin(deployment.plan, now)[1]]
        deployment.plan.epoch = None
        return done

    def _end_and_move(self, deployment: Deployment, event: str, now: float) -> list[Instruction]:
        callers, waiting = deployment.callers, deployment.waiting
        deployment.callers, deployment.waiting = [], []
        done = self.deployments.end(deployment, event)
        if not callers and not waiting:
            return done
        if not self.members.by_name:
            return [*done, *self._refuse(callers, waiting, Fault.UNAVAILABLE, NO_AGENT)]
        again, begun = self._deployment_for(deployment.plan, now, fresh=False)
        again.callers += callers
        again.waiting += waiting
        return [*done, *begun]

    def _refuse(self, callers: list[Caller], waiting: list[int], fault: Fault, reason: str) -> list[Instruction]:
        done: list[Instruction] = [ToClient(identity, Failed(call, fault, reason)) for identity, call in callers]
        for number in waiting:
            done += self.requests.fail(number, "failed", fault, reason)
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
        agents = len(deployment.members)
        wrong = [n for n in (len(a.devices) for a in (event.artifacts, *(o.artifacts for o in event.alternatives))) if n != agents]
        if wrong:
            reason = f"planner: expected programs for {agents} devices, got {wrong[0]}"
            return self._give_up(deployment, "plan failed", Fault.PLAN, reason)
        return self.deployments.planned(event, now)

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
            return ToClient(identity, Greeting(hello.call, self.settings.version, len(self.members.by_name), self.settings.shortcut))
        reason = f"client speaks protocol {hello.protocol} (bbgrap {hello.version}), this coordinator {PROTOCOL_VERSION}"
        return ToClient(identity, Failed(hello.call, Fault.PROTOCOL, f"{reason} (bbgrap {self.settings.version})"))

    def _is_known(self, caller: Caller) -> bool:
        preparing = any(caller in d.callers for d in self.deployments.by_epoch.values())
        return preparing or caller in self.requests.by_caller or self.measurements.is_known(caller)

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
        cluster = self.members.cluster(self.members.alive())
        if not ways_of_palettes(cluster, message.options.input_values):
            # Where inputs make no difference they shall make no second plan.
            message = replace(message, options=replace(message.options, input_values="any"))
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
        if caller in self.requests.by_caller:
            return []
        if not self.members.by_name:
            return [ToClient(identity, Failed(message.call, Fault.UNAVAILABLE, NO_AGENT))]
        deployment, done = self._deployment_for(plan, now, fresh=False)
        return [*done, *self.requests.add(caller, message, deployment, now)]

    def _on_cancel(self, caller: Caller) -> list[Instruction]:
        closed = self.requests.cancel(caller)
        if closed is not None:
            return closed
        for deployment in self.deployments.by_epoch.values():
            if caller in deployment.callers:
                deployment.callers.remove(caller)
        return []

    # --- time -------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Instruction]:
        done: list[Instruction] = []
        for member in self.members.silent(now, self.deployments.loading_agents):
            done += self._lose(member, "silence", "was lost", now)
        slow, again = self.deployments.overdue(now)
        done += again
        for deployment, route in slow:
            names = ", ".join(sorted(m.name for m in deployment.members if m.identity in route.pending))
            done += self._lose_route(deployment, route, "too slow", f"deployment: no answer from {names} in time", now)
        return [*done, *self.requests.overdue(now), *self.measurements.overdue(now)]

    def refuse(self, identity: Identity, error: RemoteProtocolError) -> list[Instruction]:
        """Note a message that could not be read or must not have come; it is dropped."""
        return [Tell(f"dropped a message of {identity.hex()[:12]}: {error}")]


def plan_key(message: PrepareModel) -> str:
    """Return the name of a plan: equal for equal model, shapes and options."""
    content = (message.model, sorted((name, tuple(shape)) for name, shape in message.shapes.items()), message.options)
    return hashlib.sha256(repr(content).encode()).hexdigest()
