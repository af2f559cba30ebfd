"""Synthetic requests: inputs of ones that time the variants of a new plan, one at a time and in turns, before it serves.

Requests of clients go on meanwhile, on what serves already. They and the timing take turns: a synthetic request has the cluster to itself,
so that it tells something, and then those that waited for it have it for as long. It waits for what its nodes load, as long as a plan may
be timed. Laws: what a model does with such inputs ends no plan; one that does not take them serves without having been timed; no request
waits for more than one of these, for one that cannot begin, or for the end of another that takes unusually long; nor does a plan, for
longer than `TIMING_S`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.control.callers import progress
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, StartRequest
from bbgrap.control.loading import OVERDUE_S, Loading
from bbgrap.control.plan_reports import measured_text
from bbgrap.control.planning import Planning
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.scaled_plans import give_up, slower_than_standby
from bbgrap.control.stalls import USUAL, is_unusual, state_on_its_way_s, usual_s_of
from bbgrap.control.variants import PROBE_WITHIN_S, TIMING_S, LeastFinishTime, Timing
from bbgrap.planners.options import AUTO
from bbgrap.protocol.tensors import Inputs, synthetic_inputs

REST_S = 0.05
"""At least so long requests have the cluster between two synthetic ones."""
HOLD_S = 1.0
"""How long requests wait for a synthetic one at most, unless requests usually take as long."""
SLOWER = 10.0
"""How much longer than predicted a model may take to prove that it ends. Chosen: a core that ten programs share."""
UNASKED_S = 4.0
"""How long it may take beyond that where nobody waits for its plan. Chosen: an agent is not to be taken for longer."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A synthetic request for a plan: it times a variant of it, or finds out on its standby whether the model ends the worker that runs it.

    The latter is a proof, and has no `timing`.
    """

    number: int
    variant: Variant
    plan: ServedPlan
    timing: Timing | None
    since: float
    within_s: float
    """How long it may take."""


class SyntheticRequests:
    """Which plans are timed, and what is in flight, by number: what times one of them, or proofs.

    Invariants: what is in flight is in its variant's queue, as requests of clients are; `_timed` are the plans that have a `timing`; while
    `has_turn`, no request of a client begins; whose turn it is, `_holder` has a synthetic request in flight, or waits for the end of
    requests of clients only.
    """

    def __init__(self, loading: Loading, planning: Planning) -> None:
        self._loading = loading
        self._planning = planning
        self.in_flight: dict[int, _InFlight] = {}
        self._rest_until = 0.0
        self._timed: list[ServedPlan] = []
        self._holder: ServedPlan | None = None

    @property
    def has_turn(self) -> bool:
        """Whether synthetic requests have the cluster to themselves, or are about to."""
        return self._holder is not None

    @property
    def is_busy(self) -> bool:
        """Whether a synthetic request is in flight."""
        return bool(self.in_flight)

    def _start(
        self, variant: Variant, plan: ServedPlan, timing: Timing | None, within_s: float, inputs: Inputs, now: float
    ) -> list[CoordinatorInstruction]:
        number = next(self._loading.epochs)
        variant.queue.running[number] = now
        self.in_flight[number] = _InFlight(number, variant, plan, timing, now, within_s)
        return [StartRequest(variant.epoch, number, *inputs)]

    def _end(self, number: int) -> _InFlight | None:
        """Take a request out of its variant's queue, if it is one of these."""
        ended = self.in_flight.pop(number, None)
        if ended is not None:
            del ended.variant.queue.running[number]
        return ended

    # --- proving a standby --------------------------------------------------------------------------------------------------------

    def prove(self, standby: ServedPlan, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Let a standby answer once before a plan of its model is loaded; where no inputs can be made, nothing is proved."""
        if not standby.open_variants or standby.running:
            # A request of a client proves it as well.
            return []
        if standby.ran_late and not plan.callers:
            # It may never end: no agent is taken for that, for half a minute, where nobody waits for the plan.
            return []
        # The newest may have been given up; all have the same inputs.
        host = plan.variants[-1].planned.artifacts.host
        inputs = synthetic_inputs(host)
        if inputs is None:
            self._is_proven(standby)
            return []
        if self._holder is not None:
            # What was about to be timed waits for this one now, but requests do not.
            self._loading.touch(self._holder)
        variant = standby.open_variants[0]
        return self._start(variant, plan, None, _may_take_s(plan) + state_on_its_way_s(variant), inputs, now)

    def _is_proven(self, standby: ServedPlan) -> None:
        standby.is_proven = True
        for plan in (standby, *self._planning.of_model(standby)):
            self._loading.touch(plan)

    # --- timing -------------------------------------------------------------------------------------------------------------------

    def go_on(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Time the next variant of a plan if it is its turn, and nothing runs; once all are, let the plan serve."""
        if plan.timing is None:
            return self._begin(plan, now)
        if any(run.timing is plan.timing for run in self.in_flight.values()):
            return []
        if now > plan.timing.until and self._runs_long(now):
            # What does not end keeps no plan from serving: its variants are compared by requests then.
            plan.timing.give_up()
        epoch = plan.timing.next(now)
        if epoch is None:
            return self._end_timing(plan, now)
        if self._must_wait(plan.timing, epoch, now):
            if self._holder is plan:
                self._release_turn(now)
            return []
        if self._loading.is_anything_running:
            self._claim_turn(plan, now)
            return []
        self._holder = plan
        return self._start(self._loading.by_epoch[epoch], plan, plan.timing, PROBE_WITHIN_S, plan.timing.inputs, now)

    def _must_wait(self, timing: Timing, epoch: int, now: float) -> bool:
        """Whether a plan's next synthetic request waits for something else than requests of clients."""
        variant = self._loading.by_epoch[epoch]
        if not variant.takes_requests or self._planning.is_paused:
            # Its links are being tried, or nodes are measured.
            return True
        if now < timing.until and not self._loading.loading_agents.isdisjoint(variant.parts):
            # What a node loads takes its processors.
            return True
        waiting = any(other.waiting for other in self._planning.plans.values())
        if now < self._rest_until and (waiting or self._loading.is_anything_running):
            # Those that wait begin before the next synthetic request, whichever plan is looked at first.
            return True
        if any(other.timing.until < timing.until for other in self._timed if other.timing is not None):
            # One plan after the other: none is kept from serving by those that came after it.
            return True
        # Whoever has the cluster now gives it back first.
        return self.is_busy

    def _begin(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        """Begin to time the variants of a new job once they are loaded, if there is a choice: in a stream all of them serve.

        They are timed again when one that was away meanwhile is there.
        """
        plan.fall_back()
        if plan.timed == plan.latest and not any(variant.is_untimed for variant in plan.open_variants):
            return []
        newest = [variant for variant in plan.variants if variant.job == plan.latest]
        ready = [variant for variant in newest if variant.takes_requests]
        if plan.is_arriving or not ready:
            return []
        plan.timed = plan.latest
        for variant in plan.variants:
            variant.is_untimed = not variant.takes_requests and (variant.is_untimed or variant.job == plan.latest)
        if isinstance(plan.policy, LeastFinishTime):
            plan.policy.expect({variant.epoch: variant.planned.predicted_s for variant in ready})
            text = f"{plan.called}: {', '.join(variant.name for variant in ready)} serve"
            return [*self._serve(plan), Log(text, event="serves", model=plan.model, epoch=plan.number)]
        chooses = plan.options is not None and plan.options.planner == AUTO
        # Of two that are as fast, the one over fewer agents: what the others do besides does not delay it.
        contenders = sorted(plan.open_variants if chooses else ready, key=lambda variant: len(variant.parts))
        if len(contenders) == 1:
            plan.policy.serve(contenders[0].epoch)
            only = contenders[0]
            text = f"{plan.called}: {only.name} serves"
            return [*self._serve(plan), Log(text, event="serves", model=plan.model, epoch=only.epoch)]
        inputs = synthetic_inputs(newest[0].planned.artifacts.host)
        if inputs is None:
            return self._end_timing(plan, now)
        self._timed.append(plan)
        plan.timing = Timing([variant.epoch for variant in contenders], inputs, now + TIMING_S)
        return [*progress(plan, self._planning.members), *self.go_on(plan, now)]

    def _end_timing(self, plan: ServedPlan, now: float) -> list[CoordinatorInstruction]:
        timing, plan.timing = plan.timing, None
        if timing is not None:
            self._timed.remove(plan)
        medians = {} if timing is None else timing.medians()
        if medians and (why := slower_than_standby(plan, min(medians.values()))):
            # Little was known of the nodes, or it was wrong.
            self._release_turn(self._rest_until)
            plan.was_slower(now)
            return give_up(plan, [variant for variant in plan.variants if not variant.queue.running], why, self._loading)
        plan.policy.begin(medians)
        return [*self._serve(plan), Log(measured_text(plan), event="serves", model=plan.model, epoch=plan.number)]

    def _serve(self, plan: ServedPlan) -> list[CoordinatorInstruction]:
        plan.serves = True
        plan.trial.serves()
        plan.slower = 0
        if not plan.failed:
            plan.failures = 0
        # Who waited for its last synthetic request begins before that of another plan.
        self._release_turn(self._rest_until)
        self._loading.touch(plan)
        serving = plan.serving
        job = serving[0].job if serving and not plan.is_stream else plan.latest
        done = [*self._planning.made.release_others(plan, job), *self._loading.saved(plan, plan.latest)]
        return done if job == plan.latest else [*done, *self._loading.saved(plan, job)]

    def _claim_turn(self, plan: ServedPlan, now: float) -> None:
        """Let nothing begin until what runs has ended; what takes unusually long may never end, and is not waited for."""
        if not self._runs_long(now):
            self._holder = plan
        elif self.has_turn:
            self._release_turn(now)

    def _release_turn(self, until: float) -> None:
        """Let requests go on until then."""
        self._holder = None
        self._rest_until = until
        self._planning.touch_waiting()

    def done(self, number: int, now: float) -> None:
        """Take the time of a request, if it is one of these; look whether one of these can begin now, if it is not."""
        run = self._end(number)
        if run is not None and run.timing is None:
            self._is_proven(run.variant.plan)
            return
        if run is not None and run.timing is not None:
            run.timing.took(run.variant.epoch, now - run.since)
            self._release_turn(now + max(REST_S, now - run.since))
        for plan in self._timed:
            self._loading.touch(plan)

    def failed(self, number: int) -> list[CoordinatorInstruction]:
        """Stop timing where a request failed, if it is one of these: this model does not take them."""
        run = self._end(number)
        if run is None:
            return []
        if run.timing is None:
            self._is_proven(run.variant.plan)
            return []
        run.timing.give_up()
        self._release_turn(0.0)
        return self._loading.abandon(run.variant, number)

    def taken_back(self, variant: Variant, *, is_lost: bool) -> list[CoordinatorInstruction]:
        """Forget what runs on a variant that is lost, or of which requests are taken back: neither its time nor its end will come.

        A proof is forgotten with its variant only: it may be what the others have waited for.
        """
        done: list[CoordinatorInstruction] = []
        for run in [run for run in self.in_flight.values() if run.variant is variant and (is_lost or run.timing is not None)]:
            self._end(run.number)
            if run.timing is None:
                self._loading.touch(run.plan)
                # What an agent still computes of it may be slow, as it might have been before.
                done += self._loading.abandon(variant, run.number, run.within_s)
            else:
                done += self._loading.abandon(variant, run.number)
                self._release_turn(0.0)
        if variant.plan.timing is not None and not variant.is_ready:
            variant.is_untimed |= variant.plan.timing.forget(variant.epoch)
        for plan in self._timed:
            self._loading.touch(plan)
        return done

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Stop timing where a request takes too long."""
        done: list[CoordinatorInstruction] = []
        for run in [run for run in self.in_flight.values() if now - run.since > run.within_s]:
            if run.timing is not None:
                done += self.failed(run.number)
                continue
            # It has proved nothing: the agent ends a worker that does not leave it, and the next one is tried if somebody waits.
            self._end(run.number)
            run.variant.plan.ran_late = True
            self._loading.touch(run.plan)
            done += self._loading.abandon(run.variant, run.number, OVERDUE_S)
        for run in self.in_flight.values():
            if run.timing is not None and run.plan is self._holder and now - run.since > max(HOLD_S, USUAL * usual_s_of(run.plan)):
                # It may be lost, or take as long as it takes: nobody waits for it any longer.
                self._release_turn(now)
        return done

    def _runs_long(self, now: float) -> bool:
        """Whether anything takes unusually long, but what is timed."""
        probes = {run.number for run in self.in_flight.values() if run.timing is not None}
        return any(
            is_unusual(variant, now - started)
            for variant in self._loading.by_epoch.values()
            for number, started in variant.queue.running.items()
            if number not in probes
        )


def _may_take_s(plan: ServedPlan) -> float:
    """Return how long a model of which this is a plan may take to prove that it ends, in seconds."""
    alone_s = max(variant.planned.predicted_alone_s for variant in plan.variants)
    return (UNASKED_S if alone_s and not plan.callers else PROBE_WITHIN_S) + SLOWER * alone_s
