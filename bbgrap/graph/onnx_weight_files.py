"""Weights that onnxruntime takes from files itself: it packs them from the pages of the file, and copies nothing before.

One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from bbgrap.graph.onnx_external import detach
from bbgrap.graph.onnx_tidy import serialized


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file, which is named without its folder: so many, from `begin` on."""

    file: str
    begin: int
    nbytes: int


def with_files(model: bytes, parts: Mapping[str, FilePart]) -> bytes:
    """Return a model whose initializers of these names are in files, in a folder that whoever loads it tells."""
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if (part := parts.get(tensor.name)) is not None:
            detach(tensor, part.nbytes, part.begin, part.file)
    return serialized(proto)
