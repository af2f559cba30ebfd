"""Crops inside a segment that stay in blocks of channels. One of the files that import onnx (see `onnx_io`).

onnxruntime converts a blocked map back for a `Slice`, and keeps a convolution from being fused with a sum whose other part was cropped.
So while it optimises, a crop of rows or columns is a pooling that takes away as many (which ones does not matter: only shapes do); then
the pooling becomes a crop again, of the blocked map seen as [N, C/b, H, W, b].

    Slice 1:29 of 30 rows ──► MaxPool 3x1 ── optimised ──► nchwc.MaxPool ──► Reshape, Slice 1:29, Reshape

Law: a pooling that the optimiser has changed, beyond blocking it, is an error, not another crop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
from onnx import NodeProto, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_tidy import refill, serialized
from bbgrap.graph.slices import from_nearer_end
from bbgrap.graph.types import Array

_BLOCKED = "_nchwc"
"""What onnxruntime adds to the name of a result for that of the node that makes it in blocks."""

_SPATIAL = (2, 3)


@dataclass(frozen=True, slots=True)
class PooledCrop:
    """A crop that became a pooling: the name of the result, the shape before, and (start, stop) of axes 2 and 3."""

    result: str
    shape: tuple[int, int, int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of a window of which as many fit as are left."""
        return self.shape[2] - self.rows[1] + self.rows[0] + 1, self.shape[3] - self.columns[1] + self.columns[0] + 1

    @property
    def bounds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns as `Slice` takes them."""
        return from_nearer_end(*self.rows, self.shape[2]), from_nearer_end(*self.columns, self.shape[3])


def crops_to_pools(data: bytes) -> tuple[bytes, tuple[PooledCrop, ...]]:
    """Replace every `Slice` that takes rows and columns of a feature map, and say which."""
    proto = onnx.ModelProto.FromString(data)
    if not any(node.op_type == "Slice" for node in proto.graph.node):
        return data, ()
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL}
    inferred = onnx.shape_inference.infer_shapes(proto).graph  # of a segment: its sizes are known, and none is below zero
    shapes = map_shapes((*inferred.input, *inferred.value_info, *inferred.output))
    crops: list[PooledCrop] = []
    for node in proto.graph.node:
        crop = _crop_of(node, shapes, constants) if node.op_type == "Slice" and not node.domain else None
        if crop is not None:
            crops.append(crop)
            node.CopyFrom(onnx.helper.make_node("MaxPool", [node.input[0]], [crop.result], crop.result, kernel_shape=crop.kernel))
    return serialized(proto), tuple(crops)


def pools_to_crops(graph: onnx.GraphProto, crops: Sequence[PooledCrop], block: int) -> None:
    """Replace, in place, the poolings in an optimised graph by the crops they stand for.

    Raises:
        ModelError: if one of them is gone, or is not the pooling that was put there.
    """
    wanted = {crop.result: crop for crop in crops}
    nodes: list[NodeProto] = []
    for node in graph.node:
        crop = wanted.pop(node.name.removesuffix(_BLOCKED), None) if node.op_type == "MaxPool" else None
        if crop is None:
            nodes.append(node)
            continue
        _check(node, crop)
        blocked = bool(node.domain)
        nodes.extend(_cropping(graph, node, crop, block if blocked else None))
    if wanted:
        raise ModelError(f"model '{graph.name}': optimised, it lacks the crops {', '.join(crop.result for crop in wanted.values())}")
    refill(graph.node, nodes)


def map_shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those values that are feature maps: with four axes, and of 32-bit floats."""
    floats = [value for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    shapes = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in floats}
    return {name: shape for name, shape in shapes.items() if len(shape) == 4 and min(shape) > 0}


def slice_bounds(node: NodeProto, shape: tuple[int, ...], constants: Mapping[str, Array]) -> list[tuple[int, int]] | None:
    """Return what a `Slice` keeps of every axis of a value; None if that is nothing, has gaps, or does not follow from constants."""
    if len(node.input) < 3 or any(name not in constants for name in node.input[1:] if name):
        return None
    starts, ends, axes, steps = ([int(i) for i in constants[name]] if name else None for name in (*node.input[1:], "", "")[:4])
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        return None
    bounds = [(0, extent) for extent in shape]
    for start, end, axis in zip(starts, ends, range(len(starts)) if axes is None else axes, strict=True):
        low, high, _ = slice(start, end).indices(shape[axis])
        bounds[axis] = (low, high)
    return None if any(low >= high for low, high in bounds) else bounds


def _crop_of(node: NodeProto, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array]) -> PooledCrop | None:
    """Return the crop that a `Slice` is; None if it does something else."""
    shape = shapes.get(node.input[0])
    bounds = None if shape is None else slice_bounds(node, shape, constants)
    if shape is None or bounds is None or any(bounds[axis] != (0, shape[axis]) for axis in range(4) if axis not in _SPATIAL):
        return None
    n, c, h, w = shape
    return PooledCrop(node.output[0], (n, c, h, w), bounds[2], bounds[3])


def _check(node: NodeProto, crop: PooledCrop) -> None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    plain = all(set(attributes.get(name, [value])) == {value} for name, value in (("pads", 0), ("strides", 1), ("dilations", 1)))
    if tuple(attributes["kernel_shape"]) != crop.kernel or not plain or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ModelError(f"crop '{crop.result}': the pooling in its place was changed")


def _cropping(graph: onnx.GraphProto, node: NodeProto, crop: PooledCrop, block: int | None) -> list[NodeProto]:
    """Return the nodes that crop; of a blocked map, in a view with the channels of a block last."""
    (result,), (source,) = node.output, node.input
    label = f"{crop.result}.cropped"

    def constant(part: str, *values: int) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), f"{label}.{part}"))
        return f"{label}.{part}"

    (low, high), (left, right) = crop.bounds
    bounds = [constant("starts", low, left), constant("ends", high, right), constant("axes", *_SPATIAL)]
    if block is None:
        return [onnx.helper.make_node("Slice", [source, *bounds], [result], label)]
    channels = crop.shape[1]
    view = constant("view", 0, channels // block, 0, 0, block)  # 0 is for as many as there are: images, rows and columns
    shape = constant("shape", 0, channels, 0, 0)
    return [
        onnx.helper.make_node("Reshape", [source, view], [f"{label}.blocks"], f"{label}.split"),
        onnx.helper.make_node("Slice", [f"{label}.blocks", *bounds], [f"{label}.piece"], label),
        onnx.helper.make_node("Reshape", [f"{label}.piece", shape], [result], f"{label}.joined"),
    ]
