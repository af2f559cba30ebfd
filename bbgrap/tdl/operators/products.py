"""Matrix products."""

from __future__ import annotations

from bbgrap.tdl.language import Call, Constant, Description, Expression, Index, IndexExpression, Sum, operand
from bbgrap.tdl.rule import OperatorRule, Site, register


def describe_matmul(site: Site) -> Description | None:
    """out[..., i, j] = Sum over k of a[..., i, k] * b[..., k, j]; 1-D operands as numpy treats them; leading axes broadcast."""
    a, b = site.shape(0), site.shape(1)
    k = Index("k", a[-1])
    out = [Index(f"b{axis}", extent) for axis, extent in enumerate(site.output_shape)]
    row = out[-2 if len(b) > 1 else -1] if len(a) > 1 else None
    column = out[-1] if len(b) > 1 else None
    batch = out[: len(out) - (row is not None) - (column is not None)]

    def leading(shape: tuple[int, ...]) -> tuple[IndexExpression, ...]:
        extents = shape[:-2]
        return tuple(
            Constant(0) if extent == 1 else index for index, extent in zip(batch[len(batch) - len(extents) :], extents, strict=True)
        )

    left = operand(0)[(k,)] if row is None else operand(0)[*leading(a), row, k]
    right = operand(1)[(k,)] if column is None else operand(1)[*leading(b), k, column]
    return Description(tuple(out), Sum((k,), left * right))


def describe_gemm(site: Site) -> Description | None:
    """out[i, j] = alpha * Sum over k of A[i, k] * B[k, j] + beta * C[i, j], with A or B transposed on request."""
    rows, columns = site.output_shape
    swap_a, swap_b = site.integer("transA", 0), site.integer("transB", 0)
    i, j, k = Index("i", rows), Index("j", columns), Index("k", site.shape(0)[0 if swap_a else 1])
    a = operand(0)[(k, i) if swap_a else (i, k)]
    b = operand(1)[(j, k) if swap_b else (k, j)]
    body: Expression = Sum((k,), a * b)
    if site.has(2):
        tail = (i, j)[2 - len(site.shape(2)) :]
        bias = tuple(Constant(0) if extent == 1 else index for index, extent in zip(tail, site.shape(2), strict=True))
        body = Call("add", (body, operand(2)[bias]))
    return Description((i, j), body)


register(OperatorRule(describe_matmul), "MatMul")
register(OperatorRule(describe_gemm), "Gemm")
