"""From an ONNX file to a handle.

Laws: a large weight is taken out of the protobuf when the file is read and kept beside it as an array, so that every later step copies
kilobytes. What onnxruntime runs is not refused: what the ONNX checker says against a file, `checker_fault` tells who asks. One of the
files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped,unused-ignore]
from onnx import TensorProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_computed import check_computed
from bbgrap.graph.onnx_external import check_external_files, detach, inner_tensors, is_external, load_external, mapped_external
from bbgrap.graph.onnx_head_sizes import rolling_windows, tell_head_sizes
from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_large_weights import FileWithoutWeights, read_without_weights
from bbgrap.graph.onnx_lengths import rename_lengths
from bbgrap.graph.onnx_limits import MAX_FILE_BYTES, check_limits, check_nodes, dtype_of
from bbgrap.graph.onnx_tidy import (
    copy_of,
    drop_unread,
    drop_unread_places,
    free_sizes_below_zero,
    graphs_of,
    inlined,
    leave_out_single_splits,
    make_dense,
    name_standard_domain,
    refill,
    serialized,
    sort_nodes,
    standard_domain,
)
from bbgrap.graph.types import STORABLE, Array, DType
from bbgrap.graph.weights import WeightPlace

INLINE_BYTES = 1024
"""A weight of at most this many bytes stays inside the protobuf: every parameter that steers a shape is smaller (at most one int64
per axis), and onnxruntime's optimiser and ONNX's shape inference look only at weights that are inside."""

LEAST_IR_VERSION = 8
"""The least IR version that is written: since version 4, weights need not be graph inputs."""

BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    OSError,
    ProtobufError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)
"""What onnx, protobuf and numpy raise over models that are broken, by accident or on purpose."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A graph input or output as the file declares it: a dimension is a number, a symbol, or unknown; `shape=None` has no rank.

    A value that numpy cannot hold (`DType.OTHER`) has its ONNX type in `onnx`, and no shape.
    """

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...] | None
    onnx: bytes = b""

    @property
    def concrete(self) -> tuple[int, ...] | None:
        """The shape, if all of its sizes are numbers."""
        sizes = tuple(size for size in self.shape or () if isinstance(size, int))
        return sizes if self.shape is not None and len(sizes) == len(self.shape) else None


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A checked ONNX model; a handle to pass on, not to look into.

    `proto` and `weights` belong to the files that import onnx. `weights` holds the arrays (read-only, maybe memory-mapped) of the
    initializers whose bytes were taken out of `proto`.
    """

    name: str
    inputs: tuple[ModelInput, ...]
    """What a caller must give."""
    outputs: tuple[ModelInput, ...]
    opsets: Mapping[str, int]
    """Domain ('' is ai.onnx) to version."""
    proto: onnx.ModelProto = field(repr=False)
    weights: Mapping[str, Array] = field(repr=False)
    files: tuple[str, ...] = ()
    """Files beside the model that hold weights, relative to its directory, sorted; only `read_model` fills this in."""
    overridable: tuple[ModelInput, ...] = ()
    """Weights that the file lists as inputs too: a caller may give others. Only `read_model` fills this in."""
    held: Mapping[str, WeightPlace] = field(default_factory=dict, repr=False)
    """Where `weights` lie in files, as they are: of each that `read_model` has left as it was."""

    def detached(self) -> tuple[bytes, Mapping[str, Array]]:
        """Return the model without its large weights, and these by initializer name."""
        return serialized(self.proto), self.weights

    @property
    def places(self) -> Mapping[str, int]:
        """Where each node that has a name is in the order of nodes."""
        return {node.name: place for place, node in enumerate(self.proto.graph.node) if node.name}

    @property
    def windows(self) -> Mapping[str, int]:
        """Symbols of the lengths of caches that keep the last words only, and how many words these are."""
        return rolling_windows(self.proto.graph)

    @property
    def operators(self) -> frozenset[tuple[str, str]]:
        """Domain and type of every operator in the model, those in the bodies of control flow included."""
        return frozenset((standard_domain(n.domain), n.op_type) for g in graphs_of(self.proto.graph) for n in g.node)


def read_model(path: Path) -> OnnxModel:
    """Read an ONNX file.

    Raises:
        ModelError: if the file is missing, is not ONNX, is newer than the onnx package, or keeps weights in files that are missing, too
            short, or not inside the directory of the model.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # Python takes letters for bytes where the locale has none of them, as POSIX has with PYTHONUTF8=0: then the name is right.
        advice = "rename it" if sys.getfilesystemencoding() == "utf-8" else "rename it, or set PYTHONUTF8=1 if its name is right"
        raise ModelError(f"model '{path}': its path is no text in UTF-8, and onnxruntime opens no such files; {advice}") from None
    try:
        bare = _without_weights(path)
        proto = onnx.ModelProto.FromString(bare.content)
    except (ProtobufError, MemoryError):
        raise ModelError(f"model '{path}': it is not an ONNX file, or it is cut short") from None
    if not proto.ir_version or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"model '{path}': it is not an ONNX file, or it has neither nodes nor outputs")
    _check_versions(path, proto)
    try:
        check_limits(proto)
        files = check_external_files(path, proto, bare.weights)
    except ModelError as error:
        raise ModelError(f"model '{path}': {error}") from None
    try:
        if proto.functions:
            proto = inlined(proto)
        check_nodes(proto.graph)
        model = _handle(path.stem, proto, path, bare)
        check_computed(model.proto)
        return replace(model, files=files)
    except ModelError as error:
        raise ModelError(f"model '{path}': {error}") from None
    except BROKEN as error:
        fault = checker_fault(path)
        said = f"{_first_line(error)}; the ONNX checker rejects it: {fault}" if fault else f"it is broken: {_first_line(error)}"
        raise ModelError(f"model '{path}': {said}") from None


def _without_weights(path: Path) -> FileWithoutWeights:
    """Return the content of a plain file, its large weights apart: a pipe or a device might never end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as stream:  # noqa: PTH123 - a descriptor
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ModelError(f"model '{path}': cannot be read: it is no plain file")
            if facts.st_size > MAX_FILE_BYTES:
                kept = "keep its weights in a file beside it (onnx.save with save_as_external_data)"
                raise ModelError(f"model '{path}': it has {facts.st_size} bytes, an ONNX file at most {MAX_FILE_BYTES}; {kept}")
            return read_without_weights(stream, facts.st_size)
    except (OSError, ValueError) as error:
        raise ModelError(f"model '{path}': cannot be read: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def as_model_error(who: str) -> Iterator[None]:
    """Let what libraries raise over a broken model be a `ModelError`; what it comes from is its cause."""
    try:
        yield
    except BROKEN as error:
        raise ModelError(f"{who}: it is broken: {type(error).__name__}: {_first_line(error)}") from error


def checker_fault(path: Path) -> str:
    """Return what the ONNX checker says against a file, empty if nothing; it reads all of it, some 0.1 s for 100 MB.

    It is for information: onnxruntime decides whether a model runs. Shapes are not looked at, nor are weights in other files: of these
    the checker wants more than onnxruntime does, as that they have one name.
    """
    try:
        return _fault_of(onnx.load(path, load_external_data=False))
    except BROKEN as error:
        return _first_line(error)


def structure_fault(model: OnnxModel) -> str:
    """Return what is to be said against a model as it was read, but for its large weights, in milliseconds; empty if nothing.

    It is the ONNX checker that says it, which has nothing against two nodes of one name; onnxruntime has.
    """
    return _fault_of(copy_of(model.proto)) or _name_fault(model.proto)


def _fault_of(proto: onnx.ModelProto) -> str:
    """Return what the ONNX checker says against a model, in which weights that are elsewhere become empty."""
    for tensor in proto.graph.initializer:
        if is_external(tensor):
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]
    try:
        onnx.checker.check_model(proto)
    except BROKEN as error:
        return _first_line(error)
    return ""


def _name_fault(proto: onnx.ModelProto) -> str:
    """Return which name two nodes of one graph have, empty if none; nodes without a name do not count."""
    for graph in graphs_of(proto.graph):
        names = Counter(node.name for node in graph.node if node.name)
        for name, uses in names.items():
            if uses > 1:
                return f"{uses} nodes are called '{name}'"
    return ""


def parse_model(data: bytes, directory: Path, name: str) -> OnnxModel:
    """Make a handle of a model that onnxruntime has just written, unchecked; `directory` holds the weights that it left out."""
    return _handle(name, onnx.ModelProto.FromString(data), directory / "model", FileWithoutWeights(b"", {}, {}))


def array_of(tensor: TensorProto) -> Array:
    """Return the content of a tensor inside the protobuf, read-only; types that numpy lacks become those of `ml_dtypes`."""
    array: Array = np.asarray(numpy_helper.to_array(tensor))
    array.flags.writeable = False
    return array


def is_large(tensor: TensorProto) -> bool:
    """Whether a tensor is taken out of the protobuf: it has more than `INLINE_BYTES`, and numpy has such numbers."""
    dtype = dtype_of(tensor.data_type)
    return prod(tensor.dims) * dtype.itemsize > INLINE_BYTES and dtype is not DType.BFLOAT16


def _handle(name: str, proto: onnx.ModelProto, path: Path, bare: FileWithoutWeights) -> OnnxModel:
    for tensor in inner_tensors(proto.graph):
        load_external(tensor, path)
    for graph in graphs_of(proto.graph):
        make_dense(graph, partial(load_external, path=path))
        sort_nodes(graph)
        free_sizes_below_zero(graph)
    name_standard_domain(proto)
    leave_out_single_splits(proto.graph)
    drop_unread(proto.graph)
    drop_unread_places(proto.graph)
    rename_lengths(proto.graph)
    tell_head_sizes(proto.graph)
    weights: dict[str, Array] = {}
    held: dict[str, WeightPlace] = {}
    for tensor in proto.graph.initializer:
        if tensor.name in bare.weights:
            weights[tensor.name] = bare.weights[tensor.name]
            held[tensor.name] = WeightPlace(path.name, bare.offsets[tensor.name])
        elif is_large(tensor):
            if is_external(tensor):
                weights[tensor.name], held[tensor.name] = mapped_external(tensor, path)
            else:
                weights[tensor.name] = array_of(tensor)
            detach(tensor, weights[tensor.name].nbytes)
        else:
            load_external(tensor, path)
    proto.ir_version = max(proto.ir_version, LEAST_IR_VERSION)
    constants = {tensor.name for tensor in proto.graph.initializer}
    overridable = tuple(_declared(value) for value in proto.graph.input if value.name in constants)
    refill(proto.graph.input, (value for value in proto.graph.input if value.name not in constants))
    model = describe(name, proto, weights)
    return replace(model, overridable=overridable, held=held, outputs=_with_inferred(proto, model.outputs))


def _with_inferred(proto: onnx.ModelProto, outputs: tuple[ModelInput, ...]) -> tuple[ModelInput, ...]:
    """Return the outputs with the types and shapes that follow from the model, where the file declares none."""
    kinds = {value.name: value.type for value in proto.graph.output}
    bare = {n for n, k in kinds.items() if not k.WhichOneof("value") or (k.HasField("tensor_type") and not k.tensor_type.HasField("shape"))}
    if not bare:
        return outputs
    draft = copy_of(proto)
    for node in draft.graph.node:
        if node.op_type == "GroupNormalization" and not node.domain:  # of which onnx infers no rank, though it is that of what it reads
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    try:
        inferred = infer_shapes(draft)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return outputs
    given = {dim.dim_param for value in (*proto.graph.input, *proto.graph.output) for dim in value.type.tensor_type.shape.dim}
    for value in inferred.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param not in given:
                dim.ClearField("dim_param")  # invented: onnxruntime says that it is unknown
    found = {value.name: _declared(value) for value in inferred.graph.output}
    return tuple(found[item.name] if item.name in bare else item for item in outputs)


def describe(name: str, proto: onnx.ModelProto, weights: Mapping[str, Array]) -> OnnxModel:
    """Make the handle of a model whose large weights are taken out."""
    return OnnxModel(
        name,
        tuple(_declared(value) for value in proto.graph.input),
        tuple(_declared(value) for value in proto.graph.output),
        {standard_domain(entry.domain): entry.version for entry in proto.opset_import},
        proto,
        weights,
    )


def _declared(value: onnx.ValueInfoProto) -> ModelInput:
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type) if value.type.HasField("tensor_type") else DType.OTHER
    if dtype not in STORABLE:
        return ModelInput(value.name, DType.OTHER, None, value.type.SerializeToString(deterministic=True))
    return ModelInput(value.name, dtype, _shape(tensor))


def declared_shape(item: ModelInput) -> tuple[int | str | None, ...] | None:
    """Return the shape that the file declares, also of a tensor that numpy cannot hold; None without a rank."""
    return _shape(onnx.TypeProto.FromString(item.onnx).tensor_type) if item.dtype is DType.OTHER else item.shape


def _shape(tensor: onnx.TypeProto.Tensor) -> tuple[int | str | None, ...] | None:
    return tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None


def _dimension(declared: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return a declared dimension; some exporters write -1 where any size is meant."""
    if declared.HasField("dim_value"):
        return declared.dim_value if declared.dim_value >= 0 else None
    return declared.dim_param or None


def _check_versions(path: Path, proto: onnx.ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    opset = max((entry.version for entry in proto.opset_import if not standard_domain(entry.domain)), default=0)
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"model '{path}': IR version {proto.ir_version}; onnx {onnx.__version__} reads up to {onnx.IR_VERSION}")
    if opset > newest:
        raise ModelError(f"model '{path}': opset {opset}; onnx {onnx.__version__} knows up to {newest}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
