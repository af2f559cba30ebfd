"""A sequence of requests on a cluster: each goes on from the state that the one before has left there.

    with session.sequence() as s:
        for chunk in sound:
            probability, = s.run(None, {"input": chunk})

Laws: what is state is neither in a feed nor in an answer; a request that failed is no part of the sequence, and may be run again. Lasting
inputs are in the first feed, and travel with it only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np

from bbgrap.costmodel.timeline import Timeline
from bbgrap.errors import InputError, StateLostError, UsageError
from bbgrap.graph.types import Array
from bbgrap.protocol.client_messages import EndSequence, ForkSequence, RunResult
from bbgrap.protocol.faults import Fault
from bbgrap.session.answers import PreparedPlan, outputs_of, recorded_timeline
from bbgrap.session.calls import CallFailedError
from bbgrap.session.ort_errors import speaking_onnxruntime
from bbgrap.session.ort_values import values_of
from bbgrap.session.remote_model import LeftS, RemoteModel, encoded
from bbgrap.session.state_pairs import initial_state, planned_shapes

UntilTerminated = Callable[[object], AbstractContextManager[None]]
"""Ends the calls of a block when onnxruntime's run options say so."""


class StatefulRuns:
    """Requests of a model with state.

    Invariants: `_step` requests of it have been answered; they ran on `_plan`.
    """

    def __init__(self, model: RemoteModel, until_terminated: UntilTerminated, initial: Mapping[str, Any] | None = None) -> None:
        """Begin before the first request; nothing is sent."""
        self._model = model
        self._until_terminated = until_terminated
        self._initial = dict(initial or {})
        self._number = model.connection.number()
        self._step = 0
        self._plan: PreparedPlan | None = None
        self._lasting: dict[str, Array] = {}
        """Of lasting inputs, what the first request had."""
        self.epoch = 0
        """What answered the latest request, as the `epoch` of a prepared plan: another number says that something else did."""
        self._is_closed = False
        self._lock = threading.Lock()
        full, pairs = model.signature, model.options.state
        held, kept = {name for name, _ in pairs}, {output for _, output in pairs}
        self._stays = frozenset(name for name, output in pairs if name == output)
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
            UsageError: if it was closed.
            InputError: if a name, dtype or shape does not fit the model.
            StateLostError: if the state is gone; `reset` begins again.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with speaking_onnxruntime(), self._until_terminated(run_options):
            return self._run(output_names, input_feed, record=False)[0]

    def run_recorded(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> tuple[list[Any], Timeline | None]:
        """Do as `run` does, and also return when every node did what; None if nobody told in time.

        That takes until every node has its part of the state.
        """
        with speaking_onnxruntime():
            outputs, result = self._run(output_names, input_feed, record=True)
            return outputs, recorded_timeline(result)

    def _run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], *, record: bool) -> tuple[list[Any], RunResult]:
        feed = values_of(input_feed)
        chosen = self._given.choose_outputs(output_names)
        lasting = {name: feed[name] for name in self._stays if name in feed}
        feeds = self._given.check_feed({name: value for name, value in feed.items() if name not in lasting})

        def work(left_s: LeftS) -> RunResult:
            with self._model.connection.stops.holding(self._lock, left_s):
                self._check_open()
                if self._plan is None:
                    result = self._first(feed, left_s, record)
                else:
                    self._check_lasting(lasting)
                    with self._going_on():
                        inputs = encoded(self._given, feeds)
                        result = self._model.submit(self._plan, inputs, left_s, sequence=self._number, step=self._step, record=record)
                self._step += 1
                self.epoch = result.epoch
                return result

        result = self._model.retrying(work)
        return outputs_of(result, self._given, chosen, self._model.name), result

    def _check_open(self) -> None:
        """Check that it goes on: who went on with one that is closed would get answers without what came before."""
        if self._is_closed:
            raise UsageError(f"sequence {self._number}: it was closed; reset() begins it again, session.sequence() another one")

    def _first(self, feed: Mapping[str, Any], left_s: LeftS, record: bool) -> RunResult:
        model, full = self._model, self._model.signature
        began = initial_state(model.options.state, full, feed, self._initial)
        self._lasting = {name: np.array(array) for name, array in {**feed, **began}.items() if name in self._stays}
        self._check_lasting({name: feed[name] for name in began if name in feed})
        feeds = full.check_feed({**feed, **began})
        plan = model.plan_for(planned_shapes(model.options.state, full, full.shapes_of(feeds)), left_s)
        result = model.submit(plan, encoded(full, feeds), left_s, sequence=self._number, step=0, record=record)
        self._plan = plan
        return result

    def _check_lasting(self, given: Mapping[str, Any]) -> None:
        """Check that lasting inputs, if they are given again, are what the first request had: agents go on with that."""
        for name, value in given.items():
            had = self._lasting[name]
            if not np.array_equal(np.asarray(value), had, equal_nan=had.dtype.kind == "f"):
                raise InputError(
                    f"input '{name}' of sequence {self._number}: expected what its first request had, which stays, got something else; "
                    "leave it out, or begin another sequence with it"
                )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Ask something of a sequence that the coordinator knows."""
        try:
            yield
        except CallFailedError as failed:
            if failed.answer.fault in {Fault.UNKNOWN_MODEL, Fault.UNKNOWN_PLAN}:
                raise StateLostError(f"sequence {self._number}: the coordinator has been started anew; begin it again") from None
            raise

    def state(self) -> dict[str, Array]:
        """Return the state after the latest request: what `session.sequence(...)` and `reset` take to go on from there.

        It is read where the model is whole: a sequence of a plan over several nodes goes to the standby for it, and stays there.

        Raises:
            UsageError: if no request has been answered yet, or it was closed.
            StateLostError: if the state is gone; `reset` begins again.
            ExecutionError: if it cannot be read now.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """

        def work(left_s: LeftS) -> dict[str, Array]:
            with self._model.connection.stops.holding(self._lock, left_s), self._going_on():
                self._check_open()
                if self._plan is None:
                    raise UsageError(f"sequence {self._number}: it has no state before its first request but what it was given")
                return self._model.read_state(self._plan, left_s, sequence=self._number, step=self._step)

        with speaking_onnxruntime():
            return self._model.retrying(work)

    def reset(self, initial: Mapping[str, Any] | None = None) -> None:
        """Begin again, with this state, or with that of the first time."""
        with self._lock:
            if initial is not None:
                self._initial = dict(initial)
            self._step, self._plan, self._is_closed = 0, None, False

    def go_back(self, steps: int) -> None:
        """Let so many requests be part of it: all that were answered, or all but the latest one, of which nobody took the answer.

        Raises:
            StateLostError: if it has been closed since.
        """
        with self._model.connection.stops.holding(self._lock, lambda: math.inf):
            if self._step < steps:
                raise StateLostError(f"sequence {self._number}: it has ended; begin it again")
            self._step, self._plan = steps, self._plan if steps else None

    def fork(self) -> StatefulRuns:
        """Return another sequence that goes on from here, as this one does; on the agents they share what they have.

        Raises:
            UsageError: if it was closed.
        """
        with self._lock:
            self._check_open()
            other = StatefulRuns(self._model, self._until_terminated, self._initial)
            other._lasting = self._lasting
            if self._plan is not None:
                self._model.connection.tell(ForkSequence(self._number, other._number))
                other._step, other._plan = self._step, self._plan
            return other

    def close(self) -> None:
        """End it: its state is forgotten. One that is not ended is forgotten when it has been idle for long."""
        with self._lock:
            if self._plan is not None:
                self._model.connection.tell(EndSequence(self._number))
            self._step, self._plan, self._is_closed = 0, None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
