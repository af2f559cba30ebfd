"""A model at the coordinator: brought once, planned for each combination of input shapes, and asked.

    plan_for(shapes) ── known? ── no ──► bring what is missing ──► PrepareModel ──► the plan, or the standby until there is one
    submit(plan, inputs) ──► RunModel; busy: wait and say it again; the coordinator has forgotten it: bring it and ask anew

Laws: any thread may ask; of threads that bring the same new shapes one asks and the others wait for it; whatever is waited for, a call ends
within its deadline.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

import numpy as np

from bbgrap.errors import ExecutionError, InputError
from bbgrap.graph.types import Array, DType
from bbgrap.planners.options import AUTO, InputValues, PlanOptions
from bbgrap.program.dictionaries import have_few_values
from bbgrap.protocol.client_messages import ModelPrepared, PrepareModel, Progress, RunModel, RunResult
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_FRAMES, MAX_TENSOR_BYTES
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import Inputs, decode_array, encode_array
from bbgrap.session.answers import PreparedPlan
from bbgrap.session.calls import CallFailedError, OnProgress
from bbgrap.session.connection import Connection
from bbgrap.session.model_files import ModelFiles
from bbgrap.session.signature import Shapes, Signature
from bbgrap.session.state_pairs import planned_shapes, with_state_shapes
from bbgrap.session.values import unpacked_output

_GRACE_S = 0.7
"""How much longer than the coordinator a client waits for the answer to a request."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
"""Between two tries to do something that a coordinator has no room for now: doubled each time, up to the longest."""
_LONGEST_WAIT_S = 5.0
"""And as long as the last try has taken, up to this."""
_TOLD_AFTER_S, _TOLD_EVERY_S = 5.0, 60.0
"""How long something is tried again until the log says why, and how often it does: people think that it hangs."""

_PASSING = frozenset({Fault.BUSY, Fault.UNKNOWN_MODEL, Fault.UNKNOWN_PLAN})
"""What is over when it is tried again: there is room, or the model was brought, and the plan asked for, once more."""

_PLANS = 512
"""Combinations of input shapes remembered; the coordinator keeps fewer deployments and answers again for those it still has."""

_log = logging.getLogger("bbgrap.session")

LeftS = Callable[[], float]
"""Tells how many seconds are left until a deadline."""

R = TypeVar("R")


class RemoteModel:
    """A model of one session.

    Invariants: `_plans` has the plan of each combination of input shapes that was run or prepared; `_latest` are those asked for last;
    `_values` has what plans are made for where that is to be seen from inputs: the first ones of a shape speak for those that follow.
    """

    def __init__(
        self,
        connection: Connection,
        files: ModelFiles,
        signature: Signature,
        name: str,
        options: PlanOptions,
        *,
        waits: bool,
        deadline_s: float,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Nothing is brought before it is needed; `waits` is whether the first request of some shapes waits for their plan."""
        self.connection = connection
        self.signature = signature
        """What the model takes and gives, state among it."""
        self.name = name
        self.options = options
        self._files = files
        self._waits = waits
        self._deadline_s = deadline_s
        self._on_progress = on_progress
        self._told = -math.inf
        self._forget_plans()

    def with_signature(self, signature: Signature) -> Self:
        """Return the same model with other inputs, some of which take the place of weights; its plans are its own."""
        other = copy.copy(self)
        other.signature = signature
        other._forget_plans()
        return other

    def _forget_plans(self) -> None:
        self._plans: dict[Shapes, PreparedPlan] = {}
        self._latest: Shapes | None = None
        self._lock = threading.Lock()
        self._values: dict[Shapes, InputValues] = {}
        self._asking = threading.Lock()
        self._waited: dict[Shapes, None] = {}

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> PreparedPlan | None:
        """Who serves the shapes used last; None if none were."""
        if self._latest is None:
            return None
        shapes, known = self._latest, self._plans.get(self._latest)
        if known is not None and known.is_current:
            return known
        return self.retrying(lambda left_s: self._ask(shapes, left_s, wait=False))

    def prepare(self, shapes: Mapping[str, tuple[int, ...]], feeds: Sequence[Array] = (), *, wait: bool = True) -> PreparedPlan:
        """Ask for the plan for inputs of these shapes, of which `feeds` are examples, and wait for it unless told otherwise."""
        given = with_state_shapes(self.options.state, self.signature, shapes) if self.options.state else shapes
        ordered = planned_shapes(self.options.state, self.signature, self.signature.check_shapes(given))
        self._see(ordered, feeds)
        return self.retrying(lambda left_s: self._waited_for(ordered, left_s) if wait else self._ask(ordered, left_s, wait=False))

    def plan_for(self, shapes: Shapes, left_s: LeftS) -> PreparedPlan:
        """Return who serves these shapes."""
        plan = self._plans.get(shapes) or self._first(shapes, left_s)
        self._latest = shapes
        return plan

    def _first(self, shapes: Shapes, left_s: LeftS) -> PreparedPlan:
        """Ask for the plan of new shapes: one thread does, the others wait for it."""
        with self.connection.stops.holding(self._asking, left_s):
            known = self._plans.get(shapes)
            if known is not None:
                return known
            plan = self._waited_for(shapes, left_s) if self._waits and shapes not in self._waited else self._ask(shapes, left_s, wait=False)
            _keep(self._waited, shapes, None)  # after a failure the standby serves: waited for is only the first plan
            return plan

    def _waited_for(self, shapes: Shapes, left_s: LeftS) -> PreparedPlan:
        """Return the plan for these shapes once it is there."""
        known = self._plans.get(shapes)
        if known is not None and known.is_current:
            return known
        if self.options.planner == AUTO:
            self._measure(left_s)
        return self._ask(shapes, left_s, wait=True)

    def _ask(self, shapes: Shapes, left_s: LeftS, *, wait: bool) -> PreparedPlan:
        """Bring the model if it is not there, and ask who serves these shapes; with `wait`, once there is a plan."""
        # Not under the lock: requests must not wait while another shape is planned.
        model = self._files.bring(self.connection, left_s, self._on_progress)
        named = {arg.name: shape for arg, shape in zip(self.signature.inputs, shapes, strict=True)}
        options = replace(self.options, input_values=self._values.get(shapes, self.options.input_values))
        left = max(0.0, left_s())
        message = PrepareModel(self.connection.number(), model, named, options, wait, left)
        # Like a request: the coordinator knows better what it has waited for.
        answer = self.connection.try_call(message, ModelPrepared, self._on_progress, timeout_s=left + _GRACE_S)
        plan = PreparedPlan(answer, is_current=wait)
        with self._lock:
            _keep(self._plans, shapes, plan)
        self._latest = shapes
        return plan

    def _see(self, shapes: Shapes, feeds: Sequence[Array]) -> None:
        """Look at inputs of these shapes, if nobody has and it matters; none at all are any."""
        if self.options.input_values == "auto" and shapes not in self._values:
            values: InputValues = "few" if have_few_values(feeds) else "any"
            with self._lock:
                _keep(self._values, shapes, self._values.get(shapes, values))

    def _measure(self, left_s: LeftS) -> None:
        """Measure the nodes whose speeds nobody knows; a plan takes what stays unknown for no faster than the slowest that is known."""
        if all(node.profile is not None and node.profile.work for node in self.connection.nodes(left_s())):
            return
        try:
            self.connection.measure_unknown(self._on_progress, left_s())
        except TimeoutError:
            reason = f"its deadline of {self._deadline_s:g} s passed while nodes were measured"
            raise ExecutionError(f"model '{self.name}': {reason}; 'bbgrap profile' measures them beforehand") from None
        except ExecutionError as error:  # some have gone, or cannot: neither keeps the others from working
            _log.warning("planning without some measurements: %s", error)

    # --- requests -------------------------------------------------------------------------------------------------------------------

    def answer(self, feeds: Sequence[Array], *, record: bool = False) -> RunResult:
        """Run a request whose inputs are those of the signature, and return its answer."""
        shapes = self.signature.shapes_of(feeds)
        self._see(shapes, feeds)
        inputs = encoded(self.signature, feeds)

        def work(left_s: LeftS) -> RunResult:
            plan = self.plan_for(shapes, left_s)
            result = self.submit(plan, inputs, left_s, record=record)
            if result.epoch != plan.epoch:
                # Another plan serves than before, or the standby: what `plan` shows is to be asked for again.
                plan.is_current = False
            return result

        return self.retrying(work)

    def read_state(self, plan: PreparedPlan, left_s: LeftS, *, sequence: int, step: int) -> dict[str, Array]:
        """Return the state that so many requests of a sequence have left, by the names of inputs."""
        result = self.submit(plan, ((), ()), left_s, sequence=sequence, step=step, reads=True)
        packed = {arg.name for arg in self.signature.inputs if arg.is_packed}
        came = zip(result.outputs, result.payload, strict=True)
        arrays = {header.name: decode_array(header.dtype, header.shape, content).copy() for header, content in came}
        return {name: np.asarray(unpacked_output(array)) if name in packed else array for name, array in arrays.items()}

    def submit(
        self,
        plan: PreparedPlan,
        inputs: Inputs,
        left_s: LeftS,
        *,
        record: bool = False,
        sequence: int = 0,
        step: int = 0,
        reads: bool = False,
    ) -> RunResult:
        """Run a request, perhaps one of a sequence."""
        left = max(0.0, left_s())
        message = RunModel(self.connection.number(), plan.key, left, *inputs, record, sequence, step, reads)
        # A little longer than the coordinator waits: it knows better what the request has waited for.
        return self.connection.try_call(message, RunResult, timeout_s=left + _GRACE_S)

    def retrying(self, work: Callable[[LeftS], R]) -> R:
        """Do something within the deadline, which `work` is told.

        Again if the coordinator has no room for it now, or has forgotten the model or plan for it.
        """
        deadline, pause = time.monotonic() + self._deadline_s, _PAUSE_S

        def left_s() -> float:
            return deadline - time.monotonic()

        while True:
            began = time.monotonic()
            try:
                return work(left_s)
            except TimeoutError:
                reason = f"its deadline of {self._deadline_s:g} s passed"
                raise ExecutionError(f"model '{self.name}': {reason} without an answer of the coordinator") from None
            except CallFailedError as failed:
                is_busy = failed.answer.fault is Fault.BUSY
                # A plan for which no node has room is not made again and again: half of the time it waits.
                wait_s = max(pause, min(time.monotonic() - began, _LONGEST_WAIT_S, left_s() / 2)) if is_busy else pause
                if left_s() <= pause or failed.answer.fault not in _PASSING:
                    raise failed.error from None
                if is_busy:
                    self._say(failed.answer.reason, self._deadline_s - left_s())
                else:
                    with self._lock:
                        self._plans.clear()
            self.connection.stops.pause(wait_s)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _say(self, reason: str, waited_s: float) -> None:
        """Say why something is tried again: to who hears of progress at once, else in the log, if it takes long."""
        if self._on_progress is not None:
            self._on_progress(Progress(0, f"tried again: {reason}", 0, 0))
        elif waited_s > _TOLD_AFTER_S and (now := time.monotonic()) > self._told + _TOLD_EVERY_S:
            self._told = now
            _log.warning("model '%s' is tried again until its deadline of %g s: %s", self.name, self._deadline_s, reason)


def _keep(known: dict[Shapes, R], shapes: Shapes, value: R) -> None:
    """Remember something of a combination of shapes; of too many, the oldest is forgotten."""
    while len(known) >= _PLANS:
        known.pop(next(iter(known)))
    known[shapes] = value


def encoded(signature: Signature, feeds: Sequence[Array]) -> Inputs:
    """Return the inputs of a request as they travel.

    Raises:
        InputError: if they are more, or larger, than a request may have.
    """
    headers = tuple(
        TensorHeader(arg.name, DType.UINT8 if arg.is_packed else arg.dtype, array.shape)
        for arg, array in zip(signature.inputs, feeds, strict=True)
    )
    contents = tuple(encode_array(array) for array in feeds)
    for header, content in zip(headers, contents, strict=True):
        if len(content) > MAX_TENSOR_BYTES:
            raise InputError(f"input '{header.name}': {len(content):,} bytes; a request takes {MAX_TENSOR_BYTES:,} in one input")
    total = sum(map(len, contents))
    if len(contents) > MAX_PAYLOAD_FRAMES or total > MAX_MESSAGE_BYTES - MAX_HEADER_BYTES:
        most = f"{MAX_PAYLOAD_FRAMES:,} with {MAX_MESSAGE_BYTES - MAX_HEADER_BYTES:,}"
        raise InputError(f"{len(contents):,} inputs with {total:,} bytes; a request takes {most}")
    return headers, contents
