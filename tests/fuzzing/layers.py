"""Layers of networks with odd attributes: windows, products, normalisations, resizing, on values that the model already has.

Every layer takes a growing model and the name of a value and returns the name of a result, or None where it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzzing.growth import Growth
from tests.fuzzing.operands import fitted, ints, normal, parameter, weight

Layer = Callable[[Growth, str], str | None]


def first(names: list[str]) -> str | None:
    """Return the first name, if there is one."""
    return names[0] if names else None


def _kind(growth: Growth, x: str) -> Any:  # noqa: ANN401 - a numpy type
    return growth.values[x].dtype.type


def is_float(growth: Growth, x: str) -> bool:
    """Whether a value has floats."""
    return growth.values[x].dtype.kind == "f"


def image(growth: Growth, x: str) -> str | None:
    """Return a value as maps: rank 3 to 5, mostly 4, floats."""
    if not is_float(growth, x):
        return None
    rank = growth.values[x].ndim
    if rank in (3, 4, 5) and growth.chance(0.97):
        return x
    shape = (growth.number(1, 2), growth.one_of(1, 2, 3, 4, 6, 8), growth.number(3, 12), growth.number(3, 12))
    return fitted(growth, x, shape)


def _window(growth: Growth, space: tuple[int, ...], *, dilated: bool = True, most_pad: int | None = None) -> dict[str, Any]:
    rank = len(space)
    kernel = [growth.one_of(1, 2, 3, 3, 3, 4, 5) for _ in range(rank)]
    if growth.chance(0.7):
        kernel = kernel[:1] * rank
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if growth.chance(0.5):
        attributes["strides"] = [growth.one_of(1, 1, 2, 2, 3, 5) for _ in range(rank)]
    if dilated and growth.chance(0.2):
        attributes["dilations"] = [growth.one_of(1, 2, 2, 3) for _ in range(rank)]
    form = growth.random.random()
    if form < 0.12 and "dilations" not in attributes:
        attributes["auto_pad"] = growth.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    elif form < 0.85:
        most = [k - 1 if most_pad is None else most_pad for k in kernel] * 2
        attributes["pads"] = [k // 2 for k in kernel] * 2 if growth.chance(0.5) else [growth.number(0, m) for m in most]
    return attributes


def conv(growth: Growth, x: str) -> str | None:
    """Conv: groups, depthwise, pads beyond the kernel, auto_pad, weights from anywhere, maybe without kernel_shape."""
    name = image(growth, x)
    if name is None:
        return None
    _, channels, *space = growth.values[name].shape
    attributes = _window(growth, tuple(space), most_pad=None if growth.chance(0.8) else 4)
    groups = growth.one_of(*[g for g in range(1, channels + 1) if channels % g == 0], 1, 1, 1)
    filters = groups * growth.one_of(1, 1, 2, 3, 4, 5)
    kernel = attributes["kernel_shape"]
    scale = 1 / np.sqrt(max(1, channels // groups * np.prod(kernel)))
    operands = [name, weight(growth, normal(growth, (filters, channels // groups, *kernel), _kind(growth, name), scale))]
    if growth.chance(0.5):
        operands.append(weight(growth, normal(growth, (filters,), _kind(growth, name))))
    if growth.chance(0.2):
        del attributes["kernel_shape"]
    return first(growth.add("Conv", operands, group=groups, **attributes))


def conv_transpose(growth: Growth, x: str) -> str | None:
    """ConvTranspose: strides, dilations, output_padding, output_shape, auto_pad."""
    name = image(growth, x)
    if name is None:
        return None
    _, channels, *space = growth.values[name].shape
    attributes = _window(growth, tuple(space))
    groups = growth.one_of(*[g for g in range(1, channels + 1) if channels % g == 0], 1, 1)
    filters, kernel = growth.number(1, 4), attributes["kernel_shape"]
    strides = attributes.get("strides", [1] * len(space))
    if growth.chance(0.3):
        attributes["output_padding"] = [growth.number(0, s - 1) for s in strides]
    elif growth.chance(0.15):
        attributes["output_shape"] = [(e - 1) * s + k - growth.number(0, 2) for e, s, k in zip(space, strides, kernel, strict=True)]
        attributes.pop("pads", None)
    w = normal(growth, (channels, filters, *kernel), _kind(growth, name), 1 / np.sqrt(channels))
    operands = [
        name,
        weight(growth, w),
        *([weight(growth, normal(growth, (groups * filters,), w.dtype.type))] if growth.chance(0.4) else []),
    ]
    return first(growth.add("ConvTranspose", operands, group=groups, **attributes))


def pool(growth: Growth, x: str) -> str | None:
    """A pool: ceil_mode, count_include_pad, dilations, uneven pads."""
    name = image(growth, x)
    if name is None:
        return None
    op = growth.one_of("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool")
    dilated = op == "MaxPool" or growth.opset >= 19
    attributes = _window(growth, growth.values[name].shape[2:], dilated=dilated)
    if growth.chance(0.4) and (op != "LpPool" or growth.opset >= 18):
        attributes["ceil_mode"] = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = growth.number(0, 1)
    if op == "LpPool":
        attributes["p"] = growth.number(1, 3)
    outputs = 2 if op == "MaxPool" and growth.chance(0.08) else 1
    return first(growth.add(op, [name], outputs=outputs, **attributes))


def global_pool(growth: Growth, x: str) -> str | None:
    """A global pool."""
    name = image(growth, x)
    return name and first(growth.add(growth.one_of("GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), [name]))


def resize(growth: Growth, x: str) -> str | None:
    """Resize by odd scales or to odd sizes, every mode."""
    name = image(growth, x)
    if name is None:
        return None
    shape = growth.values[name].shape
    scales = [1.0, 1.0, *(growth.one_of(2.0, 2.0, 1.0, 3.0, 2.3, 1.7, 0.5, 0.6, 1.25, 0.9) for _ in shape[2:])]
    if growth.chance(0.5):
        scales[2:] = [scales[2]] * (len(shape) - 2)
    attributes: dict[str, Any] = {"mode": growth.one_of("nearest", "nearest", "linear", "linear", "cubic")}
    attributes["coordinate_transformation_mode"] = growth.one_of(
        "half_pixel", "half_pixel", "asymmetric", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"
    )
    if attributes["mode"] == "nearest" and growth.chance(0.7):
        attributes["nearest_mode"] = growth.one_of("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    if growth.opset >= 18 and growth.chance(0.15) and min(scales) < 1:
        attributes["antialias"] = 1
    if growth.chance(0.7):
        return first(growth.add("Resize", [name, None, parameter(growth, np.array(scales, np.float32))], **attributes))
    sizes = [max(1, round(e * s)) for e, s in zip(shape, scales, strict=True)]
    return first(growth.add("Resize", [name, None, None, ints(growth, *sizes)], **attributes))


def matmul(growth: Growth, x: str) -> str | None:
    """MatMul with a weight or another value, vectors among them, on either side."""
    if not is_float(growth, x) or not growth.values[x].ndim:
        return None
    shape, kind = growth.values[x].shape, _kind(growth, x)
    inner, width = shape[-1], growth.one_of(1, 2, 3, 5, 7, 8, 12)
    scale = 1 / np.sqrt(max(1, inner))
    form = growth.random.random()
    if form < 0.1:
        return first(growth.add("MatMul", [x, weight(growth, normal(growth, (inner,), kind, scale))]))
    if form < 0.25 and len(shape) >= 2:
        left = weight(growth, normal(growth, (width, shape[-2]), kind, 1 / np.sqrt(max(1, shape[-2]))))
        return first(growth.add("MatMul", [left, x]))
    if form < 0.45:
        other = fitted(growth, growth.one_of(*growth.made), (*shape[:-2], inner, width), np.dtype(kind))
        return other and first(growth.add("MatMul", [x, other]))
    batch = shape[:-2] if growth.chance(0.15) else ()
    return first(growth.add("MatMul", [x, weight(growth, normal(growth, (*batch, inner, width), kind, scale))]))


def gemm(growth: Growth, x: str) -> str | None:
    """Gemm: transposed operands, every form of bias, alpha and beta."""
    if not is_float(growth, x):
        return None
    if growth.values[x].ndim != 2:
        flat = first(growth.add("Flatten", [x], axis=growth.number(0, growth.values[x].ndim)))
        if flat is None:
            return None
        x = flat
    (rows, inner), kind, width = growth.values[x].shape, _kind(growth, x), growth.number(1, 12)
    attributes: dict[str, Any] = {"transA": growth.number(0, 1), "transB": growth.number(0, 1)}
    if attributes["transA"]:
        rows, inner = inner, rows
    w = (width, inner) if attributes["transB"] else (inner, width)
    operands = [x, weight(growth, normal(growth, w, kind, 1 / np.sqrt(max(1, inner))))]
    bias = growth.one_of(None, None, (), (1,), (width,), (width,), (rows, width), (rows, 1), (1, width))
    if bias is not None:
        operands.append(weight(growth, normal(growth, bias, kind)))
    if growth.chance(0.3):
        attributes |= {"alpha": 0.5, "beta": 2.0}
    return first(growth.add("Gemm", operands, **attributes))


def norm(growth: Growth, x: str) -> str | None:
    """Batch, instance, layer or group normalisation."""
    if not is_float(growth, x) or growth.values[x].ndim < 2:
        return None
    shape, kind = growth.values[x].shape, _kind(growth, x)
    form = growth.one_of(
        "BatchNormalization", "BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN", "LpNormalization"
    )
    if form == "LayerNormalization":
        axis = growth.number(1, len(shape) - 1)
        return first(growth.add(form, [x, *(weight(growth, normal(growth, shape[axis:], kind)) for _ in "ab")], axis=axis - len(shape)))
    if form == "LRN":
        return first(growth.add(form, [x], size=growth.one_of(1, 3, 5))) if len(shape) == 4 else None
    if form == "LpNormalization":
        return first(growth.add(form, [x], axis=growth.number(-len(shape), len(shape) - 1), p=growth.number(1, 2)))
    vectors = [normal(growth, shape[1:2], kind) for _ in range(4)]
    if form == "InstanceNormalization":
        return first(growth.add(form, [x, *(weight(growth, v) for v in vectors[:2])]))
    vectors[3] = np.abs(vectors[3]) + vectors[3].dtype.type(0.5)
    return first(growth.add(form, [x, *(weight(growth, v) for v in vectors)]))


def softmax(growth: Growth, x: str) -> str | None:
    """A softmax along any axis."""
    rank = growth.values[x].ndim
    if not rank or not is_float(growth, x):
        return None
    return first(growth.add(growth.one_of("Softmax", "Softmax", "LogSoftmax", "Hardmax"), [x], axis=growth.number(-rank, rank - 1)))


def attention(growth: Growth, x: str) -> str | None:
    """Softmax(Q K^T / s + mask) V in single operators, heads by Reshape and Transpose."""
    heads, size, length, batch = growth.number(1, 4), growth.number(1, 5), growth.number(1, 9), growth.number(1, 2)
    kind = np.dtype(np.float32 if growth.plain else growth.one_of(np.float32, np.float32, np.float16))
    name = fitted(growth, x, (batch, length, heads * size), kind)
    if name is None or growth.values[x].dtype.kind != "f":
        return None
    parts = []
    for _ in "qkv":
        made = growth.add("MatMul", [name, weight(growth, normal(growth, (heads * size,) * 2, kind.type, 0.4))])
        made = made and growth.add("Reshape", [made[0], ints(growth, 0, 0, heads, -1)])
        made = made and growth.add("Transpose", [made[0]], perm=[0, 2, 3, 1] if len(parts) == 1 else [0, 2, 1, 3])
        if not made:
            return None
        parts += made
    scores = growth.add("MatMul", parts[:2])
    scores = scores and growth.add("Mul", [scores[0], growth.keep(np.array(1 / np.sqrt(size), kind))])
    if scores and growth.chance(0.4):
        scores = growth.add("Add", [scores[0], weight(growth, normal(growth, (1, 1, length, length), kind.type))])
    scores = scores and growth.add("Softmax", scores, axis=-1)
    mixed = scores and growth.add("MatMul", [scores[0], parts[2]])
    mixed = mixed and growth.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return first(mixed and growth.add("Reshape", [mixed[0], ints(growth, 0, 0, -1)]))


def residual(growth: Growth, x: str) -> str | None:
    """A branch of one layer, added to what it began with."""
    branch = growth.one_of(conv, conv, norm, matmul)(growth, x)
    if branch is None or growth.values[branch].shape != growth.values[x].shape:
        return branch
    return first(growth.add("Add", [branch, x]))


NETWORK: tuple[Layer, ...] = (
    conv, conv, conv, conv, conv_transpose, pool, pool, pool, global_pool, resize, resize, matmul, matmul, gemm, norm, norm, softmax,
    attention, residual, residual,
)  # fmt: skip
