"""From a model file to the `Graph` that is planned.

    file -> model -> concrete input shapes -> current opset -> onnxruntime's basic optimisations -> Graph with onnxruntime's types

onnxruntime's basic level folds constants and batch normalisation and removes what does nothing. It is meant to leave standard
operators only; where it does not, or where onnxruntime cannot write what it made, the model is used as the file has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from bbgrap.engine.current_opset import in_current_opset
from bbgrap.engine.free_sizes import sizes_of_free
from bbgrap.engine.optimizing import optimized, writes_out
from bbgrap.engine.quantized import FLOAT_FUSIONS, is_quantized
from bbgrap.engine.sessions import ADDS_BEFORE_NORMS, JOINS_AXES, make_session
from bbgrap.engine.true_types import typed_graph
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_fixed import with_known_places
from bbgrap.graph.onnx_free import has_free_inputs, moving_axes
from bbgrap.graph.onnx_group_norms import with_plain_group_norms
from bbgrap.graph.onnx_io import OnnxModel, as_model_error, read_model, with_input_shapes
from bbgrap.graph.onnx_opset import as_old_as_its_operators
from bbgrap.graph.onnx_read import checker_fault
from bbgrap.graph.onnx_shapes import with_sizes_of_shapes, without_weights
from bbgrap.graph.onnx_subnormal import without_subnormal_weights
from bbgrap.graph.onnx_tidy import graphs_of
from bbgrap.graph.types import Graph
from bbgrap.tdl.bit_sensitive import CHOOSING, CONTROL, INT8_ACTIVATIONS, ROUNDING

JUMPS = ROUNDING | CHOOSING | CONTROL
"""Operators behind which other bits may be another answer."""

_JOINED = {
    ("", "Gemm"): "product and bias",
    ("com.microsoft", "QGemm"): "product and bias",
    ("com.microsoft", "SkipLayerNormalization"): "sum and norm",
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): "sum and norm",
}
"""What onnxruntime makes one operator of where it knows sizes that it needs for that."""

_WITH_BODIES = ("If", "Loop", "Scan", "SequenceMap")


def load_graph(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Load a model for concrete input shapes.

    Args:
        path: The ONNX file.
        shapes: Of the inputs by name, in elements; inputs with fixed dimensions may be left out.

    Raises:
        ModelError: if the file is no valid model, or onnxruntime cannot run it (custom operators included).
        InputError: if the shapes do not fit the model's inputs.
    """
    model = read_model(path)
    with as_model_error(f"model '{path}'"):
        graph = _concrete(model, path, shapes)
        return replace(graph, moving=moving_axes(sizes_of_free(model), graph)) if has_free_inputs(model) else graph


def _concrete(model: OnnxModel, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    given = with_input_shapes(model, shapes)
    try:
        return typed_graph(folded(given, {}, model if has_free_inputs(model) else None))
    except ModelError as refused:
        try:
            # In a branch that is never taken, sizes that are told may contradict each other; untold, they do not.
            free = with_input_shapes(folded(model, shapes), shapes)
        except ModelError:
            raise refusal(path, refused) from None
        return typed_graph(free, hides_sizes=True)


def confirm_runs(model: OnnxModel, path: Path) -> None:
    """Load what was read of a file in onnxruntime, and forget it again: what the ONNX checker says against it is then for information.

    Not the file itself: onnxruntime (1.32) never ends loading some functions, which are inlined by now.

    Raises:
        ModelError: if onnxruntime refuses it.
    """
    data, weights = model.detached()
    try:
        make_session(data, weights=weights, threads=1, optimize=False)
    except ModelError as refused:
        raise refusal(path, refused) from None


def refusal(path: Path, refused: ModelError) -> ModelError:
    """Return why onnxruntime refuses a file, with what the ONNX checker says of it."""
    fault = checker_fault(path)
    said = f"; the ONNX checker rejects it: {fault}" if fault else ""
    return ModelError(f"model '{path}': {refused}{said}")


def folded(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]], free: OnnxModel | None = None) -> OnnxModel:
    """Return a model in a current opset, if it answers as before with these input shapes, after `fold`, without subnormal weights.

    One in an opset that onnxruntime has not all kernels of is called as old as its operators are. `free` is the model as the file has it,
    if its sizes have been told since.

    Raises:
        ModelError: if onnxruntime cannot load the model.
        InputError: if the shapes do not fit the model's inputs.
    """
    current = with_plain_group_norms(with_sizes_of_shapes(in_current_opset(model, shapes)), JUMPS)
    try:
        made = fold(current, free)
    except ModelError:
        if current is model:
            raise
        made = fold(model, free)  # what was made of it onnxruntime cannot run
    return as_old_as_its_operators(without_subnormal_weights(made))  # folding makes some, too: a weight times a small scale


def fold(model: OnnxModel, free: OnnxModel | None = None) -> OnnxModel:
    """Apply onnxruntime's basic optimisations; to a quantized model also those that bring it into its integer form.

    One whose products round what they read to bytes gets them all, too: a bias added by the product, or by the node behind it, has other
    last bits than one added by itself, as a piece would that has no part of the product. With sizes that have been told onnxruntime joins
    more than in the file, `free`: products with their biases, sums with their normalisations. They would have other last bits, too.

    Raises:
        ModelError: if onnxruntime cannot load the model.
    """
    quantized = is_quantized(model) or _rounds_to_bytes(model)
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL if quantized else ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    folded = optimized(*model.detached(), level, model.name, without=FLOAT_FUSIONS if quantized else ())
    if quantized and free is not None and _joined(folded) - _joined(model):
        folded = _joined_as_the_file(model, folded, free)
    while (known := with_known_places(folded)) is not folded:
        folded = optimized(*known.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, model.name)
    if writes_out(model):  # which it does when constants have been folded
        folded = optimized(*folded.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, model.name)
    added = {op for op in folded.operators - model.operators if op[0]}
    if (added and not quantized) or not loads_again(folded):
        return model
    if any(array.dtype == np.float16 for array in model.weights.values()):
        # Without kernels for float16, onnxruntime computes in float32 behind casts, which it adds when constants have been folded.
        return optimized(*folded.detached(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, model.name)
    return folded


def _rounds_to_bytes(model: OnnxModel) -> bool:
    """Tell whether a product of few bits, maybe in a body, rounds what it reads to bytes."""
    nodes = (node for graph in graphs_of(model.proto.graph) for node in graph.node if node.op_type == "MatMulNBits")
    return any(given.name == "accuracy_level" and given.i == INT8_ACTIVATIONS for node in nodes for given in node.attribute)


def _joined(model: OnnxModel) -> Counter[str]:
    """Count the operators of `_JOINED`, by what they are of."""
    kinds = (_JOINED.get((node.domain, node.op_type)) for node in model.proto.graph.node)
    return Counter(kind for kind in kinds if kind is not None)


def _joined_as_the_file(model: OnnxModel, folded: OnnxModel, free: OnnxModel) -> OnnxModel:
    """Return `folded`, if onnxruntime joins as much in the model as the file has it; else what it makes of that, with its sizes told."""
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    sizes = {item.name: item.concrete for item in model.inputs if item.concrete is not None}
    made = optimized(*without_weights(free, sizes).detached(), level, free.name, without=FLOAT_FUSIONS)
    if _joined(made) == _joined(folded) or not loads_again(made):
        return folded
    told = with_plain_group_norms(in_current_opset(with_input_shapes(made, sizes), {}), JUMPS)
    return optimized(*told.detached(), level, model.name, without=(*FLOAT_FUSIONS, ADDS_BEFORE_NORMS, JOINS_AXES))


def loads_again(folded: OnnxModel) -> bool:
    """Tell whether onnxruntime takes what it has made: with bodies it may name a cast inside like one outside, and refuse that."""
    if not any(("", op) in folded.operators for op in _WITH_BODIES):
        return True
    data, weights = folded.detached()
    try:
        make_session(data, weights=weights, threads=1, optimize=False)
    except ModelError:
        return False
    return True
