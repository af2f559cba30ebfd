"""onnxruntime sessions, made in one place and in one way: all optimisations, quiet, weights shared, threads under control.

Threads. A session of its own pool with n threads computes in the calling thread and n-1 helpers; with one thread there are none. Many
sessions in one process (an agent has one per segment) can share one pool per process instead. Two properties of onnxruntime (1.31)
decide who may ask for that: once the shared pool exists, *every* session of the process must use it, those of other libraries
too, and its helpers always spin for a while after a run (40 ms of one core measured), whatever `spinning` says. So it is for
processes that belong to us (agents), and off by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bbgrap.errors import ModelError, shortened
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.onnx_types import type_named
from bbgrap.graph.types import STORABLE, Array, DType, Graph, Node, TensorType
from bbgrap.own_process import give_back_freed

_InferenceSession = ort.InferenceSession
"""onnxruntime's own, whatever `bbgrap exec` puts into its place afterwards."""

_FATAL = 4
"""onnxruntime's log level: every error also arrives as an exception, and warnings are not for the user's terminal."""
_REASON_LETTERS = 800
"""Of what onnxruntime says: it repeats names of the model, which are of any length."""

_SOURCE = re.compile(r"\S*onnxruntime\S*\.(?:cc|h|cpp):\d+ [^()]*\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? ")
"""Where in its own source something was found: a file and line, and the whole signature of a function, before what was found."""

_DTYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in DType if dtype is not DType.OTHER}

SEGMENTS_WITHOUT = (
    "DQMatMulNBitsFusion",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "Pad_Fusion",
    "QDQPropagationTransformer",
    "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer",
    "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider",
    "WeightBiasQuantization",
)
"""Optimisations that segments do without. Pairs of quantization have been fused in the whole, and what is left of them stays as it is
(`bbgrap.engine.quantized`). Pads of a piece are written out, and a Pad before a pool may be added to them beyond what onnxruntime's own
check allows. Transposes have been moved in the whole; where one stands before a quantizer, onnxruntime 1.31 would quantize what it reads,
too, though that is an output. Switching off all that has to do with quantization (`session.disable_quant_qdq`) would also fold
dequantized weights, which the whole does not, and so choose other kernels."""

ADDS_BEFORE_NORMS = "SkipLayerNormFusion"
"""An optimisation that segments do without which read in 8 bits. In the whole onnxruntime has made it where it does; with the sizes of a
segment it would make more, of other last bits, and steps of 8 bits would differ."""

_READS_IN_8_BITS = (b"QuantizeLinear", b"DynamicQuantizeMatMul", b"MatMulNBits")
"""Names, or their ends, of operators that do."""

JOINS_AXES = "MatMulAddFusion"
"""An optimisation that models whose sizes move do without. It makes one operator of a product and its bias, and one axis of all but the
last; how that is divided again is written out for the sizes that it sees. With free sizes onnxruntime does not do it either."""

_pool_threads = 0
"""Size of this process's shared pool; 0 while there is none."""

_arena_is_shared = False


def usable_cores() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def segments_without(segment: bytes | Path) -> tuple[str, ...]:
    """Return the optimisations that a segment does without; whether it reads in 8 bits, the names of operators in its bytes tell."""
    rounds = isinstance(segment, bytes) and any(name in segment for name in _READS_IN_8_BITS)
    return (*SEGMENTS_WITHOUT, ADDS_BEFORE_NORMS) if rounds else SEGMENTS_WITHOUT


def make_session(
    model: bytes | Path,
    *,
    weights: Mapping[str, Array] | None = None,
    threads: int | None = None,
    shared_pool: bool = False,
    spinning: bool | int = True,
    optimize: bool = True,
    segment: bool = False,
    packs: bool = True,
    folder: Path | None = None,
) -> ort.InferenceSession:
    """Load a model for running on the CPU.

    Args:
        model: The bytes of a model, or its file; a file may refer to weights beside it.
        weights: Arrays for the initializers whose bytes are not in the model, by name; kept alive, and shared unless optimised.
        threads: How many threads compute one operator, the calling one included; None for all cores of this process.
        shared_pool: Use one pool for all sessions of this process. Its size is what the first such session asks for.
        spinning: Whether idle helpers wait busily for the next operator (faster, burns a core); a number is for how many microseconds.
        optimize: Apply all of onnxruntime's optimisations; without, run the model as it is.
        segment: The model is part of one that was optimised before it was cut: what belongs to the whole is not tried again.
        packs: Whether weights are packed for kernels, which takes time and memory: not for what hardly runs.
        folder: Where the files are to which the bytes of a model refer.

    Raises:
        ModelError: if onnxruntime cannot load the model.
    """
    options = session_options(threads=threads, shared_pool=shared_pool, spinning=spinning)
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if not packs:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return open_session(model, options, weights or {}, segments_without(model) if segment else (), share=not optimize, folder=folder)


def session_options(*, threads: int | None, shared_pool: bool = False, spinning: bool | int = True) -> ort.SessionOptions:
    """Return options that are quiet and follow the process's rule for threads; arguments as in `make_session`."""
    count = usable_cores() if threads is None else threads
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    if _arena_is_shared:
        options.add_session_config_entry("session.use_env_allocators", "1")
    if shared_pool and count > 1:
        _share_pool(count)
    if _pool_threads:
        options.use_per_session_threads = False
        return options
    options.intra_op_num_threads = count
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if spinning is not True and spinning:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spinning))
    return options


def open_session(
    model: bytes | Path,
    options: ort.SessionOptions,
    weights: Mapping[str, Array],
    without: Sequence[str] = (),
    *,
    share: bool = False,
    folder: Path | None = None,
) -> ort.InferenceSession:
    """Load a model with the given options on the CPU, without the optimisations of these names.

    With `share` the session computes with these very arrays, otherwise with copies. Not for what is optimised: onnxruntime would believe
    that a weight of this name has this content, and some optimisations write another one under the same name. The files that the bytes of
    a model refer to are in `folder`.

    Raises:
        ModelError: if onnxruntime cannot load the model; its reason in one line.
    """
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()}
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if values:
        options.add_external_initializers(list(values), list(values.values()))
        for name, value in values.items() if share else ():
            options.add_initializer(name, value)
    try:
        session = _InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(without),
            enable_fallback=0,  # it would print, and try the same provider again
        )
    except Exception as error:  # its exceptions have no common base
        raise ModelError(f"onnxruntime {ort.__version__} cannot load the model: {reason_of(error)}") from None
    session.kept_alive = values  # the session reads the arrays' memory
    return session


def owned(answers: Sequence[Any]) -> list[Any]:
    """Return a session's answers as copies: its own keep all the memory that it has ever taken, and stand in the way of its next run."""
    return [_owned(answer) for answer in answers]


def _owned(answer: object) -> object:
    match answer:
        case np.ndarray():
            return answer.copy()
        case list():
            return owned(answer)
        case dict():
            return {key: _owned(item) for key, item in answer.items()}
        case _:
            return answer


def declared_type(argument: ort.NodeArg) -> TensorType:
    """Return the type that a session declares for an input or output; `shape=None` unless it is concrete.

    An unknown rank is declared like that of a scalar, with no dimensions: such a shape is not believed, nor are sizes below zero, which
    are inferred of windows larger than what they read.
    """
    dtype = _DTYPES.get(argument.type, DType.OTHER)
    if dtype not in STORABLE:
        return type_named(argument.type)
    concrete = isinstance(argument.shape, list) and argument.shape and all(isinstance(s, int) and s >= 0 for s in argument.shape)
    return TensorType(dtype, tuple(argument.shape) if concrete else None)


def reason_of(error: Exception) -> str:
    """Return the message of an onnxruntime exception in one line, without its label and places in its source.

    Names in it may be of any length.
    """
    words = " ".join(str(error).split()).removeprefix("[ONNXRuntimeError] : ")
    return shortened(_SOURCE.sub("", words[: 4 * _REASON_LETTERS]), _REASON_LETTERS)  # to look through takes the square of the length


def share_arena() -> None:
    """Let all sessions of this process take the memory of their values from one place: it is as large as the largest needs, not as all."""
    global _arena_is_shared  # noqa: PLW0603,RUF100 - so is onnxruntime's
    if not _arena_is_shared:
        kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
        ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT), None)
        _arena_is_shared = True


def give_back_arena() -> None:
    """Give the system the parts of the shared arena that no value is in: it grows with the largest request, and else stays so.

    And what sessions that are gone had besides.
    """
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")  # done when a run ends
    _idle_session().run(None, {"x": np.zeros(1, np.float32)}, options)
    give_back_freed()


@cache
def _idle_session() -> ort.InferenceSession:
    types = dict.fromkeys(("x", "y"), TensorType(DType.FLOAT, (1,)))
    graph = Graph("idle", (Node("idle", "Identity", ("x",), ("y",)),), ("x",), ("y",), {}, types, {"": 17})
    return make_session(write_graph(graph, weights="inline").data, threads=1)


def _share_pool(threads: int) -> None:
    """Make this process's shared pool unless it exists."""
    global _pool_threads  # noqa: PLW0603,RUF100 - onnxruntime's pool is one per process, too
    if not _pool_threads:
        ort.set_global_thread_pool_sizes(threads, 1)
        _pool_threads = threads
