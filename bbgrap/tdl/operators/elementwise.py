"""Operators whose output element reads one element of each operand, with broadcasting."""

from __future__ import annotations

from bbgrap.tdl.language import Call, Constant, Description, Index, IndexExpression, operand
from bbgrap.tdl.rule import OperatorRule, Site, register

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
    "ThresholdedRelu",
)  # fmt: skip
BROADCASTING = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip


def describe_elementwise(site: Site) -> Description | None:
    """out[i...] = f(a[i...], b[i...], ...); a broadcast axis of an operand is read at 0."""
    shape = site.output_shape
    out = tuple(Index(f"i{axis}", extent) for axis, extent in enumerate(shape))
    reads = [operand(number)[_aligned(out, kind.known_shape)] for number, kind in enumerate(site.inputs) if kind is not None]
    return Description(out, Call(site.node.op, tuple(reads)))


def _aligned(out: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[IndexExpression, ...]:
    tail = out[len(out) - len(shape) :]
    return tuple(Constant(0) if extent == 1 else index for index, extent in zip(tail, shape, strict=True))


def describe_batch_normalization(site: Site) -> Description | None:
    """out[n, c, ...] = (x[n, c, ...] - mean[c]) / sqrt(var[c] + epsilon) * scale[c] + bias[c]."""
    if site.integer("training_mode", 0):
        return None
    out = tuple(Index(f"i{axis}", extent) for axis, extent in enumerate(site.output_shape))
    channel = out[1] if len(out) > 1 else Index("c", 1)
    return Description(out, Call("normalize", (operand(0)[out], *(operand(k)[(channel,)] for k in range(1, 5)))))


register(OperatorRule(describe_elementwise), *UNARY, *BROADCASTING)
register(OperatorRule(describe_batch_normalization), "BatchNormalization")
