"""The queues of plans: who waits for a plan, and its requests.

    RunModel -> waiting -> (a variant has room) running -> answered
                   ^----- what it ran on is lost --'   (a traced one: running -> recording -> answered)

Laws: every caller is answered exactly once; after `go_on`, no variant that should serve is idle while a request waits for it; a variant is
timed by requests that had the coordinator to themselves; a request whose agents were lost `MAX_LOSSES` times is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from bbgrap.control.coordinator_events import (
    Instruction,
    Log,
    RequestBroke,
    RequestDone,
    Settings,
    StartRequest,
    ToClient,
)
from bbgrap.control.deployments import Deployments
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Caller, Deployment, Plan, Request, Variant
from bbgrap.control.states import Role, Tracker
from bbgrap.control.synthetic import SyntheticRequests
from bbgrap.control.tracing import Traces
from bbgrap.protocol.client_messages import Failed, Fault, RunModel, RunResult
from bbgrap.protocol.messages import Recorded, RequestFailed
from bbgrap.runtime.recording import Record

NO_AGENT = "no agent is there to work; start one with: bbgrap-agent --join tcp://COORDINATOR:PORT"

MAX_LOSSES = 2
"""Runs that may lose an agent: a request that ends the agents it runs on must not end all of them."""


class Requests:
    """All callers and requests that are not answered.

    Invariants: a running request is in its variant's queue, another in its plan's `waiting`. `_lonely` is the request that began while
    nothing else ran, as long as nothing else has begun.
    """

    def __init__(self, settings: Settings, members: Members, deployments: Deployments) -> None:
        """Start without requests."""
        self.settings = settings
        self.members = members
        self.deployments = deployments
        self.traces = Traces()
        self.open: dict[int, Request] = {}
        self.by_caller: dict[Caller, int] = {}
        self._lonely = 0
        self._numbers = count(1)
        self.synthetic = SyntheticRequests(deployments, self._numbers)

    # --- coming -----------------------------------------------------------------------------------------------------------------

    def is_known(self, caller: Caller) -> bool:
        """Whether a call will still be answered."""
        return caller in self.by_caller or any(caller in d.plan.callers for d in self.deployments.by_epoch.values())

    def prepare(self, caller: Caller, plan: Plan) -> list[Instruction]:
        """Queue a caller who asks for a plan; `go_on` answers when it is ready."""
        plan.callers.append(caller)
        self.deployments.touched[plan] = None
        deployment = plan.deployment
        return [] if deployment is None or deployment.tracker.state == "ready" else self.deployments.progress(deployment)

    def add(self, caller: Caller, message: RunModel, plan: Plan, now: float) -> list[Instruction]:
        """Queue a request; `go_on` starts it. With a full queue the answer is that the plan is busy."""
        waiting, size = len(plan.waiting), sum(self.open[number].bytes for number in plan.waiting)
        if waiting >= self.settings.max_waiting or size >= self.settings.max_waiting_bytes:
            reason = f"coordinator: {waiting} requests ({size:,} bytes) wait for this plan already; submit again when some are answered"
            return [ToClient(caller[0], Failed(caller[1], Fault.BUSY, reason))]
        number = next(self._numbers)
        self.open[number] = Request(number, caller, message, plan, now + message.deadline_s, Tracker(Role.REQUEST, f"request {number}"))
        self.by_caller[caller] = number
        plan.waiting.append(number)
        self.deployments.touched[plan] = None
        return []

    def go_on(self, now: float) -> list[Instruction]:
        """Do what has become possible for the plans that were touched."""
        done: list[Instruction] = []
        while self.deployments.touched:
            plan, _ = self.deployments.touched.popitem()
            done += self._go_on(plan, now)
        return done

    def _go_on(self, plan: Plan, now: float) -> list[Instruction]:
        """Deploy a plan that is wanted, time its variants, answer its callers, start what waits."""
        deployment = plan.deployment
        if deployment is None:
            if not plan.is_wanted:
                return []
            return self.deployments.begin(plan, now) if self.members.by_name else self._refuse(plan, Fault.UNAVAILABLE, NO_AGENT)
        done: list[Instruction] = []
        if deployment.tracker.state == "loading" and all(variant.ready for variant in deployment.variants):
            done += self.synthetic.begin(deployment, now)
        if deployment.tracker.state == "measuring":
            self._lonely = 0
            done += self.synthetic.go_on(deployment, now)
        if deployment.tracker.state != "ready":
            return done
        deployment.used = now
        done += [ToClient(identity, deployment.prepared(call)) for identity, call in plan.callers]
        plan.callers.clear()
        while plan.waiting:
            queue = deployment.policy.choose([variant.queue for variant in deployment.variants], now)
            if queue is None:
                break
            variant = next(variant for variant in deployment.variants if variant.queue is queue)
            done.append(self._start(self.open[plan.waiting.pop(0)], variant, now))
        return done

    def _start(self, request: Request, variant: Variant, now: float) -> Instruction:
        request.tracker.move("variant free")
        self._lonely = 0 if self._is_busy() else request.number
        request.epoch, message = variant.epoch, request.message
        variant.queue.running[request.number] = now
        if message.record:
            self.traces.begin(request.number, variant.devices)
        return StartRequest(variant.epoch, request.number, message.inputs, message.payload, message.record, request.caller[0])

    def _is_busy(self) -> bool:
        deployments = self.deployments.by_epoch.values()
        return any(d.running or (d.timing is not None and d.timing.probe is not None) for d in deployments)

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def done(self, event: RequestDone, now: float) -> list[Instruction]:
        """Answer a request, and learn from the time it took."""
        self.synthetic.done(event.request, now)
        request = self.open.get(event.request)
        if request is None or not request.epoch:
            return []
        if request.message.record:
            request.tracker.move("computed")
            self.traces.computed(event, now)
            return self._answer_traced(request)
        return self._answer(request, event, (), now)

    def recorded(self, member: Member, message: Recorded) -> list[Instruction]:
        """Take what an agent tells of when it did what for a request."""
        request = self.open.get(message.request)
        if request is None or request.epoch != message.epoch:
            return []
        self.traces.take(message.request, member.identity, message.record)
        request.tracker.move("Recorded")
        return self._answer_traced(request)

    def _answer_traced(self, request: Request) -> list[Instruction]:
        complete = self.traces.complete(request.number)
        return [] if complete is None else self._answer(request, *complete, None)

    def _answer(self, request: Request, event: RequestDone, records: tuple[Record, ...], now: float | None) -> list[Instruction]:
        """Answer a request; one that ended just `now` tells how fast its variant is."""
        found = self.deployments.find(request.epoch)
        if found is None:
            return []
        (deployment, variant), alone = found, self._lonely == request.number
        log: list[Instruction] = []
        if now is not None and deployment.policy.done(variant.queue, variant.queue.running[request.number], now, alone=alone):
            log.append(Log(deployment.measured_text()))
        answer = RunResult(request.caller[1], deployment.answer_epoch, event.outputs, event.payload, records)
        return [ToClient(request.caller[0], answer), *log, *self._close(request, "finished")]

    def broke(self, event: RequestBroke) -> list[Instruction]:
        """Fail a request whose part on the host failed."""
        known = event.request in self.open
        return self._fail(event.request, "failed", event.fault, event.reason) if known else self.synthetic.failed(event.request)

    def failed_on(self, member: Member, message: RequestFailed) -> list[Instruction]:
        """Fail a request that failed on an agent."""
        request = self.open.get(message.request)
        if request is None:
            return self.synthetic.failed(message.request)
        if request.epoch != message.epoch:
            return []
        return self._fail(request.number, "RequestFailed", Fault.EXECUTION, f"agent '{member.name}': {message.reason}")

    def cancel(self, caller: Caller) -> list[Instruction]:
        """Forget a caller without an answer."""
        if caller in self.by_caller:
            return self._close(self.open[self.by_caller[caller]], "Cancel")
        for deployment in self.deployments.by_epoch.values():
            if caller in deployment.plan.callers:
                deployment.plan.callers.remove(caller)
        return []

    def overdue(self, now: float) -> list[Instruction]:
        """End what ran or waited too long."""
        done = self.synthetic.overdue(now)
        for request in [r for r in self.open.values() if now > r.deadline]:
            state = "ran" if request.tracker.state == "running" else "waited"
            reason = f"request {request.number}: its deadline of {request.message.deadline_s:g} s passed while it {state}"
            done += self._fail(request.number, "deadline", Fault.EXECUTION, reason)
        for number in self.traces.overdue(now):
            reason = f"request {number}: it was answered, but an agent has not told when it did what; trace again"
            done += self._fail(number, "failed", Fault.EXECUTION, reason)
        return done

    # --- losing -----------------------------------------------------------------------------------------------------------------

    def lose_agent(self, deployment: Deployment, member: Member) -> list[Instruction]:
        """Run again what ran on an agent that is gone: on the variants that do without it, or on a new deployment.

        A deployment that does not serve yet is planned anew at once: who waits for it wants the best plan for the agents that are left.
        """
        serves = deployment.tracker.state == "ready"
        broken = [variant for variant in deployment.variants if not serves or member.identity in variant.parts]
        done: list[Instruction] = []
        for request in self._take_back(deployment, broken):
            request.lost.append(member.name)
            if len(request.lost) == MAX_LOSSES:
                names = " and ".join(f"'{name}'" for name in request.lost)
                reason = (
                    f"request {request.number}: agents {names} were lost while it ran; it may be what ends them, so it is not run again"
                )
                done += self._fail(request.number, "failed", Fault.EXECUTION, reason)
        return [*done, *self.deployments.drop(deployment, broken)]

    def lose_variant(self, deployment: Deployment, variant: Variant, reason: str, now: float) -> list[Instruction]:
        """Go on without a variant that cannot be used; without any left, fail everybody who waits."""
        if len(deployment.variants) == 1:
            return self.give_up(deployment, Fault.EXECUTION, reason)
        self._take_back(deployment, [variant])
        done = [
            Log(f"deployment {deployment.epoch} goes on without {variant.name}: {reason}"),
            *self.deployments.drop(deployment, [variant]),
        ]
        return [*done, *self.deployments.advance(deployment, now)] if deployment.tracker.state == "loading" else done

    def give_up(self, deployment: Deployment, fault: Fault, reason: str) -> list[Instruction]:
        """End a deployment that cannot work, and fail everybody who waits for it."""
        plan, serves = deployment.plan, deployment.plan.deployment is deployment
        self._take_back(deployment, deployment.variants)
        done = [Log(f"deployment {deployment.epoch} failed: {reason}"), *self.deployments.end(deployment)]
        return [*done, *self._refuse(plan, fault, reason)] if serves else done

    def _take_back(self, deployment: Deployment, variants: Sequence[Variant]) -> list[Request]:
        """Let the requests of variants that are lost be the next ones to start on another."""
        again = [self.open[number] for number in sorted(n for variant in variants for n in variant.queue.running)]
        for variant in variants:
            variant.queue.running.clear()
        for request in again:
            request.tracker.move("taken back")
            request.epoch = 0
            self.traces.forget(request.number)
        deployment.plan.waiting[:0] = [request.number for request in again]
        self.deployments.touched[deployment.plan] = None
        return again

    def _refuse(self, plan: Plan, fault: Fault, reason: str) -> list[Instruction]:
        """Answer everybody who waits for a plan with an error."""
        done: list[Instruction] = [ToClient(identity, Failed(call, fault, reason)) for identity, call in plan.callers]
        plan.callers.clear()
        for number in list(plan.waiting):
            done += self._fail(number, "failed", fault, reason)
        return done

    def _fail(self, number: int, event: str, fault: Fault, reason: str) -> list[Instruction]:
        """Answer a request with an error."""
        request = self.open[number]
        done = self._close(request, event)
        return [ToClient(request.caller[0], Failed(request.caller[1], fault, reason)), *done]

    def _close(self, request: Request, event: str) -> list[Instruction]:
        """Forget a request here, and everywhere it may still run."""
        request.tracker.move(event)
        del self.open[request.number], self.by_caller[request.caller]
        self.traces.forget(request.number)
        self.deployments.touched[request.plan] = None
        found = self.deployments.find(request.epoch)
        if found is None:
            request.plan.waiting.remove(request.number)
            return []
        deployment, variant = found
        del variant.queue.running[request.number]
        done = [] if event == "finished" else self.deployments.abandon(request.epoch, request.number)
        return [*done, *self.deployments.retire(deployment)]
