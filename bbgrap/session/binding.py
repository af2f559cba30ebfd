"""onnxruntime's `IOBinding` for a session on a cluster: inputs and outputs are memory of this machine, whose CPU is the only device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from bbgrap.errors import InputError, UnsupportedError
from bbgrap.graph.types import Array
from bbgrap.session.ort_errors import speaking_onnxruntime
from bbgrap.session.ort_values import array_at, inner_value_of, ortvalue_of, values_of, write_into
from bbgrap.session.signature import NodeArg


class RunnableSession(Protocol):
    """What a binding needs of a session."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that may be given."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None) -> list[Any]:
        """Run the model."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an output goes: into memory that was bound, which may be that of an `OrtValue`; without memory, anywhere."""

    memory: Array | None = None
    ortvalue: ort.OrtValue | None = None


def only_cpu(device_type: str, who: str) -> None:
    """Refuse every device but the CPU.

    Raises:
        UnsupportedError: if it is another.
    """
    if device_type != "cpu":
        raise UnsupportedError(f"{who}: device '{device_type}': a cluster takes and gives memory of this machine's CPU; bind it to 'cpu'")


class IOBinding(ort.IOBinding):  # type: ignore[misc]  # onnxruntime ships no types
    """Inputs and outputs of a session, bound once and used by each `run_with_iobinding`.

    Invariants: `_results` are the outputs of the latest run, in the order of `_outputs`.
    """

    def __init__(self, session: RunnableSession) -> None:
        self._session = session
        self._known = {arg.name for arg in (*session.get_inputs(), *session.get_overridable_initializers())}
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, _Place] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Let an input be this array, with what is in it when the model runs."""
        with speaking_onnxruntime(RuntimeError):
            if not isinstance(arr_on_cpu, np.ndarray):
                raise InputError(f"input '{name}': expected a numpy array, got a {type(arr_on_cpu).__name__}")
            self._bind(name, arr_on_cpu)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: object, shape: Sequence[int], buffer_ptr: int) -> None:
        """Let an input be what is at this address when the model runs; its owner must keep it there."""
        with speaking_onnxruntime(RuntimeError):
            only_cpu(device_type, f"input '{name}'")
            self._bind(name, array_at(buffer_ptr, element_type, shape, f"input '{name}'"))

    def bind_ortvalue_input(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Let an input be what is in this value when the model runs."""
        ((_, value),) = values_of({name: ortvalue}).items()
        self._bind(name, value)

    def _bind(self, name: str, value: Array) -> None:
        if name not in self._known:
            raise InputError(f"input '{name}': the model has {', '.join(sorted(self._known))}")
        self._inputs[name] = value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in new memory or, with all of the last three, at this address."""
        with speaking_onnxruntime(RuntimeError):
            only_cpu(device_type, f"output '{name}'")
            if buffer_ptr is None:
                self._outputs[name] = _Place()
                return
            if element_type is None or shape is None:
                raise ValueError(f"output '{name}': expected element_type and shape with a buffer_ptr, got {element_type} and {shape}")
            self._outputs[name] = _Place(array_at(buffer_ptr, element_type, shape, f"output '{name}'"))

    def bind_ortvalue_output(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Ask for an output in the memory of this value."""
        ((_, memory),) = values_of({name: ortvalue}).items()
        self._outputs[name] = _Place(memory, ortvalue)

    def synchronize_inputs(self) -> None:
        """Do nothing: what is bound is read when the model runs."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs are there when `run_with_iobinding` returns."""

    def get_outputs(self) -> list[ort.OrtValue]:
        """Return the outputs of the latest run."""
        return [
            ortvalue_of(name, result) if place.ortvalue is None else place.ortvalue
            for (name, place), result in zip(self._outputs.items(), self._results, strict=False)
        ]

    def get_outputs_as_ortvaluevector(self) -> Any:  # noqa: ANN401 - onnxruntime ships no types
        """Return the outputs of the latest run as onnxruntime's own list of them."""
        vector = ort_state.OrtValueVector()
        for (name, place), result in zip(self._outputs.items(), self._results, strict=False):
            vector.push_back(inner_value_of(name, result) if place.ortvalue is None else place.ortvalue._ortvalue)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs of the latest run."""
        return [result.copy() if isinstance(result, np.ndarray) else result for result in self._results]

    def clear_binding_inputs(self) -> None:
        """Bind no inputs any more."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no outputs any more."""
        self._outputs.clear()
        self._results = []

    def compute(self, run_options: object) -> None:
        """Run the model on what is bound.

        Raises:
            InputError: if no output is bound, or what is bound does not fit the model.
        """
        if not self._outputs:
            raise InputError("io_binding: no output is bound; say which ones with bind_output(name)")
        results = self._session.run(list(self._outputs), self._inputs, run_options)
        for index, (name, place) in enumerate(self._outputs.items()):
            if place.memory is not None:
                write_into(place.memory, results[index], name)
                results[index] = place.memory
        self._results = results
