"""Clients: the real `ClientMachine`, and a session that brings models, prepares plans and says again what a coordinator has lost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from bbgrap.control import client as cm
from bbgrap.graph.types import DType
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.messages import TensorHeader
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.models import Model
from tests.campaign.simulation.network import Line

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

TICK_S = 0.25
RETRY = frozenset({c.Fault.UNKNOWN_MODEL, c.Fault.UNKNOWN_PLAN, c.Fault.UNAVAILABLE})
PAUSE_S = 0.1
STATE = (("past", "present"),)
READS, FORKS = 0.1, 0.1
"""How often a sequence's state is read, or another one goes on from it."""
TRAITS, RESETS = (("fail", 0.05), ("kill", 0.01), ("record", 0.1)), 0.05
"""How often a request of a sequence fails, ends workers or is recorded, or a sequence begins again, where a story has that."""


@dataclass(frozen=True, slots=True)
class Use:
    """A model with a shape and options, as a session uses it."""

    model: str
    width: int = 2
    planner: str = "auto"
    objective: str = "latency"
    state: bool = False

    @property
    def options(self) -> PlanOptions:
        """What is asked of a planner."""
        return PlanOptions(planner=self.planner, objective=self.objective, state=STATE if self.state else ())


@dataclass(slots=True)
class Outcome:
    """What became of a request; `trait` is what is wrong with it, `answers` should be one in the end.

    `before` is what came before it in its sequence, `is_forked` whether that began in another one. One that reads has no token.
    """

    token: str
    use: Use
    trait: str
    asked: float
    until: float
    answers: list[c.FinalAnswer]
    ended: float = 0.0
    gone: bool = False
    """Its client went without waiting."""
    client: Client | None = None
    before: str = ""
    is_forked: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is said for some seconds."""

    seconds: float


@dataclass(slots=True)
class Sequence:
    """A sequence as its client sees it: what its answered requests were, and on which plan."""

    number: int
    plan: str = ""
    step: int = 0
    before: str = ""
    is_forked: bool = False


Steps = Generator[Callable[[int], c.Call] | Pause, c.FinalAnswer, c.FinalAnswer]


class Client(Process):
    """One client with its connection."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.clock)
        self.world, self.name = world, name
        self.identity = name.encode()
        self.machine = cm.ClientMachine("tcp://head:7070")
        self.to_head = Line(world.clock, world.rng, world.control_latency(), lambda message: world.from_peer(self.identity, message))
        self.from_head = Line(world.clock, world.rng, world.control_latency(), self._received)
        self._calls = 0
        self._waiting: dict[int, Callable[[c.FinalAnswer], None]] = {}
        self._plans: dict[Use, str] = {}
        self._ticking = False
        self._sequences = count(1)
        self._going_on: dict[int, Callable[[c.FinalAnswer], None]] = {}
        """What goes on with a sequence whose call is given up."""

    # --- calls --------------------------------------------------------------------------------------------------------------------

    def request(self, outcome: Outcome, record: bool = False) -> None:
        """Ask for an answer."""
        self._drive(self._run(outcome, record), lambda answer: self._ended(outcome, answer))

    def prepare(self, use: Use) -> None:
        """Wait for a plan, as `submit` does."""
        self._drive(self._prepare(use, wait=True), lambda answer: None)

    def give_up(self) -> None:
        """Cancel what waits for the coordinator, as who is interrupted does."""
        given_up, self._waiting = self._waiting, {}
        for number in given_up:
            self._carry(self.machine.cancel(number))
        for number in given_up:
            # Of a sequence the same is asked again.
            if (go_on := self._going_on.pop(number, None)) is not None:
                self.later(PAUSE_S, go_on, c.Failed(number, c.Fault.UNAVAILABLE, "given up"))

    def begin_sequence(self, use: Use, requests: int, pause_s: float, deadline_s: float) -> None:
        """Ask for some answers, each of which goes on from the one before."""
        sequence = Sequence(next(self._sequences))
        self._drive(self._run_sequence(sequence, use, requests, pause_s, deadline_s), lambda answer: None, is_sequence=True)

    def _ended(self, outcome: Outcome, answer: c.FinalAnswer) -> None:
        outcome.answers.append(answer)
        outcome.ended = self.clock.now
        self.world.checks.answered(outcome, answer)

    def _run(self, outcome: Outcome, record: bool) -> Steps:
        answer: c.FinalAnswer = c.Failed(0, c.Fault.UNAVAILABLE, "deadline")
        while (left := outcome.until - self.clock.now) > 0:
            plan = self._plans.get(outcome.use)
            if plan is None:
                answer = yield from self._prepare(outcome.use, wait=False)
                if isinstance(answer, c.ModelPrepared):
                    plan = answer.plan
            if plan is not None:
                answer = yield partial(_run, plan, left, outcome.token, record)
            if not isinstance(answer, c.Failed) or answer.fault not in RETRY:
                return answer
            self._plans.pop(outcome.use, None)
            yield Pause(PAUSE_S)
        return answer

    def _prepare(self, use: Use, *, wait: bool) -> Steps:
        model: Model = self.world.models[use.model]
        answer = yield lambda n: c.OfferModel(n, model.digest, (model.file,))
        if isinstance(answer, c.ModelMissing) and answer.digests:
            answer = yield lambda n: c.ModelChunk(n, model.file.digest, 0, (b"onnx",))
        if isinstance(answer, c.Failed):
            return answer
        answer = yield lambda n: c.PrepareModel(n, model.digest, {"x": (use.width, 2)}, use.options, wait)
        if isinstance(answer, c.ModelPrepared):
            self._plans[use] = answer.plan
        return answer

    def _run_sequence(self, sequence: Sequence, use: Use, requests: int, pause_s: float, deadline_s: float) -> Steps:
        world = self.world
        for left in range(requests, 0, -1):
            if world.ends_sequences:
                break
            reads = bool(sequence.step) and world.rng.random() < READS
            trait = "" if reads else self._trait()
            token = "" if reads else f"x{len(world.outcomes)}{f'!{trait}' if trait in {'fail', 'kill'} else ''},"
            outcome = world.expect(self, use, token, trait, deadline_s)
            outcome.before, outcome.is_forked = sequence.before, sequence.is_forked
            answer = yield from self._run_step(sequence, outcome, reads=reads)
            self._ended(outcome, answer)
            if isinstance(answer, c.Failed) and trait and answer.fault is c.Fault.EXECUTION:
                pass  # it is no part of the sequence, which goes on
            elif isinstance(answer, c.Failed) or self._begins_again():
                sequence.plan, sequence.step, sequence.before, sequence.is_forked = "", 0, "", False
            elif not reads:
                sequence.step, sequence.before = sequence.step + 1, sequence.before + outcome.token
            if sequence.step and world.rng.random() < FORKS:
                other = replace(sequence, number=next(self._sequences), is_forked=True)
                self.to_head.send(world.through_codec(c.ForkSequence(sequence.number, other.number), "head"))
                self._drive(self._run_sequence(other, use, left // 2, pause_s, deadline_s), lambda answer: None, is_sequence=True)
            yield Pause(pause_s)
        if sequence.step:
            self.to_head.send(world.through_codec(c.EndSequence(sequence.number), "head"))
        return c.Failed(0, c.Fault.UNAVAILABLE, "it has ended")

    def _trait(self) -> str:
        """Return what is unusual about the next request of a sequence."""
        if not self.world.story.has_bad_steps or self.world.is_healed:
            return ""
        return next((trait for trait, part in TRAITS if self.world.rng.random() < part), "")

    def _begins_again(self) -> bool:
        """Whether a sequence is begun again with the next request, without having been ended."""
        return self.world.story.has_bad_steps and self.world.rng.random() < RESETS

    def _run_step(self, sequence: Sequence, outcome: Outcome, *, reads: bool) -> Steps:
        """Ask for one answer of a sequence until there is one."""
        answer: c.FinalAnswer = c.Failed(0, c.Fault.UNAVAILABLE, "deadline")
        while (left := outcome.until - self.clock.now) > 0:
            if not sequence.plan:
                answer = yield from self._prepare(outcome.use, wait=False)
                sequence.plan = answer.plan if isinstance(answer, c.ModelPrepared) else ""
            if sequence.plan:
                answer = yield partial(_go_on, replace(sequence), left, outcome, reads)
            if not isinstance(answer, c.Failed) or answer.fault not in {*RETRY, c.Fault.BUSY}:
                return answer
            if answer.fault in {c.Fault.UNKNOWN_MODEL, c.Fault.UNKNOWN_PLAN} and sequence.step:
                return c.Failed(0, c.Fault.STATE_LOST, "the coordinator has been started anew")
            if not sequence.step:
                sequence.plan = ""
            yield Pause(PAUSE_S)
        return answer

    def _drive(
        self, steps: Steps, ended: Callable[[c.FinalAnswer], None], answer: c.FinalAnswer | None = None, *, is_sequence: bool = False
    ) -> None:
        """Say what a session says next."""
        try:
            make = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            ended(stop.value)
            return
        go_on = partial(self._drive, steps, ended, is_sequence=is_sequence)
        if isinstance(make, Pause):
            self.later(make.seconds, go_on)
            return
        self._calls += 1
        number = self._calls
        self._waiting[number] = go_on
        if is_sequence:
            self._going_on[number] = go_on
        self._carry(self.machine.call(make(number), self.clock.now))
        if not self._ticking:
            self._ticking = True
            self.tick_later(TICK_S, self._on_tick)

    # --- the machine --------------------------------------------------------------------------------------------------------------

    def _received(self, message: c.ClientAnswer) -> None:
        self.do(self._take, message)

    def _take(self, message: c.ClientAnswer) -> None:
        self._carry(self.machine.received(message, self.clock.now))

    def _on_tick(self) -> None:
        self._carry(self.machine.tick(self.clock.now))
        self._ticking = bool(self.machine.calls)
        if self._ticking:
            self.tick_later(TICK_S, self._on_tick)

    def _carry(self, instructions: list[cm.ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case cm.ToCoordinator(message):
                    self.to_head.send(self.world.through_codec(message, "head"))
                case cm.Complete(call, answer):
                    waiting = self._waiting.pop(call, None)
                    self._going_on.pop(call, None)
                    if waiting is None:
                        self.world.surprise(f"client {self.name}: call {call} is answered twice: {answer}")
                    else:
                        waiting(answer)
                case cm.Report() | cm.Reconnect():
                    pass


def _run(plan: str, left: float, token: str, record: bool, call: int) -> c.Call:
    return c.RunModel(call, plan, left, (), (token.encode(),), record)


def _go_on(sequence: Sequence, left: float, outcome: Outcome, reads: bool, call: int) -> c.Call:
    inputs = () if reads else (TensorHeader("x", DType.UINT8, (len(outcome.token),)),)
    payload = () if reads else (outcome.token.encode(),)
    return c.RunModel(call, sequence.plan, left, inputs, payload, outcome.trait == "record", sequence.number, sequence.step, reads)
