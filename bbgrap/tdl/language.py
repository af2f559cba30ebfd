"""The description language: what one output element of an operator reads (Tofu, section 4.1).

A description gives the output element at an index as an expression over input elements at integer expressions of that index:

    conv1d:          out[b, co, x] = Sum over ci, dx of data[b, ci, x + dx] * filters[ci, co, dx]
    batch_cholesky:  out[b, i, j]  = Opaque(matrix[b, :, :])[i, j]

Written with this module:

    b, co, x, ci, dx = indices(b=8, co=16, x=30, ci=4, dx=3)
    data, filters = operand(0), operand(1)
    Description((b, co, x), Sum((ci, dx), data[b, ci, x + dx] * filters[ci, co, dx]))

No loops, no recursion, no data-dependent index. Extents are concrete: a description belongs to one node with its shapes.
Reading outside an operand's bounds means reading padding: nothing is read there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

Bounds = tuple[int, int]
"""Smallest and largest value, both inclusive."""


class _IndexArithmetic:
    """The operators of index expressions."""

    __slots__ = ()

    def __add__(self, other: IndexExpression | int) -> IndexExpression:
        """Add."""
        return Sum2(cast("IndexExpression", self), _expression(other))

    def __sub__(self, other: IndexExpression | int) -> IndexExpression:
        """Subtract: `[l, u] - [l', u'] = [l - u', u - l']` (the paper's rule, componentwise, is unsound)."""
        return self + _expression(other) * -1

    def __mul__(self, factor: int) -> IndexExpression:
        """Multiply by a constant; a negative one swaps the bounds."""
        return Scaled(cast("IndexExpression", self), factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> IndexExpression:
        """Divide by a positive constant, rounding down."""
        return Quotient(cast("IndexExpression", self), divisor)

    def __mod__(self, divisor: int) -> IndexExpression:
        """Take what a division by a positive constant leaves, never negative."""
        return Remainder(cast("IndexExpression", self), divisor)


@dataclass(frozen=True, slots=True)
class Index(_IndexArithmetic):
    """An iteration index: `0 <= name < extent`."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Constant(_IndexArithmetic):
    """A fixed integer."""

    value: int


@dataclass(frozen=True, slots=True)
class Sum2(_IndexArithmetic):
    """`left + right`."""

    left: IndexExpression
    right: IndexExpression


@dataclass(frozen=True, slots=True)
class Scaled(_IndexArithmetic):
    """`expression * factor`."""

    expression: IndexExpression
    factor: int


@dataclass(frozen=True, slots=True)
class Quotient(_IndexArithmetic):
    """`expression // divisor`, rounding down; with `exact`, only values that divide without remainder read anything."""

    expression: IndexExpression
    divisor: int
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Remainder(_IndexArithmetic):
    """`expression % divisor`, from 0 to below the divisor."""

    expression: IndexExpression
    divisor: int


@dataclass(frozen=True, slots=True)
class Bordered(_IndexArithmetic):
    """`expression` from 0 to below the extent; outside the element at the border ("edge"), or the one as far inside ("reflect")."""

    expression: IndexExpression
    extent: int
    border: Literal["edge", "reflect"]

    def at(self, value: int) -> int:
        """Return the element that a value of the expression stands for."""
        last = self.extent - 1
        if self.border == "edge":
            return min(max(value, 0), last)
        return last - abs(last - value % (2 * last)) if last else 0


IndexExpression = Index | Constant | Sum2 | Scaled | Quotient | Remainder | Bordered
"""An integer expression over iteration indices; the union is closed, so that every `match` over it is checked for completeness."""


def _expression(value: IndexExpression | int) -> IndexExpression:
    return Constant(value) if isinstance(value, int) else value


def bounds(expression: IndexExpression, of: Mapping[str, Bounds]) -> Bounds:
    """Return the smallest and largest value of an expression, given those of its indices (interval arithmetic).

    Exact where each index occurs once. With an exact quotient the result may be empty: largest below smallest. A remainder of values
    that pass a multiple of its divisor may be anything.
    """
    match expression:
        case Index(name=name, extent=extent):
            return of.get(name, (0, extent - 1))
        case Constant(value=value):
            return value, value
        case Sum2(left=left, right=right):
            (low, high), (low2, high2) = bounds(left, of), bounds(right, of)
            return low + low2, high + high2
        case Scaled(expression=inner, factor=factor):
            low, high = bounds(inner, of)
            return (low * factor, high * factor) if factor >= 0 else (high * factor, low * factor)
        case Quotient(expression=inner, divisor=divisor, exact=exact):
            low, high = bounds(inner, of)
            return -(-low // divisor) if exact else low // divisor, high // divisor
        case Remainder(expression=inner, divisor=divisor):
            low, high = bounds(inner, of)
            return (low % divisor, high % divisor) if low // divisor == high // divisor else (0, divisor - 1)
        case Bordered(expression=inner, extent=extent):
            low, high = bounds(inner, of)
            last = max(1, extent - 1)
            first_turn = -(-low // last) * last
            elements = [expression.at(value) for value in {low, high, min(first_turn, high), min(first_turn + last, high)}]
            return min(elements), max(elements)


def indices_in(expression: IndexExpression) -> tuple[Index, ...]:
    """Return the indices an expression depends on, in order of appearance, without repeats."""
    match expression:
        case Index():
            return (expression,)
        case Sum2(left=left, right=right):
            return tuple(dict.fromkeys((*indices_in(left), *indices_in(right))))
        case Scaled(expression=inner) | Quotient(expression=inner) | Remainder(expression=inner) | Bordered(expression=inner):
            return indices_in(inner)
        case Constant():
            return ()


class _Arithmetic:
    """The operators of scalar expressions."""

    __slots__ = ()

    def __add__(self, other: Expression) -> ScalarCall:
        """Add."""
        return ScalarCall("add", (cast("Expression", self), other))

    def __mul__(self, other: Expression) -> ScalarCall:
        """Multiply."""
        return ScalarCall("mul", (cast("Expression", self), other))


@dataclass(frozen=True, slots=True)
class All:
    """The subscript `:`: the whole axis."""


ALL = All()
Subscript = IndexExpression | All


@dataclass(frozen=True, slots=True)
class Access(_Arithmetic):
    """The element (or, with `ALL`, the slice) of operand number `operand` at the subscripts."""

    operand: int
    subscripts: tuple[Subscript, ...]


@dataclass(frozen=True, slots=True)
class ScalarCall(_Arithmetic):
    """A scalar function of scalars."""

    function: str
    arguments: tuple[Expression, ...]


ReducerKind = Literal["sum", "max", "min", "prod"]


@dataclass(frozen=True, slots=True)
class Reduce(_Arithmetic):
    """A reduction of `body` over `over`; partial results over parts of an index combine with the same reducer."""

    kind: ReducerKind
    over: tuple[Index, ...]
    body: Expression


OPAQUE_FLOPS = 8
"""Work of an opaque function per output element: chosen (an exponential, a division and a few additions)."""


@dataclass(frozen=True, slots=True)
class Opaque(_Arithmetic):
    """An unknown function of whole slices, of which the element at `element` is taken; no index in `element` can be split.

    `flops` is its work for one output element, of those with sums inside.
    """

    function: str
    arguments: tuple[Access, ...]
    element: tuple[Index, ...]
    flops: int = OPAQUE_FLOPS


Expression = Access | ScalarCall | Reduce | Opaque
"""A scalar expression over input elements."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Operand number `number`; subscript it to read an element."""

    number: int

    def __getitem__(self, subscripts: tuple[Subscript | int, ...]) -> Access:
        """Read an element; an int is a constant subscript."""
        return Access(self.number, tuple(Constant(s) if isinstance(s, int) else s for s in subscripts))


def operand(number: int) -> Operand:
    """Return operand number `number` of the node."""
    return Operand(number)


def indices(**extents: int) -> tuple[Index, ...]:
    """Return one index per keyword, with its extent."""
    return tuple(Index(name, extent) for name, extent in extents.items())


def Sum(over: tuple[Index, ...], body: Expression) -> Reduce:  # noqa: N802 - the language's own spelling
    """Sum of `body` over the indices."""
    return Reduce("sum", over, body)


def Max(over: tuple[Index, ...], body: Expression) -> Reduce:  # noqa: N802
    """Maximum of `body` over the indices."""
    return Reduce("max", over, body)


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and every one inside it, in order."""
    yield expression
    match expression:
        case ScalarCall(arguments=arguments) | Opaque(arguments=arguments):
            for argument in arguments:
                yield from parts_of(argument)
        case Reduce(body=body):
            yield from parts_of(body)
        case Access():
            pass


@dataclass(frozen=True)
class Description:
    """The element of an operator's (first) output at the index `outputs`, one index per output axis.

    `extra` speaks of further outputs: which element of each is made together with that one. Tiles that share a unit of the first output
    each make what belongs to it of further ones.
    """

    outputs: tuple[Index, ...]
    body: Expression
    extra: tuple[tuple[Subscript, ...], ...] = ()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return tuple(index.extent for index in self.outputs)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Every operand access."""
        return tuple(part for part in parts_of(self.body) if isinstance(part, Access))

    @cached_property
    def indices_of_accesses(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Per access, per subscript: the names of the indices it depends on."""
        return tuple(
            tuple(() if isinstance(s, All) else tuple(index.name for index in indices_in(s)) for s in access.subscripts)
            for access in self.accesses
        )

    @cached_property
    def splittable_axes(self) -> tuple[int, ...]:
        """Output axes along which tiles can be computed independently: all but those in the element of an opaque function."""
        opaque = {index.name for part in parts_of(self.body) if isinstance(part, Opaque) for index in part.element}
        return tuple(axis for axis, index in enumerate(self.outputs) if index.name not in opaque)


Descriptions = Mapping[str, Description | None]
"""Of nodes, by name; None for those that run whole."""
