"""Layers around those of `layers`: elementwise, moving, reducing, quantizing, and what keeps a node whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzzing.growth import Growth
from tests.fuzzing.layers import Layer, first, is_float
from tests.fuzzing.operands import fitted, ints, normal, parameter, weight

UNARY = (
    "Relu", "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "LeakyRelu", "HardSwish", "Elu", "Softplus", "Erf", "Floor", "Ceil", "Round", "Sign",
    "Identity", "Softsign", "HardSigmoid", "ThresholdedRelu", "Cos",
)  # fmt: skip
BINARY = ("Add", "Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Div", "Mean", "Sum", "PRelu", "Greater", "Equal", "Less", "Pow", "Mod")
REDUCTIONS = ("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare")


def unary(growth: Growth, x: str) -> str | None:
    """One element to one element."""
    return first(growth.add(growth.one_of(*UNARY), [x]))


def binary(growth: Growth, x: str) -> str | None:
    """Two operands, one of them maybe broadcast, maybe of a higher rank, maybe the same."""
    array, op = growth.values[x], growth.one_of(*BINARY)
    shape = [1 if growth.chance(0.3) else extent for extent in array.shape][growth.number(0, array.ndim) if growth.chance(0.3) else 0 :]
    if growth.chance(0.08) and len(shape) < 5:
        shape = [growth.number(1, 3), *[1] * (array.ndim - len(shape)), *shape]
    form = growth.random.random()
    if form < 0.05:
        other: str | None = x
    elif form < 0.55:
        other = fitted(growth, growth.one_of(*growth.made), shape, array.dtype)
    else:
        other = weight(growth, normal(growth, shape, array.dtype.type))
    if other is None:
        return None
    swap = op not in ("PRelu", "Pow", "Div", "Mod") and growth.chance(0.3)
    attributes: dict[str, Any] = {"fmod": 1} if op == "Mod" and is_float(growth, x) else {}
    return first(growth.add(op, [other, x] if swap else [x, other], **attributes))


def clip(growth: Growth, x: str) -> str | None:
    """Clip with either bound."""
    low = growth.keep(np.array(0, growth.values[x].dtype)) if growth.chance(0.7) else None
    return first(growth.add("Clip", [x, low, growth.keep(np.array(3, growth.values[x].dtype))]))


def reduction(growth: Growth, x: str) -> str | None:
    """A reduction over some axes, given by operand or attribute."""
    rank, op = growth.values[x].ndim, growth.one_of(*REDUCTIONS)
    axes = [int(a) - rank * growth.number(0, 1) for a in growth.random.permutation(rank)[: growth.number(0, rank)]]
    keep = growth.number(0, 1)
    if not axes:
        return first(growth.add(op, [x], keepdims=keep))
    if op == "ReduceSum" or growth.opset >= 18:
        return first(growth.add(op, [x, ints(growth, *axes)], keepdims=keep))
    return first(growth.add(op, [x], axes=axes, keepdims=keep))


def arg_reduction(growth: Growth, x: str) -> str | None:
    """The place of an extreme."""
    rank = growth.values[x].ndim
    axis = growth.number(-rank, max(rank - 1, -rank))
    return first(growth.add(growth.one_of("ArgMax", "ArgMin"), [x], axis=axis, keepdims=growth.number(0, 1))) if rank else None


def top(growth: Growth, x: str) -> str | None:
    """TopK with both results."""
    rank = growth.values[x].ndim
    if not rank:
        return None
    axis = growth.number(0, rank - 1)
    most = growth.values[x].shape[axis]
    return first(growth.add("TopK", [x, ints(growth, growth.number(1, max(1, most)))], outputs=2, axis=axis))


def concat(growth: Growth, x: str) -> str | None:
    """Concat of a value with others made to fit, or with itself."""
    array = growth.values[x]
    if not array.ndim:
        return None
    axis, parts = growth.number(0, array.ndim - 1), [x]
    for _ in range(growth.number(1, 2)):
        shape = list(array.shape)
        shape[axis] = growth.number(1, 5)
        other = x if growth.chance(0.15) else fitted(growth, growth.one_of(*growth.made), shape, array.dtype)
        if other is not None:
            parts.append(other)
    return first(
        growth.add("Concat", [parts[k] for k in growth.random.permutation(len(parts))], axis=axis - array.ndim * growth.number(0, 1))
    )


def split(growth: Growth, x: str) -> str | None:
    """Split into uneven parts, of which all are results."""
    array = growth.values[x]
    if not array.ndim:
        return None
    axis = int(np.argmax(array.shape)) if growth.chance(0.7) else growth.number(0, array.ndim - 1)
    extent = array.shape[axis]
    if extent < 2:
        return None
    cuts = sorted({growth.number(1, extent - 1) for _ in range(growth.number(1, 2))})
    sizes = [int(s) for s in np.diff([0, *cuts, extent])]
    made = growth.add("Split", [x, ints(growth, *sizes)], outputs=len(sizes), axis=axis)
    return growth.one_of(*made) if made else None


def slices(growth: Growth, x: str) -> str | None:
    """Slice with steps of either sign."""
    array = growth.values[x]
    if not array.ndim:
        return None
    axis, step = growth.number(0, array.ndim - 1), growth.one_of(1, 1, 1, 2, 3, -1, -2)
    extent = array.shape[axis]
    start, end = growth.number(0, extent // 2), growth.number(-extent // 3, 99)
    bounds = (start, end) if step > 0 else (growth.number(-2, 99), growth.one_of(0, -999, start))
    return first(growth.add("Slice", [x, *(ints(growth, v) for v in (*bounds, axis, step))]))


def pad(growth: Growth, x: str) -> str | None:
    """Pad by odd widths, negative ones among them."""
    rank = growth.values[x].ndim
    if not rank:
        return None
    mode = growth.one_of("constant", "constant", "constant", "reflect", "edge", "wrap")
    widths = [growth.one_of(0, 0, 1, 2, *([-1, 3] if mode == "constant" else [])) for _ in range(2 * rank)]
    return first(growth.add("Pad", [x, ints(growth, *widths)], mode=mode))


def move(growth: Growth, x: str) -> str | None:
    """Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile or DepthToSpace."""
    array = growth.values[x]
    rank, form = array.ndim, growth.number(0, 7)
    if form <= 1:
        return first(growth.add("Transpose", [x], perm=[int(a) for a in growth.random.permutation(rank)])) if rank else None
    if form == 2:
        return first(growth.add("Reshape", [x, ints(growth, *_regrouped(growth, array.shape))]))
    if form == 3:
        return first(growth.add("Flatten", [x], axis=growth.number(-rank, rank)))
    if form == 4:
        return first(growth.add("Squeeze", [x]))
    if form == 5 and rank < 5:
        return first(growth.add("Unsqueeze", [x, ints(growth, growth.number(-rank - 1, rank))]))
    if form == 6:
        return first(growth.add("Tile", [x, ints(growth, *(growth.one_of(1, 1, 2, 3) for _ in range(rank)))])) if rank else None
    if rank == 4 and array.shape[1] % 4 == 0 and growth.chance(0.5):
        return first(growth.add("DepthToSpace", [x], blocksize=2, mode=growth.one_of("DCR", "CRD")))
    return first(growth.add("Expand", [x, ints(growth, growth.number(1, 3), *[1] * rank)])) if rank < 5 else None


def _regrouped(growth: Growth, shape: tuple[int, ...]) -> list[int]:
    """Return another shape with as many elements: neighbours joined or one axis taken apart; one extent may be left to infer."""
    target = [int(e) for e in shape]
    if len(target) >= 2 and growth.chance(0.6):
        at = growth.number(0, len(target) - 2)
        target[at : at + 2] = [target[at] * target[at + 1]]
    elif target and len(target) < 5:
        at = growth.number(0, len(target) - 1)
        divisors = [d for d in range(1, target[at] + 1) if target[at] % d == 0] or [1]
        divisor = growth.one_of(*divisors)
        target[at : at + 1] = [divisor, target[at] // divisor]
    if target and 0 not in target and growth.chance(0.5):
        target[growth.number(0, len(target) - 1)] = -1
    return target


def quantize(growth: Growth, x: str) -> str | None:
    """QuantizeLinear and DequantizeLinear, as quantizers write them around a value."""
    if growth.values[x].dtype != np.float32 or not growth.values[x].size:
        return None
    low, high = float(min(0, growth.values[x].min())), float(max(0, growth.values[x].max()))
    kind = growth.one_of(np.uint8, np.uint8, np.int8)
    least = np.iinfo(kind).min
    scale = max((high - low) / 255, 1e-4)
    zero = int(np.clip(round(least - low / scale), least, least + 255))
    pair = [growth.keep(np.array(scale, np.float32)), growth.keep(np.array(zero, kind))]
    made = growth.add("QuantizeLinear", [x, *pair])
    if made and growth.chance(0.2):
        made = growth.add(growth.one_of("MaxPool", "Transpose"), made, **({"kernel_shape": [2, 2]} if growth.chance(0.5) else {})) or made
    return first(made and growth.add("DequantizeLinear", [made[0], *pair]))


def integer_product(growth: Growth, x: str) -> str | None:
    """DynamicQuantizeLinear and MatMulInteger, as the dynamic quantizer writes them."""
    if growth.values[x].dtype != np.float32 or growth.values[x].ndim < 2:
        return None
    made = growth.add("DynamicQuantizeLinear", [x], outputs=3)
    if not made:
        return None
    w = growth.random.integers(-127, 128, (growth.values[x].shape[-1], growth.number(1, 8))).astype(np.int8)
    product = growth.add("MatMulInteger", [made[0], growth.keep(w), made[2], growth.keep(np.array(0, np.int8))])
    product = product and growth.add("Cast", product, to=TensorProto.FLOAT)
    return first(product and growth.add("Mul", [product[0], made[1]]))


def cast(growth: Growth, x: str) -> str | None:
    """Another type, maybe there and back."""
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)
    return first(growth.add("Cast", [x], to=growth.one_of(*kinds, TensorProto.BOOL)))


def gather(growth: Growth, x: str) -> str | None:
    """Gather by constant or given indices, a scalar among them."""
    array = growth.values[x]
    if not array.ndim:
        return None
    axis = growth.number(0, array.ndim - 1)
    shape = growth.one_of((), (1,), (3,), (2, 2))
    indices = np.asarray(growth.random.integers(0, max(1, array.shape[axis]), shape), np.int64)
    name = growth.give(indices) if growth.chance(0.3) else parameter(growth, indices)
    return first(growth.add("Gather", [x, name], axis=axis))


def where(growth: Growth, x: str) -> str | None:
    """A choice by comparison with a number."""
    if growth.values[x].dtype.kind not in "fi":
        return None
    condition = growth.add("Greater", [x, growth.keep(np.array(0, growth.values[x].dtype))])
    other = fitted(growth, growth.one_of(*growth.made), growth.values[x].shape, growth.values[x].dtype)
    return first(growth.add("Where", [condition[0], x, other])) if condition and other else None


def by_shape(growth: Growth, x: str) -> str | None:
    """Reshape to a shape that the model computes: Shape, Gather, Concat, as exporters write it."""
    shape = growth.values[x].shape
    if not shape:
        return None
    taken = growth.add("Shape", [x])
    taken = taken and growth.add("Gather", [taken[0], ints(growth, 0)], axis=0)
    target = taken and growth.add("Concat", [taken[0], ints(growth, -1)], axis=0)
    return first(target and growth.add("Reshape", [x, target[0]]))


def branch(growth: Growth, x: str) -> str | None:
    """If: one of two bodies that read the value from outside."""
    if not is_float(growth, x) or not growth.values[x].size:
        return None
    kind = helper.np_dtype_to_tensor_dtype(growth.values[x].dtype)

    def body(op: str) -> onnx.GraphProto:
        name = f"{op}_{len(growth.nodes)}"
        out = helper.make_tensor_value_info(name, kind, growth.values[x].shape)
        return helper.make_graph([helper.make_node(op, [x], [name])], op, [], [out])

    largest = growth.add("ReduceMax", [x], keepdims=0)
    condition = largest and growth.add("Greater", [largest[0], growth.keep(np.array(1, growth.values[x].dtype))])
    return first(condition and growth.add("If", condition, then_branch=body("Relu"), else_branch=body("Neg")))


MOVES: tuple[Layer, ...] = (
    unary, unary, unary, unary, binary, binary, binary, binary, clip, reduction, reduction, arg_reduction, top, concat, concat, split,
    slices, pad, move, move, move, quantize, quantize, integer_product, cast, gather, where, by_shape, branch,
)  # fmt: skip

PLAIN: tuple[Layer, ...] = (unary, unary, unary, binary, binary, clip, reduction, concat, split, slices, pad, move, gather)
"""Those that converters expect in a network."""
