"""Attributes that say what is so without them. One of the files that import onnx (see `onnx_io`).

onnxruntime writes all attributes of its own operators, those with their defaults, too. Their set has no versions: an older onnxruntime
refuses what it does not know, on another machine, even if it would do just that.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, GraphProto
from onnx.helper import get_attribute_value

from bbgrap.graph.onnx_tidy import graphs_of, refill

Defaults = Mapping[tuple[str, str], Mapping[str, bytes]]
"""By domain and operator, and by attribute, the default as a serialized `AttributeProto`."""


def drop_defaults(graph: GraphProto, defaults: Defaults) -> None:
    """Remove attributes that have their defaults, in place, in a graph and its bodies."""
    for body in graphs_of(graph):
        for node in body.node:
            if known := defaults.get((node.domain, node.op_type)):
                kept = [attribute for attribute in node.attribute if not _is_default(attribute, known.get(attribute.name))]
                if len(kept) < len(node.attribute):
                    refill(node.attribute, kept)


def _is_default(attribute: AttributeProto, default: bytes | None) -> bool:
    if not default:
        return False
    known = AttributeProto.FromString(default)
    return bool(known.type == attribute.type and get_attribute_value(known) == get_attribute_value(attribute))
