"""Operators whose output element reads one element of each operand, with broadcasting."""

from __future__ import annotations

from bbgrap.tdl.language import Description, Index, ScalarCall, operand
from bbgrap.tdl.operators.common import broadcast, but, output_indices, with_whole_axes
from bbgrap.tdl.rule import OperatorRule, Site, register

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitCast", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Neg", "Not",
    "Reciprocal", "RegexFullMatch", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BROADCASTING = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "StringConcat", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip

MICROSOFT = ("BiasGelu", "FastGelu", "GatedAdd", "Gelu", "LinearAttentionGate", "QuickGelu")
"""Those of onnxruntime's own domain; biases broadcast along the last axis, gates have one element there."""


def describe_elementwise(site: Site) -> Description | None:
    """out[i...] = f(a[i...], b[i...], ...), and so are further outputs; a broadcast axis of an operand is read at 0."""
    out = output_indices(site)
    reads = [operand(number)[broadcast(out, kind.known_shape)] for number, kind in enumerate(site.inputs) if kind is not None]
    return Description(out, ScalarCall(site.node.op, tuple(reads)), (out,) * (len(site.outputs) - 1))


def describe_batch_normalization(site: Site) -> Description | None:
    """out[n, c, ...] = (x[n, c, ...] - mean[c]) / sqrt(var[c] + epsilon) * scale[c] + bias[c]; in training by those of x[:, c, ...]."""
    out = output_indices(site)
    channel = out[1] if len(out) > 1 else Index("c", 1)
    of_channel = [operand(k)[(channel,)] for k in range(1, 5)]
    if not site.integer("training_mode", 0):
        return Description(out, ScalarCall("normalize", (operand(0)[out], *of_channel)))
    others = {axis for axis, index in enumerate(out) if index is not channel}
    further = ((channel,),) * (len(site.outputs) - 1)
    return with_whole_axes("normalize", out, [operand(0)[but(out, others)], *of_channel], others, extra=further)


register(OperatorRule(describe_elementwise), *UNARY, *BROADCASTING)
register(OperatorRule(describe_batch_normalization), "BatchNormalization")
register(OperatorRule(describe_elementwise), *MICROSOFT, domain="com.microsoft")
