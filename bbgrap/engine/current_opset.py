"""What a conversion has made of an old model is believed where it answers like the model; else the model stays as it is, and runs whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod

import numpy as np

from bbgrap.comparison import compare
from bbgrap.engine.session_call import SessionCall, caller, ending_after
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import ModelInput, OnnxModel, normalize_opset, with_input_shapes
from bbgrap.graph.types import STORABLE, Array, DType

_log = logging.getLogger("bbgrap.engine")

_TRIAL_S = 5.0
"""How long an old model may take to answer; of one that takes longer the conversion is believed. Chosen: ResNet50 takes 0.1 s."""
_TRIAL_BYTES = 1 << 29
"""Of its weights, likewise. Chosen."""
_TRIAL_INPUT_BYTES = 8 << 20
"""Of its inputs, likewise: what is computed of them takes a hundred times as much. Chosen: a picture of 800 x 800 fits."""


def in_current_opset(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    """Return a model in a current opset; itself if it is new, or does not answer as before with these input shapes.

    Raises:
        InputError: if the shapes do not fit the model's inputs.
    """
    current = normalize_opset(model)
    if current is model or _answer_alike(with_input_shapes(model, shapes), with_input_shapes(current, shapes)):
        return current
    _log.warning("model '%s': in a current opset it would answer otherwise: its nodes are not divided", model.name)
    return model


def _answer_alike(model: OnnxModel, other: OnnxModel) -> bool:
    """Tell whether two models with concrete input shapes answer alike to random inputs; where that cannot be told soon, they do.

    Both run without optimisations, so nothing differs but what was converted. A model that draws is unlike itself, too.
    """
    if sum(array.nbytes for array in model.weights.values()) > _TRIAL_BYTES or any(item.dtype not in STORABLE for item in model.inputs):
        return True
    if sum(prod(item.concrete or ()) * item.dtype.itemsize for item in model.inputs) > _TRIAL_INPUT_BYTES:
        return True
    random = np.random.default_rng(0)
    feeds = [_random_input(random, item) for item in model.inputs]
    try:
        with ending_after(_TRIAL_S):
            expected = _asked(model)(feeds)
    except Exception:  # it cannot be loaded, takes too long, or no such inputs; onnxruntime's exceptions have no common base
        return True
    try:
        answer = _asked(other)(feeds)
    except Exception:
        return False
    return compare(answer, expected).verified or not compare(_asked(model)(feeds), expected).verified


def _random_input(random: np.random.Generator, item: ModelInput) -> Array:
    shape, kind = item.concrete or (), item.dtype
    if kind is DType.STRING:
        return np.full(shape, "a", object)
    if kind is DType.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    # Whole numbers may be places, lengths or divisors.
    return (random.standard_normal(shape) if kind.numpy.kind == "f" else random.integers(1, 3, shape)).astype(kind.numpy)


def _asked(model: OnnxModel) -> SessionCall:
    data, weights = model.detached()
    session = make_session(data, weights=weights, threads=1, optimize=False, packs=False)
    return caller(session, [item.name for item in model.inputs], [item.name for item in model.outputs])
