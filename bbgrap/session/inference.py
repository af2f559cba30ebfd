"""Inference on a cluster with onnxruntime's surface: `InferenceSession(model, cluster=...).run(names, feed)`.

The model is brought to the coordinator once, which answers at once, by the model's standby; a plan is made beside for each combination of
input shapes, and serves from then on. Who asks for a particular planner waits for its plan, the first time. Laws: a feed that does not fit
the model fails before anything is sent; any thread may call `run`; a request ends within its deadline, whatever it waits for.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from bbgrap.costmodel.timeline import Timeline
from bbgrap.engine.load import confirm_runs
from bbgrap.engine.sessions import open_session
from bbgrap.errors import ExecutionError, InputError, UsageError
from bbgrap.graph.onnx_metadata import ModelMetadata, metadata_of
from bbgrap.graph.onnx_read import OnnxModel, read_model
from bbgrap.graph.onnx_top_k import with_top_outputs
from bbgrap.graph.types import Array, DType
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.registry import AUTO
from bbgrap.protocol.client_messages import Fault, ModelPrepared, PrepareModel, RunModel, RunResult
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.report.trace import Trace, clock_error_s, timeline_of
from bbgrap.session.connection import CallFailedError, Connection, OnProgress
from bbgrap.session.first_inputs import FirstInputs, Shapes
from bbgrap.session.model_files import ModelFiles
from bbgrap.session.ort_errors import speaking_onnxruntime
from bbgrap.session.ort_values import values_of
from bbgrap.session.prepared import PreparedPlan
from bbgrap.session.sequence import StatefulRuns
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import StateOption, pairs_of, planned_shapes
from bbgrap.session.surface import Surface, has_foreign_operators, path_of
from bbgrap.session.values import unpacked_output
from bbgrap.session.which_cluster import HasConnection, connection_to

_GRACE_S = 0.7
"""How much longer than the coordinator a client waits for the answer to a request."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
"""Between two tries to submit a request to a coordinator whose queue is full: doubled each time, up to the longest."""

_PLANS = 512
"""Combinations of input shapes remembered; the coordinator keeps fewer deployments and answers again for those it still has."""

_log = logging.getLogger("bbgrap.session")

R = TypeVar("R")


class InferenceSession(Surface):
    """A model on a cluster.

    Invariants: `_plans` holds one plan per combination of input shapes that was run or prepared.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: object = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        cluster: Connection | HasConnection | str | None = None,
        options: PlanOptions | None = None,
        planner: str | None = None,
        split: str | None = None,
        state: StateOption | None = None,
        top: Mapping[str, int] | None = None,
        wait: bool | None = None,
        deadline_s: float = 300.0,
        on_progress: OnProgress | None = None,
        **kwargs: Any,  # noqa: ANN401 - onnxruntime's undocumented ones
    ) -> None:
        """Read the model; nothing is planned before the first run.

        Args:
            path_or_bytes: A file, `zoo:NAME`, or the bytes of a model.
            sess_options: onnxruntime's; agents choose threads and optimisations for themselves.
            providers: Looked at as onnxruntime does; the cluster computes.
            provider_options: The same.
            cluster: A connection, a `LocalCluster`, or a coordinator's address; None: the `LocalCluster` in whose `with` block this is, or
                the coordinator of BBGRAP_COORDINATOR.
            options: Everything about planning; overrides `planner` and `split`.
            planner: Who plans; None: `auto`, which looks for the fastest plan, or `bbgrap` if there is a `split`.
            split: Along what tensors are cut; None: rows.
            state: Inputs, and the outputs that they are in the next request of a `sequence`; `auto` finds them by their usual names.
            top: Outputs of which only so many largest elements along the last axis are wanted: `NAME.values` and `NAME.indices` take the
                place of each.
            wait: Whether the first request of some shapes waits for their plan; None: unless the planner is `auto`.
            deadline_s: A request without an answer after this long fails, bringing the model and planning included.
            on_progress: Called while a model is brought, planned and deployed, with what has a `text`; in bytes where those count.
            kwargs: onnxruntime's `enable_fallback`, `disabled_optimizers` and `read_config_from_model`.

        Raises:
            ModelError: if the model cannot be read.
            UsageError: if an option does not exist, or there is no cluster.
            ClusterUnavailableError: if there is no coordinator.
        """
        with speaking_onnxruntime():
            self._take(path_or_bytes, sess_options, providers, provider_options, kwargs)
            if split is not None and split not in get_args(Split):
                raise UsageError(f"split: expected one of {', '.join(get_args(Split))}, got '{split}'")
            chosen = planner or ("auto" if split is None else "bbgrap")
            self.options = options or PlanOptions(chosen, split or "rows")  # type: ignore[arg-type]  # looked at above
            self._waits = self.options.planner != AUTO if wait is None else wait
            self._path = self._written(path_or_bytes) if isinstance(path_or_bytes, bytes) else path_of(path_or_bytes)
            if top is not None:
                self.options = replace(self.options, top=tuple(top.items()))
            self._read(read_model(self._path))
            if state is not None:
                self.options = replace(self.options, state=pairs_of(state, self._signature, self._name))
            self._connection, is_mine = connection_to(cluster)
        if is_mine:
            weakref.finalize(self, self._connection.close)
        self._deadline_s = deadline_s
        self._on_progress = on_progress
        self._pool: ThreadPoolExecutor | None = None
        self._forget_plans()

    def _read(self, model: OnnxModel) -> None:
        """Keep what is to be known of a model here; what onnxruntime may refuse is refused now, not by the first run."""
        if model.fault or has_foreign_operators(model):
            confirm_runs(model, self._path)
        if self._sess_options.optimized_model_filepath:
            open_session(self._path, self._sess_options, {})  # writes it
        self._name = model.name
        self._metadata = metadata_of(model)
        self._files = ModelFiles(self._path, model.files)
        self._signature = Signature.of(with_top_outputs(model, dict(self.options.top)))

    def _forget_plans(self) -> None:
        """Begin without any plan."""
        self._plans: dict[Shapes, PreparedPlan] = {}
        self._latest: Shapes | None = None
        self._lock = threading.Lock()
        self._first_inputs = FirstInputs(self.options.input_values, _PLANS)
        self._asking = threading.Lock()
        self._waited: frozenset[Shapes] = frozenset()
        self._overriding: dict[tuple[str, ...], InferenceSession] = {}

    # --- running --------------------------------------------------------------------------------------------------------------------

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the model says of itself."""
        return self._metadata

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model once and return the outputs, all of them or those named.

        Of `run_options` only `terminate` matters, which another thread may set; the rest steers onnxruntime's own threads and logs.

        Raises:
            InputError: if a name, dtype or shape does not fit the model.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with speaking_onnxruntime(), self.until_terminated(run_options):
            if self.options.state:
                raise UsageError(f"model '{self._name}': this session has state: run it in one: with session.sequence() as s: s.run(...)")
            feed = values_of(input_feed)
            return self._fitting(feed)._run_once(output_names, feed)

    def _fitting(self, feed: Mapping[str, Any]) -> InferenceSession:
        """Return itself; or, if the feed overrides weights, a session of the model that takes them as inputs."""
        signature = self._signature.overriding(feed)
        if signature is self._signature:
            return self
        names = tuple(arg.name for arg in signature.inputs)
        with self._lock:
            if names not in self._overriding:
                other = copy.copy(self)
                other._signature = signature
                other._forget_plans()
                self._overriding[names] = other
            return self._overriding[names]

    def _run_once(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        chosen = self._signature.choose_outputs(output_names)
        feeds = self._signature.check_feed(input_feed)
        result = self._answer(feeds)
        return [self._output(result, index) for index in chosen]

    def _answer(self, feeds: Sequence[Array], *, record: bool = False) -> RunResult:
        shapes = self._signature.shapes_of(feeds)
        headers, contents = _encoded(self._signature, feeds)
        self._first_inputs.see(shapes, feeds)
        left_s = _time_left(self._deadline_s)
        result = self._retrying(lambda: self._run(shapes, headers, contents, left_s, record=record), left_s)
        if len(result.outputs) != len(self._signature.outputs):
            raise InputError(f"model '{self._name}': expected {len(self._signature.outputs)} outputs, got {len(result.outputs)}")
        return result

    def sequence(self, initial: Mapping[str, Any] | None = None) -> StatefulRuns:
        """Return requests that go on from each other; `initial` is the state before the first one, zeros or nothing where it is not given.

        Raises:
            UsageError: if the session has no state.
        """
        if not self.options.state:
            raise UsageError(f"model '{self._name}': this session has no state; say which: InferenceSession(..., state='auto')")
        return StatefulRuns(self, initial)

    @property
    def signature(self) -> Signature:
        """What the model takes and gives, state among it."""
        return self._signature

    @property
    def connection(self) -> Connection:
        """The connection to the coordinator."""
        return self._connection

    def output(self, result: RunResult, index: int, signature: Signature) -> Any:  # noqa: ANN401 - see `_output`
        """Return an output of an answer, of which a signature tells the types."""
        if len(result.outputs) != len(signature.outputs):
            raise InputError(f"model '{self._name}': expected {len(signature.outputs)} outputs, got {len(result.outputs)}")
        header = result.outputs[index]
        array = decode_array(header.dtype, header.shape, result.payload[index])
        if signature.outputs[index].is_packed:
            return unpacked_output(array)
        return array if array.flags.writeable else array.copy()

    def _output(self, result: RunResult, index: int) -> Any:  # noqa: ANN401 - a list, a dictionary or None where the model says so
        return self.output(result, index, self._signature)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], Any, str], None],
        user_data: object,
        run_options: object = None,
    ) -> None:
        """Run in the background and call `callback(results, user_data, error)`, where `error` is empty if it went well."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(16, "bbgrap-run")

        def work() -> None:
            try:
                results, fault = self.run(output_names, input_feed, run_options), ""
            except Exception as error:  # whatever it is, the callback must learn of it
                results, fault = [], str(error) or type(error).__name__
            callback(results, user_data, fault)

        self._pool.submit(work)

    def run_recorded(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> tuple[list[Any], Timeline | None]:
        """Run the model once, as `run` does, and also return when every node did what; None if nobody told in time.

        That takes until all nodes have told, some milliseconds, so it is for a part of the requests.

        Raises:
            InputError: if a name, dtype or shape does not fit the model.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with speaking_onnxruntime():
            feed = values_of(input_feed)
            return self._fitting(feed)._run_recorded(output_names, feed)

    def _run_recorded(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> tuple[list[Any], Timeline | None]:
        chosen = self._signature.choose_outputs(output_names)
        result = self._answer(self._signature.check_feed(input_feed), record=True)
        return [self._output(result, index) for index in chosen], self.timeline(result)

    def timeline(self, result: RunResult) -> Timeline | None:
        """Return when every node did what for a recorded request; None if nobody told in time."""
        return timeline_of(result.records, result.devices) if result.devices else None

    def trace(self, input_feed: Mapping[str, Any], runs: int = 5) -> Trace:
        """Run the model some times, one after the other, and return when every agent and the coordinator did what.

        Raises:
            InputError: if a name, dtype or shape does not fit the model.
            ExecutionError: if a request failed, or the agents changed meanwhile; tracing again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        if runs < 1:
            raise UsageError(f"trace: expected at least one run, got {runs}")
        feeds = self._signature.check_feed(input_feed)
        self._prepare(self._signature.shapes_of(feeds))
        self._answer(feeds)  # the first request after a pause finds caches and processors asleep
        results = [self._answer(feeds, record=True) for _ in range(runs)]
        plan = self.plan
        if any(result.epoch != plan.epoch for result in results):
            raise ExecutionError(f"model '{self._name}': it was planned anew while it was traced; trace again")
        outputs = tuple(self._output(results[-1], index) for index in range(len(results[-1].outputs)))
        if not all(result.devices for result in results):
            raise ExecutionError(f"model '{self._name}': an agent has not told in time when it did what; trace again")
        timelines = tuple(timeline_of(result.records, result.devices) for result in results)
        return Trace(timelines, max(clock_error_s(result.records) for result in results), outputs)

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> PreparedPlan:
        """Who serves the shapes used last, and by which plan; without any run so far, plans for the declared shapes.

        Raises:
            InputError: if the declared shapes are not concrete and nothing was run.
        """
        if self._latest is None:
            return self.prepare(self._signature.declared_shapes())
        shapes, left_s = self._latest, _time_left(self._deadline_s)
        known = self._plans.get(shapes)
        if known is not None and known.is_current:
            return known
        return self._retrying(lambda: self._ask(shapes, left_s, wait=False), left_s)

    def prepare(
        self, shapes: Mapping[str, tuple[int, ...]], input_feed: Mapping[str, Any] | None = None, *, wait: bool = True
    ) -> PreparedPlan:
        """Plan and deploy for these input shapes, and wait for it, so that the first run is as fast as the others.

        Without `wait`, return once the model is brought and its standby answers; the plan is made beside.

        `input_feed` are inputs like those that will come: pictures travel in fewer bytes over slow ways (`PlanOptions.input_values`).

        The planner `auto` weighs what machines can do: nodes of which that is not known are measured first, once,
        which takes some seconds each.
        """
        given = tuple(() if arg.is_packed else tuple(shapes[arg.name]) for arg in self._signature.inputs)
        ordered = planned_shapes(self.options.state, self._signature, given)
        self._first_inputs.see(ordered, () if input_feed is None else self._signature.check_feed(input_feed))
        if wait:
            return self._prepare(ordered)
        left_s = _time_left(self._deadline_s)
        return self._retrying(lambda: self._ask(ordered, left_s, wait=False), left_s)

    def _prepare(self, shapes: Shapes) -> PreparedPlan:
        """Wait for the plan for these shapes."""
        known, left_s = self._plans.get(shapes), _time_left(self._deadline_s)
        if known is not None and known.is_current and known.was_waited_for:
            return known
        if self.options.planner == AUTO:
            self._measure()
        return self._retrying(lambda: self._ask(shapes, left_s, wait=True), left_s)

    def _retrying(self, work: Callable[[], R], left_s: Callable[[], float]) -> R:
        """Do something that a coordinator may have forgotten the model or plan for, or that may take too long."""
        while True:
            try:
                return work()
            except TimeoutError:
                reason = f"its deadline of {self._deadline_s:g} s passed"
                raise ExecutionError(f"model '{self._name}': {reason} without an answer of the coordinator") from None
            except CallFailedError as failed:
                if left_s() <= 0 or failed.answer.fault not in {Fault.UNKNOWN_MODEL, Fault.UNKNOWN_PLAN}:
                    raise failed.error from None
                with self._lock:
                    self._plans.clear()
                time.sleep(_PAUSE_S)

    def _ask(self, shapes: Shapes, left_s: Callable[[], float], *, wait: bool) -> PreparedPlan:
        """Bring the model if it is not there, and ask who serves these shapes; with `wait`, once there is a plan."""
        # Not under the lock: requests must not wait while another shape is planned.
        model = self._files.bring(self._connection, left_s, self._on_progress)
        named = {arg.name: shape for arg, shape in zip(self._signature.inputs, shapes, strict=True)}
        options = replace(self.options, input_values=self._first_inputs.values(shapes))
        message = PrepareModel(self._connection.number(), model, named, options, wait)
        answer = self._connection.try_call(message, ModelPrepared, self._on_progress, timeout_s=left_s())
        plan = PreparedPlan(answer, was_waited_for=wait)
        with self._lock:
            while len(self._plans) >= _PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[shapes] = plan
        self._latest = shapes
        return plan

    def _run(
        self,
        shapes: Shapes,
        headers: tuple[TensorHeader, ...],
        contents: tuple[bytes | memoryview, ...],
        left_s: Callable[[], float],
        *,
        record: bool,
    ) -> RunResult:
        plan = self.plan_for(shapes, left_s)
        result = self._submit(plan, headers, contents, left_s, record=record)
        if result.epoch != plan.epoch:
            # Another plan serves than before, or the standby: what `plan` shows is to be asked for again.
            plan.is_current = False
        return result

    def plan_for(self, shapes: Shapes, left_s: Callable[[], float]) -> PreparedPlan:
        """Return who serves these shapes."""
        plan = self._plans.get(shapes) or self._first(shapes, left_s)
        self._latest = shapes
        return plan

    def _first(self, shapes: Shapes, left_s: Callable[[], float]) -> PreparedPlan:
        """Ask for the plan of new shapes: one thread does, the others wait for it."""
        with self._asking:
            known = self._plans.get(shapes)
            if known is not None:
                return known
            # After a failure the standby serves: waited for is only the first plan.
            wait, self._waited = self._waits and shapes not in self._waited, self._waited | {shapes}
            return self._prepare(shapes) if wait else self._ask(shapes, left_s, wait=False)

    def _submit(
        self,
        plan: PreparedPlan,
        headers: tuple[TensorHeader, ...],
        contents: tuple[bytes | memoryview, ...],
        left_s: Callable[[], float],
        *,
        record: bool = False,
        sequence: int = 0,
        step: int = 0,
        reads: bool = False,
    ) -> RunResult:
        """Run a request; as long as the coordinator has too many of them, wait and say it again."""
        pause = _PAUSE_S
        while True:
            left = max(0.0, left_s())
            try:
                message = RunModel(self._connection.number(), plan.key, left, headers, contents, record, sequence, step, reads)
                # A little longer than the coordinator waits: it knows better what the request has waited for.
                return self._connection.try_call(message, RunResult, timeout_s=left + _GRACE_S)
            except CallFailedError as failed:
                if failed.answer.fault is not Fault.BUSY or left <= pause:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

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
        """Run a request of a sequence, with inputs of a signature."""
        return self._submit(plan, *_encoded(signature, feeds), left_s, sequence=sequence, step=step, record=record)

    def read_state(self, plan: PreparedPlan, left_s: Callable[[], float], *, sequence: int, step: int) -> dict[str, Array]:
        """Return the state that so many requests of a sequence have left, by the names of inputs."""
        result = self._submit(plan, (), (), left_s, sequence=sequence, step=step, reads=True)
        arrays = zip(result.outputs, result.payload, strict=True)
        return {header.name: decode_array(header.dtype, header.shape, content).copy() for header, content in arrays}

    def retrying(self, work: Callable[[Callable[[], float]], R]) -> R:
        """Do something within the deadline, which `work` is told, that a coordinator may have forgotten the plan for."""
        left_s = _time_left(self._deadline_s)
        return self._retrying(lambda: work(left_s), left_s)

    def _measure(self) -> None:
        """Measure the nodes whose speeds nobody knows, neither from a measurement nor by hand; without, a plan assumes usual ones."""
        if all(node.profile is not None and node.profile.work for node in self._connection.nodes()):
            return
        try:
            self._connection.profile(on_progress=self._on_progress, again=False)
        except ExecutionError as error:  # some have gone, or cannot: neither keeps the others from working
            _log.warning("planning without some measurements: %s", error)

    def _written(self, model: bytes) -> Path:
        """Return a file with these bytes, which ends with the session."""
        path = Path(tempfile.mkdtemp(prefix="bbgrap-model-")) / "model.onnx"
        weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)
        path.write_bytes(model)
        return path


def _encoded(signature: Signature, feeds: Sequence[Array]) -> tuple[tuple[TensorHeader, ...], tuple[bytes | memoryview, ...]]:
    """Return the inputs of a request as they travel."""
    headers = tuple(
        TensorHeader(arg.name, DType.UINT8 if arg.is_packed else arg.dtype, array.shape)
        for arg, array in zip(signature.inputs, feeds, strict=True)
    )
    return headers, tuple(encode_array(array) for array in feeds)


def _time_left(seconds: float) -> Callable[[], float]:
    """Return what tells how much is left of so many seconds."""
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()
