"""What must be, whatever goes wrong."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from bbgrap_agent.worker_timeouts import EARLIER_S, apart_s

from bbgrap.control.loading import RESEND_S
from bbgrap.control.made_plans import NO_ROOM
from bbgrap.control.plan_reports import measured_times
from bbgrap.control.planning import ONE_NODE
from bbgrap.control.plans import MAX_DEATHS, ServedPlan
from bbgrap.control.scaled_plans import GROWTH, SEARCH_EVERY_S
from bbgrap.control.variants import GAIN, ROUNDS, TIMING_S, WARM_UP
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.campaign.simulation.clients import Outcome, Use
from tests.campaign.simulation.head import NO_PLAN, Head
from tests.campaign.simulation.laws import state_faults
from tests.campaign.simulation.models import BADLY
from tests.campaign.simulation.story import ON_LINES

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

EVERY = 16
"""Events of the coordinator between two looks at its state."""
NEAR_S = 8.0
"""How long after a fault, or a request that is one, others may take longer."""
SLOWER_S = 1.0
LONG_S = 10.0
"""Deadlines beyond that are never the reason why an innocent request fails."""
SOON_S = 0.35
"""Three heartbeats."""
KILLERS = {"kill", "hang"}
READ_WHOLE = "states are read on nodes with whole models"
LARGE_BYTES = 1 << 20
"""So much is room for the states of all sequences of a story."""


def _slower_than_known(plan: ServedPlan) -> float:
    """Return by which part what serves a plan for latency takes longer than what is ready beside it, as was measured."""
    serving, medians = plan.serving, plan.policy.medians
    known = [medians[v.epoch] for v in plan.variants if v.takes_requests and v.epoch in medians]
    if plan.policy.serving is None or len(serving) != 1 or serving[0].epoch not in medians:
        return 0.0
    return 1.0 - min(known) / medians[serving[0].epoch]


class Checks:
    """Notes what must not be as surprises of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counted: Counter[str] = Counter()
        self._events = 0
        self._waits: dict[str, float] = {}

    # --- answers ------------------------------------------------------------------------------------------------------------------

    def answered(self, outcome: Outcome, answer: c.FinalAnswer) -> None:
        """Judge an answer."""
        world = self.world
        model = world.models[outcome.use.model]
        self.counted["answers" if isinstance(answer, c.RunResult) else "errors"] += 1
        if len(outcome.answers) > 1:
            world.surprise(f"{outcome.token} is answered twice: {outcome.answers}")
        if isinstance(answer, c.RunResult):
            got = bytes(answer.payload[0]).decode() if answer.payload else ""
            # One that reads is answered by the state itself.
            expected = model.answer(outcome.before + outcome.token) if outcome.token else outcome.before
            if got != expected:
                world.surprise(f"{outcome.token}: wrong answer {got!r}, expected {expected!r}")
            self.counted["of sequences"] += bool(outcome.before)
            self._on_time(outcome)
        elif not isinstance(answer, c.Failed) or not self._is_justified(outcome, answer):
            world.surprise(f"{outcome.token} of {outcome.use}: unjustified {answer}")
        else:
            world.log(f"{outcome.token} fails: {answer.fault.value}: {answer.reason}")

    def _is_justified(self, outcome: Outcome, answer: c.Failed) -> bool:
        story, model, reason = self.world.story, self.world.models[outcome.use.model], answer.reason
        kinds = Counter(fault.kind for fault in story.faults)
        if outcome.trait in {*KILLERS, "fail"} or model.trait.startswith("kills") or self._may_lose_state(outcome, answer, kinds):
            return True
        killers = sum(other.trait in KILLERS and other.use.model == model.name for other in self.world.outcomes)
        if re.search(r"ended the workers? of", reason):
            return killers + kinds["exhaust worker"] >= 2 or killers > 0 or kinds["loads hang"] > 0
        if "may be what ends them" in reason:
            return 2 * sum(kinds.values()) + 3 * killers >= 6
        if answer.fault is c.Fault.BUSY:
            return story.max_waiting < 10
        if model.trait == "large" and answer.fault is c.Fault.PLAN:
            return True
        if reason.startswith("planner: it"):
            # Neither a standby nor a plan could be made.
            return kinds["planner fails"] + kinds["planner never"] > 0
        if "no memory" in reason or ("cannot run the deployment" in reason and "out of memory" in reason):
            # A worker that ended once is no reason to refuse anything.
            return kinds["loads fail"] > 0 or ("out of memory" in reason and kinds["exhaust worker"] >= MAX_DEATHS)
        if "trace again" in reason:
            return outcome.trait == "record"
        # A large model needs most nodes, and a load that hangs keeps each of them for a minute.
        if outcome.until - outcome.asked < LONG_S or (model.trait == "large" and kinds["loads hang"]):
            return "deadline" in reason or answer.fault in {c.Fault.UNAVAILABLE, c.Fault.UNKNOWN_PLAN}
        return False

    def _may_lose_state(self, outcome: Outcome, answer: c.Failed, kinds: Counter[str]) -> bool:
        """Whether a request of a sequence may find no state, or none that can be read."""
        if answer.fault is c.Fault.STATE_LOST:
            # Sequences do not outlive the coordinator, nor their client's key; that one goes on from another may be lost on the way.
            ends = {"kill coordinator", "client has another key"} | (set(ON_LINES) if outcome.is_forked else set())
            is_lost = "its inputs are not kept" in answer.reason and (bool(kinds) or self._has_killers())
            has_few = self.world.story.state_bytes < LARGE_BYTES or (self.world.story.kept_bytes < LARGE_BYTES and is_lost)
            return not ends.isdisjoint(kinds) or has_few
        # It is read where the model is whole, if it fits there, and nothing keeps it from being loaded or run, nor from being made anew.
        is_large = self.world.models[outcome.use.model].trait == "large"
        may_lack = is_large or bool(kinds) or self._has_killers() or self.world.story.kept_bytes < LARGE_BYTES
        return not outcome.token and READ_WHOLE in answer.reason and may_lack

    def _has_killers(self) -> bool:
        """Whether something ends workers: a request, or a model."""
        kills = any(model.trait.startswith("kills") for model in self.world.story.models)
        return kills or any(other.trait in KILLERS for other in self.world.outcomes)

    def _on_time(self, outcome: Outcome) -> None:
        """A request with no fault near it does not wait."""
        story, took = self.world.story, outcome.ended - outcome.asked
        if took <= SLOWER_S or outcome.trait:
            return
        begins, ended = outcome.asked - NEAR_S, outcome.ended
        if any(fault.at < ended and fault.at + fault.seconds > begins for fault in story.faults):
            return
        if begins < self.world.hung_until:
            return
        # What hangs for a request that the coordinator has forgotten ends its worker so much later.
        forgotten = EARLIER_S if story.faults else 0.0
        bad = [other for other in self.world.outcomes if other.trait in {"slow", *KILLERS}]
        if any(begins - (other.until - other.asked) - forgotten < other.asked < ended for other in bad):
            return
        # One that failed may have found nobody who had the model; with state it is loaded apart.
        uses = [use for use in story.uses if (use.model, use.state) == (outcome.use.model, outcome.use.state)]
        same = [o for o in self.world.outcomes if o.use in uses and o.answers and isinstance(o.answers[0], c.RunResult)]
        # What a coordinator has with state ends with it, and is loaded anew.
        ends = [fault.at + fault.seconds for fault in story.faults if fault.kind == "kill coordinator" and fault.at < outcome.asked]
        since = max(ends, default=0.0) if outcome.use.state else 0.0
        if not any(since < o.ended < outcome.asked - 2.0 for o in same) or any(m.trait for m in story.models):
            return
        slowest = min(speed for _, speed in story.agents)
        together = [o for o in self.world.outcomes if o.asked < outcome.ended and (not o.ended or o.ended > outcome.asked)]
        run = sum(self.world.models[o.use.model].seconds * self._runs(o) for o in together) / slowest
        if took > SLOWER_S + 3 * run:
            self.world.surprise(f"{outcome.token} of {outcome.use} took {took:.2f} s with no fault near it")

    def _runs(self, outcome: Outcome) -> int:
        """Return how many requests may run for one: where few states have room, all that came before it in its sequence run again."""
        return 1 + outcome.before.count(",") * (self.world.story.state_bytes < LARGE_BYTES)

    # --- the coordinator's state --------------------------------------------------------------------------------------------------

    def after(self, head: Head) -> None:
        """Look at the state now and then."""
        self._events += 1
        if self._events % EVERY == 0:
            faults, now = state_faults(head), self.world.clock.now
            # What depends on heartbeats is noticed with the next one.
            self._waits = {fault: self._waits.get(fault, now) for fault in faults if fault.startswith("request ")}
            for fault in faults:
                if now - self._waits.get(fault, -1.0) > SOON_S:
                    self.world.surprise(f"coordinator: {fault}")

    def plan_of(self, use: Use) -> ServedPlan | None:
        """Return the plan of a use, if the coordinator has it."""
        assert self.world.head is not None
        model = self.world.models[use.model]
        for plan in self.world.head.machine.planning.plans.values():
            options = plan.options
            same = plan.model == model.digest and plan.shapes == {"x": (use.width, 2)}
            asked = None if options is None else (options.planner, options.objective, options.state)
            if same and asked == (use.planner, use.objective, use.options.state):
                return plan
        return None

    def unhealed(self) -> dict[Use | None, str]:
        """Return what is not yet as it should be, by use; None: whatever is used."""
        world, faults = self.world, dict[Use | None, str]()
        assert world.head is not None
        machine = world.head.machine
        names = {name for name, _ in world.story.agents}
        if set(machine.members.by_name) != names:
            faults[None] = f"agents {sorted(names - set(machine.members.by_name))} are away"
        for use in world.story.uses:
            if not world.models[use.model].trait.startswith("kills") and (fault := self._unhealed_use(use, names)):
                faults[use] = fault
        return faults

    def _unhealed_use(self, use: Use, names: set[str]) -> str:
        """Return why a use is not answered as it should be; nothing if it is."""
        world, plan = self.world, self.plan_of(use)
        if plan is None:
            return "the coordinator does not know the plan"
        if plan.quarantine or (plan.standby is not None and plan.standby.quarantine):
            return ""
        reasons = [reason for _, reason in plan.failed.values()]
        if world.models[use.model].trait == "large" and (len(names) < 2 or any(NO_ROOM in reason for reason in reasons)):
            # Every shape of it has plans of its own, also for the loss of agents: there may be no place for the last one.
            return ""
        last = self._last_answered(use, 3)
        if self._goes_without(plan):
            return "" if last and last[-1].ended >= world.clock.now - 2.0 else "it needs no plan, and nobody answers"
        # Timed against what was there before, a plan over all nodes need not be the fastest.
        newest = [v for v in plan.variants if v.is_ready and {n for n, _ in v.nodes} == names]
        if not newest or not plan.serving or plan.timing is not None:
            state = [(v.epoch, v.tracker.state, sorted(v.pending), sorted(v.away), sorted(v.suspects)) for v in plan.variants]
            return f"no plan over all nodes serves; job {plan.job is not None}, failed {reasons}, {state}"
        if plan.latest not in {v.job for v in newest}:
            return f"what serves was not compared with what is there over all nodes: {measured_times(plan)}"
        if (slower := _slower_than_known(plan)) > GAIN:
            return f"a variant that is slower by {slower:.0%} than another serves: {measured_times(plan)}"
        epochs = {plan.latest, *(v.epoch for v in plan.variants)}
        answers = [answer for o in last if isinstance(answer := o.answers[0], c.RunResult)]
        return "" if any(answer.epoch in epochs for answer in answers) else "the plan is ready, but the last answers are of others"

    def _last_answered(self, use: Use, count: int) -> list[Outcome]:
        """Return the last requests of a use that were answered, the latest one last."""
        answered = (o for o in reversed(self.world.outcomes) if o.use == use and o.answers and isinstance(o.answers[0], c.RunResult))
        return list(islice(answered, count))[::-1]

    def _goes_without(self, plan: ServedPlan) -> bool:
        """Whether a further shape needs no plan: one node is faster, as was measured, or is for inputs that are hardly smaller."""
        assert self.world.head is not None
        planning = self.world.head.machine.planning
        able, now = planning._world()
        names = tuple(member.name for member in able)
        why = plan.failed.get(now, (None, ""))[1]
        if "on it, and" in why or (why == NO_PLAN and self.world.faults["scaling fails"]):
            return plan.job is None and not any(v.world == now for v in plan.variants)
        if plan.unlike and plan.standby is not None and self.world.clock.now < plan.standby.searched + SEARCH_EVERY_S:
            return plan.job is None  # a search for another shape was not long ago
        others = [] if plan.standby is None else [p for p in planning.of_model(plan.standby) if p is not plan and p.options == plan.options]
        return why == ONE_NODE[1] and any(
            tuple(n for n, _ in v.nodes) == names
            and len(v.parts) == 1
            and not v.is_scaled
            and plan.shapes["x"][0] < GROWTH * p.shapes["x"][0]
            for p in others
            for v in p.serving
        )

    def healed_within(self) -> float:
        """Return how soon after the last fault all is well, in seconds.

        What waits is answered; plans are loaded and timed one after the other, over those that are there and over those that come back.
        """
        world, slowest = self.world, min(speed for _, speed in self.world.story.agents)
        waiting = sum(world.models[o.use.model].seconds for o in world.outcomes if not o.answers and not o.gone) / slowest
        agents = len(world.story.agents)
        hung = apart_s(agents, agents) if any(fault.kind == "loads hang" for fault in world.story.faults) else 0.0
        return 5.0 + waiting + hung + 2 * sum(self._arrives_within(use, slowest) for use in world.story.uses)

    def _arrives_within(self, use: Use, slowest: float) -> float:
        model = self.world.models[use.model]
        run = model.seconds / slowest * (BADLY if use.width % 3 == 0 else 1.0)
        contenders = 4
        timed = min(TIMING_S + 3 * run, 2 * contenders * (WARM_UP + ROUNDS) * run)
        return self.world.story.planner_s + 2 * model.load_s + timed

    def healed(self, seconds: float) -> None:
        """After healing for so long, all is as it should be."""
        if not self.world.surprises:
            for use, fault in self.unhealed().items():
                self.world.surprise(f"{seconds:g} s after the last fault: {use}: {fault}")

    def at_end(self) -> None:
        """Nothing is left over."""
        world = self.world
        for outcome in world.outcomes:
            if not outcome.answers and not outcome.gone:
                world.surprise(f"{outcome.token} of {outcome.use}, asked at {outcome.asked:.2f}, is not answered")
        if world.head is None or world.surprises:
            return
        # What was lost with a connection is said again, and loaded then.
        for _ in range(round(4 * RESEND_S)):
            if not self._leftovers(world.head):
                break
            world.clock.run(world.clock.now + 0.5)
        for fault in (*state_faults(world.head), *self._leftovers(world.head)):
            world.surprise(f"at the end: {fault}")

    def _leftovers(self, head: Head) -> list[str]:
        machine, faults = head.machine, list[str]()
        gone = any(outcome.gone for outcome in self.world.outcomes)
        wanted = {*machine.requests.open, *machine.requests.synthetic.in_flight}
        for name, agent in self.world.agents.items():
            # What ends something is not said again when it is lost: the next membership ends what it should have ended.
            released = {message.epoch for message in agent.from_head.lost if isinstance(message, m.Release)}
            abandoned = {(message.epoch, message.request) for message in agent.from_head.lost if isinstance(message, m.Abandon)}
            told = {v.epoch for v in machine.loading.by_epoch.values() if name in v.parts and v.tracker.state != "waiting"}
            held = set() if agent.machine is None else set(agent.machine._deployments.by_epoch)
            if told - held or held - told - released:
                faults.append(f"agent {name} holds {sorted(held)}, the coordinator thinks {sorted(told)}")
            if agent.machine is not None and agent.worker is not None and not agent.worker.loading:
                ready = {e for e, d in agent.machine._deployments.by_epoch.items() if d.tracker.state == "ready"}
                if agent.loaded() != ready:
                    faults.append(f"the worker of {name} has {sorted(agent.loaded())}, its nanny thinks {sorted(ready)}")
            running = [] if agent.worker is None else [key for key in agent.worker.executor.running if key[1] not in wanted]
            if any(key not in abandoned and key[0] not in released for key in running):
                faults.append(f"requests {running} still run on {name}")
        if machine.requests.open and not gone:
            faults.append(f"requests {sorted(machine.requests.open)} are open")
        hosted = {v.epoch for v in machine.loading.by_epoch.values() if v.hosted}
        if hosted != set(head.executor.deployments):
            faults.append(f"the host has {sorted(head.executor.deployments)}, the coordinator thinks {sorted(hosted)}")
        known = {v.job for v in machine.loading.by_epoch.values()} | {p.latest for p in machine.standbys.by_model.values()}
        known |= {p.job.number for p in machine.planning.plans.values() if p.job is not None}
        known |= {p.ahead.job.number for p in machine.planning.plans.values() if p.ahead is not None}
        known |= {made.job.number for p in machine.planning.plans.values() for made in p.held.values()}
        if extra := set(head.disk.made) - known:
            faults.append(f"what jobs {sorted(extra)} made is kept for nobody")
        if extra := set(head.disk.plans) - known:
            faults.append(f"jobs {sorted(extra)} are kept on disk for nobody")
        return faults
