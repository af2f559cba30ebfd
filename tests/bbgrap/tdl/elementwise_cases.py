"""Random calls of element-wise operators, each with operands of its own types."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from bbgrap.tdl.operators.elementwise import BROADCASTING, UNARY
from tests.bbgrap.tdl.other_cases import broadcast
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of
from tests.strategies import shapes

DTYPES: dict[str, type] = {
    **dict.fromkeys(("And", "Not", "Or", "Xor"), np.bool_),
    **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), np.int32),
    "BitShift": np.uint32,
    "Mod": np.int64,
    "RegexFullMatch": np.object_,
    "StringConcat": np.object_,
}
ATTRIBUTES: dict[str, dict[str, Attribute]] = {
    "BitShift": {"direction": "LEFT"},
    "BitCast": {"to": 6},
    "Cast": {"to": 7},
    "Gelu": {"approximate": "tanh"},
    "RegexFullMatch": {"pattern": "[0-4]*"},
}
OPSETS = {"BitCast": 26}
OPERANDS = {"Max": 3, "Mean": 3, "Min": 3, "Sum": 3, "Where": 3}
EXACT_UNARY = ("Abs", "BitwiseNot", "Cast", "Ceil", "Floor", "Identity", "IsInf", "IsNaN", "Neg", "Not", "Relu", "Round", "Sign", "Sqrt")
EXACT = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or", "StringConcat", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
ALWAYS_SEEN = ("Add", "Div", "Mean", "Mul", "Sub", "Sum", "Xor")
"""Operators whose result differs whenever an operand does; of the others one operand may hide the other."""


def _data(op: str, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    dtype = DTYPES.get(op, np.float32)
    if dtype is np.object_:
        return np.asarray(random.integers(0, 99, shape)).astype(np.str_).astype(np.object_)
    if dtype is not np.float32:
        return random.integers(0 if dtype is np.bool_ else 1, 2 if dtype is np.bool_ else 9, shape).astype(dtype)
    return random.uniform(0.1, 0.9, shape).astype(np.float32)


@st.composite
def _unary(draw: Draw, op: str) -> Case:
    x = _data(op, random_of(draw), draw(shapes(most=4)))
    exact, seen = op in EXACT_UNARY, op not in ("Cast", "RegexFullMatch", "Softsign")
    return Case(op, (x,), ATTRIBUTES.get(op, {}), opset=OPSETS.get(op, 20), exact=exact, loose=frozenset() if seen else None)


@st.composite
def _broadcasting(draw: Draw, op: str) -> Case:
    random, shape = random_of(draw), draw(shapes(most=4))
    operands = [_data(op, random, broadcast(draw, shape)) for _ in range(OPERANDS.get(op, 2))]
    if op == "PRelu":  # the slope broadcasts to x, never x to the slope
        operands[0] = _data(op, random, shape)
    if op == "Where":
        operands[0] = np.asarray(operands[0] > 0.5)
    return Case(op, tuple(operands), ATTRIBUTES.get(op, {}), opset=20, exact=op in EXACT, loose=frozenset() if op in ALWAYS_SEEN else None)


@st.composite
def clip(draw: Draw) -> Case:
    """Clip with both, one or no bound, of rank 0 or one axis."""
    x = _data("Clip", random_of(draw), draw(st.one_of(st.just(()), shapes(most=4))))
    low, high = (draw(st.sampled_from((None, np.array(bound, np.float32), np.array([bound], np.float32)))) for bound in (0.3, 0.6))
    return Case("Clip", (x, low, high) if high is not None else (x, low) if low is not None else (x,), loose=None)


@st.composite
def batch_normalization(draw: Draw) -> Case:
    """BatchNormalization in rank 2 to 4, by what it is given, or in training by what it reads; then its new means and variances, too."""
    random, shape = random_of(draw), draw(shapes(least=2, most=4))
    operands = (
        random.standard_normal(shape).astype(np.float32),
        *(random.uniform(0.5, 1.5, shape[1]).astype(np.float32) for _ in range(4)),
    )
    if draw(st.booleans()):
        return Case("BatchNormalization", operands, exact=False)
    return Case("BatchNormalization", operands, {"training_mode": 1, "momentum": 0.7}, exact=False, loose=None, further=(1, 2))


ELEMENTWISE: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    **{op: partial(_unary, op) for op in UNARY},
    **{op: partial(_broadcasting, op) for op in BROADCASTING},
    "Clip": clip,
    "BatchNormalization": batch_normalization,
}
