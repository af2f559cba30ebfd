"""Reductions along axes, and functions of a whole axis (softmax, norms)."""

from __future__ import annotations

from bbgrap.tdl.language import Description, Expression, Index, Opaque, Reduce, ReducerKind, ScalarCall, operand
from bbgrap.tdl.operators.common import but, output_indices
from bbgrap.tdl.rule import OperatorRule, Site, register

KINDS: dict[str, ReducerKind] = {
    "ReduceSum": "sum",
    "ReduceMean": "sum",
    "ReduceL1": "sum",
    "ReduceL2": "sum",
    "ReduceSumSquare": "sum",
    "ReduceLogSum": "sum",
    "ReduceLogSumExp": "sum",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
}
PLAIN = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
"""Reductions that are nothing but the reducer; the others wrap a function around it or inside it."""


def reduced_axes(site: Site) -> tuple[int, ...] | None:
    """Return the reduced axes, ascending, or None where they are only known at run time; given as attribute or as operand 1."""
    rank = len(site.shape(0))
    if site.has(1):
        content = site.constant(1)
        if content is None:
            return None
        axes = tuple(int(a) for a in content.ravel())
    else:
        axes = site.integers("axes", ())
    if not axes:
        return () if site.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({a % rank for a in axes}))


def describe_reduction(site: Site) -> Description | None:
    """out[kept...] = reduction over the reduced axes of x[...]."""
    axes = reduced_axes(site)
    if not axes:
        return None
    shape, keep = site.shape(0), site.integer("keepdims", 1)
    over = {axis: Index(f"k{axis}", shape[axis]) for axis in axes}
    out: list[Index] = []
    reads: list[Index] = []
    for axis, extent in enumerate(shape):
        index = Index(f"i{axis}", 1 if axis in over else extent)
        reads.append(over.get(axis, index))
        if axis not in over or keep:
            out.append(index)
    read: Expression = operand(0)[tuple(reads)]
    reduced = Reduce(KINDS[site.node.op], tuple(over.values()), read)
    return Description(tuple(out), reduced if site.node.op in PLAIN else ScalarCall(site.node.op, (reduced,)))


def describe_along_axis(site: Site) -> Description | None:
    """out[..., j, ...] = f(x[..., :, ...])[j]: the axis cannot be split, all others can."""
    out = output_indices(site)
    if not out:
        return None
    axis = site.integer("axis", -1) % len(out)
    return Description(out, Opaque(site.node.op, (operand(0)[but(out, {axis})],), (out[axis],)))


register(OperatorRule(describe_reduction), *KINDS)
register(OperatorRule(describe_along_axis), "Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
register(OperatorRule(describe_along_axis), "Normalizer", domain="ai.onnx.ml")
