"""Weights that a model file keeps in files beside it. One of the files that import onnx (see `onnx_io`).

Law: nothing outside the directory of the model file, or of what that is a link to, is ever opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from bbgrap.errors import ModelError
from bbgrap.graph.mapped_files import map_file
from bbgrap.graph.onnx_limits import attribute_tensors, check_shared, dtype_of, sparse_tensors
from bbgrap.graph.onnx_tidy import graph_of, graphs_of
from bbgrap.graph.types import Array
from bbgrap.graph.weights import WeightPlace


def is_external(tensor: TensorProto) -> bool:
    """Whether the bytes of a tensor are outside the protobuf."""
    return tensor.data_location == TensorProto.EXTERNAL


def detach(tensor: TensorProto, nbytes: int, offset: int = 0, location: str = "weights") -> None:
    """Replace the bytes of a tensor by a reference to a file; with the default place, whoever loads the model gives it by name."""
    for content in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(content)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def load_external(tensor: TensorProto, path: Path) -> None:
    """Take the bytes of a tensor into the protobuf."""
    if not is_external(tensor):
        return
    file, offset, length = _location(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        content = stream.read(length) if length else stream.read()
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = content


def check_external_files(path: Path, proto: onnx.ModelProto, apart: Container[str]) -> tuple[str, ...]:
    """Refuse weights that are kept outside the model's directory, before anything opens them; return the files, sorted.

    Weights that were read `apart` are in none.
    """
    files: set[str] = set()
    graphs = (proto.graph, *map(graph_of, proto.functions))
    own = [t for t in proto.graph.initializer if t.name not in apart]
    tensors = [*own, *(t for graph in graphs[1:] for t in graph.initializer)]
    tensors += [t for graph in graphs for t in (*inner_tensors(graph), *_sparse_parts(graph))]
    used: Counter[str] = Counter()
    sizes: dict[str, int] = {}  # a file is looked at once, however many weights are in it
    for tensor in filter(is_external, tensors):
        location, offset, length = _place(tensor)
        if location not in sizes:
            file = _file_at(location, path, f"weight '{tensor.name}'")
            if file.samefile(path):
                raise ModelError(f"weight '{tensor.name}': its file '{file.name}' is the model itself: refused")
            sizes[location] = file.stat().st_size
            files.add(file.relative_to(path.parent).as_posix())
        if sizes[location] < offset + length:
            raise ModelError(f"weight '{tensor.name}' reaches beyond the end of '{location}': it is cut short")
        used[location] += length
    check_shared((location, taken, sizes[location]) for location, taken in used.items())
    return tuple(sorted(files))


def _location(tensor: TensorProto, path: Path) -> tuple[Path, int, int]:
    """Return the file that holds a tensor, and offset and length in it, in bytes; length 0: up to its end."""
    location, offset, length = _place(tensor)
    return _file_at(location, path, f"weight '{tensor.name}'"), offset, length


def _place(tensor: TensorProto) -> tuple[str, int, int]:
    """Return what a tensor says of where it is: location, offset and length in bytes, 0 where it does not say how long."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0:
        raise ModelError(f"weight '{tensor.name}': its file '{location[:200]}': offset and length must be whole numbers")
    taken = prod(tensor.dims) * dtype_of(tensor.data_type).itemsize
    if length and taken and length != taken:
        raise ModelError(f"weight '{tensor.name}': its shape {list(tensor.dims)} takes {taken} bytes, but it has {length} in '{location}'")
    return location, offset, length or taken


def _file_at(location: str, path: Path, who: str) -> Path:
    """Return the file beside the model at `path` that has a name; it is there, and inside the directory.

    Links may also lead to where the model's own leads: Hugging Face's caches have all files as links into one folder.
    """
    who = f"{who}: its file '{location[:200]}'"
    relative = Path(location)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise ModelError(f"{who} is not a path inside the model's directory: refused")
    file = path.parent / relative
    try:
        real, folders = file.resolve(), (path.parent.resolve(), path.resolve().parent)
        inside, there = any(map(real.is_relative_to, folders)), file.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a zero byte, or links in a circle
        raise ModelError(f"{who} has no name that a file can have: {getattr(error, 'strerror', None) or error}") from None
    if not inside:
        raise ModelError(f"{who} is a link that leads out of the model's directory: refused; put the file itself there")
    if not there:
        raise ModelError(f"{who} is missing; it must lie beside the model")
    return file


def mapped_external(tensor: TensorProto, path: Path) -> tuple[Array, WeightPlace]:
    """Return a weight as an array that is mapped, not read, where its place allows that, and that place."""
    file, offset, _ = _location(tensor, path)
    dtype = dtype_of(tensor.data_type).numpy.newbyteorder("<")
    shape = tuple(tensor.dims)
    with file.open("rb") as stream:
        array: Array = np.ndarray(shape, dtype, map_file(stream, offset, prod(shape) * dtype.itemsize))
    return array if array.flags.aligned else array.copy(), WeightPlace(file.relative_to(path.parent).as_posix(), offset)


def inner_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield the tensors of all attributes, and the initializers of the graphs inside this one."""
    for body in graphs_of(graph):
        if body is not graph:
            yield from body.initializer
        yield from attribute_tensors(body)


def _sparse_parts(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield the tensors that sparse weights consist of."""
    for body in graphs_of(graph):
        for sparse in sparse_tensors(body):
            yield from (sparse.values, sparse.indices)
