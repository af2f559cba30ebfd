"""What a session has of onnxruntime's `InferenceSession` beside running: options, providers, bindings, and refusals with a reason.

Laws: names, order and defaults of arguments are onnxruntime's (a test compares them); what a cluster has no use for is checked as
onnxruntime checks it and then left alone; what it cannot do raises `UnsupportedError`, and nothing is computed elsewhere instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

from bbgrap.errors import ExecutionError, InputError, UnsupportedError, UsageError
from bbgrap.graph.onnx_read import OnnxModel
from bbgrap.session.binding import IOBinding, only_cpu
from bbgrap.session.connection import Connection
from bbgrap.session.ort_errors import as_also, speaking_onnxruntime
from bbgrap.session.ort_values import array_at, inner_value_of, ortvalue_of, write_into
from bbgrap.session.signature import NodeArg, Signature
from bbgrap.session.stops import StoppedError

PROVIDER = "BBGrapExecutionProvider"
_CPU = "CPUExecutionProvider"
_KEYWORDS = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}
"""onnxruntime's own, which it does not document; agents optimise for themselves, and nothing is computed elsewhere."""


class OrtSurface:
    """The part of a session that asks nothing of the cluster."""

    connection: Connection
    """The connection to the coordinator."""
    signature: Signature
    """What the model takes and gives, state among it."""
    _name: str

    def _take(
        self,
        model: str | os.PathLike[str] | bytes,
        sess_options: object,
        providers: Sequence[Any] | None,
        provider_options: Sequence[Mapping[Any, Any]] | None,
        keywords: Mapping[str, Any],
    ) -> None:
        """Look at onnxruntime's arguments, as onnxruntime does.

        Raises:
            TypeError: if a type is wrong, or a keyword unknown.
            UnsupportedError: if an option asks for what only a session on this machine could do.
        """
        if unknown := keywords.keys() - _KEYWORDS:
            raise TypeError(f"InferenceSession: unknown arguments {', '.join(sorted(unknown))}")
        if not isinstance(model, str | os.PathLike | bytes):
            raise TypeError(f"Unable to load from type '{type(model)}': expected a file name or bytes")
        if (model[4:8] == b"ORTM") if isinstance(model, bytes) else os.fspath(model).endswith(".ort"):
            raise UnsupportedError("model: a file in ORT format was fitted to one machine; give the .onnx file that it was made of")
        if not isinstance(sess_options, ort.SessionOptions | None):
            raise TypeError(f"sess_options: expected onnxruntime.SessionOptions, got '{type(sess_options)}'")
        self._model_path = None if isinstance(model, bytes) else os.fspath(model)
        self._sess_options = sess_options or ort.SessionOptions()
        if self._sess_options.enable_profiling:
            raise UnsupportedError("sess_options: enable_profiling profiles one machine; take a trace of all: session.trace(feed)")
        self._enable_fallback = int(keywords.get("enable_fallback", 1)) == 1
        self.set_providers(providers, provider_options)

    # --- what the model declares ----------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs as the model declares them."""
        return list(self.signature.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs as the model declares them."""
        return list(self.signature.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights instead of which a feed may have others."""
        return list(self.signature.overridable)

    # --- where it computes ----------------------------------------------------------------------------------------------------------

    def get_session_options(self) -> ort.SessionOptions:
        """Return the options that were given; agents choose threads and optimisations for themselves."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """Return who computes: the cluster, by onnxruntime's kernels for CPUs."""
        return [PROVIDER, _CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options for each provider."""
        return {name: {} for name in self.get_providers()}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[Any, Any]] | None = None) -> None:
        """Look at a choice of providers, warn where onnxruntime warns, and compute on the cluster as before.

        Raises:
            UsageError: if it is no choice, or a name is unknown, and there is no fallback; with it, as by default, it is a warning.
        """
        available = [*ort.get_available_providers(), PROVIDER]
        try:
            names, _ = check_and_normalize_provider_args(providers, provider_options, available)
            for name in names:
                if name not in available and name not in ort.get_all_providers():
                    raise RuntimeError(f"Unknown Provider Type: {name}")
        except (ValueError, RuntimeError) as error:
            if not self._enable_fallback:
                raise as_also(UsageError(f"providers: {error}"), type(error)) from None
            warnings.warn(f"providers: {error}; the cluster computes on its CPUs", stacklevel=2)

    def enable_fallback(self) -> None:
        """Note it; nothing is ever computed elsewhere than on the cluster."""
        self._enable_fallback = True

    def disable_fallback(self) -> None:
        """Note it: unknown providers are errors from now on."""
        self._enable_fallback = False

    def get_input_memory_infos(self) -> list[ort.OrtMemoryInfo]:
        """Return where inputs are taken: from the memory of this machine's CPU."""
        return [_cpu_memory() for _ in self.signature.inputs]

    def get_output_memory_infos(self) -> list[ort.OrtMemoryInfo]:
        """Return where outputs are put: into the memory of this machine's CPU."""
        return [_cpu_memory() for _ in self.signature.outputs]

    def get_input_epdevices(self) -> list[ort.OrtEpDevice]:
        """Return the device that each input is taken from: this machine's CPU."""
        device = next(device for device in ort.get_ep_devices() if device.ep_name == _CPU)
        return [device for _ in self.signature.inputs]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Refuse: parts of nodes are on machines.

        Raises:
            UnsupportedError: always.
        """
        with speaking_onnxruntime(ort_state.Fail):
            raise UnsupportedError("get_provider_graph_assignment_info: nodes are divided between machines; session.plan.report says how")

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Do nothing, as onnxruntime's provider for CPUs does."""

    def get_tuning_results(self) -> list[Any]:
        """Return none: kernels for CPUs are not tuned."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Take no results for good: kernels for CPUs are not tuned.

        Raises:
            UnsupportedError: if there are some, and that is to be an error.
        """
        if results and error_on_invalid:
            with speaking_onnxruntime():
                raise UnsupportedError(f"set_tuning_results: kernels for CPUs are not tuned, got {len(results)} results")

    def end_profiling(self) -> str:
        """Return the name of no file: nothing is profiled (`trace` shows what every node does when)."""
        return ""

    def get_profiling_start_time_ns(self) -> int:
        """Return 0, as onnxruntime does where nothing is profiled."""
        return 0

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: graphs are captured on GPUs."""

    # --- other ways to run ----------------------------------------------------------------------------------------------------------

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model; a session says how."""
        raise NotImplementedError

    def io_binding(self) -> IOBinding:
        """Return a binding of inputs and outputs to memory of this machine."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run the model on what is bound; errors are RuntimeErrors, as onnxruntime's here."""
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        with speaking_onnxruntime(RuntimeError):
            iobinding.compute(run_options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, ort.OrtValue], run_options: object = None
    ) -> list[ort.OrtValue]:
        """Run the model on `OrtValue`s and return such.

        Raises:
            UnsupportedError: if a value is no tensor of numbers.
        """
        feed = {name: value._get_c_value() for name, value in input_dict_ort_values.items()}
        names = output_names or [arg.name for arg in self.signature.outputs]
        results = self.run(output_names, feed, run_options)
        with speaking_onnxruntime():
            return [ortvalue_of(name, result) for name, result in zip(names, results, strict=True)]

    def run_with_ortvaluevector(
        self,
        run_options: object,
        feed_names: Sequence[str],
        feeds: Sequence[Any],
        fetch_names: Sequence[str],
        fetches: Any,  # noqa: ANN401 - onnxruntime ships no types
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run the model on onnxruntime's own lists of values; `fetches` is filled, or what is in it is written into.

        Raises:
            UnsupportedError: if a value is no tensor of numbers.
        """
        with speaking_onnxruntime():
            if len(feed_names) != len(feeds) or (len(fetches) and len(fetches) != len(fetch_names)):
                got = f"{len(feeds)} and {len(fetches)} for {len(feed_names)} and {len(fetch_names)}"
                raise InputError(f"run_with_ortvaluevector: expected a value for each name, got {got}")
            results = self.run(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)
            for index, (name, result) in enumerate(zip(fetch_names, results, strict=True)):
                if index < len(fetches):
                    place = fetches[index]
                    write_into(array_at(place.data_ptr(), place.element_type(), place.shape(), f"output '{name}'"), result, name)
                else:
                    fetches.push_back(inner_value_of(name, result))

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: object, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> ort.OrtValue:
        """Return an `OrtValue` in memory of this machine's CPU.

        Raises:
            UnsupportedError: if it is to be on another device.
        """
        with speaking_onnxruntime(RuntimeError):
            only_cpu(device_type, "create_ortvalue_from_shape_and_type")
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    @contextmanager
    def until_terminated(self, run_options: object) -> Iterator[None]:
        """End what this thread asks of the cluster as soon as the flag `terminate` of onnxruntime's run options is set."""
        if run_options is None:
            yield
            return
        if not isinstance(run_options, ort.RunOptions):
            raise TypeError(f"run_options: expected onnxruntime.RunOptions, got '{type(run_options)}'")
        try:
            with self.connection.stops.when(lambda: bool(run_options.terminate)):
                yield
        except StoppedError:
            raise ExecutionError(f"model '{self._name}': Exiting due to terminate flag being set to true.") from None


def _cpu_memory() -> ort.OrtMemoryInfo:
    return ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)


def has_unknown_operators(model: OnnxModel) -> bool:
    """Whether a model uses operators that this onnxruntime has not heard of: custom ones, or those of its builds for training."""
    return not model.operators <= _known_operators()


@cache
def _known_operators() -> frozenset[tuple[str, str]]:
    """Return domain and type of every operator that onnxruntime has a description of; it takes 20 ms."""
    return frozenset((schema.domain, schema.name) for schema in ort_state.get_all_operator_schema())


def path_of(model: str | os.PathLike[str]) -> Path:
    """Return the file of a model; `zoo:NAME` is made first."""
    text = os.fspath(model)
    if text.startswith("zoo:"):
        from bbgrap.zoo import materialize

        return materialize(text.removeprefix("zoo:"))
    return Path(text)
