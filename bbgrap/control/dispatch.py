"""Requests on their way through routes: those of clients, and the made-up ones that time the routes of a new deployment.

    RunModel -> waiting -> (a route has room) running -> answered
                   ^------- the route is lost --'   (a recorded one: running -> recording -> answered)

Laws: every request is answered exactly once; after `go_on`, no route that should serve is idle while a request waits for it; a
route is timed by requests that had the coordinator to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from bbgrap.control.coordinator_events import (
    DropRequest,
    Instruction,
    RequestBroke,
    RequestDone,
    Settings,
    StartRequest,
    Tell,
    ToAgent,
    ToClient,
)
from bbgrap.control.deployments import Deployments
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Caller, Deployment, Plan, Route
from bbgrap.control.recordings import Recordings
from bbgrap.control.states import Role, Tracker
from bbgrap.control.variants import MEASURE_S, Measuring
from bbgrap.protocol.client_messages import Failed, Fault, RunModel, RunResult
from bbgrap.protocol.messages import Abandon, Recorded, RequestFailed
from bbgrap.protocol.tensors import Inputs, made_up
from bbgrap.runtime.recording import Record


@dataclass(slots=True)
class Request:
    """A request of a client; `epoch` is that of the route it runs on."""

    number: int
    caller: Caller
    message: RunModel
    plan: Plan
    deadline: float
    tracker: Tracker
    epoch: int = 0

    @property
    def bytes(self) -> int:
        """What its inputs take while it waits."""
        return sum(len(part) for part in self.message.payload)


@dataclass(frozen=True, slots=True)
class _Probe:
    """A made-up request that times a route."""

    deployment: Deployment
    epoch: int
    started: float


class Requests:
    """All requests that are not answered.

    Invariants: a running one is in its route's lane, another in a deployment's `waiting`. `_lonely` is the request that began while
    nothing else ran, as long as nothing else has begun.
    """

    def __init__(self, settings: Settings, members: Members, deployments: Deployments) -> None:
        """Start without requests."""
        self.settings = settings
        self.members = members
        self.deployments = deployments
        self.recordings = Recordings(settings.records_within_s)
        self.open: dict[int, Request] = {}
        self.by_caller: dict[Caller, int] = {}
        self._probes: dict[int, _Probe] = {}
        self._lonely = 0
        self._numbers = count(1)

    # --- coming -----------------------------------------------------------------------------------------------------------------

    def add(self, caller: Caller, message: RunModel, deployment: Deployment, now: float) -> list[Instruction]:
        """Queue a request; `go_on` starts it. With a full queue the answer is that the plan is busy."""
        waiting, size = len(deployment.waiting), sum(self.open[number].bytes for number in deployment.waiting)
        if waiting >= self.settings.max_waiting or size >= self.settings.max_waiting_bytes:
            reason = f"coordinator: {waiting} requests ({size:,} bytes) wait for this plan already; submit again when some are answered"
            return [ToClient(caller[0], Failed(caller[1], Fault.BUSY, reason))]
        number = next(self._numbers)
        tracker = Tracker(Role.REQUEST, f"request {number}")
        self.open[number] = Request(number, caller, message, deployment.plan, now + message.deadline_s, tracker)
        self.by_caller[caller] = number
        deployment.waiting.append(number)
        return []

    def go_on(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Do what a deployment is ready for: time its routes, answer its callers, start what waits."""
        done: list[Instruction] = []
        if deployment.tracker.state == "loading" and all(route.ready for route in deployment.routes):
            done += self._begin_measuring(deployment, now)
        if deployment.tracker.state == "measuring":
            done += self._measure(deployment, now)
        if deployment.tracker.state == "ready":
            done += [ToClient(identity, deployment.prepared(call)) for identity, call in deployment.callers]
            deployment.callers = []
        while deployment.tracker.state == "ready" and deployment.waiting:
            lane = deployment.policy.choose([route.lane for route in deployment.routes], now)
            if lane is None:
                break
            route = next(route for route in deployment.routes if route.lane is lane)
            done.append(self._start(self.open[deployment.waiting.pop(0)], route, now))
        return done

    def _start(self, request: Request, route: Route, now: float) -> Instruction:
        request.tracker.move("route free")
        others = self._probes or any(deployment.running for deployment in self.deployments.by_epoch.values())
        self._lonely = 0 if others else request.number
        request.epoch, message = route.epoch, request.message
        route.lane.running[request.number] = now
        if message.record:
            self.recordings.begin(request.number, route.devices)
        return StartRequest(route.epoch, request.number, message.inputs, message.payload, message.record, request.caller[0])

    # --- timing routes ----------------------------------------------------------------------------------------------------------

    def _begin_measuring(self, deployment: Deployment, now: float) -> list[Instruction]:
        deployment.tracker.move("all deployed")
        if len(deployment.routes) == 1:
            return []
        deployment.inputs = made_up(deployment.routes[0].host)
        epochs = [route.epoch for route in deployment.routes] if deployment.inputs else []
        deployment.measuring = Measuring(epochs, now + MEASURE_S)
        return self.deployments.progress(deployment)

    def _measure(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Time the next route, unless one is being timed; once all are, let the deployment serve."""
        self._probes = {number: probe for number, probe in self._probes.items() if self.deployments.find(probe.epoch)}
        if any(probe.deployment is deployment for probe in self._probes.values()):
            return []
        measuring, inputs = deployment.measuring, deployment.inputs
        if measuring is not None and inputs is not None:
            epoch = measuring.next(now)
            if epoch is not None:
                return [self._probe(deployment, inputs, epoch, now)]
        return self._serve(deployment)

    def _probe(self, deployment: Deployment, inputs: Inputs, epoch: int, now: float) -> Instruction:
        number = next(self._numbers)
        self._probes[number] = _Probe(deployment, epoch, now)
        self._lonely = 0
        return StartRequest(epoch, number, *inputs)

    def _serve(self, deployment: Deployment) -> list[Instruction]:
        """Let a deployment serve whose routes are timed."""
        deployment.tracker.move("measured")
        deployment.inputs = None
        if deployment.measuring is None:
            return []
        deployment.policy.begin(deployment.measuring.medians())
        return [Tell(deployment.measured_text())]

    def _probe_failed(self, number: int) -> list[Instruction]:
        """Stop timing routes by made-up requests: this model does not take them."""
        probe = self._probes.pop(number, None)
        if probe is None:
            return []
        if probe.deployment.measuring is not None:
            probe.deployment.measuring.give_up()
        return self._abandon(probe.epoch, number)

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def done(self, event: RequestDone, now: float) -> list[Instruction]:
        """Answer a request, and learn from the time it took."""
        probe = self._probes.pop(event.request, None)
        if probe is not None and probe.deployment.measuring is not None:
            probe.deployment.measuring.note(probe.epoch, now - probe.started)
        request = self.open.get(event.request)
        if request is None:
            return []
        if request.message.record:
            request.tracker.move("computed")
            self.recordings.computed(event, now)
            return self._answer_recorded(request)
        return self._answer(request, event, (), now)

    def recorded(self, member: Member, message: Recorded) -> list[Instruction]:
        """Take what an agent tells of when it did what for a request."""
        request = self.open.get(message.request)
        if request is None or request.epoch != message.epoch:
            return []
        self.recordings.take(message.request, member.identity, message.record)
        request.tracker.move("Recorded")
        return self._answer_recorded(request)

    def _answer_recorded(self, request: Request) -> list[Instruction]:
        complete = self.recordings.complete(request.number)
        return [] if complete is None else self._answer(request, *complete, None)

    def _answer(self, request: Request, event: RequestDone, records: tuple[Record, ...], now: float | None) -> list[Instruction]:
        """Answer a request; one that ended just `now` tells how fast its route is."""
        found = self.deployments.find(request.epoch)
        if found is None:
            return []
        deployment, route = found
        told: list[Instruction] = []
        if now is not None and deployment.policy.done(
            route.lane, route.lane.running[request.number], now, alone=self._lonely == request.number
        ):
            told.append(Tell(deployment.measured_text()))
        answer = RunResult(request.caller[1], deployment.answer_epoch, event.outputs, event.payload, records)
        return [ToClient(request.caller[0], answer), *told, *self._close(request, "finished")]

    def broke(self, event: RequestBroke) -> list[Instruction]:
        """Fail a request whose part on the host failed."""
        request = self.open.get(event.request)
        return self._probe_failed(event.request) if request is None else self.fail(request.number, "failed", event.fault, event.reason)

    def failed_on(self, member: Member, message: RequestFailed) -> list[Instruction]:
        """Fail a request that failed on an agent."""
        request, probe = self.open.get(message.request), self._probes.get(message.request)
        if probe is not None and probe.epoch == message.epoch:
            return self._probe_failed(message.request)
        if request is None or request.epoch != message.epoch:
            return []
        return self.fail(request.number, "RequestFailed", Fault.EXECUTION, f"agent '{member.name}': {message.reason}")

    def fail(self, number: int, event: str, fault: Fault, reason: str) -> list[Instruction]:
        """Answer a request with an error."""
        request = self.open[number]
        done = self._close(request, event)
        return [ToClient(request.caller[0], Failed(request.caller[1], fault, reason)), *done]

    def cancel(self, caller: Caller) -> list[Instruction] | None:
        """Forget a caller's request without an answer; None if it has none."""
        number = self.by_caller.get(caller)
        return None if number is None else self._close(self.open[number], "Cancel")

    def take_back(self, deployment: Deployment, route: Route) -> None:
        """Let the requests of a route that is lost be the next ones to start on another."""
        again = sorted(route.lane.running)
        route.lane.running.clear()
        for number in again:
            self.open[number].tracker.move("route lost")
            self.open[number].epoch = 0
            self.recordings.forget(number)
        deployment.waiting[:0] = again

    def overdue(self, now: float) -> list[Instruction]:
        """End what ran or waited too long."""
        done: list[Instruction] = []
        for number in [n for n, probe in self._probes.items() if now - probe.started > self.settings.probe_within_s]:
            done += self._probe_failed(number)
        for request in [r for r in self.open.values() if now > r.deadline]:
            state = "ran" if request.tracker.state == "running" else "waited"
            reason = f"request {request.number}: its deadline of {request.message.deadline_s:g} s passed while it {state}"
            done += self.fail(request.number, "deadline", Fault.EXECUTION, reason)
        for number in self.recordings.overdue(now):
            reason = f"request {number}: it was answered, but an agent has not told when it did what; trace again"
            done += self.fail(number, "failed", Fault.EXECUTION, reason)
        return done

    def _close(self, request: Request, event: str) -> list[Instruction]:
        """Forget a request here, and everywhere it may still run."""
        request.tracker.move(event)
        del self.open[request.number], self.by_caller[request.caller]
        self.recordings.forget(request.number)
        found = self.deployments.find(request.epoch)
        if found is None:
            for other in self.deployments.by_epoch.values():
                if request.number in other.waiting:
                    other.waiting.remove(request.number)
            return []
        deployment, route = found
        del route.lane.running[request.number]
        done = [] if event == "finished" else self._abandon(request.epoch, request.number)
        return [*done, *self.deployments.retire(deployment)]

    def _abandon(self, epoch: int, number: int) -> list[Instruction]:
        found = self.deployments.find(epoch)
        living = [identity for identity in found[1].parts if identity in self.members.by_identity] if found else []
        return [DropRequest(epoch, number), *(ToAgent(identity, Abandon(epoch, number)) for identity in living)]
