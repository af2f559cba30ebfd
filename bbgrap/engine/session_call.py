"""Calling a session with arrays only: what is no array crosses machines packed into one (`bbgrap.protocol.values`).

Which inputs and outputs these are, the session's own declarations say: sequences, optionals, maps, and tensors of numbers that numpy lacks.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime as ort

from bbgrap.engine.sessions import declared_type, make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import Array, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.protocol.values import Numbers, Value, pack_value, unpack_value

SessionCall = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs a model; inputs and outputs in order."""


def caller(session: ort.InferenceSession, inputs: Sequence[str], outputs: Sequence[str]) -> SessionCall:
    """Return a function that runs a session on arrays; what is no array is unpacked before and packed after."""
    names = list(outputs)
    packed, strange = packed_names(session.get_inputs()), packed_names(session.get_outputs())

    def call(arrays: Sequence[Array]) -> Sequence[Array]:
        results: Sequence[Array] = _run(session.run, names, dict(zip(inputs, arrays, strict=True)))
        return results

    def call_packed(arrays: Sequence[Array]) -> Sequence[Array]:
        feeds = {name: unpack_value(array) if name in packed else array for name, array in zip(inputs, arrays, strict=True)}
        results = run_values(session, names, feeds)
        return [pack_value(value) if name in strange else np.asarray(value) for name, value in zip(names, results, strict=True)]

    return call_packed if packed.intersection(inputs) or strange.intersection(outputs) else call


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """Let every run of this thread end with an error when it takes longer; onnxruntime looks between two operators."""
    _limit.seconds = seconds
    try:
        yield
    finally:
        _limit.seconds = 0.0


@contextmanager
def ended_by(options: ort.RunOptions) -> Iterator[None]:
    """Let every run of this thread end with an error once any thread says so in these options (`terminate`)."""
    _limit.options = options
    try:
        yield
    finally:
        _limit.options = None


class _Limit(threading.local):
    seconds = 0.0
    options: ort.RunOptions | None = None


_limit = _Limit()


def _run(run: Callable[..., Any], names: Sequence[str], feeds: Mapping[str, object]) -> Any:  # noqa: ANN401 - what onnxruntime returns
    seconds = _limit.seconds
    if not seconds:
        return run(names, feeds, _limit.options)
    options = ort.RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))  # noqa: FBT003,RUF100
    timer.daemon = True
    timer.start()
    try:
        return run(names, feeds, options)
    finally:
        timer.cancel()


def packed_names(arguments: Sequence[ort.NodeArg]) -> frozenset[str]:
    """Return the names of the inputs or outputs that no numpy array holds."""
    return frozenset(item.name for item in arguments if declared_type(item).dtype is DType.OTHER)


def run_values(session: ort.InferenceSession, names: Sequence[str], feeds: dict[str, Value | Array]) -> list[Value]:
    """Run a session on values of any type, and return the outputs of these names."""
    given = {name: _made(value) if isinstance(value, Numbers) else value for name, value in feeds.items()}
    exotic = {item.name for item in session.get_outputs() if item.type.startswith("tensor(")} & packed_names(session.get_outputs())
    found: dict[str, Value] = {}
    if plain := [name for name in names if name not in exotic]:
        found |= dict(zip(plain, _run(session.run, plain, given), strict=True))
    if rest := [name for name in names if name in exotic]:
        # `run` gives no arrays of such numbers; this way takes tensors only.
        tensors = {name: _tensor(value) for name, value in given.items()}
        found |= {name: _content(value) for name, value in zip(rest, _run(session.run_with_ort_values, rest, tensors), strict=True)}
    return [found[name] for name in names]


def _tensor(value: Any) -> ort.OrtValue:  # noqa: ANN401 - whatever onnxruntime takes, or refuses
    if isinstance(value, ort.OrtValue):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return _text(value)
    return ort.OrtValue.ortvalue_from_numpy(value)


def _text(array: Array) -> ort.OrtValue:
    """Return texts as a tensor. onnxruntime makes none of an array, but a session of nothing but these answers with one."""
    weight = make_weight("given", array.astype(object))
    nodes, types = (Node("copy", "Identity", ("given",), ("text",)),), dict.fromkeys(("given", "text"), weight.type)
    graph = Graph("text", nodes, (), ("text",), {"given": weight}, types, {"": 17})
    session = make_session(write_graph(graph, weights="inline").data, threads=1, optimize=False)
    return session.run_with_ort_values(["text"], {})[0]


def _made(numbers: Numbers) -> ort.OrtValue:
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(numbers.shape), numbers.code)
    ctypes.memmove(value.data_ptr(), numbers.content, min(len(numbers.content), value.tensor_size_in_bytes()))
    return value


def _content(value: ort.OrtValue) -> Numbers:
    return Numbers(value.element_type(), tuple(value.shape()), ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))


def packed_feeds(kinds: Iterable[TensorType], values: Iterable[object]) -> list[Array]:
    """Return inputs of these types as arrays: what is no array packed.

    Raises:
        InputError: if one is nothing that a model can take.
    """
    return [pack_value(value) if kind.dtype is DType.OTHER else np.asarray(value) for kind, value in zip(kinds, values, strict=True)]


def unpacked_results(kinds: Iterable[TensorType], arrays: Iterable[Array]) -> list[Value]:
    """Return outputs of these types: what was packed as it was before."""
    return [unpack_value(array) if kind.dtype is DType.OTHER else array for kind, array in zip(kinds, arrays, strict=True)]
