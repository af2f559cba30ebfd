"""Inference on a cluster with onnxruntime's surface: `InferenceSession(model, cluster=...).run(names, feed)`.

The first request is answered at once, by the model's standby; a plan is made beside for each combination of input shapes, and serves from
then on. Who asks for a particular planner waits for its plan, the first time. Laws: a feed that does not fit the model fails before
anything is sent; any thread may call `run`; a request ends within its deadline, whatever it waits for.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from bbgrap.costmodel.timeline import Timeline
from bbgrap.engine.load import confirm_runs
from bbgrap.engine.sessions import open_session
from bbgrap.errors import ExecutionError, UsageError
from bbgrap.graph.onnx_metadata import ModelMetadata, metadata_of
from bbgrap.graph.onnx_read import OnnxModel, read_model, structure_fault
from bbgrap.graph.onnx_shapes import defaults_of
from bbgrap.graph.onnx_top_k import with_top_outputs
from bbgrap.graph.types import Array
from bbgrap.planners.options import AUTO, PlanOptions, Split
from bbgrap.protocol.client_messages import RunResult
from bbgrap.protocol.limits import is_plain_name
from bbgrap.report.trace import Trace, clock_error_s, timeline_of
from bbgrap.session.answers import PreparedPlan, outputs_of, recorded_timeline
from bbgrap.session.calls import OnProgress
from bbgrap.session.connection import Connection
from bbgrap.session.model_files import ModelFiles
from bbgrap.session.ort_errors import speaking_onnxruntime
from bbgrap.session.ort_surface import OrtSurface, has_unknown_operators, path_of
from bbgrap.session.ort_values import values_of
from bbgrap.session.own_cluster import OwnCluster, connection_to
from bbgrap.session.remote_model import RemoteModel
from bbgrap.session.sequence import StatefulRuns
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import StateOption, pairs_of
from bbgrap.transport.temporary import folder_of


class InferenceSession(OrtSurface):
    """A model on a cluster: what onnxruntime has of it is here and in `OrtSurface`, what the coordinator knows of it in `RemoteModel`."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: object = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        cluster: Connection | OwnCluster | str | None = None,
        options: PlanOptions | None = None,
        planner: str | None = None,
        split: str | None = None,
        state: StateOption | None = None,
        top: Mapping[str, int] | None = None,
        wait: bool | None = None,
        name: str | None = None,
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
            state: Inputs, and the outputs that they are in the next request of a `sequence`, or themselves, if they stay as the first
                one had them; `auto` finds them by their usual names.
            top: Outputs of which only so many largest elements along the last axis are wanted: `NAME.values` and `NAME.indices` take the
                place of each.
            wait: Whether the first request of some shapes waits for their plan, and fails where there is none, instead of being answered
                by one node meanwhile; None: unless the planner is `auto`.
            name: What the cluster calls the model, in figures and errors; None: as its file.
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
            if not math.isfinite(deadline_s):
                raise UsageError(f"deadline_s: expected a finite number of seconds, got {deadline_s}")
            if name is not None and not is_plain_name(f"{name}.onnx"):
                raise UsageError(f"name: expected one without '/' and control characters, got '{name}'")
            chosen = planner or ("auto" if split is None else "bbgrap")
            self.options = options or PlanOptions(chosen, split or "rows")  # type: ignore[arg-type]  # looked at above
            self._path = self._written(path_or_bytes) if isinstance(path_or_bytes, bytes) else path_of(path_or_bytes)
            if top is not None:
                self.options = replace(self.options, top=tuple(top.items()))
            model = read_model(self._path)
            self._read(model, name)
            if state is not None:
                self.options = replace(self.options, state=pairs_of(state, self.signature, self._name))
            held = dict(self.options.state)
            self.signature = replace(self.signature.overriding(held), defaults=defaults_of(model, held))
            self.connection, is_mine = connection_to(cluster)
        if is_mine:
            weakref.finalize(self, self.connection.close)
        self._model = RemoteModel(
            self.connection,
            self._files,
            self.signature,
            self._name,
            self.options,
            waits=self.options.planner != AUTO if wait is None else wait,
            deadline_s=deadline_s,
            on_progress=on_progress,
        )
        self._overriding: dict[tuple[str, ...], RemoteModel] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def _read(self, model: OnnxModel, name: str | None) -> None:
        """Keep what is to be known of a model here; what onnxruntime may refuse is refused now, not by the first run."""
        self._files = ModelFiles(self._path, model.files, f"{name}.onnx" if name else "")
        if structure_fault(model) or has_unknown_operators(model):
            confirm_runs(model, self._path)
        if self._sess_options.optimized_model_filepath:
            open_session(self._path, self._sess_options, {})  # writes it
        self._name = name or model.name
        self._metadata = metadata_of(model)
        self.signature = Signature.of(with_top_outputs(model, dict(self.options.top)))

    # --- running --------------------------------------------------------------------------------------------------------------------

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the model says of itself."""
        return self._metadata

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model once and return the outputs, all of them or those named.

        Of `run_options` only `terminate` matters, which another thread may set; the rest steers onnxruntime's own threads and logs.

        Raises:
            UsageError: if the session has state: sequences run it.
            InputError: if a name, dtype or shape does not fit the model.
            ExecutionError: if the request failed; running it again is harmless.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        with speaking_onnxruntime(), self.until_terminated(run_options):
            return self._run("run", output_names, input_feed, record=False)[0]

    def run_recorded(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> tuple[list[Any], Timeline | None]:
        """Run the model once, as `run` does, and also return when every node did what; None if nobody told in time.

        That takes until all nodes have told, some milliseconds, so it is for a part of the requests. It raises what `run` does.
        """
        with speaking_onnxruntime():
            outputs, result = self._run("run_recorded", output_names, input_feed, record=True)
            return outputs, recorded_timeline(result)

    def _check_stateless(self, call: str) -> None:
        """Check that requests are none of a sequence's, of which only a sequence has this call."""
        if self.options.state:
            raise UsageError(f"model '{self._name}': this session has state: run it in one: with session.sequence() as s: s.{call}(...)")

    def _run(
        self, call: str, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], *, record: bool
    ) -> tuple[list[Any], RunResult]:
        self._check_stateless(call)
        feed = values_of(input_feed)
        model = self._fitting(feed)
        chosen = model.signature.choose_outputs(output_names)
        result = model.answer(model.signature.check_feed(feed), record=record)
        return outputs_of(result, model.signature, chosen, self._name), result

    def _fitting(self, feed: Collection[str]) -> RemoteModel:
        """Return the model; or, if the inputs of these names override weights, the one that takes them as inputs."""
        signature = self.signature.overriding(feed)
        if signature is self.signature:
            return self._model
        names = tuple(arg.name for arg in signature.inputs)
        with self._lock:
            if names not in self._overriding:
                self._overriding[names] = self._model.with_signature(signature)
            return self._overriding[names]

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
        # Now: whoever calls may put the next request's inputs into the same dictionary at once.
        names, feed = copy.copy(output_names), dict(input_feed)

        def work() -> None:
            try:
                results, fault = self.run(names, feed, run_options), ""
            except Exception as error:  # whatever it is, the callback must learn of it
                results, fault = [], str(error) or type(error).__name__
            try:
                callback(results, user_data, fault)
            except Exception:  # nobody else could learn of it; onnxruntime shows it, too
                traceback.print_exc()

        self._pool.submit(work)

    def sequence(self, initial: Mapping[str, Any] | None = None) -> StatefulRuns:
        """Return requests that go on from each other; `initial` is the state before the first one.

        Where it is not given, that is what the file says, else zeros, or nothing along an axis that grows.

        Raises:
            UsageError: if the session has no state.
        """
        if not self.options.state:
            raise UsageError(f"model '{self._name}': this session has no state; say which: InferenceSession(..., state='auto')")
        return StatefulRuns(self._model, self.until_terminated, initial)

    def trace(self, input_feed: Mapping[str, Any], runs: int = 5) -> Trace:
        """Run the model some times, one after the other, and return when every agent and the coordinator did what.

        It raises what `run` does, and ExecutionError if the agents changed meanwhile; tracing again is harmless.
        """
        if runs < 1:
            raise UsageError(f"trace: expected at least one run, got {runs}")
        self._check_stateless("run_recorded")
        model = self._fitting(input_feed)
        feeds = model.signature.check_feed(input_feed)
        prepared = model.prepare({arg.name: feed.shape for arg, feed in zip(model.signature.inputs, feeds, strict=True)})
        model.answer(feeds)  # the first request after a pause finds caches and processors asleep
        results = [model.answer(feeds, record=True) for _ in range(runs)]
        plan = model.plan or prepared
        if any(result.epoch != plan.epoch for result in results):
            raise ExecutionError(f"model '{self._name}': it was planned anew while it was traced; trace again")
        if not all(result.devices for result in results):
            raise ExecutionError(f"model '{self._name}': an agent has not told in time when it did what; trace again")
        outputs = outputs_of(results[-1], model.signature, model.signature.choose_outputs(None), self._name)
        timelines = tuple(timeline_of(result.records, result.devices) for result in results)
        return Trace(timelines, max(clock_error_s(result.records) for result in results), tuple(outputs))

    # --- plans ----------------------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> PreparedPlan:
        """Who serves the shapes used last, and by which plan; without any run so far, plans for the declared shapes.

        Raises:
            InputError: if the declared shapes are not concrete and nothing was run.
        """
        return self._model.plan or self.prepare(self.signature.declared_shapes())

    def prepare(
        self, shapes: Mapping[str, tuple[int, ...]], input_feed: Mapping[str, Any] | None = None, *, wait: bool = True
    ) -> PreparedPlan:
        """Plan and deploy for these input shapes, and wait for it, so that the first run is as fast as the others.

        Without `wait`, return once the model is brought and its standby answers; the plan is made beside.

        `input_feed` are inputs like those that will come: pictures travel in fewer bytes over slow ways (`PlanOptions.input_values`).

        The planner `auto` weighs what machines can do: nodes of which that is not known are measured first, once,
        which takes some seconds each.

        Raises:
            InputError: if a shape is missing, or does not fit the model.
            ExecutionError: if there is no plan within the session's deadline.
            ClusterUnavailableError: if there is no coordinator or no agent.
        """
        model = self._fitting(shapes)
        return model.prepare(shapes, () if input_feed is None else model.signature.check_feed(input_feed), wait=wait)

    def _written(self, model: bytes) -> Path:
        """Return a file with these bytes, which ends with the session."""
        path = folder_of(self, "bbgrap-model-") / "model.onnx"
        try:
            path.write_bytes(model)
        except OSError as error:
            raise UsageError(
                f"model: its {len(model)} bytes do not fit into '{path.parent}': {error.strerror}; set TMPDIR to a folder with room,"
                " or give the path of a file"
            ) from error
        return path
