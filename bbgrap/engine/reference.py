"""The model as onnxruntime alone runs it, on this machine: what every distributed answer is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bbgrap.engine.sessions import declared_type, make_session, reason_of
from bbgrap.errors import ExecutionError, InputError
from bbgrap.graph.onnx_io import ModelInput
from bbgrap.graph.types import Array


class Reference:
    """An unmodified model file in plain onnxruntime, at all optimisations.

    `inputs` and `outputs` are as onnxruntime declares them, in the model's order; a free dimension is a symbol or None.
    """

    def __init__(self, path: Path, *, threads: int | None = 1) -> None:
        """Load the file.

        Raises:
            ModelError: if onnxruntime cannot load it.
        """
        self._session = make_session(path, threads=threads)
        self.inputs, self.outputs = (
            tuple(ModelInput(item.name, declared_type(item).dtype, tuple(item.shape), declared_type(item).onnx) for item in side)
            for side in (self._session.get_inputs(), self._session.get_outputs())
        )

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return all outputs, in order.

        Raises:
            InputError: if an input is missing or unknown.
            ExecutionError: if onnxruntime refuses the inputs or fails.
        """
        expected = [item.name for item in self.inputs]
        if set(expected) != set(feeds):
            raise InputError(f"inputs: expected {', '.join(expected)}; got {', '.join(feeds) or 'none'}")
        try:
            outputs: list[Array] = self._session.run(None, dict(feeds))
        except Exception as error:  # its exceptions have no common base
            raise ExecutionError(f"onnxruntime failed: {reason_of(error)}") from None
        return outputs
