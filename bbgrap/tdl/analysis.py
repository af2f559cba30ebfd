"""What follows from a description: regions read, axes that split, work per region (Tofu 4.1 and BBGraP equations 2-6, corrected).

For BBGraP's windowed operators the subscript is `o * S + k * D - P`; its bounds over an output range `[o0, o1)` and the kernel are
`o0 * S - P` and `(o1 - 1) * S - P + (K - 1) * D`, which is equations 2 to 6 of the paper in one line: half-open, per node, and
clipped to the tensor. Laws: a predicted region contains every element that is read; it is the hull of what is read along each axis
(holes inside a dilated or strided window are kept, since a local piece must be dense).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import gcd, lcm, prod

from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl.language import (
    Access,
    All,
    Bordered,
    Constant,
    Description,
    Expression,
    Index,
    IndexExpression,
    Opaque,
    Quotient,
    Reduce,
    Remainder,
    ScalarCall,
    Scaled,
    Subscript,
    Sum2,
    bounds,
    indices_in,
)

Shape = tuple[int, ...]


def input_regions(
    description: Description,
    region: ShapeMap,
    operand_shapes: Sequence[Shape | None],
    reduction: Mapping[str, Interval] | None = None,
) -> tuple[ShapeMap | None, ...]:
    """Return, per operand, the region that an output region reads; None for an operand that the description never reads.

    Args:
        description: of the node.
        region: of its output, global coordinates.
        operand_shapes: the whole operands' shapes; None for one that is absent or no tensor.
        reduction: ranges of reduction indices that are split; the others run in full.
    """
    sets = {index.name: axis for index, axis in zip(description.outputs, region.axes, strict=True)}
    sets |= {name: IntervalSet.of(interval) for name, interval in (reduction or {}).items()}
    found: list[ShapeMap | None] = [None] * len(operand_shapes)
    for access, names in zip(description.accesses, description.indices_of_accesses, strict=True):
        shape = operand_shapes[access.operand]
        if shape is None:
            continue
        read = ShapeMap(tuple(_values(*of, sets) for of in zip(access.subscripts, names, shape, strict=True)))
        before = found[access.operand]
        found[access.operand] = read if before is None else before.hull(read)
    if region.is_empty:
        return tuple(None if read is None else ShapeMap(tuple(IntervalSet(()) for _ in read.axes)) for read in found)
    return tuple(found)


def output_regions(description: Description | None, region: ShapeMap, shapes: Sequence[Shape | None]) -> tuple[ShapeMap, ...]:
    """Return, per output in use, the region that is made together with `region` of the first; `shapes` are those of the outputs.

    Without a description all outputs are whole.
    """
    extra = () if description is None else description.extra
    sets = {} if description is None else {i.name: axis for i, axis in zip(description.outputs, region.axes, strict=True)}
    found = [region]
    for number, shape in enumerate(shapes[1:]):
        whole = ShapeMap.full(shape or ())
        subscripts = extra[number] if number < len(extra) else ()
        names = [() if isinstance(s, All) else tuple(index.name for index in indices_in(s)) for s in subscripts]
        parts = zip(subscripts, names, whole.shape, strict=True) if subscripts else ()
        found.append(ShapeMap(tuple(_values(s, n, extent, sets) for s, n, extent in parts)) if subscripts else whole)
    return tuple(found)


def _values(subscript: Subscript, names: tuple[str, ...], extent: int, sets: Mapping[str, IntervalSet]) -> IntervalSet:
    """Return the in-bounds values of a subscript, as one hull per combination of the ranges of its indices `names`."""
    if isinstance(subscript, All):
        return IntervalSet.full(extent)
    if isinstance(subscript, Index) and subscript.extent <= extent:
        return sets[subscript.name] if subscript.name in sets else IntervalSet.full(subscript.extent)
    split = [name for name in names if name in sets]
    hulls: list[tuple[int, int]] = []
    for combination in product(*(sets[name].ranges for name in split)):
        low, high = bounds(subscript, {name: (r.start, r.stop - 1) for name, r in zip(split, combination, strict=True)})
        low, high = max(low, 0), min(high + 1, extent)
        if low < high:
            hulls.append((low, high))
    return IntervalSet.of(*hulls)


def is_elementwise(description: Description) -> bool:
    """Tell whether an output element depends on the elements at its own index only (Tofu, section 4.1; transposed counts, too)."""
    names = {index.name for index in description.outputs}
    subscripts = [s for access in description.accesses for s in access.subscripts]
    plain = all(not isinstance(s, All) and (isinstance(s, Index) or not indices_in(s)) for s in subscripts)
    return plain and all(of <= names for of in (set(name) for access in description.indices_of_accesses for name in access))


def granularity(description: Description, axis: int) -> int:
    """Return the step at which cuts along an output axis are free of waste: a multiple of it never splits a unit of the input.

    A cut elsewhere is still correct: both sides then read the shared unit.
    """
    name = description.outputs[axis].name
    steps = [
        step
        for access in description.accesses
        for subscript in access.subscripts
        if not isinstance(subscript, All)
        for step in _steps(subscript, name)
    ]
    return lcm(*steps) if steps else 1


def _steps(expression: IndexExpression, name: str) -> Iterator[int]:
    match expression:
        case Quotient(expression=inner, divisor=divisor, exact=False):
            factor = _factor_of(inner, name)
            if factor:
                yield divisor // gcd(divisor, factor)
        case Sum2(left=left, right=right):
            yield from _steps(left, name)
            yield from _steps(right, name)
        case Scaled(expression=inner) | Bordered(expression=inner):
            yield from _steps(inner, name)
        case Quotient() | Remainder() | Index() | Constant():
            pass


def _factor_of(expression: IndexExpression, name: str) -> int:
    match expression:
        case Index():
            return int(expression.name == name)
        case Sum2(left=left, right=right):
            return _factor_of(left, name) + _factor_of(right, name)
        case Scaled(expression=inner, factor=factor):
            return abs(factor) * _factor_of(inner, name)
        case Quotient() | Remainder() | Bordered() | Constant():
            return 0


def flops(description: Description, region: ShapeMap, reduction: Mapping[str, Interval] | None = None) -> int:
    """Return the floating point operations of an output region: one per scalar call and per step of a reduction."""
    return region.size * _work(description.body, reduction or {})


def _work(expression: Expression, reduction: Mapping[str, Interval]) -> int:
    match expression:
        case ScalarCall(arguments=arguments):
            return 1 + sum(_work(argument, reduction) for argument in arguments)
        case Reduce(over=over, body=body):
            steps = prod(len(reduction[i.name]) if i.name in reduction else i.extent for i in over)
            return steps * (1 + _work(body, reduction))
        case Opaque(flops=flops_of_one):
            return flops_of_one
        case Access():
            return 0
