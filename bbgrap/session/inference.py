"""Inference on a cluster with onnxruntime's surface: `InferenceSession(model, cluster=...).run(names, feed)`.

The model is brought to the coordinator once. For each combination of input shapes it is planned and deployed at the first run, and used
from then on. Laws: a feed that does not fit the model fails before anything is sent; any thread may call `run`.
"""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from bbgrap.engine.load import confirm_runs
from bbgrap.errors import ExecutionError, InputError, UsageError
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.types import Array, DType
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.protocol.client_messages import (
    Fault,
    ModelPrepared,
    PrepareModel,
    RunModel,
    RunResult,
)
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.report.trace import HOST_NAME, Trace, clock_error_s, timeline_of
from bbgrap.session.connection import CallFailedError, Connection, OnProgress, connect
from bbgrap.session.first_inputs import FirstInputs, Shapes
from bbgrap.session.model_files import ModelFiles
from bbgrap.session.prepared import ModelMetadata, PreparedPlan
from bbgrap.session.signature import NodeArg, Signature
from bbgrap.session.values import unpacked_output

PROVIDER = "BBGrapExecutionProvider"
_TRIES = 3
"""A coordinator that was restarted has forgotten model and plan: bring them again, and once more if it happens just then."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
"""Between two tries to submit a request to a coordinator whose queue is full: doubled each time, up to the longest."""

_PLANS = 64
"""Combinations of input shapes remembered; the coordinator keeps fewer deployments and answers again for those it still has."""

_log = logging.getLogger("bbgrap.session")

R = TypeVar("R")


class HasConnection(Protocol):
    """Something with a connection of its own: a `LocalCluster`."""

    @property
    def connection(self) -> Connection:
        """The connection; whoever has it closes it."""


class InferenceSession:
    """A model on a cluster.

    Invariants: `_plans` holds one plan per combination of input shapes that was run or prepared.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: object = None,
        providers: Sequence[Any] | None = None,
        *,
        cluster: Connection | HasConnection | str,
        options: PlanOptions | None = None,
        planner: str = "bbgrap",
        split: str = "rows",
        deadline_s: float = 300.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Read the model; nothing is planned before the first run.

        Args:
            path_or_bytes: A file, `zoo:NAME`, or the bytes of a model.
            sess_options: Accepted for compatibility; agents choose threads and optimisations for themselves.
            providers: None, or a list with `BBGrapExecutionProvider` or `CPUExecutionProvider`.
            cluster: A connection, a `LocalCluster`, or a coordinator's address.
            options: Everything about planning; overrides `planner` and `split`.
            planner: Who plans.
            split: Along what tensors are cut.
            deadline_s: A request without an answer after this long fails.
            on_progress: Called while a model is planned and deployed.

        Raises:
            ModelError: if the model cannot be read.
            UsageError: if an option does not exist.
            ClusterUnavailableError: if there is no coordinator.
        """
        if split not in get_args(Split):
            raise UsageError(f"split: expected one of {', '.join(get_args(Split))}, got '{split}'")
        known = {PROVIDER, "CPUExecutionProvider"}
        unknown = [str(p) for p in providers or () if (p[0] if isinstance(p, tuple) else p) not in known]
        if unknown:
            raise UsageError(f"providers: expected {PROVIDER}, got {', '.join(unknown)}")
        self.options = options or PlanOptions(planner=planner, split=split)  # type: ignore[arg-type]
        self._path = self._locate(path_or_bytes)
        model = read_model(self._path)
        if model.fault:
            confirm_runs(model, self._path)
        self._name = model.name
        self._files = ModelFiles(self._path, model.files)
        self._signature = Signature.of(model)
        self._connection = _connection(cluster)
        if isinstance(cluster, str):
            weakref.finalize(self, self._connection.close)
        self._deadline_s = deadline_s
        self._on_progress = on_progress
        self._pool: ThreadPoolExecutor | None = None
        self._forget_plans()

    def _forget_plans(self) -> None:
        """Begin without any plan."""
        self._plans: dict[Shapes, PreparedPlan] = {}
        self._latest: PreparedPlan | None = None
        self._lock = threading.Lock()
        self._first_inputs = FirstInputs(self.options.input_values, _PLANS)
        self._overriding: dict[tuple[str, ...], InferenceSession] = {}

    # --- onnxruntime's surface ------------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs as the model declares them."""
        return list(self._signature.inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights instead of which a feed may have others."""
        return list(self._signature.overridable)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs as the model declares them."""
        return list(self._signature.outputs)

    def get_providers(self) -> list[str]:
        """Return who computes."""
        return [PROVIDER]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's name, and nothing about the rest."""
        return ModelMetadata(self._name)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model once and return the outputs, all of them or those named.

        Raises:
            InputError: if a name, dtype or shape does not fit the model.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        del run_options  # onnxruntime's run options steer its own threads and logs
        fitting = self._fitting(input_feed)
        return fitting._run_once(output_names, input_feed)

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
        headers = tuple(
            TensorHeader(arg.name, DType.UINT8 if arg.is_packed else arg.dtype, array.shape)
            for arg, array in zip(self._signature.inputs, feeds, strict=True)
        )
        contents = tuple(encode_array(array) for array in feeds)
        self._first_inputs.see(shapes, feeds)
        result = self._retrying(lambda: self._run(shapes, headers, contents, record=record))
        if len(result.outputs) != len(self._signature.outputs):
            raise InputError(f"model '{self._name}': expected {len(self._signature.outputs)} outputs, got {len(result.outputs)}")
        return result

    def _output(self, result: RunResult, index: int) -> Any:  # noqa: ANN401 - a list, a dictionary or None where the model says so
        header = result.outputs[index]
        array = decode_array(header.dtype, header.shape, result.payload[index])
        if self._signature.outputs[index].is_packed:
            return unpacked_output(array)
        return array if array.flags.writeable else array.copy()

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
        self._answer(feeds)  # the first request after a pause finds caches and processors asleep
        results = [self._answer(feeds, record=True) for _ in range(runs)]
        plan = self.plan
        if any(result.epoch != plan.epoch for result in results):
            raise ExecutionError(f"model '{self._name}': it was planned anew while it was traced; trace again")
        names = (*plan.agents, HOST_NAME)
        outputs = tuple(self._output(results[-1], index) for index in range(len(results[-1].outputs)))
        timelines = tuple(timeline_of(result.records, names) for result in results)
        return Trace(timelines, max(clock_error_s(result.records) for result in results), outputs)

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> PreparedPlan:
        """The plan used last; plans for the declared shapes if there was no run yet.

        Raises:
            InputError: if the declared shapes are not concrete and nothing was run.
        """
        if self._latest is None:
            return self.prepare(self._signature.declared_shapes())
        return self._latest

    def prepare(self, shapes: Mapping[str, tuple[int, ...]], input_feed: Mapping[str, Any] | None = None) -> PreparedPlan:
        """Plan and deploy for these input shapes, so that the first run is as fast as the others.

        `input_feed` are inputs like those that will come: pictures travel in fewer bytes over slow ways (`PlanOptions.input_values`).

        The planner `auto` weighs what machines can do: nodes of which that is not known are measured first, once,
        which takes some seconds each.
        """
        ordered = tuple(() if arg.is_packed else tuple(shapes[arg.name]) for arg in self._signature.inputs)
        self._first_inputs.see(ordered, () if input_feed is None else self._signature.check_feed(input_feed))
        return self._retrying(lambda: self._prepared(ordered))

    def _retrying(self, work: Callable[[], R]) -> R:
        for left in reversed(range(_TRIES)):
            try:
                return work()
            except CallFailedError as failed:
                if not left or failed.answer.fault not in {Fault.UNKNOWN_MODEL, Fault.UNKNOWN_PLAN}:
                    raise failed.error from None
                with self._lock:
                    self._plans.clear()
        raise AssertionError("unreachable")

    def _prepared(self, shapes: Shapes) -> PreparedPlan:
        known = self._plans.get(shapes)
        if known is not None:
            # Not under the lock: requests must not wait while another shape is planned.
            self._latest = known
            return known
        with self._lock:
            plan = self._plans.get(shapes)
            if plan is None:
                if self.options.planner == "auto":
                    self._measure()
                model = self._files.bring(self._connection)
                named = {arg.name: shape for arg, shape in zip(self._signature.inputs, shapes, strict=True)}
                options = replace(self.options, input_values=self._first_inputs.values(shapes))
                message = PrepareModel(self._connection.number(), model, named, options)
                plan = PreparedPlan(self._connection.try_call(message, ModelPrepared, self._on_progress))
                while len(self._plans) >= _PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[shapes] = plan
            self._latest = plan
            return plan

    def _run(
        self, shapes: Shapes, headers: tuple[TensorHeader, ...], contents: tuple[bytes | memoryview, ...], *, record: bool
    ) -> RunResult:
        plan = self._prepared(shapes)
        result = self._submit(plan, headers, contents, record=record)
        if result.epoch != plan.epoch:
            # Planned anew since, over other agents, or by another variant: what `plan` shows is to be asked for again.
            with self._lock:
                if self._plans.get(shapes) is plan:
                    del self._plans[shapes]
        return result

    def _submit(
        self, plan: PreparedPlan, headers: tuple[TensorHeader, ...], contents: tuple[bytes | memoryview, ...], *, record: bool
    ) -> RunResult:
        """Run a request; as long as the coordinator has too many of them, wait and say it again."""
        left, pause = self._deadline_s, _PAUSE_S
        deadline = time.monotonic() + left
        while True:
            try:
                message = RunModel(self._connection.number(), plan.key, left, headers, contents, record)
                return self._connection.try_call(message, RunResult)
            except CallFailedError as failed:
                if failed.answer.fault is not Fault.BUSY or left <= pause:
                    raise
            time.sleep(pause)
            left = max(0.0, deadline - time.monotonic())
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _measure(self) -> None:
        """Measure the nodes whose speeds nobody knows, neither from a measurement nor by hand; without, a plan assumes usual ones."""
        if all(node.profile is not None and node.profile.work for node in self._connection.nodes()):
            return
        try:
            self._connection.profile(on_progress=self._on_progress, again=False)
        except ExecutionError as error:  # some have gone, or cannot: neither keeps the others from working
            _log.warning("planning without some measurements: %s", error)

    def _locate(self, model: str | Path | bytes) -> Path:
        if isinstance(model, bytes):
            path = Path(tempfile.mkdtemp(prefix="bbgrap-model-")) / "model.onnx"
            weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)
            path.write_bytes(model)
            return path
        if str(model).startswith("zoo:"):
            from bbgrap.zoo import materialize

            return materialize(str(model).removeprefix("zoo:"))
        return Path(model)


def _connection(cluster: Connection | HasConnection | str) -> Connection:
    if isinstance(cluster, str):
        return connect(cluster)
    return cluster if isinstance(cluster, Connection) else cluster.connection
