"""Matrix products, of floats: MatMul, Gemm, Einsum, and onnxruntime's fused forms. Quantized ones are in `quantized`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import Constant, Description, Expression, Index, IndexExpression, Reduce, ScalarCall, Sum, operand
from bbgrap.tdl.operators.common import Reads, broadcast, doubled, is_lone_row, sliced
from bbgrap.tdl.rule import LocalNode, OperatorRule, Result, Site, register, same_node


@dataclass(frozen=True, slots=True)
class Product:
    """The parts of a matrix product's description, to be wrapped by its variants."""

    outputs: tuple[Index, ...]
    row: Index | None
    column: Index | None
    body: Reduce


def _laid_out(
    batch: Sequence[Index], shape: tuple[int, ...], ends: tuple[IndexExpression, ...], *, around: bool
) -> tuple[IndexExpression, ...]:
    """Return the place that is read of an operand: the axes of its matrices behind those of the batch, or `around` them."""
    if around:
        return (ends[0], *broadcast(batch, shape[1:-1]), ends[1])
    return (*broadcast(batch, shape[:-2]), *ends)


def product_of(
    site: Site,
    a: int = 0,
    b: int = 1,
    *,
    swap_a: bool = False,
    swap_b: bool = False,
    around_a: bool = False,
    around_b: bool = False,
) -> Product:
    """out[..., i, j] = Sum over k of a[..., i, k] * b[..., k, j]; 1-D operands as numpy treats them; axes of the batch broadcast.

    An operand that is `around` its batch is a[i, ..., k].
    """
    left, right = site.shape(a), site.shape(b)
    k = Index("k", left[-1] if not swap_a else left[0] if around_a else left[-2])
    out = [Index(f"b{axis}", extent) for axis, extent in enumerate(site.output_shape)]
    row = out[-2 if len(right) > 1 else -1] if len(left) > 1 else None
    column = out[-1] if len(right) > 1 else None
    batch = out[: len(out) - (row is not None) - (column is not None)]
    ends_a: tuple[IndexExpression, ...] = (k,) if row is None else (k, row) if swap_a else (row, k)
    ends_b: tuple[IndexExpression, ...] = (k,) if column is None else (column, k) if swap_b else (k, column)
    first = operand(a)[_laid_out(batch, left, ends_a, around=around_a)]
    second = operand(b)[_laid_out(batch, right, ends_b, around=around_b)]
    return Product(tuple(out), row, column, Sum((k,), first * second))


def describe_matmul(site: Site) -> Description | None:
    """A matrix product and nothing else."""
    product = product_of(site)
    return Description(product.outputs, product.body)


def localize_matmul(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The node as it is; one of several rows is multiplied twice where its bits must be those that it has among them."""
    (node,) = same_node(site, region, reads)
    if min(len(site.shape(0)), len(site.shape(1))) < 2 or not is_lone_row(site, region, -2, site.output_shape[-2], 1):
        return (node,)
    a, b = node.operands
    return doubled(a, -2), replace(node, operands=(Result(0), b)), sliced(Result(1), 0, 1, -2)


def describe_fused_matmul(site: Site) -> Description | None:
    """Alpha * the product; on request with the axes of the matrices of A or B swapped, or with its batches between them."""
    swap_a, swap_b, around_a, around_b = (bool(site.integer(name, 0)) for name in ("transA", "transB", "transBatchA", "transBatchB"))
    if min(len(site.shape(0)), len(site.shape(1))) < (3 if around_a or around_b else 2):
        return None
    product = product_of(site, swap_a=swap_a, swap_b=swap_b, around_a=around_a, around_b=around_b)
    return Description(product.outputs, ScalarCall("scale", (product.body,)))


def describe_gemm(site: Site) -> Description | None:
    """out[i, j] = alpha * Sum over k of A[i, k] * B[k, j] + beta * C[i, j], with A or B transposed on request."""
    product = product_of(site, swap_a=bool(site.integer("transA", 0)), swap_b=bool(site.integer("transB", 0)))
    body: Expression = product.body
    if site.has(2):
        body = ScalarCall("add", (body, operand(2)[broadcast(product.outputs, site.shape(2))]))
    return Description(product.outputs, body)


def describe_fused_gemm(site: Site) -> Description | None:
    """An activation of a Gemm."""
    inner = describe_gemm(site)
    return None if inner is None else Description(inner.outputs, ScalarCall("activation", (inner.body,)))


Symbols = tuple[str, ...]
"""Per axis of a term of an einsum its letter; axes of an ellipsis are `.0`, `.1`, ..."""


def _symbols(term: str, dots: int, most: int) -> Symbols:
    """Name every axis of a term whose ellipsis stands for `dots` of at most `most` axes."""
    before, ellipsis, after = term.partition("...")
    middle = tuple(f".{most - dots + k}" for k in range(dots)) if ellipsis else ()
    return (*before, *middle, *after)


def einsum_symbols(site: Site) -> tuple[tuple[Symbols, ...], Symbols] | None:
    """Return the symbols of every operand and of the output; None where the output drops an ellipsis."""
    left, arrow, right = site.text("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    dots = [len(site.shape(k)) - len(term.replace("...", "")) for k, term in enumerate(terms)]
    most = max(dots)
    operands = tuple(_symbols(term, count, most) for term, count in zip(terms, dots, strict=True))
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        right = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    elif most and "..." not in right:
        return None
    return operands, _symbols(right, most, most)


def _extents(site: Site, operands: tuple[Symbols, ...]) -> dict[str, int]:
    """Return the extent of every symbol: an axis of extent 1 broadcasts."""
    extents: dict[str, int] = {}
    for number, symbols in enumerate(operands):
        for symbol, extent in zip(symbols, site.shape(number), strict=True):
            if extents.get(symbol, 1) == 1:
                extents[symbol] = extent
    return extents


def einsum_shape(site: Site) -> tuple[int, ...] | None:
    """Return the shape that an einsum makes; None where the output drops an ellipsis."""
    found = einsum_symbols(site)
    if found is None:
        return None
    extents = _extents(site, found[0])
    return tuple(extents[symbol] for symbol in found[1])


def describe_einsum(site: Site) -> Description | None:
    """out[letters...] = Sum over the other letters of the product of the operands at their letters."""
    found = einsum_symbols(site)
    if found is None:
        return None
    operands, output = found
    extents = _extents(site, operands)
    named = {symbol: Index(f"i{axis}", extents[symbol]) for axis, symbol in enumerate(output)}
    over = tuple(Index(f"k{number}", extents[symbol]) for number, symbol in enumerate(s for s in extents if s not in output))
    named |= dict(zip((s for s in extents if s not in output), over, strict=True))
    reads: list[Expression] = []
    for number, symbols in enumerate(operands):
        shape = site.shape(number)
        place = tuple(Constant(0) if extent == 1 else named[symbol] for symbol, extent in zip(symbols, shape, strict=True))
        reads.append(operand(number)[place])
    body: Expression = reads[0] if len(reads) == 1 else ScalarCall("mul", tuple(reads))
    outputs = tuple(named[symbol] for symbol in output)
    return Description(outputs, Sum(over, body) if over else ScalarCall("copy", (body,)))


register(OperatorRule(describe_matmul, localize_matmul), "MatMul")
register(OperatorRule(describe_gemm), "Gemm")
register(OperatorRule(describe_einsum), "Einsum")
register(OperatorRule(describe_fused_matmul), "FusedMatMul", "TransposeMatMul", domain="com.microsoft")
register(OperatorRule(describe_fused_gemm), "FusedGemm", domain="com.microsoft")
