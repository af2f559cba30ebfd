"""What a model says of itself: who made it, which version it is. One of the files that import onnx (see `onnx_io`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bbgrap.graph.onnx_read import OnnxModel

_NO_VERSION = (1 << 63) - 1
"""What onnxruntime says of a model without one."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """onnxruntime's `ModelMetadata`, field by field; a text that a model does not have is empty."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def metadata_of(model: OnnxModel) -> ModelMetadata:
    """Return the metadata of a model."""
    proto = model.proto
    return ModelMetadata(
        proto.producer_name,
        proto.graph.name,
        proto.domain,
        proto.doc_string,
        proto.graph.doc_string,
        proto.model_version if proto.HasField("model_version") else _NO_VERSION,
        {entry.key: entry.value for entry in proto.metadata_props},
    )
