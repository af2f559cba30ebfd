"""What onnxruntime makes of a model: the model after its optimisations, read back.

Its basic level folds constants and removes what does nothing; higher levels choose kernels, and the layouts that these want.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema, get_all_opkernel_def

from bbgrap.engine.sessions import open_session, session_options
from bbgrap.graph.onnx_defaults import Defaults, drop_defaults
from bbgrap.graph.onnx_io import OnnxModel, parse_model
from bbgrap.graph.types import Array

_OUTSIDE_BYTES = 1024
"""onnxruntime writes larger weights to a file of their own: the protobuf then stays below its 2 GB limit."""

_WEIGHTS_FILE = "weights.bin"

_UNVERSIONED = "com.microsoft"
"""The domain whose operators get further attributes without another version."""


def optimized(
    data: bytes,
    weights: Mapping[str, Array],
    level: ort.GraphOptimizationLevel,
    name: str,
    without: Sequence[str] = (),
    folder: Path | None = None,
) -> OnnxModel:
    """Return what onnxruntime makes of a model at a level; `weights` are those whose bytes are neither in it nor in files of `folder`.

    `without` names optimisations that are left out.

    Raises:
        ModelError: if onnxruntime cannot load the model.
    """
    with tempfile.TemporaryDirectory(prefix="bbgrap-") as scratch:
        directory = Path(scratch)
        file = directory / "model.onnx"
        options = session_options(threads=1)
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(file)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_OUTSIDE_BYTES))
        options.add_session_config_entry("session.disable_prepacking", "1")  # nothing will be run
        open_session(data, options, weights, without, folder=folder)
        model = parse_model(file.read_bytes(), directory, name)  # its weights stay mapped after their file is gone
    drop_defaults(model.proto.graph, _own_defaults())
    return model


def writes_out(model: OnnxModel) -> bool:
    """Tell whether onnxruntime writes out an operator of a model in others, having no kernel of it: its function."""
    return not model.operators <= _with_kernels()


@cache
def _with_kernels() -> frozenset[tuple[str, str]]:
    return frozenset((kernel.domain, kernel.op_name) for kernel in get_all_opkernel_def())


@cache
def _own_defaults() -> Defaults:
    """Return the defaults of attributes of onnxruntime's own operators, which have no versions."""
    schemas = (schema for schema in get_all_operator_schema() if schema.domain == _UNVERSIONED)
    return {
        (schema.domain, schema.name): {name: attribute._default_value for name, attribute in schema.attributes.items()}
        for schema in schemas
    }
