"""Quantized operators: quantization itself, products of integers, and onnxruntime's QLinear* forms of ordinary operators.

QLinearConv and ConvInteger are with the other forms of Conv (`convolutions`); `engine.quantized` makes them of pairs of Q and DQ.
Scales and zero points follow the data where they have an element per channel, and are read whole where they have one for all.
"""

from __future__ import annotations

from math import prod

from bbgrap.graph.types import Attribute
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.bit_sensitive import INT8_ACTIVATIONS
from bbgrap.tdl.language import ALL, Access, Description, Index, IndexExpression, ScalarCall, Sum, operand
from bbgrap.tdl.operators.common import (
    Reads,
    broadcast,
    but,
    cropped,
    described_concat,
    first_read,
    is_scalar,
    output_indices,
    spatial_interval,
    unit_of,
    whole,
    wholes,
    with_whole_axes,
)
from bbgrap.tdl.operators.products import product_of
from bbgrap.tdl.operators.windows import describe_global_pool, describe_pool, localize_pool, map_axes, pool_windows
from bbgrap.tdl.rule import Input, LocalNode, OperatorRule, Site, operands_of, register

MICROSOFT = "com.microsoft"


def describe_quantization(site: Site) -> Description | None:
    """out[i...] = x[i...] by scale and zero point: of the tensor, of i's channel, or of i's block (the axis of blocks stays whole)."""
    out = output_indices(site)
    if is_scalar(site, 1) and is_scalar(site, 2):
        return Description(out, ScalarCall("quantize", (operand(0)[out], *wholes(site, (1, 2)))))
    axis = site.integer("axis", 1) % len(out)
    if site.integer("block_size", 0):
        place = but(out, {axis})
        return with_whole_axes("quantize", out, [operand(k)[place] for k in range(3) if site.has(k)], {axis})
    if any(site.has(k) and site.shape(k) != (out[axis].extent,) for k in (1, 2)):
        return None
    return Description(out, ScalarCall("quantize", (operand(0)[out], *(operand(k)[(out[axis],)] for k in (1, 2) if site.has(k)))))


def _per_channel(site: Site, number: int, channel: Index | None) -> Access | None:
    """Read a scale, zero point or bias of a channel; None where it has some other shape."""
    if is_scalar(site, number):
        return whole(site, number)
    if channel is None or site.shape(number) != (channel.extent,):
        return None
    return operand(number)[(channel,)]


def _describe_product(
    site: Site, b: int, rows: tuple[int, ...], columns: tuple[int, ...], scalars: tuple[int, ...] = ()
) -> Description | None:
    """A product of operands 0 and `b`, with further operands per row, per column and per tensor."""
    product = product_of(site, 0, b)
    further = [_per_channel(site, k, product.row) for k in rows if site.has(k)]
    further += [_per_channel(site, k, product.column) for k in columns if site.has(k)]
    if not all(is_scalar(site, k) for k in scalars):
        return None
    reads = [read for read in further if read is not None]
    if len(reads) != len(further):
        return None
    reads += wholes(site, scalars)
    return Description(product.outputs, ScalarCall("scale", (product.body, *reads)) if reads else product.body)


def describe_matmul_integer(site: Site) -> Description | None:
    """out[..., i, j] = Sum over k of (a[..., i, k] - za[i]) * (b[..., k, j] - zb[j])."""
    return _describe_product(site, 1, rows=(2,), columns=(3,))


def describe_qlinear_matmul(site: Site) -> Description | None:
    """The product of a and b, each with scale and zero point per row or column, quantized again."""
    return _describe_product(site, 3, rows=(1, 2), columns=(4, 5), scalars=(6, 7))


def describe_matmul_integer_to_float(site: Site) -> Description | None:
    """The product of integers, scaled to floats."""
    return _describe_product(site, 1, rows=(), columns=(3, 5, 6), scalars=(2, 4))


def describe_dynamic_quantize_matmul(site: Site) -> Description | None:
    """A is quantized by its own range, hence read whole; only columns split."""
    product = product_of(site)
    columns = [_per_channel(site, k, product.column) for k in (2, 3, 4) if site.has(k)]
    reads = [read for read in columns if read is not None]
    if len(site.shape(1)) != 2 or product.column is None or len(reads) != len(columns):
        return None
    fixed = range(len(product.outputs) - 1)
    reads = [whole(site, 0), operand(1)[ALL, product.column], *reads]
    return with_whole_axes("product", product.outputs, reads, fixed, 2 * site.shape(0)[-1])


def describe_qgemm(site: Site) -> Description | None:
    """A Gemm of quantized A and B with an integer bias."""
    product = product_of(site, 0, 3, swap_a=bool(site.integer("transA", 0)), swap_b=bool(site.integer("transB", 0)))
    columns = [_per_channel(site, k, product.column) for k in (4, 5)]
    if None in columns or not all(is_scalar(site, k) for k in (1, 2, 7, 8)):
        return None
    bias = [operand(6)[broadcast(product.outputs, site.shape(6))]] if site.has(6) else []
    reads = [read for read in columns if read is not None]
    return Description(product.outputs, ScalarCall("scale", (product.body, *reads, *bias, *wholes(site, (1, 2, 7, 8)))))


COLUMNS = 4
ROWS = 2
"""Of a product of few bits, computed together: its kernel rounds the last ones otherwise where fewer are left (measured on x86). Rows are
where it reads them as bytes and blocks are long."""
LONG_BLOCKS = 64


def _block_rows(site: Site, number: int, column: IndexExpression, block: IndexExpression, per_column: int) -> Access | None:
    """Read what a MatMulNBits has for a block of a column, or `per_column` elements of a flat tensor; None for any other shape."""
    shape, columns = site.shape(number), site.output_shape[-1]
    if len(shape) > 1 and shape[0] == columns:
        return operand(number)[(column, block, *(ALL,) * (len(shape) - 2))]
    if shape == (columns * per_column,):
        return operand(number)[(column * per_column + Index(f"q{number}", per_column),)]
    return None


def describe_matmul_nbits(site: Site) -> Description | None:
    """out[..., i, j] = Sum over k of a[..., i, k] * b[j, block(k), :], scaled by block: rows, maybe in twos, and columns in fours split."""
    out = output_indices(site)
    size, bits = site.integer("block_size", 1), site.integer("bits", 4)
    rows: tuple[IndexExpression, ...] = out[:-1]
    if _is_in_twos(site):
        rows = (*rows[:-1], unit_of(out[-2], ROWS, "s"))
    blocks = -(-site.integer("K", 1) // size)
    column, k = unit_of(out[-1], COLUMNS), Index("k", site.shape(0)[-1])
    found = [_block_rows(site, 1, column, k // size, prod(site.shape(1)[1:])), _block_rows(site, 2, column, k // size, blocks)]
    if site.has(3):
        each = 8 // bits if site.inputs[3] and site.inputs[3].dtype.itemsize == 1 else 1
        found.append(_block_rows(site, 3, column, k // size // each, -(-blocks // each)))
    reads = [read for read in found if read is not None]
    if len(reads) != len(found) or site.integer("weight_prepacked", 0):
        return None
    product = Sum((k,), ScalarCall("mul", (operand(0)[*rows, k], *reads)))
    bias = [operand(5)[(column,)]] if site.has(5) else []
    return Description(out, ScalarCall("product", (product, *bias, *wholes(site, (4,)))))


def _is_in_twos(site: Site) -> bool:
    """Tell whether rows are computed in twos that lie along the last axis of rows."""
    *outer, rows = site.output_shape[:-1] or (1,)
    in_bytes = site.integer("accuracy_level", 0) == INT8_ACTIVATIONS and site.integer("block_size", 1) >= LONG_BLOCKS
    return in_bytes and rows > 1 and (rows % ROWS == 0 or prod(outer) == 1)


def localize_matmul_nbits(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same product with the fours of columns, and twos of rows, that the tile touches, then the tile's own."""
    weights, read = reads[1], first_read(reads)
    assert weights is not None, "described, so its weights are read"
    changed: dict[str, Attribute] = {**site.node.attributes, "N": weights.shape[0]}
    product = LocalNode("MatMulNBits", operands_of(site, reads), changed, site.node.domain)
    made = (*read.shape[:-1], weights.shape[0])  # units at the end may be cut short
    steps = {len(made) - 2: ROWS, len(made) - 1: COLUMNS}
    beyond = [axis for axis, extent in enumerate(made) if extent != region.shape[axis]]
    return cropped((product,), region, {axis: (spatial_interval(site, region, axis).start % steps[axis], made[axis]) for axis in beyond})


def describe_matmul_bnb4(site: Site) -> Description | None:
    """out[..., i, j] = Sum over k of a[..., i, k] * b[j, k], whose columns lie one after another; split where a block ends with each."""
    out, depth, size = output_indices(site), site.integer("K", 1), site.integer("block_size", 1)
    if site.integer("transB", 1) != 1:
        return None
    if depth % size:
        reads = [operand(0)[*out[:-1], ALL], *wholes(site, (1, 2))]
        return with_whole_axes("product", out, reads, {len(out) - 1}, 2 * depth)
    found = [_block_rows(site, 1, out[-1], out[-1], depth // 2), _block_rows(site, 2, out[-1], out[-1], depth // size)]
    reads = [read for read in found if read is not None]
    k = Index("k", depth)
    return Description(out, Sum((k,), ScalarCall("mul", (operand(0)[*out[:-1], k], *reads)))) if len(reads) == len(found) else None


def localize_matmul_bnb4(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same product with the columns of the tile."""
    changed: dict[str, Attribute] = {**site.node.attributes, "N": region.shape[-1]}
    return (LocalNode("MatMulBnb4", operands_of(site, reads), changed, site.node.domain),)


def describe_qlinear_elementwise(site: Site) -> Description | None:
    """out[i...] = f of the data operands at i, all others being scalars."""
    data = {"QLinearWhere": (0, 1, 4), "QLinearAdd": (0, 3), "QLinearMul": (0, 3)}.get(site.node.op, (0,))
    parameters = [k for k in range(len(site.inputs)) if k not in data]
    if not all(is_scalar(site, k) for k in parameters):
        return None
    out = output_indices(site)
    reads = [operand(k)[broadcast(out, site.shape(k))] for k in data]
    return Description(out, ScalarCall(site.node.op, (*reads, *wholes(site, parameters))))


def describe_qlinear_concat(site: Site) -> Description | None:
    """out[..., a, ...] = operand k at a - offset k, requantized; after two scalars come triples of data, scale and zero point."""
    data = range(2, len(site.inputs), 3)
    out, reads = described_concat(site, data)
    return Description(out, ScalarCall("select", (*reads, *wholes(site, [k for k in range(len(site.inputs)) if k not in data]))))


def localize_qlinear_concat(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Concatenate the triples that the tile touches."""
    touched = [k for k in range(2, len(site.inputs), 3) if (read := reads[k]) is not None and not read.is_empty]
    operands = tuple(Input(k + part) if site.has(k + part) else None for k in touched for part in range(3))
    return (LocalNode("QLinearConcat", (Input(0), Input(1), *operands), site.node.attributes, site.node.domain),)


def describe_qlinear_pool(site: Site) -> Description | None:
    """An average pool between dequantizing and quantizing."""
    inner = describe_global_pool(site) if "Global" in site.node.op else describe_pool(site)
    return None if inner is None else Description(inner.outputs, ScalarCall("quantize", (inner.body, *wholes(site, range(1, 5)))))


def localize_qlinear_pool(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same pool with its own pads.

    Where one window covers all of its input, onnxruntime takes the kernel of the global pool, which rounds ties differently. A piece
    is kept from that by padding that the stride keeps out of the window.
    """
    (node,) = localize_pool(site, region, reads)
    kernel, read = site.integers("kernel_shape", ()), first_read(reads)
    rank = len(kernel)
    itself_global = all((w.extent, w.pad_begin, w.pad_end) == (w.kernel, 0, 0) for w in pool_windows(site))
    layout = map_axes(site)
    if layout.extents(read.shape) != kernel or max(layout.extents(region.shape)) > 1 or itself_global or max(kernel) == 1:
        return (node,)
    axis = kernel.index(max(kernel))
    pads = tuple(int(k == rank + axis) for k in range(2 * rank))
    changed: dict[str, Attribute] = {**node.attributes, "pads": pads, "strides": (2,) * rank, "ceil_mode": 0, "count_include_pad": 0}
    return (LocalNode(node.op, node.operands, changed, node.domain),)


def describe_qlinear_softmax(site: Site) -> Description | None:
    """A softmax between dequantizing and quantizing: its axis stays whole."""
    out = output_indices(site)
    if not out or site.integer("opset", 13) < 13:
        return None  # all axes from the given one on counted as one
    axis = site.integer("axis", -1) % len(out)
    return with_whole_axes("softmax", out, [operand(0)[but(out, {axis})], *wholes(site, range(1, 5))], {axis})


register(OperatorRule(describe_quantization), "QuantizeLinear", "DequantizeLinear")
register(OperatorRule(describe_quantization), "QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
register(OperatorRule(describe_matmul_integer), "MatMulInteger")
register(OperatorRule(describe_qlinear_matmul), "QLinearMatMul")
register(OperatorRule(describe_matmul_integer_to_float), "MatMulIntegerToFloat", domain=MICROSOFT)
register(OperatorRule(describe_dynamic_quantize_matmul), "DynamicQuantizeMatMul", domain=MICROSOFT)
register(OperatorRule(describe_qgemm), "QGemm", domain=MICROSOFT)
register(OperatorRule(describe_matmul_bnb4, localize_matmul_bnb4), "MatMulBnb4", domain=MICROSOFT)
register(OperatorRule(describe_matmul_nbits, localize_matmul_nbits), "MatMulNBits", domain=MICROSOFT)
QLINEAR_ELEMENTWISE = ("QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearWhere")
register(OperatorRule(describe_qlinear_elementwise), *QLINEAR_ELEMENTWISE, domain=MICROSOFT)
register(OperatorRule(describe_qlinear_concat, localize_qlinear_concat), "QLinearConcat", domain=MICROSOFT)
register(OperatorRule(describe_qlinear_pool, localize_qlinear_pool), "QLinearAveragePool", domain=MICROSOFT)
register(OperatorRule(describe_qlinear_pool), "QLinearGlobalAveragePool", domain=MICROSOFT)
register(OperatorRule(describe_qlinear_softmax), "QLinearSoftmax", domain=MICROSOFT)
