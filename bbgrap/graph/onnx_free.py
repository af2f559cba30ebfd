"""Which axes of a model's values have sizes that follow from free dimensions of its inputs. One of the files that import onnx.

Law: an axis that is not moving has the same size for all shapes of the inputs that the file allows; where onnx cannot tell, it moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from bbgrap.graph.onnx_computed import infer
from bbgrap.graph.onnx_read import BROKEN, OnnxModel
from bbgrap.graph.onnx_tidy import copy_of, forget_shapes
from bbgrap.graph.types import DType, Graph

Sizes = Mapping[str, tuple[int | None, ...]]
"""Of values, the sizes that are the same for all shapes of the inputs."""


def has_free_inputs(model: OnnxModel) -> bool:
    """Whether inputs of a model may have several shapes."""
    return any(item.concrete is None for item in model.inputs if item.dtype is not DType.OTHER)


def moving_axes(known: Sizes, graph: Graph) -> Mapping[str, frozenset[int]]:
    """Return which axes of a graph's values move, by what is `known` of the model with free inputs; values with none are left out."""
    found: dict[str, frozenset[int]] = {}
    for name, kind in graph.types.items():
        if name not in graph.weights and kind.shape:
            sizes = known.get(name, ())
            moving = frozenset(range(len(kind.shape)))
            if len(sizes) == len(kind.shape):
                moving = frozenset(axis for axis, size in enumerate(sizes) if size != kind.shape[axis])
            if moving:
                found[name] = moving
    return found


def fixed_sizes(model: OnnxModel) -> Sizes:
    """Return what follows for values from the free inputs; sizes that are told of values inside and of outputs are not believed."""
    proto = copy_of(model.proto)
    forget_shapes(proto.graph)
    try:
        inferred = infer(proto)
    except BROKEN:
        return {}
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    shapes = ((value.name, value.type.tensor_type.shape.dim) for value in values if value.type.tensor_type.HasField("shape"))
    return {name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims) for name, dims in shapes}
