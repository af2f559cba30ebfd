"""A sequence of requests on a cluster: each goes on from the state that the one before has left there.

    with session.sequence() as s:
        for chunk in sound:
            probability, = s.run(None, {"input": chunk})

Laws: what is state is neither in a feed nor in an answer; a request that failed is no part of the sequence, and may be run again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from bbgrap.costmodel.timeline import Timeline
from bbgrap.errors import StateLostError, UsageError
from bbgrap.graph.types import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import EndSequence, Fault, ForkSequence, RunResult
from bbgrap.session.connection import CallFailedError, Connection
from bbgrap.session.first_inputs import Shapes
from bbgrap.session.ort_errors import speaking_onnxruntime
from bbgrap.session.ort_values import values_of
from bbgrap.session.prepared import PreparedPlan
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import initial_state, planned_shapes

R = TypeVar("R")


class Session(Protocol):
    """What a sequence needs of its session."""

    options: PlanOptions

    @property
    def connection(self) -> Connection:
        """The connection to the coordinator."""

    @property
    def signature(self) -> Signature:
        """What the model takes and gives, state among it."""

    def until_terminated(self, run_options: object) -> AbstractContextManager[None]:
        """End the calls of a block when the options say so."""

    def retrying(self, work: Callable[[Callable[[], float]], R]) -> R:
        """Do something within the deadline."""

    def plan_for(self, shapes: Shapes, left_s: Callable[[], float]) -> PreparedPlan:
        """Return who serves these shapes."""

    def submit(
        self,
        plan: PreparedPlan,
        signature: Signature,
        feeds: Sequence[Array],
        left_s: Callable[[], float],
        *,
        sequence: int,
        step: int,
        record: bool,
    ) -> RunResult:
        """Run a request of a sequence."""

    def read_state(self, plan: PreparedPlan, left_s: Callable[[], float], *, sequence: int, step: int) -> dict[str, Array]:
        """Return the state that so many requests of a sequence have left, by the names of inputs."""

    def timeline(self, result: RunResult) -> Timeline | None:
        """Return when every node did what for a recorded request; None if nobody told in time."""

    def output(self, result: RunResult, index: int, signature: Signature) -> Any:  # noqa: ANN401 - what the model says it is
        """Return an output of an answer."""


class StatefulRuns:
    """Requests of a model with state.

    Invariants: `_step` requests of it have been answered; they ran on `_plan`.
    """

    def __init__(self, session: Session, initial: Mapping[str, Any] | None = None) -> None:
        """Begin before the first request; nothing is sent."""
        self._session = session
        self._initial = dict(initial or {})
        self._number = session.connection.number()
        self._step = 0
        self._plan: PreparedPlan | None = None
        self._lock = threading.Lock()
        full, pairs = session.signature, session.options.state
        held, kept = {name for name, _ in pairs}, {output for _, output in pairs}
        self._given = replace(
            full,
            inputs=tuple(arg for arg in full.inputs if arg.name not in held),
            outputs=tuple(arg for arg in full.outputs if arg.name not in kept),
        )

    @property
    def steps(self) -> int:
        """How many of its requests have been answered."""
        return self._step

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model once, and return the outputs that are no state, all of them or those named.

        Calls of several threads run one after the other.

        Raises:
            InputError: if a name, dtype or shape does not fit the model.
            StateLostError: if the state is gone; `reset` begins again.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with self._session.until_terminated(run_options):
            return self._run(output_names, input_feed, record=False)[0]

    def run_recorded(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> tuple[list[Any], Timeline | None]:
        """Do as `run` does, and also return when every node did what; None if nobody told in time.

        That takes until every node has its part of the state.
        """
        outputs, result = self._run(output_names, input_feed, record=True)
        return outputs, self._session.timeline(result)

    def _run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], *, record: bool) -> tuple[list[Any], RunResult]:
        with speaking_onnxruntime(), self._lock:
            feed = values_of(input_feed)
            chosen = self._given.choose_outputs(output_names)
            feeds = self._given.check_feed(feed)
            session = self._session
            result = session.retrying(self._first(feed, record) if self._plan is None else self._further(self._plan, feeds, record))
            self._step += 1
            return [session.output(result, index, self._given) for index in chosen], result

    def _first(self, feed: Mapping[str, Any], record: bool) -> Callable[[Callable[[], float]], RunResult]:
        session, full = self._session, self._session.signature
        feeds = full.check_feed({**feed, **initial_state(session.options.state, full, feed, self._initial)})

        def work(left_s: Callable[[], float]) -> RunResult:
            plan = session.plan_for(planned_shapes(session.options.state, full, full.shapes_of(feeds)), left_s)
            result = session.submit(plan, full, feeds, left_s, sequence=self._number, step=0, record=record)
            self._plan = plan
            return result

        return work

    def state(self) -> dict[str, Array]:
        """Return the state after the latest request: what `session.sequence(...)` and `reset` take to go on from there.

        It is read where the model is whole: a sequence of a plan over several nodes goes to the standby for it, and stays there.

        Raises:
            UsageError: if no request has been answered yet.
            StateLostError: if the state is gone; `reset` begins again.
            ExecutionError: if it cannot be read now.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with speaking_onnxruntime(), self._lock:
            plan, session = self._plan, self._session
            if plan is None:
                raise UsageError(f"sequence {self._number}: it has no state before its first request but what it was given")
            return session.retrying(self._going_on(lambda left_s: session.read_state(plan, left_s, sequence=self._number, step=self._step)))

    def _further(self, plan: PreparedPlan, feeds: Sequence[Array], record: bool) -> Callable[[Callable[[], float]], RunResult]:
        def submit(left_s: Callable[[], float]) -> RunResult:
            return self._session.submit(plan, self._given, feeds, left_s, sequence=self._number, step=self._step, record=record)

        return self._going_on(submit)

    def _going_on(self, ask: Callable[[Callable[[], float]], R]) -> Callable[[Callable[[], float]], R]:
        """Return what asks something of a sequence that the coordinator knows."""

        def work(left_s: Callable[[], float]) -> R:
            try:
                return ask(left_s)
            except CallFailedError as failed:
                if failed.answer.fault in {Fault.UNKNOWN_MODEL, Fault.UNKNOWN_PLAN}:
                    raise StateLostError(f"sequence {self._number}: the coordinator has been started anew; begin it again") from None
                raise

        return work

    def reset(self, initial: Mapping[str, Any] | None = None) -> None:
        """Begin again, with this state, or with that of the first time."""
        with self._lock:
            if initial is not None:
                self._initial = dict(initial)
            self._step, self._plan = 0, None

    def fork(self) -> StatefulRuns:
        """Return another sequence that goes on from here, as this one does; on the agents they share what they have."""
        with self._lock:
            other = StatefulRuns(self._session, self._initial)
            if self._plan is not None:
                self._session.connection.tell(ForkSequence(self._number, other._number))
                other._step, other._plan = self._step, self._plan
            return other

    def close(self) -> None:
        """End it: its state is forgotten. One that is not ended is forgotten when it has been idle for long."""
        with self._lock:
            if self._plan is not None:
                self._session.connection.tell(EndSequence(self._number))
            self._step, self._plan = 0, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
