"""What onnxruntime makes of a model: the model after its optimisations, read back.

Its basic level folds constants and removes what does nothing; higher levels choose kernels, and the layouts that these want.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from bbgrap.engine.sessions import open_session, session_options
from bbgrap.graph.onnx_io import OnnxModel, parse_model
from bbgrap.graph.types import Array

_OUTSIDE_BYTES = 1024
"""onnxruntime writes larger weights to a file of their own: the protobuf then stays below its 2 GB limit."""

_WEIGHTS_FILE = "weights.bin"


def optimized(
    data: bytes, weights: Mapping[str, Array], level: ort.GraphOptimizationLevel, name: str, without: Sequence[str] = ()
) -> OnnxModel:
    """Return what onnxruntime makes of a model at a level; `weights` are those whose bytes are not in it.

    `without` names optimisations that are left out.

    Raises:
        ModelError: if onnxruntime cannot load the model.
    """
    with tempfile.TemporaryDirectory(prefix="bbgrap-") as folder:
        directory = Path(folder)
        file = directory / "model.onnx"
        options = session_options(threads=1)
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(file)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_OUTSIDE_BYTES))
        options.add_session_config_entry("session.disable_prepacking", "1")  # nothing will be run
        open_session(data, options, weights, without)
        return parse_model(file.read_bytes(), directory, name)  # its weights stay mapped after their file is gone
