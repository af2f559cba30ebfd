"""Weights that onnxruntime takes from files itself: it packs them from the pages of the file, and copies nothing before.

One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from bbgrap.graph.mapped_files import FilePart
from bbgrap.graph.onnx_external import detach
from bbgrap.graph.onnx_tidy import bodies_of, captured_by, serialized

_PACKING = frozenset({"Gemm", "MatMul", "MatMulNBits"})
"""Operators whose kernels pack their second operand when a model is loaded, and read it no more."""


def with_files(model: bytes, parts: Mapping[str, FilePart], *, only_packed: bool = False) -> tuple[bytes, frozenset[str]]:
    """Return a model some of whose initializers are in files, in a folder that whoever loads it tells, and which these are.

    `only_packed`: those alone that kernels pack; of all others one may read the file as long as the model is there.
    """
    proto = onnx.ModelProto.FromString(model)
    chosen = parts.keys() & _packed(proto.graph) if only_packed else parts.keys()
    for tensor in proto.graph.initializer:
        if tensor.name in chosen:
            part = parts[tensor.name]
            detach(tensor, part.nbytes, part.begin, part.file)
    return serialized(proto), frozenset(chosen)


def _packed(graph: onnx.GraphProto) -> set[str]:
    """Return the values that are read as what kernels pack, and by nobody else."""
    packed, read = set[str](), set[str]()
    for node in graph.node:
        packs = node.op_type in _PACKING
        packed.update(node.input[1:2] if packs else ())
        read.update((*node.input[:1], *node.input[2:]) if packs else node.input)
        read.update(name for body in bodies_of(node) for name in captured_by(body))
    return packed - read
