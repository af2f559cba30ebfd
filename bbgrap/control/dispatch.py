"""The queues of plans: who waits for a plan, and its requests.

    RunModel -> waiting -> (the plan, else the standby, has room) running -> answered
                   ^----- what it ran on is lost --'                (a traced one: computed, and answered with its records)

Laws: every caller is answered exactly once; after `go_on`, nothing that takes requests is idle while a request waits for it, but what a
node takes part in that is set aside; a variant is timed by requests that had the coordinator to themselves; a request that was accepted
ends with its answer, its deadline, or the reason why nothing can run it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bbgrap.control.assignment import RequestAssigner
from bbgrap.control.callers import answer_callers, callers_overdue, progress, stage_of
from bbgrap.control.coordinator_events import RequestBroke, RequestDone, RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, StartRequest, ToClient
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.open_requests import OpenRequests
from bbgrap.control.plan_reports import measured_text, prepared_answer
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Caller, PlanCaller, ServedPlan, Variant
from bbgrap.control.request import OpenTrace, Request
from bbgrap.control.request_recovery import RequestRecovery
from bbgrap.control.request_statistics import RequestStatistics
from bbgrap.control.scaled_plans import learn
from bbgrap.control.sequence import Sequence
from bbgrap.control.sequences import NO_PROGRAM, NOT_KEPT, Sequences
from bbgrap.control.standby import Standbys
from bbgrap.control.synthetic_requests import SyntheticRequests
from bbgrap.control.verifying import Verifying
from bbgrap.protocol.client_messages import Failed, PrepareModel, RunModel, RunResult
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Recorded, RequestFailed
from bbgrap.runtime.recording import Record


class Requests:
    """All callers and requests that are not answered.

    Invariants: a running request is in its variant's queue, another in its plan's `waiting`. `_lonely` is the request that began while
    nothing else ran, as long as nothing else has begun.
    """

    def __init__(
        self,
        settings: Settings,
        members: Members,
        loading: Loading,
        planning: Planning,
        standbys: Standbys,
        statistics: RequestStatistics,
    ) -> None:
        self.settings = settings
        self.members = members
        self.loading = loading
        self.planning = planning
        self.standbys = standbys
        self.statistics = statistics
        self.table = OpenRequests(settings, loading, statistics)
        self.open = self.table.by_number
        self._lonely = 0
        self.sequences = Sequences(loading, statistics)
        self.synthetic = SyntheticRequests(loading, planning)
        self.assigner = RequestAssigner(members, loading, standbys, self.sequences, self.open)
        self.verifying = Verifying(settings, loading, planning, self.synthetic, statistics.runs.verified)
        self.recovery = RequestRecovery(loading, self.table, self.sequences, self.synthetic, self.verifying)

    # --- coming -----------------------------------------------------------------------------------------------------------------

    def is_known(self, caller: Caller) -> bool:
        """Whether a call will still be answered."""
        return caller in self.table.by_caller or any(caller in plan.callers for plan in self.planning.plans.values())

    def asked_after(self, client: RoutingId, calls: Iterable[int], now: float) -> None:
        """Note that a client still waits for these calls."""
        self.table.asked_after(client, calls)
        callers = {(client, call) for call in calls}
        for plan in self.planning.plans.values():
            for caller in plan.callers.keys() & callers:
                plan.callers[caller].asked = now

    def prepare(self, caller: Caller, plan: ServedPlan, message: PrepareModel, now: float) -> list[CoordinatorInstruction]:
        """Queue a caller who asks for a plan, or tell one who does not wait who serves now."""
        plan.is_asked(caller[0], now)
        self.loading.touch(plan)
        if not message.wait:
            return [ToClient(caller[0], prepared_answer(plan, caller[1]))]
        # Who asks again wants it tried again.
        plan.failed = {}
        plan.callers[caller] = PlanCaller(now + message.deadline_s, now)
        return [] if plan.serving else progress(plan, self.members)

    def add(self, caller: Caller, message: RunModel, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Queue a request; `go_on` starts it. Too many of them, or too many of one client, are answered as busy."""
        if full := self.table.full(caller, message, plan):
            self.statistics.count(caller[0], plan, "refused")
            return [ToClient(caller[0], Failed(caller[1], Fault.BUSY, f"coordinator: {full}; submit again when some are answered"))]
        sequence, done = self.sequences.admit(caller[0], message, plan, now) if message.sequence else (None, [])
        if isinstance(sequence, tuple):
            return [ToClient(caller[0], Failed(caller[1], *sequence))]
        self.table.add(caller, message, plan, sequence)
        return done

    def go_on(self, now: float) -> list[CoordinatorInstruction]:
        """Do what has become possible for the plans that were touched."""
        if done := self.verifying.go_on(now):
            self._lonely = 0
        while self.loading.touched:
            plan, _ = self.loading.touched.popitem()
            done += self._go_on_standby(plan, now) if plan.is_standby else self._go_on(plan, now)
        return done

    def _go_on_standby(self, standby: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Place copies, and let the model's plans look again whether one has room."""
        done = self.standbys.consider(standby, now)
        concerned = [plan for plan in self.planning.of_model(standby) if plan.waiting or plan.callers or standby.failed]
        for plan in reversed(self.assigner.in_turn(standby, concerned)):
            self.loading.touch(plan)
        return done

    def _go_on(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Plan what is wanted, load it, time its variants, answer its callers, start what waits; nothing for a plan that is forgotten."""
        done: list[CoordinatorInstruction] = []
        if self.planning.plans.get(plan.key) is not plan:
            return done
        if plan.standby is not None and plan.is_wanted:
            done += self.standbys.wake(plan.standby, now)
        done += self.planning.consider(plan, now)
        if plan.standby is not None and self.standbys.lacks_room(plan.standby, now):
            done += self.planning.cover_losses(plan)
        done += self.synthetic.go_on(plan, now)
        done += answer_callers(plan)
        done += self._refuse_lost(plan)
        done += self._start_waiting(plan, now)
        # Then, for a request proves a model as well as what is made up for it.
        return [*done, *self._load(plan, now), *self._hurry(plan)]

    def _hurry(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Have agents load next what a plan's requests and callers wait for."""
        if not plan.is_wanted:
            return []
        standby = plan.helper
        done = [] if standby is None or plan.source is not None else self.loading.hurry(standby)
        return [*done, *(self.loading.hurry(plan) if plan.callers or standby is None else [])]

    def _start_waiting(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Start the requests that wait, as far as there is something for them to run on."""
        done: list[CoordinatorInstruction] = []
        while plan.waiting and not self.synthetic.has_turn:
            found = next(((r, v) for r in self.assigner.next(plan) if (v := self.assigner.choose(plan, r, now)) is not None), None)
            if found is None:
                return [*done, *self._refuse_hopeless(plan)]
            request, variant = found
            plan.waiting.remove(request.number)
            done += self._start(request, variant, now)
        return done

    def _load(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Load what was planned; what a model does to workers is found out on one of them before it is loaded on all."""
        if not any(variant.tracker.state in {"waiting", "loading"} for variant in plan.variants):
            return []
        standby = plan.helper
        if standby is None or standby.is_proven or not self.assigner.can_answer(standby, self.table.now):
            return [*self.loading.advance(plan, now), *progress(plan, self.members)]
        return self.synthetic.prove(standby, plan, now)

    def _refuse_hopeless(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Answer the requests that nothing will ever run."""
        standby = plan.helper
        if not self.members.by_name:
            return []
        will_be_planned = plan.job is not None or plan.variants or not self.planning.has_failed(plan)
        if (will_be_planned and not plan.quarantine) or (standby is not None and self.assigner.can_answer(standby, self.table.now)):
            return []
        if why := plan.quarantine or ("" if standby is None else standby.quarantine):
            return self._refuse_waiting(plan, Fault.EXECUTION, why)
        reasons = {} if standby is None else standby.failed
        return self._refuse_waiting(plan, *next(iter((reasons or plan.failed).values())))

    def _refuse_lost(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Answer the requests of sequences whose state is gone for good, those whose inputs nothing takes, and those that run nowhere."""
        done: list[CoordinatorInstruction] = []
        for request in [self.open[number] for number in plan.waiting]:
            if request.sequence is not None and self.sequences.is_lost(request.sequence, self.table.now):
                done += self._fail_lost(request, request.sequence, NOT_KEPT)
            elif self.assigner.fits_nowhere(plan, request, self.table.now):
                fault = Fault.EXECUTION if request.message.reads else Fault.INPUT
                done += self.table.fail(request.number, fault, NO_PROGRAM.format(request.number))
            elif why := self.assigner.waits_in_vain(plan, request):
                done += self.table.fail(request.number, Fault.EXECUTION, f"request {request.number} has ended a worker: {why}")
            elif why := self.assigner.home_rests(request, self.table.now):
                reason = f"request {request.number}: what has the state of its sequence is not run before its deadline: {why}"
                done += self.table.fail(request.number, Fault.EXECUTION, reason)
        return done

    def _fail_lost(self, request: Request, sequence: Sequence, why: str) -> list[CoordinatorInstruction]:
        return self.table.fail(request.number, Fault.STATE_LOST, f"{sequence.label}: its state is lost: {why}; begin it again")

    def _refuse_waiting(self, plan: ServedPlan, fault: Fault, reason: str) -> list[CoordinatorInstruction]:
        return [instruction for number in list(plan.waiting) for instruction in self.table.fail(number, fault, reason)]

    def _start(self, request: Request, variant: Variant, now: float) -> list[CoordinatorInstruction]:
        there = self.members.living(variant.parts)
        if any(request.number < member.first_request for member in there):
            self.table.renumber(request)  # it came before a node of the plan joined, and is not what that one may still work on
        self._lonely = 0 if self.loading.is_anything_running else request.number
        request.is_drawn = request.sequence is None and self.verifying.draw(request)
        request.epoch, message = variant.epoch, request.message
        variant.queue.running[request.number] = now
        variant.used = now
        request.overtook = {member.name: member.finished for member in there}
        if message.record:
            request.trace = OpenTrace(variant.devices, len(variant.nodes))
        if request.sequence is not None:
            return self.sequences.start(request, request.sequence, variant)
        return [StartRequest(variant.epoch, request.number, message.inputs, message.payload, message.record)]

    # --- ending -----------------------------------------------------------------------------------------------------------------

    def done(self, event: RequestDone, now: float) -> list[CoordinatorInstruction]:
        """Answer a request, and learn from the time it took."""
        self.members.ended.append(event.request)
        self.synthetic.done(event.request, now)
        if event.request == self.verifying.running:
            return self.verifying.done(event)
        request = self.open.get(event.request)
        if request is None or not request.epoch:
            return []
        if request.sequence is not None and not self.sequences.ran(request, request.sequence):
            return self._go_on_replaying(request, request.sequence, now)
        if request.trace is not None:
            request.trace.done, request.trace.since = event, now
            return self._answer_traced(request)
        return self._answer(request, event, (), now)

    def _go_on_replaying(self, request: Request, sequence: Sequence, now: float) -> list[CoordinatorInstruction]:
        """Run what comes next of a sequence whose state is made anew, under a new number."""
        if self.sequences.is_lost(sequence, now):
            return self._fail_lost(request, sequence, NOT_KEPT)
        variant = self.loading.by_epoch[request.epoch]
        del variant.queue.running[request.number]
        self.table.renumber(request)
        return self._start(request, variant, now)

    def recorded(self, member: Member, message: Recorded) -> list[CoordinatorInstruction]:
        """Take what an agent tells of when it did what for a request."""
        request = self.open.get(message.request)
        if request is None or request.epoch != message.epoch:
            return []
        if request.trace is not None:
            request.trace.take(message.request, member.name, message.record)
        return self._answer_traced(request)

    def _answer_traced(self, request: Request) -> list[CoordinatorInstruction]:
        complete = None if request.trace is None else request.trace.complete()
        return [] if complete is None else self._answer(request, *complete, None)

    def _answer(self, request: Request, event: RequestDone, records: tuple[Record, ...], now: float | None) -> list[CoordinatorInstruction]:
        """Answer a request; one that ended just `now` tells how fast its variant is."""
        variant = self.loading.by_epoch[request.epoch]
        if request.sequence is not None:
            self.sequences.answered(request, request.sequence, variant)
        plan, alone = variant.plan, self._lonely == request.number
        log: list[CoordinatorInstruction] = []
        self._has_answered(plan)
        for member in self.members.living(variant.parts):
            member.finished += 1
        started = variant.queue.running[request.number]
        variant.answered += 1
        if plan.is_standby:
            self.loading.traffic.took_whole(variant, request.bytes, sum(map(len, event.payload)))
        if records:
            self.statistics.record(variant, records, self.table.now)
        if now is not None:
            variant.took(now - started)
            if plan.policy.done(variant.queue, started, now, alone=alone):
                log.append(Log(measured_text(plan), event="serves", model=plan.model, epoch=plan.number))
        if request.is_drawn:
            self.verifying.take(request, variant, event, self.table.now)
        devices = variant.device_names if records else ()
        answer = RunResult(request.caller[1], plan.number, event.outputs, event.payload, records, devices)
        done = [ToClient(request.caller[0], answer), *log, *self.table.close(request, "done")]
        return [*done, *learn(request.plan, variant, now - started, self.loading, now)] if now is not None and alone else done

    def _has_answered(self, plan: ServedPlan) -> None:
        """Note that a plan, and its model with it, has answered; what was put off until then is looked at."""
        for proven in (plan, plan.standby):
            if proven is not None and not proven.is_proven:
                proven.is_proven = True
                self.loading.touch(proven)

    def broke(self, event: RequestBroke) -> list[CoordinatorInstruction]:
        """Fail a request whose part on the host failed."""
        if event.request == self.verifying.running:
            return self.verifying.failed(event.reason)
        known = event.request in self.open
        return self.table.fail(event.request, event.fault, event.reason) if known else self.synthetic.failed(event.request)

    def failed_on(self, member: Member, message: RequestFailed) -> list[CoordinatorInstruction]:
        """Fail a request that failed on an agent that takes part in it."""
        variant = self.loading.by_epoch.get(message.epoch)
        if variant is None or member.name not in variant.parts:
            return []
        if message.request == self.verifying.running and message.request in variant.queue.running:
            return self.verifying.failed(f"agent '{member.name}': {message.reason}")
        request = self.open.get(message.request)
        if request is None:
            return self.synthetic.failed(message.request)
        if request.epoch != message.epoch:
            return []
        if message.lost and request.sequence is not None:
            return self._state_lost(request, request.sequence, variant, f"agent '{member.name}': {message.reason}")
        if request.sequence is not None and request.sequence.running > 1:
            request.sequence.joins = False
            return self.recovery.take_back(variant, [request.number])[1]
        self._has_answered(variant.plan)
        return self.table.fail(request.number, Fault.EXECUTION, f"agent '{member.name}': {message.reason}")

    def _state_lost(self, request: Request, sequence: Sequence, variant: Variant, reason: str) -> list[CoordinatorInstruction]:
        """Make a sequence's state anew that an agent does not have, if what it is made of is kept."""
        if not self.sequences.lost(sequence):
            return self._fail_lost(request, sequence, reason)
        told = Log(f"{sequence.label}: {reason}; {sequence.steps} requests run again", epoch=variant.epoch)
        return [told, *self.recovery.take_back(variant, [request.number])[1]]

    def cancel(self, caller: Caller) -> list[CoordinatorInstruction]:
        """Forget a caller without an answer."""
        if (request := self.table.by_caller.get(caller)) is not None:
            return self.table.close(request, "cancelled")
        done: list[CoordinatorInstruction] = []
        for plan in self.planning.plans.values():
            if plan.callers.pop(caller, None) is not None:
                done += self._let_be(plan)
        return done

    def _let_be(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        """Stop making a plan that nobody has asked for but callers who are gone."""
        return self.planning.cancel(plan) if not plan.is_wanted and not plan.requests else []

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """End what ran or waited too long."""
        done = [*self.synthetic.overdue(now), *self.verifying.overdue(now), *self.table.forgotten()]
        late = [(r, event) for r in self.open.values() if r.trace is not None and (event := r.trace.late(now, r.deadline)) is not None]
        for request, event in late:
            done += self._answer(request, event, (), None)
        for request in [r for r in self.open.values() if now > r.deadline]:
            state = "waited"
            if (variant := self.loading.by_epoch.get(request.epoch)) is not None:
                state = "ran"
                variant.plan.ran_late = not variant.plan.is_proven
            reason = f"request {request.number}: its deadline of {request.message.deadline_s:g} s passed while it {state}"
            done += self.table.fail(request.number, Fault.EXECUTION, reason)
        for plan in [plan for plan in self.planning.plans.values() if plan.callers]:
            done += [*callers_overdue(plan, stage_of(plan, self.members)[0], now), *self._let_be(plan)]
        return [*done, *self.planning.forget_oldest()]
