"""Clients: the real `ClientMachine`, and a session that brings models, prepares plans and says again what a coordinator has lost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bbgrap.control import client as cm
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.models import Model
from tests.campaign.simulation.network import Line

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

TICK_S = 0.25
RETRY = frozenset({c.Fault.UNKNOWN_MODEL, c.Fault.UNKNOWN_PLAN, c.Fault.UNAVAILABLE})
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Use:
    """A model with a shape and options, as a session uses it."""

    model: str
    width: int = 2
    planner: str = "auto"
    objective: str = "latency"

    @property
    def options(self) -> PlanOptions:
        """What is asked of a planner."""
        return PlanOptions(planner=self.planner, objective=self.objective)


@dataclass(slots=True)
class Outcome:
    """What became of a request; `trait` is what is wrong with it, `answers` should be one in the end."""

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


Steps = Generator[Callable[[int], c.Call], c.FinalAnswer, c.FinalAnswer]


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

    # --- calls --------------------------------------------------------------------------------------------------------------------

    def request(self, outcome: Outcome, record: bool = False) -> None:
        """Ask for an answer."""
        self._drive(self._run(outcome, record), lambda answer: self._ended(outcome, answer))

    def prepare(self, use: Use) -> None:
        """Wait for a plan, as `submit` does."""
        self._drive(self._prepare(use, wait=True), lambda answer: None)

    def give_up(self) -> None:
        """Cancel what waits for the coordinator, as who is interrupted does."""
        given_up = list(self._waiting)
        self._waiting.clear()
        for number in given_up:
            self._carry(self.machine.cancel(number))

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
            yield _pause
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

    def _drive(self, steps: Steps, ended: Callable[[c.FinalAnswer], None], answer: c.FinalAnswer | None = None) -> None:
        """Say what a session says next."""
        try:
            make = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            ended(stop.value)
            return
        if make is _pause:
            self.later(PAUSE_S, self._drive, steps, ended)
            return
        self._calls += 1
        number = self._calls
        self._waiting[number] = lambda final: self._drive(steps, ended, final)
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
                    if waiting is None:
                        self.world.surprise(f"client {self.name}: call {call} is answered twice: {answer}")
                    else:
                        waiting(answer)
                case cm.Report() | cm.Reconnect():
                    pass


def _run(plan: str, left: float, token: str, record: bool, call: int) -> c.Call:
    return c.RunModel(call, plan, left, (), (token.encode(),), record)


def _pause(call: int) -> c.Call:
    raise AssertionError(f"call {call}: a pause is not said")
