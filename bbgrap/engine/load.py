"""From a model file to the `Graph` that is planned.

    file -> checked model -> concrete input shapes -> current opset -> onnxruntime's basic optimisations -> Graph

onnxruntime's basic level folds constants and batch normalisation and removes what does nothing. It is meant to leave standard
operators only; where it does not, or where onnxruntime cannot write what it made, the model is used as the file has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from bbgrap.engine.quantized import FLOAT_FUSIONS, is_quantized
from bbgrap.engine.sessions import declared_type, open_session, session_options
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import ModelFile, normalize_opset, parse_model, read_model, to_graph, with_input_shapes, write_graph
from bbgrap.graph.types import Array, DType, Graph, TensorType

_OUTSIDE_BYTES = 1024
"""onnxruntime writes larger weights to a file of their own: the protobuf then stays below its 2 GB limit."""

_WEIGHTS_FILE = "weights.bin"


def load_graph(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Load a model for concrete input shapes.

    Args:
        path: The ONNX file.
        shapes: Of the inputs by name, in elements; inputs with fixed dimensions may be left out.

    Raises:
        ModelError: if the file is no valid model, or onnxruntime cannot run it (custom operators included).
        InputError: if the shapes do not fit the model's inputs.
    """
    given = with_input_shapes(read_model(path), shapes)
    current = normalize_opset(given)
    try:
        folded = fold(current)
    except ModelError:
        if current is given:
            raise
        folded = fold(given)  # the converter made what onnxruntime cannot run
    graph = to_graph(folded)
    found = _types_by_runtime(graph)
    return to_graph(folded, found) if found else graph


def fold(model: ModelFile) -> ModelFile:
    """Apply onnxruntime's basic optimisations.

    Raises:
        ModelError: if onnxruntime cannot load the model.
    """
    if is_quantized(model):
        return optimized(*model.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL, model.name, without=FLOAT_FUSIONS)
    folded = optimized(*model.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, model.name)
    if any(array.dtype == np.float16 for array in model.weights.values()):
        # Without kernels for float16, onnxruntime computes in float32 behind casts, which it adds when constants have been folded.
        folded = optimized(*folded.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, model.name)
    added = {op for op in folded.operators - model.operators if op[0]}
    return model if added else folded


def optimized(
    data: bytes, weights: Mapping[str, Array], level: ort.GraphOptimizationLevel, name: str, without: Sequence[str] = ()
) -> ModelFile:
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


def _types_by_runtime(graph: Graph) -> dict[str, TensorType]:
    """Return the types of values that onnx could not infer and onnxruntime can: those of its own operators."""
    unknown = tuple(name for name, type_ in graph.types.items() if type_.shape is None and name not in graph.outputs)
    if not unknown:
        return {}
    asked = replace(graph, outputs=(*graph.outputs, *unknown))
    written = write_graph(asked, weights="detached")
    options = session_options(threads=1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = open_session(written.data, options, {name: graph.weights[name].array for name in written.detached})
    except ModelError:  # a sequence, say, cannot be a graph output without a type
        return {}
    found = {item.name: declared_type(item) for item in session.get_outputs()}
    # onnxruntime reports an unknown rank as it reports a scalar, with no dimensions: such an answer says nothing
    return {name: type_ for name, type_ in found.items() if name in unknown and type_.dtype is not DType.OTHER and type_.shape}
